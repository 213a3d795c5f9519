-- A single request for plain scopes, the most frequent call, is decided at a glance: half of the time goes into what the
-- general way defines and builds. It has no cost. Plain is a sorted set with rolling windows, in which the id owns nothing; and where a
-- window is full, nobody holds a slot and the clock was not stepped back. For all else nothing is returned, nor written.
local function glance(call, now)
  if call.ids or call.requests[2] or call.cost or call.stores or call.peek or call.drains or call.ahead or call.left then
    return
  end
  local request = call.requests[1]
  local id, at, denier, window = request[1], now, nil, nil
  local lifetimes, renewed = {}, {}
  for i = 2, #request do
    local key, windows = KEYS[request[i]], call.scopes[request[i]]
    if not key or (not call.fresh and redis.call('ZSCORE', key, id)) then
      return
    end
    local longest = 0
    for n = 1, #windows do
      local max, us = windows[n][1], windows[n][2]
      local full = redis.call('ZRANGE', key, -max, -max, 'WITHSCORES')[2]
      longest = math.max(longest, us)
      if full then -- as many as it may hold are stored
        local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
        if full + us <= now or tonumber(newest) > now or windows[n][3] then
          return
        end
        if full + us > at then
          at, denier, window = full + us, request[i], n
        end
      end
    end
    if longest >= MOST_EXACT then
      return
    end
    lifetimes[i] = math.ceil(longest / 1000)
  end
  if denier then
    return string.format('{"verdicts":[[%d,%d,%.0f]]}', denier, window, at - now)
  end
  for i = 2, #request do
    renewed[i] = redis.call('PTTL', KEYS[request[i]]) < lifetimes[i]
  end
  local score = digits(now)
  for i = 2, #request do
    redis.call('ZADD', KEYS[request[i]], score, id)
    if renewed[i] then
      redis.call('PEXPIRE', KEYS[request[i]], 2 * lifetimes[i] + 1)
    end
  end
  return '{"verdicts":[0]}'
end

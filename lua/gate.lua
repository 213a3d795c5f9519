-- Decides a batch of requests against rolling (or clock-aligned) limits over several scopes, all or nothing
-- for each request, exactly as the same requests one after another at one instant.
--
-- KEYS     one for each distinct scope (include/decide.lua), lifetime at least the longest window after the last charge:
--            set    ZSET    id that owns the slot -> microseconds of the charge, or 2^52 + deadline while it is held
--                           (include/slots.lua); lifetime then at least up to the deadline
--            log    LIST    microseconds of the charges, the newest first (include/slots.lua)
--            quota  STRING  how many were charged in each aligned window (include/slots.lua)
--          and after them, when "version" is given,
--            version STRING  number of the limits in force; permanent
-- ARGV[1]  JSON {"now": us | absent for the server's clock,
--                "peek": true | absent: decide, charge nothing,
--                "fresh": true | absent: no id was ever asked for before, so none owns a slot yet,
--                "drains": true | absent: charge on a full server (maxmemory) too; its callers free more than they take,
--                "ahead": [KEYS position, ...] | absent: scopes (sets) of which the instant is wanted from which on they have room
--                for one more after all this,
--                "cost": of a single request: how many slots it takes of each scope at once, all or none (include/slots.lua);
--                absent: one,
--                "version": string | absent,
--                "left": true | absent: of a single request, say what is left in each window of each scope if it is admitted,
--                "scopes", "stores": see include/decide.lua,
--                "requests": [[id, scope, ...], ...], see there; or, for many that ask for the same:
--                "ids": [id, ...], "rows": [[0, scope, ...], ...], "of": [position of its row for each id, ...]}
-- Returns  JSON {"verdicts": [0 | [scope, window, retry_after_us], ...]}: 0 is admitted; else the scope
--          and the window (from 1) that free up last. The same request is refused until retry_after_us from now and
--          admitted at that instant when nothing else happens in between.
--          With "ahead" also {"ahead": [[instant as a string, how many have room now], ...]}.
--          With "left" also {"left": [[how many more, ...] for each scope, ...]} of a request that was admitted.
--          {"stale": version in force} when another one than the call's is: nothing was decided.
-- A refused or peeked request writes nothing. An id that already owns slots is decided as if it owned none; admitted,
-- its slots move to now (never a second charge); refused, they stay. Every key is read before the first is written.
-- @include prelude

-- A single request for plain scopes, the most frequent call, is decided at a glance: half of the time goes into what the
-- general way defines and builds. It has no cost. Plain is a sorted set with rolling windows, in which the id owns nothing; and where a
-- window is full, nobody holds a slot and the clock was not stepped back. For all else nothing is returned, nor written, nor for
-- the first slot of a large scope.
local function glance(call, now)
  if call.ids or call.requests[2] or call.cost or call.stores or call.peek or call.drains or call.ahead or call.left then
    return
  end
  local request = call.requests[1]
  local id, at, denier, window = request[1], now, nil, nil
  local lifetimes, sizes, renewed = {}, {}, {}
  for i = 2, #request do
    local key, windows = KEYS[request[i]], call.scopes[request[i]]
    if not key or (not call.fresh and redis.call('ZSCORE', key, id)) then
      return
    end
    local longest = 0
    sizes[i] = 0
    for n = 1, #windows do
      local max, us = windows[n][1], windows[n][2]
      sizes[i] = math.max(sizes[i], max)
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
    local lives_ms = redis.call('PTTL', KEYS[request[i]])
    if lives_ms == -2 and sizes[i] > MOST_COMPACT then -- there is no key yet
      return
    end
    renewed[i] = lives_ms < lifetimes[i]
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

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
if call.version then
  local in_force = redis.call('GET', KEYS[#call.scopes + 1])
  if in_force and in_force ~= call.version then
    return cjson.encode({ stale = in_force })
  end
end
local answer = glance(call, now)
if answer then
  return answer
end
-- @include plan
-- @include slots
-- @include decide
if call.cost then
  slots.costs[call.requests[1][1]] = call.cost
end
gate.read_requests(call)
local _, verdicts, rest = gate.decide_batch(call, now)
plan.commit()
return '{"verdicts":[' .. table.concat(verdicts, ',') .. ']' .. rest .. '}'

-- When the owner of take.lua is to come again, if nobody rings before.

local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- The instant at which there may be something to take, or nil.
local function come_again()
  local next_at = math.max(first_score(leases), grace)
  if not suspended then
    next_at = math.min(next_at, first_score(parked))
    local from = behind and '(' .. digits(now) or '-inf'
    local line_at = tonumber(redis.call('ZRANGEBYSCORE', lines, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
    local waits_until = math.min(line_at or math.huge, behind or math.huge, first_score(timers))
    if call.due > 0 and not stopped and waits_until < math.huge then
      next_at = math.min(next_at, math.max(waits_until, tonumber(redis.call('HGET', pause, 'probe')) or 0))
    end
  end
  return next_at < math.huge and next_at or nil
end

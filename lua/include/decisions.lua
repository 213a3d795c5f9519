-- The decision record: a hash id -> "INSTANT JSON" of what became of events, once for those that a limit suppressed and once
-- for all others, so that a storm evicts nothing that was sent. Each has an older part: when the present one is to hold
-- more than half of what may be kept it takes the older one's place, so nothing is removed one by one.
local DECISIONS_MS = 604800000 -- seven days after the last one

local function record_decisions(present, older, rows, max)
  local held = redis.call('HLEN', present)
  if held > 0 and 2 * held + #rows > max then
    redis.call('UNLINK', older)
    redis.call('RENAME', present, older)
  end
  for first = 1, #rows, 1000 do
    redis.call('HSET', present, unpack(rows, first, math.min(first + 999, #rows)))
  end
  redis.call('PEXPIRE', present, DECISIONS_MS)
end

-- Stops posting by hand, of everything or of one category, or lets it go on.
--
-- KEYS      1 paused  HASH  "*" or category -> JSON {"by", "since": string, "why"}; empty
--           2 lines, 3 timers, 4 wake as in take.lua; 5 pause  HASH  why nobody posts (include/pause.lua)
-- ARGV[1]   JSON {"now": us | absent, "what": "*" | category, "line": prefix of keys,
--           "by", "why": pause it; one that is paused stays so since then | absent: let it go on}
-- Returns   1 if it was paused before, else 0
-- What was admitted of a category that is paused stands in the line 'paused:CATEGORY' (lua/pace.lua), and goes on at once. Who
-- lets everything go on has also put right what an operator was asked for: the next event tries at once.
-- @include prelude
-- @include record
-- @include books
-- @include slots
-- @include lines

local paused, lines, timers, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local was = redis.call('HEXISTS', paused, call.what)
if call.by then
  if was == 0 then
    redis.call('HSET', paused, call.what, cjson.encode({ by = call.by, since = digits(now), why = call.why }))
  end
  return was
end
redis.call('HDEL', paused, call.what)
local entry = 'paused:' .. call.what
if redis.call('EXISTS', call.line .. entry) == 1 then
  redis.call('ZADD', lines, digits(now), entry)
end
if call.what == '*' and redis.call('EXISTS', KEYS[5]) == 1 then
  redis.call('HSET', KEYS[5], 'probe', digits(now), 'prober', '')
  was = 1
end
if first_instant(lines, timers) <= now then
  ring(wake)
end
return was

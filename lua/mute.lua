-- Mutes a category until an instant, or ends that: its events are suppressed, or wait, when a worker takes them.
--
-- KEYS      1 muted     HASH  category -> JSON {"until", "since": instants as strings, "who", "why"}; lives as long as the longest
--           2 lines, 3 timers, 4 deciding, 5 freed, 6 wake as in take.lua
-- ARGV[1]   JSON {"now": us | absent, "waits": prefix of keys, "category",
--           "for_us", "who", "why": mute it for so long, in place of a mute it has | absent: end its mute}
-- Returns   [until | '', 1 if it was muted before, else 0]
-- What waits for the end of the mute stands in line for the scope 'muted:CATEGORY' (include/deferred.lua), whose instant is
-- that end. A worker that took an event before and lets it wait after finds the scope open (`freed`).
-- @include prelude
-- @include record
-- @include books
-- @include slots
-- @include lines
-- @include deferred

local muted, lines, timers = KEYS[1], KEYS[2], KEYS[3]
local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local at = { lines = lines, deciding = KEYS[4], freed = KEYS[5], waits = call.waits, now = now }
local before = first_instant(lines, timers)

local function until_of(text)
  return tonumber(cjson.decode(text)['until'])
end

local rows, was = redis.call('HGETALL', muted), 0
for i = 1, #rows, 2 do
  if until_of(rows[i + 1]) <= now then
    redis.call('HDEL', muted, rows[i])
  elseif rows[i] == call.category then
    was = 1
  end
end

local scope, ends = 'muted:' .. call.category, ''
if call.for_us then
  ends = digits(now + call.for_us)
  redis.call('HSET', muted, call.category,
    cjson.encode({ ['until'] = ends, since = digits(now), who = call.who, why = call.why }))
  keep_alive(muted, call.for_us)
  open_scope_at(at, scope, now + call.for_us)
else
  redis.call('HDEL', muted, call.category)
  reopen_scope(at, scope)
end
if first_instant(lines, timers) < before then
  ring(KEYS[6])
end
return { ends, was }

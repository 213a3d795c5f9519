-- Mutes a category until an instant, or ends that: its events are suppressed, or wait, when a worker takes them.
--
-- @keys muted lines timers deciding freed wake guarantees scheduled
-- KEYS      1 muted     HASH  category -> JSON {"until", "since": instants as strings, "who", "why"}; lives as long as the longest
--           all others as in take.lua
-- ARGV[1]   JSON {"now": us | absent, "waits": prefix of keys, "category",
--           "for_us", "who", "why": mute it for so long, in place of a mute it has | absent: end its mute}
-- Returns   [until | '', 1 if it was muted before, else 0]
-- What waits for the end of the mute stands in line for the scope 'muted:CATEGORY' (include/deferred.lua), whose instant is
-- that end. A worker that took an event before and lets it wait after finds the scope open (`freed`).
-- @include prelude
-- @include plan
-- @include record
-- @include slots
-- @include accounting
-- @include lines
-- @include deferred

local call = cjson.decode(ARGV[1])
local at = K
at.now, at.waits = microseconds(call.now), call.waits
local before = lines.first_instant(at)

local function until_of(text)
  local mute = json_of(text)
  return mute and number_of(mute['until']) or 0
end

local was = 0
for category, text in pairs(plan.hgetall(at.muted)) do
  if until_of(text) <= at.now then
    plan.hdel(at.muted, category)
  elseif category == call.category then
    was = 1
  end
end

local scope, ends = 'muted:' .. call.category, ''
if call.for_us then
  ends = digits(at.now + call.for_us)
  plan.hset(at.muted, call.category,
    cjson.encode({ ['until'] = ends, since = digits(at.now), who = call.who, why = call.why }))
  plan.keep_alive(at.muted, call.for_us)
  deferred.open_at(at, scope, at.now + call.for_us)
else
  plan.hdel(at.muted, call.category)
  deferred.reopen(at, scope)
end
lines.ring_if_earlier(at, before)
plan.commit(at.muted)
return { ends, was }

-- Ends parked events by hand: each leaves where it waits, is counted as dropped and gives its slots back, in one step. Its decision
-- counts the repeats that its message would have counted.
--
-- @keys events parked lines timers totals awaited deferred deciding freed wake seen limited limited_older limited_log scheduled
-- @keys tallies
-- @prefixes line waits scope minute tally
-- KEYS      as in take.lua, and seen ZSET id -> instant at which a settled id is forgotten
-- ARGV[1]   JSON {"now": us | absent, "remember_us", "most_decisions": as in settle.lua,
--           "events": [{"id", "seq", "remember": true | absent, "why": JSON text for the record, "shown"}, ...]}
-- Returns   for each 1 cancelled, 0 there is no such event any more, -1 it does not wait any more: a worker has it; the last
--           two change nothing
-- Keys of slots and lines are built from names in the event's header.
-- @include prelude
-- @include plan
-- @include record
-- @include slots
-- @include lines
-- @include accounting
-- @include deferred
-- @include leases
-- @include digest

local call = cjson.decode(ARGV[1])
local at = K
at.now = microseconds(call.now)
at.remember_us, at.most_decisions = call.remember_us, call.most_decisions

local results = {}
for n, event in ipairs(call.events) do
  local header, _, malformed = record.read(at, event.id)
  if malformed or header.digest or header.seq ~= event.seq then
    results[n] = 0
  elseif header.state ~= 'waiting' then
    results[n] = -1
  else
    local repeats = digest.untold_repeats(at, event.id, header, header.category)
    leases.cancel(at, event.id, header, digest.forget_repeats(at, repeats, event.why), event.remember, event.shown)
    results[n] = 1
  end
end
lines.ring_if_earlier(at)
accounting.write(at)
plan.commit(at.awaited)
return results

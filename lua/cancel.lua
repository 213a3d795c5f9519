-- Ends parked events by hand: each leaves where it waits, is counted as dropped and gives its slots back, in one step.
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

local call = cjson.decode(ARGV[1])
local at = K
at.now = microseconds(call.now)
at.remember_us, at.most_decisions = call.remember_us, call.most_decisions

-- What it holds is for its next attempt. A post that may have arrived keeps its slot.
local function cancel(event, header)
  plan.zrem(at.parked, event.id)
  leases.leave_place(at, event.id, header)
  if header.held or (header.posts or 0) == 0 then
    leases.let_go(at, event.id, header)
  end
  plan.hdel(at.events, event.id)
  accounting.unpark(at, header)
  accounting.count_ended('dropped', header.counted, 1, event.why, true)
  if event.remember then
    accounting.remember(at, { event.id })
  end
  accounting.record_limited(event.id, digits(at.now) .. ' ' .. event.why, event.shown)
end

local results = {}
for n, event in ipairs(call.events) do
  local header, _, malformed = record.read(at, event.id)
  if malformed or header.digest or header.seq ~= event.seq then
    results[n] = 0
  elseif header.state ~= 'waiting' then
    results[n] = -1
  else
    cancel(event, header)
    results[n] = 1
  end
end
lines.ring_if_earlier(at)
accounting.write(at)
plan.commit(at.awaited)
return results

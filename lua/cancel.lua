-- Ends parked events by hand: each leaves where it waits, is counted as dropped and gives its slots back, in one step.
--
-- KEYS      1 events, 2 parked, 3 lines, 4 timers, 5 totals, 6 awaited, 7 deferred, 8 deciding, 9 freed, 10 wake as in take.lua
--          11 seen      ZSET  id -> instant at which a settled id is forgotten
--          12 13        HASH  the decision record of what was suppressed, and its older part (include/decisions.lua)
--          14 ...       ZSET  the slots of the scopes that "events" point to (include/slots.lua)
-- ARGV[1]   JSON {"now": us | absent, "line", "waits", "scope": prefixes of keys, "remember_us", "most_decisions": as in settle.lua,
--           "events": [{"id", "seq", "scopes": [KEYS position, ...], "remember": true | absent, "why": JSON text for the record}, ...]}
-- Returns   for each 1 cancelled, 0 there is no such event any more, -1 it does not wait any more: a worker has it; the last
--           two change nothing
-- Keys of lines and of what waits for a scope are built from what was found, as in line_up.lua.
-- @include prelude
-- @include record
-- @include slots
-- @include lines
-- @include books
-- @include deferred
-- @include leaving
-- @include decisions
-- @include dropping

local events, lines, timers = KEYS[1], KEYS[3], KEYS[4]
local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local at = {
  events = events, parked = KEYS[2], lines = lines, timers = timers, totals = KEYS[5], awaited = KEYS[6], deferred = KEYS[7],
  deciding = KEYS[8], freed = KEYS[9], seen = KEYS[11], line = call.line, waits = call.waits,
  remember_us = call.remember_us, now = now,
}
redis.call('HDEL', at.awaited, '') -- a first write that a full server allows: after it the rest is allowed too
local before = first_instant(lines, timers)

-- A post of unknown fate keeps its slot; what is held is that of the next attempt.
local function slot_of(header)
  if header.held or (header.attempt or 0) == 0 then
    local unknown = header.unknown or 0
    return unknown > 0 and digits(header.seq) .. '#' .. unknown or digits(header.seq)
  end
end

local results, rows = {}, {}
for n, event in ipairs(call.events) do
  local record = redis.call('HGET', events, event.id)
  local header = record and read_record(record)
  if not header or header.own or header.seq ~= event.seq then
    results[n] = 0
  elseif header.state ~= 'waiting' then
    results[n] = -1
  else
    redis.call('ZREM', at.parked, event.id)
    leave_place(at, event.id, header)
    local slot = slot_of(header)
    for _, scope in ipairs(slot and event.scopes or {}) do
      if release_slot(KEYS[scope], slot) == 1 then
        reopen_scope(at, string.sub(KEYS[scope], #call.scope + 1))
      end
    end
    redis.call('HDEL', events, event.id)
    count(at.totals, 'parked', header.counted, -1)
    count(at.totals, 'dropped', header.counted, 1)
    if event.remember then
      remember(at, { event.id })
    end
    rows[#rows + 1] = event.id
    rows[#rows + 1] = digits(now) .. ' ' .. event.why
    results[n] = 1
  end
end
if #rows > 0 then
  record_decisions(KEYS[12], KEYS[13], rows, call.most_decisions)
end
if first_instant(lines, timers) < before then
  ring(KEYS[10])
end
return results

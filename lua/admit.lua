-- Decides a batch that one worker holds, as gate.lua does, and ends in the same step what is refused and whose category drops
-- or digests.
--
-- KEYS     one for each distinct scope, as in gate.lua; then
--          events HASH, leased SET, totals HASH, names SET, seen ZSET, decisions of what a limit suppressed and their older part
--          HASH, as in settle.lua; version STRING (include/version.lua); shadowed
--          HASH "SCOPE MAX/WINDOW" -> how many a shadow limit would have refused; permanent; and with "tallies" also
--          parked ZSET, lines ZSET, timers ZSET, wake LIST, seq STRING, deciding HASH, freed HASH as in take.lua, tallies SET and
--          a HASH for each tally (include/tally.lua)
-- ARGV[1]  JSON {"now", "fresh", "scopes", "requests" | "ids", "rows", "of", "ahead": as in gate.lua,
--            "remember_us", "most_decisions": as in settle.lua, "version": of the limits by which it asks | absent,
--            "jobs": [id of the event, ...] for each request,
--            "kinds": [[category, configured, remember, "dropped" | "digested", position of its tally or 0, deadline: string], ...],
--            "kind": [position of its kind for each request, or 0 where a refusal ends nothing, ...],
--            "told": [[text for the record, ...] for each limit, ...] for each scope,
--            "shadows", "shadow_names": see include/shadow.lua | absent,
--            "tallies": [{"id", "delay_us", "samples": [[position of a request, text], ...]}, ...] | absent: of what is suppressed,
--            "names": {position of a request: the event's name, where that is not its id}, "release": [position of a request, ...]
--            slots to give back if it is refused, "scope", "waits": prefixes of keys: these four with "tallies"}
-- Returns  JSON {"verdicts", "ahead": as gate.lua, "lost": [position of a request, ...], "shadowed": [[request,
--          scope, window], ...]}: the lease of a refused event was taken
--          over, nothing was changed about it. {"stale": version in force} when another one than the call's is: nothing was decided.
--          With "tallies" also "lone": [[position of a request, wait_us], ...]: was parked, as the only one that is suppressed;
--          and "joined": [[name, decision], ...]: such ones of before, which have ended now
-- @include prelude
-- @include record
-- @include slots
-- @include log
-- @include decide
-- @include books
-- @include decisions
-- @include dropping
-- @include version
-- @include shadow
-- @include lines
-- @include deferred
-- @include tally

local call = cjson.decode(ARGV[1])
local is_stale = stale(KEYS[#call.scopes + 8], call.version)
if is_stale then
  return is_stale
end
call.drains = true
local now = microseconds(call.now)
local shadowed = {}
call.admitted = call.shadows and caster(call, KEYS[#call.scopes + 9], now, shadowed)
-- @include batch

local first = #call.scopes
local at = {
  events = KEYS[first + 1], leased = KEYS[first + 2], totals = KEYS[first + 3], names = KEYS[first + 4],
  seen = KEYS[first + 5], limited = KEYS[first + 6], limited_older = KEYS[first + 7],
  parked = KEYS[first + 10], lines = KEYS[first + 11], timers = KEYS[first + 12], wake = KEYS[first + 13],
  seq = KEYS[first + 14], deciding = KEYS[first + 15], freed = KEYS[first + 16], tallies = KEYS[first + 17],
  now = now, remember_us = call.remember_us, most_decisions = call.most_decisions, waits = call.waits,
}

-- What the record says of a kind that was refused so; a category needs no escapes.
local function why_of(kind, verdict)
  local scope, window, retry_after = string.match(verdict, '(%d+),(%d+),(%d+)')
  local told = call.told[tonumber(scope)][tonumber(window)]
  return '["' .. kind[4] .. '","' .. kind[1] .. '",' .. told .. retry_after .. '],{}]'
end

-- The time that a refusal says, but no longer than the window that says it: what rests on a held slot may say a day.
local function wait_of(verdict)
  local scope, window, retry_after = string.match(verdict, '(%d+),(%d+),(%d+)')
  return math.min(tonumber(retry_after), call.scopes[tonumber(scope)][tonumber(window)][US])
end

local groups, found = {}, {}
for n = 1, count do
  local kind, verdict = call.kind[n], verdicts[n]
  if kind > 0 and verdict ~= '0' then
    local of_kind = found[kind]
    if not of_kind then
      of_kind = {}
      found[kind] = of_kind
    end
    local group = of_kind[verdict]
    if not group then
      group = { kind = call.kinds[kind], verdict = verdict, places = {} }
      of_kind[verdict] = group
      groups[#groups + 1] = group
    end
    group.places[#group.places + 1] = n
  end
end

local lost, lone, joined = {}, {}, {}
-- @include tallying
if #groups > 0 then
  local jobs, places = {}, {}
  for _, group in ipairs(groups) do
    for _, n in ipairs(group.places) do
      jobs[#jobs + 1] = call.jobs[n]
      places[#places + 1] = n
    end
    group.count, group.why = #group.places, why_of(group.kind, group.verdict)
    group.category, group.configured, group.remember, group.outcome = unpack(group.kind)
  end
  redis.call('HDEL', at.totals, '') -- a first write that a full server allows: after it the rest is allowed too
  local ours = redis.call('SMISMEMBER', at.leased, unpack(jobs))
  for n, is_ours in ipairs(ours) do
    if is_ours == 0 then
      lost[#lost + 1] = places[n]
    end
  end
  if call.tallies then
    keep_tallies(ours)
  end
  drop(at, jobs, ours, groups)
end
local answer = '{"verdicts":[' .. table.concat(verdicts, ',') .. ']' .. ahead .. ',"lost":[' .. table.concat(lost, ',')
  .. '],"shadowed":[' .. table.concat(shadowed, ',') .. ']'
if call.tallies then
  answer = answer .. ',"lone":[' .. table.concat(lone, ',') .. '],"joined":[' .. table.concat(joined, ',') .. ']'
end
return answer .. '}'

-- Decides a batch that one worker holds, as gate.lua does. In the same step it ends the refused events whose category drops or
-- digests, and notes in the headers of admitted events in which scopes they have slots.
--
-- @prefixes line waits scope minute subject tally
-- KEYS     one for each distinct scope, as in gate.lua; then
--          events HASH, leased SET, totals HASH, names ZSET, seen ZSET, the limited decisions, their older part
--          and their stream, as in settle.lua; version STRING (include/prelude.lua); shadowed
--          HASH "SCOPE MAX/WINDOW" -> how many events a shadow limit would have refused; permanent;
--          parked ZSET, lines ZSET, timers ZSET, wake LIST, seq STRING, deciding HASH, freed HASH, tallies SET,
--          scheduled ZSET as in take.lua; and a HASH for each of "tallies" (include/digest.lua)
-- ARGV[1]  JSON {"now", "fresh", "ahead": as in gate.lua, "scopes", "rows", "ids", "of": see include/gate.lua,
--            "remember_us", "most_decisions": as in settle.lua, "version": of the limits by which the worker asks | absent,
--            "jobs": [id of the event, ...] for each request, "shown": [text and labels for the record, ...] for each | "",
--            "kinds": [[category, configured, remember, "dropped" | "digested", position of its tally or 0, deadline: string,
--              its name in the books | ""], ...],
--            "kind": [position of its kind for each request, or 0 where a refusal ends nothing, ...],
--            "told": [[text for the record, ...] for each limit, ...] for each scope,
--            "said": {position of a scope: the last part of the text for the record, where it is not {}} | absent,
--            "shadows", "shadow_names": see shadow_caster | absent,
--            "tallies": [{"id", "delay_us", "samples": [[position of a request, text], ...],
--              "is_of_repeats": true | absent}, ...] | absent: they count suppressed events,
--            "names": {position of a request: the event's name, where that is not its id} | absent: without "tallies",
--            "others": [position of its kind for each request that ends as a repeat or since its failure is over, or 0, ...] | absent,
--            "about": {position of a request: as in include/subjects.lua, and then true if it was admitted before, and the name of its
--              scope of the kind 'once' that does not follow from its subject | absent} | absent,
--            "release": [position of a request, ...] that gives back its slots if it is refused | absent}
-- Returns  JSON {"verdicts", "ahead": as gate.lua, "lost": [position of a request, ...], "shadowed": [[request,
--          scope, window], ...]}: this worker holds a lost event no more: its lease was taken over, or its header cannot be read and
--          it is the next to be taken; its verdict means nothing, and nothing was charged for it. {"stale": version in force} if
--          that is not the call's: nothing was decided. With "tallies" also
--          "buffered": [[position of a request, wait_us], ...]: parked, as the only suppressed event of its category; and
--          "joined": [[name, decision, us of its first sight, us of its refusal], ...]: earlier buffered singles, which have ended now; and
--          "uncounted": [position of a request, ...]: repeats that were dropped, since no message counts them. With "about"
--          also "over": [position of a request, ...]: a recovery came before it; it was not decided, and has ended if "others" says so
-- @include prelude
-- @include plan
-- @include record
-- @include slots
-- @include gate
-- @include accounting
-- @include lines
-- @include deferred
-- @include leases
-- @include digest
-- @include subjects

local call = cjson.decode(ARGV[1])
local first = #call.scopes
local NAMES = { 'events', 'leased', 'totals', 'names', 'seen', 'limited', 'limited_older', 'limited_log', 'limits_version', 'shadowed', 'parked',
  'lines', 'timers', 'wake', 'seq', 'deciding', 'freed', 'tallies', 'scheduled' }
local at = {
  remember_us = call.remember_us, most_decisions = call.most_decisions, waits_prefix = K.waits_prefix, scope_prefix = K.scope_prefix,
  minute_prefix = K.minute_prefix, line_prefix = K.line_prefix, subject_prefix = K.subject_prefix, tally_prefix = K.tally_prefix,
}
for n, name in ipairs(NAMES) do
  at[name] = KEYS[first + n]
end
local is_stale = stale(at.limits_version, call.version)
if is_stale then
  return is_stale
end
at.now = microseconds(call.now)

local lost, lost_places = {}, {}

local function lose(n)
  lost[n], lost_places[#lost_places + 1] = true, n
end

-- Finds the events whose lease was taken over. They are not decided here: another worker decides them.
local function find_lost()
  local is_ours = redis.call('SMISMEMBER', at.leased, unpack(call.jobs))
  for n = 1, #call.jobs do
    if is_ours[n] == 0 then
      lose(n)
    end
  end
end

local over, over_places = {}, {} -- of events whose failure is over: since when
local skipped = {} -- those, and the lost ones

local function seq_of(n)
  return tonumber(string.match(call.ids[n], '^%d+'))
end

-- Finds the events that a recovery came before. They are not decided.
local function find_over()
  for place, about in pairs(call.about or {}) do
    local n = tonumber(place)
    local since = not (lost[n] or about[subjects.SPAN + 1]) and subjects.over(at, about, seq_of(n))
    if since then
      over[n], skipped[n], over_places[#over_places + 1] = since, true, n
    end
  end
end

-- The events that wait or are in flight from now on.
local function note_subjects(verdicts, groups)
  local gone = {}
  for _, group in ipairs(groups) do
    for _, n in ipairs(group.places) do
      gone[n] = n ~= group.set_aside
    end
  end
  for place, about in pairs(call.about or {}) do
    local n = tonumber(place)
    if not (skipped[n] or gone[n]) and (verdicts[n] == '0' or gone[n] == false) then
      subjects.enter(at, about, seq_of(n), call.jobs[n])
      if verdicts[n] == '0' and about[subjects.SPAN + 2] then
        subjects.note_once(at, about, about[subjects.SPAN + 2])
      end
    end
  end
end

local holders = {} -- of scopes of what an event is about: who was admitted in this call

local function is_once(position)
  local window = call.scopes[position][1]
  return window and window[slots.KIND] == 'once'
end

-- The event that has the slot of a scope of what an event is about, and since when, if it was admitted; and its member there,
-- which names no event where somebody else wrote it.
local function holder_of(position)
  if holders[position] then
    return holders[position], at.now
  end
  local member, _, since = slots.holder(KEYS[position], call.scopes[position][1][slots.US], at.now)
  return member and string.match(member, ' (.*)$'), since, member
end

-- What the decision record says of a repeat: the event that it repeats, and since when that has the slot.
local function first_of(position)
  local holder, since, member = holder_of(position)
  holder = holder or member
  return holder and '{"detail":' .. cjson.encode(holder) .. (since and ',"since_us":' .. digits(since) or '') .. '}' or '{}'
end

-- The text for the decision record of a kind that was refused with this verdict. A category needs no escapes.
local function why_of(kind, verdict)
  local over = string.match(verdict, '^over (%d+)$')
  if over then
    return '["' .. kind[4] .. '","' .. kind[1] .. '","resolved",null,{"since_us":' .. over .. '}]'
  end
  local scope, window, retry_after = string.match(verdict, '(%d+),(%d+),(%d+)')
  local told = call.told[tonumber(scope)][tonumber(window)]
  local said = call.others and is_once(tonumber(scope)) and first_of(tonumber(scope)) or call.said and call.said[scope] or '{}'
  return '["' .. kind[4] .. '","' .. kind[1] .. '",' .. told .. retry_after .. '],' .. said .. ']'
end

-- The position of the kind of an event that was refused so, or 0 where that ends nothing.
local function kind_of(n, verdict)
  if over[n] or (call.others and verdict ~= '0' and is_once(tonumber(string.match(verdict, '%d+')))) then
    return call.others and call.others[n] or 0 -- without `others` all are replayed: their worker makes dead letters of them again
  end
  return call.kind[n]
end

-- The wait of a refusal, at most its window: because of a held slot a refusal may say a day.
local function wait_of(verdict)
  local scope, window, retry_after = string.match(verdict, '(%d+),(%d+),(%d+)')
  return math.min(tonumber(retry_after), call.scopes[tonumber(scope)][tonumber(window)][slots.US])
end

-- Whether a repeat cannot be counted in the message that it repeats: that was posted while repeats were dropped, or counts no more.
local function is_uncounted(kind, verdict)
  local tally = call.tallies and call.tallies[kind[5]]
  if not (tally and tally.is_of_repeats) then
    return false
  end
  tally.holder = holder_of(tonumber(string.match(verdict, '%d+')))
  local key = KEYS[first + #NAMES + kind[5]]
  local is_known = not tally.holder or (tally.holder == plan.hget(key, 'event') and not digest.is_closed(at, key))
  return not (is_known or plan.hget(at.events, tally.holder))
end

-- The tallies that count the repeats of an event which may own slots; nil where there are none.
local function untold_of(n, category)
  local header, _, malformed = record.read(at, call.jobs[n])
  local untold = malformed and {} or digest.untold_repeats(at, call.jobs[n], header, header.category or category)
  return untold[1] and untold or nil
end

-- Groups the events that a refusal ends, by kind and verdict; each whose repeats are counted is a group by itself. Returns the
-- groups, and the ids of all these events.
local function groups_of(verdicts)
  local groups, found, gone, owns = {}, {}, {}, {}
  local jobs = call.jobs
  for _, n in ipairs(call.release or {}) do
    owns[n] = true
  end
  for n = 1, #verdicts do
    local verdict = over[n] and 'over ' .. over[n] or verdicts[n]
    local kind = kind_of(n, verdict)
    if kind > 0 and verdict ~= '0' and not lost[n] then
      local of_kind = found[kind]
      if not of_kind then
        of_kind = {}
        found[kind] = of_kind
      end
      local row = call.kinds[kind]
      local untold = owns[n] and untold_of(n, row[1])
      local name = untold and verdict .. ' of ' .. n or verdict
      local group = of_kind[name]
      if not group then
        local uncounted = not over[n] and is_uncounted(row, verdict)
        if over[n] or uncounted then -- no repeat that the first message counts
          row = { row[1], row[2], row[3], 'dropped', 0, row[6], row[7] }
        end
        group = { kind = row, verdict = verdict, places = {}, ids = {}, shown = {}, why = why_of(row, verdict), uncounted = uncounted, untold = untold }
        group.category, group.configured, group.remember, group.outcome = unpack(row)
        group.counted = row[7] ~= '' and row[7] or nil
        of_kind[name] = group
        groups[#groups + 1] = group
      end
      local place, id = #group.places + 1, jobs[n]
      group.places[place], group.ids[place], group.shown[place], gone[#gone + 1] = n, id, call.shown[n], id
    end
  end
  return groups, gone
end

-- Gives back the slots of an event: those that it asks for, and those that it holds by limits which were in force before.
local function give_back(n, request)
  for _, position in ipairs(gate.positions_of(request)) do
    leases.release(at, KEYS[position], request[1], call.jobs[n])
  end
  local header = record.read(at, call.jobs[n])
  leases.let_go(at, call.jobs[n], header, {})
end

-- Gives back the slots of refused events that may own some: a dead worker may have been admitted with one, or it stood in line.
local function give_all_back(groups, request_of)
  local ended = {}
  for _, group in ipairs(groups) do
    for _, n in ipairs(group.places) do
      ended[n] = true
    end
  end
  for _, n in ipairs(call.release) do
    if ended[n] then
      give_back(n, request_of(n))
    end
  end
  lines.ring_if_earlier(at)
end

-- Counts the refused events of the groups in their tallies, and parks the buffered single. Returns the texts of parked
-- buffered singles, and of earlier ones that have ended now.
local function keep_tallies(groups)
  local ended, buffered, joined = {}, {}, {}
  for _, tally in ipairs(call.tallies) do
    tally.number, tally.texts = 0, {}
  end
  for _, group in ipairs(groups) do
    local tally = call.tallies[group.kind[5]]
    for _, n in ipairs(tally and group.places or {}) do
      tally.number, tally.why, ended[n] = tally.number + 1, digest.combined(tally.why, group.why), true
      tally.only = { n = n, group = group }
    end
  end
  for position, tally in ipairs(call.tallies) do
    tally.key = KEYS[first + #NAMES + position]
    for _, sample in ipairs(tally.samples) do
      if ended[sample[1]] then
        tally.texts[#tally.texts + 1] = sample[2]
      end
    end
    local only = tally.only
    if tally.number == 1 and only.group.outcome == 'digested' and not tally.is_of_repeats and plan.hlen(tally.key) == 0 then
      local group = only.group
      local event = {
        id = call.jobs[only.n], name = call.names[tostring(only.n)], category = group.category,
        configured = group.configured, remember = group.remember, deadline = group.kind[6], shown = call.shown[only.n],
      }
      local wait_us = digest.set_aside(at, tally, event, tally.why, tally.texts, wait_of(group.verdict))
      if wait_us then
        buffered[#buffered + 1] = string.format('[%d,%.0f]', only.n, wait_us)
      else
        lose(only.n)
      end
      group.set_aside = only.n
    elseif tally.number > 0 then
      local counts_for = tally.holder and plan.hget(tally.key, 'ts') and plan.hget(tally.key, 'event')
      if counts_for and counts_for ~= tally.holder then
        digest.split_off(at, tally.id, tally.key)
      elseif counts_for then
        digest.count_until(tally.key, at.now + wait_of(only.group.verdict))
      end
      local was_buffered = digest.suppress(at, tally, tally.number, tally.why, tally.texts)
      if was_buffered then
        joined[#joined + 1] = cjson.encode(was_buffered)
      end
    end
  end
  lines.ring_if_earlier(at)
  return buffered, joined
end

-- Removes the id of the event that is not dropped, and its row of a list beside.
local function keep(ids, kept, beside)
  for n = #ids, 1, -1 do
    if ids[n] == kept then
      table.remove(ids, n)
      table.remove(beside or {}, n)
    end
  end
end

-- Ends the refused events, except those that are set aside.
local function drop(groups, gone)
  for _, group in ipairs(groups) do
    if group.set_aside then
      keep(group.ids, call.jobs[group.set_aside], group.shown)
      keep(gone, call.jobs[group.set_aside])
    elseif group.untold then
      group.why = digest.forget_repeats(at, group.untold, group.why)
    end
  end
  redis.call('HLEN', at.events)
  plan.write_rows('SREM', at.leased, gone, 1)
  plan.write_rows('HDEL', at.events, gone, 1)
  accounting.note_dropped(at, groups)
end

-- Shadow limits are counted and not enforced. Who was admitted is charged in each shadow scope that has room; where there is
-- none, it is counted that this limit would have refused it, and noted for the answer.
--
-- In the call: "shadows": [[KEYS position, ...] for each row], "shadow_names": {position: [field of the hash for
-- each limit, ...]}. `shadowed` is the hash; `found` collects texts '[request, position, window]'.
local function shadow_caster(call, shadowed, now, found)
  return function(n, id, scopes)
    for _, position in ipairs(call.shadows[call.of[n]]) do
      local scope = scopes[position]
      if not call.fresh and not scope.pending[id] then
        scope.own[id] = tonumber(redis.call('ZSCORE', scope.key, id) or nil)
      end
      local instant, window = gate.free_at(scope, id)
      if instant <= now then
        slots.charge(scope, id)
      else
        plan.count(shadowed, call.shadow_names[tostring(position)][window], 1)
        found[#found + 1] = string.format('[%d,%d,%d]', n, position, window)
      end
    end
  end
end

-- Notes in which scopes the admitted events have slots. The limits may change before their posts start: then slots in scopes that
-- the new ones do not name are given back.
local function note_slots(verdicts, request_of)
  local names_of = {} -- of a row of scopes
  for n = 1, #verdicts do
    local row = call.of[n]
    if not names_of[row] then
      names_of[row] = {}
      for place, position in ipairs(gate.positions_of(request_of(n))) do
        names_of[row][place] = leases.scope_of(at, KEYS[position])
      end
    end
    if verdicts[n] == '0' and not skipped[n] and names_of[row][1] then
      local header, payload, malformed = record.read(at, call.jobs[n])
      if not malformed and leases.add_slots(header, names_of[row]) then
        record.write(at, call.jobs[n], header, payload)
      end
    end
  end
end

local shadowed = {}
find_lost()
local cast = call.shadows and shadow_caster(call, at.shadowed, at.now, shadowed)

local function note_admitted(n, id, scopes, request)
  local first_position = request[2]
  if type(first_position) == 'number' and scopes[first_position].is_once then
    holders[first_position] = call.jobs[n]
  end
  if cast then
    cast(n, id, scopes)
  end
end

if call.others then
  call.members = {}
  for n, slot in ipairs(call.ids) do
    call.members[slot] = slots.of_event(slot, call.jobs[n])
  end
end
find_over()
for n in pairs(lost) do
  skipped[n] = true
end
local verdicts, ahead, request_of = gate.decide_batch(call, at.now, call.others and note_admitted or cast, skipped)
if #gate.given_back > 0 then
  for _, scope in ipairs(gate.given_back) do
    deferred.reopen(at, leases.scope_of(at, scope.key))
  end
  lines.ring_if_earlier(at)
end
local groups, gone = groups_of(verdicts)
local buffered, joined = {}, {}
if call.release and #groups > 0 then
  give_all_back(groups, request_of)
end
if call.tallies and #groups > 0 then
  buffered, joined = keep_tallies(groups)
end
note_subjects(verdicts, groups)
note_slots(verdicts, request_of)
drop(groups, gone)
local answer = '{"verdicts":[' .. table.concat(verdicts, ',') .. ']' .. ahead .. ',"lost":[' .. table.concat(lost_places, ',')
  .. '],"shadowed":[' .. table.concat(shadowed, ',') .. ']'
if call.tallies then
  local uncounted = {}
  for _, group in ipairs(groups) do
    uncounted[#uncounted + 1] = group.uncounted and table.concat(group.places, ',') or nil
  end
  answer = answer .. ',"buffered":[' .. table.concat(buffered, ',') .. '],"joined":[' .. table.concat(joined, ',') .. ']'
    .. ',"uncounted":[' .. table.concat(uncounted, ',') .. ']'
end
if call.about then
  answer = answer .. ',"over":[' .. table.concat(over_places, ',') .. ']'
end
accounting.write(at)
plan.commit(at.totals)
return answer .. '}'

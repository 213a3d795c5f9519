-- Deferred events stand in line: newcomers behind those that wait already, and whoever the gate refused.
--
-- @keys events leased parked lines timers totals names wake awaited deferred deciding freed limits_version seq tallies
-- @keys requeued posting scheduled silences endings
-- @prefixes line waits scope minute subject tally firing
-- KEYS      as in take.lua; and then the slots of the scopes (ZSET) and the tallies (HASH) that "events" point to
-- ARGV[1]   JSON {"now": us | absent, "owner", "version": of the limits | absent,
--           "events": [{"id", "seq", "category", "configured", "line", "priority": "high" | "normal" | "low", "max": most of its
--             category that may wait, "deadline": string,
--             "scope": what refused it and "wait_us": until that has room; or the scope of a silence and until that ends; absent: not
--             asked for yet,
--             "opens": [us: string, us: string] | absent: its guarantee, which is "scope" then, and `shared` refused it until these instants,
--             "silenced": as in include/silences.lua, if it waits for the end of a silence | absent,
--             "release": [KEYS position, ...] its slots in these go back | absent,
--             "once": [KEYS position, window in us] of the scope of what it is about, which it holds while it stands in line | absent,
--             "tally": {"id", "key": KEYS position, "delay_us", "why", "samples"} | absent: counts it, if it stands for the first
--             time; of one that waited for the end of quiet hours, if a limit refuses it for the first time,
--             "about": as in include/subjects.lua | absent}, ...]}
-- Returns   JSON {"events": ["go" | "full" | "lost" | ["over", us] | ["repeat", id, us | null, wait_us] | ["parked", scope, wait_us | null], ...]}
--           go: nobody waits before it, ask the gate. full: as many of its category wait as may. repeat: the event of this id is
--           about the same thing; it was admitted at that instant, or holds its slot in line. over: a recovery at that
--           instant came before it. These four change nothing. lost: this worker holds it no more: its lease was taken over, or its
--           header cannot be read and it is the next to be taken. wait_us is null while others are deciding about the scope.
--           {"stale": version in force} when another one than the call's is: nothing was changed.
-- Keys of lines and of what waits for a scope are built from names: a line moves to the scope that refused its head.
-- @include prelude
-- @include plan
-- @include record
-- @include slots
-- @include accounting
-- @include lines
-- @include deferred
-- @include leases
-- @include digest
-- @include subjects
-- @include silences

local call = cjson.decode(ARGV[1])
local at = K
local is_stale = stale(at.limits_version, call.version)
if is_stale then
  return is_stale
end
at.now = microseconds(call.now)
at.owner = call.owner

local function place_of(line)
  local instant, scope = deferred.opens_at(at, line)
  local wait = instant and instant < math.huge and digits(math.max(0, instant - at.now)) or 'null'
  return string.format('["parked",%s,%s]', cjson.encode(scope), wait)
end

local function waits_before(event)
  local head = deferred.head(at, event.line)
  return head and head < deferred.score(event.priority, event.seq)
end

local released = {}

-- Whether it stands or stood in a line for room: one that waited for the end of a silence has not asked for room yet.
local function stood(header)
  return header.line and not string.find(header.line, '^silence:')
end

-- Whether it was counted when it stood before. In the line of quiet hours it waits for no limit until one refuses it.
local function was_counted(header)
  return stood(header) and (header.waited == 'limit' or not string.find(header.line, '^quiet:'))
end

-- Counts an event that waits for the end of a silence, once for each silence. It keeps no slot meanwhile. Returns until when it
-- waits.
local function silence(event, header)
  leases.let_go(at, event.id, header, {})
  if not silences.has_counted(event.silenced, header.line) then
    silences.count(at, event.silenced, event.about, header.seq, true)
  end
  return plan.hget(at.silences, event.silenced.ids[1]) and at.now + event.wait_us or at.now
end

-- The answer for an event that is about the same thing as another one; nil if it is not.
local function repeated(event, member)
  local key, window = KEYS[event.once[1]], event.once[2]
  local holder, until_us, since = slots.holder(key, window, at.now)
  if not holder or holder == member then
    return nil
  end
  local first = string.match(holder, ' (.*)$') or holder
  return string.format('["repeat",%s,%s,%.0f]', cjson.encode(first), since and digits(since) or 'null', until_us - at.now)
end

local function line_up(event)
  local header, payload, malformed = record.read(at, event.id)
  if malformed then
    leases.set_apart(at, event.id)
    return '"lost"'
  end
  local over = event.about and subjects.over(at, event.about, header.seq)
  local member = event.once and slots.member(KEYS[event.once[1]], record.slot(header), event.id)
  local answer = over and '["over",' .. over .. ']' or member and not stood(header) and repeated(event, member)
  if answer then
    return answer
  end
  local waiting = count_of(plan.hget(at.deferred, event.category))
  if waiting >= event.max and not header.line then
    return '"full"'
  end
  plan.srem(at.leased, event.id)
  for _, scope in ipairs(event.release or {}) do
    if slots.release(KEYS[scope], slots.member(KEYS[scope], record.slot(header), event.id)) then
      released[#released + 1] = leases.scope_of(at, KEYS[scope])
    end
  end
  leases.let_go(at, event.id, header, member and { [KEYS[event.once[1]]] = true } or {})
  if event.tally and not was_counted(header) then
    event.tally.key = KEYS[event.tally.key]
    digest.suppress(at, event.tally, 1, event.tally.why, event.tally.samples)
  end
  if event.about then
    subjects.enter(at, event.about, header.seq, event.id)
  end
  if member then
    slots.reserve(KEYS[event.once[1]], member, tonumber(event.deadline), at.now)
    leases.add_slots(header, { leases.scope_of(at, KEYS[event.once[1]]) })
  end
  header.category, header.deadline = event.category, event.deadline
  accounting.give_name(at, header, event.category, event.configured)
  local instant = event.scope and (event.silenced and silence(event, header) or at.now + event.wait_us)
  local shared_at
  if event.opens then
    instant, shared_at = tonumber(event.opens[1]), tonumber(event.opens[2])
  end
  header.line, header.rank = event.line, deferred.RANKS[event.priority]
  header.channel, header.held, header.attempt = nil, nil, nil -- a recovery that becomes a message may have waited for an edit
  deferred.line_up(at, event.id, header, payload, event.scope, instant, shared_at)
  return place_of(event.line)
end

local answers = {}
for n, event in ipairs(call.events) do
  if not plan.sismember(at.leased, event.id) then
    answers[n] = '"lost"'
  elseif not event.scope and not waits_before(event) and not deferred.earlier_undecided(at, event.seq) then
    answers[n] = '"go"'
  else
    answers[n] = line_up(event)
  end
end
for _, scope in ipairs(released) do
  deferred.reopen(at, scope)
end
lines.ring_if_earlier(at)
accounting.write_counts(at)
plan.commit(at.awaited)
return '{"events":[' .. table.concat(answers, ',') .. ']}'

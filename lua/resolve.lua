-- Decides about events that tell of a recovery: what of their subject still waits is not posted any more, the newest message
-- about it is to be edited, and the keys that it took are free.
--
-- @keys events leased parked lines timers totals names awaited deferred deciding freed wake seen limited limited_older limited_log
-- @keys scheduled editable silences silencing endings tallies seq posting requeued reopening
-- @prefixes line waits scope minute subject tally firing
-- KEYS      as in take.lua, and editable ZSET subject -> when its message was posted (include/subjects.lua)
-- ARGV[1]   JSON {"now": us | absent, "owner", "remember_us",
--           "most_decisions": as in settle.lua, "events": [{"id", "about": as in include/subjects.lua, "category", "configured",
--             "deadline": string, "cancels": true: what waits is not posted any more, "can_edit": true: messages can be edited,
--             "counts": true: repeats are counted in the message that they repeat,
--             "once": [name of a scope that its subject takes, ...], "why": JSON text for the record of what is cancelled, which then counts its repeats too}, ...]}
-- Returns   JSON {"events": ["lost" | "unposted" | "told" | "post" | ["wait", us] | ["edit", {field: value}] | "again", ...],
--             "cancelled": [[id that the producer gave, category, first sight: string], ...]}
--           unposted: nothing about it is in Slack, or nothing that is known. told: ENOUGH older recoveries wait, and no failure
--           is newer than these. post: its message cannot be edited. wait: an event of its subject is in flight, or its message
--           may not be edited yet; this one was parked until then. edit: fields of the message, as in include/subjects.lua.
--           lost: this worker holds it no more: its lease was taken over, or its header cannot be read and it is the next to be
--           taken. again: this call did not look at it, since it has cancelled MOST_CANCELLED events or more; ask again for it.
-- Keys of subjects, tallies, lines and slots are built from names in the call and in headers.
-- @include prelude
-- @include plan
-- @include record
-- @include slots
-- @include lines
-- @include accounting
-- @include deferred
-- @include leases
-- @include digest
-- @include subjects
-- @include silences

local AGAIN_US = 30000000 -- an event in flight may end or be parked, and nobody tells the recovery that waits for it
local PATIENCE_US = 300000000 -- an edit waits no longer for the line of its channel
local MOST_CANCELLED = 200 -- after so many a call decides about no other recovery
local ENOUGH = 2 -- recoveries that wait for one thing: the second is there if an operator cancels the first

local call = cjson.decode(ARGV[1])
local at = K
at.now = microseconds(call.now)
at.owner = call.owner
at.remember_us, at.most_decisions = call.remember_us, call.most_decisions
local cancelled = {}

-- The id that the producer gave. Where RQ allows no such id, the job has a digest of it (`job_id_for` in dispatcher/core/event.py).
local function name_of(id, payload)
  local job = string.find(id, '^id%-') and json_of(payload) or {}
  local event = type(job[3]) == 'table' and job[3][1]
  return type(event) == 'table' and type(event.id) == 'string' and event.id or id
end

-- Looks at the events of the subject that are from before the recovery: cancels those that wait. Returns the members that those
-- in flight have in scopes of the kind 'once', and whether there is a newer event.
local function look_at_live(event, key, instant, seq)
  local in_flight, is_newer = {}, false
  for field, value in pairs(plan.hgetall(key)) do
    local its_seq = number_of(string.match(field, '^e(%d+)$'))
    local its_instant, remember, id, shown = string.match(value, '^(%d+) ([01]) (%S+) ?(.*)$')
    if its_seq and its_instant then
      local header, payload, malformed = record.read(at, id)
      if malformed or header.seq ~= its_seq then
        plan.hdel(key, field)
      elseif not subjects.is_before(at, its_instant .. ' ' .. digits(its_seq), instant, seq) then
        is_newer = true
      elseif header.state == 'waiting' and not header.unconfirmed and (header.unknown or 0) == 0 and event.cancels then
        plan.hdel(key, field)
        local repeats = digest.untold_repeats(at, id, header, header.category)
        leases.cancel(at, id, header, digest.forget_repeats(at, repeats, event.why), remember == '1', shown)
        cancelled[#cancelled + 1] = cjson.encode({ name_of(id, payload), header.category, header.seen })
      else
        in_flight[#in_flight + 1] = slots.of_event(record.slot(header), id)
      end
    end
  end
  return in_flight, is_newer
end

-- Parks the event until `instant`. It may have the turn of the line of edits, which others wait for.
local function park(event, key, header, payload, instant)
  lines.free_all(at, event.id)
  header.why, header.category, header.deadline = { 'resolved', cjson.null }, event.category, event.deadline
  accounting.give_name(at, header, event.category, event.configured)
  plan.srem(at.leased, event.id)
  leases.park(at, event.id, header, payload, instant, tonumber(event.deadline), 'resolved')
  plan.hset(key, 'w' .. digits(header.seq), event.about[subjects.INSTANT] .. ' ' .. event.id)
  return string.format('["wait",%.0f]', instant - at.now)
end

-- From when on the message may be edited: two edits of one message keep apart, and none comes before posts that wait.
local function editable_at(fields, header)
  local instant = count_of(fields.editable)
  if instant > at.now + AGAIN_US then -- the clock was stepped back since the last edit
    instant = 0
  end
  local line = 'channel:' .. (fields.line or '')
  local given_up = count_of(header.seen) + PATIENCE_US
  if at.now < given_up and plan.zfirst(at.line_prefix .. line) then
    local following = plan.zscore(at.lines, line) or math.huge
    instant = math.max(instant, math.min(given_up, math.max(following, at.now) + 1000000, at.now + AGAIN_US))
  end
  return instant
end

-- Whether another event tells of the same recovery now.
local function is_told_by_another(key, seq)
  local its_seq, id = string.match(plan.hget(key, 'by') or '', '^(%d+) (.*)$')
  return its_seq ~= nil and tonumber(its_seq) ~= seq and record.read(at, id).seq == tonumber(its_seq)
end

-- Whether ENOUGH older recoveries wait, and no failure is newer than these: each tells all that this one would.
local function is_told_by_others(key, instant, seq)
  local fields, others = plan.hgetall(key), 0
  local function is_newest(its_instant, its_seq)
    for field, value in pairs(fields) do
      local live_seq = string.match(field, '^e(%d+)$')
      local live = live_seq and (string.match(value, '^%d+') or '') .. ' ' .. live_seq or field == 'posted' and value
      if live and not subjects.is_before(at, live, its_instant, its_seq) then
        return false
      end
    end
    return true
  end
  for field, value in pairs(fields) do
    local its_seq, its_instant, id = number_of(string.match(field, '^w(%d+)$')), string.match(value, '^(%d+) (.*)$')
    if its_seq and its_instant and subjects.is_before(at, its_instant .. ' ' .. digits(its_seq), instant, seq)
      and record.read(at, id).seq == its_seq and is_newest(tonumber(its_instant), its_seq) then
      others = others + 1
    end
  end
  return others >= ENOUGH
end

-- The keys that events of the subject may have taken: name of the scope -> id of the tally that counts repeats.
local function keys_of(event, key)
  local tallies = {}
  local function add(name)
    tallies[name] = 'repeat:' .. event.category .. ':' .. string.sub(name, #'once:' + 1)
  end
  for _, name in ipairs(event.once or {}) do
    add(name)
  end
  for name in string.gmatch(plan.hget(key, 'once') or '', '%S+') do
    add(name)
  end
  return tallies
end

-- Frees the keys that failures in flight have taken, so that the next failure is posted. The keys stay taken where repeats are
-- counted, since the count belongs to a key, and where these failures are posted again if their posts fail.
local function open_keys(event, key, members)
  local names = event.cancels and not event.counts and keys_of(event, key) or {}
  for name in pairs(names) do
    for _, member in ipairs(members) do
      slots.release(at.scope_prefix .. name, member)
    end
  end
end

-- Whether an event that waits or is in flight has taken the key. No event of the subject does: it is one about something else.
local function is_held_by_another(name)
  local holder = slots.holder(at.scope_prefix .. name, math.huge, at.now)
  local id = holder and string.match(holder, ' (.*)$')
  return id and plan.hget(at.events, id) ~= nil
end

-- Lets the keys go that events of the subject have taken, and notes the repeats of its newest message that were counted under them.
-- Those of another message are told in that one.
local function free_keys(event, key)
  local count, editable = 0, 0
  for name, tally in pairs(keys_of(event, key)) do
    local is_kept = is_held_by_another(name)
    local is_taken = plan.zfirst(at.scope_prefix .. name) ~= nil
    local its_name = plan.hget(at.tally_prefix .. tally, 'name')
    if not is_kept then
      plan.del(at.scope_prefix .. name)
    end
    if its_name and its_name == plan.hget(key, 'name') then
      local its_count, its_editable = digest.drop_repeats(at, tally, at.tally_prefix .. tally)
      count, editable = count + its_count, math.max(editable, its_editable)
    elseif not (is_taken or plan.hget(at.tally_prefix .. tally, 'ts')) then -- the failure that they repeat was cancelled
      digest.drop_repeats(at, tally, at.tally_prefix .. tally)
    elseif not is_kept then
      digest.close_repeats(at, tally, at.tally_prefix .. tally)
    end
  end
  plan.hdel(key, 'once')
  if count > 0 and plan.hget(key, 'posted') then
    plan.hset(key, 'count', digits(count))
    plan.hset(key, 'editable', digits(editable))
  end
end

local function resolve(event)
  local header, payload, malformed = record.read(at, event.id)
  if malformed then
    leases.set_apart(at, event.id)
    return '"lost"'
  end
  local about, seq = event.about, header.seq
  local key, instant = subjects.key(at, about), tonumber(about[subjects.INSTANT])
  local in_flight, is_newer = look_at_live(event, key, instant, seq)
  local over = plan.hget(key, 'over')
  if not over or subjects.is_before(at, over, instant, seq) then
    plan.hset(key, 'over', about[subjects.INSTANT] .. ' ' .. digits(seq))
    plan.keep_alive(key, about[subjects.SPAN], 2 * about[subjects.SPAN])
  end
  if not is_newer then
    silences.resolve(at, about[subjects.NAME], instant)
    digest.note_recovery(at, event.category, about[subjects.NAME], instant)
  end
  local own, posted = plan.hget(key, 'm' .. digits(seq)), plan.hget(key, 'posted')
  local has_freed = plan.hget(key, 'freed') == digits(seq) -- and its worker died then
  local are_older = not has_freed and not is_newer and (not posted or subjects.is_before(at, posted, instant, seq))
  if are_older and #in_flight > 0 then
    open_keys(event, key, in_flight)
  elseif are_older then
    free_keys(event, key)
    plan.hset(key, 'freed', digits(seq))
  end
  if #in_flight > 0 or is_told_by_another(key, seq) then
    if is_told_by_others(key, instant, seq) then
      return '"told"'
    end
    return park(event, key, header, payload, at.now + AGAIN_US)
  end
  local newest = plan.hgetall(key)
  local fields = own and json_of(own) or newest
  if fields.name == newest.name then
    fields.count, fields.editable = newest.count, newest.editable
  end
  local is_after = fields.posted and subjects.is_before(at, fields.posted, instant, seq)
  if not is_after then
    return '"unposted"'
  end
  plan.hset(key, 'by', digits(seq) .. ' ' .. event.id)
  if not event.can_edit or not fields.ts then
    lines.free_all(at, event.id)
    return '"post"'
  end
  if not own then -- it edits this message, whoever takes it over and whatever is posted while it waits
    plan.hset(key, 'm' .. digits(seq), cjson.encode(subjects.message_in(fields)))
  end
  local editable = editable_at(fields, header)
  if editable > at.now then
    return park(event, key, header, payload, editable)
  end
  return '["edit",' .. cjson.encode(fields) .. ']'
end

local answers = {}
for n, event in ipairs(call.events) do
  if #cancelled >= MOST_CANCELLED then
    answers[n] = '"again"'
  else
    answers[n] = plan.sismember(at.leased, event.id) and resolve(event) or '"lost"'
  end
end
lines.ring_if_earlier(at)
accounting.write(at)
plan.commit(at.events)
return '{"events":[' .. table.concat(answers, ',') .. '],"cancelled":[' .. table.concat(cancelled, ',') .. ']}'

-- Makes the outcomes of events durable: the end of each event, or the place where it waits next. Changes its lease, its slots,
-- its channel, its dead letter and the books in one step.
--
-- @keys events leased parked lines timers posting cooldowns pause totals names wake seen dead dead_ids dead_bytes
-- @keys limited limited_older limited_log others others_older others_log deciding freed failures failing denials posted places limits_version seq
-- @keys tallies turns scheduled editable counting metrics silences endings beat awaited deferred
-- @prefixes line waits scope tally minute subject firing
-- KEYS      as in take.lua; then
--           seen        ZSET    id -> instant at which a settled id is forgotten; lives as long as its last member
--           dead        STREAM  dead letters, oldest first; dead_ids HASH id -> entry; dead_bytes STRING: include/letters.lua
--           failures, failing, denials HASH, posted STRING  see include/pause.lua; they live an hour
--           places      HASH    channel as events name it -> Slack's id of it; permanent
--           metrics     HASH    what is counted beside the books (include/accounting.lua); permanent
--           and then    the keys that "channels" and "events" point to
-- ARGV[1]   JSON {"now": us | absent, "remember_us", "dead": {"max", "max_age_us", "max_bytes"} bounds of the dead letters,
--           "most_decisions", "version": of the limits | absent; if another one is in
--             force, what waits for a limit or a channel asks again now,
--           "channels": as in pace.lua,
--           "events": [{"id", "category", "configured", "outcome": "sent" | "dropped" | "digested" | "dead" | "parked" | "told" | "reported",
--             "scopes": [...], "holds": [...], "guarantee", "priority" as in pace.lua,
--             "slots": "keep" | "hold" | "release",
--             "remember": true: a repeat of this id is a duplicate for remember_us,
--             "why": JSON text for the decision record | absent, "shown": text and labels for it | absent, "limited": true: that goes into the part
--               `limited` (include/accounting.lua),
--             "silenced": as in include/silences.lua, of an event that a silence suppressed | absent, "reported": as there, of a report,
--             "channel": position | absent, "replied": true: the channel answered, "arrived": true: the post may have
--               arrived, charge the channel's pace,
--             "cooldown_us": no post to the channel for so long, "scan_wait_us": no history scan for so long,
--             "said": {"code", "detail"} that Slack or the network gave,
--             "pause": true: an operator is needed, "said" has "fingerprint" too, "reached": true: Slack answered, "failed": true: Slack was not
--               reached, or its answer is not clear; "scan": true: the call was a history scan,
--             "resume": true: a post succeeded, "spared": attempts used if the event did not cause the failure | absent,
--             "channel_id": Slack's id of the channel | absent,
--             "about": as in include/subjects.lua | absent, "once": name of its scope of the kind 'once' | absent,
--             "message": {"name", "line", "channel", "ts", "text"} that was posted (include/subjects.lua) | absent,
--             "repeats": {"id", "key": position of its tally, "window_us", "message": {"channel", "ts", "text", "event", "subject", "name"}} of an event
--               whose message can be edited and counts its repeats | absent,
--             "recovers": true: it tells of a recovery; "is_told": the message about the failure says so, or this one does,
--             "uneditable": true: that message cannot be edited,
--             "thread": name of its thread | absent, "ts": of the message that was posted,
--             "begins_thread": true: its last post was a reply, and the message takes no replies: the thread is forgotten,
--             "since": instant (text) from which on an event that is sent might be posted,
--             "letter": {field: string, ...} of a dead letter; this script adds the payload, and a header that cannot be read,
--             of a parked event: "onto": position of the channel in whose line it waits, because its own is gone ("said") | absent,
--               "place": "line" | "timer" | "scan" (a timer that counts from the post) | "scheduled", "wait_us" | "begins_us",
--               "deadline": string, "attempt", "unknown", "resent", "unconfirmed": how many history scans have failed, of an event
--               with an unknown delivery status,
--               "why_parked": [reason, code | null] of an event on a timer; if a limit or `once` refused it, it
--               goes at once where other limits are in force or it held no slots before,
--             "tally": {"id", "key": position, "delay_us", "samples", "why": instead of the event's | absent} | absent: counts an event that a
--               limit ends, or quiet hours until "until_us"; then "subject" is the name of what it is about; or
--               {"key": position} of a digest message; its "told" says what it has done (include/digest.lua)}, ...],
--           "threads": as in pace.lua, "counted": {field of metrics: by how much} | absent}
-- Returns   JSON {"settled": [1 | 0, ...], "trimmed": dead letters lost to their bounds, "pause_changes": [{"began": kind,
--           "code", "detail"} | {"ended": kind}, ...] pauses}; 0: the lease was taken over, nothing was changed for the event
-- Keys of slots are also built from names in the header of the event whose slot is released or charged.
-- @include prelude
-- @include plan
-- @include record
-- @include slots
-- @include accounting
-- @include lines
-- @include letters
-- @include deferred
-- @include leases
-- @include pause
-- @include threads
-- @include digest
-- @include subjects
-- @include silences

local MOST_TRIMMED = 200 -- dead letters that one call deletes for their bounds

local call = cjson.decode(ARGV[1])
local at = K
at.now = microseconds(call.now)
at.remember_us, at.most_decisions = call.remember_us, call.most_decisions
local thread_keys = threads.of(call, at.now)
local is_stale = stale(at.limits_version, call.version)
local channels = lines.channels(call)

local function park(event, header, payload)
  header.state, header.category, header.deadline = 'waiting', event.category, event.deadline
  header.attempt, header.unknown = event.attempt, event.unknown
  header.unconfirmed, header.resent = event.unconfirmed, event.resent
  local asks_once_more = event.slots == 'hold' and not header.held -- held slots leave room that charged ones do not
  header.held = event.slots == 'hold' or nil
  if event.slots == 'hold' then
    leases.note_slots(at, header, event)
    header.line, header.rank = nil, nil -- it was admitted, and waits in the line of its category no more
  end
  local ends = tonumber(event.deadline)
  if event.place == 'scheduled' then
    header.scheduled, header.why = true, event.why_parked
    plan.zadd(at.scheduled, event.begins_us, event.id)
  elseif event.place ~= 'line' then
    local from = event.place == 'scan' and leases.marked(at, header) or at.now
    local is_limited = string.find(event.why_parked[1], '^limit:') or event.why_parked[1] == 'repeat'
    local instant = is_limited and (is_stale or asks_once_more) and at.now or math.max(at.now, event.until_us or from + event.wait_us)
    header.timer, header.why = true, event.why_parked
    if event.said and event.said.code and not event.scan then
      header.code = event.said.code
    end
    plan.zadd(at.timers, instant, event.id)
    ends = event.unconfirmed and math.max(ends, instant) or ends -- an event is reconciled before it expires
  else
    local channel = channels[event.onto or event.channel]
    lines.class(header, event, pause.has_failed(at, header, channel.name))
    plan.zadd(channel.line, lines.score(header), event.id)
  end
  plan.zadd(at.parked, ends, event.id)
  accounting.park(at, header, event.why_parked[1])
  record.write(at, event.id, header, payload)
end

-- The event goes on to another channel, since its own is gone.
local function move_on(event, header, channel, onto)
  header.gone = { channel.name, event.said.code }
  header.channel, header.solo, header.pace = onto.name, onto.max ~= nil, onto.window_us
end

-- When the head of the channel's line may pass: at once, if other limits are in force than those of the call.
local function set_line(channel)
  lines.set(at, channel)
  if is_stale and (plan.zscore(at.lines, channel.line_name) or math.huge) < math.huge then
    plan.zadd(at.lines, at.now, channel.line_name)
  end
end

-- What changes for the channel after a post has ended: its turn, its pace, its cool-down.
local function turn_channel(event, channel)
  lines.free(at, channel.name, event.id)
  if event.arrived and channel.max then
    slots.charge(lines.pace(at, channel), event.id .. ' ' .. digits(at.now))
  end
  local cooldown = event.replied and plan.zscore(at.cooldowns, channel.name)
  if cooldown and cooldown <= at.now then
    plan.zrem(at.cooldowns, channel.name)
  end
end

-- What all workers learn from an answer, or from its absence.
local function note_reach(event, channel, sent_us)
  local name = channel and channel.name or ''
  if event.pause then
    local until_us = pause.note_denial(at, event.id, name, event.said, event.scan)
    if until_us then
      event.attempt, event.until_us = event.spared or event.attempt, until_us
    end
  elseif event.failed then
    if pause.note_failure(at, event.id, name, event.said, event.arrived, event.scan) then
      event.attempt = event.spared or event.attempt
    end
  elseif event.scan and event.outcome == 'sent' then
    pause.note_found(at, event.id, name, sent_us)
  elseif event.reached and not event.scan then
    if event.cooldown_us then
      pause.cool_down(at, event.id, name, event.cooldown_us + leases.unnoticed_us(at), event.said)
    else
      pause.note_answer(at, event.id, name, event.resume, event.replied)
    end
  else
    pause.pass_try(at, event.id)
  end
  if event.scan_wait_us then
    local wait_us = event.scan_wait_us + leases.unnoticed_us(at)
    plan.zadd_higher(at.cooldowns, at.now + wait_us, lines.HISTORY)
    plan.keep_alive(at.cooldowns, wait_us + lines.COOLED_US)
  end
  if event.channel_id and channel then
    plan.hset(at.places, channel.name, event.channel_id)
  end
end

-- Holds the slots of an event that waits, or gives them back. An event that cannot be read keeps the slots of a post that
-- may have arrived. A post that may have arrived stays charged wherever it was charged, also by limits that are not in force
-- now.
local function turn_slots(event, header, malformed)
  local slot = header.seq and record.slot(header)
  if not slot then
    return
  end
  if malformed or not event.deadline then
    if header.held then
      leases.let_go(at, event.id, header)
    end
    return
  end
  for _, scope in ipairs(event.slots == 'hold' and event.holds or {}) do
    slots.hold(KEYS[scope], slots.member(KEYS[scope], slot, event.id), tonumber(event.deadline), at.now)
  end
  if event.slots == 'release' then
    for _, scope in ipairs(event.scopes or {}) do
      leases.release(at, KEYS[scope], slot, event.id)
    end
    leases.let_go(at, event.id, header)
  elseif event.slots == 'hold' or header.held then
    leases.let_go(at, event.id, header, leases.own_slots(header, event))
  end
end

local function bury(event, payload, malformed)
  local fields = event.letter
  if malformed then
    fields.header = malformed
  end
  letters.bury(at, event.id, fields, payload)
end

-- An event that was to be parked and cannot be read any more becomes a dead letter.
local function end_undecodable(event)
  if event.outcome == 'parked' then
    event.outcome = 'dead'
    event.letter = { reason = 'invalid', detail = 'its stored header cannot be read', category = event.category }
    event.why = '["dead",' .. cjson.encode(event.category) .. ',"invalid",null,{}]'
  end
end

-- What its subject learns of an event.
local function note_subject(event, header)
  local about, seq, has_ended = event.about, header.seq, event.outcome ~= 'parked'
  if event.recovers then
    local key = subjects.key(at, about)
    local posted = plan.hget(key, 'posted')
    if event.is_told and posted and subjects.is_before(at, posted, tonumber(about[subjects.INSTANT]), seq) then
      subjects.forget_message(at, about[subjects.NAME])
    elseif event.uneditable then
      local field = 'm' .. digits(seq)
      local own = json_of(plan.hget(key, field))
      if own and own.name ~= plan.hget(key, 'name') then -- an older message than the newest
        own.ts = nil
        plan.hset(key, field, cjson.encode(own))
      else
        plan.hdel(key, 'ts')
        plan.hdel(key, field)
      end
    end
  elseif not has_ended then
    subjects.enter(at, about, seq, event.id)
  elseif event.message then
    subjects.note_message(at, about, seq, event.message)
    if event.once then
      subjects.note_once(at, about, event.once)
    end
  end
  subjects.note_end(at, about, seq, has_ended)
end

-- What becomes of the repeats of an event that has ended: its message tells of them, or its record and its dead letter count them.
local function note_repeats(event, header, channel)
  local repeats, posted = event.repeats, event.message
  local message = repeats and repeats.message
  if message then
    message.line = channel and channel.name or header.channel
    digest.begin_repeats(at, { id = repeats.id, key = KEYS[repeats.key] }, message, at.now + repeats.window_us)
  elseif posted and posted.ts then
    message = {
      channel = posted.channel, ts = posted.ts, line = posted.line, text = posted.text, event = event.id,
      subject = event.about[subjects.NAME], name = posted.name,
    }
  end
  local untold, count = digest.untold_repeats(at, event.id, header, header.category or event.category), 0
  for _, id in ipairs(message and untold or {}) do -- counted by limits that are not in force now
    digest.begin_repeats(at, { id = id, key = at.tally_prefix .. id }, message, at.now)
  end
  if not message then
    event.why, count = digest.forget_repeats(at, untold, event.why)
  end
  if count > 0 and event.letter then
    event.letter.repeats = digits(count)
  end
end

local function settle(event)
  local channel, onto = channels[event.channel], channels[event.onto]
  local is_digest_message = record.is_digest_message(event.id)
  local header, payload, malformed = record.read(at, event.id)
  if event.outcome ~= 'parked' and not is_digest_message then
    note_repeats(event, header, channel)
  end
  turn_slots(event, header, malformed)
  if malformed and is_digest_message then
    header = digest.new_header(at)
  elseif malformed then
    end_undecodable(event)
  end
  if is_digest_message then
    header.counted = ''
  else
    accounting.give_name(at, header, event.category, event.configured)
  end
  if malformed or header.channel and header.channel ~= (channel and channel.name) then -- it may have the turn of another channel
    lines.free_all(at, event.id)
  end
  if channel then
    header.channel, header.solo, header.pace = channel.name, channel.max ~= nil, channel.window_us
  end
  note_reach(event, channel, number_of(header.sent) or 0)
  if onto and event.outcome == 'parked' then
    move_on(event, header, channel, onto)
  end
  if event.outcome == 'parked' then
    park(event, header, payload)
  elseif event.outcome == 'told' then
    digest.tell(at, event.id, KEYS[event.tally.key], event.told, header)
  elseif event.outcome == 'reported' then
    silences.report(at, event.id, event.reported)
  elseif is_digest_message then -- a digest message ends only with its tally
    digest.begin_anew(at, event.id, not malformed)
  else
    plan.hdel(at.events, event.id)
  end
  if event.outcome == 'dead' and not is_digest_message then
    bury(event, payload, malformed)
  end
  if event.tally and event.outcome ~= 'told' then
    event.tally.key = KEYS[event.tally.key]
    digest.suppress(at, event.tally, 1, event.tally.why or event.why, event.tally.samples)
    if event.tally.subject then
      local instant, is_over = tonumber(event.about[subjects.INSTANT]), header.seq and subjects.over(at, event.about, header.seq)
      digest.note_firing(event.tally.key, event.tally.subject, instant, is_over)
    end
  end
  if event.outcome ~= 'parked' and not is_digest_message then
    accounting.count_ended(event.outcome, header.counted, 1, event.why, true)
    if event.outcome == 'sent' and event.since then
      accounting.count_delivery(at, header, event.priority, tonumber(event.since))
    end
  end
  if event.silenced and not silences.has_counted(event.silenced, header.line) then
    silences.count(at, event.silenced, event.about, header.seq)
  end
  if event.remember then
    accounting.remember({ event.id })
  end
  if event.begins_thread then
    threads.forget(thread_keys, event.thread, header.root)
  elseif event.thread and event.ts and not header.root then -- a reply begins no thread
    threads.begin(thread_keys, event.thread, event.ts)
  end
  if event.why and event.limited then
    accounting.record_limited(event.id, digits(at.now) .. ' ' .. event.why, event.shown)
  elseif event.why then
    accounting.record_other(event.id, digits(at.now) .. ' ' .. event.why, event.shown)
  end
  if event.about and header.seq then
    note_subject(event, header)
  end
  if channel then
    turn_channel(event, channel)
    set_line(channel)
  end
  if onto then
    set_line(onto)
  end
end

local settled = {}
for n, event in ipairs(call.events) do
  settled[n] = plan.srem(at.leased, event.id) and 1 or 0
  if settled[n] == 1 then
    settle(event)
  end
end
lines.write(channels)
lines.ring_if_earlier(at)
local trimmed = letters.has_buried() and letters.trim(at, call.dead, MOST_TRIMMED) or 0
letters.write(at)
if trimmed > 0 then
  plan.count(at.metrics, 'trimmed', trimmed)
end
for field, by in pairs(call.counted or {}) do
  plan.count(at.metrics, field, by)
end
local changes = #pause.changes > 0 and cjson.encode(pause.changes) or '[]'
local answer = string.format('{"settled":[%s],"trimmed":%d,"pause_changes":%s}', table.concat(settled, ','), trimmed, changes)
accounting.write(at)
plan.commit(at.posting)
return answer

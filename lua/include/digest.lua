-- What limits suppressed and nobody in Slack was told of: a tally for each category that digests, or gives notice.
--
-- `tallies` SET   ids of the tallies, 'digest:CATEGORY', 'notice:CATEGORY', 'quiet:CATEGORY' or 'repeat:CATEGORY:DIGEST', and of
--                 ended silences ('silence:ID', include/silences.lua). Each has a digest message, or a buffered single. A digest message
--                 bears the tally's id, stands in `events` with "digest" in its header and no payload, and waits, is taken and posted
--                 like any other; the books count it under the name '', which is nobody's.
-- tally     HASH  count, first, last (instants) of what was suppressed; why: what the decision record says of the newest, see `combined`;
--                 samples: JSON [[text, count at which it came last], ...];
--                 since: the first instant after the digest message was taken; edit: from when on it may look again;
--                 shown: how many Slack was told of; channel, ts: of that message; line: the channel as events name it; due: since when
--                 an edit waits for posts to it; next: when another may be posted;
--                 failed: that it cannot be posted was told; snap: JSON of all this, as the digest message was last given it;
--                 of:SUBJECT: of quiet hours, the instant of the newest event about what fails, '0' where that is over; resolved: how many
--                 are over;
--                 buffered: id of the buffered single, which is parked; name: its name, if that is another; words: its text and
--                 labels for the record; remember: '1' if it is to be remembered.
--                 Lives until its digest message has told of all, or the buffered single has left. That of repeats,
--                 'repeat:CATEGORY:DIGEST', is there from the post of the message that they are counted in, or from the first repeat if
--                 that comes before, until `next`: when another one may be posted; it has a lifetime while no repeat has come; kept: from
--                 when on repeats are dropped and not counted in it; event: the id of the event that was posted; text: what its message
--                 said at first; subject: what it is about, and name: its name, as in include/subjects.lua, where it says what it is
--                 about.
--                 Where another message takes its place before all repeats are told, the tally goes on as 'repeat:CATEGORY:DIGEST+SEQ'.
--
-- `counting` ZSET tally of repeats -> when its message was posted, of the newest MOST_COUNTING messages.
--
-- `at` names the keys events, leased, parked, timers, totals, names, seq, tallies, counting (where events are settled), lines and
-- line_prefix (where they are taken), and those of include/accounting.lua; scope_prefix, subject_prefix and tally_prefix; and now.
-- A `tally` of a call: its id, its key, how long it collects (delay_us), or of quiet hours until when (until_us).
local digest = module(function(digest)
  local MOST_SAMPLES = 5
  local MOST_SUBJECTS = 1000 -- fields of a tally of quiet hours: of more things it is not known whether they are over
  local PATIENCE_US = 86400000000 -- after which a digest message asks anew; nothing ends it
  local HOUR_US = 3600000000
  local EDIT_US = 30000000 -- between two edits of one message
  local WAITS_US = 300000000 -- an edit waits no longer for the line of its channel
  local SOONEST_US, LATEST_US = 10000000, 30000000 -- until it looks at the line again: very many may wait for one line
  local MOST_COUNTING, KEPT_US = 10000, 604800000000 -- messages that count their repeats, and for how long: as in include/subjects.lua
  local MOST_TEXT = 1024
  local MOST_TALLIES = 1000 -- that one call looks at
  local COUNTING = { 'since', 'edit', 'due', 'shown', 'samples', 'snap' }
  local FIELDS = { 'since', 'edit', 'shown', 'channel', 'ts', 'line', 'due', 'next', 'failed', 'samples', 'snap', 'resolved' }

  local function is_text(value)
    return type(value) == 'string' and #value <= MOST_TEXT
  end

  local function samples_of(text)
    local samples = {}
    for _, sample in ipairs(text and json_of(text) or {}) do
      if type(sample) == 'table' and is_text(sample[1]) and whole_of(sample[2]) and #samples < MOST_SAMPLES then
        samples[#samples + 1] = { sample[1], sample[2] }
      end
    end
    return samples
  end

  local function with_samples(known, texts, at_count)
    local samples = samples_of(known)
    for _, text in ipairs(texts) do
      local found
      for _, sample in ipairs(samples) do
        if sample[1] == text then
          sample[2], found = at_count, true
        end
      end
      if not found and #samples < MOST_SAMPLES then
        samples[#samples + 1] = { text, at_count }
      end
    end
    return cjson.encode(samples)
  end

  local function is_number(text)
    return (whole_of(text) or -1) >= 0
  end

  local function is_why(text)
    local why = json_of(text)
    local refusal = why and why[4]
    return type(refusal) == 'table' and type(why[1]) == 'string' and type(why[5]) == 'table' and string.find(text, '}%]$')
      and type(refusal[1]) == 'string' and type(refusal[2]) == 'string' and refusal[3] ~= nil
  end
  local function number_in(key, field)
    local text = plan.hget(key, field)
    return is_number(text) and tonumber(text) or nil
  end

  local function next_seq(at)
    return record.next_seqs(at, 1) + 1
  end

  -- Digest messages that wait for this reason ask again now. Returns whether these were all: one call looks at MOST_TALLIES.
  function digest.ask_again(at, reason)
    local is_all = redis.call('SCARD', at.tallies) <= MOST_TALLIES
    for _, id in ipairs(plan.smembers(at.tallies, MOST_TALLIES)) do
      local is_later = not string.find(id, '^repeat:') and (plan.zscore(at.timers, id) or 0) > at.now
      if is_later and string.find(plan.hget(at.events, id) or '', '"why":["' .. reason, 1, true) then
        plan.zadd(at.timers, at.now, id)
      end
    end
    return is_all
  end

  -- Parks a digest message on its timer; `is_quiet`: until quiet hours end.
  function digest.park(at, id, header, instant, is_quiet)
    header.state, header.timer, header.category, header.counted = 'waiting', true, '', ''
    header.deadline, header.holds, header.slots = digits(at.now + PATIENCE_US), nil, nil
    header.why = is_quiet and { 'quiet', cjson.null } or nil
    plan.zadd(at.timers, instant, id)
    plan.zadd(at.parked, at.now + PATIENCE_US, id)
    record.write(at, id, header, '')
  end

  function digest.new_header(at)
    return { digest = true, seq = next_seq(at), seen = digits(at.now) }
  end

  -- A digest message whose record cannot be read begins anew, and one that can be read and not handled does so an hour
  -- later. Where its tally is gone, that is its end.
  function digest.begin_anew(at, id, is_readable)
    if redis.call('EXISTS', at.tally_prefix .. id) == 0 then
      plan.hdel(at.events, id)
      plan.srem(at.tallies, id)
    else
      digest.park(at, id, digest.new_header(at), is_readable and at.now + HOUR_US or at.now)
    end
  end

  -- The buffered single ends with the second one. Returns its name, what the record says, its first sight, and when it was
  -- refused; nothing where it has left.
  local function join_buffered(at, tally, buffered, why)
    local name, stored, last = plan.hget(tally.key, 'name'), plan.hget(tally.key, 'why'), digits(number_in(tally.key, 'last') or at.now)
    why = is_why(stored) and stored or why
    local is_waiting, header, _, malformed = plan.zrem(at.timers, buffered), record.read(at, buffered)
    if not is_waiting or malformed then
      if is_waiting then
        plan.zadd(at.timers, at.now, buffered) -- it is the next to be taken, as what cannot be read
      end
      plan.del(tally.key)
      return nil
    end
    why = digest.forget_repeats(at, digest.untold_repeats(at, buffered, header, header.category), why)
    plan.hdel(at.events, buffered)
    plan.zrem(at.parked, buffered)
    accounting.unpark(at, header)
    accounting.count_ended('digested', header.counted, 1, why, true)
    accounting.record_limited(buffered, last .. ' ' .. why, plan.hget(tally.key, 'words'))
    if plan.hget(tally.key, 'remember') then
      accounting.remember({ buffered })
    end
    for _, field in ipairs({ 'buffered', 'name', 'remember', 'words' }) do
      plan.hdel(tally.key, field)
    end
    return { is_text(name) and name or buffered, why, digits(number_of(header.seen)), last }
  end

  -- The tally of a buffered single that cannot be read goes.
  function digest.forget_buffered(at, id)
    for _, tally in ipairs(plan.smembers(at.tallies, MOST_TALLIES)) do
      if plan.hget(at.tally_prefix .. tally, 'buffered') == id then
        plan.del(at.tally_prefix .. tally)
        plan.srem(at.tallies, tally)
      end
    end
  end

  -- What a tally keeps of why its newest event was refused; and in the last part "mixed" where earlier ones had another outcome,
  -- and "several" where another limit refused some of them. What nothing refused, since it waits behind others, waits 0: it names
  -- the limit of those.
  function digest.combined(earlier, why)
    if not is_why(earlier) then
      return why
    end
    local was, is = cjson.decode(earlier), cjson.decode(why)
    local refusal, before, said = is[4], was[4], was[5]
    local was_refused, is_refused = before[3] ~= 0, refusal[3] ~= 0
    local is_another = was_refused and is_refused and (refusal[1] ~= before[1] or refusal[2] ~= before[2])
    if not is_refused and was_refused then
      is[4] = before
    end
    is[5] = { mixed = (said.mixed or was[1] ~= is[1]) and true or nil, several = (said.several or is_another) and true or nil }
    return cjson.encode(is)
  end

  -- Counts `number` events that ended in this step; the newest was refused as `why` says. Returns what join_buffered does.
  function digest.suppress(at, tally, number, why, texts)
    local buffered = plan.hget(tally.key, 'buffered')
    local joined = buffered and join_buffered(at, tally, buffered, why) or nil
    local has_event = plan.hget(at.events, tally.id) ~= nil
    local first, edit = math.min(number_in(tally.key, 'first') or at.now, at.now), number_in(tally.key, 'edit')
    local now = digits(at.now)
    local total = (number_in(tally.key, 'count') or 0) + number
    plan.hset(tally.key, 'count', digits(total))
    plan.hset(tally.key, 'first', digits(first))
    plan.hset(tally.key, 'last', now)
    plan.hset(tally.key, 'why', digest.combined(plan.hget(tally.key, 'why'), why))
    if not plan.hget(tally.key, 'since') then
      plan.hset(tally.key, 'since', now)
    end
    if #texts > 0 then
      plan.hset(tally.key, 'samples', with_samples(plan.hget(tally.key, 'samples'), texts, total))
    end
    if not has_event then
      plan.sadd(at.tallies, tally.id)
      plan.persist(tally.key)
      digest.park(at, tally.id, digest.new_header(at), tally.until_us or first + tally.delay_us, tally.until_us ~= nil)
    elseif edit and not plan.hget(tally.key, 'due') then
      local timer = plan.zscore(at.timers, tally.id)
      if timer and math.max(edit, at.now) < timer then
        plan.zadd(at.timers, math.max(edit, at.now), tally.id)
      end
    end
    return joined
  end

  -- The tally of quiet hours has counted an event, of this instant, about something that fails; `is_over`: a recovery came before
  -- it. `resolved` of these are over since.
  function digest.note_firing(key, subject, instant, is_over)
    local field, resolved = 'of:' .. subject, number_in(key, 'resolved') or 0
    local was = plan.hget(key, field)
    if was and is_over then -- what is known of it is as new or newer
      return
    elseif not was and plan.hlen(key) >= MOST_SUBJECTS then
      return
    elseif is_over then
      resolved = resolved + 1
    elseif was == '0' then
      resolved = math.max(0, resolved - 1)
    end
    plan.hset(key, field, is_over and '0' or digits(math.max(1, instant, whole_of(was) or 0)))
    plan.hset(key, 'resolved', digits(resolved))
  end

  -- What the tally of quiet hours may have counted an event about was over at `instant`. An instant that lies ahead is from before a
  -- step back of the clock: it counts as earlier.
  function digest.note_recovery(at, category, subject, instant)
    local key = at.tally_prefix .. 'quiet:' .. category
    local since = whole_of(plan.hget(key, 'of:' .. subject)) or 0
    if since > 0 and (since <= instant or since > at.now) then
      plan.hset(key, 'of:' .. subject, '0')
      plan.hset(key, 'resolved', digits((number_in(key, 'resolved') or 0) + 1))
    end
  end

  -- Parks the only event that was suppressed while nothing was: for a second one, or to be posted as itself. `wait_us` is for
  -- one that was set aside before and found no room. Returns how long it waits; nothing of one that cannot be read: it is the
  -- next to be taken.
  function digest.set_aside(at, tally, event, why, texts, wait_us)
    local header, payload, malformed = record.read(at, event.id)
    if malformed then
      plan.srem(at.leased, event.id)
      plan.zadd(at.timers, at.now, event.id)
      plan.zadd(at.parked, at.now, event.id)
      accounting.give_name(at, header, accounting.UNREADABLE, true)
      accounting.park(at, header, 'unknown')
      return nil
    end
    local first = header.buffered or digits(at.now)
    local instant = header.buffered and at.now + wait_us or at.now + tally.delay_us
    header.why, header.category, header.deadline = { cjson.decode(why)[3], cjson.null }, event.category, event.deadline
    header.buffered = first
    leases.let_go(at, event.id, header, {})
    plan.srem(at.leased, event.id)
    plan.sadd(at.tallies, tally.id)
    accounting.give_name(at, header, event.category, event.configured)
    leases.park(at, event.id, header, payload, instant, tonumber(event.deadline), header.why[1])
    plan.hset(tally.key, 'buffered', event.id)
    plan.hset(tally.key, 'count', '1')
    plan.hset(tally.key, 'first', first)
    plan.hset(tally.key, 'last', digits(at.now))
    plan.hset(tally.key, 'why', why)
    plan.hset(tally.key, 'words', event.shown)
    if event.name then
      plan.hset(tally.key, 'name', event.name)
    end
    if event.remember then
      plan.hset(tally.key, 'remember', '1')
    end
    if #texts > 0 then
      plan.hset(tally.key, 'samples', with_samples(nil, texts, 1))
    end
    return instant - at.now
  end

  -- Why the newest event was refused, whatever there was before it.
  local function alone(why)
    local is = cjson.decode(why)
    is[5] = {}
    return cjson.encode(is)
  end

  -- What came after the `shown` ones goes on as a tally of its own. Returns its first instant.
  local function begin_again(at, key, total, shown)
    local first, left = math.min(number_in(key, 'since') or number_in(key, 'last') or at.now, at.now), {}
    for _, sample in ipairs(samples_of(plan.hget(key, 'samples'))) do
      if sample[2] > shown then
        left[#left + 1] = { sample[1], sample[2] - shown }
      end
    end
    for _, field in ipairs(FIELDS) do
      plan.hdel(key, field)
    end
    plan.hset(key, 'count', digits(total - shown))
    plan.hset(key, 'first', digits(first))
    local why = plan.hget(key, 'why')
    if is_why(why) then
      plan.hset(key, 'why', alone(why))
    end
    if #left > 0 then
      plan.hset(key, 'samples', cjson.encode(left))
    end
    return first
  end

  -- From when on the message may be edited. An instant further ahead is from before a step back of the clock.
  local function editable_at(at, key)
    return math.max(at.now, math.min(number_in(key, 'edit') or 0, at.now + EDIT_US))
  end

  -- The tally ends, and its message may be edited later to tell of a recovery, from `editable` on: it goes on telling of its repeats
  -- then.
  local function leave_count(at, key, count, editable)
    local subject = plan.hget(key, 'subject')
    local about = is_text(subject) and at.subject_prefix .. subject
    if about and count > 0 and plan.hget(about, 'name') == plan.hget(key, 'name') then
      plan.hset(about, 'count', digits(count))
      plan.hset(about, 'editable', digits(editable))
    end
  end

  -- The tally begins anew for another message. What the earlier one has not told yet goes on as a tally of its own.
  function digest.split_off(at, id, key)
    local count, editable = number_in(key, 'count') or 0, editable_at(at, key)
    if plan.hget(at.events, id) and not plan.zscore(at.parked, id) then
      editable = at.now + EDIT_US -- somebody holds its digest message, and edits it now
    end
    if count > (number_in(key, 'shown') or 0) then
      local apart = id .. '+' .. digits(next_seq(at))
      for field, value in pairs(plan.hgetall(key)) do
        plan.hset(at.tally_prefix .. apart, field, value)
      end
      plan.hset(at.tally_prefix .. apart, 'next', digits(at.now))
      plan.sadd(at.tallies, apart)
      digest.park(at, apart, digest.new_header(at), editable)
    end
    leave_count(at, key, count, editable)
    plan.del(key)
  end

  -- Repeats are counted in the message until then, but no longer than it is kept: the limits may be others than those by which it was
  -- posted.
  function digest.count_until(key, until_us)
    plan.hset(key, 'next', digits(math.min(until_us, number_in(key, 'kept') or until_us)))
  end

  -- Whether the message counts no more repeats, since it was posted long ago or very many were posted after it.
  function digest.is_closed(at, key)
    return (number_in(key, 'kept') or math.huge) <= at.now
  end

  -- The message counts its repeats. Very many count theirs at a time: then the oldest one tells its own, and counts no more.
  local function keep_count(at, id, key)
    plan.hset(key, 'kept', digits(at.now + KEPT_US))
    plan.zadd(at.counting, at.now, id)
    plan.keep_alive(at.counting, KEPT_US, KEPT_US + KEPT_US / 7)
    local oldest = redis.call('ZCARD', at.counting) >= MOST_COUNTING and plan.zfirst(at.counting)
    if oldest and oldest ~= id then
      local its_key = at.tally_prefix .. oldest
      plan.zrem(at.counting, oldest)
      if plan.hget(its_key, 'ts') then -- else no message counts any
        plan.hset(its_key, 'kept', digits(at.now))
        digest.close_repeats(at, oldest, its_key)
      end
    end
  end

  -- The message that repeats are counted in is posted, until `next_us` the only one. Repeats may have come before.
  function digest.begin_repeats(at, tally, message, next_us)
    local key = tally.key
    if plan.hget(key, 'ts') then
      digest.split_off(at, tally.id, key)
    end
    for field, value in pairs(message) do
      plan.hset(key, field, value)
    end
    keep_count(at, tally.id, key)
    digest.count_until(key, next_us)
    if plan.zscore(at.timers, tally.id) then
      plan.zadd(at.timers, at.now, tally.id)
    elseif not plan.hget(at.events, tally.id) then -- no message has to tell of it
      plan.keep_alive(key, math.min(next_us - at.now, KEPT_US) + HOUR_US)
    end
  end

  -- Forgets repeats. Returns how many there were, and from when on the message may be edited: a digest message that somebody
  -- holds edits it now, and finds nothing to tell after that.
  function digest.drop_repeats(at, id, key)
    local count, editable = number_in(key, 'count') or 0, number_in(key, 'edit') or 0
    local stored = plan.hget(at.events, id)
    local header = stored and record.read(at, id)
    plan.del(key)
    if header and plan.zrem(at.parked, id) then
      leases.leave_place(at, id, header)
      plan.hdel(at.events, id)
      plan.srem(at.tallies, id)
    elseif header then
      editable = at.now + EDIT_US
    end
    return count, editable
  end

  -- The tallies that count the repeats of an event, which has the keys and no message yet. Limits that have changed since may name
  -- another key.
  function digest.untold_repeats(at, event_id, header, category)
    local ids = {}
    for _, name in ipairs(header.slots or header.holds or {}) do
      local once = string.match(name, '^once:(.*)$')
      local id = once and 'repeat:' .. category .. ':' .. once
      local holder = once and slots.holder(at.scope_prefix .. name, math.huge, at.now)
      local other = holder and string.match(holder, ' (.*)$') -- the event itself has it no more where it has expired
      local is_another = other and other ~= event_id and plan.hget(at.events, other)
      local key = id and at.tally_prefix .. id
      if once and not is_another and plan.hget(key, 'count') and not plan.hget(key, 'ts') then -- else of another event, or of a message
        ids[#ids + 1] = id
      end
    end
    return ids
  end

  -- Forgets repeats that no message counts. Returns the `why` of their event, which says how many they were, and how many.
  function digest.forget_repeats(at, ids, why)
    local count = 0
    for _, id in ipairs(ids) do
      count = count + digest.drop_repeats(at, id, at.tally_prefix .. id)
    end
    if count > 0 then
      local begin = string.match(why, '^(.*)}%]$') -- cjson would round its instants
      why = begin .. (string.sub(begin, -1) == '{' and '' or ',') .. '"repeats":' .. digits(count) .. '}]'
    end
    return why, count
  end

  -- No more repeats are counted in the message: those that it has not told yet it tells as soon as it may be edited.
  function digest.close_repeats(at, id, key)
    if not plan.hget(at.events, id) then
      plan.del(key)
      return
    end
    plan.hset(key, 'next', digits(at.now))
    if plan.zscore(at.timers, id) then
      plan.zadd(at.timers, editable_at(at, key), id)
    end
  end

  -- `told` of a call: {"wait_us": until the digest message looks again, "shown": of how many it has told, or of repeats at their
  -- end: how many it knew, since no other message tells of them | absent,
  -- "posted": {"channel", "ts"} a message was posted, "window_us", "fixed": in which another one may not be,
  -- "can_edit": its message can be edited, "ends", "failed", "delay_us", "ts": of the message that repeats are counted in | absent}
  function digest.tell(at, id, key, told, header)
    local total = number_in(key, 'count') or 0
    if string.find(id, '^repeat:') and told.ts ~= plan.hget(key, 'ts') then -- it was about another message
      if total > 0 then
        digest.park(at, id, digest.new_header(at), at.now)
      else
        plan.hdel(at.events, id)
        plan.srem(at.tallies, id)
        plan.keep_alive(key, (number_in(key, 'next') or at.now) - at.now + HOUR_US)
      end
      return
    end
    if told.posted then
      local next_at = told.fixed and (math.floor(at.now / told.window_us) + 1) * told.window_us or at.now + told.window_us
      plan.count(at.totals, 'notices', 1)
      plan.hset(key, 'next', digits(next_at))
      plan.hset(key, 'line', header.channel)
      for field, value in pairs(told.posted) do
        plan.hset(key, field, value)
      end
    end
    if told.posted or told.failed then -- what slots it keeps are those of this message: another one takes others
      header.seq, header.unknown, header.first, header.posts = next_seq(at), nil, nil, nil
    end
    if told.shown then
      plan.hset(key, 'shown', digits(told.shown))
      plan.hdel(key, 'failed')
    end
    if string.find(id, '^repeat:') and told.ends and total > told.shown then
      told.ends = nil -- these are told of too
    end
    if told.ends and total <= told.shown then
      leave_count(at, key, total, told.can_edit and at.now + EDIT_US or editable_at(at, key))
      plan.hdel(at.events, id)
      plan.del(key)
      plan.srem(at.tallies, id)
      plan.zrem(at.counting, id)
      return
    end
    local instant = at.now + told.wait_us
    if told.ends then
      instant, header.channel, header.gone = begin_again(at, key, total, told.shown) + told.delay_us, nil, nil
    elseif told.failed then
      plan.hset(key, 'failed', '1')
      header.channel, header.gone = nil, nil
    elseif told.can_edit then
      local edit = at.now + EDIT_US
      plan.hset(key, 'edit', digits(edit))
      instant = total > told.shown and edit or math.max(edit, number_in(key, 'next') or at.now)
    end
    header.attempt, header.held, header.unconfirmed, header.resent = nil, nil, nil, nil
    digest.park(at, id, header, math.max(instant, at.now))
  end

  -- Until when a digest message that is due, and edits its message, waits for posts to the channel of that; nil where it need not.
  function digest.held_up(at, id)
    local is_repeat = string.find(id, '^repeat:')
    local key = (is_repeat or string.find(id, '^digest:')) and at.tally_prefix .. id
    local line = key and (is_repeat or plan.hget(key, 'shown')) and plan.hget(key, 'line')
    local entry = line and 'channel:' .. line
    if not entry or not plan.zfirst(at.line_prefix .. entry) then
      return nil
    end
    local since = math.min(number_in(key, 'due') or at.now, at.now)
    if since + WAITS_US <= at.now then
      return nil
    end
    plan.hset(key, 'due', digits(since))
    local following = math.max(plan.zscore(at.lines, entry) or math.huge, at.now + SOONEST_US)
    return math.min(following, since + WAITS_US, at.now + LATEST_US)
  end

  local function is_told(text)
    local fields = json_of(text)
    for _, field in ipairs(fields or {}) do
      if type(field) ~= 'string' then
        return false
      end
    end
    return fields ~= nil and #fields > 0 and #fields % 2 == 0
  end
  local IS_SOUND = {
    count = is_number, first = is_number, last = is_number, why = is_why, since = is_number, edit = is_number, shown = is_number,
    next = is_number, kept = is_number, due = is_number, line = is_text, channel = is_text, ts = is_text, snap = is_told,
    samples = function(text) return #samples_of(text) == #(json_of(text) or { 1 }) end,
  }

  -- What somebody else has written into a tally goes; and all of it where it says nothing without, or is that of a buffered single.
  local function mend(key)
    for field, value in pairs(plan.hgetall(key)) do
      if IS_SOUND[field] and not IS_SOUND[field](value) then
        plan.hdel(key, field)
      end
    end
    for _, field in ipairs({ 'count', 'first', 'last', 'why' }) do
      if not plan.hget(key, field) and not plan.hget(key, 'text') then
        plan.del(key)
      elseif not plan.hget(key, field) then -- the message goes on without these repeats
        for _, each in ipairs({ 'count', 'first', 'last', 'why', unpack(COUNTING) }) do
          plan.hdel(key, each)
        end
      end
    end
    if plan.hget(key, 'buffered') then
      plan.del(key)
    end
  end

  -- An instant of the tally that lies ahead is from before a step back of the clock: it becomes now.
  local function draw_back(at, key)
    local latest = at.now
    for _, field in ipairs({ 'last', 'first' }) do
      local instant = number_in(key, field)
      if instant and instant > latest then
        plan.hset(key, field, digits(latest))
      end
      latest = math.min(latest, instant or latest)
    end
  end

  -- The payload of a digest message for its owner: its tally as it stands now or, while the fate of its last post is to be
  -- reconciled , as that post told of it. An edit is not reconciled but made again.
  function digest.snapshot(at, id, header)
    local key = at.tally_prefix .. id
    mend(key)
    draw_back(at, key)
    if string.find(id, '^repeat:') or (string.find(id, '^digest:') and plan.hget(key, 'shown')) then
      header.unconfirmed = nil
    end
    header.seen = digits(at.now)
    local payload = header.unconfirmed and plan.hget(key, 'snap')
    if payload then
      return payload
    end
    for _, field in ipairs({ 'edit', 'due', 'since', 'snap' }) do
      plan.hdel(key, field)
    end
    local fields = {}
    for field, value in pairs(plan.hgetall(key)) do
      if not string.find(field, '^of:') then
        fields[#fields + 1], fields[#fields + 2] = field, value
      end
    end
    if #fields == 0 then
      return cjson.encode({ 'now', digits(at.now) })
    end
    fields[#fields + 1], fields[#fields + 2] = 'now', digits(at.now)
    payload = cjson.encode(fields)
    plan.hset(key, 'snap', payload)
    return payload
  end
end)

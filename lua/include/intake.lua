-- What take.lua hands out: the batch for the owner, and the new events that come in from the lanes.
--
-- The pre-check: a new event that a limit refuses anyway is dropped as it is taken, as admit.lua would drop it a moment later: it
-- is never leased. Only what bears a mark can be refused here. The author of the mark is a producer of ours
-- (enqueue.lua) or a worker (below). It has seen that the event is valid, and that its id is the job's.
--
-- It drops only events of categories that a worker names, in ARGV[2] of take.lua. There a line of each category is a line feed, the
-- category, a tab, and JSON [configured, [scope or [scope, ...: the first of these that has room], ...]], with scopes by number.
-- These categories drop, tell nobody, and have no limits by label and no `once`. Where one has room, its events are handed out: here nobody is
-- admitted. A line of each scope begins with "@" and its number; its JSON is [name, windows as in gate.lua, told as in admit.lua].
-- For repeats of a category a line begins with "#" and the category; its JSON is [microseconds of the window, configured, text of the
-- limit].
--
-- A worker may give marks for jobs without one, which it has read before (peek.lua), in ARGV[3] of take.lua: JSON {"ids", "enqueued": the
-- instants at which RQ says that they were enqueued, "marks", "shown": what the record shows of each}. The instant says that the job on
-- the lane is still the one that was read.
--
-- `at` names the keys events, leased, parked, requeued, totals, seen, dead_ids, places, tallies, seq, those of include/silences.lua,
-- include/accounting.lua and include/leases.lua; owner; tally_prefix, minute_prefix and scope_prefix; new, is_wordless and now.
local intake = module(function(intake)
  local find = string.find
  intake.has_unmarked = false
  local MAX_BATCH = 8388608 -- bytes after which no more requeued and new events are taken
  local MAX_ID = 256 -- an id of 1 to so many printable characters of ASCII stays as it is; any other is changed, and so is one with a
  -- colon, which only ids of digest messages have
  local MAX_RAW = 1048576 -- bytes kept of a payload that is too large to be an event
  local CHUNK = 64 -- jobs that are read at once
  local MOST_GROUPS = 256 -- that the pre-check ends of a lane in one call: a group costs more than two events do
  local MOST_SHOWN = 2048 -- bytes of text and labels that the record takes from a mark

  local ids, records, sizes, seqs, bytes = {}, {}, {}, {}, 0
  local new = {} -- id, record, ... of new events
  local duplicates, entered = {}, {} -- entered: id -> 'new', or 'ended' by the pre-check
  local jobs = {}
  local undecided -- the lowest seq that the owner has to decide
  local any -- which of the structures that know ids are not empty
  local refused = {} -- groups that the pre-check ends, for the books, with what the answer says of them
  local groups = {} -- of each mark that the pre-check looked at, or false
  local may_be_over = false -- whether an event without a mark was handed out: it may tell of a recovery, which ends repeats
  local named = {} -- of the pre-check: what its text says, by name
  local scopes, plain = {}, {} -- of the pre-check, by the numbers of scopes: views, from when on they have room
  local denials = {} -- of the pre-check, by category

  function intake.count()
    return #ids
  end

  intake.was_due = 0 -- how many of them were due

  -- How many more requeued, scheduled and new events may be handed out. Events that were due use up three
  -- quarters of these places at most.
  function intake.room(at)
    return at.new - math.min(intake.was_due, math.floor(at.new * 3 / 4)) - (#ids - intake.was_due)
  end

  function intake.is_full()
    return bytes >= MAX_BATCH
  end

  -- Adds an event to the batch; `seq` only of a new event, whose record is its payload alone.
  local function hand_out(id, text, seq)
    local n = #ids + 1
    ids[n], records[n], sizes[n], seqs[n] = id, text, #text, seq or 0
    bytes = bytes + #text
  end

  local function to_decide(seq)
    undecided = math.min(undecided or seq, seq)
  end

  -- The event was taken before, and it is unknown whether it was admitted. Until it is decided, its owner takes nothing
  -- else.
  function intake.to_decide_again(seq)
    intake.any_old, may_be_over = true, true
    to_decide(seq)
  end

  function intake.undecided()
    return undecided
  end

  -- Hands out an event that was held before, and writes its record. An event to be reconciled gets Slack's id of its
  -- channel, if that is known, for the history scan; and whether posts to that channel fail, which decides what follows if
  -- it is absent.
  local function hand_out_again(at, id, header, payload)
    if header.channel == lines.EDITS then
      header.unconfirmed = nil -- an edit is not looked for but made again
    end
    header.place = header.unconfirmed and leases.place(at, header.channel) or nil
    header.trouble = header.unconfirmed and pause.trouble_of(at, header.channel) or nil
    header.back = nil
    if header.unconfirmed then
      leases.trust_marks(at, header)
    end
    local told = payload
    if header.digest then
      told = string.find(id, '^silence:') and silences.told(at, id, header) or digest.snapshot(at, id, header)
    end
    record.write(at, id, header, payload)
    hand_out(id, cjson.encode(header) .. '\n' .. told)
  end

  -- Hands out a parked event. The caller has taken it out of its line or timer.
  function intake.unpark(at, id, header, payload)
    plan.zrem(at.parked, id)
    accounting.unpark(at, header)
    header.state, header.timer, header.scheduled, header.entry = nil, nil, nil, nil
    hand_out_again(at, id, header, payload)
    leases.leave_tally(at, id, header)
  end

  -- Hands out an event that a dead or stopped worker left.
  function intake.pick_up(at, id, header, payload)
    plan.zrem(at.requeued, id)
    header.takes = (header.takes or 1) + 1
    header.state = nil
    hand_out_again(at, id, header, payload)
    intake.to_decide_again(header.seq)
  end

  local function is_id(id)
    return id ~= '' and #id <= MAX_ID and not string.find(id, '[^\33-\126]')
  end

  -- Hands out an event that cannot be read; its owner makes a dead letter of it. A digest message begins anew instead.
  -- `line` is where the event stood. If it was not known to wait, it is no event or another worker holds it: then it only
  -- leaves that place.
  function intake.quarantine(at, id, header, payload, line)
    local was_parked, was_requeued = leases.pull_out(at, id, header, line)
    if not is_id(id) then -- not an id of this package
      plan.hdel(at.events, id)
      return
    elseif was_parked then
      local counted = header.counted ~= '' and header.counted or accounting.UNREADABLE
      accounting.unpark(at, header, record.is_digest_message(id) and '' or counted)
    elseif not was_requeued then
      return
    end
    if record.is_digest_message(id) then
      digest.begin_anew(at, id)
      return
    end
    digest.forget_buffered(at, id)
    if not plan.hget(at.events, id) then
      plan.hset(at.events, id, '\n')
    end
    hand_out(id, '{"malformed":true}\n' .. payload)
    intake.any_old = true
  end

  -- What a mark says for the record, less the text.
  local function without_text(shown)
    local parts = json_of('[' .. shown .. ']')
    local priority = parts and type(parts[3]) == 'string' and ',' .. cjson.encode(parts[3]) or ''
    return parts and type(parts[2]) == 'table' and '"",' .. cjson.encode(parts[2]) .. priority or ''
  end

  -- Whether the record holds a decision about the id: then its job is gone because the event was taken.
  local function is_decided(at, id)
    for _, key in ipairs({ at.limited, at.limited_older, at.others, at.others_older }) do
      if redis.call('HEXISTS', key, id) == 1 then
        return true
      end
    end
    return false
  end

  -- Notes which structures are not empty, so that later steps ask only these for an id. A key of another type raises here.
  function intake.look(at)
    any = {
      event = redis.call('HLEN', at.events) > 0, seen = redis.call('ZCARD', at.seen) > 0,
      dead = redis.call('HLEN', at.dead_ids) > 0,
    }
  end

  -- What is known of these ids: answers in their order of each structure that is not empty, or nil where all are empty.
  local function known_of(at, some)
    return (any.event or any.seen or any.dead) and {
      present = any.event and redis.call('HMGET', at.events, unpack(some)) or {},
      seen = any.seen and redis.call('ZMSCORE', at.seen, unpack(some)) or {},
      dead = any.dead and redis.call('HMGET', at.dead_ids, unpack(some)) or {},
    } or nil
  end

  -- Whether the n-th of them makes a duplicate; `again`: the event was a dead letter.
  local function is_known(at, known, n, again)
    return known.present[n] or known.dead[n] or (not again and known.seen[n] and tonumber(known.seen[n]) > at.now)
  end

  -- Counts so many new events, and numbers them in the order of their lane. Returns the seq before the first.
  function intake.receive(at, number)
    accounting.count(at, 'received', number)
    return record.next_seqs(at, number)
  end

  -- Enters new events under their ids; `of_seqs` are their numbers. Of `are_old` the jobs say that a stock worker has entered them.
  function intake.enter(at, new_ids, of_seqs, payloads, replays, are_old)
    local known = known_of(at, new_ids)
    local first_sight = string.format(',"seen":"%.0f"', at.now)
    for i, id in ipairs(new_ids) do
      local seq, payload, again = of_seqs[i], payloads[i], replays[i]
      if are_old[i] or entered[id] or (known and is_known(at, known, i, again)) or (payload == '' and is_decided(at, id)) then
        duplicates[#duplicates + 1] = id
      else
        entered[id] = 'new'
        to_decide(seq)
        local text = string.format('{"seq":%.0f', seq) .. first_sight .. (again and ',"replays":' .. again or '') .. '}\n' .. payload
        new[#new + 1], new[#new + 2] = id, text
        if again then
          hand_out(id, text)
        else
          hand_out(id, payload, seq)
        end
      end
    end
  end

  -- The payload of a job, how often it was a dead letter (a field that replay.lua writes), and whether its event was entered before.
  function intake.read_job(job)
    local fields = redis.pcall('HMGET', job, 'data', 'replays', 'adopted', 'created_at')
    if fields.err and not string.find(fields.err, '^WRONGTYPE') then
      error(fields.err)
    elseif not fields[1] then -- the job is gone, or there was none
      return '', nil
    end
    local replays = fields[2] and string.find(fields[2], '^[1-9]%d*$') and #fields[2] < 10 and fields[2]
    return string.sub(fields[1], 1, MAX_RAW), replays or nil, was_adopted(fields[3], fields[4])
  end

  -- Of jobs of a lane, whose ids are `some` and begin at `from`, in one list: mark, what the record shows, mark, ... Of a job
  -- without a mark false. One command reads it all, if the server lets us: it needs the right to read every key (Redis 7), which a
  -- user with few rights lacks. Then the jobs are read one by one.
  local may_sort = true

  local places, given = {}, nil -- of the marks that the worker gives: id -> its place in the lists

  function intake.give_marks(text)
    given = cjson.decode(text)
    for place, id in ipairs(given.ids) do
      places[id] = place
    end
  end

  -- Adds to the rows the marks that the worker gives.
  local function add_given(lane, from, some, rows)
    local instants
    for n, id in ipairs(some) do
      local place = not rows[2 * n - 1] and places[id]
      if place then
        instants = instants or redis.call('SORT', lane, 'BY', 'nosort', 'LIMIT', from, #some, 'GET', 'rq:job:*->enqueued_at')
        if given.enqueued[place] == instants[n] then
          rows[2 * n - 1], rows[2 * n] = given.marks[place], given.shown[place]
        end
      end
    end
  end

  local function marks_of(lane, from, some)
    local rows = may_sort and redis.pcall(
      'SORT', lane, 'BY', 'nosort', 'LIMIT', from, #some, 'GET', 'rq:job:*->category', 'GET', 'rq:job:*->shown'
    )
    may_sort = rows and not rows.err
    if not may_sort then
      rows = {}
      for n, id in ipairs(some) do
        local fields = redis.pcall('HMGET', 'rq:job:' .. id, 'category', 'shown')
        rows[2 * n - 1], rows[2 * n] = fields[1] or false, fields[2] or false -- both nil if it is no hash
      end
    elseif given then
      add_given(lane, from, some, rows)
    end
    return rows
  end

  -- What the text of the pre-check says under a name, or false.
  local function named_in(text, name)
    if named[name] == nil then
      local _, before = find(text, '\n' .. name .. '\t', 1, true)
      named[name] = before and cjson.decode(string.sub(text, before + 1, (find(text, '\n', before, true) or 0) - 1)) or false
    end
    return named[name]
  end

  -- What the text says of a scope: name, windows, and what each window tells.
  local function scope_of(text, number)
    return named_in(text, '@' .. digits(number))
  end

  -- The number of a scope; opens it.
  local function open(at, text, number)
    if not scopes[number] then
      local name, windows = unpack(scope_of(text, number))
      scopes[number] = slots.open(at.scope_prefix .. name, windows, at.now)
    end
    return number
  end

  -- The same as gate.decide of what a category asks for, at a glance. Nothing where a scope is not plain, or where the first
  -- that has room of several scopes is asked for.
  local function plain_denial(at, text, asks)
    local instant, denier, window = at.now, nil, nil
    for _, number in ipairs(asks) do
      if type(number) ~= 'number' then
        return
      end
      local free = plain[number]
      if not free then
        local name, windows = unpack(scope_of(text, number))
        free = { slots.plain_room_at(at.scope_prefix .. name, windows, at.now) }
        plain[number] = free
      end
      if not free[1] then
        return
      elseif free[1] > instant then
        instant, denier, window = free[1], number, free[2]
      end
    end
    return instant, denier, window
  end

  local function decide(at, text, asks)
    local instant, denier, window = plain_denial(at, text, asks)
    if instant then
      return instant, denier, window
    end
    local request = { 0 }
    for n, item in ipairs(asks) do
      if type(item) == 'number' then
        request[n + 1] = open(at, text, item)
      else
        request[n + 1] = {}
        for place, number in ipairs(item) do
          request[n + 1][place] = open(at, text, number)
        end
      end
    end
    return gate.decide(scopes, request, at.now, gate.free_at)
  end

  -- How the limits of a category refuse an event now: number of the scope, of its window, and us until there is room; or false.
  local function denial_of(at, text, category, asks)
    local known = denials[category]
    if known == nil then
      local is_known, instant, denier, window = pcall(decide, at, text, asks) -- a scope of another type is for the gate to complain of
      known = is_known and instant > at.now and { denier, window, digits(instant - at.now) } or false
      denials[category] = known
    end
    return known
  end

  -- A group of events that the pre-check ends.
  local function begin_group(category, configured, remembered, denial, why, is_of_repeats)
    local group = {
      category = category, configured = configured, remember = remembered == '1', outcome = 'dropped', number = 0, ids = {}, shown = {},
      denial = denial, why = why, is_of_repeats = is_of_repeats,
    }
    refused[#refused + 1] = group
    return group
  end

  -- The group in which an event ends that repeats the one which has the slot of what its mark is about, or false.
  local function repeat_of(at, text, category, remembered, about, is_guarded)
    local facts = not (is_guarded and is_guarded(category, true)) and named_in(text, '#' .. category)
    if not facts then
      return false
    end
    local name = 'once:' .. about
    local is_known, holder, until_us, since = pcall(slots.plain_holder, at.scope_prefix .. name, facts[1], at.now)
    if not is_known or not holder then
      return false
    end
    local wait_us, first = digits(until_us - at.now), string.match(holder, ' (.*)$') or holder
    local why = string.format('["dropped","%s","repeat",["%s","%s",%s],{"detail":%s%s}]', category, name, facts[3], wait_us,
      cjson.encode(first), since and ',"since_us":' .. digits(since) or '')
    return begin_group(category, facts[2], remembered, { name, facts[1], wait_us }, why, true)
  end

  -- The group in which the pre-check ends events whose jobs bear the mark, or false. `is_guarded` is that of
  -- include/silences.lua. A mark is the category, and 1 for an id that is to be remembered, else 0; "#" and a
  -- digest of what the event is about may follow.
  function intake.refusal(at, text, mark, is_guarded)
    local known, about = string.match(mark, '^([^#]*)#(%x+)$')
    local category, remembered = string.match(known or mark, '^([^%s#]+) ([01])$')
    if not category then
      return false -- not of ours
    end
    local again = about and repeat_of(at, text, category, remembered, about, is_guarded)
    if again then
      return again
    end
    local facts = not (is_guarded and is_guarded(category)) and named_in(text, category)
    local denial = facts and denial_of(at, text, category, facts[2])
    if not denial then
      return false
    end
    local why = '["dropped","' .. category .. '",' .. scope_of(text, denial[1])[3][denial[2]] .. denial[3] .. '],{}]'
    return begin_group(category, facts[1], remembered, denial, why, false)
  end

  -- Whether all of these stay as they are.
  local function are_sound(some)
    for n = 1, #some do
      if some[n] == '' or #some[n] > MAX_ID then
        return false
      end
    end
    local text = table.concat(some)
    return string.find(text, '^[!-~]*$') ~= nil and not string.find(text, ':', 1, true) -- in less time than by one set
  end

  -- The id under which the event is known from here on. A changed id ends in a hash, so that two ids never become one.
  local function sound(id)
    local shown = string.sub(string.gsub(id, '[^\33-\57\59-\126]', '?'), 1, MAX_ID)
    return shown == id and id ~= '' and id or string.sub(shown, 1, MAX_ID - 9) .. '~' .. string.sub(redis.sha1hex(id), 1, 8)
  end

  -- Ends those of a lane's events from `from` on, whose ids are `some`, that the pre-check refuses. Returns the places of the
  -- others.
  local function end_refused(at, lane, from, some, are_all_sound, refusal_of)
    local rows, known, others, gone = marks_of(lane, from, some), known_of(at, some), {}, #jobs
    for n = 1, #some do
      local id, mark = some[n], rows[2 * n - 1]
      local group = mark and groups[mark]
      if group == nil then
        group = refusal_of(mark)
        groups[mark] = group
      end
      if not group or (group.is_of_repeats and may_be_over) or not (are_all_sound or are_sound({ id })) then
        others[#others + 1] = n
        intake.has_unmarked = intake.has_unmarked or not mark
        may_be_over = may_be_over or not (mark and string.find(mark, '^[^%s#]+ [01]'))
      else
        gone = gone + 1
        jobs[gone] = 'rq:job:' .. id
        if entered[id] or (known and is_known(at, known, n)) then
          duplicates[#duplicates + 1] = id
        else
          local text, place = rows[2 * n], group.number + 1
          local is_fit = text and #text <= MOST_SHOWN and not find(text, '\n', 1, true)
          entered[id], group.number = 'ended', place
          group.ids[place], group.shown[place] = id, is_fit and text or ''
        end
      end
    end
    return others
  end

  local function places_up_to(number)
    local places = {}
    for n = 1, number do
      places[n] = n
    end
    return places
  end

  -- Takes those of a lane's events, whose ids are `some`, that stand at these places.
  local function take_others(at, some, places, seq, are_all_sound)
    local new_ids, of_seqs, payloads, replays, are_old = {}, {}, {}, {}, {}
    for n, place in ipairs(places) do
      local id = some[place]
      local job = 'rq:job:' .. id
      jobs[#jobs + 1] = job
      payloads[n], replays[n], are_old[n] = intake.read_job(job)
      new_ids[n], of_seqs[n] = are_all_sound and id or sound(id), seq + place
    end
    if #new_ids > 0 then
      intake.enter(at, new_ids, of_seqs, payloads, replays, are_old)
    end
  end

  -- Looks at up to `most` new events of a lane that holds some, and hands out up to `room`; fewer if they are large, or if the pre-check
  -- ends them in many groups. `refusal_of` returns the group in which an event with a mark ends; absent without a pre-check. Returns
  -- how many events it looked at, how many of these were refused, and whether the groups were too many for more of this lane. `kept`
  -- of them are handed out even if the batch is full.
  function intake.take_lane(at, lane, most, room, kept, refusal_of)
    local popped, gone, most_groups = 0, 0, #refused + MOST_GROUPS
    while popped < most and #refused < most_groups do
      local left = (intake.is_full() and math.min(kept, room) or room) - popped + gone
      if left < 1 then
        break
      end
      local number = math.min(CHUNK, most - popped, left)
      local some = redis.call('LRANGE', lane, popped, popped + number - 1)
      if #some == 0 then
        break
      end
      local before, are_all_sound, seq = #ids + #duplicates, are_sound(some), intake.receive(at, #some)
      local places = refusal_of and end_refused(at, lane, popped, some, are_all_sound, refusal_of) or places_up_to(#some)
      take_others(at, some, places, seq, are_all_sound)
      popped = popped + #some
      gone = gone + #some - (#ids + #duplicates - before)
      if #some < number then
        break -- there are no more
      end
    end
    if popped > 0 then
      plan.write('LTRIM', lane, popped, -1)
    end
    return popped, gone, #refused >= most_groups
  end

  -- Plans what is noted of the events that the pre-check ends.
  function intake.end_groups(at)
    for _, group in ipairs(at.is_wordless and refused or {}) do
      for n, text in ipairs(group.shown) do
        group.shown[n] = without_text(text)
      end
    end
    accounting.note_dropped(at, refused)
  end

  -- Counts the duplicates, and records a decision for each of them that has none.
  function intake.note_duplicates(at)
    if #duplicates == 0 then
      return
    end
    accounting.count(at, 'duplicate', #duplicates)
    for _, id in ipairs(duplicates) do
      if entered[id] ~= 'ended' and not is_decided(at, id) then
        accounting.record_limited(id, digits(at.now) .. ' ["duplicate",null,"duplicate",null,{}]')
      end
    end
  end

  -- Plans the writes for the batch: the owner holds it, new events get records, their jobs are deleted.
  function intake.write(at)
    plan.write_rows('HSET', at.events, new, 2)
    plan.write_rows('SADD', at.leased, ids, 1)
    plan.write_rows('DEL', nil, jobs, 1, true)
  end

  -- Adds the batch to the facts of the answer. Returns the records as one string.
  function intake.told(facts)
    facts.duplicates = #duplicates > 0 and duplicates or cjson.null
    facts.ids = table.concat(ids, ' ')
    facts.sizes = #sizes > 0 and sizes or cjson.null
    facts.seqs = #seqs > 0 and seqs or cjson.null
    facts.refused = #refused > 0 and {} or cjson.null
    for n, group in ipairs(refused) do
      local scope, window, wait = unpack(group.denial)
      facts.refused[n] = { group.category, scope, window, wait, group.joined or '' }
    end
    return table.concat(records)
  end
end)

-- Who holds an event, and how an event leaves its place: leases, taking over, parking a post with an unknown delivery status,
-- leaving a line, ending what waits.
--
-- The beat shows an interruption of the server. Live workers call at least every third of a lease, so half a lease without a call
-- means that no worker could. After an interruption live workers must renew first: for GRACE_US no owner is taken over. If the
-- caller itself called less than half a lease ago by its own clock, the server's clock was stepped forward. Live workers do not
-- know that, and renew with their next call: for a lease no owner is taken over. A call that waited for a server that stood still
-- looks the same. The beat also shows that the clock was stepped back: the last call was later than now.
--
-- `at` names the keys events, leases, leased, requeued, parked, lines, timers, scheduled, posting, totals, cooldowns, tallies, those of
-- include/deferred.lua, for `cancel` those of include/accounting.lua, for `renew` also beat, reopening and
-- pause, for `trust_marks`, `grace` and `unnoticed_us` also beat, for `place` places;
-- grace_us: from a post with an unknown delivery status until it is reconciled; for `renew` and `grace` also lease_us; for `renew`
-- also since_us: how long ago this owner called before, by its own clock, if it did; scope_prefix; tally_prefix; and now.
local leases = module(function(leases)
  leases.POISON_DEATHS = 2 -- workers that died with an event, from which on it is taken alone
  local GRACE_US = 2000000
  local STEPPED_US = 1000000 -- a step back of the clock by this or less is ignored
  leases.PAGE = 200 -- events that one call takes over
  local MOST_LEASES = 1000 -- leases that one call looks at, or shortens after a step back
  local MOST_PLACE = 256 -- characters of Slack's id of a channel

  -- The clock was stepped back by this much. All waits must end as much sooner: the next takes let lines ask again, and move
  -- timers and silences. A lease may end later than one that begins now only if it was longer.
  local function step_back(at, by_us)
    local longest = at.now + at.lease_us
    local rows = redis.call('ZRANGEBYSCORE', at.leases, '(' .. digits(longest), '+inf', 'WITHSCORES', 'LIMIT', 0, MOST_LEASES)
    for i = 1, #rows, 2 do
      if plan.zscore(at.leases, rows[i]) then
        plan.zadd(at.leases, math.max(longest, number_of(rows[i + 1]) - by_us), rows[i])
      end
    end
    local ahead = count_of(plan.hget(at.beat, 'ahead'))
    plan.hset(at.beat, 'by', digits(by_us + (ahead > at.now and count_of(plan.hget(at.beat, 'by')) or 0)))
    plan.hset(at.beat, 'ahead', digits(math.max(at.now + by_us, ahead)))
    plan.hdel(at.beat, 'resumed')
    plan.hdel(at.beat, 'earlier')
    plan.hset(at.reopening, 'lines', digits(at.now) .. ' 0')
    local unmoved_us = count_of(string.match(plan.hget(at.reopening, 'back') or '', '%d+$')) -- by a step before
    plan.hset(at.reopening, 'back', digits(at.now) .. ' 0 ' .. digits(unmoved_us + by_us))
    plan.hset(at.reopening, 'silences', digits(count_of(plan.hget(at.reopening, 'silences')) + by_us))
    pause.step_back(at, by_us)
  end

  -- By how much the clock was stepped back since the last call of `leases.renew`. The next one ends all waits so much sooner: a
  -- wait that begins now must be so much longer.
  function leases.unnoticed_us(at)
    local last = whole_of(plan.hget(at.beat, 'at'))
    return last and last - at.now > STEPPED_US and last - at.now or 0
  end

  -- Lets the lease of this owner end `at.lease_us` from now, and notes in the beat that a worker called.
  function leases.renew(at)
    local last, half = whole_of(plan.hget(at.beat, 'at')), at.lease_us / 2
    if last and at.now - last > half then
      local was_stepped = at.since_us and at.since_us <= half
      plan.hset(at.beat, 'grace', digits(at.now + (was_stepped and at.lease_us or GRACE_US)))
      plan.hset(at.beat, 'earlier', digits(count_of(plan.hget(at.beat, 'resumed'))))
      plan.hset(at.beat, 'resumed', digits(at.now))
    elseif last and last - at.now > STEPPED_US then
      step_back(at, last - at.now)
    end
    plan.hset(at.beat, 'at', digits(at.now))
    plan.zadd(at.leases, at.now + at.lease_us, at.owner)
  end

  local function parts_of(owner)
    local name, number = string.match(owner, '^(.*)/(%d+)$')
    return name or owner, tonumber(number) or 1
  end

  -- Whether a newer name of this owner has a lease (lua/renew.lua). Then this call has arrived late, and may change nothing. No
  -- former name is in `leases` beside a newer one.
  function leases.is_former(at)
    if plan.zscore(at.leases, at.owner) then
      return false
    end
    local name, number = parts_of(at.owner)
    for _, owner in ipairs(redis.call('ZRANGE', at.leases, 0, MOST_LEASES - 1)) do
      local other, others_number = parts_of(owner)
      if other == name and others_number > number then
        return true
      end
    end
    return false
  end

  -- When the event's last post was marked; not later than now, whatever the clock said then.
  function leases.marked(at, header)
    return math.min(at.now, tonumber(header.sent))
  end

  -- Corrects the marks of an event before it is reconciled, since the clock may have been stepped. A mark from before an
  -- interruption counts from the end of the interruption, since that may have been a step forward: so no post that is under
  -- way is taken for a lost one. A second interruption moves the mark no further. `back`: how much earlier than its first
  -- mark a history scan begins, after a step back.
  function leases.trust_marks(at, header)
    local resumed, earlier = count_of(plan.hget(at.beat, 'resumed')), count_of(plan.hget(at.beat, 'earlier'))
    local ahead, by = count_of(plan.hget(at.beat, 'ahead')), count_of(plan.hget(at.beat, 'by'))
    local sent, first = tonumber(header.sent), tonumber(header.first)
    if earlier < sent and sent < resumed and resumed <= at.now then
      sent = resumed
    end
    header.sent = digits(math.min(at.now, sent))
    header.back = first <= ahead and by < first and digits(by) or nil
  end

  -- Parks an event on its timer until `instant`; it expires at `ends`.
  function leases.park(at, id, header, payload, instant, ends, reason)
    header.state, header.timer = 'waiting', true
    plan.zadd(at.timers, instant, id)
    plan.zadd(at.parked, ends, id)
    accounting.park(at, header, reason)
    record.write(at, id, header, payload)
  end

  -- Parks an event whose post may have arrived. It is reconciled at `instant`, and does not expire before that.
  function leases.await_scan(at, id, header, payload, instant)
    instant = math.max(at.now, instant)
    header.why = nil
    leases.park(at, id, header, payload, instant, math.max(instant, tonumber(header.deadline)), 'reconcile')
  end

  -- The post of the event was under way when its worker died: it may have arrived, or may still arrive. It frees its channel
  -- and is charged to the channel's pace. The event is reconciled when `at.grace_us` have passed since the mark of the post.
  local function await_scan_of_lost_post(at, id, header, payload)
    lines.free_all(at, id) -- wherever it posts: a malformed header may name another channel
    if header.pace then
      local pace = at.scope_prefix .. 'pace:' .. header.channel
      plan.zadd(pace, at.now, id .. ' ' .. digits(at.now))
      plan.keep_alive(pace, header.pace, 2 * header.pace)
    end
    header.held, header.unconfirmed = nil, 0
    leases.await_scan(at, id, header, payload, leases.marked(at, header) + at.grace_us)
  end

  -- Until when no owner is taken over. A grace that is further ahead than possible is ignored.
  function leases.grace(at)
    local grace = whole_of(plan.hget(at.beat, 'grace')) or 0
    return grace <= at.now + math.max(GRACE_US, at.lease_us) and grace or 0
  end

  -- Slack's id of a channel, or nil if it is not known.
  function leases.place(at, channel)
    local place = plan.hget(at.places, channel)
    return place and #place <= MOST_PLACE and place or nil
  end

  -- Requeues an event that cannot be read, as the next to be taken; the worker that takes it makes a dead letter of it. This
  -- owner holds it no more.
  function leases.set_apart(at, id)
    local header = record.read(at, id)
    if not plan.hget(at.events, id) then
      plan.hset(at.events, id, '\n')
    end
    plan.srem(at.leased, id)
    plan.zadd(at.requeued, header.seq or 0, id)
    lines.free_all(at, id)
  end

  -- Takes over up to `most` events of an owner whose lease has ended. Returns how many, and whether these were all. An event whose post
  -- was under way is to be reconciled, and keeps its slots. An event that was being reconciled waits on a timer again. An
  -- event out of a category's line goes back there. Any other event is requeued.
  function leases.take_over(at, owner, theirs, most)
    local ids = redis.call('SRANDMEMBER', theirs, most + 1)
    local is_all = #ids <= most
    ids[most + 1] = nil
    for _, id in ipairs(ids) do
      local header, payload, malformed = record.read(at, id)
      plan.srem(theirs, id)
      if malformed then
        leases.set_apart(at, id)
      else
        header.deaths = (header.deaths or 0) + 1
        if header.state == 'sending' then
          await_scan_of_lost_post(at, id, header, payload)
        elseif header.unconfirmed then
          leases.await_scan(at, id, header, payload, at.now)
        elseif header.line and header.deaths < leases.POISON_DEATHS then
          header.takes = (header.takes or 1) + 1
          deferred.line_up(at, id, header, payload)
        else
          header.line = nil
          plan.zadd(at.requeued, header.seq, id)
          record.write(at, id, header, payload)
        end
      end
    end
    if is_all then
      plan.zrem(at.leases, owner)
      deferred.decided(at, owner)
    end
    return #ids, is_all
  end

  -- Deletes the tally of a buffered single (include/digest.lua): the event leaves the place where it waits.
  function leases.leave_tally(at, id, header)
    local tally = header.buffered and 'digest:' .. header.category
    if tally and plan.hget(at.tally_prefix .. tally, 'buffered') == id then
      plan.del(at.tally_prefix .. tally)
      plan.srem(at.tallies, tally)
    end
  end

  -- A parked event leaves its timer or its line: wherever it is, since a malformed header may name another place. The caller
  -- removes it from `parked` and writes it to its next place.
  function leases.leave_place(at, id, header)
    leases.leave_tally(at, id, header)
    plan.zrem(at.timers, id)
    plan.zrem(at.scheduled, id)
    if header.line and plan.zscore(at.line_prefix .. header.line, id) then
      deferred.leave(at, id, header)
    end
    local line = header.entry or header.channel and 'channel:' .. header.channel
    if line then
      lines.leave(at, line, id)
    end
  end

  -- An event that cannot be read leaves each place in which it may wait. `line` is the line in which it was found, if any.
  -- Returns whether the event was parked, and whether it was requeued.
  function leases.pull_out(at, id, header, line)
    plan.zrem(at.timers, id)
    plan.zrem(at.scheduled, id)
    local was_requeued = plan.zrem(at.requeued, id)
    local channel = header.channel and 'channel:' .. header.channel
    for _, each in pairs({ line, header.line, header.entry, channel }) do -- those that there are
      if not deferred.is_line(each) then
        lines.leave(at, each, id)
      elseif plan.zscore(at.line_prefix .. each, id) then
        deferred.leave(at, id, { line = each, category = deferred.category_of(at, each) })
      end
    end
    lines.free_all(at, id)
    return plan.zrem(at.parked, id), was_requeued
  end

  -- The name of the scope that has this key.
  function leases.scope_of(at, key)
    return string.sub(key, #at.scope_prefix + 1)
  end

  -- Gives back the slot of an event in a scope, if it has one: events that were refused for it may ask again.
  function leases.release(at, key, slot, id)
    if slots.release(key, slots.member(key, slot, id)) then
      deferred.reopen(at, leases.scope_of(at, key))
    end
  end

  -- Notes in which scopes the event has slots (`slots`) and in which these are held (`holds`).
  function leases.note_slots(at, header, event)
    local names_of, earlier = {}, header.slots
    for field, positions in pairs({ holds = event.holds or {}, slots = event.scopes or {} }) do
      local names = {}
      for n, scope in ipairs(positions) do
        names[n] = leases.scope_of(at, KEYS[scope])
      end
      names_of[field] = names[1] and names or nil
    end
    header.holds, header.slots = names_of.holds, names_of.slots
    if earlier then
      leases.add_slots(header, earlier)
    end
  end

  -- Notes that the event has slots in these scopes too. Returns whether that is new.
  function leases.add_slots(header, names)
    local known, all, is_new = {}, {}, false
    for _, name in ipairs(header.slots or header.holds or {}) do
      known[name], all[#all + 1] = true, name
    end
    for _, name in ipairs(names) do
      if not known[name] then
        all[#all + 1], is_new = name, true
      end
    end
    header.slots = all
    return is_new
  end

  -- The keys of the scopes that are the event's own by the limits of this call.
  function leases.own_slots(header, event)
    local own = {}
    for _, scope in ipairs((header.slots or header.holds) and event.scopes or {}) do
      own[KEYS[scope]] = true
    end
    return own
  end

  -- Gives back every slot of the event that the header names, except those whose keys are in the set `own`. If it goes on (`own`), the
  -- header still names the scopes of what it is about: repeats may have been counted there (include/digest.lua).
  function leases.let_go(at, id, header, own)
    local slot, abouts = header.seq and record.slot(header), {}
    for _, name in ipairs(slot and (header.slots or header.holds) or {}) do
      local key = at.scope_prefix .. name
      if not (own and own[key]) then
        leases.release(at, key, slot, id)
      end
      if own and string.find(name, '^once:') then
        abouts[#abouts + 1] = name
      end
    end
    header.holds, header.slots = nil, abouts[1] and abouts or nil
  end

  -- Ends an event that waits. What it holds is for its next attempt, but a post that may have arrived keeps its slot. `why` is
  -- the text for the record; `shown` as in `accounting.record_limited`.
  function leases.cancel(at, id, header, why, is_remembered, shown)
    plan.zrem(at.parked, id)
    leases.leave_place(at, id, header)
    if header.held or (header.posts or 0) == 0 then
      leases.let_go(at, id, header)
    end
    plan.hdel(at.events, id)
    accounting.unpark(at, header)
    accounting.count_ended('dropped', header.counted, 1, why, true)
    if is_remembered then
      accounting.remember({ id })
    end
    accounting.record_limited(id, digits(at.now) .. ' ' .. why, shown)
  end
end)

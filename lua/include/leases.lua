-- Who holds an event, and how it leaves a place: leases, taking over, what a post with an unknown delivery status waits for,
-- leaving a line.
--
-- The beat tells an interruption of the server from a quiet one: live workers call at least every third of a lease, so half a
-- lease without a call means that nobody could. Then live workers renew first: for GRACE_US nobody is taken over. It also tells
-- that the clock was stepped back: the last call was later than now.
--
-- `at` names the keys events, leases, requeued, parked, lines, timers, posting, totals, cooldowns, those of include/deferred.lua,
-- for `renew` also beat, reopening and pause;
-- grace_us: from a post with an unknown delivery status until it is reconciled, scope: prefix of the keys of slots; and now.
local leases = module(function(leases)
  leases.POISON_DEATHS = 2 -- workers that died with an event, from which on it is taken alone
  local GRACE_US = 2000000
  local STEPPED_US = 1000000 -- by so much or less the clock may go back unnoticed
  local PAGE = 200 -- events that are taken over in one call
  local MOST_LEASES = 1000 -- that are brought back in one call
  local MOST_PLACE = 256 -- characters of Slack's id of a channel

  -- The clock was stepped back by so much: what was to be waited for comes as much sooner. Lines ask anew, and timers are moved,
  -- with the next takes. A lease may end later than one that begins now only if it was longer.
  local function step_back(at, by_us, lease_us)
    local longest = at.now + lease_us
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
    pause.step_back(at, by_us)
  end

  -- Lets the lease of an owner end `lease_us` from now, and notes that somebody called.
  function leases.renew(at, owner, lease_us)
    local last = whole_of(plan.hget(at.beat, 'at'))
    if last and at.now - last > lease_us / 2 then
      plan.hset(at.beat, 'grace', digits(at.now + GRACE_US))
      plan.hset(at.beat, 'earlier', digits(count_of(plan.hget(at.beat, 'resumed'))))
      plan.hset(at.beat, 'resumed', digits(at.now))
    elseif last and last - at.now > STEPPED_US then
      step_back(at, last - at.now, lease_us)
    end
    plan.hset(at.beat, 'at', digits(at.now))
    plan.zadd(at.leases, at.now + lease_us, owner)
  end

  -- When the event's last post was marked: not later than now, whatever the clock said then.
  function leases.marked(at, header)
    return math.min(at.now, tonumber(header.sent))
  end

  -- Before an event is reconciled: its marks by a clock that may have been stepped since. What was marked before an interruption
  -- counts from its end, since that may have been a step forward: no post that is under way is taken for one that is lost. A
  -- second one moves it no further. `back`: how much earlier than its first mark a history scan begins, after a step back.
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

  -- Parks an event whose post may have arrived, to be reconciled at `instant`, and never given up before that.
  function leases.await_scan(at, id, header, payload, instant)
    instant = math.max(at.now, instant)
    header.state, header.timer = 'waiting', true
    header.why = nil
    plan.zadd(at.timers, instant, id)
    plan.zadd(at.parked, math.max(instant, tonumber(header.deadline)), id)
    accounting.count(at.totals, 'parked', header.counted, 1)
    record.write(at, id, header, payload)
  end

  -- A post that was under way may have arrived, or arrives yet: it frees its channel, is charged to its pace, and waits to be
  -- reconciled when `at.grace_us` have passed since it was marked.
  function leases.unconfirmed(at, id, header, payload)
    if lines.free(at, header.channel, id) and plan.zscore(at.lines, 'channel:' .. header.channel) then
      plan.zadd(at.lines, at.now, 'channel:' .. header.channel)
    end
    if header.pace then
      local pace = at.scope .. 'pace:' .. header.channel
      plan.zadd(pace, at.now, id .. ' ' .. digits(at.now))
      plan.keep_alive(pace, header.pace, 2 * header.pace)
    end
    header.held, header.unconfirmed = nil, 0
    leases.await_scan(at, id, header, payload, leases.marked(at, header) + at.grace_us)
  end

  -- Until when nobody is taken over. What is further ahead than it can be was not written by us.
  function leases.grace(at)
    local grace = whole_of(plan.hget(at.beat, 'grace')) or 0
    return grace <= at.now + GRACE_US and grace or 0
  end

  -- Slack's id of a channel, where that is known.
  function leases.place(at, channel)
    local place = plan.hget(at.places, channel)
    return place and #place <= MOST_PLACE and place or nil
  end

  -- What cannot be read is the next to be taken, by itself: whoever takes it makes a dead letter of it.
  function leases.set_apart(at, id)
    local header = record.read(at, id)
    if not plan.hget(at.events, id) then
      plan.hset(at.events, id, '\n')
    end
    plan.zadd(at.requeued, header.seq or 0, id)
    lines.free_all(at, id)
  end

  -- Takes over a page of the events of an owner whose lease has ended. Returns whether these were all. A post that was under
  -- way is to be reconciled, and keeps its slot. An event that was being reconciled waits on a timer again. An event out of a
  -- category's line goes back there. Any other is requeued.
  function leases.take_over(at, owner, theirs)
    local ids = redis.call('SRANDMEMBER', theirs, PAGE + 1)
    local is_all = #ids <= PAGE
    ids[PAGE + 1] = nil
    for _, id in ipairs(ids) do
      local header, payload, malformed = record.read(at, id)
      plan.srem(theirs, id)
      if malformed then
        leases.set_apart(at, id)
      else
        header.deaths = (header.deaths or 0) + 1
        if header.state == 'sending' then
          leases.unconfirmed(at, id, header, payload)
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
    return is_all
  end

  -- A parked event leaves the timer or the line that it waits in; that it is no longer parked, and where it is written next, is
  -- the caller's matter.
  function leases.leave_place(at, id, header)
    if header.timer then
      plan.zrem(at.timers, id)
    elseif header.line then
      deferred.leave(at, id, header)
    else
      local line = header.entry or 'channel:' .. header.channel
      plan.zrem(at.line .. line, id)
      if not plan.zfirst(at.line .. line) then
        plan.zrem(at.lines, line)
      end
    end
  end

  -- An event that cannot be read leaves whatever it waits in: `line` is where it was found, if that was a line. Whether it was
  -- known to wait, and whether it was to be taken up again.
  function leases.pull_out(at, id, header, line)
    plan.zrem(at.timers, id)
    local was_requeued = plan.zrem(at.requeued, id)
    local channel = header.channel and 'channel:' .. header.channel
    for _, each in ipairs({ line or '', header.line or '', header.entry or '', channel or '' }) do
      if each ~= '' and plan.zscore(at.line .. each, id) then
        if string.find(each, '^category:') or string.find(each, '^label:') then
          deferred.leave(at, id, { line = each, category = deferred.category_of(at, each) })
        else
          plan.zrem(at.line .. each, id)
          if not plan.zfirst(at.line .. each) then
            plan.zrem(at.lines, each)
          end
        end
      end
    end
    lines.free_all(at, id)
    return plan.zrem(at.parked, id), was_requeued
  end

  -- Gives back every slot that the header names; those in `own` (a set of keys) stay.
  function leases.let_go(at, header, own)
    local slot = header.seq and record.slot(header)
    for _, name in ipairs(slot and (header.slots or header.holds) or {}) do
      local key = at.scope .. name
      if not (own and own[key]) and slots.release(key, slot) then
        deferred.reopen(at, name)
      end
    end
    header.holds, header.slots = nil, nil
  end
end)

-- What is due, for take.lua: events that have reached their deadline, timers, heads of lines, scheduled events, and events that
-- dead workers left.
-- One call looks at a bounded number of them; the next call looks at the others.
--
-- `at` as in include/intake.lua, with the keys reopening, turns, pause, beat and those of include/lines.lua; due, new and undecided of
-- the call, and is_stopped: everything is paused by hand.
local due = module(function(due)
  due.heads_of = {} -- scopes of which this call took heads
  local PAGE = 32 -- lines, and timers, that one call looks at beyond the number asked for
  local EXPIRED = 50
  local REOPENED = 25
  local HELD_UP_BY = { timers = { 'limit:', 'repeat', 'quiet' }, paused = { 'paused' }, silenced = { 'silenced' } } -- reasons of what asks again
  local SCAN_GAP_US = 1200000
  local MOST_BEHIND = 16 -- after so many heads that wait for the decisions of other workers, a later call looks at the rest
  local alone, behind, behind_count, old_waits, is_cut = false, nil, 0, false, false
  local scanned = {} -- channels whose history must be scanned for events of this batch

  -- Whether the batch is one poison-pill candidate: an event that two workers died with is handed out alone. If it kills a
  -- third worker, no other event dies with it.
  function due.is_alone()
    return alone
  end

  -- Whether events are due that a prefetch does not bring, and whether there is more than this call has looked at. Events
  -- that wait for the decisions of other workers do not count: these are taken after the decisions.
  function due.has_left()
    return old_waits, is_cut and behind_count < MOST_BEHIND
  end

  local function is_poison_candidate(header)
    return (header.deaths or 0) >= leases.POISON_DEATHS
  end

  -- Whether an event waits on a timer for a reason that begins so. The text of the header is enough to see this.
  local function waits_for(at, id, reason)
    local header = string.match(plan.hget(at.events, id) or '', '^[^\n]*')
    return string.find(header, '"why":["' .. reason, 1, true) ~= nil
  end

  -- Lets lines and timers ask again, a page in each call. `reopening` says how far that is: "lines" (all lines), "scopes"
  -- (only lines of scopes), "timers" (only of what a limit, `once` or quiet hours hold up), "paused" (only timers of events whose answer
  -- asked for an operator) and "silenced" (only of digest messages that wait for the end of a silence) hold "SCORE OFFSET". After a step back of the clock all timers must come sooner by that time: "back" holds
  -- "SCORE OFFSET US", and "silences" how far the clock was stepped back. "shared" (lines that wait for this scope) holds a rank.
  -- Returns whether it is done.
  function due.reopen(at)
    local is_done, cursors = true, plan.hgetall(at.reopening)
    if cursors.shared then
      local rank = deferred.ask_each_for_shared(at, digits(count_of(cursors.shared)), REOPENED)
      if rank then
        plan.hset(at.reopening, 'shared', rank)
      else
        plan.hdel(at.reopening, 'shared')
      end
      is_done, cursors.shared = not rank, nil
    end
    if cursors.silences then
      silences.step_back(at, count_of(cursors.silences))
      plan.hdel(at.reopening, 'silences')
      cursors.silences = nil
    end
    for kind, cursor in pairs(cursors) do
      local key = (kind == 'lines' or kind == 'scopes') and at.lines or at.timers
      local from, offset, by = string.match(cursor, '^(%d+) (%d+) ?(%d*)$')
      from, offset = from or '0', count_of(offset)
      local by_us = kind == 'back' and count_of(by) or math.huge
      local rows = redis.call('ZRANGEBYSCORE', key, from, '(inf', 'WITHSCORES', 'LIMIT', offset, REOPENED)
      for i = 1, #rows, 2 do
        local is_meant = kind == 'lines' or kind == 'back' or (kind == 'scopes' and string.find(rows[i], '^scope:'))
        local never_waits = kind == 'silenced' and string.find(rows[i], '^repeat:') -- as in digest.ask_again
        for _, reason in ipairs(not never_waits and HELD_UP_BY[kind] or {}) do
          is_meant = is_meant or waits_for(at, rows[i], reason)
        end
        if rows[i + 1] ~= from then
          from, offset = rows[i + 1], 0
        end
        if is_meant and number_of(rows[i + 1]) > at.now then
          plan.zadd_lower(key, math.max(at.now, number_of(rows[i + 1]) - by_us), rows[i])
        else
          offset = offset + 1
        end
      end
      if #rows < 2 * REOPENED then
        plan.hdel(at.reopening, kind)
      else
        plan.hset(at.reopening, kind, from .. ' ' .. offset .. (kind == 'back' and ' ' .. digits(by_us) or ''))
        is_done = false
      end
    end
    return is_done
  end

  -- The end of the cool-down of history scans. No event is reconciled before it, and for a while after it scans are made one
  -- by one: Slack limits all history scans together, whatever their channels.
  local function scan_from(at)
    return plan.zscore(at.cooldowns, lines.HISTORY) or -math.huge
  end

  -- Whether the history is searched for the event. An edit is not looked for but made again.
  local function is_looked_up(header)
    return header.unconfirmed and header.channel ~= lines.EDITS
  end

  local function is_too_soon(at, header)
    return is_looked_up(header) and at.now < scan_from(at) and not scanned[header.channel]
  end

  local function note_scan(at, header)
    if is_looked_up(header) and not scanned[header.channel] then
      scanned[header.channel] = true
      if at.now < scan_from(at) + lines.COOLED_US then
        plan.zadd(at.cooldowns, at.now + SCAN_GAP_US, lines.HISTORY)
      end
    end
  end

  -- Takes a poison-pill candidate, if one is next. Then it is all that this call takes.
  function due.take_poison_candidate(at)
    local requeued = at.new > 0 and not at.undecided and plan.zfirst(at.requeued)
    if requeued then
      local header, payload, malformed = record.read(at, requeued)
      if not malformed and is_poison_candidate(header) then
        alone = true
        intake.pick_up(at, requeued, header, payload)
        return
      end
    end
    local timer, instant = plan.zfirst(at.timers)
    if timer and instant <= at.now and at.due > 0 and not at.undecided and not at.is_stopped then
      local header, payload, malformed = record.read(at, timer)
      if not malformed and is_poison_candidate(header) and not is_too_soon(at, header) and not pause.until_of(at, timer) then
        alone = true
        plan.zrem(at.timers, timer)
        intake.unpark(at, timer, header, payload)
        note_scan(at, header)
        if header.unconfirmed then
          pause.let_try(at, timer)
        end
      end
    end
  end

  -- Takes events that have reached their deadline; they are handed out to be settled as expired.
  function due.take_expired(at)
    for _, id in ipairs(plan.zdue(at.parked, at.now, EXPIRED)) do
      local header, payload, malformed = record.read(at, id)
      if malformed then
        intake.quarantine(at, id, header, payload)
      elseif is_too_soon(at, header) then
        plan.zadd(at.timers, scan_from(at), id)
        plan.zadd(at.parked, scan_from(at), id)
      else
        note_scan(at, header)
        leases.leave_place(at, id, header)
        if header.line and plan.zfirst(at.line_prefix .. header.line) then
          deferred.ask_at_once(at, header.line) -- those behind it may be too old as well, if their max_age has become shorter
        end
        intake.unpark(at, id, header, payload)
      end
    end
  end

  -- Takes up to `most` events whose timers are due. Events with an unknown delivery status that went to one channel share
  -- one history scan and count as one, though each thread of the channel has a scan of its own. None of them is taken
  -- before the cool-down of history scans ends. Returns how many more events may be taken.
  local function take_timers(at, most, is_paused)
    local wanted = most > 0 and most + PAGE or 0
    local ids = plan.zdue(at.timers, at.now, wanted)
    is_cut = is_cut or (wanted > 0 and #ids == wanted)
    for _, id in ipairs(ids) do
      if most <= 0 and next(scanned) == nil then -- only events that share a scan may still be taken
        break
      end
      local header, payload, malformed = record.read(at, id)
      local place = header.unconfirmed and header.channel
      local may_wait = most > 0 and header.digest and (header.attempt or 0) == 0 -- one that was tried has waited before that
      local held_up = may_wait and digest.held_up(at, id)
      if malformed then
        intake.quarantine(at, id, header, payload)
      elseif is_too_soon(at, header) then
        plan.zadd(at.timers, scan_from(at), id)
      elseif is_poison_candidate(header) then
        old_waits = true
        break
      elseif held_up then
        plan.zadd(at.timers, held_up, id)
      elseif most > 0 or (place and scanned[place]) then
        plan.zrem(at.timers, id)
        intake.unpark(at, id, header, payload)
        if place and is_paused then
          pause.let_try(at, id)
        end
        if not (place and scanned[place]) then
          most = most - 1
        end
        note_scan(at, header)
      end
    end
    return most
  end

  -- Until when an event of this seq must wait for what another worker is deciding; nil if it need not.
  local function is_behind(at, seq)
    local wait_until = deferred.earlier_undecided(at, seq)
    if wait_until then
      behind, behind_count = math.min(behind or wait_until, wait_until), behind_count + 1
    end
    return wait_until
  end

  -- Whether the event may be taken in this call: a poison-pill candidate is taken alone, or not now.
  local function may_take(at, header)
    if alone or not is_poison_candidate(header) then
      return not alone
    end
    alone = intake.count() == 0 and not at.undecided
    old_waits = old_waits or not alone
    return alone
  end

  -- Takes the next event of a channel's line. If the channel takes one post at a time, the event gets the turn. Returns how
  -- many events were taken.
  local function take_channel_head(at, entry)
    local line, channel = at.line_prefix .. entry, string.match(entry, '^channel:(.*)$') or entry
    local id, seq = lines.next_of(at, line, channel)
    if not id then
      plan.zrem(at.lines, entry)
      return 0
    end
    if is_behind(at, seq) then
      return 0
    end
    local header, payload, malformed = record.read(at, id)
    if malformed then
      intake.quarantine(at, id, header, payload, entry)
      return 1
    end
    local may_overtake = at.undecided and header.solo and seq > at.undecided.seq -- an earlier one that this owner is deciding
    if may_overtake or not may_take(at, header) then
      return 0
    end
    plan.zrem(line, id)
    lines.count_turn(at, channel)
    intake.unpark(at, id, header, payload)
    local is_turn = entry == 'channel:' .. header.channel and (header.solo or plan.zscore(at.cooldowns, header.channel))
    if not plan.zfirst(line) then
      plan.zrem(at.lines, entry)
      plan.hdel(at.turns, channel)
    elseif is_turn then
      plan.zadd(at.lines, math.huge, entry)
    end
    if is_turn then
      plan.hset(at.posting, header.channel, id)
    end
    return 1
  end

  -- Takes up to `most` heads of the lines that wait for a scope, by rank. Until they are decided, nobody takes another head
  -- of that scope. Returns how many were taken.
  local function take_heads(at, scope, most)
    local taken = 0
    for _ = 1, most do
      local line, rank = plan.zfirst(at.waits_prefix .. scope)
      if not line then
        plan.zrem(at.lines, 'scope:' .. scope)
        return taken
      end
      if is_behind(at, deferred.seq_of(rank)) then
        return taken
      end
      local id = plan.zfirst(at.line_prefix .. line)
      if not id then -- the line is empty
        plan.zrem(at.waits_prefix .. scope, line)
        plan.hdel(at.awaited, line)
        return taken
      end
      local header, payload, malformed = record.read(at, id)
      if malformed then
        intake.quarantine(at, id, header, payload, line)
      elseif not may_take(at, header) then
        return taken
      else
        deferred.leave(at, id, header)
        intake.unpark(at, id, header, payload)
        intake.to_decide_again(header.seq)
        taken = taken + 1
      end
    end
    return taken
  end

  -- Takes up to `most` heads of lines; `opened` says how many may pass a scope at once. Returns how many more may be taken.
  local function take_lines(at, most, opened)
    local wanted = most > 0 and most + PAGE or 0
    local entries = plan.zdue(at.lines, at.now, wanted)
    is_cut = is_cut or (wanted > 0 and #entries == wanted)
    for _, entry in ipairs(entries) do
      local scope, taken = string.match(entry, '^scope:(.*)$'), 1
      if scope and at.undecided and most > 0 then -- what this owner is deciding could overtake the heads of the scope
        taken, old_waits = 0, true
      end
      while most > 0 and taken > 0 and not alone and behind_count < MOST_BEHIND
        and (plan.zscore(at.lines, entry) or math.huge) <= at.now do
        if not scope then
          taken = take_channel_head(at, entry)
        else
          local known = opened and opened[scope]
          taken = take_heads(at, scope, math.min(most, known and math.max(tonumber(known[2]) or 1, 1) or 1))
          if taken > 0 then
            if plan.zscore(at.lines, entry) then
              plan.zadd(at.lines, math.huge, entry)
            end
            due.heads_of[#due.heads_of + 1] = scope
          end
        end
        most = most - taken
      end
    end
    return most
  end

  -- How many of `most` places timers leave to lines while both are due: half of them. The place of an odd number that is over
  -- goes to the one and the other by turns.
  local function kept_for_lines(at, most)
    if most == 0 or plan.zlowest(at.lines) > at.now or plan.zlowest(at.timers) > at.now then
      return 0
    end
    local half = math.floor(most / 2)
    if most == 2 * half then
      return half
    end
    local get_more = plan.hget(at.beat, 'lines') == '1'
    plan.hset(at.beat, 'lines', get_more and '0' or '1')
    return half + (get_more and 1 or 0)
  end

  -- Whether of all lines and timers the head of a line has been due for the longest time, and is a poison-pill candidate that this
  -- call may take.
  local function is_candidate_first(at)
    if at.undecided or intake.count() > 0 or plan.zlowest(at.lines) > plan.zlowest(at.timers) then
      return false
    end
    local entry = plan.zfirst(at.lines) or ''
    local scope = string.match(entry, '^scope:(.*)$')
    local line = at.line_prefix .. (scope and plan.zfirst(at.waits_prefix .. scope) or entry)
    local id = lines.next_of(at, line, string.match(entry, '^channel:(.*)$') or entry)
    return id ~= nil and is_poison_candidate((record.read(at, id)))
  end

  -- Takes what is due, as far as the worker can post. Very many timers keep no line waiting until all of them have been taken:
  -- while posting is not paused, lines have places of their own. Nor do they keep a poison-pill candidate waiting, which is not
  -- taken beside one of them: it goes first if it has been due for longer than all of them.
  -- While posting is paused, it takes one event as the probe, another one each time. So in an outage or an operator pause it looks at
  -- the lines first, which hold the events that were not tried; in a cool-down of the workspace it looks at the timers first.
  -- Returns how many more might have been taken.
  function due.take_due(at, opened)
    local most = at.is_stopped and 0 or at.due
    local is_paused = redis.call('EXISTS', at.pause) == 1
    if is_paused then
      most = pause.until_of(at) and 0 or math.min(most, 1)
    end
    if is_paused and (pause.kind(at) == 'outage' or pause.kind(at) == 'operator') then
      return take_timers(at, take_lines(at, most, opened), true)
    end
    local kept = is_paused and 0 or kept_for_lines(at, most)
    local left
    if kept > 0 and is_candidate_first(at) then
      left = most - kept + take_lines(at, kept, opened)
    else
      left = take_lines(at, take_timers(at, most - kept, is_paused) + kept, opened)
    end
    return kept > 0 and not alone and take_timers(at, left, is_paused) or left
  end

  -- Takes events that dead or stopped workers left.
  function due.take_requeued(at)
    local most = at.undecided and 0 or intake.room(at)
    for _, id in ipairs(most > 0 and not alone and plan.zdue(at.requeued, math.huge, most) or {}) do
      local header, payload, malformed = record.read(at, id)
      if malformed then
        intake.quarantine(at, id, header, payload)
      elseif is_poison_candidate(header) or intake.is_full() then
        break
      else
        intake.pick_up(at, id, header, payload)
      end
    end
  end

  function due.has_scheduled(at)
    return plan.zlowest(at.scheduled) <= at.now
  end

  -- Takes scheduled events whose instant has come. Like new ones they have yet to ask for room. They get half of the room for
  -- new events, so that no new event waits until all of a great number that are due at once have been decided.
  function due.take_scheduled(at)
    local most = (at.undecided or alone) and 0 or math.ceil(intake.room(at) / 2)
    for _, id in ipairs(most > 0 and plan.zdue(at.scheduled, at.now, most) or {}) do
      local header, payload, malformed = record.read(at, id)
      if malformed then
        intake.quarantine(at, id, header, payload)
      elseif intake.is_full() or not may_take(at, header) then
        break
      else
        plan.zrem(at.scheduled, id)
        intake.unpark(at, id, header, payload)
        intake.to_decide_again(header.seq)
      end
    end
  end

  -- The next instant at which there may be something to take, or math.huge, unless a lease ends before; the same for a worker
  -- that can post nothing; and whether an event waits that a free sender could post now.
  function due.come_again(at, is_suspended)
    local next_at, busy_at, post_at = math.huge, math.huge, math.huge
    if not is_suspended then
      busy_at = math.min(plan.zlowest(at.parked), plan.zlowest(at.scheduled), plan.zlowest(at.endings))
      next_at = busy_at
      local _, line_at
      if behind then
        _, line_at = plan.znext(at.lines, at.now)
      else
        line_at = plan.zlowest(at.lines)
      end
      local waits_until = math.min(line_at or math.huge, behind or math.huge, plan.zlowest(at.timers))
      if not at.is_stopped and waits_until < math.huge then
        local _, probe = pause.until_of(at)
        post_at = math.max(waits_until, probe or 0)
        next_at = math.min(next_at, post_at)
      end
    end
    return next_at, busy_at, post_at <= at.now
  end
end)

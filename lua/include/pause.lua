-- A pause: no event is posted, except one that tries, the prober. The hash `pause` exists while the pause lasts:
--   kind     "operator": Slack takes no post until an operator acts. "outage": Slack is not reached. "cooldown": the whole
--            workspace cools down
--   code, detail  what Slack or the network said
--   fingerprint  a few bits of a digest of the credential that was refused; empty if none was
--   since    when the pause began
--   probe    when the next event may try; prober: id of the event that tries now; gap: time from that try to the next.
--            If a worker starts with another credential than the one that was refused, the prober is that worker for a while:
--            only it may try before `probe`
-- A pause by hand is another hash, `paused`: "*" or a category -> JSON; in it no event tries.
--
-- An outage is one of two things. OUTAGE posts in a row fail over two channels or more, and Slack answers no post between them.
-- Or as many posts never leave this side, which no event and no channel can cause. An outage ends when Slack answers a post; the
-- answer to a history scan does not end it, unless it shows a post that was made in the outage.
--
-- The failures of one event or one channel are no outage. A channel that gives no clear answer twice in a row is held up alone: it
-- cools down for a while, longer each time, and then takes one post at a time until one has arrived. The event that failed waits
-- on its timer, so the next event to try is another one.
--
-- An answer that asks for an operator pauses all. One exception: a channel gives such an answer again, and something was posted
-- since its last one. Then only this channel is held up, and its event uses up its attempts.
--
-- `at` names the keys pause, failing (HASH channel -> failures since Slack last answered a post, '' -> those that never left),
-- failures (HASH channel -> its failures in a row), denials (HASH channel -> when it last asked for an operator), posted
-- (STRING: when something was last posted), cooldowns, wake; now; and owner, if the call is about a worker's posts. failing, failures, denials and posted live an hour.
local pause = module(function(pause)
  local OUTAGE = 5
  local GAP_FROM_US, GAP_TO_US, OPERATOR_GAP_US = 1000000, 30000000, 60000000
  local EAGER = 12 -- channels that are probed, one after another, before the gaps grow
  local HOUR_US = 3600000000
  local PROBES_US = { operator = 60000000, outage = 30000000, cooldown = 30000000 } -- how long a prober may take before another event tries
  local RETRY_PROBE_US = 1000000
  local NEWCOMER_US = 10000000 -- for so long only a worker with another credential may try

  local is_post_noted = false

  pause.changes = {} -- [{"began": kind, "code", "detail"} | {"ended": kind}, ...] for the caller

  -- The kind of the pause, if there is one with a known kind.
  function pause.kind(at)
    local kind = plan.hget(at.pause, 'kind')
    return PROBES_US[kind] and kind or nil
  end

  -- Why the event may not be posted, and until when; nothing if it may. The prober may.
  function pause.until_of(at, id)
    local kind = pause.kind(at)
    if kind then
      local probe = whole_of(plan.hget(at.pause, 'probe'))
      local prober = plan.hget(at.pause, 'prober')
      if probe and at.now < probe and prober ~= id and prober ~= at.owner then
        return kind == 'cooldown' and 'cooldown' or 'paused', probe
      end
    end
  end

  -- During a pause this event tries; no other event tries before its result is known.
  function pause.let_try(at, id)
    local kind = pause.kind(at)
    if kind then
      plan.hset(at.pause, 'prober', id)
      plan.hset(at.pause, 'probe', digits(at.now + PROBES_US[kind]))
    end
  end

  -- A worker posts with a credential of this fingerprint from now on. If it is not the one that was refused, the worker may
  -- try at once. Returns whether it is so.
  function pause.let_newcomer_try(at, fingerprint)
    if pause.kind(at) ~= 'operator' or plan.hget(at.pause, 'fingerprint') == fingerprint then
      return false
    end
    plan.hset(at.pause, 'gap', digits(GAP_FROM_US))
    plan.hset(at.pause, 'probe', digits(at.now + NEWCOMER_US))
    plan.hset(at.pause, 'prober', at.owner)
    return true
  end

  -- `id` is the event whose post brought this answer. If it was the prober of a cool-down, that is over; else no event tries
  -- before the end of the cool-down.
  local function begin(at, kind, said, gap, id)
    local before = pause.kind(at)
    local is_cooling = before == 'cooldown' and kind ~= before and plan.hget(at.pause, 'prober') ~= id
    local cool_until = is_cooling and whole_of(plan.hget(at.pause, 'probe')) or 0
    said = type(said) == 'table' and said or {}
    local code, detail = tostring(said.code or ''), tostring(said.detail or '')
    if before ~= kind then
      plan.hset(at.pause, 'since', digits(at.now))
      plan.hset(at.pause, 'kind', kind)
    end
    if before ~= kind or plan.hget(at.pause, 'code') ~= code then
      pause.changes[#pause.changes + 1] = { began = kind, code = code, detail = detail }
    end
    plan.hset(at.pause, 'code', code)
    plan.hset(at.pause, 'detail', detail)
    plan.hset(at.pause, 'fingerprint', tostring(said.fingerprint or ''))
    plan.hset(at.pause, 'gap', digits(gap))
    plan.hset(at.pause, 'probe', digits(math.max(at.now + gap, cool_until)))
    plan.hset(at.pause, 'prober', '')
  end

  local function finish(at, kind)
    plan.del(at.pause)
    pause.changes[#pause.changes + 1] = { ended = kind }
    plan.ring(at.wake)
  end

  local function try_next(at, gap)
    plan.hset(at.pause, 'gap', digits(gap))
    plan.hset(at.pause, 'probe', digits(at.now + gap))
    plan.hset(at.pause, 'prober', '')
  end

  local function count_in(key, channel)
    local number = count_of(plan.hget(key, channel)) + 1
    plan.hset(key, channel, digits(number))
    plan.keep_alive(key, HOUR_US)
    return number
  end

  -- Whether no event has tried the channel in this pause, and fewer than EAGER channels were tried. If posts never leave,
  -- one channel is as good as another: then no channel counts as untried.
  local function is_untried(at, kind, channel)
    local key = kind == 'outage' and at.failing or at.denials
    local tried_at = plan.hget(key, channel)
    local is_old = kind == 'operator' and count_of(tried_at) < (whole_of(plan.hget(at.pause, 'since')) or 0)
    local never_left = kind == 'outage' and plan.hget(key, '')
    return (not tried_at or is_old) and not never_left and plan.hlen(key) < EAGER
  end

  -- An event for a channel that was not tried yet wants to be posted: the next try need not be later than the first tries
  -- were. If an event tries now, this holds for the try after it.
  function pause.hasten(at, channel)
    local kind = pause.kind(at)
    if (kind == 'outage' or kind == 'operator') and is_untried(at, kind, channel) then
      local probe, gap = whole_of(plan.hget(at.pause, 'probe')), whole_of(plan.hget(at.pause, 'gap'))
      if probe and gap and gap > GAP_FROM_US then
        plan.hset(at.pause, 'gap', digits(GAP_FROM_US))
        if plan.hget(at.pause, 'prober') == '' then
          plan.hset(at.pause, 'probe', digits(math.max(at.now, probe - gap + GAP_FROM_US)))
        end
      end
    end
  end

  -- The gap after a prober failed: short while there are untried channels, then twice as long each time.
  local function next_gap(at, is_new, longest)
    local gap = whole_of(plan.hget(at.pause, 'gap')) or GAP_FROM_US
    return is_new and GAP_FROM_US or math.min(2 * gap, longest)
  end

  -- Holds up the channel from its second failure in a row on: it takes no post for a while, longer each time. A post that
  -- was under way when the channel was held up counts for nothing.
  local function hold(at, channel)
    if (plan.zscore(at.cooldowns, channel) or 0) > at.now then
      return
    end
    local failures = count_in(at.failures, channel)
    if failures < 2 then
      return
    end
    local gap = math.min(GAP_FROM_US * 2 ^ math.min(failures - 2, 10), GAP_TO_US)
    plan.zadd_higher(at.cooldowns, at.now + gap, channel)
    plan.keep_alive(at.cooldowns, gap + lines.COOLED_US)
  end

  -- Whether the failures are an outage.
  local function is_outage(at)
    local channels, failures, never_left = 0, 0, 0
    for channel, text in pairs(plan.hgetall(at.failing)) do
      local number = count_of(text)
      if channel == '' then
        never_left = number
      else
        channels, failures = channels + 1, failures + number
      end
    end
    return never_left >= OUTAGE or (failures >= OUTAGE and channels > 1)
  end

  -- A post or a history scan did not reach Slack, or had no clear answer. `is_maybe`: the post may have arrived; `is_scan`:
  -- it was a history scan. Returns whether the failure is part of an outage, which uses up no event's attempt.
  function pause.note_failure(at, id, channel, said, is_maybe, is_scan)
    local kind = pause.kind(at)
    local is_new = kind and (is_maybe or is_scan) and is_untried(at, 'outage', channel)
    count_in(at.failing, channel)
    if is_maybe then
      hold(at, channel)
    elseif not is_scan then
      count_in(at.failing, '')
    end
    local is_prober = kind and plan.hget(at.pause, 'prober') == id
    if kind == 'outage' or kind == 'operator' then
      if is_prober then
        try_next(at, next_gap(at, is_new, kind == 'outage' and GAP_TO_US or OPERATOR_GAP_US))
      end
      return kind == 'outage'
    end
    if is_outage(at) then
      begin(at, 'outage', said, GAP_FROM_US, id)
      return true
    elseif is_prober then -- it is the prober of a cool-down
      try_next(at, RETRY_PROBE_US)
    end
    return false
  end

  -- Slack's answer asks for an operator. Returns until when all workers pause; nothing if only this channel is concerned.
  function pause.note_denial(at, id, channel, said, is_scan)
    local kind, denied = pause.kind(at), whole_of(plan.hget(at.denials, channel))
    local is_new = kind == 'operator' and is_untried(at, kind, channel)
    plan.del(at.failing)
    plan.hset(at.denials, channel, digits(at.now))
    plan.keep_alive(at.denials, HOUR_US)
    if kind ~= 'operator' and denied and count_of(redis.call('GET', at.posted)) >= denied then
      if not is_scan then
        hold(at, channel)
      end
      pause.pass_try(at, id)
      return nil
    end
    if kind ~= 'operator' then
      begin(at, 'operator', said, GAP_FROM_US, id)
    elseif plan.hget(at.pause, 'prober') == id then
      begin(at, 'operator', said, next_gap(at, is_new, OPERATOR_GAP_US), id)
    end
    return whole_of(plan.hget(at.pause, 'probe'))
  end

  -- The result of the prober's try says nothing about the pause: the next event may try at once.
  function pause.pass_try(at, id)
    if pause.kind(at) and plan.hget(at.pause, 'prober') == id then
      plan.hset(at.pause, 'probe', digits(at.now))
      plan.hset(at.pause, 'prober', '')
    end
  end

  -- The channel has answered a post: it is no longer held up.
  local function release(at, channel)
    if plan.hget(at.failures, channel) then
      plan.hdel(at.failures, channel)
    end
  end

  -- Slack has answered a post. `is_posted`: it took the message; `is_replied`: it took or refused it.
  function pause.note_answer(at, id, channel, is_posted, is_replied)
    plan.del(at.failing)
    if is_replied then
      release(at, channel)
    end
    if is_posted and not is_post_noted then
      is_post_noted = true
      plan.write('SET', at.posted, digits(at.now), 'PX', HOUR_US / 1000)
    end
    local kind = pause.kind(at)
    local is_prober = kind and plan.hget(at.pause, 'prober') == id
    if kind == 'outage' or (kind == 'operator' and is_posted) or (kind == 'cooldown' and is_prober and is_replied) then
      finish(at, kind)
    elseif is_prober then
      pause.pass_try(at, id)
    end
  end

  -- A post without a clear answer was found in the history: the channel takes posts, and if the post was made in the outage,
  -- Slack does.
  function pause.note_found(at, id, channel, sent_us)
    release(at, channel)
    if pause.kind(at) == 'outage' and sent_us >= (whole_of(plan.hget(at.pause, 'since')) or 0) then
      plan.del(at.failing)
      finish(at, 'outage')
    else
      pause.pass_try(at, id)
    end
  end

  -- What may have kept a post from arriving: an "outage", or the "channel" if more than one post in a row failed there; else
  -- nil.
  function pause.trouble_of(at, channel)
    if pause.kind(at) == 'outage' then
      return 'outage'
    end
    return count_of(plan.hget(at.failures, channel)) > 1 and 'channel' or nil
  end

  -- Whether the event was tried, and posts to its channel fail.
  function pause.has_failed(at, header, channel)
    return (header.attempt or 0) > 0 and pause.trouble_of(at, channel)
  end

  -- The clock was stepped back by this much: all waits must end as much sooner.
  function pause.step_back(at, by_us)
    local probe = whole_of(plan.hget(at.pause, 'probe'))
    if probe then
      plan.hset(at.pause, 'probe', digits(probe - by_us))
    end
    local rows = redis.call('ZRANGEBYSCORE', at.cooldowns, '(' .. digits(at.now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
    for i = 1, #rows, 2 do
      plan.zadd(at.cooldowns, number_of(rows[i + 1]) - by_us, rows[i])
    end
  end

  -- The channel cools down for `span_us`. If another channel cools down already, the whole workspace does. Edits are no
  -- channel: Slack counts them apart from posts, so they hold up nothing else. Slack has answered, so an outage ends.
  function pause.cool_down(at, id, channel, span_us, said)
    plan.del(at.failing)
    release(at, channel)
    local kind = pause.kind(at)
    if kind == 'outage' then
      finish(at, kind)
      kind = nil
    end
    local others = redis.call('ZRANGEBYSCORE', at.cooldowns, '(' .. digits(at.now), '+inf', 'WITHSCORES', 'LIMIT', 0, 100)
    local latest, is_wide = at.now + span_us, false
    for i = 1, #others, 2 do
      local other = others[i]
      if other ~= lines.HISTORY and other ~= lines.EDITS and not plan.hget(at.failures, other) then
        is_wide = is_wide or other ~= channel
        latest = math.max(latest, number_of(others[i + 1]))
      end
    end
    for _, old in ipairs(redis.call('ZRANGEBYSCORE', at.cooldowns, '-inf', digits(at.now - lines.COOLED_US), 'LIMIT', 0, 100)) do
      plan.zrem(at.cooldowns, old)
    end
    plan.zadd_higher(at.cooldowns, at.now + span_us, channel)
    plan.keep_alive(at.cooldowns, span_us + lines.COOLED_US)
    if channel == lines.EDITS then
      pause.pass_try(at, id)
    elseif kind ~= 'operator' and (is_wide or kind == 'cooldown') then
      begin(at, 'cooldown', said, latest - at.now, id)
    end
  end
end)

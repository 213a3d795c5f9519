-- A pause: nobody posts, but for one event that tries, the prober. The hash `pause` is there while it lasts:
--   kind     "operator": Slack will take nothing until an operator acts. "outage": Slack is not reached. "cooldown": the whole
--            workspace cools down
--   code, detail  what was said; since; probe: when the next one may try; prober: id of who tries now; gap: until the one after
-- A pause by hand is another hash, `paused`: "*" or a category -> JSON; in it nobody tries.
--
-- What one event or one channel meets is no outage. A channel that gives no answer twice in a row is held up by itself: it cools
-- down for a while, longer each time, and then takes one post at a time until one has arrived; the event that failed waits on its
-- timer, so the next to try is another one. An outage is that OUTAGE posts in a row fail over two channels or more, and Slack
-- answers no post between; or that as many never leave, which no event and no channel can cause. It ends when Slack answers a
-- post: that it can be read says nothing.
-- Likewise for an answer that asks for an operator. It pauses all; but a channel that gives such an answer though something was
-- posted since it gave one before, is held up by itself, and its event uses up its attempts.
--
-- `at` names the keys pause, failing (HASH channel -> failures since Slack last answered a post, '' -> those that never left),
-- failures (HASH channel -> its failures in a row), denials (HASH channel -> when it last asked for an operator), posted
-- (STRING: when something was last posted), cooldowns, wake; and now. failing, failures, denials and posted live an hour.
local pause = module(function(pause)
  local OUTAGE = 5
  local GAP_FROM_US, GAP_TO_US, OPERATOR_GAP_US = 1000000, 30000000, 60000000
  local EAGER = 12 -- channels that are probed one after another before the gaps grow
  local HOUR_US = 3600000000
  local PROBES_US = { operator = 60000000, outage = 30000000, cooldown = 30000000 } -- for one who tries and is not heard of
  local RETRY_PROBE_US = 1000000

  local is_post_noted = false

  pause.turned = {} -- [{"began": kind, "code", "detail"} | {"ended": kind}, ...] for who asked

  -- The kind of the pause, if there is one that can be understood.
  local function kind_of(at)
    local kind = plan.hget(at.pause, 'kind')
    return PROBES_US[kind] and kind or nil
  end

  -- Why nobody may post, and until when; nothing when one may, and for the prober itself.
  function pause.until_of(at, id)
    local kind = kind_of(at)
    if kind then
      local probe = whole_of(plan.hget(at.pause, 'probe'))
      if probe and at.now < probe and plan.hget(at.pause, 'prober') ~= id then
        return kind == 'cooldown' and 'cooldown' or 'paused', probe
      end
    end
  end

  -- While posting is paused this one tries, and no other before it is heard of.
  function pause.let_try(at, id)
    local kind = kind_of(at)
    if kind then
      plan.hset(at.pause, 'prober', id)
      plan.hset(at.pause, 'probe', digits(at.now + PROBES_US[kind]))
    end
  end

  function pause.kind(at)
    return kind_of(at)
  end

  -- `id` was under way: if it was the prober of a cool-down, that is over; else nobody tries before its end.
  local function begin(at, kind, said, gap, id)
    local before = kind_of(at)
    local is_cooling = before == 'cooldown' and kind ~= before and plan.hget(at.pause, 'prober') ~= id
    local cool_until = is_cooling and whole_of(plan.hget(at.pause, 'probe')) or 0
    said = type(said) == 'table' and said or {}
    local code, detail = tostring(said.code or ''), tostring(said.detail or '')
    if before ~= kind then
      plan.hset(at.pause, 'since', digits(at.now))
      plan.hset(at.pause, 'kind', kind)
    end
    if before ~= kind or plan.hget(at.pause, 'code') ~= code then
      pause.turned[#pause.turned + 1] = { began = kind, code = code, detail = detail }
    end
    plan.hset(at.pause, 'code', code)
    plan.hset(at.pause, 'detail', detail)
    plan.hset(at.pause, 'gap', digits(gap))
    plan.hset(at.pause, 'probe', digits(math.max(at.now + gap, cool_until)))
    plan.hset(at.pause, 'prober', '')
  end

  local function finish(at, kind)
    plan.del(at.pause)
    pause.turned[#pause.turned + 1] = { ended = kind }
    plan.ring(at.wake)
  end

  local function try_next(at, gap)
    plan.hset(at.pause, 'gap', digits(gap))
    plan.hset(at.pause, 'probe', digits(at.now + gap))
    plan.hset(at.pause, 'prober', '')
  end

  local function count_in(at, key, channel)
    local number = count_of(plan.hget(key, channel)) + 1
    plan.hset(key, channel, digits(number))
    plan.keep_alive(key, HOUR_US)
    return number
  end

  -- Whether nobody has tried the channel in this pause, and there are not too many of which somebody has. Where posts never
  -- leave, one channel is as good as another.
  local function is_untried(at, kind, channel)
    local key = kind == 'outage' and at.failing or at.denials
    local tried_at = plan.hget(key, channel)
    local is_old = kind == 'operator' and count_of(tried_at) < (whole_of(plan.hget(at.pause, 'since')) or 0)
    local never_left = kind == 'outage' and plan.hget(key, '')
    return (not tried_at or is_old) and not never_left and plan.hlen(key) < EAGER
  end

  -- Somebody wants to post to a channel that was not tried yet: the next try, or the one after who tries now, need not be later
  -- than the first ones were.
  function pause.hasten(at, channel)
    local kind = kind_of(at)
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

  -- The gap after a prober failed: short while there are channels that were not tried, then twice as long each time.
  local function next_gap(at, is_new, longest)
    local gap = whole_of(plan.hget(at.pause, 'gap')) or GAP_FROM_US
    return is_new and GAP_FROM_US or math.min(2 * gap, longest)
  end

  -- From its second failure in a row on the channel takes no post for a while, longer each time. What was under way when it was
  -- held up says nothing new.
  local function hold(at, channel)
    if (plan.zscore(at.cooldowns, channel) or 0) > at.now then
      return
    end
    local failures = count_in(at, at.failures, channel)
    if failures < 2 then
      return
    end
    local gap = math.min(GAP_FROM_US * 2 ^ math.min(failures - 2, 10), GAP_TO_US)
    plan.zadd_higher(at.cooldowns, at.now + gap, channel)
    plan.keep_alive(at.cooldowns, gap + lines.COOLED_US)
  end

  -- Whether what failed is an outage.
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

  -- A post or a history scan did not reach Slack, or had no clear answer: `is_maybe`, the post may have arrived; `is_scan`. Returns
  -- whether that is part of an outage, in which nobody's attempt is used up.
  function pause.note_failure(at, id, channel, said, is_maybe, is_scan)
    local kind = kind_of(at)
    local is_new = kind and (is_maybe or is_scan) and is_untried(at, 'outage', channel)
    count_in(at, at.failing, channel)
    if is_maybe then
      hold(at, channel)
    elseif not is_scan then
      count_in(at, at.failing, '')
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
    elseif is_prober then -- of a cool-down
      try_next(at, RETRY_PROBE_US)
    end
    return false
  end

  -- Slack asks for an operator. Returns until when the fleet is paused; nothing where that is the channel's own affair.
  function pause.note_denial(at, id, channel, said, is_scan)
    local kind, denied = kind_of(at), whole_of(plan.hget(at.denials, channel))
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

  -- What became of the prober's try says nothing: the next one may try at once.
  function pause.pass_try(at, id)
    if kind_of(at) and plan.hget(at.pause, 'prober') == id then
      plan.hset(at.pause, 'probe', digits(at.now))
      plan.hset(at.pause, 'prober', '')
    end
  end

  -- The channel has answered a post: it is held up no longer.
  local function release(at, channel)
    if plan.hget(at.failures, channel) then
      plan.hdel(at.failures, channel)
    end
  end

  -- Slack has answered a post; `is_posted`: it took the message, `is_replied`: or refused it.
  function pause.note_answer(at, id, channel, is_posted, is_replied)
    plan.del(at.failing)
    if is_replied then
      release(at, channel)
    end
    if is_posted and not is_post_noted then
      is_post_noted = true
      plan.write('SET', at.posted, digits(at.now), 'PX', HOUR_US / 1000)
    end
    local kind = kind_of(at)
    local is_prober = kind and plan.hget(at.pause, 'prober') == id
    if kind == 'outage' or (kind == 'operator' and is_posted) or (kind == 'cooldown' and is_prober and is_replied) then
      finish(at, kind)
    elseif is_prober then
      pause.pass_try(at, id)
    end
  end

  -- A post that had no clear answer was found: the channel takes posts, and Slack does if it was made in the outage.
  function pause.note_found(at, id, channel, sent_us)
    release(at, channel)
    if kind_of(at) == 'outage' and sent_us >= (whole_of(plan.hget(at.pause, 'since')) or 0) then
      plan.del(at.failing)
      finish(at, 'outage')
    else
      pause.pass_try(at, id)
    end
  end

  -- What a post that has not arrived may be the fault of: an "outage", or the "channel", of which more than one in a row failed.
  function pause.trouble_of(at, channel)
    if kind_of(at) == 'outage' then
      return 'outage'
    end
    return count_of(plan.hget(at.failures, channel)) > 1 and 'channel' or nil
  end

  -- The clock was stepped back by so much: what was to be waited for comes as much sooner.
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

  -- The channel cools down for so long; where another one does so already, the whole workspace does. Slack has answered, so
  -- this is the end of an outage.
  function pause.cool_down(at, id, channel, span_us, said)
    plan.del(at.failing)
    release(at, channel)
    local kind = kind_of(at)
    if kind == 'outage' then
      finish(at, kind)
      kind = nil
    end
    local others = redis.call('ZRANGEBYSCORE', at.cooldowns, '(' .. digits(at.now), '+inf', 'WITHSCORES', 'LIMIT', 0, 100)
    local latest, is_wide = at.now + span_us, false
    for i = 1, #others, 2 do
      local other = others[i]
      if other ~= lines.HISTORY and not plan.hget(at.failures, other) then
        is_wide = is_wide or other ~= channel
        latest = math.max(latest, number_of(others[i + 1]))
      end
    end
    for _, old in ipairs(redis.call('ZRANGEBYSCORE', at.cooldowns, '-inf', digits(at.now - lines.COOLED_US), 'LIMIT', 0, 100)) do
      plan.zrem(at.cooldowns, old)
    end
    plan.zadd_higher(at.cooldowns, at.now + span_us, channel)
    plan.keep_alive(at.cooldowns, span_us + lines.COOLED_US)
    if kind ~= 'operator' and (is_wide or kind == 'cooldown') then
      begin(at, 'cooldown', said, latest - at.now, id)
    end
  end
end)

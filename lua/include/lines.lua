-- Where events wait: an event is parked in a channel's line, on a timer (its own instant), in the line of its category
-- (include/deferred.lua), or among the scheduled ones until it may ask for room.
--
-- A channel's line is ordered by class, then by first sight. The class, 0 to 11, follows from the event's priority (high, normal,
-- low), from whether its slot belongs to its category's guarantee, and from whether it was tried and failed (lines.class).
-- Every OLDEST_EVERY-th turn goes to the oldest event, so that none starves.
--
-- `lines` holds the instant at which the head of each channel's line may pass; 'inf' while it waits for the post in flight on its
-- channel. A call that sets an instant earlier than all others rings the bell, which wakes one worker that sleeps.
--
-- `at` names the keys lines, timers, scheduled, posting, cooldowns, turns, wake, in calls that change silences also `endings`;
-- line_prefix; and now. A channel is {name, line: key of its line, line_name, and with a pace: pace: key of its slots, max, window_us}.
local lines = module(function(lines)
  lines.HISTORY = 'conversations.history' -- the member of `cooldowns` that stands for all history scans
  lines.EDITS = 'edits' -- in place of a channel: the edits of messages
  -- For so long after a cool-down the channel takes one post at a time, until one has arrived; and history scans are made
  -- one by one.
  lines.COOLED_US = 600000000
  local CLASS = 562949953421312 -- 2^49: seq is below it
  local CLASSES = 12
  local USUAL = 6 -- normal, without a guarantee, not tried and failed
  local OLDEST_EVERY = 16
  local PRIORITY = { high = 0, normal = 4, low = 8 }
  local PATIENT = 8
  local channels_of -- id -> channels on which it has the turn, once free_all has read them

  -- The earliest instant at which something is due, as stored: before this call changes anything.
  local function first_instant(at)
    local first = math.huge
    for _, key in ipairs({ at.lines, at.timers, at.scheduled, at.endings }) do
      first = math.min(first, number_of(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge)
    end
    return first
  end

  -- Rings if this call has planned an instant earlier than all that are stored.
  function lines.ring_if_earlier(at)
    local added = math.min(plan.zlowest_added(at.lines), plan.zlowest_added(at.timers), plan.zlowest_added(at.scheduled))
    added = math.min(added, at.endings and plan.zlowest_added(at.endings) or added)
    if added < math.huge and added < first_instant(at) then
      plan.ring(at.wake)
    end
  end

  -- Notes its class. Within a priority, events with a slot of a guarantee come first. Within each of these groups, events that
  -- were tried and failed come last, so they hold up nobody: after one failure where posts fail one after another (`has_failed`),
  -- after PATIENT posts where the channel is told to wait.
  function lines.class(header, event, has_failed)
    local is_guaranteed = event.guarantee and header.seq and plan.zscore(KEYS[event.guarantee], record.slot(header))
    local was_tried = has_failed or (header.posts or 0) >= PATIENT
    header.order = (PRIORITY[event.priority] or PRIORITY.normal) + (is_guaranteed and 0 or 2) + (was_tried and 1 or 0)
  end

  function lines.score(header)
    return (header.order or USUAL) * CLASS + header.seq
  end

  local function is_oldests_turn(at, channel)
    return count_of(plan.hget(at.turns, channel)) % OLDEST_EVERY == OLDEST_EVERY - 1
  end

  -- The event whose turn it is in a channel's line, and its seq.
  function lines.next_of(at, line, channel)
    local id, score = plan.zfirst(line)
    if id and is_oldests_turn(at, channel) then
      local oldest, low = math.huge, -1
      for _ = 1, CLASSES do
        local member, at_score = plan.znext(line, low)
        if not member then
          break
        end
        local class = math.floor(at_score / CLASS)
        if at_score - class * CLASS < oldest then
          id, oldest = member, at_score - class * CLASS
        end
        low = (class + 1) * CLASS - 1
      end
      return id, oldest
    end
    return id, score and score % CLASS
  end

  -- Whether another event of the channel's line goes before this one, which is not in it.
  function lines.goes_before(at, channel, header)
    local _, first = plan.zfirst(channel.line)
    if first and is_oldests_turn(at, channel.name) then
      local _, oldest = lines.next_of(at, channel.line, channel.name)
      return oldest < header.seq
    end
    return first and first < lines.score(header)
  end

  function lines.count_turn(at, channel)
    plan.hset(at.turns, channel, digits((count_of(plan.hget(at.turns, channel)) + 1) % OLDEST_EVERY))
  end

  -- The slots of a channel's pace.
  function lines.pace(at, channel)
    if not channel.view then
      channel.view = slots.open(channel.pace, { { channel.max, channel.window_us } }, at.now)
      slots.draw_back(channel.view)
    end
    return channel.view
  end

  -- The instant from which a post to the channel may start: its cool-down has ended, and its pace has room.
  function lines.free_at(at, channel)
    local instant = plan.zscore(at.cooldowns, channel.name) or 0
    if channel.max then
      instant = math.max(instant, (slots.room_at(lines.pace(at, channel))))
    end
    return instant
  end

  -- Whether the channel takes one post at a time: because of its pace, or because it has cooled down and no post has arrived
  -- yet.
  function lines.is_solo(at, channel)
    return channel.max ~= nil or plan.zscore(at.cooldowns, channel.name) ~= nil
  end

  -- The event whose post is in flight on a channel, or whose turn it is; nil if that event is gone.
  function lines.turn_of(at, channel)
    local id = plan.hget(at.posting, channel)
    if id and not plan.hget(at.events, id) then
      plan.hdel(at.posting, channel)
      return nil
    end
    return id
  end

  -- Sets when the head of the channel's line may pass; forgets a line that is empty.
  function lines.set(at, channel)
    if not plan.zfirst(channel.line) then
      plan.zrem(at.lines, channel.line_name)
      if plan.hget(at.turns, channel.name) then
        plan.hdel(at.turns, channel.name)
      end
    elseif lines.turn_of(at, channel.name) then
      plan.zadd(at.lines, math.huge, channel.line_name)
    else
      plan.zadd(at.lines, math.max(at.now, lines.free_at(at, channel)), channel.line_name)
    end
  end

  -- An admitted event leaves the line in which it waits, if it is there.
  function lines.leave(at, line, id)
    if plan.zrem(at.line_prefix .. line, id) and not plan.zfirst(at.line_prefix .. line) then
      plan.zrem(at.lines, line)
    end
  end

  -- Ends the post in flight (or the turn) of `id` on its channel.
  function lines.free(at, channel, id)
    if plan.hget(at.posting, channel) == id then
      plan.hdel(at.posting, channel)
      return true
    end
    return false
  end

  -- Ends the turn of an event on every channel. The header of an event that cannot be read does not name its channel, so all
  -- turns are read, once in a call.
  function lines.free_all(at, id)
    if not channels_of then
      channels_of = {}
      for channel, holder in pairs(plan.hgetall(at.posting)) do
        channels_of[holder] = channels_of[holder] or {}
        table.insert(channels_of[holder], channel)
      end
    end
    for _, channel in ipairs(channels_of[id] or {}) do
      if lines.free(at, channel, id) and plan.zscore(at.lines, 'channel:' .. channel) then
        plan.zadd(at.lines, at.now, 'channel:' .. channel)
      end
    end
  end

  -- The channels of a call, whose fields are positions of KEYS.
  function lines.channels(call)
    for _, channel in ipairs(call.channels) do
      channel.line, channel.line_name = KEYS[channel.line], 'channel:' .. channel.name
      channel.pace = channel.max and KEYS[channel.pace]
    end
    return call.channels
  end

  -- Plans what was charged to the paces of a call's channels.
  function lines.write(channels)
    for _, channel in ipairs(channels) do
      if channel.view then
        slots.write(channel.view)
      end
    end
  end
end)

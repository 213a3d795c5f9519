-- What events are about: a HASH for each subject, which is a category and a dedup_key.
--   e<SEQ>    "INSTANT REMEMBER ID SHOWN" of an event that tells of the failure, and waits or is in flight; at most MOST_LIVE
--   w<SEQ>    "INSTANT ID" of an event that tells of the recovery, and waits until one of these has ended
--   m<SEQ>    the message that this recovery is about, as JSON: while it waits the newest one before it, from then on the one
--             that it edits
--   by        "SEQ ID" of an event that edits the message, or is one, since it tells of the recovery
--   freed     SEQ of the last event that let the keys go since it tells of the recovery
--   over      "INSTANT SEQ" of the last recovery: an event from before it that was not admitted yet is not posted any more
--   posted    "INSTANT SEQ" of the event whose message is the newest; name: its ID; line: the channel as events name it;
--             sent: when it was posted; and, unless it went to a webhook, channel, ts and text, to edit it; count: its repeats, editable: from
--             when on another edit may follow theirs
--   once      names of scopes of include/slots.lua's kind 'once' that its events have taken, separated by blanks
-- Lives for the max_age of its category after the last event, and for KEPT_US after a message, of the newest MOST_KEPT messages.
--
-- INSTANT is when an event was created, or first seen if it does not say so or says a later instant. Of two of one instant the
-- one with the lower SEQ is the older. An instant that lies ahead says that the clock was stepped back since: then SEQ decides too.
--
-- `at` names the keys events, timers, editable (ZSET subject -> when its message was posted); subject_prefix; and now.
-- An `about` of a call: [subject, INSTANT: string, REMEMBER: 1 | 0, SHOWN: text and labels for the record, how long it is kept: us].
local subjects = module(function(subjects)
  local MOST_LIVE, MOST_KEPT, KEPT_US = 100, 10000, 604800000000
  local MESSAGE = { 'posted', 'name', 'line', 'sent', 'channel', 'ts', 'text', 'count', 'editable', 'once' }
  subjects.NAME, subjects.INSTANT, subjects.REMEMBER, subjects.SHOWN, subjects.SPAN = 1, 2, 3, 4, 5

  function subjects.key(at, about)
    return at.subject_prefix .. about[subjects.NAME]
  end

  -- Whether "INSTANT SEQ" is before this instant and number.
  function subjects.is_before(at, text, instant, seq)
    local its_instant, its_seq = string.match(type(text) == 'string' and text or '', '^(%d+) (%d+)')
    its_instant = number_of(its_instant)
    if its_instant and (its_instant == instant or math.max(its_instant, instant) > at.now) then
      return number_of(its_seq) < seq
    end
    return its_instant ~= nil and its_instant < instant
  end

  -- When the failure was over that a new event tells of, if it was created before that.
  function subjects.over(at, about, seq)
    local key = subjects.key(at, about)
    local over = plan.hget(key, 'over')
    if not over or plan.hget(key, 'e' .. digits(seq)) then -- the recovery has found it where it waits
      return nil
    end
    local instant, its_seq = string.match(over, '^(%d+) (%d+)$')
    local own = about[subjects.INSTANT] .. ' ' .. digits(seq)
    return instant and subjects.is_before(at, own, tonumber(instant), tonumber(its_seq)) and instant or nil
  end

  local pruned = {} -- keys

  -- Forgets events that have ended where nobody was told of it; once in a call, which lets none end so.
  local function prune(at, key)
    if pruned[key] then
      return
    end
    pruned[key] = true
    for field, value in pairs(plan.hgetall(key)) do
      local id = string.sub(field, 1, 1) == 'e' and string.match(value, '^%d+ [01] (%S+)')
      if id and not plan.hget(at.events, id) then
        plan.hdel(key, field)
      end
    end
  end

  -- The event waits or is in flight.
  function subjects.enter(at, about, seq, id)
    local key, field = subjects.key(at, about), 'e' .. digits(seq)
    if plan.hget(key, field) then
      return
    end
    if plan.hlen(key) >= MOST_LIVE then
      prune(at, key)
      if plan.hlen(key) >= MOST_LIVE then
        return
      end
    end
    plan.hset(key, field, table.concat({ about[subjects.INSTANT], about[subjects.REMEMBER], id, about[subjects.SHOWN] }, ' '))
    plan.keep_alive(key, about[subjects.SPAN], 2 * about[subjects.SPAN])
  end

  -- Of all fields those that say which message is the newest.
  function subjects.message_in(fields)
    local message = {}
    for _, field in ipairs(MESSAGE) do
      message[field] = fields[field]
    end
    return message
  end

  function subjects.forget_message(at, name)
    for _, field in ipairs(MESSAGE) do
      plan.hdel(at.subject_prefix .. name, field)
    end
    plan.zrem(at.editable, name)
  end

  -- Notes for each recovery that waits the newest message from before it: this one, or the one that was the newest until now.
  local function note_for_waiting(at, key, message, instant, seq)
    local fields = plan.hgetall(key)
    for field, value in pairs(fields) do
      local its_seq, its_instant = number_of(string.match(field, '^w(%d+)$')), number_of(string.match(value, '^(%d+) '))
      if its_seq and its_instant then
        local own = 'm' .. digits(its_seq)
        local known = fields[own] and json_of(fields[own])
        local newest = known or subjects.is_before(at, fields.posted, its_instant, its_seq) and subjects.message_in(fields)
        local is_newest = not newest or subjects.is_before(at, newest.posted, instant, seq)
        if is_newest and subjects.is_before(at, message.posted, its_instant, its_seq) then
          newest = message
        end
        if newest and newest ~= known then
          plan.hset(key, own, cjson.encode(newest))
        end
      end
    end
  end

  -- The message of an event is posted: "name", "line", and "channel", "ts", "text" where it can be edited.
  function subjects.note_message(at, about, seq, message)
    local name, key = about[subjects.NAME], subjects.key(at, about)
    local posted = about[subjects.INSTANT] .. ' ' .. digits(seq)
    message.posted, message.sent = posted, digits(at.now)
    note_for_waiting(at, key, message, tonumber(about[subjects.INSTANT]), seq)
    if plan.hget(key, 'posted') and not subjects.is_before(at, plan.hget(key, 'posted'), tonumber(about[subjects.INSTANT]), seq) then
      return
    end
    local once = plan.hget(key, 'once')
    subjects.forget_message(at, name)
    if once then
      plan.hset(key, 'once', once)
    end
    for field, value in pairs(message) do
      plan.hset(key, field, value)
    end
    plan.zadd(at.editable, at.now, name)
    plan.keep_alive(key, KEPT_US, KEPT_US + KEPT_US / 7)
    plan.keep_alive(at.editable, KEPT_US, KEPT_US + KEPT_US / 7)
    if redis.call('ZCARD', at.editable) >= MOST_KEPT then
      local oldest = plan.zfirst(at.editable)
      if oldest and oldest ~= name then
        subjects.forget_message(at, oldest)
      end
    end
  end

  -- The event has taken this scope of the kind 'once'.
  function subjects.note_once(at, about, scope)
    local key = subjects.key(at, about)
    local known = plan.hget(key, 'once')
    if not known then
      plan.hset(key, 'once', scope)
    elseif not string.find(' ' .. known .. ' ', ' ' .. scope .. ' ', 1, true) and #known < 1024 then
      plan.hset(key, 'once', known .. ' ' .. scope)
    end
  end

  -- The event has ended, or is parked: events that tell of the recovery, and waited for that, go on.
  function subjects.note_end(at, about, seq, has_ended)
    local key = subjects.key(at, about)
    for _, kind in ipairs(has_ended and { 'e', 'w', 'm' } or {}) do
      plan.hdel(key, kind .. digits(seq))
    end
    if has_ended and string.match(plan.hget(key, 'by') or '', '^%d+') == digits(seq) then
      plan.hdel(key, 'by')
    end
    for field, value in pairs(plan.hgetall(key)) do
      local id = string.sub(field, 1, 1) == 'w' and string.match(value, ' (.*)$')
      if id and (plan.zscore(at.timers, id) or 0) > at.now then
        plan.zadd(at.timers, at.now, id)
      end
    end
  end
end)

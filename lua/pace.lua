-- The second step for admitted events: may the post start now? If so the event is marked `sending` before the request
-- leaves; if not it is parked in its channel's line and holds its slots, so that its attempt finds room.
--
-- KEYS      1 events    HASH  id -> record (include/record.lua)
--           2 leased    SET   ids that this owner holds
--           3 parked    ZSET  id -> deadline
--           4 lines     ZSET  line -> instant at which its head may pass
--           5 timers    ZSET  id -> its instant
--           6 posting   HASH  channel -> id whose post is in flight or whose turn it is
--           7 cooldowns ZSET  channel -> end of its cool-down
--           8 pause     HASH  why nobody posts (include/pause.lua); absent otherwise
--           9 totals    HASH  the books
--          10 names     SET   category names counted that no limits file knows
--          11 wake      LIST  a token for one sleeper
--          12 deciding  HASH  what each owner is deciding (include/deferred.lua)
--          13 paused    HASH  "*" or category -> JSON, what is paused by hand
--          14 version   STRING the limits in force (include/version.lua)
--          15 ...       the keys that "channels" and "events" point to
-- ARGV[1]   JSON {"now": us | absent, "owner", "free": posts this worker can start, "line", "scope": prefixes of keys,
--           "version": of the limits | absent,
--           "channels": [{"name", "line": KEYS position, "pace": KEYS position, "max", "window_us"}, ...]
--             line    ZSET  id -> seq, what waits for this channel
--             pace    ZSET  slots of the channel's pace, charged at each reply (include/slots.lua); max absent: no pace
--           "events": [{"id", "channel": position in channels, "category", "configured", "attempt", "deadline": string,
--             "slot": id of its slots, "scopes": [KEYS position of each scope's slots, ...],
--             "holds": [those of them in which it holds its slot while it waits, ...],
--             "of": category that an own event, which has none, waits with | absent,
--             "thread": name of its thread | absent, "shadow": [limit that would have refused it, ...] | absent}, ...],
--           "threads": {"names", "roots": KEYS positions, "keep_us"} (include/threads.lua) | absent}
-- Returns   JSON {"now", "events": ["go" | ["go", ts] | ["pace" | "cooldown" | "paused", wait_us | null] | "lost", ...]}
--           go: marked as sending, post now; with a ts, under that message. lost: the lease was taken over, leave it alone.
--           {"stale": version in force} when another one than the call's is: nothing was changed.
-- Keys of slots are built from names in the header: those of limits that have changed (include/holds.lua).
-- The same call again after a lost reply gives the same answers for what went.
-- @include prelude
-- @include record
-- @include slots
-- @include lines
-- @include books
-- @include deferred
-- @include pause
-- @include threads
-- @include version
-- @include holds

local events, leased, parked, posting, pause = KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[8]
local keys = { lines = KEYS[4], timers = KEYS[5], posting = posting, cooldowns = KEYS[7] }
local call = cjson.decode(ARGV[1])
local is_stale = stale(KEYS[14], call.version)
if is_stale then
  return is_stale
end
local now = microseconds(call.now)
local free = call.free
local names = { deciding = KEYS[12] }
local paused = redis.call('EXISTS', KEYS[13]) == 1 and KEYS[13]
local threads = threads_of(call, now)
local before = first_instant(keys.lines, keys.timers)
redis.call('HDEL', posting, '') -- a first write that a full server allows: after it the rest is allowed too

for _, channel in ipairs(call.channels) do
  channel.line = KEYS[channel.line]
  channel.line_name = 'channel:' .. channel.name
  channel.pace = channel.max and KEYS[channel.pace]
end

-- Why and until when the event has to wait; nothing when it may go. `inf`: until the post in flight is answered.
local function obstacle(event, seq, channel)
  if paused and redis.call('HEXISTS', paused, '*') == 1 then
    return 'paused', math.huge
  end
  local why, probe = paused_until(pause, event.id, now)
  if why then
    return why, probe
  end
  local cooldown = tonumber(redis.call('ZSCORE', keys.cooldowns, channel.name))
  if cooldown and cooldown > now then
    return 'cooldown', cooldown
  end
  local busy = is_solo(channel, keys.cooldowns) and redis.call('HGET', posting, channel.name)
  if busy and busy ~= event.id then
    return 'pace', math.huge
  end
  local head = redis.call('ZRANGE', channel.line, 0, 0, 'WITHSCORES')
  if head[2] and tonumber(head[2]) < seq then
    return 'pace', math.huge
  end
  local at = channel_free_at(channel, keys.cooldowns, now)
  if at > now then
    return 'pace', at
  end
  if free < 1 or (channel.max and earlier_undecided(names, call.owner, seq, now)) then
    return 'pace', now
  end
end

-- Parks an event for its channel; one of a category that is paused by hand in a line of its own, so that it is in nobody's way.
local function park(event, header, channel)
  header.state, header.held = 'waiting', true
  note_holds(header, event, call.scope)
  local line = channel.line
  if paused and redis.call('HEXISTS', paused, event.of or event.category) == 1 then
    header.entry = 'paused:' .. (event.of or event.category)
    line = call.line .. header.entry
    redis.call('ZADD', keys.lines, 'inf', header.entry)
  end
  redis.call('ZADD', line, digits(header.seq), event.id)
  redis.call('ZADD', parked, event.deadline, event.id)
  redis.call('SREM', leased, event.id)
  for _, scope in ipairs(event.holds) do
    hold_slot(KEYS[scope], event.slot, tonumber(event.deadline), now)
  end
  count(KEYS[9], 'parked', header.counted, 1)
  free_channel(posting, channel.name, event.id)
end

-- Go: under the first message of its thread, where it names one that had begun when it was started.
local function go(header)
  return header.root and '["go",' .. cjson.encode(header.root) .. ']' or '"go"'
end

local results = {}
for n, event in ipairs(call.events) do
  if redis.call('SISMEMBER', leased, event.id) == 0 then
    results[n] = '"lost"'
  else
    local channel = call.channels[event.channel]
    local header, payload = read_record(redis.call('HGET', events, event.id))
    if header.state == 'sending' and header.attempt == event.attempt then
      results[n] = go(header)
    else
      local reason, at
      if paused and redis.call('HEXISTS', paused, event.of or event.category) == 1 then
        reason, at = 'paused', math.huge
      else
        reason, at = obstacle(event, header.seq, channel)
      end
      header.category, header.channel, header.line, header.rank = event.category, channel.name, nil, nil
      header.counted = counted_name(KEYS[10], event.category, event.configured)
      header.deadline, header.solo, header.shadow = event.deadline, channel.max ~= nil, event.shadow
      let_go(header, event, call.scope)
      if not reason then
        header.state, header.attempt, header.held = 'sending', event.attempt, nil
        header.sent = digits(now)
        header.first = header.first or header.sent
        header.root = event.thread and root_of(threads, event.thread) or nil
        if is_solo(channel, keys.cooldowns) then
          redis.call('HSET', posting, channel.name, event.id)
        end
        let_try(pause, event.id, now)
        free = free - 1
        results[n] = go(header)
      else
        park(event, header, channel)
        results[n] = string.format('["%s",%s]', reason, at < math.huge and digits(at - now) or 'null')
      end
      write_record(events, event.id, header, payload)
      set_line(channel, keys, now)
    end
  end
end
if first_instant(keys.lines, keys.timers) < before then
  ring(KEYS[11])
end
return string.format('{"now":%.0f,"events":[%s]}', now, table.concat(results, ','))

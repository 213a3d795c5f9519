-- The second step for admitted events: may the post start now? If yes, the event is marked `sending` before the request leaves.
-- If no, the event is parked in its channel's line and holds its slots, so that its attempt finds room.
--
-- @keys events leased parked lines timers posting cooldowns pause totals names wake deciding paused limits_version turns
-- @keys failing failures denials requeued freed scheduled
-- @prefixes line waits scope minute
-- KEYS      as in take.lua; then the keys that "channels" and "events" point to
-- ARGV[1]   JSON {"now": us | absent, "owner", "free": posts this worker can start, "version": of the limits | absent,
--           "decided": true: with these events the owner has decided all that it took | absent,
--           "channels": [{"name", "line": KEYS position, "pace": KEYS position, "max", "window_us"}, ...]
--             line    ZSET  id -> score (include/lines.lua), the events that wait for this channel
--             pace    ZSET  slots of the channel's pace, charged at each reply (include/slots.lua); max absent: no pace
--           "events": [{"id", "channel": position in channels, "category", "configured", "attempt", "deadline": string,
--             "scopes": [KEYS position of each scope's slots, ...], "guarantee": that of its category's guarantee | absent,
--             "priority": "high" | "normal" | "low",
--             "holds": [those of "scopes" in which the event holds its slot while it waits, ...],
--             "stood_by": [its shortest, its longest window in us, those of "scopes" in which it must have a slot], if time has passed
--             since the gate admitted it: its slots move to now, and if one has left a window, it is parked and asks the gate again | absent,
--             "of": the category that a digest message tells of; the message waits with it | absent,
--             "thread": name of its thread | absent, "shadow": [limit that would have refused it, ...] | absent}, ...],
--           "threads": {"names", "roots": KEYS positions, "keep_us"} (include/threads.lua) | absent}
-- Returns   JSON {"events": ["go" | ["go", ts] | ["pace" | "cooldown" | "paused", wait_us | null] | "lost", ...]}
--           go: marked as sending, post now; with a ts, under that message. lost: this worker holds it no more: its lease was
--           taken over, or its header cannot be read and it is the next to be taken.
--           {"stale": version in force} if that is not the call's: nothing was changed.
-- Keys of the slots of limits that have changed are built from the names in the header.
-- The same call, repeated after a lost reply, gives the same answers for events that go.
-- @include prelude
-- @include plan
-- @include record
-- @include slots
-- @include accounting
-- @include lines
-- @include deferred
-- @include leases
-- @include pause
-- @include threads

local call = cjson.decode(ARGV[1])
local at = K
local is_stale = stale(at.limits_version, call.version)
if is_stale then
  return is_stale
end
at.now = microseconds(call.now)
at.owner = call.owner
local free = call.free
local is_paused = redis.call('EXISTS', at.paused) == 1
local thread_keys = threads.of(call, at.now)
local channels = lines.channels(call)

local function is_paused_by_hand(what)
  return is_paused and plan.hget(at.paused, what) ~= nil
end

-- Whether a slot of an event that stood by has left a window, where others may have taken the room: the clock was stepped
-- forward, or the worker stood still.
local function has_left(event, header)
  local shortest_us, _, needed = unpack(event.stood_by)
  for _, scope in ipairs(needed) do
    local charged = plan.zscore(KEYS[scope], slots.member(KEYS[scope], record.slot(header), event.id))
    if not charged or charged + shortest_us <= at.now then
      return true
    end
  end
  return false
end

-- Why and until when the event must wait; nothing if it may go. `math.huge`: until the post in flight is answered.
local function obstacle(event, header, channel)
  if is_paused_by_hand(event.of or event.category) or is_paused_by_hand('*') then
    return 'paused', math.huge
  end
  pause.hasten(at, channel.name)
  local why, probe = pause.until_of(at, event.id)
  if why then
    return why, probe
  end
  local cooldown = plan.zscore(at.cooldowns, channel.name)
  if cooldown and cooldown > at.now then
    return 'cooldown', cooldown
  end
  local turn = lines.turn_of(at, channel.name)
  if turn == event.id then -- the event has waited for this turn
    turn = nil
  else
    local is_solo = lines.is_solo(at, channel)
    if turn and is_solo then
      return 'pace', math.huge
    end
    local was_handed_out = header.held and not is_solo -- out of the line, whose turn it was, or from its timer
    if not was_handed_out and lines.goes_before(at, channel, header) then
      return 'pace', math.huge
    end
  end
  local instant = lines.free_at(at, channel)
  if instant > at.now then
    return 'pace', instant
  end
  if event.stood_by and has_left(event, header) then
    return 'pace', at.now
  end
  if free < 1 or (channel.max and deferred.earlier_undecided(at, header.seq)) then
    return 'pace', at.now
  end
end

-- Parks an event for its channel. An event of a category that is paused by hand goes into a line of its own, where it delays
-- no other event.
local function park(event, header, channel, reason)
  header.state, header.held, header.why = 'waiting', true, { reason, cjson.null }
  leases.note_slots(at, header, event)
  local line = channel.line
  if is_paused_by_hand(event.of or event.category) then
    header.entry = 'paused:' .. (event.of or event.category)
    line = at.line_prefix .. header.entry
    plan.zadd(at.lines, math.huge, header.entry)
  end
  plan.zadd(line, lines.score(header), event.id)
  plan.zadd(at.parked, tonumber(event.deadline), event.id)
  plan.srem(at.leased, event.id)
  for _, scope in ipairs(event.holds) do
    slots.hold(KEYS[scope], slots.member(KEYS[scope], record.slot(header), event.id), tonumber(event.deadline), at.now)
  end
  accounting.park(at, header, reason)
  lines.free(at, channel.name, event.id)
end

-- Moves the slots of an event that stood by to now. They still count in each window of its limits, so there is room for them.
-- A shadow limit may be exceeded, as it is not enforced.
local function move_slots(header, event)
  for _, scope in ipairs(event.scopes) do
    slots.move(KEYS[scope], slots.member(KEYS[scope], record.slot(header), event.id), at.now, event.stood_by[2])
  end
end

-- The answer go. An event that names a thread goes under the thread's first message, if the thread had begun when the event
-- was started.
local function go(header)
  return header.root and '["go",' .. cjson.encode(header.root) .. ']' or '"go"'
end

local function start(event)
  local channel = channels[event.channel]
  local header, payload, malformed = record.read(at, event.id)
  if malformed then
    leases.set_apart(at, event.id)
    return '"lost"'
  end
  if header.state == 'sending' and header.attempt == event.attempt then
    return go(header)
  end
  if header.channel and header.channel ~= channel.name then -- it goes to another channel than the one it waited for
    lines.free_all(at, event.id)
    if header.channel == lines.EDITS then -- a recovery that waited for its edit becomes a message: that was never admitted
      header.held = nil
    end
  end
  local is_counted = header.held and not header.solo -- the line of a channel without a pace counts the turns that it hands out
  header.category, header.channel, header.line, header.rank = event.category, channel.name, nil, nil
  accounting.give_name(at, header, event.category, event.configured)
  header.deadline, header.shadow = event.deadline, event.shadow
  header.solo, header.pace = channel.max ~= nil, channel.window_us
  lines.class(header, event, pause.has_failed(at, header, channel.name))
  local reason, instant = obstacle(event, header, channel)
  leases.let_go(at, event.id, header, leases.own_slots(header, event))
  local answer
  if not reason then
    header.state, header.attempt, header.held, header.posts = 'sending', event.attempt, nil, (header.posts or 0) + 1
    header.sent = digits(at.now)
    header.first = header.first or header.sent
    header.root = event.thread and threads.root(thread_keys, event.thread) or nil
    leases.note_slots(at, header, event)
    header.holds = nil
    if event.stood_by then
      move_slots(header, event)
    end
    if not is_counted and plan.hget(at.posting, channel.name) ~= event.id and plan.zfirst(channel.line) then
      lines.count_turn(at, channel.name) -- the event has overtaken the line
    end
    if lines.is_solo(at, channel) then
      plan.hset(at.posting, channel.name, event.id)
    end
    pause.let_try(at, event.id)
    free = free - 1
    answer = go(header)
  else
    park(event, header, channel, reason)
    answer = string.format('["%s",%s]', reason, instant < math.huge and digits(instant - at.now) or 'null')
  end
  record.write(at, event.id, header, payload)
  lines.set(at, channel)
  return answer
end

if call.decided and deferred.decided(at, call.owner) and plan.zlowest(at.lines) <= at.now then
  plan.ring(at.wake) -- others may have waited for the decision of this owner
end
local results = {}
for n, event in ipairs(call.events) do
  results[n] = plan.sismember(at.leased, event.id) and start(event) or '"lost"'
end
lines.write(channels)
lines.ring_if_earlier(at)
accounting.write_counts(at)
plan.commit(at.posting)
return '{"events":[' .. table.concat(results, ',') .. ']}'

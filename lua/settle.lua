-- Makes what became of events durable: the end of an event, or the place where it waits next; with its lease, slots,
-- channel, dead letter and the books in one step.
--
-- KEYS      1 to 11 as in pace.lua (events leased parked lines timers posting cooldowns pause totals names wake)
--          12 seen      ZSET    id -> instant at which a settled id is forgotten; lives as long as its last member
--          13 dead      STREAM  dead letters, oldest first
--          14 dead_ids  HASH    id -> entry of its dead letter
--          15 16 17 18  HASH    the decision record (include/decisions.lua): limited, its older part, others, their older part
--          19 deciding, 20 freed  HASH  see include/deferred.lua
--          21 failures  STRING  posts in a row that did not reach Slack; lives an hour
--          22 places    HASH    channel as events name it -> Slack's id of it; permanent
--          23 version   STRING  the limits in force (include/version.lua)
--          24 seq STRING, 25 tallies SET  see include/tally.lua; 26 dead_bytes STRING  see include/dead.lua
--          27 ...       the keys that "channels" and "events" point to
-- ARGV[1]   JSON {"now": us | absent, "remember_us", "dead": {"max", "max_age_us", "max_bytes"} bounds of the dead letters,
--           "most_decisions", "scope", "waits": prefixes of keys, "version": of the limits | absent; by others than those in
--             force nothing is found out about when to ask again, so that is now,
--           "channels": as in pace.lua,
--           "events": [{"id", "category", "configured", "outcome": "sent" | "dropped" | "dead" | "parked" | "told",
--             "slot", "scopes": [...], "holds": [...] as in pace.lua,
--             "slots": "keep" | "hold" | "release",
--             "remember": true: a repeat of this id is a duplicate for remember_us,
--             "why": JSON text for the decision record | absent, "limited": true: a limit suppressed it,
--             "channel": position | absent, "replied": true: the channel answered, charge its pace,
--             "cooldown_us": nobody posts to the channel for so long, "reading_us": nobody reads history for so long,
--             "said": {"code", "detail"} of Slack or the network,
--             "pause": true: an operator is needed, "reached": true: Slack answered, "failed": true: it was not reached,
--             "resume": true: a post succeeded, "spared": attempts used if this is an outage | absent,
--             "channel_id": Slack's id of the channel | absent,
--             "thread": name of its thread | absent, "ts": of its message, if it is one,
--             "letter": {field: string, ...} of a dead letter; the payload is added here,
--             "place": "line" | "timer" | "look": a timer counted from the post, "wait_us", "deadline": string, "attempt",
--             "unknown", "resent", "doubt": readings that failed while its fate is to be looked up: of what is parked,
--             "why_parked": [reason, code | null] of what waits on a timer,
--             of which one that a limit refused goes at once by other limits,
--             "tally": {"id", "key": position, "delay_us", "samples"} | absent: counts what a limit ends, or
--             {"key": position} of an own event, of which "told" says what it has done (include/tell.lua)}, ...],
--           "threads": as in pace.lua}
-- Returns   JSON {"now", "settled": [1 | 0, ...], "trimmed": dead letters lost to their bounds, "turned": [{"began": kind,
--           "code", "detail"} | {"ended": kind}, ...] pauses}; 0: the lease was taken over, nothing was changed
-- Keys of slots are also built from names in the header: those of limits that have changed (include/holds.lua).
-- @include prelude
-- @include record
-- @include slots
-- @include lines
-- @include books
-- @include dead
-- @include deferred
-- @include decisions
-- @include dropping
-- @include pause
-- @include threads
-- @include version
-- @include holds
-- @include tally
-- @include tell

local MOST_TRIMMED = 200 -- dead letters in one call

local events, leased, parked, posting, pause = KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[8]
local totals, seen = KEYS[9], KEYS[12]
local keys = { lines = KEYS[4], timers = KEYS[5], posting = posting, cooldowns = KEYS[7] }
local limited, others = {}, {} -- id, decision, ...
local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local before = first_instant(keys.lines, keys.timers)
redis.call('HDEL', posting, '') -- a first write that a full server allows: after it the rest is allowed too
local threads = threads_of(call, now)
local is_stale = stale(KEYS[23], call.version)

for _, channel in ipairs(call.channels) do
  channel.line = KEYS[channel.line]
  channel.line_name = 'channel:' .. channel.name
  channel.pace = channel.max and KEYS[channel.pace]
end

local function park(event, header, payload)
  header.state, header.category, header.deadline = 'waiting', event.category, event.deadline
  header.attempt, header.unknown = event.attempt, event.unknown
  header.doubt, header.resent = event.doubt, event.resent
  header.held = event.slots == 'hold' or nil
  if header.held then
    note_holds(header, event, call.scope)
  end
  local ends = tonumber(event.deadline)
  if event.place ~= 'line' then
    local from = event.place == 'look' and tonumber(header.sent) or now
    local is_limited = string.find(event.why_parked[1], '^limit:')
    local due = is_limited and is_stale and now or math.max(now, from + event.wait_us)
    header.timer, header.why = true, event.why_parked
    redis.call('ZADD', keys.timers, digits(due), event.id)
    ends = event.doubt and math.max(ends, due) or ends -- what is to be looked up is no sooner at its end
  else
    redis.call('ZADD', call.channels[event.channel].line, digits(header.seq), event.id)
  end
  redis.call('ZADD', parked, digits(ends), event.id)
  write_record(events, event.id, header, payload)
end

local function turn_channel(event, channel)
  free_channel(posting, channel.name, event.id)
  if event.replied and channel.max then
    local pace = open_scope(channel.pace, { { channel.max, channel.window_us } }, now)
    pace.added, pace.adding = { event.id .. ' ' .. digits(now) }, 1
    write_slots(pace)
  end
  local cooldown = event.replied and redis.call('ZSCORE', keys.cooldowns, channel.name)
  if cooldown and tonumber(cooldown) <= now then
    redis.call('ZREM', keys.cooldowns, channel.name)
  end
end

local function note_reach(at, event, channel)
  if event.pause then
    begin_pause(at, 'operator', event.said, now + PROBES_US.operator)
  elseif event.failed then
    if note_failure(at, event.id, event.said) and event.spared then
      event.attempt = event.spared
    end
  elseif event.reached then
    if event.cooldown_us then
      cool_down(at, channel.name, event.cooldown_us, event.said)
    else
      note_answer(at, event.id, event.resume, event.replied)
    end
  else
    pass_try(at, event.id)
  end
  if event.reading_us then
    redis.call('ZADD', keys.cooldowns, 'GT', digits(now + event.reading_us), READING)
    keep_alive(keys.cooldowns, event.reading_us + COOLED_US)
  end
  if event.channel_id then
    redis.call('HSET', KEYS[22], channel.name, event.channel_id)
  end
end

local at = {
  pause = pause, failures = KEYS[21], cooldowns = keys.cooldowns, wake = KEYS[11],
  seen = seen, lines = keys.lines, deciding = KEYS[19], freed = KEYS[20], waits = call.waits, now = now,
  remember_us = call.remember_us, events = events, parked = parked, timers = keys.timers, totals = totals, seq = KEYS[24],
  tallies = KEYS[25],
}
local planned = {}
local letters = {
  dead = KEYS[13], dead_ids = KEYS[14], dead_bytes = KEYS[26], now = now,
  write = function(...) planned[#planned + 1] = { ... } end,
}
local settled = {}
for n, event in ipairs(call.events) do
  settled[n] = redis.call('SREM', leased, event.id)
  if settled[n] == 1 then
    local channel = call.channels[event.channel]
    local name = counted_name(KEYS[10], event.category, event.configured)
    for _, scope in ipairs(event.slots == 'hold' and event.holds or {}) do
      hold_slot(KEYS[scope], event.slot, tonumber(event.deadline), now)
    end
    for _, scope in ipairs(event.slots == 'release' and event.scopes or {}) do
      if release_slot(KEYS[scope], event.slot) == 1 then
        reopen_scope(at, string.sub(KEYS[scope], #call.scope + 1))
      end
    end
    local header, payload = read_record(redis.call('HGET', events, event.id))
    header.counted = name
    let_go(header, event, call.scope)
    if channel then
      header.channel, header.solo = channel.name, channel.max ~= nil
    elseif header.channel then -- it cannot be read at its turn
      free_channel(posting, header.channel, event.id)
      redis.call('ZADD', keys.lines, 'XX', digits(now), 'channel:' .. header.channel)
    end
    note_reach(at, event, channel)
    if event.outcome == 'parked' then
      park(event, header, payload)
    elseif event.outcome == 'told' then
      tell(at, event.id, KEYS[event.tally.key], event.told, header)
    else
      redis.call('HDEL', events, event.id)
    end
    if event.outcome == 'dead' then
      bury(letters, event.id, event.letter, payload)
    end
    if event.tally and event.outcome ~= 'told' then
      event.tally.key = KEYS[event.tally.key]
      suppress(at, event.tally, 1, event.why, event.tally.samples)
    end
    count(totals, event.outcome, name, 1)
    if event.remember then
      remember(at, { event.id })
    end
    if event.thread and event.ts then
      begin_thread(threads, event.thread, event.ts)
    end
    if event.why then
      local rows = event.limited and limited or others
      rows[#rows + 1] = event.id
      rows[#rows + 1] = digits(now) .. ' ' .. event.why
    end
    if channel then
      turn_channel(event, channel)
      set_line(channel, keys, now)
      if is_stale and (tonumber(redis.call('ZSCORE', keys.lines, channel.line_name) or nil) or math.huge) < math.huge then
        redis.call('ZADD', keys.lines, digits(now), channel.line_name)
      end
    end
  end
end
if #limited > 0 then
  record_decisions(KEYS[15], KEYS[16], limited, call.most_decisions)
end
if #others > 0 then
  record_decisions(KEYS[17], KEYS[18], others, call.most_decisions)
end
if first_instant(keys.lines, keys.timers) < before then
  ring(KEYS[11])
end
local trimmed = letters.buried and trim_dead(letters, call.dead, MOST_TRIMMED) or 0
write_letters(letters)
for _, command in ipairs(planned) do
  redis.call(unpack(command))
end
local turns = #turned > 0 and cjson.encode(turned) or '[]'
return string.format('{"now":%.0f,"settled":[%s],"trimmed":%d,"turned":%s}', now, table.concat(settled, ','), trimmed, turns)

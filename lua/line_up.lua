-- Deferred events stand in line: newcomers behind those that wait already, and whoever the gate refused.
--
-- KEYS      1 events    HASH  id -> record (include/record.lua)
--           2 leased    SET   ids that this owner holds
--           3 parked    ZSET  id -> deadline
--           4 lines     ZSET  'channel:NAME' | 'scope:NAME' -> instant at which the next may pass
--           5 timers    ZSET  id -> its instant
--           6 totals    HASH  the books
--           7 names     SET   category names counted that no limits file knows
--           8 wake      LIST  a token for one sleeper
--           9 awaited, 10 deferred, 11 deciding, 12 freed: HASH, see include/deferred.lua
--          13 version   STRING the limits in force (include/version.lua); 14 seq STRING, 15 tallies SET  see include/tally.lua
--          16 ...       the slots of the scopes (ZSET) and the tallies (HASH) that "events" point to
-- ARGV[1]   JSON {"now": us | absent, "owner", "line", "waits", "scope": prefixes of keys, "version": of the limits | absent,
--           "events": [{"id", "seq", "category", "configured", "line", "priority": "high" | "normal" | "low", "max": most of its
--             category that may wait, "deadline": string,
--             "scope": what refused it and "wait_us": until that has room; absent: not asked for yet,
--             "slot", "release": [KEYS position, ...] slots to give back | absent,
--             "tally": {"id", "key": KEYS position, "delay_us", "why", "samples"} | absent: counts it, if it stands for the first
--             time}, ...]}
-- Returns   JSON {"events": ["go" | "full" | "lost" | ["parked", scope, wait_us | null], ...]}
--           go: nobody waits before it, ask the gate. full: as many of its category wait as may. lost: the lease was taken
--           over. The last two, and go, change nothing. wait_us is null while others are deciding about the scope.
--           {"stale": version in force} when another one than the call's is: nothing was changed.
-- Keys of lines and of what waits for a scope are built from names: a line moves to the scope that refused its head.
-- @include prelude
-- @include record
-- @include slots
-- @include books
-- @include lines
-- @include deferred
-- @include version
-- @include tally

local events, leased, lines, timers = KEYS[1], KEYS[2], KEYS[4], KEYS[5]
local call = cjson.decode(ARGV[1])
local is_stale = stale(KEYS[13], call.version)
if is_stale then
  return is_stale
end
local now = microseconds(call.now)
local at = {
  events = events, parked = KEYS[3], lines = lines, totals = KEYS[6],
  awaited = KEYS[9], deferred = KEYS[10], deciding = KEYS[11], freed = KEYS[12], line = call.line,
  waits = call.waits, owner = call.owner, now = now, timers = timers, seq = KEYS[14], tallies = KEYS[15],
}
redis.call('HDEL', at.awaited, '') -- a first write that a full server allows: after it the rest is allowed too
local before = first_instant(lines, timers)

local function place_of(line)
  local scope = redis.call('HGET', at.awaited, line)
  local instant = tonumber(redis.call('ZSCORE', lines, 'scope:' .. scope) or nil)
  local wait = instant and instant < math.huge and digits(math.max(0, instant - now)) or 'null'
  return string.format('["parked",%s,%s]', cjson.encode(scope), wait)
end

local function waits_before(event)
  local head = redis.call('ZRANGE', call.line .. event.line, 0, 0, 'WITHSCORES')[2]
  return head and tonumber(head) < RANKS[event.priority] * RANK + event.seq
end

local answers, released = {}, {}
for n, event in ipairs(call.events) do
  if redis.call('SISMEMBER', leased, event.id) == 0 then
    answers[n] = '"lost"'
  elseif not event.scope and not waits_before(event) and not earlier_undecided(at, call.owner, event.seq, now) then
    answers[n] = '"go"'
  else
    local header, payload = read_record(redis.call('HGET', events, event.id))
    local waiting = tonumber(redis.call('HGET', at.deferred, event.category) or nil) or 0
    if waiting >= event.max and not header.line then
      answers[n] = '"full"'
    else
      redis.call('SREM', leased, event.id)
      for _, scope in ipairs(event.release or {}) do
        if release_slot(KEYS[scope], event.slot) == 1 then
          released[#released + 1] = string.sub(KEYS[scope], #call.scope + 1)
        end
      end
      if event.tally and not header.line then
        event.tally.key = KEYS[event.tally.key]
        suppress(at, event.tally, 1, event.tally.why, event.tally.samples)
      end
      header.category, header.deadline = event.category, event.deadline
      header.counted = counted_name(KEYS[7], event.category, event.configured)
      header.line, header.rank = event.line, RANKS[event.priority]
      stand(at, event.id, header, payload, event.scope, event.scope and now + event.wait_us)
      answers[n] = place_of(event.line)
    end
  end
end
for _, scope in ipairs(released) do
  reopen_scope(at, scope)
end
if first_instant(lines, timers) < before then
  ring(KEYS[8])
end
return '{"events":[' .. table.concat(answers, ',') .. ']}'

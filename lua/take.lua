-- Takes events for one worker, under its lease: what waited and is due, what dead workers left, then new ones from
-- the lanes. At no instant is an event in no structure.
--
-- KEYS      1 events      HASH    id -> record (include/record.lua); an event's, from first sight until it is settled
--           2 leases      ZSET    owner -> end of its lease
--           3 leased      SET     ids that this owner holds; gone when empty
--           4 orphans     ZSET    id -> seq, events whose lease ended, next to be taken, in order
--           5 parked      ZSET    id -> deadline, everything that waits
--           6 lines       ZSET    'channel:NAME' | 'scope:NAME' -> instant at which the next may pass (include/lines.lua)
--           7 timers      ZSET    id -> its instant
--           8 posting     HASH    channel -> id whose post is in flight or whose turn it is
--           9 pause       HASH    why nobody posts (include/pause.lua); absent otherwise
--          10 beat        HASH    at (last call of any worker), grace (until then nobody is taken over)
--          11 seq         STRING  counter of first sights; permanent
--          12 totals      HASH    the books (include/books.lua); permanent
--          13 seen        ZSET    id -> instant at which a settled id is forgotten
--          14 dead_ids    HASH    id -> entry of the dead letter
--          15 suspended   RQ's key that suspends all workers
--          16 17 18       LIST    the lanes high, normal, low (RQ's queues)
--          19 awaited     HASH    line of a category -> scope it waits for (include/deferred.lua)
--          20 deferred    HASH    category -> how many stand in its lines
--          21 deciding    HASH    owner -> JSON {seq, since, scopes, freed, nth} of what it has not decided
--          22 wake        LIST    a token for one sleeper
--          23 24 25 26    HASH    the decision record (include/decisions.lua): limited, its older part, others, their older part
--          27 freed       HASH    scope -> number of the last slot that became free, while somebody is deciding; '' -> how many
--          28 paused      HASH    "*" or category -> JSON, what is paused by hand
--          29 cooldowns   ZSET    channel -> end of its cool-down; also of reading what was posted
--          30 places      HASH    channel as events name it -> Slack's id of it; permanent
--          31 version     STRING  the limits in force (include/version.lua)
--          32 muted       HASH    category -> JSON (mute.lua); absent unless something is muted
--          33 tallies     SET     see include/tally.lua
--          34 names       SET     categories that the books name; permanent
--          35 ...         ZSET    the scopes of ARGV[2] (include/slots.lua)
-- ARGV[1]   JSON {"now": us | absent, "owner", "lease_us", "new": most orphans and new events, "due": most waiting events that are
--           due, "leased", "line", "waits", "tally": prefixes of keys, "most_decisions", "grace_us": from a post of unknown fate
--           until it is looked up,
--           "opened": {scope: [instant, room]} | absent: of scopes that this owner asked for what it took the last time, from
--           when on one more may pass and how many at once,
--           "undecided": {"seq", "freed"} of what this owner took before and is still deciding, as that answer had them | absent:
--             then nothing older is handed out that it could overtake, no heads of categories' lines and no orphans, and
--             nothing that has to be taken alone,
--           "starts": true for the first take of a worker,
--           "version": of the limits by which "opened" and ARGV[2] were found | absent; by others they say nothing,
--           "adopt": {"id", "payload"} | absent: enter this one event instead of popping the lanes,
--           "remember_us": as in settle.lua}
-- ARGV[2]   absent, or what include/door.lua has to know to drop new events as they are taken
-- Returns   [JSON {"now", "version": in force | null, "next": us | null (next instant at which something may be taken), "more": lanes hold more,
--           "suspended", "muted": {category: JSON} | absent, "duplicates": [id, ...],
--           "refused": [[category, position of the scope, of its window, us until there is room, "id id ..."], ...] | null: dropped at
--           the door, "from": what is taken here and later has no lower seq; null where it is to be decided before anything else is
--           taken, "freed": of include/deferred.lua, "nth": of the calls in a row with "undecided"; 0 without,
--           "ids": of what was taken, parted by blanks, "sizes": [bytes of each record, ...],
--           "seqs": [seq of one that is new, whose record is its payload alone; else 0, ...]}, the records]
-- The names rq:job:<id> (HASH, RQ's, deleted here), leased, line, waits and tally keys are built from what was found: the one
-- exception to keys through KEYS. All but RQ's share the namespace's hash tag.
-- @include prelude
-- @include record
-- @include lease
-- @include books
-- @include lines
-- @include deferred
-- @include leaving
-- @include pause
-- @include looking
-- @include takeover
-- @include decisions
-- @include dropping
-- @include slots
-- @include decide

local events, leases, leased, orphans, parked = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local lines, timers, posting, pause, beat = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local totals = KEYS[12]
local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local at = {
  events = events, leases = leases, orphans = orphans, parked = parked, lines = lines, timers = timers,
  posting = posting, totals = totals, awaited = KEYS[19], deferred = KEYS[20], deciding = KEYS[21],
  freed = KEYS[27], grace_us = call.grace_us, line = call.line, waits = call.waits, owner = call.owner, now = now,
}
-- @include hand_out

-- What may be refused (an ACL without rq:job:*, a key of another type) is refused before the first write. That write
-- is one that a full server allows; after it the rest is allowed too, and taking is what empties it.
redis.call('EXISTS', 'rq:job:' .. call.owner)
for i = 16, 18 do
  redis.call('LLEN', KEYS[i])
end
for _, key in ipairs({ totals, KEYS[23], KEYS[24], KEYS[25], KEYS[26], KEYS[27] }) do
  redis.call('HLEN', key)
end
redis.call('SCARD', leased)
redis.call('SCARD', KEYS[34])
local any_event, any_seen = redis.call('HLEN', events) > 0, redis.call('ZCARD', KEYS[13]) > 0
local any_dead, any_muted = redis.call('HLEN', KEYS[14]) > 0, redis.call('HLEN', KEYS[32]) > 0
redis.call('HDEL', beat, '')

-- 1. Renew this lease; what was taken the last time is decided.
renew_lease(leases, beat, call.owner, call.lease_us, now)
local grace = tonumber(redis.call('HGET', beat, 'grace')) or 0
local version = redis.call('GET', KEYS[31])
local is_stale = call.version and version ~= call.version
if is_stale then
  call.opened = nil
end
local mark = decided(at, call.owner, call.opened, call.undecided)
if call.starts then -- its limits may be others than those by which instants were found: each scope is asked anew
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', lines, digits(now), '(inf')) do
    if string.find(entry, '^scope:') then
      redis.call('ZADD', lines, digits(now), entry)
    end
  end
end

-- 2. Take over from owners whose lease has ended.
if now >= grace then
  for _, owner in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', digits(now), 'LIMIT', 0, 4)) do
    take_over(at, owner, call.leased .. owner, now)
  end
end

-- An event that two workers died with is handed out alone: should it kill a third one, nothing dies with it.
local alone = false

local function header_of(id)
  return cjson.decode(string.match(redis.call('HGET', events, id), '^[^\n]*'))
end

local function is_suspect(id)
  return (header_of(id).deaths or 0) >= SUSPECT
end

-- Nothing is looked up before the cool-down of readings is over, and for a while after one they go one by one: Slack limits
-- them together, whatever their channels.
local READ_GAP_US = 1200000
local read_at = tonumber(redis.call('ZSCORE', KEYS[29], READING)) or -math.huge
local is_slow = now < read_at + COOLED_US
local read = {} -- channels that are read for what was taken

local function is_too_soon(header)
  return header.doubt and now < read_at and not read[header.channel]
end

local function note_reading(header)
  if header.doubt and not read[header.channel] then
    read[header.channel] = true
    if is_slow then
      read_at = now + READ_GAP_US
      redis.call('ZADD', KEYS[29], digits(read_at), READING)
    end
  end
end

local function take_orphan(id)
  redis.call('ZREM', orphans, id)
  local header, payload = read_record(redis.call('HGET', events, id))
  header.takes = (header.takes or 1) + 1
  name_place(header)
  local record = told_record(id, header, payload)
  write_record(events, id, header, payload)
  hand_out(id, record)
  to_decide_again(header.seq)
end

local suspended = redis.call('EXISTS', KEYS[15]) == 1
local stopped = redis.call('HEXISTS', KEYS[28], '*') == 1 -- by hand: nobody posts, nobody tries
if not suspended then
  local orphan = call.new > 0 and not call.undecided and redis.call('ZRANGE', orphans, 0, 0)[1]
  local most = call.due > 0 and not call.undecided and 1 or 0
  local timer = redis.call('ZRANGEBYSCORE', timers, '-inf', digits(now), 'LIMIT', 0, most)[1]
  if orphan and is_suspect(orphan) then
    alone = true
    take_orphan(orphan)
  elseif timer and not stopped and is_suspect(timer) and not is_too_soon(header_of(timer))
    and not paused_until(pause, timer, now) then
    alone = true
    redis.call('ZREM', timers, timer)
    local header = unpark_found(timer)
    note_reading(header)
    if header.doubt then
      let_try(pause, timer, now)
    end
  end
end

local old_wait = false
-- @include due

if not suspended and not alone then
  -- 3. What has waited as long as it may: handed out to be settled as expired.
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', parked, '-inf', digits(now), 'LIMIT', 0, 100)) do
    local header, payload = read_record(redis.call('HGET', events, id))
    if is_too_soon(header) then
      redis.call('ZADD', timers, digits(read_at), id)
      redis.call('ZADD', parked, digits(read_at), id)
    else
      note_reading(header)
      leave_place(at, id, header)
      unpark(id, header, payload)
    end
  end

  -- 4. What is due, as far as the worker can post. While posting is paused, one event is let go as the probe.
  local due = stopped and 0 or call.due
  local is_paused = redis.call('EXISTS', pause) == 1
  if is_paused then
    due = paused_until(pause, nil, now) and 0 or math.min(due, 1)
  end
  due = take_timed(due, is_paused)
  local passed = 0
  while due > 0 and not alone do
    local entry = redis.call('ZRANGEBYSCORE', lines, '-inf', digits(now), 'LIMIT', passed, 1)[1]
    if not entry then
      break
    end
    local scope, taken = string.match(entry, '^scope:(.*)$'), nil
    if not scope then
      taken = take_turn(entry)
    elseif call.undecided then -- those could be overtaken by what this owner is deciding
      taken, old_wait = 0, true
    else
      local known = call.opened and call.opened[scope]
      taken = take_heads(scope, math.min(due, known and math.max(known[2], 1) or 1))
      if taken > 0 then
        redis.call('ZADD', lines, 'XX', 'inf', entry)
        heads_of[#heads_of + 1] = scope
      end
    end
    due = due - taken
    passed = passed + (taken == 0 and 1 or 0)
  end
  if mark and due == 0 and redis.call('ZCOUNT', lines, '-inf', digits(now)) > 0 then
    ring(KEYS[22]) -- others may have waited for what this one has decided
  end

  -- 5. What dead or stopped workers left.
  local most = call.undecided and 0 or call.new
  for _, id in ipairs(most > 0 and not alone and redis.call('ZRANGE', orphans, 0, most - 1) or {}) do
    if is_suspect(id) or bytes >= MAX_BATCH then
      break
    end
    take_orphan(id)
  end
end

-- 6. New events. A known id is a duplicate; one without a job hash had a time to live that ended.
-- @include door
-- @include entering

local more = alone
if call.adopt then
  local job = 'rq:job:' .. call.adopt.id
  local _, replays = read_job(job)
  if redis.call('EXISTS', job) == 1 then
    redis.call('HSET', job, 'adopted', '1') -- should the stock worker die, sweep.lua must not run it again
  end
  enter({ call.adopt.id }, { call.adopt.payload }, { replays }, {})
elseif not suspended and not alone then
  local room = call.new - #ids_taken
  local looks = closed and math.max(room, math.min(LOOKS * room, MOST_LOOKS)) or room
  local lows = redis.call('LLEN', KEYS[18]) -- a part of both is kept for low, so that it never starves
  local low_looks, low = math.min(lows, low_share(looks)), math.min(lows, low_share(room))
  for i = 16, 18 do
    local kept_looks, kept = i < 18 and low_looks or 0, i < 18 and low or 0
    local looked, gone = take_new(KEYS[i], math.floor(looks - kept_looks), math.floor(room - kept))
    looks, room = looks - looked, room - looked + gone
    more = more or redis.call('EXISTS', KEYS[i]) == 1
  end
end
for first = 1, #fresh, 1000 do
  redis.call('HSET', events, unpack(fresh, first, math.min(first + 999, #fresh)))
end
for first = 1, #ids_taken, 1000 do
  redis.call('SADD', leased, unpack(ids_taken, first, math.min(first + 999, #ids_taken)))
end
note_dropped({
  totals = totals, names = KEYS[34], seen = KEYS[13], limited = KEYS[23], limited_older = KEYS[24], now = now,
  remember_us = call.remember_us, most_decisions = call.most_decisions,
}, refused)
local nth = call.undecided and (mark and mark.nth or 0) + 1 or 0
local freed = tonumber(redis.call('HGET', KEYS[27], '') or nil) or 0
if undecided or call.undecided then
  local before = call.undecided or { seq = undecided, freed = freed }
  redis.call('HSET', KEYS[21], call.owner,
    cjson.encode({
      seq = math.min(before.seq, undecided or before.seq), since = digits(now), scopes = heads_of,
      freed = mark and math.min(before.freed, freed) or freed, nth = nth,
    }))
end
note_duplicates()

-- 7. When to come again.
-- @include again
if not suspended and redis.call('EXISTS', orphans) == 1 then
  more, old_wait = true, true
end
local next_at = come_again()
local function hash_of(key)
  local result, rows = {}, redis.call('HGETALL', key)
  for i = 1, #rows, 2 do
    result[rows[i]] = rows[i + 1]
  end
  return result
end
return { cjson.encode({
  now = digits(now),
  version = version or cjson.null,
  next = next_at and digits(next_at) or cjson.null,
  more = more,
  suspended = suspended,
  from = (alone or any_old or old_wait) and cjson.null or digits(undecided or (redis.call('GET', KEYS[11]) or 0) + 1),
  freed = freed,
  nth = nth,
  muted = any_muted and hash_of(KEYS[32]) or nil,
  duplicates = #duplicates > 0 and duplicates or cjson.null,
  refused = #refused > 0 and told_refusals() or cjson.null,
  ids = table.concat(ids_taken, ' '),
  sizes = #sizes > 0 and sizes or cjson.null,
  seqs = #seqs > 0 and seqs or cjson.null,
}), table.concat(records) }

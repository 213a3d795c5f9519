-- Takes events for one worker, under its lease: what waited and is due, what dead workers left, then new ones from
-- the lanes. At no instant is an event in no structure.
--
-- KEYS      1 events      HASH    id -> record (include/record.lua); an event's, from first sight until it is settled
--           2 leases      ZSET    owner -> end of its lease
--           3 leased      ZSET    id -> seq, what this owner holds; gone when empty
--           4 orphans     ZSET    id -> seq, events whose lease ended, next to be taken, in order
--           5 parked      ZSET    id -> deadline, everything that waits
--           6 lines       ZSET    line -> instant at which its head may pass (include/lines.lua)
--           7 timers      ZSET    id -> its instant
--           8 posting     HASH    channel -> id whose post is in flight or whose turn it is
--           9 pause       HASH    code, detail, since, probe (instants); absent unless posting is paused
--          10 beat        HASH    at (last call of any worker), grace (until then nobody is taken over)
--          11 seq         STRING  counter of first sights; permanent
--          12 totals      HASH    the books (include/books.lua); permanent
--          13 seen        ZSET    id -> instant at which a settled id is forgotten
--          14 dead_ids    HASH    id -> entry of the dead letter
--          15 suspended   RQ's key that suspends all workers
--          16 17 18       LIST    the lanes high, normal, low (RQ's queues)
-- ARGV[1]   JSON {"now": us | absent, "owner", "lease_us", "new": most orphans and new events, "due": most waiting events that are
--           due, "leased": prefix of the keys of leased, "line": prefix of the keys of lines,
--           "adopt": {"id", "payload"} | absent: enter this one event instead of popping the lanes}
-- Returns   [JSON {"now", "next": us | null (next instant at which something may be taken), "more": lanes hold more,
--           "suspended", "interrupted", "duplicates": [id, ...]}, id, record, id, record, ...]
-- The names rq:job:<id> (HASH, RQ's, deleted here), leased and line keys are built from what was found: the one exception
-- to keys through KEYS. All but RQ's share the namespace's hash tag.
-- @include prelude
-- @include record
-- @include lease
-- @include books

local MAX_ID = 256 -- RQ ids are letters, digits, dashes; whatever else was pushed is made printable and cut
local MAX_RAW = 1048576 -- bytes kept of a payload that is too large to be an event

local events, leases, leased, orphans, parked = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local lines, timers, posting, pause, beat = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local totals = KEYS[12]
local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local reply = { '' }
local held = {} -- seq, id, ... to add to what this owner holds

local function hand_out(id, record, header)
  held[#held + 1] = digits(header.seq)
  held[#held + 1] = id
  reply[#reply + 1] = id
  reply[#reply + 1] = record
end

-- Events of one kind of waiting leave it: off the line or timer, off `parked`, into this owner's hands.
local function unpark(id)
  local header, payload = read_record(redis.call('HGET', events, id))
  redis.call('ZREM', parked, id)
  count(totals, 'parked', header.counted, -1)
  header.state, header.timer = nil, nil
  write_record(events, id, header, payload)
  hand_out(id, cjson.encode(header) .. '\n' .. payload, header)
  return header
end

-- What may be refused (an ACL without rq:job:*, a key of another type) is refused before the first write. That write
-- is one that a full server allows; after it the rest is allowed too, and taking is what empties it.
redis.call('EXISTS', 'rq:job:' .. call.owner)
for i = 16, 18 do
  redis.call('LLEN', KEYS[i])
end
redis.call('HDEL', beat, '')

-- 1. Renew this lease.
local interrupted = renew_lease(leases, beat, call.owner, call.lease_us, now)
local grace = tonumber(redis.call('HGET', beat, 'grace')) or 0

-- 2. Take over from owners whose lease has ended. A post that was under way may have arrived: its event frees the
--    channel and waits on a timer that is due at once; its next attempt moves the slot of this one.
if now >= grace then
  for _, owner in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', digits(now), 'LIMIT', 0, 4)) do
    local theirs = call.leased .. owner
    local rows = redis.call('ZRANGE', theirs, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      local id = rows[i]
      local header, payload = read_record(redis.call('HGET', events, id))
      header.deaths = (header.deaths or 0) + 1
      if header.state == 'sending' then
        if redis.call('HGET', posting, header.channel) == id then
          redis.call('HDEL', posting, header.channel)
          if redis.call('ZSCORE', lines, 'channel:' .. header.channel) then
            redis.call('ZADD', lines, digits(now), 'channel:' .. header.channel)
          end
        end
        header.state, header.timer, header.held = 'waiting', true, nil
        redis.call('ZADD', timers, digits(now), id)
        redis.call('ZADD', parked, header.deadline, id)
        count(totals, 'parked', header.counted, 1)
      else
        redis.call('ZADD', orphans, rows[i + 1], id)
      end
      write_record(events, id, header, payload)
    end
    redis.call('DEL', theirs)
    redis.call('ZREM', leases, owner)
  end
end

-- An event that two workers died with is handed out alone: should it kill a third one, nothing dies with it.
local alone = false

local function is_suspect(id)
  local header = cjson.decode(string.match(redis.call('HGET', events, id), '^[^\n]*'))
  return (header.deaths or 0) >= 2
end

local function take_orphan(id)
  redis.call('ZREM', orphans, id)
  local header, payload = read_record(redis.call('HGET', events, id))
  header.takes = (header.takes or 1) + 1
  write_record(events, id, header, payload)
  hand_out(id, cjson.encode(header) .. '\n' .. payload, header)
end

local suspended = redis.call('EXISTS', KEYS[15]) == 1
if not suspended then
  local orphan = call.new > 0 and redis.call('ZRANGE', orphans, 0, 0)[1]
  local timer = redis.call('ZRANGEBYSCORE', timers, '-inf', digits(now), 'LIMIT', 0, call.due > 0 and 1 or 0)[1]
  if orphan and is_suspect(orphan) then
    alone = true
    take_orphan(orphan)
  elseif timer and is_suspect(timer) and now >= (tonumber(redis.call('HGET', pause, 'probe')) or 0) then
    alone = true
    redis.call('ZREM', timers, timer)
    unpark(timer)
  end
end

if not suspended and not alone then
  -- 3. What has waited as long as it may: handed out to be settled as expired.
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', parked, '-inf', digits(now), 'LIMIT', 0, 100)) do
    local header = cjson.decode(string.match(redis.call('HGET', events, id), '^[^\n]*'))
    if header.timer then
      redis.call('ZREM', timers, id)
    else
      local line = 'channel:' .. header.channel
      redis.call('ZREM', call.line .. line, id)
      if redis.call('EXISTS', call.line .. line) == 0 then
        redis.call('ZREM', lines, line)
      end
    end
    unpark(id)
  end

  -- 4. What is due, as far as the worker can post. While posting is paused, one event is let go as the probe.
  local due = call.due
  local probe = tonumber(redis.call('HGET', pause, 'probe'))
  if probe then
    due = now >= probe and math.min(due, 1) or 0
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', timers, '-inf', digits(now), 'LIMIT', 0, due)) do
    if is_suspect(id) then
      break
    end
    redis.call('ZREM', timers, id)
    unpark(id)
    due = due - 1
  end
  while due > 0 do
    local line = redis.call('ZRANGEBYSCORE', lines, '-inf', digits(now), 'LIMIT', 0, 1)[1]
    if not line then
      break
    end
    local id = redis.call('ZPOPMIN', call.line .. line)[1]
    local header = unpark(id)
    if redis.call('EXISTS', call.line .. line) == 0 then
      redis.call('ZREM', lines, line)
    elseif header.solo then
      redis.call('ZADD', lines, 'inf', line)
    end
    if header.solo then
      redis.call('HSET', posting, header.channel, id)
    end
    due = due - 1
  end

  -- 5. What dead or stopped workers left.
  for _, id in ipairs(call.new > 0 and redis.call('ZRANGE', orphans, 0, call.new - 1) or {}) do
    if is_suspect(id) then
      break
    end
    take_orphan(id)
  end
end

-- 6. New events. An id without a job hash had a time to live that ended; a known id is a duplicate.
local duplicates = {}
local fresh = {} -- id, record, ... to add to events
local entered = {}

local function enter(ids, job_of)
  if #ids == 0 then
    return
  end
  local present = redis.call('HMGET', events, unpack(ids))
  local seen = redis.call('ZMSCORE', KEYS[13], unpack(ids))
  local dead = redis.call('HMGET', KEYS[14], unpack(ids))
  local seq = redis.call('INCRBY', KEYS[11], #ids) - #ids
  for i, id in ipairs(ids) do
    local payload, replays = job_of(i)
    if present[i] or dead[i] or entered[id] or (replays == 0 and seen[i] and tonumber(seen[i]) > now) then
      duplicates[#duplicates + 1] = id
    else
      entered[id] = true
      local again = replays > 0 and string.format(',"replays":%d', replays) or ''
      -- not by %s, which ends at a zero byte
      local record = string.format('{"seq":%.0f,"seen":"%.0f"%s}\n', seq + i, now, again) .. payload
      fresh[#fresh + 1] = id
      fresh[#fresh + 1] = record
      hand_out(id, record, { seq = seq + i })
    end
  end
  redis.call('HINCRBY', totals, 'received', #ids)
end

-- The payload of a job, and how often it was a dead letter (a field that replay.lua writes).
local function read_job(job)
  local fields = redis.pcall('HMGET', job, 'data', 'replays')
  if fields.err or not fields[1] then
    return '', 0
  end
  return string.sub(fields[1], 1, MAX_RAW), tonumber(fields[2]) or 0
end

-- One event in sixteen, however many are taken at once.
local function low_share(room)
  local seq = tonumber(redis.call('GET', KEYS[11])) or 0
  return math.floor((seq + room) / 16) - math.floor(seq / 16)
end

local more = alone
if call.adopt then
  enter({ call.adopt.id }, function()
    local job = 'rq:job:' .. call.adopt.id
    local _, replays = read_job(job)
    redis.call('HSET', job, 'adopted', '1') -- should the stock worker die, sweep.lua must not run it again
    return call.adopt.payload, replays
  end)
elseif not suspended and not alone then
  local room = call.new - (#reply - 1) / 2
  local low = math.min(redis.call('LLEN', KEYS[18]), low_share(room)) -- kept for low, so that it never starves
  for i = 16, 18 do
    local quota = math.floor(i < 18 and room - low or room)
    local ids = quota > 0 and redis.call('LPOP', KEYS[i], quota)
    if ids then
      local jobs, names = {}, {}
      for n, id in ipairs(ids) do
        jobs[n] = 'rq:job:' .. id
        names[n] = string.sub(string.gsub(id, '[^\33-\126]', '?'), 1, MAX_ID)
      end
      enter(names, function(n) return read_job(jobs[n]) end)
      redis.call('DEL', unpack(jobs))
      room = room - #ids
    end
    more = more or redis.call('LLEN', KEYS[i]) > 0
  end
end
for first = 1, #fresh, 1000 do
  redis.call('HSET', events, unpack(fresh, first, math.min(first + 999, #fresh)))
end
for first = 1, #held, 1000 do
  redis.call('ZADD', leased, unpack(held, first, math.min(first + 999, #held)))
end
if #duplicates > 0 then
  redis.call('HINCRBY', totals, 'duplicate', #duplicates)
end

-- 7. When to come again.
local next_at = math.huge
local function consider(at)
  at = tonumber(at)
  if at and at < next_at then
    next_at = at
  end
end
local function first_score(key)
  return redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
end
local ending = first_score(leases)
if ending then
  consider(math.max(tonumber(ending), grace))
end
if not suspended then
  consider(first_score(parked))
  local waits_until = math.huge
  for _, key in ipairs({ timers, lines }) do
    waits_until = math.min(waits_until, tonumber(first_score(key)) or math.huge)
  end
  if call.due > 0 and waits_until < math.huge then
    consider(math.max(waits_until, tonumber(redis.call('HGET', pause, 'probe')) or 0))
  end
  more = more or redis.call('EXISTS', orphans) == 1
end
reply[1] = cjson.encode({
  now = digits(now),
  next = next_at < math.huge and digits(next_at) or cjson.null,
  more = more,
  suspended = suspended,
  interrupted = interrupted,
  duplicates = #duplicates > 0 and duplicates or cjson.null,
})
return reply

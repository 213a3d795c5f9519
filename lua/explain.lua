-- Where events are and what is known of them, all at one instant. Read-only. Of large events it answers for the first of "ids"
-- only, as many as fit into one answer, and two at least.
--
-- @prefixes leased line waits
-- KEYS      1 events, 2 leases, 3 lines, 4 timers, 5 cooldowns, 6 pause, 7 dead, 8 dead_ids, 9 awaited, 10 seen as in
--             take.lua and settle.lua
--          11 12 13     LIST  the lanes high, normal, low (RQ's queues)
--          14 15 16 17  HASH  the index of the decision record (include/accounting.lua)
--          18 silences  HASH  id -> JSON (include/silences.lua)
--          19 paused    HASH  '*' or category -> JSON, what is paused by hand
--          20 failures  HASH  channel -> its posts in a row without a clear answer
--          21 scheduled  ZSET  as in take.lua
--          22 23        STRING, HASH  the version of the limits in force, and number -> what it says (publish.lua)
--          24 removed   ZSET  as in removals.lua
--          25 26        STREAM  the decision record, its parts `limited` and `others`
--          27 endings   ZSET  when each silence ends if nothing more matches (include/silences.lua)
--          28 ...       HASH  the RQ job of each of "ids"
-- ARGV[1]   JSON {"now": us | absent, "ids": [id, ...],
--           "payloads": true: of all, else of those whose id is a digest, "limits": true | absent}
-- Returns   [JSON {"now", "pause": {field: value}, "silences": {id: JSON}, "endings": {id: instant}, "paused": {category: JSON} | absent, "found": [facts, ...] for each id that is answered for,
--           "version", "limits": of those in force and what it says, with "limits" and an event that waits for room},
--           payload of each | '', ...]; facts: "id", and those that there are:
--             "header": text of the record's (include/record.lua); with "malformed": true, what of it can be read; else
--               where the event is:
--               "owner" who holds it; without one it is requeued,
--               "timer": its instant, on a timer or as a scheduled event,
--               "before" of its line, "next": instant | "inf" (the line's, or that of the scope it waits for), "scope" its line
--               waits for, "elsewhere": how many of other lines that wait for that scope go before it (LINES),
--               "cooldown" and "failures" of its channel,
--             "job": {"lane": 1 to 3, "status", "enqueued_at", "replayed": true, "before": only near the head of its lane},
--             "letter": [field, value, ...] of its dead letter without the payload,
--             "decisions": [text of the pair of the record that tells of it, a line feed, its text and labels, ...], "seen": until when its id is remembered, "removed": when it was missed
--           Instants are strings.
-- The names of leased, line and waits keys follow from what was found, as in take.lua.
-- @include prelude
-- @include record

local NEAR = 10000 -- of longer lanes only the beginning is searched, all ids together so far
local MOST_READ = 1048576 -- bytes of records and letters, in which one more may be on top
local LINES = 20 -- so many lines of a scope are searched for events that go first; of other lines only the head counts

local events, lines = KEYS[1], KEYS[3]
local call = cjson.decode(ARGV[1])
local near = math.ceil(NEAR / #call.ids)
local now = microseconds(call.now)
local owners = redis.call('ZRANGE', KEYS[2], 0, -1)

local function holder(id)
  for _, owner in ipairs(owners) do
    if redis.call('SISMEMBER', K.leased_prefix .. owner, id) == 1 then
      return owner
    end
  end
end

local function stands(facts, line, entry, id)
  facts.before = redis.call('ZRANK', K.line_prefix .. line, id) or nil
  facts.next = redis.call('ZSCORE', lines, entry) or nil
end

-- How many events of other lines that wait for the same scope go before one of this rank.
local function before_elsewhere(waits, line, rank)
  local below = '(' .. rank
  local own = redis.call('ZSCORE', waits, line)
  local count = redis.call('ZCOUNT', waits, '-inf', below) - (own and tonumber(own) < tonumber(rank) and 1 or 0)
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', waits, '-inf', below, 'LIMIT', 0, LINES)) do
    if other ~= line then
      count = count + math.max(0, redis.call('ZCOUNT', K.line_prefix .. other, '-inf', below) - 1)
    end
  end
  return count
end

local waits_for_room = false

local function place(facts, id, header)
  if header.state ~= 'waiting' then
    facts.owner = holder(id)
  elseif header.timer then
    facts.timer = redis.call('ZSCORE', KEYS[4], id) or nil
  elseif header.scheduled then
    facts.timer = redis.call('ZSCORE', KEYS[21], id) or nil
  elseif header.line then
    facts.scope = redis.call('HGET', KEYS[9], header.line) or header.line
    local rank = redis.call('ZSCORE', K.line_prefix .. header.line, id)
    facts.elsewhere = rank and before_elsewhere(K.waits_prefix .. facts.scope, header.line, rank) or nil
    waits_for_room = true
    stands(facts, header.line, 'scope:' .. facts.scope, id)
    local shared_at = redis.call('ZSCORE', K.waits_prefix .. 'shared', header.line) and redis.call('ZSCORE', lines, 'scope:shared')
    if shared_at and number_of(shared_at) < (number_of(facts.next) or math.huge) then
      facts.next = shared_at
    end
  else
    facts.cooldown = redis.call('ZSCORE', KEYS[5], header.channel) or nil
    facts.failures = redis.call('HGET', KEYS[20], header.channel) or nil
    local line = header.entry or 'channel:' .. header.channel
    stands(facts, line, line, id)
  end
end

-- The job of an id, if it is on a lane of ours and no worker of ours has entered it.
local function waiting_job(job, id)
  local fields = redis.pcall('HMGET', job, 'origin', 'status', 'enqueued_at', 'replays', 'adopted')
  if fields.err or not fields[1] or fields[5] or fields[2] == 'finished' then
    return nil
  end
  for lane = 1, 3 do
    if KEYS[10 + lane] == 'rq:queue:' .. fields[1] then
      return {
        lane = lane,
        status = fields[2] or '',
        enqueued_at = fields[3] or '',
        replayed = fields[4] and true or nil,
        before = redis.call('LPOS', KEYS[10 + lane], id, 'MAXLEN', near) or nil,
      }
    end
  end
end

local function letter_of(entry)
  local row = redis.call('XRANGE', KEYS[7], entry, entry)[1]
  local fields, payload = {}, ''
  for i = 1, row and #row[2] or 0, 2 do
    if row[2][i] == 'payload' then
      payload = row[2][i + 1]
    else
      fields[#fields + 1] = row[2][i]
      fields[#fields + 1] = row[2][i + 1]
    end
  end
  return row and fields, payload
end

-- What an entry of the record says of the id: the text of a pair and the event's line; nothing where the entry is gone.
local entries = {}

local function on_record(log, entry, id)
  local key = log .. ' ' .. entry
  if not entries[key] then
    local is_id = string.find(entry, '^%d+%-%d+$') and #entry < 20
    local row = is_id and redis.call('XRANGE', log, entry, entry)[1]
    entries[key] = row and row[2] or {}
  end
  for i = 1, #entries[key], 2 do
    local told = entries[key][i + 1] .. '\n'
    local line_feed = string.find(told, '\n', 1, true)
    local place = string.find(' ' .. string.sub(told, 1, line_feed - 1) .. ' ', ' ' .. id .. ' ', 1, true)
    if place then
      local _, ahead = string.gsub(string.sub(told, 1, place - 1), ' ', '')
      for _ = 1, ahead do
        line_feed = string.find(told, '\n', line_feed + 1, true) or #told
      end
      return entries[key][i] .. string.sub(told, line_feed, (string.find(told, '\n', line_feed + 1, true) or #told) - 1)
    end
  end
end

local found, payloads, read = {}, {}, 0
for n, id in ipairs(call.ids) do
  if n > 2 and read >= MOST_READ then
    break
  end
  local facts, payload = { id = id }, nil
  local stored = redis.call('HGET', events, id)
  if stored then
    local header
    header, payload, facts.malformed = record.split(stored)
    read = read + #stored
    facts.malformed = facts.malformed and true or nil
    facts.header = facts.malformed and cjson.encode(header) or string.match(stored, '^[^\n]*')
    if not facts.malformed then
      place(facts, id, header)
    end
  end
  facts.job = waiting_job(KEYS[27 + n], id)
  local entry = redis.call('HGET', KEYS[8], id)
  if entry then
    local buried
    facts.letter, buried = letter_of(entry)
    payload, read = payload or buried, read + #buried
  end
  local decisions = {}
  for i = 14, 17 do
    local entry = redis.call('HGET', KEYS[i], id)
    decisions[#decisions + 1] = entry and on_record(KEYS[i < 16 and 25 or 26], entry, id) or nil
  end
  facts.decisions = #decisions > 0 and decisions or nil
  facts.seen = redis.call('ZSCORE', KEYS[10], id) or nil
  facts.removed = redis.call('ZSCORE', KEYS[24], id) or nil
  found[n] = facts
  payloads[n] = payload and (call.payloads or string.find(id, '^id%-%x+$')) and payload or ''
end

local version, limits
if call.limits and waits_for_room then
  version = redis.call('GET', KEYS[22]) or nil
  limits = version and redis.call('HGET', KEYS[23], string.match(version, '^%d*')) or nil
end

local function hash_of(key)
  local result = pairs_of(redis.call('HGETALL', key))
  return next(result) and result or nil
end
return { cjson.encode({
  now = digits(now),
  pause = hash_of(KEYS[6]),
  silences = hash_of(KEYS[18]),
  endings = pairs_of(redis.call('ZRANGE', KEYS[27], 0, -1, 'WITHSCORES')),
  paused = hash_of(KEYS[19]),
  found = found,
  version = version,
  limits = limits,
}), unpack(payloads) }

-- Where events are and what is known of them, all at one instant. Read-only. Of large events it answers for the first of "ids"
-- only, as many as fit into one answer, and two at least.
--
-- @keys events leases lines timers cooldowns pause dead dead_ids awaited seen lane_high lane_normal lane_low
-- @keys limited limited_older others others_older silences paused failures scheduled limits_version limits_files
-- @keys removed limited_log others_log endings layout
-- @prefixes leased line waits
-- KEYS      as in take.lua and settle.lua; and
--           limits_files  HASH  number -> what a version of the limits says (publish.lua)
--           removed       ZSET  as in removals.lua
--           layout        STRING  the version of how the namespace stores things
--           and then the RQ job of each of "ids" (HASH)
-- ARGV[1]   JSON {"now": us | absent, "ids": [id, ...], "layout": the version that the caller reads,
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
--           Instants are strings. {'layout', VERSION} where it is another.
-- The names of leased, line and waits keys follow from what was found, as in take.lua.
-- @include prelude
-- @include record

local NEAR = 10000 -- of longer lanes only the beginning is searched, all ids together so far
local MOST_READ = 1048576 -- bytes of records and letters, in which one more may be on top
local LINES = 20 -- so many lines of a scope are searched for events that go first; of other lines only the head counts

local LANES = { K.lane_high, K.lane_normal, K.lane_low }
local RECORD = { -- each index of the decision record, and its stream
  { K.limited, K.limited_log }, { K.limited_older, K.limited_log }, { K.others, K.others_log }, { K.others_older, K.others_log },
}
local call = cjson.decode(ARGV[1])
local layout = redis.call('GET', K.layout)
if layout and layout ~= call.layout then
  return { 'layout', layout }
end
local near = math.ceil(NEAR / #call.ids)
local now = microseconds(call.now)
local owners = redis.call('ZRANGE', K.leases, 0, -1)

local function holder(id)
  for _, owner in ipairs(owners) do
    if redis.call('SISMEMBER', K.leased_prefix .. owner, id) == 1 then
      return owner
    end
  end
end

local function stands(facts, line, entry, id)
  facts.before = redis.call('ZRANK', K.line_prefix .. line, id) or nil
  facts.next = redis.call('ZSCORE', K.lines, entry) or nil
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
    facts.timer = redis.call('ZSCORE', K.timers, id) or nil
  elseif header.scheduled then
    facts.timer = redis.call('ZSCORE', K.scheduled, id) or nil
  elseif header.line then
    facts.scope = redis.call('HGET', K.awaited, header.line) or header.line
    local rank = redis.call('ZSCORE', K.line_prefix .. header.line, id)
    facts.elsewhere = rank and before_elsewhere(K.waits_prefix .. facts.scope, header.line, rank) or nil
    waits_for_room = true
    stands(facts, header.line, 'scope:' .. facts.scope, id)
    local shared_at = redis.call('ZSCORE', K.waits_prefix .. 'shared', header.line) and redis.call('ZSCORE', K.lines, 'scope:shared')
    if shared_at and number_of(shared_at) < (number_of(facts.next) or math.huge) then
      facts.next = shared_at
    end
  else
    facts.cooldown = redis.call('ZSCORE', K.cooldowns, header.channel) or nil
    facts.failures = redis.call('HGET', K.failures, header.channel) or nil
    local line = header.entry or 'channel:' .. header.channel
    stands(facts, line, line, id)
  end
end

-- The job of an id, if it is on a lane of ours and no worker of ours has entered it.
local function waiting_job(job, id)
  local fields = redis.pcall('HMGET', job, 'origin', 'status', 'enqueued_at', 'replays', 'adopted', 'created_at')
  if fields.err or not fields[1] or was_adopted(fields[5], fields[6]) or fields[2] == 'finished' or fields[2] == 'canceled' then
    return nil
  end
  for lane = 1, 3 do
    if LANES[lane] == 'rq:queue:' .. fields[1] then
      return {
        lane = lane,
        status = fields[2] or '',
        enqueued_at = fields[3] or '',
        replayed = fields[4] and true or nil,
        before = redis.call('LPOS', LANES[lane], id, 'MAXLEN', near) or nil,
      }
    end
  end
end

local function letter_of(entry)
  local row = redis.call('XRANGE', K.dead, entry, entry)[1]
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
  local stored = redis.call('HGET', K.events, id)
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
  facts.job = waiting_job(KEYS[#KEYS - #call.ids + n], id)
  local entry = redis.call('HGET', K.dead_ids, id)
  if entry then
    local buried
    facts.letter, buried = letter_of(entry)
    payload, read = payload or buried, read + #buried
  end
  local decisions = {}
  for _, part in ipairs(RECORD) do
    local entry = redis.call('HGET', part[1], id)
    decisions[#decisions + 1] = entry and on_record(part[2], entry, id) or nil
  end
  facts.decisions = #decisions > 0 and decisions or nil
  facts.seen = redis.call('ZSCORE', K.seen, id) or nil
  facts.removed = redis.call('ZSCORE', K.removed, id) or nil
  found[n] = facts
  payloads[n] = payload and (call.payloads or string.find(id, '^id%-%x+$')) and payload or ''
end

local version, limits
if call.limits and waits_for_room then
  version = redis.call('GET', K.limits_version) or nil
  limits = version and redis.call('HGET', K.limits_files, string.match(version, '^%d*')) or nil
end

local function hash_of(key)
  local result = pairs_of(redis.call('HGETALL', key))
  return next(result) and result or nil
end
return { cjson.encode({
  now = digits(now),
  pause = hash_of(K.pause),
  silences = hash_of(K.silences),
  endings = pairs_of(redis.call('ZRANGE', K.endings, 0, -1, 'WITHSCORES')),
  paused = hash_of(K.paused),
  found = found,
  version = version,
  limits = limits,
}), unpack(payloads) }

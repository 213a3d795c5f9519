-- New events for take.lua: jobs are opened, known ids are duplicates, what a limit refuses at the door ends, the others enter
-- `fresh` and are handed out.
local MAX_ID = 256 -- RQ ids are letters, digits, dashes; whatever else was pushed is made printable and cut; the
-- ids of own events hold a colon, so nobody else's may
local MAX_RAW = 1048576 -- bytes kept of a payload that is too large to be an event
local CHUNK = 64 -- jobs that are read at once
local LOOKS = 8 -- where events are refused at the door, so many times as many are looked at as may be handed out
local MOST_LOOKS = 1024 -- unless more may be handed out

local duplicates = {}
local fresh = {} -- id, record, ... to add to events
local entered = {}

-- Whether a decision about the id is on record: its job is gone because the event was taken.
local function is_decided(id)
  for i = 23, 26 do
    if redis.call('HEXISTS', KEYS[i], id) == 1 then
      return true
    end
  end
  return false
end

-- `ends` holds, where an event is refused, its group.
local function enter(ids, payloads, replays, ends)
  local present = any_event and redis.call('HMGET', events, unpack(ids)) or {}
  local seen = any_seen and redis.call('ZMSCORE', KEYS[13], unpack(ids)) or {}
  local dead = any_dead and redis.call('HMGET', KEYS[14], unpack(ids)) or {}
  local seq = redis.call('INCRBY', KEYS[11], #ids) - #ids
  local first_sight = string.format(',"seen":"%.0f"', now)
  for i, id in ipairs(ids) do
    local payload, again = payloads[i], replays[i]
    if present[i] or dead[i] or entered[id] or (not again and seen[i] and tonumber(seen[i]) > now)
      or (payload == '' and is_decided(id)) then
      duplicates[#duplicates + 1] = id
    elseif ends[i] then
      entered[id] = true
      local ended = ends[i].ids
      ended[#ended + 1] = id
    else
      entered[id] = true
      to_decide(seq + i)
      local record = '{"seq":' .. seq + i .. first_sight .. (again and ',"replays":' .. again or '') .. '}\n' .. payload
      fresh[#fresh + 1] = id
      fresh[#fresh + 1] = record
      if again then
        hand_out(id, record)
      else
        hand_out(id, payload, seq + i)
      end
    end
  end
  redis.call('HINCRBY', totals, 'received', #ids)
end

-- Counts the duplicates, and puts those on record about whose id it says nothing yet.
local function note_duplicates()
  if #duplicates == 0 then
    return
  end
  redis.call('HINCRBY', totals, 'duplicate', #duplicates)
  local rows = {}
  for _, id in ipairs(duplicates) do
    if not is_decided(id) then
      rows[#rows + 1] = id
      rows[#rows + 1] = digits(now) .. ' ["duplicate",null,"duplicate",null,{}]'
    end
  end
  if #rows > 0 then
    record_decisions(KEYS[23], KEYS[24], rows, call.most_decisions)
  end
end

-- The payload of a job, and how often it was a dead letter (a field that replay.lua writes).
local function read_job(job)
  local fields = redis.pcall('HMGET', job, 'data', 'replays')
  if fields.err or not fields[1] then
    return '', nil
  end
  local replays = fields[2] and string.find(fields[2], '^[1-9]%d*$') and #fields[2] < 10 and fields[2]
  return string.sub(fields[1], 1, MAX_RAW), replays or nil
end

-- One event in sixteen, however many are taken at once.
local function low_share(room)
  local seq = tonumber(redis.call('GET', KEYS[11])) or 0
  return math.floor((seq + room) / 16) - math.floor(seq / 16)
end

local closed = ARGV[2] and not is_stale and ARGV[2]
local door

local function is_muted(category)
  return any_muted and redis.call('HEXISTS', KEYS[32], category) == 1
end

-- The marks of the next jobs of a lane, with `replays` behind each, all by one command; nil where the server does not let us.
-- That wants the right to read every key (Redis 7), which a user with few rights lacks: then it goes job by job.
local may_sort = true

local function next_marks(lane, most)
  local marks = may_sort and redis.pcall(
    'SORT', lane, 'BY', 'nosort', 'LIMIT', 0, most, 'GET', 'rq:job:*->category', 'GET', 'rq:job:*->replays'
  )
  may_sort = marks and not marks.err
  return may_sort and marks or nil
end

-- The group in which the event of a job ends at the door, if it does; the n-th of those with `marks`.
local function end_of(job, marks, n)
  local mark, again
  if marks then
    mark, again = marks[2 * n - 1], marks[2 * n]
  else
    local fields = redis.pcall('HMGET', job, 'category', 'replays')
    mark, again = fields[1], fields[2] -- none where it is no hash
  end
  return mark and not again and refusal(door, mark, 34, is_muted)
end

local function is_printable(id)
  return string.find(id, '^[%w_-]+$') and #id <= MAX_ID
end

-- The id as it is known from here on. What had to be changed ends in a digest: no two of them become one.
local function printable(id)
  local shown = string.sub(string.gsub(id, '[^\33-\57\59-\126]', '?'), 1, MAX_ID)
  return shown == id and id or string.sub(shown, 1, MAX_ID - 9) .. '~' .. string.sub(redis.sha1hex(id), 1, 8)
end

-- Looks at up to `most` new events of one lane, and hands out up to `room`; fewer where they are large. Returns how many
-- it looked at, and how many of them were refused.
local function take_new(lane, most, room)
  local popped, gone = 0, 0
  if closed and not door and redis.call('EXISTS', lane) == 1 then
    door = cjson.decode(closed)
  end
  while popped < most and popped - gone < room and bytes < MAX_BATCH do
    local count = math.min(CHUNK, most - popped, room - popped + gone)
    local marks = door and next_marks(lane, count)
    local ids = redis.call('LPOP', lane, count)
    if not ids then
      break
    end
    local jobs, payloads, replays, ends = {}, {}, {}, {}
    for n, id in ipairs(ids) do
      local job = 'rq:job:' .. id
      jobs[n] = job
      ends[n] = door and is_printable(id) and end_of(job, marks, n)
      if not ends[n] then
        payloads[n], replays[n] = read_job(job)
        ids[n] = printable(id)
      end
    end
    local before = #ids_taken + #duplicates
    enter(ids, payloads, replays, ends)
    redis.call('DEL', unpack(jobs))
    popped = popped + #ids
    gone = gone + #ids - (#ids_taken + #duplicates - before)
  end
  return popped, gone
end

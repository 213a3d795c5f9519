-- New events for take.lua: jobs are opened, known ids are duplicates, the others enter `fresh` and are handed out.
local MAX_ID = 256 -- RQ ids are letters, digits, dashes; whatever else was pushed is made printable and cut; the
-- ids of own events hold a colon, so nobody else's may
local MAX_RAW = 1048576 -- bytes kept of a payload that is too large to be an event
local CHUNK = 64 -- jobs that are read at once

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

-- Most of the time there is nothing to look for.
local any_event = redis.call('EXISTS', events) == 1
local any_seen = redis.call('EXISTS', KEYS[13]) == 1
local any_dead = redis.call('EXISTS', KEYS[14]) == 1

local function enter(ids, payloads, replays)
  local present = any_event and redis.call('HMGET', events, unpack(ids)) or {}
  local seen = any_seen and redis.call('ZMSCORE', KEYS[13], unpack(ids)) or {}
  local dead = any_dead and redis.call('HMGET', KEYS[14], unpack(ids)) or {}
  local seq = redis.call('INCRBY', KEYS[11], #ids) - #ids
  to_decide(seq + 1)
  local first_sight = string.format(',"seen":"%.0f"', now)
  for i, id in ipairs(ids) do
    local payload, again = payloads[i], replays[i]
    if present[i] or dead[i] or entered[id] or (not again and seen[i] and tonumber(seen[i]) > now)
      or (payload == '' and is_decided(id)) then
      duplicates[#duplicates + 1] = id
    else
      entered[id] = true
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

-- The payload of a job, and how often it was a dead letter (a field that replay.lua writes).
local function read_job(job)
  local fields = redis.pcall('HMGET', job, 'data', 'replays')
  if fields.err or not fields[1] then
    return '', nil
  end
  local replays = fields[2] and string.find(fields[2], '^%d+$') and #fields[2] < 10 and fields[2]
  return string.sub(fields[1], 1, MAX_RAW), replays or nil
end

-- One event in sixteen, however many are taken at once.
local function low_share(room)
  local seq = tonumber(redis.call('GET', KEYS[11])) or 0
  return math.floor((seq + room) / 16) - math.floor(seq / 16)
end

-- Up to `most` new events of one lane; fewer where they are large. Returns how many were popped.
local function take_new(lane, most)
  local popped = 0
  while popped < most and bytes < MAX_BATCH do
    local ids = redis.call('LPOP', lane, math.min(CHUNK, most - popped))
    if not ids then
      break
    end
    local jobs, payloads, replays = {}, {}, {}
    for n, id in ipairs(ids) do
      jobs[n] = 'rq:job:' .. id
      payloads[n], replays[n] = read_job(jobs[n])
      if not string.find(id, '^[%w_-]+$') or #id > MAX_ID then
        ids[n] = string.sub(string.gsub(id, '[^\33-\57\59-\126]', '?'), 1, MAX_ID)
      end
    end
    enter(ids, payloads, replays)
    redis.call('DEL', unpack(jobs))
    popped = popped + #ids
  end
  return popped
end

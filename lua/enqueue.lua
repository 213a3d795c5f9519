-- Puts events on the lanes as RQ jobs, in RQ's own form; refuses repeated ids and a full queue, atomically per call.
--
-- KEYS      1 2 3   LIST   the lanes high, normal, low (RQ's queues)
--           4       SET    RQ's set of queues
--           5       HASH   id -> record, what the dispatcher holds
--           6       ZSET   id -> instant at which a settled id is forgotten
--           7       HASH   id -> dead letter
--           8       STRING version of the key layout
--           9       STRING the namespace that the queue is bound to
--           10 ...  HASH   the job of each event (RQ's): rq:job:<id>; lives until it is taken
-- ARGV      1 layout version, 2 namespace, 3 most waiting, 4 instant in RQ's form (ISO 8601), 5 us | "" for the server's
--           clock, then for each of up to 1,000 events one string: lane (1 to 3), 1 | 0 for whether a repeat of the id
--           has to be recognised, the category where the event's id is the job's, a line feed, description, a line feed, data
-- Returns   a string with a character for each event: 1 enqueued, 0 duplicate, - refused because the queue is full (all
--           after it are refused as well, or duplicates); or {'layout', VERSION}, {'namespace', NAME} where it is another
-- @include prelude

local HEAD, FIXED, PREFIX = 9, 5, #'rq:job:'

local layout = redis.call('GET', KEYS[8])
if layout and layout ~= ARGV[1] then
  return { 'layout', layout }
end
local bound = redis.call('GET', KEYS[9])
if bound and bound ~= ARGV[2] then
  return { 'namespace', bound }
end

local waiting, origins, pushed = 0, {}, {}
for lane = 1, 3 do
  waiting = waiting + redis.call('LLEN', KEYS[lane])
  origins[lane], pushed[lane] = string.match(KEYS[lane], '^rq:queue:(.*)$'), {}
end
local room = tonumber(ARGV[3]) - waiting
local at = ARGV[4]
local now

local function is_present(id, job)
  if redis.call('EXISTS', job) == 1
    or redis.call('HEXISTS', KEYS[5], id) == 1
    or redis.call('HEXISTS', KEYS[7], id) == 1 then
    return true
  end
  local forgotten = tonumber(redis.call('ZSCORE', KEYS[6], id))
  now = now or microseconds(tonumber(ARGV[5]))
  return forgotten ~= nil and forgotten > now
end

local results = {}
for n = 1, #KEYS - HEAD do
  local job, row = KEYS[HEAD + n], ARGV[FIXED + n]
  local id = string.sub(job, PREFIX + 1)
  if string.byte(row, 2) == 49 and is_present(id, job) then
    results[n] = '0'
  elseif room < 1 then
    results[n] = '-'
  else
    local lane = string.byte(row) - 48
    local first = string.find(row, '\n', 3, true)
    local second = string.find(row, '\n', first + 1, true)
    local mark = first > 3 and { 'category', string.sub(row, 3, first - 1) .. ' ' .. string.sub(row, 2, 2) } or {}
    redis.call('HSET', job, 'created_at', at, 'enqueued_at', at, 'data', string.sub(row, second + 1),
      'description', string.sub(row, first + 1, second - 1), 'origin', origins[lane], 'status', 'queued', 'timeout', '180',
      unpack(mark))
    local ids = pushed[lane]
    ids[#ids + 1] = id
    room = room - 1
    results[n] = '1'
  end
end
for lane = 1, 3 do
  if #pushed[lane] > 0 then
    redis.call('RPUSH', KEYS[lane], unpack(pushed[lane]))
    redis.call('SADD', KEYS[4], KEYS[lane])
  end
end
return table.concat(results)

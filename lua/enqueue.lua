-- Puts events on the lanes as RQ jobs, in RQ's own form; refuses repeated ids and a full queue, atomically per call.
--
-- KEYS      1 2 3   LIST   the lanes high, normal, low (RQ's queues)
--           4       SET    RQ's set of queues
--           5       HASH   id -> record, what the dispatcher holds
--           6       ZSET   id -> instant at which a settled id is forgotten
--           7       HASH   id -> dead letter
--           8       STRING version of the key layout
--           9       STRING the namespace that the queue is bound to
--           10      LIST   the ids that producers enqueued last, the newest right (removals.lua); at most MOST_NOTED + MOST;
--                          lives for a day after it was begun, or after removals.lua looked
--           11      STRING that this notification arrived before; lives as long as ARGV 7 says
--           12 ...  HASH   the job of each event (RQ's): rq:job:<id>; lives until it is taken
-- ARGV      1 layout version, 2 namespace, 3 how many events may be held: on the lanes, and by the dispatcher (KEYS 5),
--           4 instant in RQ's form (ISO 8601), 5 us | "" for the server's clock, 6 1 | 0 for whether the call is all or
--           nothing where the queue fills, 7 "" | ms for which KEYS 11 stands: while it does, the call is a repeat
--           and all its events are duplicates; then for each of up to 1,000 events one string: lane (1 to 3), 1 | 0 for
--           whether a repeat of the id has to be recognised, the mark for the pre-check (include/intake.lua) where the
--           event's id is the job's, a line feed, with a mark text and labels for the record, a line feed, description,
--           a line feed, data
-- Returns   a string with a character for each event: 1 enqueued, 0 duplicate, - refused because the queue is full (all
--           after it are refused as well, or duplicates; of a call that is all or nothing none was enqueued then); or
--           {'layout', VERSION}, {'namespace', NAME} where it is another
-- All arguments are checked and all keys read before the first is written: what is refused has written nothing.
-- @include prelude

local HEAD, FIXED, PREFIX, LANE_PREFIX, MOST = 11, 7, #'rq:job:', #'rq:queue:', 1000
local MOST_NOTED, NOTED_MS = 10000, 86400000

local layout = redis.call('GET', KEYS[8])
if layout and layout ~= ARGV[1] then
  return { 'layout', layout }
end
local bound = redis.call('GET', KEYS[9])
if bound and bound ~= ARGV[2] then
  return { 'namespace', bound }
end

local count, most, given = #KEYS - HEAD, tonumber(ARGV[3]), tonumber(ARGV[5])
assert(count <= MOST and #ARGV == FIXED + count, 'expected up to 1000 jobs, and a string for each')
assert(most and (given or ARGV[5] == ''), 'expected how many events may be held, and an instant or ""')
local fold_ms = tonumber(ARGV[7])
assert(ARGV[7] == '' or string.find(ARGV[7], '^[1-9]%d*$') and #ARGV[7] < 10, 'expected whole milliseconds of a fold, or ""')

local held, lanes = redis.call('HLEN', KEYS[5]), {}
for lane = 1, 3 do
  held = held + redis.call('LLEN', KEYS[lane])
  lanes[lane] = { key = KEYS[lane], ids = {}, rows = {} }
end
local noted_before = redis.call('LLEN', KEYS[10])
local noted = noted_before
local room, planned = most - held, {}
local now

local function is_present(id, job)
  if planned[job]
    or redis.call('EXISTS', job) == 1
    or redis.call('HEXISTS', KEYS[5], id) == 1
    or redis.call('HEXISTS', KEYS[7], id) == 1 then
    return true
  end
  local forgotten = tonumber(redis.call('ZSCORE', KEYS[6], id))
  now = now or microseconds(given)
  return forgotten ~= nil and forgotten > now
end

local is_whole, is_full = ARGV[6] == '1', false
if fold_ms and redis.call('GET', KEYS[11]) then
  return string.rep('0', count)
end

local results, first, second, third = {}, {}, {}, {} -- for each row the answer, and where its line feeds stand
for n = 1, count do
  local job, row = KEYS[HEAD + n], ARGV[FIXED + n]
  local lane, remembered = lanes[(string.byte(row) or 0) - 48], string.byte(row, 2)
  first[n] = string.find(row, '\n', 3, true)
  second[n] = first[n] and string.find(row, '\n', first[n] + 1, true)
  third[n] = second[n] and string.find(row, '\n', second[n] + 1, true)
  if not lane or not third[n] or (remembered ~= 48 and remembered ~= 49) then
    error('event ' .. n .. ' is not as enqueue.lua says')
  end
  local id = string.sub(job, PREFIX + 1)
  if remembered == 49 and is_present(id, job) then
    results[n] = '0'
  elseif room < 1 then
    results[n] = '-'
    is_full = true
  else
    if remembered == 48 then
      redis.call('HLEN', job) -- read for its type
    end
    lane.ids[#lane.ids + 1] = id
    lane.rows[#lane.rows + 1] = n
    planned[job] = true
    room = room - 1
    results[n] = '1'
  end
end

if is_full and is_whole then
  return table.concat(results)
end

for _, lane in ipairs(lanes) do
  if #lane.ids > 0 then
    redis.call('SADD', KEYS[4], lane.key) -- the first write: where the key is no set, nothing was written
    local origin = string.sub(lane.key, LANE_PREFIX + 1)
    for _, n in ipairs(lane.rows) do
      local row, at = ARGV[FIXED + n], ARGV[4]
      local mark = first[n] > 3 and { 'category', string.sub(row, 3, first[n] - 1), 'shown', string.sub(row, first[n] + 1, second[n] - 1) } or {}
      redis.call('HSET', KEYS[HEAD + n], 'created_at', at, 'enqueued_at', at, 'data', string.sub(row, third[n] + 1),
        'description', string.sub(row, second[n] + 1, third[n] - 1), 'origin', origin, 'status', 'queued',
        'timeout', '180', unpack(mark))
    end
    local answer = redis.pcall('RPUSH', lane.key, unpack(lane.ids))
    if type(answer) == 'table' then -- by an ACL: a job that stands on no lane would make its id a duplicate
      for _, n in ipairs(lane.rows) do
        redis.call('DEL', KEYS[HEAD + n])
      end
      return answer
    end
    redis.pcall('RPUSH', KEYS[10], unpack(lane.ids)) -- an ACL may forbid it: then no removal is seen
    noted = noted + #lane.ids
  end
end
if fold_ms then
  redis.call('SET', KEYS[11], '1', 'PX', fold_ms)
end
if noted_before == 0 and noted > 0 then
  redis.pcall('PEXPIRE', KEYS[10], NOTED_MS)
elseif noted > MOST_NOTED + MOST then
  redis.pcall('LTRIM', KEYS[10], -MOST_NOTED, -1)
end
return table.concat(results)

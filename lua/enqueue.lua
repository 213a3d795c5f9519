-- Puts events on the lanes as RQ jobs, in RQ's own form; refuses repeated ids and a full queue, atomically per call.
--
-- KEYS      1 2 3  LIST   the lanes high, normal, low (RQ's queues)
--           4      SET    RQ's set of queues
--           5      HASH   id -> record, what the dispatcher holds
--           6      ZSET   id -> instant at which a settled id is forgotten
--           7      HASH   id -> dead letter
--           8      STRING version of the key layout
--           9 ...  HASH   the job of each event (RQ's), in the order of ARGV; lives until it is taken
-- ARGV      1 layout version, 2 most waiting, 3 instant in RQ's form (ISO 8601), 4 us | "" for the server's clock, then for
--           each event: lane (1 to 3), job id, data, description, "1" where a repeat of the id has to be recognised
-- Returns   for each event 1 enqueued, 0 duplicate, -1 refused because the queue is full (the rest is refused as well);
--           or the layout's version as a string where it is another one
-- @include prelude

local layout = redis.call('GET', KEYS[8])
if layout and layout ~= ARGV[1] then
  return layout
end
local now = microseconds(tonumber(ARGV[4]))
local waiting = redis.call('LLEN', KEYS[1]) + redis.call('LLEN', KEYS[2]) + redis.call('LLEN', KEYS[3])
local room = tonumber(ARGV[2]) - waiting

local function is_present(id, job)
  local forgotten = tonumber(redis.call('ZSCORE', KEYS[6], id))
  return redis.call('EXISTS', job) == 1
    or redis.call('HEXISTS', KEYS[5], id) == 1
    or redis.call('HEXISTS', KEYS[7], id) == 1
    or (forgotten ~= nil and forgotten > now)
end

local results = {}
local count = (#ARGV - 4) / 5
for n = 1, count do
  local at = 4 + (n - 1) * 5
  local lane, id, data, description = KEYS[tonumber(ARGV[at + 1])], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local job = KEYS[8 + n]
  if ARGV[at + 5] == '1' and is_present(id, job) then
    results[n] = 0
  elseif room < 1 then
    results[n] = -1
  else
    redis.call('HSET', job, 'created_at', ARGV[3], 'enqueued_at', ARGV[3], 'data', data, 'description', description,
      'origin', string.match(lane, '^rq:queue:(.*)$'), 'status', 'queued', 'timeout', '180', 'started_at', '',
      'ended_at', '', 'last_heartbeat', '', 'worker_name', '', 'group_id', '', 'success_callback_name', '',
      'failure_callback_name', '', 'stopped_callback_name', '')
    redis.call('RPUSH', lane, id)
    redis.call('SADD', KEYS[4], lane)
    room = room - 1
    results[n] = 1
  end
end
return results

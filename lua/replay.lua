-- Moves dead letters back to their lanes, each in one step: a letter is either a letter or an event, never both or none.
--
-- KEYS      1 dead      STREAM dead letters
--           2 dead_ids  HASH   id -> entry
--           3 totals    HASH   the books
--           4 5 6       LIST   the lanes high, normal, low (RQ's queues)
--           7           SET    RQ's set of queues
--           8 ...       HASH   the RQ job of each letter, in the order of "letters"
-- ARGV[1]   JSON {"at": instant in RQ's form, "letters": [[entry, id, lane (1 to 3), description], ...]}
-- Returns   for each letter 1 replayed, 0 no such letter any more, -1 a job of its id exists: it waits or is being run,
--           -2 no payload was left; the last two change nothing
-- The job carries "replays", how often the event has come back: a limit that denies it makes it a dead letter again.
-- @include prelude
-- @include dead

-- What a stock worker has finished RQ keeps for a while, and then forgets by itself.
local function is_taken(job)
  return redis.call('EXISTS', job) == 1 and redis.call('HGET', job, 'status') ~= 'finished'
end

local call = cjson.decode(ARGV[1])
local results = {}
for n, letter in ipairs(call.letters) do
  local entry, id, lane, job = letter[1], letter[2], KEYS[3 + letter[3]], KEYS[7 + n]
  local found = redis.call('XRANGE', KEYS[1], entry, entry)[1]
  local fields = {}
  for i = 1, found and #found[2] or 0, 2 do
    fields[found[2][i]] = found[2][i + 1]
  end
  if not found then
    results[n] = 0
  elseif is_taken(job) then
    results[n] = -1
  elseif fields.payload == '' then
    results[n] = -2
  else
    redis.call('DEL', job)
    redis.call('HSET', job, 'created_at', call.at, 'enqueued_at', call.at, 'data', fields.payload, 'description', letter[4],
      'origin', string.match(lane, '^rq:queue:(.*)$'), 'status', 'queued', 'timeout', '180', 'started_at', '',
      'ended_at', '', 'last_heartbeat', '', 'worker_name', '', 'group_id', '', 'success_callback_name', '',
      'failure_callback_name', '', 'stopped_callback_name', '', 'replays', (tonumber(fields.replays) or 0) + 1)
    unbury(KEYS[1], KEYS[2], entry, id)
    redis.call('RPUSH', lane, id)
    redis.call('SADD', KEYS[7], lane)
    redis.call('HINCRBY', KEYS[3], 'replayed', 1)
    results[n] = 1
  end
end
return results

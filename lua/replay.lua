-- Moves dead letters back to their lanes, each in one step: a letter is either a letter or an event, never both or none. One
-- call handles at most MOST letters and at most letters.MOST_READ bytes of them (include/letters.lua); the next call handles the rest.
--
-- @keys dead dead_ids dead_bytes totals lane_high lane_normal lane_low queues metrics
-- KEYS      as in settle.lua; and
--           lane_...    LIST    the lanes high, normal, low (RQ's queues)
--           queues      SET     RQ's set of queues
--           and then    the RQ job of each letter (HASH), in the order of "letters"
-- ARGV[1]   JSON {"at": instant in RQ's form, "letters": [[entry, id, lane (1 to 3), description, data | false | absent], ...]};
--           "data" goes on the lane in place of the payload; false: there is none, the letter stays
-- Returns   for each letter that was dealt with 1 replayed, 0 no such letter any more, -1 a job of its id exists: it waits or is
--           being run, -2 no payload was left, -3 no data in its place; the last three change nothing
-- The job carries "replays", how often the event has come back: no limit drops or digests it; one that denies it makes it a dead
-- letter again or, where its category defers, lets it wait.
-- @include prelude
-- @include plan
-- @include letters

local MOST = 100 -- letters in one call

local call = cjson.decode(ARGV[1])
local at = K
local LANES = { at.lane_high, at.lane_normal, at.lane_low }
for _, lane in ipairs(LANES) do -- what is of another type is complained of before anything is written
  redis.call('LLEN', lane)
end
redis.call('SCARD', at.queues)
local queued = {}

-- What a stock worker has finished RQ keeps for a while, and then forgets by itself. What is no job stays as it is.
local function is_taken(job)
  if queued[job] or redis.call('EXISTS', job) == 0 then
    return queued[job]
  end
  return redis.pcall('HGET', job, 'status') ~= 'finished'
end

local results, read = {}, 0
for n, letter in ipairs(call.letters) do
  if n > MOST or read >= letters.MOST_READ then
    break
  end
  local entry, id, lane, job = letter[1], letter[2], LANES[letter[3]], KEYS[#KEYS - #call.letters + n]
  local fields, size = letters.read(at, entry)
  read = read + (size or 0)
  if not fields then
    results[n] = 0
  elseif is_taken(job) then
    results[n] = -1
  elseif (fields.payload or '') == '' then
    results[n] = -2
  elseif letter[5] == false then
    results[n] = -3
  else
    queued[job] = true
    letters.unbury(at, entry, fields)
    plan.write('DEL', job)
    plan.write('HSET', job, 'created_at', call.at, 'enqueued_at', call.at, 'data', letter[5] or fields.payload, 'description', letter[4],
      'origin', string.match(lane, '^rq:queue:(.*)$'), 'status', 'queued', 'timeout', '180', 'started_at', '',
      'ended_at', '', 'last_heartbeat', '', 'worker_name', '', 'group_id', '', 'success_callback_name', '',
      'failure_callback_name', '', 'stopped_callback_name', '', 'replays', digits((tonumber(fields.replays) or 0) + 1))
    plan.write('RPUSH', lane, id)
    plan.write('SADD', at.queues, lane)
    plan.count(at.totals, 'replayed', 1)
    results[n] = 1
  end
end
letters.write(at)
plan.commit(at.dead_ids)
return results

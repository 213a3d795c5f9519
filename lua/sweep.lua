-- Brings back what stock RQ workers or foreign maintenance left of one lane.
--
-- KEYS      1 lane          LIST  RQ's queue
--           2 intermediate  LIST  RQ's, ids that a stock worker popped and has not begun
--           3 failed, 4 deferred  ZSET  RQ's registries, member = job id
--           5 started       ZSET  RQ's registry, member = job id:execution id, score = seconds at which it is given up
--           6 abandoned     ZSET  id -> us at which it was first seen in the intermediate list; lives ten minutes after the last
--           7 ...           HASH  the RQ job of each of "jobs", in their order
-- ARGV[1]   JSON {"now": us | absent, "jobs": [[member, id, registry: KEYS position 3 to 5], ...]} jobs of ours found there
-- Returns   how many ids were put back on the lane
-- Not all keys come through KEYS: of a job that had waited for others, rq:job::<id>:dependencies (SET, RQ's, deleted here) names those,
--           and rq:job:<other>:dependents (SET, RQ's) of each names the job; and rq:results:<id> (STREAM, RQ's, deleted here)
--           has what stock workers said of a job. RQ deletes all three with jobs, ours end without it.
-- A job that was entered (was_adopted in include/prelude.lua) is under the dispatcher's own keys or settled: it is forgotten here,
-- never run twice.
-- @include prelude
-- @include plan

local ABANDONED_US = 60000000
local MOST_OTHERS = 100 -- that one job has waited for

local lane, intermediate, abandoned = KEYS[1], KEYS[2], KEYS[6]
local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local back = 0
redis.call('LLEN', lane)

for _, id in ipairs(redis.call('ZRANGEBYSCORE', abandoned, '-inf', digits(now - 3 * ABANDONED_US), 'LIMIT', 0, 1000)) do
  plan.zrem(abandoned, id) -- long gone, and may come again
end
for _, id in ipairs(redis.call('LRANGE', intermediate, 0, 99)) do
  local since = plan.zscore(abandoned, id)
  if not since then
    plan.zadd(abandoned, now, id)
    plan.keep_alive(abandoned, 10 * ABANDONED_US)
  elseif now - since >= ABANDONED_US then
    plan.zrem(abandoned, id)
    plan.write('LREM', intermediate, 0, id)
    plan.write('LPUSH', lane, id)
    back = back + 1
  end
end

-- Takes a job and those that it had waited for out of each other's sets.
local function forget_dependencies(id)
  local dependencies = 'rq:job::' .. id .. ':dependencies'
  local others = redis.pcall('SRANDMEMBER', dependencies, MOST_OTHERS)
  if others.err or #others == 0 then
    return
  end
  plan.write('DEL', dependencies)
  for _, other in ipairs(others) do
    local dependents = 'rq:job:' .. other .. ':dependents'
    if redis.pcall('SISMEMBER', dependents, id) == 1 then
      plan.write('SREM', dependents, id)
    end
  end
end

for n, entry in ipairs(call.jobs) do
  local member, id, registry, job = entry[1], entry[2], KEYS[entry[3]], KEYS[6 + n]
  if plan.zrem(registry, member) then
    forget_dependencies(id)
    local results = 'rq:results:' .. id
    if redis.pcall('EXISTS', results) == 1 then
      plan.write('DEL', results)
    end
    if was_adopted(unpack(redis.call('HMGET', job, 'adopted', 'created_at'))) then
      plan.write('DEL', job)
    elseif redis.call('EXISTS', job) == 1 then
      plan.write('HSET', job, 'status', 'queued')
      plan.write('RPUSH', lane, id)
      back = back + 1
    end
  end
end
plan.commit()
return back

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
-- A job that was entered ("adopted") is under the dispatcher's own keys or settled: it is forgotten here, never run twice.
-- @include prelude
-- @include plan

local ABANDONED_US = 60000000

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

for n, entry in ipairs(call.jobs) do
  local member, id, registry, job = entry[1], entry[2], KEYS[entry[3]], KEYS[6 + n]
  if plan.zrem(registry, member) then
    if redis.call('HEXISTS', job, 'adopted') == 1 then
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

-- Looks for events that somebody else removed from the queue: our producers enqueued them, and they are in no structure any more.
-- One call looks at the first ids of `enqueued`. It takes them off, and puts those that still wait back at the end.
--
-- @keys enqueued looked removed totals events seen dead_ids limited limited_older others others_older
-- KEYS      enqueued  LIST    as in enqueue.lua
--           looked    STRING  how many events had settled when the last look began; lives a day
--           removed   ZSET    id -> us at which it was missed; at most MOST_KEPT, for seven days after the last
--           others            as in take.lua and settle.lua
-- ARGV[1]   JSON {"now": us | absent, "most": how many ids to look at, "most_decisions": as in settle.lua,
--           "settled": as the first call of this look returned it | absent in that call, "ends": true | absent: in its last call}
-- Returns   [settled, id, ...]: how many events had settled when this look began, and the ids that were removed
-- A job that RQ has cancelled was removed, unless a stock worker has entered its event.
-- An event that a worker took is held, or has a decision. A decision is replaced at the earliest after half of "most_decisions"
-- further ones. If so many events may have settled since the last look began, nothing is known of an id that is not found.
-- The names of the jobs, rq:job:<id> (HASH, RQ's; one that was cancelled is deleted here), follow from the ids; rq:canceled:<queue>
-- (ZSET, RQ's) from the job.
-- @include prelude
-- @include plan

local LIVES_US, MOST_KEPT, KEPT_US = 86400000000, 10000, 604800000000

local at = K
local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)

local settled = 0
for _, total in ipairs(redis.call('HMGET', at.totals, 'sent', 'dropped', 'digested', 'dead', 'duplicate')) do
  settled = settled + count_of(total)
end
local is_known = 2 * (settled - (plan.number(at.looked) or 0)) <= call.most_decisions

local function is_present(id)
  for _, key in ipairs({ at.events, at.dead_ids, at.limited, at.limited_older, at.others, at.others_older }) do
    if redis.call('HEXISTS', key, id) == 1 then
      return true
    end
  end
  return redis.call('ZSCORE', at.seen, id) and true or false
end

-- Takes away what RQ leaves of a job that was cancelled before anybody took it; else the id would stay a duplicate. Returns whether it
-- is such a job.
local function cancel(id, job)
  local status, origin, adopted, created = unpack(redis.pcall('HMGET', job, 'status', 'origin', 'adopted', 'created_at'))
  if status ~= 'canceled' or was_adopted(adopted, created) then
    return false
  end
  plan.write('DEL', job)
  local registry = 'rq:canceled:' .. (origin or '')
  if type(redis.pcall('ZSCORE', registry, id)) == 'string' then
    plan.write('ZREM', registry, id)
  end
  return true
end

local ids = redis.call('LRANGE', at.enqueued, 0, call.most - 1)
local waiting, gone = {}, {}
for _, id in ipairs(ids) do
  local job = 'rq:job:' .. id
  local exists = redis.call('EXISTS', job) == 1
  local is_cancelled = exists and cancel(id, job)
  if exists and not is_cancelled then
    waiting[#waiting + 1] = id
  elseif is_cancelled or (is_known and not is_present(id)) then
    gone[#gone + 1] = id
    plan.zadd(at.removed, now, id)
  end
end
if #ids > 0 then
  plan.write_rows('RPUSH', at.enqueued, waiting, 1)
  plan.write('LTRIM', at.enqueued, #ids, -1)
  plan.keep_alive(at.enqueued, LIVES_US)
end
if #gone > 0 then
  plan.write('ZREMRANGEBYRANK', at.removed, 0, -MOST_KEPT - 1)
  plan.keep_alive(at.removed, KEPT_US)
end
if call.ends then
  plan.set_number(at.looked, call.settled or settled)
  plan.keep_alive(at.looked, 2 * LIVES_US, LIVES_US) -- always: to set a number ends its lifetime
end
plan.commit()
return { digits(call.settled or settled), unpack(gone) }

-- Keeps a worker's lease, or gives back what it no longer wants: those events are the next to be taken, in order.
--
-- @keys events leases leased requeued beat wake parked lines totals awaited deferred deciding freed timers posting
-- @keys scheduled endings paused cooldowns pause reopening later_high later_normal later_low
-- @prefixes line waits leased
-- KEYS      as in take.lua
-- ARGV[1]   JSON {"now": us | absent, "owner", "lease_us": 0 ends the lease, "since_us": as in include/leases.lua | absent,
--           "keep": [id, ...] | absent: give back every other event of this owner,
--           "grace_us": as in take.lua, "ring": true: wake another worker | absent,
--           "name": with keep: what all names begin with under which this owner may hold events; they are given up}
-- Returns   a list of three numbers: (1) how many events were given back; (2) 1 if there are more to give back, then call again;
--           (3) us until the owner must take even if nothing rings, 0 with keep. It must take when the first lease ends,
--           when the first job of RQ's registries is due, and now, if something is overdue: who was to wake for it may be busy or
--           hang. An event given back was not posted: this owner says so, and it lives. One that stood in a category's line goes back there, one that was to be reconciled on its timer.
--           [0, 0, 0]: the owner goes on under a newer name (include/leases.lua); nothing was changed.
-- @include prelude
-- @include plan
-- @include record
-- @include accounting
-- @include lines
-- @include deferred
-- @include pause
-- @include leases

local PAGE = 500 -- events that one call gives back
local OVERDUE_US = 500000 -- who was woken in time has taken what is due before that

local call = cjson.decode(ARGV[1])
local at = K
at.now = microseconds(call.now)
at.owner, at.grace_us, at.lease_us, at.since_us = call.owner, call.grace_us, call.lease_us, call.since_us
local returned, left = 0, PAGE

-- Late writes are fenced: each reconnection uses a new name. What is held under the former names goes over to this one.
local function gather()
  for _, owner in ipairs(redis.call('ZRANGE', at.leases, 0, 999)) do
    local is_ours = owner == call.name or string.sub(owner, 1, #call.name + 1) == call.name .. '/'
    if is_ours and owner ~= call.owner and left > 0 then
      local theirs = at.leased_prefix .. owner
      local ids = redis.call('SRANDMEMBER', theirs, left + 1)
      local is_all = #ids <= left
      ids[left + 1] = nil
      left = left - #ids
      for _, id in ipairs(ids) do
        plan.srem(theirs, id)
        plan.sadd(at.leased, id)
      end
      if is_all then
        plan.zrem(at.leases, owner)
        deferred.decided(at, owner)
      end
      left = is_all and left or 0
    end
  end
end

local function give_back(id)
  local header, payload, malformed = record.read(at, id)
  plan.srem(at.leased, id)
  if malformed then
    leases.set_apart(at, id)
  elseif header.line and not header.state then
    header.takes = (header.takes or 1) + 1 -- it may have been admitted
    deferred.line_up(at, id, header, payload)
  elseif header.unconfirmed then
    leases.await_scan(at, id, header, payload, at.now)
  else
    if header.state then
      header.state, header.attempt, header.held = nil, math.max(0, (header.attempt or 1) - 1), true -- admitted it stays
      header.posts = math.max(0, (header.posts or 1) - 1)
      record.write(at, id, header, payload)
    end
    plan.zadd(at.requeued, header.seq, id)
  end
  returned = returned + 1
end

-- The instant since which something may be taken.
local function due_at()
  local first = math.min(plan.zlowest(at.parked), plan.zlowest(at.scheduled), plan.zlowest(at.endings))
  if redis.call('HEXISTS', at.paused, '*') == 1 then
    return first
  end
  local _, probe = pause.until_of(at)
  return math.min(first, math.max(math.min(plan.zlowest(at.lines), plan.zlowest(at.timers)), probe or 0))
end

local function must_take_in()
  if plan.zfirst(at.requeued) or due_at() + OVERDUE_US <= at.now then
    return 0
  end
  local _, first = plan.zfirst(at.leases)
  first = math.max(first or at.now, leases.grace(at))
  local later = { at.later_high, at.later_normal, at.later_low }
  if redis.call('EXISTS', unpack(later)) > 0 then
    for _, key in ipairs(later) do
      first = math.min(first, (number_of(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge) * 1000000)
    end
  end
  return math.max(0, first - at.now)
end

if leases.is_former(at) then
  return { 0, 0, 0 }
end
if call.keep then
  gather()
  local kept = {}
  for _, id in ipairs(call.keep) do
    kept[id] = true
  end
  local ids = plan.smembers(at.leased, PAGE + #call.keep)
  for _, id in ipairs(ids) do
    if not kept[id] and returned < PAGE then
      give_back(id)
    end
  end
  deferred.decided(at, call.owner)
end
local is_held = plan.scard(at.leased) > 0
if call.lease_us > 0 then
  leases.renew(at)
elseif not is_held then
  plan.zrem(at.leases, call.owner)
else
  plan.zadd(at.leases, at.now, call.owner)
end
if returned > 0 or call.ring or call.lease_us == 0 then -- others may not know of an instant that this owner would have woken for
  plan.ring(at.wake)
end
local take_in_us = call.keep and 0 or must_take_in()
plan.commit(at.beat)
return { returned, call.keep and (left == 0 or returned >= PAGE) and 1 or 0, take_in_us }

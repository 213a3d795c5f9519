-- A worker's lease, and the beat that tells an interruption of the server from a quiet one: live workers call at least
-- every third of a lease, so half a lease without a call means that nobody could. Then live workers renew first:
-- for GRACE_US nobody is taken over.
local GRACE_US = 2000000

local function renew_lease(leases, beat, owner, lease_us, now)
  local last = tonumber(redis.call('HGET', beat, 'at'))
  if last ~= nil and now - last > lease_us / 2 then
    redis.call('HSET', beat, 'grace', digits(now + GRACE_US))
  end
  redis.call('HSET', beat, 'at', digits(now))
  redis.call('ZADD', leases, digits(now + lease_us), owner)
end

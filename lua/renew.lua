-- Keeps a worker's lease, or gives back what it no longer wants: those events are the next to be taken, in order.
--
-- KEYS      1 events, 2 leases, 3 leased, 4 orphans, 5 beat as in take.lua; 6 wake LIST a token for one sleeper
-- ARGV[1]   JSON {"now": us | absent, "owner", "lease_us": 0 ends the lease,
--           "keep": [id, ...] | absent: give back every other event of this owner}
-- Returns   the number of events given back. An event given back was not posted: this owner says so, and it lives.
-- @include prelude
-- @include record
-- @include lease

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local returned = 0
redis.call('HDEL', KEYS[5], '') -- a first write that a full server allows: after it the rest is allowed too
if call.keep then
  local kept = {}
  for _, id in ipairs(call.keep) do
    kept[id] = true
  end
  local rows = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local id = rows[i]
    if not kept[id] then
      local header, payload = read_record(redis.call('HGET', KEYS[1], id))
      if header.state then
        header.state, header.attempt, header.held = nil, header.attempt - 1, true -- admitted it stays
        write_record(KEYS[1], id, header, payload)
      end
      redis.call('ZADD', KEYS[4], rows[i + 1], id)
      redis.call('ZREM', KEYS[3], id)
      returned = returned + 1
    end
  end
end
if call.lease_us > 0 then
  renew_lease(KEYS[2], KEYS[5], call.owner, call.lease_us, now)
elseif redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('ZREM', KEYS[2], call.owner)
else
  redis.call('ZADD', KEYS[2], digits(now), call.owner)
end
if returned > 0 then
  redis.call('RPUSH', KEYS[6], '1')
  redis.call('LTRIM', KEYS[6], 0, 15)
end
return returned

-- Keeps a worker's lease, or gives back what it no longer wants: those events are the next to be taken, in order.
--
-- KEYS      1 events, 2 leases, 3 leased, 4 orphans, 5 beat as in take.lua; 6 wake LIST a token for one sleeper;
--           7 parked, 8 lines, 9 totals, 10 awaited, 11 deferred, 12 deciding, 13 freed, 14 timers as in take.lua
-- ARGV[1]   JSON {"now": us | absent, "owner", "lease_us": 0 ends the lease, "leased", "line", "waits": prefixes of keys,
--           "keep": [id, ...] | absent: give back every other event of this owner,
--           "name": with keep: what all names begin with under which this owner may hold events; they are given up}
-- Returns   the number of events given back. An event given back was not posted: this owner says so, and it lives. One that
--           stood in a category's line goes back there, one that was to be looked up on its timer.
-- @include prelude
-- @include record
-- @include lease
-- @include books
-- @include lines
-- @include deferred
-- @include looking

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local returned = 0
local at = {
  events = KEYS[1], parked = KEYS[7], lines = KEYS[8], totals = KEYS[9], awaited = KEYS[10], deferred = KEYS[11],
  deciding = KEYS[12], freed = KEYS[13], timers = KEYS[14], line = call.line, waits = call.waits, owner = call.owner, now = now,
}
redis.call('HDEL', KEYS[5], '') -- a first write that a full server allows: after it the rest is allowed too
if call.keep then
  -- What a call brings that arrives late under a name given up is nobody's, until the lease of that name ends.
  for _, owner in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local is_own = owner == call.name or string.sub(owner, 1, #call.name + 1) == call.name .. '/'
    if is_own and owner ~= call.owner then
      redis.call('SUNIONSTORE', KEYS[3], KEYS[3], call.leased .. owner)
      redis.call('DEL', call.leased .. owner)
      redis.call('ZREM', KEYS[2], owner)
      decided(at, owner)
    end
  end
  local kept = {}
  for _, id in ipairs(call.keep) do
    kept[id] = true
  end
  for _, id in ipairs(redis.call('SMEMBERS', KEYS[3])) do
    if not kept[id] then
      local header, payload = read_record(redis.call('HGET', KEYS[1], id))
      redis.call('SREM', KEYS[3], id)
      if header.line and not header.state then
        header.takes = (header.takes or 1) + 1 -- it may have been admitted
        stand(at, id, header, payload)
      elseif header.doubt then
        await_look(at, id, header, payload, now)
      else
        if header.state then
          header.state, header.attempt, header.held = nil, header.attempt - 1, true -- admitted it stays
          write_record(KEYS[1], id, header, payload)
        end
        redis.call('ZADD', KEYS[4], digits(header.seq), id)
      end
      returned = returned + 1
    end
  end
  decided(at, call.owner)
end
if call.lease_us > 0 then
  renew_lease(KEYS[2], KEYS[5], call.owner, call.lease_us, now)
elseif redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('ZREM', KEYS[2], call.owner)
else
  redis.call('ZADD', KEYS[2], digits(now), call.owner)
end
if returned > 0 then
  ring(KEYS[6])
end
return returned

-- One look at everything status shows and --check verifies, at one instant. Read-only.
--
-- KEYS      1 events 2 leases 3 orphans 4 parked 5 lines 6 timers 7 cooldowns 8 pause 9 totals 10 dead (see take.lua and
--           settle.lua); 11 to 13 the lanes, 14 to 16 the lanes' intermediate lists (RQ's); 17 awaited, 18 deferred
--           (include/deferred.lua), 19 paused, 20 muted (mute.lua), 21 tallies (include/tally.lua)
-- ARGV[1]   JSON {"now": us | absent, "leased", "line", "tally": prefixes of keys}
-- Returns   JSON {"now", "waiting", "events", "leased", "orphans", "parked", "timers", "next_timer": us | null,
--           "lines": {line: [count, next us | null, scope of a category's line | null]},
--           "deferred": {category: count}, "dead", "totals": {field: n},
--           "tallies": {id: [count, first instant, "lone" | where its own event is: "timer" | "line" | "hands"]},
--           "leases": {owner: end}, "cooldowns": {channel: until}, "pause": {...}, "paused": {"*" | category: JSON},
--           "muted": {category: JSON}};
--           instants are strings
-- @include prelude

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)

local function pairs_of(rows)
  local result = {}
  for i = 1, #rows, 2 do
    result[rows[i]] = rows[i + 1]
  end
  return result
end

local waiting = 0
for i = 11, 16 do
  waiting = waiting + redis.call('LLEN', KEYS[i])
end
local leases = pairs_of(redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'))
local leased = 0
for owner in pairs(leases) do
  leased = leased + redis.call('SCARD', call.leased .. owner)
end
local instants, lines = pairs_of(redis.call('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES')), {}
local function note(line, entry, scope)
  local at = instants[entry]
  lines[line] = { redis.call('ZCARD', call.line .. line), at and at ~= 'inf' and at or cjson.null, scope or cjson.null }
end
for entry in pairs(instants) do
  if not string.find(entry, '^scope:') then
    note(entry, entry)
  end
end
for line, scope in pairs(pairs_of(redis.call('HGETALL', KEYS[17]))) do
  note(line, 'scope:' .. scope, scope)
end
local tallies = {}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[21])) do
  local count, first, lone = unpack(redis.call('HMGET', call.tally .. id, 'count', 'first', 'lone'))
  local place = lone and 'lone' or redis.call('ZSCORE', KEYS[6], id) and 'timer' or redis.call('ZSCORE', KEYS[4], id) and 'line'
  if not lone or redis.call('ZSCORE', KEYS[6], lone) then -- it may have been cancelled
    tallies[id] = { tonumber(count or 0), first or '0', place or 'hands' }
  end
end
return cjson.encode({
  now = digits(now),
  waiting = waiting,
  events = redis.call('HLEN', KEYS[1]),
  leased = leased,
  orphans = redis.call('ZCARD', KEYS[3]),
  parked = redis.call('ZCARD', KEYS[4]),
  timers = redis.call('ZCARD', KEYS[6]),
  next_timer = redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')[2] or cjson.null,
  lines = lines,
  deferred = pairs_of(redis.call('HGETALL', KEYS[18])),
  dead = redis.call('XLEN', KEYS[10]),
  tallies = tallies,
  totals = pairs_of(redis.call('HGETALL', KEYS[9])),
  leases = leases,
  cooldowns = pairs_of(redis.call('ZRANGEBYSCORE', KEYS[7], '(' .. digits(now), '+inf', 'WITHSCORES')),
  pause = pairs_of(redis.call('HGETALL', KEYS[8])),
  paused = pairs_of(redis.call('HGETALL', KEYS[19])),
  muted = pairs_of(redis.call('HGETALL', KEYS[20])),
})

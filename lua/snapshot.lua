-- One look at everything status shows and --check verifies, at one instant. Read-only.
--
-- @prefixes leased line waits tally
-- It looks at each owner of a lease, each category and each silence, and at a bounded number of everything else: of many lines,
-- tallies and cool-downs it tells of some, and how much there is in all.
--
-- KEYS      1 events 2 leases 3 requeued 4 parked 5 lines 6 timers 7 cooldowns 8 pause 9 totals 10 dead (see take.lua and
--           settle.lua); 11 to 13 the lanes, 14 to 16 the lanes' intermediate lists (RQ's); 17 awaited, 18 deferred
--           (include/deferred.lua), 19 paused, 20 silences (include/silences.lua), 21 tallies (include/digest.lua), 22 scheduled,
--           23 endings of silences, 24 failures (include/pause.lua); and where "named" is given, 25 metrics (include/accounting.lua),
--           26 shadowed, 27 names
-- ARGV[1]   JSON {"now": us | absent, "named": how many names | absent}
-- Returns   [JSON {"now", "waiting", "events", "leased", "requeued", "parked", "timers", "next_timer": us | null, "scheduled", "next_scheduled": us | null,
--           "next_line": us | null, "deciding": entries of "lines" without an instant,
--           "lines": {line: [count, next us | null, scope of a category's line | null]}, of each kind those that may go soonest,
--           "has_all_lines", "deferred": {category: count}, "dead",
--           "tallies": {id: [count, first instant, "buffered" | where its digest message is: "timer" | "line" | "hands"]},
--           "all_tallies", "has_all_tallies",
--           "leases": {owner: end}, "cooldowns": {channel: until}, those that end soonest, "all_cooldowns",
--             "failures": {channel of "cooldowns": its posts in a row without a clear answer},
--           "pause": {...}, "paused": {"*" | category: JSON}, "silences": {id: JSON}, "endings": {id: when it ends if nothing more matches}, "suppressed": {id: how many},
--             and where "named" is given "lanes": [ids waiting, ...] of each lane, "heads": [when the job that is next of each was
--             enqueued, in RQ's form | false, ...], "named": the first so many names of categories that no limits file knew},
--           the books: [field, count, ...]; and where "named" is given metrics and shadowed, alike]; instants are strings
-- The keys of jobs, rq:job:<id>, follow from the ids.
-- @include prelude

local MOST_LINES = 200 -- lines of channels that are told of, and as many of categories
local MOST_ENTRIES = 2000 -- channels and scopes that are looked at for them
local MOST_TALLIES = 1000
local MOST_COOLDOWNS = 200

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)

local function first_score(key)
  return redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
end

local waiting = 0
for i = 11, 16 do
  waiting = waiting + redis.call('LLEN', KEYS[i])
end
local leases = pairs_of(redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'))
local leased = 0
for owner in pairs(leases) do
  leased = leased + redis.call('SCARD', K.leased_prefix .. owner)
end

local lines, of_channels, of_categories = {}, 0, 0
local entries = redis.call('ZRANGE', KEYS[5], 0, MOST_ENTRIES - 1, 'WITHSCORES')
local has_all_lines = #entries / 2 == redis.call('ZCARD', KEYS[5])
for i = 1, #entries, 2 do
  local entry, at = entries[i], entries[i + 1]
  local scope = string.match(entry, '^scope:(.*)$')
  local function note(line)
    lines[line] = { redis.call('ZCARD', K.line_prefix .. line), at ~= 'inf' and at or cjson.null, scope or cjson.null }
  end
  if scope then
    local room = MOST_LINES - of_categories
    for _, line in ipairs(room > 0 and redis.call('ZRANGE', K.waits_prefix .. scope, 0, room - 1) or {}) do
      if not lines[line] then -- else it waits for an earlier scope too
        note(line)
        of_categories = of_categories + 1
      end
    end
  elseif of_channels < MOST_LINES then
    note(entry)
    of_channels = of_channels + 1
  else
    has_all_lines = false
  end
end
has_all_lines = has_all_lines and of_categories == redis.call('HLEN', KEYS[17])

local tallies, all_tallies = {}, redis.call('SCARD', KEYS[21])
local has_all_tallies = all_tallies <= MOST_TALLIES
local told_tallies = has_all_tallies and redis.call('SMEMBERS', KEYS[21])
  or redis.call('SSCAN', KEYS[21], '0', 'COUNT', MOST_TALLIES)[2]
for _, id in ipairs(told_tallies) do
  local count, first, buffered = unpack(redis.call('HMGET', K.tally_prefix .. id, 'count', 'first', 'buffered'))
  local is_on_timer = redis.call('ZSCORE', KEYS[6], id)
  local place = buffered and 'buffered' or is_on_timer and 'timer' or redis.call('ZSCORE', KEYS[4], id) and 'line'
  tallies[id] = { tonumber(count or 0), first or '0', place or 'hands' }
end

local silences, suppressed = pairs_of(redis.call('HGETALL', KEYS[20])), {}
for id in pairs(silences) do
  suppressed[id] = tonumber(redis.call('HGET', K.tally_prefix .. 'silence:' .. id, 'count') or 0)
end

local cooling = '(' .. digits(now)
local cooldowns = pairs_of(redis.call('ZRANGEBYSCORE', KEYS[7], cooling, '+inf', 'WITHSCORES', 'LIMIT', 0, MOST_COOLDOWNS))
local failures = {}
for channel in pairs(cooldowns) do
  failures[channel] = count_of(redis.call('HGET', KEYS[24], channel))
end
local facts = {
  now = digits(now),
  waiting = waiting,
  events = redis.call('HLEN', KEYS[1]),
  leased = leased,
  requeued = redis.call('ZCARD', KEYS[3]),
  parked = redis.call('ZCARD', KEYS[4]),
  timers = redis.call('ZCARD', KEYS[6]),
  next_timer = first_score(KEYS[6]) or cjson.null,
  scheduled = redis.call('ZCARD', KEYS[22]),
  next_scheduled = first_score(KEYS[22]) or cjson.null,
  next_line = entries[2] and entries[2] ~= 'inf' and entries[2] or cjson.null,
  deciding = redis.call('ZCOUNT', KEYS[5], 'inf', 'inf'),
  lines = lines,
  has_all_lines = has_all_lines,
  deferred = pairs_of(redis.call('HGETALL', KEYS[18])),
  dead = redis.call('XLEN', KEYS[10]),
  tallies = tallies,
  all_tallies = all_tallies,
  has_all_tallies = has_all_tallies,
  leases = leases,
  cooldowns = cooldowns,
  failures = failures,
  all_cooldowns = redis.call('ZCOUNT', KEYS[7], cooling, '+inf'),
  pause = pairs_of(redis.call('HGETALL', KEYS[8])),
  paused = pairs_of(redis.call('HGETALL', KEYS[19])),
  silences = silences,
  endings = pairs_of(redis.call('ZRANGE', KEYS[23], 0, -1, 'WITHSCORES')),
  suppressed = suppressed,
}
if not call.named then
  return { cjson.encode(facts), redis.call('HGETALL', KEYS[9]) }
end
facts.lanes, facts.heads = {}, {}
for lane = 1, 3 do
  local jobs, taken = KEYS[10 + lane], KEYS[13 + lane]
  local head = redis.call('LINDEX', taken, -1) or redis.call('LINDEX', jobs, 0)
  facts.lanes[lane] = redis.call('LLEN', jobs) + redis.call('LLEN', taken)
  facts.heads[lane] = head and redis.pcall('HGET', 'rq:job:' .. head, 'enqueued_at')
  if type(facts.heads[lane]) ~= 'string' then -- the job is gone, or is none
    facts.heads[lane] = false
  end
end
facts.named = redis.call('ZRANGE', KEYS[27], 0, call.named - 1)
return { cjson.encode(facts), redis.call('HGETALL', KEYS[9]), redis.call('HGETALL', KEYS[25]), redis.call('HGETALL', KEYS[26]) }

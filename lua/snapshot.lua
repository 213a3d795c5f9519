-- One look at everything status shows and --check verifies, at one instant. Read-only. Who calls it reads the books in the same
-- transaction: HGETALL is five times as fast as a script that hands them on. A full Redis refuses a transaction: then "books" asks for
-- them here.
--
-- @keys events leases requeued parked lines timers cooldowns pause dead lane_high lane_normal lane_low
-- @keys taken_high taken_normal taken_low awaited deferred paused silences tallies scheduled endings failures totals
-- @keys metrics shadowed names
-- @prefixes leased line waits tally
-- It looks at each owner of a lease, each category with deferred events and each silence, and at a bounded number of everything else: of
-- many lines, tallies and cool-downs it tells of some, and how much there is in all. Where there are more than MOST_TALLIES tallies, it
-- looks at each event that workers hold or have left, too: to the books they must be known exactly.
--
-- KEYS      as in take.lua and settle.lua; and
--           taken_...   LIST    of each lane: ids that a stock worker popped and has not begun (RQ's intermediate lists)
--           shadowed    HASH    as in admit.lua
--           The last three are there where "named" is given.
-- ARGV[1]   JSON {"now": us | absent, "named": how many names | absent, "books": true | absent}
-- Returns   [JSON {"now", "waiting", "events", "leased", "requeued", "parked", "timers", "next_timer": us of the first event among them | null, "scheduled", "next_scheduled": us | null,
--           "next_line": us | null, "deciding": entries of "lines" without an instant,
--           "lines": {line: [count, next us | null, scope of a category's line | null]}, of each kind those that may go soonest,
--           "has_all_lines", "deferred": {category: count}, "dead",
--           "tallies": {id: [count, first instant, "buffered" | where its digest message is: "timer" | "line" | "hands"]},
--           "all_tallies", "has_all_tallies", "taken_digests": how many digest messages are leased or requeued | null where all tallies are told,
--           "leases": {owner: end}, "cooldowns": {channel: until}, those that end soonest, "all_cooldowns",
--             "failures": {channel of "cooldowns": its posts in a row without a clear answer},
--           "pause": {...}, "paused": {"*" | category: JSON}, "silences": {id: JSON}, "endings": {id: when it ends if nothing more matches}, "suppressed": {id: how many},
--             and where "named" is given "lanes": [ids waiting, ...] of each lane, "heads": [when the job that is next of each was
--             enqueued, in RQ's form | false, ...], "named": the first so many names of categories that no limits file knew};
--           and where "named" is given metrics and shadowed: [field, count, ...];
--           and where "books" is true these: [field, count, ...]]; instants are strings
-- The keys of jobs, rq:job:<id>, follow from the ids.
-- @include prelude

local MOST_LINES = 200 -- lines of channels that are told of, and as many of categories
local MOST_ENTRIES = 2000 -- channels and scopes that are looked at for them
local MOST_TALLIES = 1000
local MOST_COOLDOWNS = 200
local MOST_TIMERS = 200
local PAGE = 1000 -- ids that are looked at in one step
local LANES, TAKEN = { K.lane_high, K.lane_normal, K.lane_low }, { K.taken_high, K.taken_normal, K.taken_low }

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)

local function first_score(key)
  return redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
end

local function next_timer() -- that of a digest message, whose id has a colon, is none
  local timers = redis.call('ZRANGE', K.timers, 0, MOST_TIMERS - 1, 'WITHSCORES')
  for i = 1, #timers, 2 do
    if not string.find(timers[i], ':') then
      return timers[i + 1]
    end
  end
  return #timers == 2 * MOST_TIMERS and timers[2] or nil
end

local waiting = 0
for lane = 1, 3 do
  waiting = waiting + redis.call('LLEN', LANES[lane]) + redis.call('LLEN', TAKEN[lane])
end
local leases = pairs_of(redis.call('ZRANGE', K.leases, 0, -1, 'WITHSCORES'))
local leased = 0
for owner in pairs(leases) do
  leased = leased + redis.call('SCARD', K.leased_prefix .. owner)
end

local lines, of_channels, of_categories = {}, 0, 0
local entries = redis.call('ZRANGE', K.lines, 0, MOST_ENTRIES - 1, 'WITHSCORES')
local has_all_lines = #entries / 2 == redis.call('ZCARD', K.lines)
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
has_all_lines = has_all_lines and of_categories == redis.call('HLEN', K.awaited)

local tallies, all_tallies = {}, redis.call('SCARD', K.tallies)
local has_all_tallies = all_tallies <= MOST_TALLIES
local told_tallies = has_all_tallies and redis.call('SMEMBERS', K.tallies)
  or redis.call('SSCAN', K.tallies, '0', 'COUNT', MOST_TALLIES)[2]
for _, id in ipairs(told_tallies) do
  local count, first, buffered = unpack(redis.call('HMGET', K.tally_prefix .. id, 'count', 'first', 'buffered'))
  local is_on_timer = redis.call('ZSCORE', K.timers, id)
  local place = buffered and 'buffered' or is_on_timer and 'timer' or redis.call('ZSCORE', K.parked, id) and 'line'
  tallies[id] = { tonumber(count or 0), first or '0', place or 'hands' }
end

-- How many ids of a set or sorted set are of digest messages. What workers hold is small beside the tallies.
local function digests_in(command, key, width)
  local cursor, number = '0', 0
  repeat
    local page = redis.call(command, key, cursor, 'MATCH', '*:*', 'COUNT', PAGE)
    cursor, number = page[1], number + #page[2] / width
  until cursor == '0'
  return number
end

local taken_digests = not has_all_tallies and digests_in('ZSCAN', K.requeued, 2)
for owner in pairs(taken_digests and leases or {}) do
  taken_digests = taken_digests + digests_in('SSCAN', K.leased_prefix .. owner, 1)
end

local silences, suppressed = pairs_of(redis.call('HGETALL', K.silences)), {}
for id in pairs(silences) do
  suppressed[id] = tonumber(redis.call('HGET', K.tally_prefix .. 'silence:' .. id, 'count') or 0)
end

local cooling = '(' .. digits(now)
local cooldowns = pairs_of(redis.call('ZRANGEBYSCORE', K.cooldowns, cooling, '+inf', 'WITHSCORES', 'LIMIT', 0, MOST_COOLDOWNS))
local failures = {}
for channel in pairs(cooldowns) do
  failures[channel] = count_of(redis.call('HGET', K.failures, channel))
end
local facts = {
  now = digits(now),
  waiting = waiting,
  events = redis.call('HLEN', K.events),
  leased = leased,
  requeued = redis.call('ZCARD', K.requeued),
  parked = redis.call('ZCARD', K.parked),
  timers = redis.call('ZCARD', K.timers),
  next_timer = next_timer() or cjson.null,
  scheduled = redis.call('ZCARD', K.scheduled),
  next_scheduled = first_score(K.scheduled) or cjson.null,
  next_line = entries[2] and entries[2] ~= 'inf' and entries[2] or cjson.null,
  deciding = redis.call('ZCOUNT', K.lines, 'inf', 'inf'),
  lines = lines,
  has_all_lines = has_all_lines,
  deferred = pairs_of(redis.call('HGETALL', K.deferred)),
  dead = redis.call('XLEN', K.dead),
  tallies = tallies,
  all_tallies = all_tallies,
  has_all_tallies = has_all_tallies,
  taken_digests = taken_digests or cjson.null,
  leases = leases,
  cooldowns = cooldowns,
  failures = failures,
  all_cooldowns = redis.call('ZCOUNT', K.cooldowns, cooling, '+inf'),
  pause = pairs_of(redis.call('HGETALL', K.pause)),
  paused = pairs_of(redis.call('HGETALL', K.paused)),
  silences = silences,
  endings = pairs_of(redis.call('ZRANGE', K.endings, 0, -1, 'WITHSCORES')),
  suppressed = suppressed,
}
local more = {}
if call.named then
  facts.lanes, facts.heads = {}, {}
  for lane = 1, 3 do
    local jobs, taken = LANES[lane], TAKEN[lane]
    local head = redis.call('LINDEX', taken, -1) or redis.call('LINDEX', jobs, 0)
    facts.lanes[lane] = redis.call('LLEN', jobs) + redis.call('LLEN', taken)
    facts.heads[lane] = head and redis.pcall('HGET', 'rq:job:' .. head, 'enqueued_at')
    if type(facts.heads[lane]) ~= 'string' then -- the job is gone, or is none
      facts.heads[lane] = false
    end
  end
  facts.named = redis.call('ZRANGE', K.names, 0, call.named - 1)
  more = { redis.call('HGETALL', K.metrics), redis.call('HGETALL', K.shadowed) }
end
if call.books then
  more[#more + 1] = redis.call('HGETALL', K.totals)
end
return { cjson.encode(facts), unpack(more) }

-- Takes events for one worker, under its lease: waiting events that are due, events that dead workers left, then new
-- events from the lanes. At every instant each event is in some structure.
--
-- @keys events leases leased requeued parked lines timers posting pause beat seq totals seen dead_ids suspended
-- @keys lane_high lane_normal lane_low later_high later_normal later_low awaited deferred deciding wake limited limited_older
-- @keys limited_log others others_older freed paused cooldowns places limits_version silences silencing endings tallies names reopening turns failures scheduled
-- @prefixes line waits tally scope minute firing leased
-- KEYS      events      HASH    id -> record (include/record.lua) of an event, from its first sight until it is settled
--           leases      ZSET    owner -> end of its lease
--           leased      SET     ids that this owner holds; gone when empty
--           requeued    ZSET    id -> seq, events that their worker gave back or left, next to be taken, in order
--           parked      ZSET    id -> deadline, all events that wait
--           lines       ZSET    'channel:NAME' | 'paused:CATEGORY' | 'scope:NAME' -> instant at which the next may pass (include/lines.lua)
--           timers      ZSET    id -> instant at which the event is due
--           scheduled   ZSET    id -> instant from which on the event may ask for room
--           posting     HASH    channel -> id whose post is in flight or whose turn it is
--           pause       HASH    why posting is paused (include/pause.lua); absent otherwise
--           beat        HASH    at (last call of any worker), grace (until then no owner is taken over), resumed and earlier (ends of
--                               the last two interruptions), ahead and by (of the last step back of the clock: the last instant
--                               before it, and by how much); see include/leases.lua. lines: '1' where lines
--                               get one place more than timers the next time (include/due.lua), else '0'
--           seq         STRING  counter of first sights; permanent
--           totals      HASH    the books (include/accounting.lua); permanent
--           seen        ZSET    id -> instant at which a settled id is forgotten
--           dead_ids    HASH    id -> entry of the dead letter
--           suspended   RQ's key that suspends all workers
--           lane_...    LIST    the lanes high, normal, low (RQ's queues)
--           later_...   ZSET    of each lane: RQ job that a stock producer has scheduled -> second from which on it is due
--           awaited     HASH    line of a category -> scope it waits for (include/deferred.lua)
--           deferred    HASH    category -> how many stand in its lines
--           deciding    HASH    owner -> JSON {seq, since, scopes, freed, nth} of what it has not decided
--           wake        LIST    a token that wakes one worker that sleeps
--           limited ... HASH    the decision record (include/accounting.lua): limited, its older part, others, their older part;
--                               limited_log STREAM
--           freed       HASH    scope -> number of the last slot that became free, counted while some owner is deciding;
--                               '' -> how many became free, '*' -> a number that holds for all scopes
--           paused      HASH    "*" or category -> JSON, what is paused by hand
--           cooldowns   ZSET    channel -> end of its cool-down; also of history scans
--           places      HASH    channel as events name it -> Slack's id of it; permanent
--           limits_version STRING the limits in force (include/prelude.lua)
--           silences    HASH    id -> JSON; silencing HASH, endings ZSET: see include/silences.lua
--           tallies     SET     see include/digest.lua
--           names       ZSET    category that the books count by name -> its place by first sight; permanent
--           reopening   HASH    how far due.reopen has come with lines and timers (include/due.lua); absent otherwise
--           turns       HASH    channel -> turns taken in its line (include/lines.lua); gone when the line's last event is handed
--                               out; where that was cancelled or has expired, after the channel's next event
--           failures    HASH    channel -> its failures in a row (include/pause.lua); lives an hour after the last one
-- ARGV[1]   JSON {"now": us | absent, "owner", "lease_us", "since_us": as in include/leases.lua | absent,
--           "new": most requeued and new events. Waiting events that were taken use up places of "new", three quarters of them
--             at most,
--           "due": most waiting events that are due, "most_decisions",
--           "grace_us": from an unconfirmed post until it is reconciled,
--           "opened": {scope: [instant, room]} | absent: for each scope that this owner has asked about its last batch, the
--             instant from which on one more event may pass, and how many may pass at once,
--           "undecided": {"seq", "freed"} | absent: with it the call is a prefetch. The owner is still deciding what it took
--             before; the two are "from" and "freed" of that answer. Then the call hands out nothing that may not be prefetched:
--             no heads of categories' lines, no requeued or scheduled events, nothing that must be taken alone,
--           "starts": true for the first take of a worker,
--           "fingerprint": of the credential that the owner posts with from now on (include/pause.lua) | absent: as before,
--           "version": of the limits by which "opened" and ARGV[2] were found | absent; both are ignored if another is in force,
--           "adopt": {"id", "payload"} | absent: enter this one event instead of new events from the lanes,
--           "silences": version of the silences that the worker knows | absent: it knows none,
--           "wordless": true: the record keeps no texts of what the pre-check drops | absent, "remember_us": as in settle.lua}
-- ARGV[2]   absent, or what include/intake.lua needs to drop new events by the pre-check; ARGV[3] absent, or the marks that the
--           worker gives for jobs without one
-- Returns   [JSON {"now", "version": in force | null, "next": us | null (next instant at which an event may be taken),
--           "next_busy": the same for an owner that can post nothing, "lease": us from which on the first lease has ended and its events may be taken over,
--           "posts_wait": whether parked events wait for a sender, "more": there is more to take, "suspended",
--           "silences": {"version", "rows": {id: JSON}} | absent: those of the call, "duplicates": [id, ...],
--           "refused": [[category, position of the scope, of its window, us until there is room, "id id ..."], ...] | null: dropped
--             by the pre-check; of repeats the scope's name, and its window in us, in place of the positions,
--           "unmarked": whether the pre-check looked at an event without a mark,
--           "from": no event that is taken here or later has a lower seq; null if this batch must be decided before the owner
--             takes anything else,
--           "freed": how many slots have become free (include/deferred.lua), "nth": number of this call in the row of calls with
--             "undecided"; 0 without it,
--           "ids": the ids of the batch, separated by blanks, "sizes": [bytes of each record, ...],
--           "seqs": [seq of an event that is new, whose record is its payload alone; else 0, ...]}, the records]. A record with
--             the header {"malformed": true} belongs to an event whose own header cannot be read.
--             []: the owner goes on under a newer name (include/leases.lua); nothing was changed.
-- Not all keys come through KEYS: the names rq:job:<id> (HASH, RQ's, deleted here) and leased, line, waits, tally, scope, minute
-- and firing keys are built from what was found. All but RQ's share the namespace's hash tag.
-- @include prelude
-- @include plan
-- @include record
-- @include slots
-- @include accounting
-- @include lines
-- @include deferred
-- @include pause
-- @include leases
-- @include digest
-- @include gate
-- @include silences
-- @include intake
-- @include due

-- Marks of a worker are for as many jobs as a call looks at: _LOOKS and _MOST_LOOKS of store/stock_jobs.py are these too.
local LOOKS = 8 -- with the pre-check, a call looks at up to so many times as many new events as it may hand out
local MOST_LOOKS = ARGV[3] and 512 or 1024 -- but at no more than these, unless it may hand out more; marks of a worker cost more
local MOST_LARGE = 8 -- events of the lane low that are handed out even if those before them have filled the batch
local MOST_LATER = 100 -- scheduled jobs that come to their lane in one call

local call = cjson.decode(ARGV[1])
local at = K
at.now = microseconds(call.now)
at.owner, at.new, at.due, at.undecided, at.grace_us = call.owner, call.new, call.due, call.undecided, call.grace_us
at.remember_us, at.most_decisions, at.is_wordless = call.remember_us, call.most_decisions, call.wordless
at.lease_us, at.since_us = call.lease_us, call.since_us

local LANES = { 'lane_high', 'lane_normal', 'lane_low' }
local lengths, waiting = {}, 0 -- of the lanes

-- Reads keys, so that an ACL without rq:job:*, or a key of another type, raises here: before the first write, and before an
-- event is taken whose end could not be stored.
local function look_at_keys()
  for n, lane in ipairs(LANES) do
    lengths[n] = redis.call('LLEN', at[lane])
    waiting = waiting + lengths[n]
  end
  if waiting > 0 or call.adopt then
    redis.call('EXISTS', 'rq:job:' .. call.owner)
    for _, key in ipairs({ at.limited, at.limited_older, at.others, at.others_older }) do
      redis.call('HLEN', key)
    end
    redis.call('ZCARD', at.names)
    intake.look(at)
  end
  redis.call('SCARD', at.leased)
end

-- Takes over from owners whose lease has ended, in all up to a page of events. Returns whether all of that is done.
local function reclaim(grace)
  local left, is_done = leases.PAGE, true
  for _, owner in ipairs(at.now >= grace and plan.zdue(at.leases, at.now, 4) or {}) do
    if is_done then
      local taken_over
      taken_over, is_done = leases.take_over(at, owner, at.leased_prefix .. owner, left)
      left = left - taken_over
    end
  end
  return is_done
end

-- How many of so many events come from the lane low: one in sixteen, however many are taken at once, so that it never
-- starves.
local function low_share(room)
  local seq = record.last_seq(at)
  return math.floor((seq + room) / 16) - math.floor(seq / 16)
end

-- Takes new events from the lanes. Returns whether the lanes hold more.
local function take_new(closed)
  if closed and ARGV[3] then
    intake.give_marks(ARGV[3])
  end
  local is_left, has_looked, is_guarded = false, false, nil
  local function refusal_of(mark)
    if not has_looked then
      has_looked, is_guarded = true, silences.guard(at)
    end
    return intake.refusal(at, closed, mark, is_guarded)
  end
  local room = intake.room(at)
  local looks = closed and math.max(room, math.min(LOOKS * room, MOST_LOOKS)) or room
  local lows = lengths[3]
  local low_looks, low = math.min(lows, low_share(looks)), math.min(lows, low_share(room))
  for n, lane in ipairs(waiting > 0 and LANES or {}) do
    local is_low = lane == 'lane_low'
    local kept_looks, kept = is_low and 0 or low_looks, is_low and 0 or low
    local most, rest = math.floor(looks - kept_looks), math.floor(room - kept)
    if lengths[n] > 0 then
      local looked, gone, is_cut = intake.take_lane(at, at[lane], most, rest, is_low and math.min(low, MOST_LARGE) or 0, closed and refusal_of or nil)
      looks, room = looks - looked, room - looked + gone
      is_left = is_left or lengths[n] > looked
      if is_cut and lengths[n] > looked then -- the others of this lane come first; the lane low keeps its share
        looks, room = low_looks, low
      end
    end
  end
  return is_left
end

-- Puts jobs that are scheduled and due on their lanes; the next call takes them. Returns whether there were any, and the
-- instant of the first that is not due.
local function put_on_lanes()
  local is_any, first_at, second = false, math.huge, digits(math.floor(at.now / 1000000))
  if redis.call('EXISTS', at.later_high, at.later_normal, at.later_low) == 0 then
    return false, math.huge
  end
  for lane, later in pairs({ [at.lane_high] = at.later_high, [at.lane_normal] = at.later_normal, [at.lane_low] = at.later_low }) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', later, '-inf', second, 'LIMIT', 0, MOST_LATER)) do
      local job = 'rq:job:' .. id
      local kind = redis.call('TYPE', job).ok
      plan.write('ZREM', later, id)
      if kind == 'hash' then
        plan.write('HSET', job, 'status', 'queued')
      end
      if kind ~= 'none' then -- else somebody has deleted it
        plan.write('RPUSH', lane, id)
        is_any = true
      end
    end
    local following = redis.call('ZRANGEBYSCORE', later, '(' .. second, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    first_at = math.min(first_at, number_of(following[2] or 'inf') * 1000000)
  end
  return is_any, first_at
end

local function adopt()
  local job = 'rq:job:' .. call.adopt.id
  local _, replays, is_old = intake.read_job(job)
  if redis.call('EXISTS', job) == 1 then
    plan.write('HSET', job, 'adopted', adoption_of(redis.call('HGET', job, 'created_at'))) -- RQ may bring the job back
    plan.write('HDEL', job, 'category') -- then the pre-check ends no event without a mark
  end
  intake.enter(at, { call.adopt.id }, { intake.receive(at, 1) + 1 }, { call.adopt.payload }, { replays }, { is_old })
end

-- Notes from which seq on this owner has not decided. Returns how many slots have become free, and the number of the call.
local function mark_undecided(mark)
  local nth = call.undecided and count_of(mark and mark.nth) + 1 or 0
  local freed = count_of(plan.hget(at.freed, ''))
  local undecided = intake.undecided()
  if undecided or call.undecided then
    local before = call.undecided or { seq = undecided, freed = freed }
    plan.hset(at.deciding, call.owner, cjson.encode({
      seq = math.min(before.seq, undecided or before.seq), since = digits(at.now), scopes = due.heads_of,
      freed = mark and math.min(before.freed, freed) or freed, nth = nth,
    }))
  end
  return freed, nth
end

-- All silences, if the worker knows another version of them.
local function silences_of(known)
  local version = silences.version(at)
  return version ~= known and { version = version, rows = plan.hgetall(at.silences) } or nil
end

if leases.is_former(at) then
  return {}
end
look_at_keys()
leases.renew(at)
local grace = leases.grace(at)
local version = redis.call('GET', at.limits_version)
local is_stale = call.version and version ~= call.version
local opened = not is_stale and call.opened or nil
local mark = deferred.decided(at, call.owner, opened, call.undecided)
silences.end_due(at)
if call.starts then -- its limits may differ from those by which the instants were found: each scope is asked again
  plan.hset(at.reopening, 'scopes', digits(at.now) .. ' 0')
end
if call.fingerprint and pause.let_newcomer_try(at, call.fingerprint) then
  plan.hset(at.reopening, 'paused', digits(at.now) .. ' 0')
end
local more = not due.reopen(at)
local is_suspended = redis.call('EXISTS', at.suspended) == 1
at.is_stopped = redis.call('HEXISTS', at.paused, '*') == 1 -- paused by hand: no post, no probe
local may_hand_out = reclaim(grace) and not is_suspended
more = more or not (may_hand_out or is_suspended)
local left_due = 0
if may_hand_out then
  due.take_poison_candidate(at)
  if not due.is_alone() then
    due.take_expired(at)
    left_due = due.take_due(at, opened)
    intake.was_due = intake.count()
    due.take_requeued(at)
    due.take_scheduled(at)
  end
end
if call.adopt then
  adopt()
elseif may_hand_out and not due.is_alone() then
  more = take_new(not is_stale and ARGV[2] or nil) or more
end
more = more or due.is_alone()
local has_put, later_at = put_on_lanes()
more = more or has_put
if mark and left_due == 0 and plan.zlowest(at.lines) <= at.now then
  plan.ring(at.wake) -- others may have waited for the decision of this owner
end
intake.end_groups(at)
local freed, nth = mark_undecided(mark)
intake.note_duplicates(at)
local old_waits, is_cut = due.has_left()
if may_hand_out and (plan.zfirst(at.requeued) or due.has_scheduled(at)) then
  more, old_waits = true, true
end
more = more or (is_cut and left_due > 0)
local next_at, busy_at, posts_wait = due.come_again(at, is_suspended)
if not is_suspended then
  next_at, busy_at = math.min(next_at, later_at), math.min(busy_at, later_at)
end
local _, lease_ends_at = plan.zfirst(at.leases)
local has_to_decide = due.is_alone() or intake.any_old or old_waits
local facts = {
  now = digits(at.now),
  version = version or cjson.null,
  next = next_at < math.huge and digits(next_at) or cjson.null,
  next_busy = busy_at < math.huge and digits(busy_at) or cjson.null,
  lease = digits(math.max(lease_ends_at or 0, grace)),
  posts_wait = posts_wait,
  more = more,
  suspended = is_suspended,
  from = has_to_decide and cjson.null or digits(intake.undecided() or record.last_seq(at) + 1),
  freed = freed,
  nth = nth,
  silences = silences_of(call.silences),
  unmarked = intake.has_unmarked,
}
intake.write(at)
local records = intake.told(facts)
local answer = cjson.encode(facts)
accounting.write(at)
plan.commit(at.beat)
return { answer, records }

-- The slots of one scope: a sorted set, member = the id that owns the slot, score = instant of its charge.
--
-- A held slot belongs to an admitted event that waits. Its score is HELD + deadline, so held slots sort above
-- all others; from its deadline on a held slot counts as absent. Held slots count in windows of a minute or
-- more and in fixed ones; shorter windows skip them.
local HELD = 4503599627370496 -- 2^52
local HOLDING_WINDOW = 60000000
local MAX, US, KIND = 1, 2, 3 -- of a window: { max, us } or { max, us, 'fixed' }

-- From when on a slot charged at `score` leaves the window free again.
local function leaves(score, window)
  if window[KIND] == 'fixed' then
    return (math.floor(score / window[US]) + 1) * window[US]
  end
  return score + window[US]
end

local function counts_held(window)
  return window[KIND] == 'fixed' or window[US] >= HOLDING_WINDOW
end

-- A view of one scope at one instant; `added` slots of this call are charged at `now` but not written yet. `store` says
-- how its slots are kept: SLOTS (here) or one of include/log.lua. What is read is read when it is needed.
local SLOTS = { ids = true }
local function open_scope(key, windows, now, store)
  return { key = key, windows = windows, now = now, store = store or SLOTS, adding = 0, added = {}, own = {} }
end

-- Forgets what was read of the scope, since something was written.
local function reset(view)
  view.from, view.at, view.live, view.fewer = nil, nil, nil, nil
end

-- The largest of the scope's windows, by `field`.
local function largest(view, field)
  local most = 0
  for _, window in ipairs(view.windows) do
    most = math.max(most, window[field])
  end
  return most
end

-- Learns how many slots are held (live, lapsed), and whether the clock was stepped back (ahead).
function SLOTS.look(view)
  view.live, view.lapsed = 0, 0
  local newest = redis.call('ZRANGE', view.key, -1, -1, 'WITHSCORES')
  if newest[2] and tonumber(newest[2]) >= HELD then
    view.live = redis.call('ZCOUNT', view.key, '(' .. digits(HELD + view.now), '+inf')
    view.lapsed = redis.call('ZCOUNT', view.key, digits(HELD), digits(HELD + view.now))
    local below = -(view.live + view.lapsed + 1)
    newest = redis.call('ZRANGE', view.key, below, below, 'WITHSCORES')
  end
  view.ahead = newest[2] ~= nil and tonumber(newest[2]) > view.now
end

-- The scores from the i-th newest slot on to `count - 1` newer ones, in this order; nil beyond the oldest.
function SLOTS.scores(view, i, count)
  local rows = redis.call('ZRANGE', view.key, -i, -(i - count + 1), 'WITHSCORES')
  local scores, missing = {}, count - #rows / 2
  for j = 1, #rows / 2 do
    scores[missing + j] = tonumber(rows[2 * j])
  end
  return scores
end

-- Score of the i-th newest stored slot, held ones included; nil beyond the oldest. Read in chunks: admissions of one call
-- walk from old to new.
local function stored(view, i)
  local place = view.from and view.from - i + 1
  if not place or place < 1 or place > view.count then
    local count = place and math.min(32, i) or 1
    view.from, view.count, view.scores, place = i, count, view.store.scores(view, i, count), 1
  end
  if not view.scores[place] then
    view.fewer = i -- than so many are stored
  end
  return view.scores[place]
end

-- Score of the k-th newest charged slot, leaving out `own` (the score of the id that asks, if it has one).
local function charged(view, k, own)
  local adding = view.adding
  if k <= adding then
    return view.now
  end
  local above = view.live + view.lapsed - adding
  local score = stored(view, above + k)
  if own and own < HELD and score and own >= score then
    score = stored(view, above + k + 1)
  end
  return score
end

-- Drops as many of the oldest as no window can count, one for each added and a few more. One more than the largest limit
-- is kept: an id that asks again is left out of the count.
local function trim(view)
  local kept = largest(view, MAX) + 1
  if view.fewer and view.fewer - 1 + view.adding <= kept then
    return
  end
  local surplus = redis.call('ZCARD', view.key) - kept
  if surplus <= 0 then
    return
  end
  SLOTS.look(view)
  if view.lapsed > 0 then
    redis.call('ZREMRANGEBYSCORE', view.key, digits(HELD), digits(HELD + view.now))
  end
  surplus = surplus - view.lapsed - view.live
  if surplus > 0 then
    redis.call('ZREMRANGEBYRANK', view.key, 0, math.min(surplus, 2 * view.adding + 16) - 1)
  end
end

function SLOTS.add(view)
  local now = digits(view.now)
  for first = 1, view.adding, 1000 do
    local row = {}
    for i = first, math.min(first + 999, view.adding) do
      local id = view.added[i]
      local at = view.own[id] -- where it goes, unless that is now
      row[#row + 1] = (not at or at == view.now) and now or digits(at)
      row[#row + 1] = id
    end
    redis.call('ZADD', view.key, unpack(row))
  end
  trim(view)
  local longest = largest(view, US)
  keep_alive(view.key, longest, 2 * longest)
end

-- Writes what was added.
local function write_slots(view)
  if view.adding > 0 then
    view.store.add(view)
    view.added, view.adding = {}, 0
    reset(view)
  end
end

-- Deadline of the i-th held slot by deadline.
local function lapse(view, i)
  local rank = -(view.live + 1) + i
  return tonumber(redis.call('ZRANGE', view.key, rank, rank, 'WITHSCORES')[2]) - HELD
end

-- How many held slots count against the id that asks: all, but for one that owns a held slot itself only those that end
-- before its own. So when limits were lowered below what is held, the oldest still finds room.
local function held_before(view, own, id)
  if own and own > HELD + view.now then
    return redis.call('ZRANK', view.key, id) - (redis.call('ZCARD', view.key) - view.live)
  end
  return view.live
end

-- The instant from which the window has room for one more; at or before `now` it has room already.
-- Of n slots that count, the window has room once the (n - max + 1) that leave first have left; charged and
-- held slots leave in two sorted sequences, so that one is found by bisection.
local function room_at(view, window, own, id)
  local store, max = view.store, window[MAX]
  if store.room_at then
    return store.room_at(view, window)
  end
  if max > view.adding then -- room at a glance: even if all slots counted, too few of them have not left
    local score = stored(view, max - view.adding)
    if not score or (score < HELD and leaves(score, window) <= view.now) then
      return 0
    end
  end
  if not view.live then
    store.look(view)
    if view.ahead and view.adding > 0 then -- what was added is not the newest
      write_slots(view)
      store.look(view)
    end
  end
  local held = 0
  if view.live > 0 and counts_held(window) then
    if own and own > HELD + view.now and SLOTS.used(view, window) <= max then
      return 0 -- at a glance: one of those that count is its own
    end
    held = held_before(view, own, id)
  end
  if held == 0 then
    local score = charged(view, max, own)
    return score and leaves(score, window) or 0
  end
  if held < max then
    local score = charged(view, max - held, own)
    if not score or leaves(score, window) <= view.now then
      return 0
    end
  end
  local low, high = 0, redis.call('ZCARD', view.key) + view.adding
  while low < high do -- how many charged slots still count in the window
    local middle = math.floor((low + high + 1) / 2)
    local score = charged(view, middle, own)
    if score and leaves(score, window) > view.now then
      low = middle
    else
      high = middle - 1
    end
  end
  local counted = low
  local go = held + counted - max + 1
  low, high = math.max(0, go - counted), math.min(held, go)
  while low < high do -- the fewest held slots among the first `go` that leave
    local from_held = math.floor((low + high) / 2)
    local next_charged = charged(view, counted - (go - from_held) + 1, own)
    if leaves(next_charged, window) <= lapse(view, from_held + 1) then
      high = from_held
    else
      low = from_held + 1
    end
  end
  local instant = 0
  if low > 0 then
    instant = lapse(view, low)
  end
  if go - low > 0 then
    instant = math.max(instant, leaves(charged(view, counted - (go - low) + 1, own), window))
  end
  return instant
end

-- Latest instant over the scope's windows, and which window that is. Kept: a denial changes nothing.
local function scope_room_at(view, own, id)
  if not own and view.at then
    return view.at, view.which
  end
  local at, which = 0, 1
  for i, window in ipairs(view.windows) do
    local free = room_at(view, window, own, id)
    if free > at then
      at, which = free, i
    end
  end
  if not own then
    view.at, view.which = at, which
  end
  return at, which
end

-- How many slots count in the window now, held ones included.
function SLOTS.used(view, window)
  local from = window[KIND] == 'fixed' and digits(math.floor(view.now / window[US]) * window[US])
    or '(' .. digits(view.now - window[US])
  return redis.call('ZCOUNT', view.key, from, '(' .. digits(HELD)) + (counts_held(window) and view.live or 0)
end

-- Marks the slot of `id` as held until `deadline`; an id without a slot gets none.
local function hold_slot(key, id, deadline, now)
  if redis.call('ZADD', key, 'XX', 'CH', digits(HELD + deadline), id) == 1 then
    keep_alive(key, deadline - now)
  end
end

local function release_slot(key, id)
  return redis.call('ZREM', key, id)
end

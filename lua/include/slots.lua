-- The slots of one scope: a sorted set, member = the id that owns the slot, score = instant of its charge.
--
-- A held slot belongs to an admitted event that waits. Its score is HELD + deadline, so held slots sort above
-- all others; from its deadline on a held slot counts as absent. Held slots count in windows of a minute or
-- more and in fixed ones; shorter windows skip them.
local HELD = 4503599627370496 -- 2^52
local HOLDING_WINDOW = 60000000

-- From when on a slot charged at `score` leaves the window free again.
local function leaves(score, window)
  if window.fixed then
    return (math.floor(score / window.us) + 1) * window.us
  end
  return score + window.us
end

local function counts_held(window)
  return window.fixed or window.us >= HOLDING_WINDOW
end

-- A view of one scope at one instant; `added` slots of this call are charged at `now` but not written yet.
local function open_scope(key, windows, now)
  local view = { key = key, windows = {}, now = now, size = 0, longest = 0, added = {}, adding = 0, own = {}, cache = {} }
  for i, w in ipairs(windows) do
    view.windows[i] = { max = w[1], us = w[2], fixed = w[3] == 'fixed' }
    view.size = math.max(view.size, w[1])
    view.longest = math.max(view.longest, w[2])
  end
  return view
end

local function refresh(view)
  view.live, view.lapsed, view.chunk, view.cache = 0, 0, nil, {}
  local newest = redis.call('ZRANGE', view.key, -1, -1, 'WITHSCORES')
  if newest[2] and tonumber(newest[2]) >= HELD then
    view.live = redis.call('ZCOUNT', view.key, '(' .. digits(HELD + view.now), '+inf')
    view.lapsed = redis.call('ZCOUNT', view.key, digits(HELD), digits(HELD + view.now))
    local below = -(view.live + view.lapsed + 1)
    newest = redis.call('ZRANGE', view.key, below, below, 'WITHSCORES')
  end
  view.ahead = newest[2] ~= nil and tonumber(newest[2]) > view.now -- the clock was stepped back
end

-- Score of the i-th newest stored slot that is not held; nil beyond the oldest. Read in chunks: admissions of
-- one call walk from old to new.
local function stored(view, i)
  local held = view.live + view.lapsed
  local chunk = view.chunk
  if not chunk or i > chunk.from or i <= chunk.from - chunk.count then
    local count = chunk and math.min(32, i) or 1
    local rows = redis.call('ZRANGE', view.key, -(held + i), -(held + i - count + 1), 'WITHSCORES')
    chunk = { from = i, count = count, scores = {} }
    local missing = count - #rows / 2 -- the set is shorter than asked for: the oldest of the chunk are absent
    for j = 1, #rows / 2 do
      chunk.scores[missing + j] = tonumber(rows[2 * j])
    end
    view.chunk = chunk
  end
  return chunk.scores[chunk.from - i + 1]
end

-- Score of the k-th newest charged slot, leaving out `own` (the score of the id that asks, if it has one).
local function charged(view, k, own)
  local adding = view.adding
  if k <= adding then
    return view.now
  end
  local score = stored(view, k - adding)
  if own and own < HELD and score and own >= score then
    score = stored(view, k - adding + 1)
  end
  return score
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
  local held = 0
  if view.live > 0 and counts_held(window) then
    held = held_before(view, own, id)
  end
  if held == 0 then
    local score = charged(view, window.max, own)
    return score and leaves(score, window) or 0
  end
  if held < window.max then
    local score = charged(view, window.max - held, own)
    if not score or leaves(score, window) <= view.now then
      return 0
    end
  end
  local low, high = 0, view.size + redis.call('ZCARD', view.key) + view.adding
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
  local go = held + counted - window.max + 1
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

-- Latest instant over the scope's windows, and which window that is. Cached: a denial changes nothing.
local function scope_room_at(view, own, id)
  if not own and view.cache.at then
    return view.cache.at, view.cache.window
  end
  local at, which = 0, 1
  for i, window in ipairs(view.windows) do
    local free = room_at(view, window, own, id)
    if free > at then
      at, which = free, i
    end
  end
  if not own then
    view.cache = { at = at, window = which }
  end
  return at, which
end

-- Keeps the key for as long as any of its slots can count. Lifetimes are whole milliseconds.
local function keep_alive(key, span_us, renew_us)
  if redis.call('PTTL', key) < math.ceil(span_us / 1000) then
    redis.call('PEXPIRE', key, math.ceil((renew_us or span_us) / 1000) + 1)
  end
end

-- Where the slot of `id` goes when it is charged: to now, never back behind where it was.
local function moved_to(view, id)
  local owned = view.own[id]
  return owned and owned < HELD and math.max(owned, view.now) or view.now
end

-- Writes what was added; drops as many of the oldest as no window can count, one for each added and a few more. One
-- more than the largest limit is kept: an id that asks again is left out of the count.
local function write_slots(view)
  if view.adding == 0 then
    return
  end
  -- Also where nothing has lapsed: a first write that a full server allows, after which the rest is allowed too.
  redis.call('ZREMRANGEBYSCORE', view.key, digits(HELD), digits(HELD + view.now))
  for first = 1, view.adding, 1000 do
    local row = {}
    for i = first, math.min(first + 999, view.adding) do
      row[#row + 1] = digits(moved_to(view, view.added[i]))
      row[#row + 1] = view.added[i]
    end
    redis.call('ZADD', view.key, unpack(row))
  end
  local surplus = redis.call('ZCARD', view.key) - (view.size + 1) - view.live
  if surplus > 0 then
    redis.call('ZREMRANGEBYRANK', view.key, 0, math.min(surplus, 2 * view.adding + 16) - 1)
  end
  keep_alive(view.key, view.longest, 2 * view.longest)
  view.added, view.adding = {}, 0
end

-- Marks the slot of `id` as held until `deadline`; an id without a slot gets none.
local function hold_slot(key, id, deadline, now)
  if redis.call('ZADD', key, 'XX', 'CH', digits(HELD + deadline), id) == 1 then
    keep_alive(key, deadline - now)
  end
end

local function release_slot(key, id)
  redis.call('ZREM', key, id)
end

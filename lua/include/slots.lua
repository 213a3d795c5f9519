-- The slots of one scope: a sorted set, member = the id that owns the slot, score = instant of its charge.
--
-- A held slot belongs to an admitted event that waits. Its score is HELD + deadline, so held slots sort above all others; from
-- its deadline on a held slot counts as absent. Held slots count in windows of a minute or more and in fixed ones; shorter
-- windows skip them.
--
-- An id with a cost owns several slots, members ID#0001, ID#0002, ... of one score. The trim drops the first of them first, so
-- the last tells whether the id owns any. An id with a cost has 16 characters and no other id is longer, so no two share a member.
--
-- A window of the kind 'once' is rolling, and counts held slots however short it is. `members` of its view, where it has
-- some, are the members of ids (slots.member).
--
-- A view is one scope at one instant. Nothing is written before `slots.write`: a view knows what this call has charged (all at
-- `now`) and which stored slots it has taken away, and counts as if both were written.
local slots = module(function(slots)
  local HELD, MAX, US, KIND = 4503599627370496, 1, 2, 3 -- 2^52; fields of a window { max, us } or { max, us, 'fixed' | 'once' }
  slots.MAX, slots.US, slots.KIND = MAX, US, KIND
  local HOLDING_WINDOW = 60000000
  local call = redis.call
  local costs = {} -- of an id that takes several slots at once: how many
  slots.costs = costs
  local SET = { ids = true } -- how the slots of a sorted set are kept; log_stores has two other ways

  -- From when on a slot charged at `score` leaves the window free again.
  local function leaves(score, window)
    if window[KIND] == 'fixed' then
      return (math.floor(score / window[US]) + 1) * window[US]
    end
    return score + window[US]
  end
  slots.leaves = leaves

  local function counts_held(window)
    return window[KIND] == 'fixed' or window[KIND] == 'once' or window[US] >= HOLDING_WINDOW
  end
  slots.counts_held = counts_held

  function slots.open(key, windows, now, store)
    return {
      key = key, windows = windows, now = now, store = store or SET,
      own = {}, owned = {}, added = {}, adding = 0, pending = {}, taken = {},
    }
  end

  local names = {} -- of an id: its members

  local function members_of(id)
    if not names[id] then
      names[id] = { id }
      for n = 1, costs[id] or 0 do
        names[id][n] = string.format('%s#%04d', id, n)
      end
    end
    return names[id]
  end

  -- The member that an event has in a scope. In that of what it is about it is "SEQ ID": a post that is made again keeps it,
  -- and it names the event that others repeat.
  function slots.member(key, slot, id)
    return string.find(key, '^{[^}]*}:scope:once:') and slots.of_event(slot, id) or slot
  end

  function slots.of_event(slot, id)
    return string.match(slot, '^%d+') .. ' ' .. id
  end

  -- Who has the slot of a scope that admits one event in `us`: its member, until when, and since when; nil for the last if it
  -- holds the slot while it waits, and for all if nobody has it.
  function slots.holder(key, us, now)
    local member, score = plan.zprevious(key, math.huge)
    while member do
      if score >= HELD and score - HELD > now then
        return member, score - HELD
      elseif score < HELD then
        return score + us > now and member or nil, score + us, score
      end
      member, score = plan.zprevious(key, score)
    end
  end

  -- The same at a glance, by what is stored.
  function slots.plain_holder(key, us, now)
    local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
    local score = number_of(newest[2])
    if not score or score >= HELD then
      return slots.holder(key, us, now)
    end
    return score + us > now and newest[1] or nil, score + us, score
  end

  -- At a glance, without a view: from when on a scope has room for one more, at or before `now` if it has room already, and which
  -- of its windows says so. A full window with held slots is plain only if it counts held slots and exactly as many slots are
  -- stored as it allows: then the first one that leaves makes room. Nothing in all other cases with held slots, and for windows of
  -- another kind.
  function slots.plain_room_at(key, windows, now)
    local at, which, newest = 0, 1, nil
    for n, window in ipairs(windows) do
      local score = call('ZRANGE', key, -window[MAX], -window[MAX], 'WITHSCORES')[2]
      local leaves_at = score and score + window[US] or 0
      local is_full = leaves_at > now
      newest = newest or (is_full and tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]))
      local has_held = is_full and newest >= HELD
      if window[KIND] or (has_held and not (counts_held(window) and call('ZCARD', key) == window[MAX])) then
        return
      elseif has_held then
        local charged = call('ZCOUNT', key, '-inf', '(' .. digits(HELD))
        local lapses_at = call('ZRANGE', key, charged, charged, 'WITHSCORES')[2] - HELD
        leaves_at = math.min(leaves_at, lapses_at)
      end
      if leaves_at > at then
        at, which = leaves_at, n
      end
    end
    return at, which
  end

  -- Learns what the id owns in a sorted set: the score of its slots, and of an id with a cost how many are stored.
  function slots.look_up(view, id)
    id = view.members and view.members[id] or id
    if not costs[id] then
      view.own[id] = tonumber(call('ZSCORE', view.key, id) or nil)
      return
    end
    local scores, number = call('ZMSCORE', view.key, unpack(members_of(id))), 0
    for _, score in ipairs(scores) do
      number = number + (score and 1 or 0)
    end
    view.own[id], view.owned[id] = tonumber(scores[#scores] or nil), number
  end

  -- Learns what many ids without a cost own in a sorted set. Notes in `owners` which own anything.
  function slots.look_up_all(view, ids, owners)
    local asked = ids
    if view.members then
      asked = {}
      for n, id in ipairs(ids) do
        asked[n] = view.members[id]
      end
    end
    for first = 1, #asked, 1000 do
      local last = math.min(first + 999, #asked)
      for n, score in ipairs(call('ZMSCORE', view.key, unpack(asked, first, last))) do
        if score then
          view.own[asked[first + n - 1]], owners[ids[first + n - 1]] = tonumber(score), true
        end
      end
    end
  end

  -- Whether a window still counts the slot that the id has in this view.
  function slots.is_counted(view, id)
    local score = view.own[id]
    local is_held = score and score >= HELD
    for _, window in ipairs(score and view.windows or {}) do
      local counts_until = is_held and (counts_held(window) and score - HELD or 0) or leaves(score, window)
      if counts_until > view.now then
        return true
      end
    end
    return false
  end

  -- The largest of the scope's windows, by `field`.
  local function largest(view, field)
    local most = 0
    for _, window in ipairs(view.windows) do
      most = math.max(most, window[field])
    end
    return most
  end
  slots.largest = largest

  -- Learns how many slots are held (live, lapsed), and how many instants lie ahead of a clock that was stepped back.
  function SET.look(view)
    view.live, view.lapsed, view.ahead = 0, 0, 0
    local newest = call('ZRANGE', view.key, -1, -1, 'WITHSCORES')
    if newest[2] and tonumber(newest[2]) >= HELD then
      view.live = call('ZCOUNT', view.key, '(' .. digits(HELD + view.now), '+inf')
      view.lapsed = call('ZCOUNT', view.key, digits(HELD), digits(HELD + view.now))
      local below = -(view.live + view.lapsed + 1)
      newest = call('ZRANGE', view.key, below, below, 'WITHSCORES')
    end
    if newest[2] and tonumber(newest[2]) > view.now then
      view.ahead = call('ZCOUNT', view.key, '(' .. digits(view.now), '(' .. digits(HELD))
    end
  end

  -- The scores from the i-th newest slot on to `count - 1` newer ones, in this order; nil beyond the oldest.
  function SET.scores(view, i, count)
    local rows = call('ZRANGE', view.key, -i, -(i - count + 1), 'WITHSCORES')
    local scores, missing = {}, count - #rows / 2
    for j = 1, #rows / 2 do
      scores[missing + j] = tonumber(rows[2 * j])
    end
    return scores
  end

  -- Score of the i-th newest stored slot, held ones included; nil beyond the oldest. Read in chunks: admissions of one call
  -- walk from old to new.
  local function stored(view, i)
    if view.fewer and i >= view.fewer then
      return nil
    end
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

  -- How many of the stored slots that this call leaves out (`own` and what it has taken away) are charged at `score` or later.
  local function left_out(view, score, own)
    local number = own and own < HELD and (not score or own >= score) and view.size or 0
    for _, taken in ipairs(view.taken) do
      if taken < HELD and (not score or taken >= score) then
        number = number + 1
      end
    end
    return number
  end

  -- Score of the k-th newest of the slots that are stored and charged, and stay.
  local function kept(view, k, own)
    local above, i = view.live + view.lapsed, k
    while true do
      local score = stored(view, above + i)
      local further = k + left_out(view, score, own)
      if further <= i or not score then
        return further <= i and score or nil
      end
      i = further
    end
  end

  -- Score of the k-th newest charged slot, leaving out those of the id that asks, if it has any: `own` is their stored score,
  -- or 'pending' where this call has charged them; `view.size` is how many they are.
  local function charged(view, k, own)
    local adding = view.adding
    if own == 'pending' then
      own, adding = nil, adding - view.size
    end
    local ahead = view.ahead > 0 and view.ahead - left_out(view, view.now + 1, own) or 0
    if k <= ahead then
      return kept(view, k, own)
    elseif k <= ahead + adding then
      return view.at_us or view.now
    end
    return kept(view, k - adding, own)
  end

  -- How many slots are held, less those that this call has taken away.
  local function held(view)
    local number = view.live
    for _, taken in ipairs(view.taken) do
      if taken > HELD + view.now then
        number = number - 1
      end
    end
    return number
  end

  -- How many held slots count against the id that asks: all, but for one that owns a held slot itself only those that end
  -- before its own. So when limits were lowered below what is held, the oldest still finds room. Of those that end with its own some
  -- count, but none that this call has charged: that counts already.
  local function held_before(view, own, id)
    if type(own) ~= 'number' or own <= HELD + view.now then
      return held(view)
    end
    local member = view.members and view.members[id] or id
    local number = call('ZRANK', view.key, member) - (call('ZCARD', view.key) - view.live)
    for _, taken in ipairs(view.taken) do
      if taken > HELD + view.now and taken <= own then
        number = number - 1
      end
    end
    return number
  end

  -- Deadline of the i-th held slot by deadline.
  local function lapse(view, i)
    local skipped = {}
    for _, taken in ipairs(view.taken) do
      if taken > HELD + view.now then
        skipped[#skipped + 1] = taken
      end
    end
    table.sort(skipped)
    local rank = -(view.live + 1)
    local score = tonumber(call('ZRANGE', view.key, rank + i, rank + i, 'WITHSCORES')[2])
    for _, taken in ipairs(skipped) do
      if taken <= score then
        i = i + 1
        score = tonumber(call('ZRANGE', view.key, rank + i, rank + i, 'WITHSCORES')[2])
      end
    end
    return score - HELD
  end

  -- How many slots count in the window now, held ones included.
  function SET.used(view, window)
    local from = window[KIND] == 'fixed' and math.floor(view.now / window[US]) * window[US] - 1 or view.now - window[US]
    local number = call('ZCOUNT', view.key, '(' .. digits(from), '(' .. digits(HELD)) + view.adding
    for _, taken in ipairs(view.taken) do
      if taken > from and taken < HELD then
        number = number - 1
      end
    end
    return number + (counts_held(window) and held(view) or 0)
  end

  -- The instant from which the window has room for one more; at or before `now` it has room already.
  -- Of n slots that count, the window has room once the (n - max + 1) that leave first have left; charged and
  -- held slots leave in two sorted sequences, so that one is found by bisection.
  function slots.window_room_at(view, window, own, id)
    local store, max = view.store, window[MAX]
    if store.room_at then
      return store.room_at(view, window)
    end
    view.size = own and (own == 'pending' and costs[id] or view.owned[id]) or 1
    if max > view.adding then -- room at a glance: even if all slots counted, too few of them have not left
      local score = stored(view, max - view.adding)
      if not score or (score < HELD and leaves(score, window) <= view.now) then
        return 0
      end
    end
    if not view.live then
      store.look(view)
    end
    local holding = 0
    if view.live > 0 and counts_held(window) then
      if type(own) == 'number' and own > HELD + view.now and SET.used(view, window) <= max then
        return 0 -- at a glance: one of those that count is its own
      end
      holding = held_before(view, own, id)
    end
    if holding <= 0 then
      local score = charged(view, max, own)
      return score and leaves(score, window) or 0
    end
    if holding < max then
      local score = charged(view, max - holding, own)
      if not score or leaves(score, window) <= view.now then
        return 0
      end
    end
    local low, high = 0, call('ZCARD', view.key) + view.adding
    if holding <= max and high - view.live - view.lapsed <= max - holding then -- full: there are no more
      low, high = max - holding, max - holding
    end
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
    local go = holding + counted - max + 1
    low, high = math.max(0, go - counted), math.min(holding, go)
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
  function slots.room_at(view, own, id)
    local cost = id and costs[id]
    if not own and not cost and view.at then
      return view.at, view.which
    end
    local at, which = 0, 1
    for i, window in ipairs(view.windows) do
      if cost then -- all fit when one fits in a window that is smaller by the others
        window = { window[MAX] - cost + 1, window[US], window[KIND] }
      end
      local free = slots.window_room_at(view, window, own, id)
      if free > at then
        at, which = free, i
      end
    end
    if not own and not cost then
      view.at, view.which = at, which
    end
    return at, which
  end

  -- Reads how many slots are stored. If each window had room even when all of them counted, an id that takes one slot and
  -- owns none is admitted without a look at the instants.
  function slots.count(view)
    view.fewer = call('ZCARD', view.key) + 1
    view.spare = math.huge -- so many this call may charge before it has to look at the instants
    for _, window in ipairs(view.windows) do
      view.spare = math.min(view.spare, window[MAX] - view.fewer)
    end
    if view.spare >= 0 and not next(costs) then
      view.at, view.which = 0, 1
    end
  end

  -- The slot that the id has in this view.
  function slots.own(view, id)
    id = view.members and view.members[id] or id
    return view.pending[id] and 'pending' or view.own[id]
  end

  -- The slots of the id at `now`; those that it has move there, never back behind where they were.
  function slots.charge(view, id)
    id = view.members and view.members[id] or id
    if view.adding + (costs[id] or 1) > (view.spare or -1) then
      view.at = nil
    end
    local owned = view.own[id]
    if view.pending[id] or (owned and owned < HELD and owned >= view.now) then
      view.is_renewed = true
      return
    end
    local moved = owned and (view.owned[id] or 1) or 0
    for _ = 1, moved do
      view.taken[#view.taken + 1] = owned
    end
    if not view.store.ids then
      view.adding = view.adding + (costs[id] or 1)
      return
    end
    if costs[id] then
      for _, member in ipairs(members_of(id)) do
        view.adding = view.adding + 1
        view.added[view.adding], view.pending[member] = member, view.adding
      end
    else
      view.adding = view.adding + 1
      view.added[view.adding] = id
    end
    view.pending[id], view.own[id] = view.adding, view.now
    view.moved = (view.moved or 0) + moved
  end

  -- Charges an id that owns no slot and takes one. The scope is a sorted set, and `slots.count` has read its size.
  function slots.charge_new(view, id)
    view.adding = view.adding + 1
    view.added[view.adding] = id
    if view.adding > view.spare then
      view.at = nil
    end
  end

  -- The slots of the id go back.
  function slots.give_back(view, id)
    id = view.members and view.members[id] or id
    view.at = nil
    view.removed = view.removed or {}
    local is_pending, is_stored = view.pending[id], view.own[id]
    for _, member in ipairs(members_of(id)) do
      local place = view.pending[member]
      if place then
        view.added[place] = view.added[view.adding]
        view.pending[view.added[place]] = place
        view.added[view.adding], view.pending[member] = nil, nil
        view.adding = view.adding - 1
      end
      view.removed[#view.removed + 1] = member
    end
    for _ = 1, not is_pending and is_stored and (view.owned[id] or 1) or 0 do
      view.taken[#view.taken + 1] = is_stored
      view.moved = (view.moved or 0) + 1
    end
    view.pending[id], view.own[id] = nil, nil
  end

  -- What is charged ahead of a clock that was stepped back counts as charged now: for a pace, which need not fail closed.
  function slots.draw_back(view)
    SET.look(view)
    if view.ahead > 0 then
      local rows = call('ZRANGEBYSCORE', view.key, '(' .. digits(view.now), '(' .. digits(HELD), 'WITHSCORES', 'LIMIT', 0, 1000)
      for i = 1, #rows, 2 do
        view.own[rows[i]] = nil
        view.taken[#view.taken + 1] = tonumber(rows[i + 1])
        view.adding = view.adding + 1
        view.added[view.adding] = rows[i]
        view.moved = (view.moved or 0) + 1
      end
    end
  end

  -- Drops as many of the oldest as no window can count, one for each added and a few more. One more than the largest limit
  -- is kept: an id that asks again is left out of the count.
  local function trim(view, size, most)
    local surplus = size + view.adding - (view.moved or 0) - most
    if surplus <= 0 then
      return
    end
    SET.look(view)
    if view.lapsed > 0 then
      plan.write('ZREMRANGEBYSCORE', view.key, digits(HELD), digits(HELD + view.now))
    end
    surplus = surplus - view.lapsed - view.live
    if surplus > 0 then
      plan.write('ZREMRANGEBYRANK', view.key, 0, math.min(surplus, 2 * view.adding + 16) - 1)
    end
  end

  -- The server keeps a small sorted set in a compact form, and reads it from end to end to find a member. A scope of more than
  -- MOST_COMPACT slots gets the other form, with an index: its set begins with a member that is too long for the compact form,
  -- and keeps its form when that is gone.
  local TOO_LONG = string.rep('-', 256)

  function SET.add(view)
    local now, most = digits(view.now), largest(view, MAX) + 1
    local size = view.fewer and view.fewer - 1 -- at most so many are stored
    if not size or size + view.adding > most then
      size = call('ZCARD', view.key)
    end
    local rows = {}
    for i = 1, view.adding do
      rows[2 * i - 1], rows[2 * i] = now, view.added[i]
    end
    local begins_indexed = most > MOST_COMPACT + 1 and not plan.is_stored(view.key)
    if begins_indexed then
      rows[#rows + 1], rows[#rows + 2] = now, TOO_LONG
    end
    plan.write_rows('ZADD', view.key, rows, 2)
    if begins_indexed then
      plan.write('ZREM', view.key, TOO_LONG)
    end
    trim(view, size, most)
    local longest = largest(view, US)
    plan.keep_alive(view.key, longest, 2 * longest)
  end

  -- Plans what the view has changed.
  function slots.write(view)
    if view.adding > 0 or view.is_renewed then
      view.store.add(view)
    end
    local gone = {}
    for _, member in ipairs(view.removed or {}) do
      if not view.pending[member] then
        gone[#gone + 1] = member
      end
    end
    plan.write_rows('ZREM', view.key, gone, 1)
  end

  -- Marks the slot of `id` as held until `deadline`; an id without a slot gets none.
  function slots.hold(key, id, deadline, now)
    if plan.zscore(key, id) then
      slots.reserve(key, id, deadline, now)
    end
  end

  -- Moves a charged slot of `id` to now, but never back. `longest_us` is the longest window of the scope, or more.
  function slots.move(key, id, now, longest_us)
    local score = plan.zscore(key, id)
    if score and score < now then
      plan.zadd(key, now, id)
      plan.keep_alive(key, longest_us, 2 * longest_us)
    end
  end

  -- Lets an event that was not admitted hold a slot until `deadline`.
  function slots.reserve(key, member, deadline, now)
    plan.zadd(key, HELD + deadline, member)
    plan.keep_alive(key, math.max(0, deadline - now))
  end

  -- Whether there was one.
  function slots.release(key, id)
    return plan.zrem(key, id)
  end

  -- Scopes without ids: exact like sorted sets, a fraction of their memory; nothing in them can be moved, held or released.
  --
  -- LOG    a list of instants, the newest first. The clock stepped back: what is admitted then counts as charged at the
  --        newest instant kept, so the list stays in order.
  -- QUOTA  for scopes with fixed windows alone: a string "us:window:count ...", for each window of length `us` how many were
  --        admitted in the one that began at window * us. A call counts in the windows that it names, and keeps up to MOST_KEPT
  --        others as they are until they end: other processes may name them. The clock stepped back: nobody is admitted until
  --        it is back in the window counted last.
  function slots.log_stores()
    local LOG, QUOTA, MOST_KEPT = {}, {}, 8

    function LOG.look(view)
      view.live, view.lapsed, view.ahead = 0, 0, 0
      view.newest = tonumber(redis.call('LINDEX', view.key, 0) or nil)
      view.at_us = math.max(view.now, view.newest or 0)
    end

    function LOG.scores(view, i, count)
      local rows = redis.call('LRANGE', view.key, i - count, i - 1)
      local scores = {}
      for j = 1, #rows do
        scores[count - j + 1] = tonumber(rows[j])
      end
      return scores
    end

    function LOG.add(view)
      LOG.look(view)
      local at, length = digits(view.at_us), redis.call('LLEN', view.key) + view.adding
      local rows = {}
      for i = 1, view.adding do
        rows[i] = at
      end
      plan.write_rows('LPUSH', view.key, rows, 1)
      local size, longest = largest(view, MAX), largest(view, US)
      if length > size then
        plan.write('LTRIM', view.key, 0, size - 1)
      end
      plan.keep_alive(view.key, longest, 2 * longest)
    end

    -- How many instants lie within the window, found by bisection.
    function LOG.used(view, window)
      local low, high = 0, redis.call('LLEN', view.key)
      while low < high do
        local middle = math.floor((low + high + 1) / 2)
        if leaves(tonumber(redis.call('LINDEX', view.key, middle - 1)), window) > view.now then
          low = middle
        else
          high = middle - 1
        end
      end
      return low
    end

    function QUOTA.look(view)
      view.live, view.counts, view.stored = 0, {}, 0
      for us, window, count in string.gmatch(redis.call('GET', view.key) or '', '(%d+):(%d+):(%d+)') do
        view.stored = view.stored + 1
        view.counts[tonumber(us)] = { window = tonumber(window), count = tonumber(count) }
      end
    end

    function QUOTA.used(view, window)
      if not view.live then
        QUOTA.look(view)
      end
      local counted = view.counts[window[US]]
      local current = math.floor(view.now / window[US])
      return counted and counted.window >= current and counted.count or 0
    end

    function QUOTA.room_at(view, window)
      local full = QUOTA.used(view, window) + view.adding >= window[MAX]
      local counted = view.counts[window[US]]
      local current = math.floor(view.now / window[US])
      if counted and counted.window > current then
        return (counted.window + (full and 1 or 0)) * window[US]
      end
      return full and (current + 1) * window[US] or 0
    end

    function QUOTA.add(view)
      if not view.live then
        QUOTA.look(view)
      end
      local counts, longest, unnamed = {}, largest(view, US), view.stored
      for i, window in ipairs(view.windows) do
        local current = math.floor(view.now / window[US])
        counts[i] = string.format('%.0f:%.0f:%d', window[US], current, QUOTA.used(view, window) + view.adding)
        local counted = view.counts[window[US]]
        if counted and not counted.is_named then
          counted.is_named, unnamed = true, unnamed - 1
        end
      end
      for us, counted in pairs(unnamed > 0 and view.counts or {}) do
        if not counted.is_named and counted.window >= math.floor(view.now / us) and #counts < #view.windows + MOST_KEPT then
          counts[#counts + 1] = string.format('%.0f:%.0f:%d', us, counted.window, counted.count)
          longest = math.max(longest, us)
        end
      end
      plan.write('SET', view.key, table.concat(counts, ' '), 'PX', math.ceil(longest / 1000) + 1)
    end

    return { set = SET, log = LOG, quota = QUOTA }
  end
end)

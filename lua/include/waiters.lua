-- Who waits for room in a scope, in the order of arrival; each sleeps until the instant it was promised.
--
--   waiters   ZSET  token -> microseconds of its arrival
--   promises  ZSET  token -> instant at which it was told to ask again, or from which on it has room since it was woken, and GRACE
-- Both live as long as the last promise. One who does not come in time has died and loses its place, and so does one
-- whom nobody hears. A token is "BELL:NUMBER", or "BELL:NUMBER*COST" of one who waits for several slots at once; what is published
-- on the channel of its bell wakes it before its instant. The member "*" of promises is the last promise of those with a cost.
local GRACE = 1000000
local MOST_COSTS = 128 -- of so many who wait the costs are looked at, the first ones; the others count as one slot each
local MOST_SOUGHT = 5000 -- dead waiters that one call passes by
local MOST_DEAD = 100 -- of these, that it takes out; later calls take out the others
local WORTH_A_RING = 1000 -- nobody is woken for less than this

local waiters = module(function(waiters)

  -- Adds to each scope of a call its two keys; they follow all scopes in KEYS, the waiters first.
  function waiters.open(scopes)
    for i, scope in ipairs(scopes) do
      scope.waiters, scope.promises = KEYS[#scopes + i], KEYS[2 * #scopes + i]
    end
  end

  function waiters.leave(scope, token)
    plan.zrem(scope.waiters, token)
    plan.zrem(scope.promises, token)
  end

  -- Takes out who has not come in time; whether there was one.
  function waiters.remove_lapsed(scope)
    local lapsed = plan.zdue(scope.promises, scope.now, 100)
    for _, token in ipairs(lapsed) do
      waiters.leave(scope, token)
    end
    return #lapsed > 0
  end

  -- Who came last, as an instant; 0 where nobody waits.
  function waiters.last_arrival(scope)
    local _, arrived = plan.zprevious(scope.waiters, math.huge)
    return arrived or 0
  end

  local function cost_of(token)
    return tonumber(string.match(token, '%*(%d+)$') or 1)
  end

  -- Notes in `promises` until when somebody with a cost waits.
  function waiters.note_cost(scope, token, promise)
    if cost_of(token) > 1 then
      plan.zadd_higher(scope.promises, promise, '*')
    end
  end

  -- How many slots those want who came before `arrived`.
  local function wanted_before(scope, arrived)
    local wanted = plan.zcount_below(scope.waiters, arrived)
    if wanted > 0 and plan.zscore(scope.promises, '*') then
      for _, token in ipairs(plan.zdue(scope.waiters, arrived - 1, MOST_COSTS)) do
        wanted = wanted + cost_of(token) - 1
      end
    end
    return wanted
  end

  local is_heard, sought, dead = {}, 0, 0

  -- The nearest waiter that lives, which means that somebody listens for its bell, and its arrival. `near` is `plan.znext` or
  -- `plan.zprevious`. Some of the dead before it are taken out. The last result: whether that one may be dead too.
  local function living(scope, near, from, bells)
    local passed = {}
    local token, arrived = near(scope.waiters, from, function(token)
      local bell = string.match(token, '^[^:]*')
      if is_heard[bell] == nil then
        is_heard[bell] = redis.call('PUBSUB', 'NUMSUB', bells .. bell)[2] > 0
      end
      if is_heard[bell] or sought == MOST_SOUGHT then
        return false
      end
      sought = sought + 1
      passed[#passed + 1] = token
      return true
    end)
    for i = 1, math.min(#passed, MOST_DEAD - dead) do
      waiters.leave(scope, passed[i])
      dead = dead + 1
    end
    return token, arrived, token and not is_heard[string.match(token, '^[^:]*')]
  end

  -- How many slots those want who came before `arrived`, and the promise of the living one directly before. If one call cannot
  -- pass by all the dead there, that is now: the caller asks again at once.
  function waiters.before(scope, arrived, bells)
    local token, its_arrival, is_unknown = living(scope, plan.zprevious, arrived, bells)
    if not token then
      return 0, nil
    end
    local promise = is_unknown and scope.now or plan.zscore(scope.promises, token) or scope.now + GRACE
    return wanted_before(scope, its_arrival + 1), promise
  end

  -- The instant from which the scope has room for one more behind `before` others, and the window that says so. Exact while
  -- each of them is taken as soon as it can be; else no later than the true one.
  function waiters.free_behind(scope, before, own, id)
    local at, which = 0, 1
    local MAX, US, KIND = slots.MAX, slots.US, slots.KIND
    for i, window in ipairs(scope.windows) do
      local rounds = math.floor(before / window[MAX])
      local free = slots.window_room_at(scope, { window[MAX] - before % window[MAX], window[US], window[KIND] }, own, id)
      if rounds > 0 then
        if free <= scope.now then
          free = window[KIND] == 'fixed' and math.floor(scope.now / window[US]) * window[US] or scope.now
        end
        free = free + rounds * window[US]
      end
      if free > at then
        at, which = free, i
      end
    end
    return at, which
  end

  local function ring(token, bells)
    plan.publish(bells .. string.match(token, '^[^:]*'), (string.match(token, '^[^*]*')))
  end

  -- Wakes the first living waiter who came after an instant, if it could have its slot earlier than it was promised. It is promised
  -- the earlier instant then. The next living one is woken too, if it would sleep longer than that: it asks who stands before
  -- it, and comes again if that one does not.
  function waiters.ring_behind(scope, arrived, bells)
    local token, its_arrival = living(scope, plan.znext, arrived, bells)
    if not token then
      return
    end
    local promised = (plan.zscore(scope.promises, token) or scope.now) - GRACE
    local at = waiters.free_behind(scope, wanted_before(scope, arrived) + cost_of(token) - 1)
    local promise = math.max(at, scope.now) + GRACE
    if promise - GRACE + WORTH_A_RING < promised then
      ring(token, bells)
      plan.zadd(scope.promises, promise, token)
      local following = living(scope, plan.znext, its_arrival, bells)
      if following and promise < (plan.zscore(scope.promises, following) or 0) - GRACE then
        ring(following, bells)
      end
    end
  end
end)

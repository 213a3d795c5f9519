-- Who waits for room in a scope, in the order of arrival; each sleeps until the instant it was promised.
--
--   waiters   ZSET  token -> microseconds of its arrival
--   promises  ZSET  token -> instant at which it was told to ask again, and GRACE
-- Both live as long as the last promise. One who does not come in time has died and loses its place, and so does one
-- whom nobody hears. A token is "BELL:NUMBER"; what is published on the channel of its bell wakes it before its instant.
local GRACE = 1000000
local WORTH_A_RING = 1000 -- nobody is woken for less than this

-- Adds to each scope of a call its two keys; they follow all scopes in KEYS, the waiters first.
local function open_lines(scopes)
  for i, scope in ipairs(scopes) do
    scope.waiters, scope.promises = KEYS[#scopes + i], KEYS[2 * #scopes + i]
  end
end

local function leave_line(scope, token)
  redis.call('ZREM', scope.waiters, token)
  redis.call('ZREM', scope.promises, token)
end

-- Takes out who has not come in time; whether there was one.
local function remove_lapsed(scope)
  local lapsed = redis.call('ZRANGEBYSCORE', scope.promises, '-inf', digits(scope.now), 'LIMIT', 0, 100)
  for _, token in ipairs(lapsed) do
    leave_line(scope, token)
  end
  return #lapsed > 0
end

-- Who came last, as an instant; 0 where nobody waits.
local function last_arrival(scope)
  return tonumber(redis.call('ZRANGE', scope.waiters, -1, -1, 'WITHSCORES')[2] or 0)
end

-- Whether the waiter lives: somebody listens for its bell.
local function is_heard(token, bells)
  return redis.call('PUBSUB', 'NUMSUB', bells .. string.match(token, '^[^:]*'))[2] > 0
end

-- How many wait who came before `arrived`, and the promise of the one directly before; the dead there are taken out.
local function who_is_before(scope, arrived, bells)
  local before = redis.call('ZCOUNT', scope.waiters, '-inf', '(' .. digits(arrived))
  while before > 0 do
    local next_one = redis.call('ZRANGE', scope.waiters, before - 1, before - 1)[1]
    if is_heard(next_one, bells) then
      return before, tonumber(redis.call('ZSCORE', scope.promises, next_one) or scope.now)
    end
    leave_line(scope, next_one)
    before = before - 1
  end
  return 0, nil
end

-- The instant from which the scope has room for one more behind `before` others, and the window that says so. Exact while
-- each of them takes one slot as soon as it can; else no later than the true one.
local function free_behind(scope, before, own, id)
  local at, which = 0, 1
  for i, window in ipairs(scope.windows) do
    local rounds = math.floor(before / window[MAX])
    local free = room_at(scope, { window[MAX] - before % window[MAX], window[US], window[KIND] }, own, id)
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

-- Wakes the first living waiter who came after an instant, if it could have its slot earlier than it was promised.
local function ring_behind(scope, arrived, bells)
  local waiter
  repeat
    waiter = redis.call('ZRANGEBYSCORE', scope.waiters, '(' .. digits(arrived), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not waiter[1] then
      return
    end
    local heard = is_heard(waiter[1], bells)
    if not heard then
      leave_line(scope, waiter[1])
    end
  until heard
  local promised = tonumber(redis.call('ZSCORE', scope.promises, waiter[1]) or scope.now) - GRACE
  reset(scope)
  local at = free_behind(scope, redis.call('ZCOUNT', scope.waiters, '-inf', '(' .. waiter[2]))
  if math.max(at, scope.now) + WORTH_A_RING < promised then
    redis.call('PUBLISH', bells .. string.match(waiter[1], '^[^:]*'), waiter[1])
  end
end

-- Requests that wait for their turn: each is admitted when there is room for it behind all who wait longer for the same
-- scope, else told when to ask again. Who comes later goes behind; gate.lua knows nothing of the line.
--
-- KEYS     one for each distinct scope, as in gate.lua; then as many "waiters", then as many "promises", in the same
--          order (include/waiters.lua)
-- ARGV[1]  JSON {"now": us | absent, "scopes", "stores": see include/gate.lua,
--                "bells": what the channels of bells begin with,
--                "turns": [{"request": [id, scope, ...], "cost": as in gate.lua,
--                  "token": the waiter (include/waiters.lua),
--                  "arrived": string of us | absent: the "arrived" of its first answer, "step":
--                    "ask"    leave no trace when refused
--                    "join"   wait in the line of the scope that frees up last (of alternatives: in all their lines)
--                    "leave"  the last call of a waiter: admitted or not, out of every line
--                    "quit"   out of every line, not admitted}, ...]}
-- Returns  JSON {"turns": [["arrived"] | ["arrived", scope, window, retry_after_us, ask_again_us], ...]}:
--          ["arrived"]: admitted. The longer list: refused, with the scope and the window that refused it, when there is room
--          after all earlier waiters, and when to ask again. That may be earlier, to check that the waiter directly before
--          is alive. 0: at once, because one call cannot remove all dead waiters.
-- A waiter whose call is lost, or that dies, loses its place a second after the instant it was promised.
-- @include prelude
-- @include plan
-- @include slots
-- @include gate
-- @include waiters

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local scopes = gate.open(call, now)
waiters.open(scopes)
local ids, rows, of = {}, {}, {}
for n, turn in ipairs(call.turns) do
  ids[n], rows[n], of[n] = turn.request[1], turn.request, n
  slots.costs[turn.request[1]] = turn.cost
end
gate.look_up(scopes, ids, rows, of)
for i = #scopes + 1, #KEYS do
  redis.call('ZCARD', KEYS[i])
end

-- The scopes of a request, each alternative too.
local function scopes_of(request)
  local mine = {}
  for n, position in ipairs(gate.positions_of(request)) do
    mine[n] = scopes[position]
  end
  return mine
end

-- A newcomer stands behind all who wait, also when several come in one microsecond or the clock was stepped back.
local function arrival(turn, mine)
  if turn.arrived then
    return number_of(turn.arrived)
  end
  local arrived = now
  for _, scope in ipairs(mine) do
    arrived = math.max(arrived, waiters.last_arrival(scope) + 1)
  end
  return arrived
end

-- The scopes in whose lines a request waits that one of them has denied: that one, or all that are its alternatives.
local function awaited(request, denier)
  local lines = { [scopes[denier]] = true }
  for i = 2, #request do
    local alternatives = {}
    for _, position in ipairs(type(request[i]) == 'table' and request[i] or {}) do
      alternatives[scopes[position]] = true
    end
    if alternatives[scopes[denier]] then
      lines = alternatives
    end
  end
  return lines
end

-- Puts the waiter where it stands after its turn, and wakes who can come earlier by that.
local function place_waiter(turn, arrived, mine, waits, at)
  for _, scope in ipairs(mine) do
    local waited = turn.arrived and plan.zscore(scope.waiters, turn.token)
    if waits[scope] then
      plan.zadd(scope.waiters, arrived, turn.token)
      plan.zadd(scope.promises, at + GRACE, turn.token)
      waiters.note_cost(scope, turn.token, at + GRACE)
      plan.keep_alive(scope.waiters, at + GRACE - now)
      plan.keep_alive(scope.promises, at + GRACE - now)
    elseif waited then
      waiters.leave(scope, turn.token)
    end
    if scope.lapsed_waiters then
      waiters.ring_behind(scope, 0, call.bells)
      scope.lapsed_waiters = false
    elseif waited then
      waiters.ring_behind(scope, arrived, call.bells)
    end
  end
end

local function answer_waiter(turn)
  local mine = scopes_of(turn.request)
  for _, scope in ipairs(turn.step ~= 'ask' and mine or {}) do -- it may leave, or come again, before it has heard its first answer
    turn.arrived = turn.arrived or plan.zscore(scope.waiters, turn.token)
  end
  local arrived = arrival(turn, mine)
  for _, scope in ipairs(mine) do
    scope.lapsed_waiters = waiters.remove_lapsed(scope) or scope.lapsed_waiters
    scope.before, scope.predecessor = waiters.before(scope, arrived, call.bells)
  end
  local admitted = string.format('["%.0f"]', arrived)
  if turn.step == 'quit' then
    place_waiter(turn, arrived, mine, {})
    return admitted
  end
  local at, denier, window, chosen = gate.decide(scopes, turn.request, now, function(scope, id)
    return waiters.free_behind(scope, scope.before + (turn.cost or 1) - 1, slots.own(scope, id), id)
  end)
  if not denier then
    gate.charge(scopes, turn.request, chosen)
    place_waiter(turn, arrived, mine, {})
    return admitted
  end
  local scope = scopes[denier]
  place_waiter(turn, arrived, mine, turn.step == 'join' and awaited(turn.request, denier) or {}, at)
  local again = math.min(at, math.max(scope.predecessor or at, now))
  return string.format('["%.0f",%d,%d,%.0f,%.0f]', arrived, denier, window, at - now, again - now)
end

local answers = {}
for n, turn in ipairs(call.turns) do
  answers[n] = answer_waiter(turn)
end
for _, scope in ipairs(scopes) do
  slots.write(scope)
end
plan.commit()
return '{"turns":[' .. table.concat(answers, ',') .. ']}'

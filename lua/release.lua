-- Gives the slots of one id back and wakes the waiter who can have its slot earlier now.
--
-- KEYS     one sorted set for each scope; then as many "waiters", then as many "promises" (include/waiters.lua)
-- ARGV[1]  JSON {"now": us | absent, "scopes": see include/gate.lua, "id", "cost": how many slots it took at once | absent: one,
--                "bells": what the channels of bells begin with}
-- Returns  in how many of the scopes a slot of this id still counted. The same call again changes nothing. A key of another type
--          is refused before anything is given back.
-- @include prelude
-- @include plan
-- @include slots
-- @include gate
-- @include waiters

local call = cjson.decode(ARGV[1])
local scopes = gate.open(call, microseconds(call.now))
waiters.open(scopes)
for _, key in ipairs(KEYS) do
  redis.call('ZCARD', key)
end
slots.costs[call.id] = call.cost
local released = 0
for _, scope in ipairs(scopes) do
  slots.look_up(scope, call.id)
  if scope.own[call.id] then
    released = released + (slots.is_counted(scope, call.id) and 1 or 0)
    slots.give_back(scope, call.id)
    waiters.ring_behind(scope, 0, call.bells)
  end
  slots.write(scope)
end
plan.commit()
return released

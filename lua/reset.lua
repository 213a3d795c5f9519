-- Forgets what was charged in scopes, so that each has all of its room again, and wakes the waiter who stands first.
--
-- KEYS     one for each scope, as in gate.lua; then as many "waiters", then as many "promises" (include/waiters.lua)
-- ARGV[1]  JSON {"now": us | absent, "scopes", "stores": see include/gate.lua, "bells": what the channels of bells begin with}
-- Returns  in how many of the scopes something still counted. A key of another type is forgotten all the same.
-- @include prelude
-- @include plan
-- @include slots
-- @include gate
-- @include waiters

local call = cjson.decode(ARGV[1])
local scopes = gate.open(call, microseconds(call.now))
waiters.open(scopes)
local forgotten = 0

local function is_used(scope)
  scope.store.look(scope)
  for _, window in ipairs(scope.windows) do
    if scope.store.used(scope, window) > 0 then
      return true
    end
  end
  return false
end

for _, scope in ipairs(scopes) do
  local is_readable, has_used = pcall(is_used, scope)
  forgotten = forgotten + ((has_used or not is_readable) and 1 or 0)
  redis.call('ZCARD', scope.waiters)
  redis.call('ZCARD', scope.promises)
  scope.windows = {} -- nothing stands in the way of those who wait
  waiters.ring_behind(scope, 0, call.bells)
  plan.write('UNLINK', scope.key)
end
plan.commit()
return forgotten

-- Gives the slots of one id back and wakes the waiter who can have its slot earlier now.
--
-- KEYS     one sorted set for each scope; then as many "waiters", then as many "promises" (include/waiters.lua)
-- ARGV[1]  JSON {"now": us | absent, "scopes": see include/decide.lua, "id", "bells": what the channels of bells begin with}
-- Returns  how many of the scopes had a slot of this id. The same call again changes nothing. A key of another type
--          is refused before anything is given back.
-- @include prelude
-- @include slots
-- @include log
-- @include decide
-- @include waiters

local call = cjson.decode(ARGV[1])
local scopes = open_scopes(call, microseconds(call.now))
open_lines(scopes)
for _, key in ipairs(KEYS) do
  redis.call('ZCARD', key)
end
local released = 0
for _, scope in ipairs(scopes) do
  if release_slot(scope.key, call.id) == 1 then
    released = released + 1
    ring_behind(scope, 0, call.bells)
  end
end
return released

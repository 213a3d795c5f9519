-- How much of each limit is used, and when each has room again. Read-only.
--
-- KEYS     one for each scope, as in gate.lua
-- ARGV[1]  JSON {"now": us | absent, "scopes", "stores": see include/gate.lua}
-- Returns  JSON {"scopes": [[[used, wait_us, held], ...], ...]}: for each window of each scope the slots that count
--          now, held ones included, the time until there is room for one more (0: now), and how many of the slots are held
-- @include prelude
-- @include plan
-- @include slots
-- @include gate

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local scopes = gate.open(call, now)
for i, scope in ipairs(scopes) do
  scope.store.look(scope)
  local windows = {}
  for n, window in ipairs(scope.windows) do
    local used = scope.store.used(scope, window)
    local held = slots.counts_held(window) and scope.live or 0
    windows[n] = string.format('[%d,%.0f,%d]', used, math.max(0, slots.window_room_at(scope, window) - now), held)
  end
  scopes[i] = '[' .. table.concat(windows, ',') .. ']'
end
return '{"scopes":[' .. table.concat(scopes, ',') .. ']}'

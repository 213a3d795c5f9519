-- How much of each limit is used, and when each has room again. Read-only.
--
-- KEYS     one sorted set for each scope (include/slots.lua)
-- ARGV[1]  JSON {"now": us | absent, "scopes": as in gate.lua}
-- Returns  JSON {"now": us, "scopes": [[[used, wait_us], ...], ...]}: for each window of each scope the slots that count now,
--          held ones included, and the time until there is room for one more (0: now)
-- @include prelude
-- @include slots

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local scopes = {}
for i, key in ipairs(KEYS) do
  local scope = open_scope(key, call.scopes[i], now)
  refresh(scope)
  local windows = {}
  for n, window in ipairs(scope.windows) do
    local from = window.fixed and digits(math.floor(now / window.us) * window.us) or '(' .. digits(now - window.us)
    local used = redis.call('ZCOUNT', key, from, '(' .. digits(HELD)) + (counts_held(window) and scope.live or 0)
    windows[n] = string.format('[%d,%.0f]', used, math.max(0, room_at(scope, window) - now))
  end
  scopes[i] = '[' .. table.concat(windows, ',') .. ']'
end
return string.format('{"now":%.0f,"scopes":[%s]}', now, table.concat(scopes, ','))

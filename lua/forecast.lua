-- When events that wait in line for room in limits are expected to find it, if nothing else happens. Read-only.
--
-- KEYS     one for each scope, as in gate.lua: ZSET
-- ARGV[1]  JSON {"now": us | absent, "scopes": see include/gate.lua, "asked": [[position of a scope, place in line from 1], ...]}
-- Returns  JSON {"asked": [[[used, "instant" | null], ...] for each window of the scope, ...]}: the slots that count in the
--          window now, held ones included, and when it has room for the event at that place. For place 1 it has none earlier.
--          For later places the instant is an estimate: those before it are charged as soon as there is room, and held slots count as
--          charged now. null: the first in line waits for a held slot, and nobody knows when that goes.
-- A look at a window costs a few reads, whatever the place.
-- @include prelude
-- @include plan
-- @include slots
-- @include gate

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local MAX, US, KIND = slots.MAX, slots.US, slots.KIND

-- When the window lets the event at a place pass that is not the first, `used` slots counting now.
local function turn_at(view, window, place, used)
  local max, us = window[MAX], window[US]
  if window[KIND] == 'fixed' then
    local behind = place - math.max(0, max - used)
    return behind <= 0 and now or (math.floor(now / us) + math.ceil(behind / max)) * us
  end
  local round = math.floor((place - 1) / max)
  local newest = max - (place - 1) % max -- this slot, counted from the newest, has to leave first
  local held = slots.counts_held(window) and view.live or 0
  local at = now
  if newest <= held then
    at = now + us
  else
    local score = view.store.scores(view, view.live + view.lapsed + newest - held, 1)[1]
    at = score and math.max(now, slots.leaves(score, window)) or now
  end
  return at + round * us
end

local views, firsts, rows = gate.open(call, now), {}, {}

-- What is used of each window of a scope, and when the first in line may pass it.
local function first_of(position)
  if not firsts[position] then
    local view, found = views[position], {}
    view.store.look(view)
    for n, window in ipairs(view.windows) do
      found[n] = { used = view.store.used(view, window), at = math.max(now, slots.window_room_at(view, window)) }
    end
    firsts[position] = found
  end
  return firsts[position]
end

for n, asked in ipairs(call.asked) do
  local position, place = asked[1], asked[2]
  local view, windows = views[position], {}
  for i, first in ipairs(first_of(position)) do
    local window = view.windows[i]
    local at = first.at
    if at > now + window[US] then
      at = nil
    elseif place > 1 then
      at = turn_at(view, window, place, first.used)
    end
    windows[i] = string.format('[%d,%s]', first.used, at and '"' .. digits(at) .. '"' or 'null')
  end
  rows[n] = '[' .. table.concat(windows, ',') .. ']'
end
return '{"asked":[' .. table.concat(rows, ',') .. ']}'

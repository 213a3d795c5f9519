-- Decides a batch of requests against rolling (or clock-aligned) limits over several scopes, all or nothing
-- for each request, exactly as the same requests one after another at one instant.
--
-- KEYS     one sorted set for each distinct scope: member = id that owns the slot, score = microseconds of the
--          charge, or 2^52 + deadline while held (include/slots.lua). Lifetime: at least the longest window
--          after the last charge, at least the deadline while a slot is held.
-- ARGV[1]  JSON {"now": us | absent for the server's clock,
--                "peek": true | absent: decide, charge nothing,
--                "scopes": [[[max, window_us, "rolling" | "fixed"], ...], ...]  in the order of KEYS,
--                "requests": [[id, scope, ...], ...]  scopes as positions in KEYS, from 1}
-- Returns  JSON {"now": us, "verdicts": [0 | [scope, window, retry_after_us], ...]}: 0 is admitted; else the scope
--          and the window (from 1) that free up last. The same request is refused until retry_after_us from now and
--          admitted at that instant when nothing else happens in between.
-- A refused or peeked request writes nothing. An id that already owns slots is decided as if it owned none; admitted,
-- its slots move to now (never a second charge); refused, they stay. Every key is read before the first is written.
-- @include prelude
-- @include slots

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local scopes = {}
for i, key in ipairs(KEYS) do
  scopes[i] = open_scope(key, call.scopes[i], now)
  scopes[i].ids = {}
end
for _, request in ipairs(call.requests) do
  for i = 2, #request do
    local ids = scopes[request[i]].ids
    ids[#ids + 1] = request[1]
  end
end
for _, scope in ipairs(scopes) do
  refresh(scope)
  for first = 1, #scope.ids, 1000 do
    local last = math.min(first + 999, #scope.ids)
    local scores = redis.call('ZMSCORE', scope.key, unpack(scope.ids, first, last))
    for i = first, last do
      scope.own[scope.ids[i]] = tonumber(scores[i - first + 1])
    end
  end
end

-- The score of the slot `id` owns. Leaving it out wants it among the stored ones: write what was added first.
local function own_slot(scope, id)
  local owned = scope.own[id]
  if owned and scope.adding > 0 then
    write_slots(scope)
    refresh(scope)
  end
  return owned
end

local function charge(scope, id)
  scope.adding = scope.adding + 1
  scope.added[scope.adding] = id
  scope.cache = {}
  if scope.own[id] or scope.ahead then -- a slot moved, or the added is not the newest: look again
    write_slots(scope)
    refresh(scope)
  end
  scope.own[id] = moved_to(scope, id)
end

local verdicts = {}
for n, request in ipairs(call.requests) do
  local id, at, denier, window = request[1], now, nil, nil
  for i = 2, #request do
    local scope = scopes[request[i]]
    local free, which = scope_room_at(scope, own_slot(scope, id), id)
    if free > at then
      at, denier, window = free, request[i], which
    end
  end
  if denier then
    verdicts[n] = string.format('[%d,%d,%.0f]', denier, window, at - now)
  else
    verdicts[n] = '0'
    if not call.peek then
      for i = 2, #request do
        charge(scopes[request[i]], id)
      end
    end
  end
end
for _, scope in ipairs(scopes) do
  write_slots(scope)
end
return string.format('{"now":%.0f,"verdicts":[%s]}', now, table.concat(verdicts, ','))

-- Decides the requests of a call in order, charges those that are admitted, and says when the scopes "ahead" have room for one
-- more after that; see gate.lua. Leaves `count`, `verdicts` (texts of JSON) and `ahead` (the rest of the answer).
local scopes, ids, rows, of = open_scopes(call, now), call.ids, call.rows, call.of

local function request_of(n)
  if not ids then
    return call.requests[n]
  end
  local request = rows[of[n]]
  request[1] = ids[n]
  return request
end

local count = ids and #ids or #call.requests
look_up(scopes, count, request_of, call.fresh)

local verdicts, charges, charged = {}, not call.peek, 0
local refused, refused_after = {}, {} -- of a row: what its last refusal said, and after how many charges
local last_at, last_denier, last_window, denial
for n = 1, count do
  local row = call.fresh and ids and of[n]
  if row and refused_after[row] == charged then -- nothing has changed since
    verdicts[n] = refused[row]
  else
    local request = request_of(n)
    local at, denier, window, chosen = decide(scopes, request, now, free_at)
    if denier then
      if at ~= last_at or denier ~= last_denier or window ~= last_window then
        last_at, last_denier, last_window = at, denier, window
        denial = string.format('[%d,%d,%.0f]', denier, window, at - now)
      end
      verdicts[n] = denial
      if row then
        refused[row], refused_after[row] = denial, charged
      end
    else
      verdicts[n] = '0'
      if charges then
        if call.drains then
          redis.call('ZREM', scopes[1].key, '') -- a first write that a full server allows: after it the rest is too
          call.drains = false
        end
        charge(scopes, request, chosen)
        charged = charged + 1
        if call.admitted then -- a function of admit.lua's
          call.admitted(n, request[1], scopes)
        end
      end
    end
  end
end
for i = 1, #scopes do
  write_slots(scopes[i])
end
local ahead = ''
if call.ahead then
  local openings = {}
  for n, position in ipairs(call.ahead) do
    local scope = open_scope(KEYS[position], call.scopes[position], now)
    local at, room = (scope_room_at(scope)), math.huge
    SLOTS.look(scope)
    for _, window in ipairs(scope.windows) do
      room = math.min(room, window[MAX] - SLOTS.used(scope, window))
    end
    at = math.min(at, now + largest(scope, US)) -- what rests on a held slot may say a day
    openings[n] = string.format('["%.0f",%d]', math.max(at, now), at > now and 0 or math.max(room, 1))
  end
  ahead = ',"ahead":[' .. table.concat(openings, ',') .. ']'
end

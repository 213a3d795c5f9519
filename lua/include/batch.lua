-- Decides the requests of a call in order, plans the charges of those that are admitted, and says when the scopes "ahead" have
-- room for one more after that; see gate.lua. `admitted(n, id, scopes)` is called for each admitted one. `lost` holds positions of
-- requests that are not decided: their verdict says nothing.
--
-- Returns how many there are, their verdicts (texts of JSON), the rest of the answer, and `request_of`, which gives the n-th.
local function decide_batch(call, now, admitted, lost)
  local scopes, ids, rows, of = gate.open(call, now), call.ids, call.rows, call.of
  local US = slots.US

  local function request_of(n)
    if not ids then
      return call.requests[n]
    end
    local request = rows[of[n]]
    request[1] = ids[n]
    return request
  end

  local count = ids and #ids or #call.requests
  gate.look_up(scopes, count, request_of, call.fresh)

  local verdicts, charges, charged = {}, not call.peek, 0
  local refused, refused_after = {}, {} -- of a row: what its last refusal said, and after how many charges
  local last_at, last_denier, last_window, denial
  for n = 1, count do
    local row = call.fresh and ids and of[n]
    if lost and lost[n] then
      verdicts[n] = '0'
    elseif row and refused_after[row] == charged then -- nothing has changed since
      verdicts[n] = refused[row]
    else
      local request = request_of(n)
      local at, denier, window, chosen = gate.decide(scopes, request, now, gate.free_at)
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
          gate.charge(scopes, request, chosen)
          charged = charged + 1
          if admitted then
            admitted(n, request[1], scopes)
          end
        end
      end
    end
  end
  local rest = ''
  if call.ahead then
    local openings = {}
    for n, position in ipairs(call.ahead) do
      local scope = scopes[position]
      local at, room = (slots.room_at(scope)), math.huge
      for _, window in ipairs(scope.windows) do
        room = math.min(room, gate.left(scope, window))
      end
      at = math.min(at, now + slots.largest(scope, US)) -- what rests on a held slot may say a day
      openings[n] = string.format('["%.0f",%d]', math.max(at, now), at > now and 0 or math.max(room, 1))
    end
    rest = ',"ahead":[' .. table.concat(openings, ',') .. ']'
  end
  if call.left and verdicts[1] == '0' then
    local left = {}
    for i, scope in ipairs(scopes) do
      left[i] = {}
      for n, window in ipairs(scope.windows) do
        left[i][n] = string.format('%d', math.max(0, gate.left(scope, window)))
      end
      left[i] = '[' .. table.concat(left[i], ',') .. ']'
    end
    rest = rest .. ',"left":[' .. table.concat(left, ',') .. ']'
  end
  for i = 1, #scopes do
    slots.write(scopes[i])
  end
  return count, verdicts, rest, request_of
end

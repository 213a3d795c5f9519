-- What the calls of the gate have in common: their scopes opened, a request decided, a request charged.
--
-- A call names its scopes in the order of their KEYS, in "scopes": each a list of windows [max, us] or [max, us, "fixed"],
-- or the position of an earlier scope that has the same; a scope with a window [1, us, "once"] is the first of its request;
-- and in "stores", absent when all are sets, how each is kept: "set", "log" or "quota" (include/slots.lua).
-- A request is a list: the id, then for each slot it asks for the scope's position, or a list of positions: the
-- first of these that has room. Requests that ask for the same share such a list: in a batch, "rows" are these lists, "ids" the
-- ids and "of" the position of its row for each id. The id in a row is then set when it is asked for.
local gate = module(function(gate)

  function gate.open(call, now)
    local scopes, stores = {}, call.stores and slots.log_stores()
    for i, windows in ipairs(call.scopes) do
      windows = call.scopes[windows] or windows
      call.scopes[i] = windows
      scopes[i] = slots.open(KEYS[i], windows, now, stores and stores[call.stores[i]])
      if windows[1] and windows[1][slots.KIND] == 'once' then
        scopes[i].is_once, scopes[i].members = true, call.members
      end
    end
    return scopes
  end

  -- The positions of the scopes of a request, alternatives too.
  function gate.positions_of(request)
    local positions = {}
    for i = 2, #request do
      for _, position in ipairs(type(request[i]) == 'table' and request[i] or { request[i] }) do
        positions[#positions + 1] = position
      end
    end
    return positions
  end

  -- For each scope the ids that ask for a slot of it, alternatives too.
  local function ids_by_scope(ids, rows, of)
    local by_row, by_scope = {}, {}
    for n, id in ipairs(ids) do
      local some = by_row[of[n]]
      if some then
        some[#some + 1] = id
      else
        by_row[of[n]] = { id }
      end
    end
    for row, some in pairs(by_row) do
      for _, position in ipairs(gate.positions_of(rows[row])) do
        local all = by_scope[position] or {}
        by_scope[position] = all
        for _, id in ipairs(some) do
          all[#all + 1] = id
        end
      end
    end
    return by_scope
  end

  -- Learns what the ids own already (`fresh`: nothing), and that every key is what it should be. Returns a table that holds each
  -- id that may own a slot.
  function gate.look_up(scopes, ids, rows, of, fresh)
    local one_by_one = #ids == 1 or next(slots.costs)
    local asking = not fresh and not one_by_one and ids_by_scope(ids, rows, of)
    local owners = {}
    for i, scope in ipairs(scopes) do
      if not scope.store.ids then
        scope.store.look(scope)
      elseif fresh or not one_by_one then
        slots.count(scope)
        if asking and asking[i] then
          slots.look_up_all(scope, asking[i], owners)
        end
      else
        for _, id in ipairs(ids) do
          slots.look_up(scope, id)
          owners[id] = true
        end
      end
    end
    return owners
  end

  -- From when on a scope has room for `id`, and which of its windows says so.
  function gate.free_at(scope, id)
    return slots.room_at(scope, slots.own(scope, id), id)
  end

  -- The instant from which the request has room (at or before now: it has), the position and the window that free up
  -- last, and the positions to charge. `free` is `gate.free_at`, or what takes its place.
  function gate.decide(scopes, request, now, free)
    local id, at, denier, window, chosen = request[1], now, nil, nil, request
    for i = 2, #request do
      local item, soonest, which = request[i], nil, nil
      local scope = scopes[item]
      if scope and scope.at and not scope.members and not scope.own[id] and free == gate.free_at then -- known already
        soonest, which = scope.at, scope.which
      elseif not scope then
        local choice
        for _, position in ipairs(item) do
          local instant, at_window = free(scopes[position], id)
          if not soonest or (instant < soonest and soonest > now) then
            soonest, which, choice = instant, at_window, position
          end
        end
        if chosen == request then
          chosen = { unpack(request) }
        end
        chosen[i] = choice
      else
        soonest, which = free(scope, id)
      end
      if soonest > at then
        at, denier, window = soonest, chosen[i], which
        if scope and scope.is_once then
          break -- a repeat, whatever else would refuse it
        end
      end
    end
    return at, denier, window, chosen
  end

  -- How many more a window of a scope has room for, after all that is planned.
  local function left_of(scope, window)
    if not scope.live then
      scope.store.look(scope)
    end
    return window[slots.MAX] - scope.store.used(scope, window) - (scope.store.ids and 0 or scope.adding)
  end

  gate.given_back = {} -- scopes in which a charged request had a slot, before it took one of another alternative

  function gate.charge(scopes, request, chosen)
    local id = request[1]
    for i = 2, #request do
      slots.charge(scopes[chosen[i]], id)
      if chosen[i] ~= request[i] then -- its slot in another of the alternatives goes back
        for _, position in ipairs(request[i]) do
          if position ~= chosen[i] and scopes[position].own[id] then
            slots.give_back(scopes[position], id)
            gate.given_back[#gate.given_back + 1] = scopes[position]
          end
        end
      end
    end
  end

  -- Whether the request names no alternatives, and its id is itself the member of each scope.
  local function is_plain(scopes, request)
    for i = 2, #request do
      if not scopes[request[i]] or scopes[request[i]].members then
        return false
      end
    end
    return true
  end

  -- Whether each scope of the request is already known to have room for one more.
  local function has_room(scopes, request, now)
    for i = 2, #request do
      local scope = scopes[request[i]]
      if not scope.spare or not scope.at or scope.at > now then
        return false
      end
    end
    return true
  end

  -- Decides the requests of a call in order, plans the charges of those that are admitted, and says when the scopes "ahead" have
  -- room for one more after that; see gate.lua. `admitted(n, id, scopes, request)` is called for each admitted one. `lost` holds positions of
  -- requests that are not decided: their verdict says nothing.
  --
  -- Returns their verdicts (texts of JSON), the rest of the answer, and `request_of`, which gives the n-th.
  function gate.decide_batch(call, now, admitted, lost)
    local scopes, ids, rows, of = gate.open(call, now), call.ids, call.rows, call.of
    local US = slots.US

    local function request_of(n)
      local request = rows[of[n]]
      request[1] = ids[n]
      return request
    end

    local owners = gate.look_up(scopes, ids, rows, of, call.fresh)
    local plain = {}
    for row, request in ipairs(rows) do
      plain[row] = is_plain(scopes, request)
    end

    local verdicts, charges, charged = {}, not call.peek, 0
    local refused, refused_after = {}, {} -- of a row: what its last refusal said, and after how many charges
    local last_at, last_denier, last_window, denial
    local charge = call.fresh and slots.charge_new or slots.charge
    for n = 1, #ids do
      local id, row = ids[n], of[n]
      if lost and lost[n] then
        verdicts[n] = '0'
      elseif refused_after[row] == charged and (call.fresh or not owners[id]) then -- nothing has changed since
        verdicts[n] = refused[row]
      elseif charges and plain[row] and not owners[id] and has_room(scopes, rows[row], now) then
        local request = rows[row]
        verdicts[n], charged, owners[id] = '0', charged + 1, true
        for i = 2, #request do
          charge(scopes[request[i]], id)
        end
        if admitted then
          admitted(n, id, scopes, request_of(n))
        end
      else
        local request = request_of(n)
        local at, denier, window, chosen = gate.decide(scopes, request, now, gate.free_at)
        if denier then
          if at ~= last_at or denier ~= last_denier or window ~= last_window then
            last_at, last_denier, last_window = at, denier, window
            denial = string.format('[%d,%d,%.0f]', denier, window, at - now)
          end
          verdicts[n] = denial
          if plain[row] and not owners[id] then
            refused[row], refused_after[row] = denial, charged
          end
        else
          verdicts[n] = '0'
          if charges then
            gate.charge(scopes, request, chosen)
            charged, owners[id] = charged + 1, true
            if admitted then
              admitted(n, id, scopes, request)
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
          room = math.min(room, left_of(scope, window))
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
          left[i][n] = string.format('%d', math.max(0, left_of(scope, window)))
        end
        left[i] = '[' .. table.concat(left[i], ',') .. ']'
      end
      rest = rest .. ',"left":[' .. table.concat(left, ',') .. ']'
    end
    for i = 1, #scopes do
      slots.write(scopes[i])
    end
    return verdicts, rest, request_of
  end
end)

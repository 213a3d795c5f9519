-- Decides a batch of requests against rolling (or clock-aligned) limits over several scopes, all or nothing
-- for each request, exactly as the same requests one after another at one instant.
--
-- KEYS     one for each distinct scope (include/gate.lua), lifetime at least the longest window after the last charge:
--            set    ZSET    id that owns the slot -> microseconds of the charge, or 2^52 + deadline while it is held
--                           (include/slots.lua); lifetime then at least up to the deadline
--            log    LIST    microseconds of the charges, the newest first (include/slots.lua)
--            quota  STRING  how many were charged in each aligned window (include/slots.lua)
--          and after them, when "version" is given,
--            version STRING  version of the limits in force, of workers NUMBER-DIGEST; permanent
-- ARGV[1]  JSON {"now": us | absent for the server's clock,
--                "peek": true | absent: decide, charge nothing,
--                "fresh": true | absent: no id was ever asked for before, so none owns a slot yet,
--                "ahead": [KEYS position, ...] | absent: scopes (sets): the answer says from when on they have room
--                for one more after all this,
--                "cost": of a single request: how many slots it takes of each scope at once, all or none (include/slots.lua);
--                absent: one,
--                "version": string | absent,
--                "left": true | absent: of a single request, say what is left in each window of each scope if it is admitted,
--                "scopes", "stores", "rows": see include/gate.lua; the row of a single request holds its id}
-- ARGV[2]  for each request the position of its row, in one byte; absent for a single request
-- ARGV[3]  JSON [id, ...] of the requests; absent for a single one
-- Returns  JSON {"verdicts": [0 | [scope, window, retry_after_us] | n, ...]}: 0 is admitted; else the scope
--          and the window (from 1) that free up last. n > 0 is the verdict of the n-th request. The same request is refused
--          until retry_after_us from now and admitted at that instant when nothing else happens in between.
--          With "ahead" also {"ahead": [[instant as a string, how many have room now], ...]}.
--          With "left" also {"left": [[how many more, ...] for each scope, ...]} of a request that was admitted.
--          {"stale": version in force} when another one than the call's is: nothing was decided.
-- A refused or peeked request writes nothing. An id that already owns slots is decided as if it owned none; admitted,
-- its slots move to now (never a second charge); refused, they stay. Every key is read before the first is written.
-- @include prelude

-- Plain requests, the most frequent ones, are decided at a glance: what the general way defines and builds would take most of
-- the time. Plain is a request without a cost for sorted sets in which its id owns nothing. Where one of the sets is full, its
-- windows roll, nobody holds a slot and the clock was not stepped back; and no large scope is to get its first slot
-- (include/slots.lua). For all else nothing is returned, nor written.

local MOST_TRIMMED = 18 -- so many slots that no window counts any more go in one call

-- A request alone.
local function glance(call, now)
  local request = call.rows[1]
  local id, at, denier, window = request[1], now, nil, nil
  local lifetimes, sizes, renewed, surplus = {}, {}, {}, {}
  for i = 2, #request do
    local key, windows = KEYS[request[i]], call.scopes[request[i]]
    windows = call.scopes[windows] or windows
    if not key or (not call.fresh and redis.call('ZSCORE', key, id)) then
      return
    end
    if #windows == 0 then -- nothing below reads it
      redis.call('ZCARD', key)
    end
    local longest = 0
    sizes[i] = 0
    for n = 1, #windows do
      local max, us = windows[n][1], windows[n][2]
      sizes[i] = math.max(sizes[i], max)
      local full = redis.call('ZRANGE', key, -max, -max, 'WITHSCORES')[2]
      longest = math.max(longest, us)
      if full then -- as many as it may hold are stored
        local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
        if tonumber(newest) > now or windows[n][3] then
          return
        end
        surplus[i] = 0
        if full + us > at then
          at, denier, window = full + us, request[i], n
        end
      end
    end
    if longest >= MOST_EXACT then
      return
    end
    lifetimes[i] = math.ceil(longest / 1000)
  end
  if denier then
    return string.format('{"verdicts":[[%d,%d,%.0f]]}', denier, window, at - now)
  end
  for i = 2, #request do
    local lives_ms = redis.call('PTTL', KEYS[request[i]])
    if lives_ms == -2 and sizes[i] > MOST_COMPACT then -- there is no key yet
      return
    end
    renewed[i] = lives_ms < lifetimes[i]
    surplus[i] = surplus[i] and math.min(redis.call('ZCARD', KEYS[request[i]]) - sizes[i], MOST_TRIMMED) or 0
  end
  local score = digits(now)
  for i = 2, #request do
    redis.call('ZADD', KEYS[request[i]], score, id)
    if surplus[i] > 0 then -- one more than the largest limit is kept, as in include/slots.lua
      redis.call('ZREMRANGEBYRANK', KEYS[request[i]], 0, surplus[i] - 1)
    end
    if renewed[i] then
      redis.call('PEXPIRE', KEYS[request[i]], 2 * lifetimes[i] + 1)
    end
  end
  return '{"verdicts":[0]}'
end

-- Several requests, up to 1000. Every slot that fills a full window still counts; otherwise nothing is returned. The ids are
-- read where they are needed: a new request that is refused needs none.
local function glance_at_many(call, now, of, read_ids)
  local rows, ids = call.rows, nil
  local room, charges = {}, {} -- of a scope: how many more it takes; the scores and ids to add
  local least, most, lifetime = {}, {}, {} -- of a list of windows: its limits; the milliseconds that a key lives at least
  for i, windows in ipairs(call.scopes) do
    windows = call.scopes[windows] or windows
    call.scopes[i] = windows
    if not least[windows] then
      local longest = 0
      least[windows], most[windows] = math.huge, 0
      for _, window in ipairs(windows) do
        local max, us = window[1], window[2]
        least[windows], most[windows], longest = math.min(least[windows], max), math.max(most[windows], max), math.max(longest, us)
      end
      if longest >= MOST_EXACT then
        return
      end
      lifetime[windows] = math.ceil(longest / 1000)
    end
    local size = redis.call('ZCARD', KEYS[i])
    if size == 0 and most[windows] > MOST_COMPACT then
      return
    end
    room[i] = least[windows] - size
  end

  -- Whether an id owns a slot, or two requests have the same id.
  local function owns_any()
    local asked, is_known = {}, {}
    for n, place in ipairs(of) do
      local row, id = rows[place], ids[n]
      if is_known[id] then
        return true
      end
      is_known[id] = true
      for i = 2, #row do
        local of_scope = asked[row[i]]
        if not of_scope then
          of_scope = {}
          asked[row[i]] = of_scope
        end
        of_scope[#of_scope + 1] = id
      end
    end
    for position, of_scope in pairs(asked) do
      for _, score in ipairs(room[position] and redis.call('ZMSCORE', KEYS[position], unpack(of_scope)) or {}) do
        if score then
          return true
        end
      end
    end
    return false
  end

  -- Of a full scope: when it has room, the window that says so, and the number of a request that it has refused.
  local free_at, free_in, said = {}, {}, {}

  -- Learns from when on a full scope has room for one more; nothing if it is not plain.
  local function look(position)
    local key, windows, charged = KEYS[position], call.scopes[position], #(charges[position] or {}) / 2
    local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    if newest and tonumber(newest) > now then
      return
    end
    local latest = now
    for n, window in ipairs(windows) do
      local rank = window[1] - charged -- of the slot that has to leave, among those that are stored
      local score = rank <= 0 and now or redis.call('ZRANGE', key, -rank, -rank, 'WITHSCORES')[2]
      if score then
        local at = score + window[2]
        if at <= now or window[3] then
          return
        end
        if at > latest then
          latest, free_in[position] = at, n
        end
      end
    end
    free_at[position] = latest
  end

  if not call.fresh then
    ids = read_ids()
    if owns_any() then
      return
    end
  end
  local verdicts, score, admitted = {}, digits(now), 0
  local refused, refused_after = {}, {} -- of a row: its last refusal, and how many were admitted before it
  for n = 1, #of do
    local place = of[n]
    if refused_after[place] == admitted then -- nothing has changed since
      verdicts[n] = refused[place]
    else
      local row, at, denier = rows[place], now, nil
      for i = 2, #row do
        local position = row[i]
        local left = room[position]
        if not left then -- a list of alternatives
          return
        end
        if left <= 0 then
          if not free_at[position] then
            look(position)
          end
          if not free_at[position] then
            return
          end
          if free_at[position] > at then
            at, denier = free_at[position], position
          end
        end
      end
      if denier then
        verdicts[n] = said[denier] or string.format('[%d,%d,%.0f]', denier, free_in[denier], at - now)
        said[denier] = said[denier] or digits(n)
        refused[place], refused_after[place] = said[denier], admitted
      else
        ids = ids or read_ids()
        for i = 2, #row do
          local position = row[i]
          local of_scope = charges[position]
          if not of_scope then
            of_scope = {}
            charges[position] = of_scope
          end
          local last = #of_scope
          of_scope[last + 1], of_scope[last + 2] = score, ids[n]
          room[position], free_at[position], said[position] = room[position] - 1, nil, nil
        end
        verdicts[n], admitted = '0', admitted + 1
      end
    end
  end
  local renewed = {}
  for position in pairs(charges) do
    local ms = lifetime[call.scopes[position]]
    renewed[position] = redis.call('PTTL', KEYS[position]) < ms and 2 * ms + 1
  end
  for position, of_scope in pairs(charges) do
    redis.call('ZADD', KEYS[position], unpack(of_scope))
    if renewed[position] then
      redis.call('PEXPIRE', KEYS[position], renewed[position])
    end
  end
  return '{"verdicts":[' .. table.concat(verdicts, ',') .. ']}'
end

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
if call.version then
  local in_force = redis.call('GET', KEYS[#call.scopes + 1])
  if in_force and in_force ~= call.version then
    return cjson.encode({ stale = in_force })
  end
end

local function read_ids()
  return ARGV[3] and cjson.decode(ARGV[3]) or { call.rows[1][1] }
end

local of = { string.byte(ARGV[2] or '\1', 1, -1) }
if not (call.cost or call.stores or call.peek or call.ahead or call.left or #of > 1000) then
  local answer = of[2] and glance_at_many(call, now, of, read_ids) or not of[2] and glance(call, now)
  if answer then
    return answer
  end
end
-- @include plan
-- @include slots
-- @include gate
call.of, call.ids = of, read_ids()
if call.cost then
  slots.costs[call.ids[1]] = call.cost
end
local verdicts, rest = gate.decide_batch(call, now)
plan.commit()
return '{"verdicts":[' .. table.concat(verdicts, ',') .. ']' .. rest .. '}'

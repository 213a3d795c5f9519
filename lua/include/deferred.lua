-- Deferred events: they wait for room in a limit, in the line of their category (with per_label one line for each value).
-- A line is ordered by rank: priority, then first sight. It waits for one scope, the one that refused its head; `awaited`
-- says which, `waits` holds all lines that wait for a scope, by the rank of their heads, and the scope stands in `lines`
-- as 'scope:NAME' with the instant at which one more may pass it; 'inf' while somebody decides about heads of its.
--
-- `deciding` says of each worker what it took and has not decided: the first seq, since when, and the scopes whose heads
-- it holds. Its next take means that it has decided. Nobody overtakes: who was seen later waits until those before are
-- decided, but no longer than ORDER_US for a worker that is slow.
--
-- `at` names the keys: events, parked, lines, totals, awaited, deferred, deciding, freed; the prefixes line and waits; the
-- owner; and now.
local ORDER_US = 1000000
local RANK = 2251799813685248 -- 2^51: seq is below it
local RANKS = { high = 0, normal = 1, low = 2 }

-- Notes for which scope the line waits, and as whose head; forgets a line that is empty.
local function rank_line(at, line, scope)
  local before = redis.call('HGET', at.awaited, line)
  local head = redis.call('ZRANGE', at.line .. line, 0, 0, 'WITHSCORES')
  if before and (before ~= scope or not head[2]) then
    redis.call('ZREM', at.waits .. before, line)
    if redis.call('EXISTS', at.waits .. before) == 0 then
      redis.call('ZREM', at.lines, 'scope:' .. before)
    end
  end
  if head[2] then
    redis.call('ZADD', at.waits .. scope, head[2], line)
    redis.call('HSET', at.awaited, line, scope)
  elseif before then
    redis.call('HDEL', at.awaited, line)
  end
end

-- One more may pass the scope from `instant` on, or from earlier if that is known.
local function open_scope_at(at, scope, instant)
  if redis.call('EXISTS', at.waits .. scope) == 1 then
    redis.call('ZADD', at.lines, 'LT', digits(instant), 'scope:' .. scope)
  end
end

-- A slot of the scope was given back: who was refused for it may ask again. While somebody is deciding that is noted in
-- `freed`, since a refusal that is older may still be on its way here. One who waits for a guarantee or for what the
-- guarantees leave takes either.
local function reopen_scope(at, scope)
  if redis.call('EXISTS', at.deciding) == 1 then
    redis.call('HSET', at.freed, scope, redis.call('HINCRBY', at.freed, '', 1))
  end
  local known = tonumber(redis.call('ZSCORE', at.lines, 'scope:' .. scope) or nil)
  if known and known < math.huge then
    open_scope_at(at, scope, at.now)
  end
  if string.find(scope, '^guarantee:') then
    reopen_scope(at, 'shared')
  elseif scope == 'shared' then
    for _, entry in ipairs(redis.call('ZRANGEBYSCORE', at.lines, digits(at.now), '(inf')) do
      if string.find(entry, '^scope:guarantee:') then
        redis.call('ZADD', at.lines, digits(at.now), entry)
      end
    end
  end
end

-- Whether a slot of the scope has become free since the mark of who is deciding was made.
local function is_freed(at, scope, mark)
  local freed = tonumber(redis.call('HGET', at.freed, scope) or nil)
  return freed and freed > (mark.freed or 0)
end

-- Puts an event into its line and counts it. `scope` refused it until `instant`; or nothing did, and it waits behind others.
local function stand(at, id, header, payload, scope, instant)
  redis.call('ZADD', at.line .. header.line, digits(header.rank * RANK + header.seq), id)
  redis.call('ZADD', at.parked, header.deadline, id)
  scope = scope or redis.call('HGET', at.awaited, header.line) or header.line
  rank_line(at, header.line, scope)
  if instant or not redis.call('ZSCORE', at.lines, 'scope:' .. scope) then
    local mark = instant and redis.call('HGET', at.deciding, at.owner)
    if mark and is_freed(at, scope, cjson.decode(mark)) then
      instant = at.now
    end
    open_scope_at(at, scope, instant or at.now)
  end
  redis.call('HINCRBY', at.deferred, header.category, 1)
  count(at.totals, 'parked', header.counted, 1)
  header.state = 'waiting'
  write_record(at.events, id, header, payload)
end

-- Takes an event out of its line; where it is written next, and that it is no longer parked, is the caller's matter.
local function leave_line(at, id, header)
  redis.call('ZREM', at.line .. header.line, id)
  rank_line(at, header.line, redis.call('HGET', at.awaited, header.line))
  if redis.call('HINCRBY', at.deferred, header.category, -1) == 0 then
    redis.call('HDEL', at.deferred, header.category)
  end
end

-- What the owner held for deciding is decided, or never will be: others may go on. `opened` tells of scopes the
-- instant at which one more may pass; of those whose heads it held and nothing is told, one may try now. One that goes on
-- (`goes_on`) has not decided all: its mark stays until it makes another. Returns its mark, if there was one.
local function decided(at, owner, opened, goes_on)
  local mark = redis.call('HGET', at.deciding, owner)
  if not mark then
    return nil
  end
  if not goes_on then
    redis.call('HDEL', at.deciding, owner)
  end
  mark = cjson.decode(mark)
  for _, scope in ipairs(mark.scopes) do
    local known = opened and opened[scope] and not is_freed(at, scope, mark)
    open_scope_at(at, scope, known and tonumber(opened[scope][1]) or at.now)
  end
  if redis.call('EXISTS', at.deciding) == 0 then
    redis.call('DEL', at.freed)
  end
  return mark
end

local marks -- of other owners that are not slow; read when they are needed

-- Until when events of this seq and later have to wait for what other owners are deciding; nothing when they need not.
local function earlier_undecided(at, owner, seq, now)
  if not marks then
    marks = {}
    local rows = redis.call('HGETALL', at.deciding)
    for i = 1, #rows, 2 do
      local mark = cjson.decode(rows[i + 1])
      mark.ends = tonumber(mark.since) + ORDER_US
      if rows[i] ~= owner and tonumber(mark.since) <= now and mark.ends > now then
        marks[#marks + 1] = mark
      end
    end
  end
  local wait_until
  for _, mark in ipairs(marks) do
    if mark.seq < seq then
      wait_until = math.max(wait_until or 0, mark.ends)
    end
  end
  return wait_until
end

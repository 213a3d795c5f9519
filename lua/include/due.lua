-- What is due, for take.lua: the heads of lines, unless another worker is deciding about an earlier event.
local behind -- until when heads wait for what others are deciding

local function is_behind(seq)
  local wait_until = earlier_undecided(at, call.owner, seq, now)
  behind = wait_until and math.min(behind or wait_until, wait_until) or behind
  return wait_until
end

-- A suspect is taken alone, or not now.
local function may_take(id)
  if alone or not is_suspect(id) then
    return not alone
  end
  alone = #ids_taken == 0 and not call.undecided
  old_wait = old_wait or not alone
  return alone
end

-- What waits on timers, up to `most` of it. Events of unknown fate that went to one channel are looked up by one reading and
-- count as one; none is read before the cool-down of readings is over. Returns how many more may be taken.
local function take_timed(most, is_paused)
  local rows = most > 0 and most + 100 or 0
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', timers, '-inf', digits(now), 'LIMIT', 0, rows)) do
    local header, payload = read_record(redis.call('HGET', events, id))
    local place = header.doubt and header.channel
    if is_too_soon(header) then
      redis.call('ZADD', timers, digits(read_at), id)
    elseif is_suspect(id) then
      old_wait = true
      break
    elseif most > 0 or (place and read[place]) then
      redis.call('ZREM', timers, id)
      unpark(id, header, payload)
      if place and is_paused then
        let_try(pause, id, now)
      end
      if not (place and read[place]) then
        most = most - 1
      end
      note_reading(header)
    end
  end
  return most
end

-- The head of a channel's line: its turn, where the channel takes one post at a time. Returns how many.
local function take_turn(entry)
  local head = redis.call('ZRANGE', call.line .. entry, 0, 0, 'WITHSCORES')
  if is_behind(tonumber(head[2])) then
    return 0
  end
  local id = head[1]
  if not may_take(id) then
    return 0
  end
  redis.call('ZREM', call.line .. entry, id)
  local header = unpark_found(id)
  local is_turn = entry == 'channel:' .. header.channel and (header.solo or redis.call('ZSCORE', KEYS[29], header.channel))
  if redis.call('EXISTS', call.line .. entry) == 0 then
    redis.call('ZREM', lines, entry)
  elseif is_turn then
    redis.call('ZADD', lines, 'inf', entry)
  end
  if is_turn then
    redis.call('HSET', posting, header.channel, id)
  end
  return 1
end

-- Up to `most` heads of the lines that wait for a scope, by rank; until they are decided nobody gets another one.
-- Returns how many.
local function take_heads(scope, most)
  for taken = 0, most - 1 do
    local line = redis.call('ZRANGE', call.waits .. scope, 0, 0)[1]
    if not line then
      redis.call('ZREM', lines, 'scope:' .. scope)
      return taken
    end
    local id = redis.call('ZRANGE', call.line .. line, 0, 0)[1]
    local header, payload = read_record(redis.call('HGET', events, id))
    if is_behind(header.seq) or not may_take(id) then
      return taken
    end
    leave_line(at, id, header)
    unpark(id, header, payload)
    to_decide_again(header.seq)
  end
  return most
end

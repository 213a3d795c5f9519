-- What an own event has told, for settle.lua: after include/tally.lua.
local EDIT_US = 30000000 -- between two edits of one message

-- What came after the `shown` ones goes on as a tally of its own. Returns its first instant.
local function begin_again(at, key, total, shown)
  local since, last, samples = unpack(redis.call('HMGET', key, 'since', 'last', 'samples'))
  local first, left = since or last, {}
  for _, sample in ipairs(samples and cjson.decode(samples) or {}) do
    if sample[2] > shown then
      left[#left + 1] = { sample[1], sample[2] - shown }
    end
  end
  redis.call('HDEL', key, 'since', 'edit', 'shown', 'channel', 'ts', 'next', 'failed', 'samples', 'snap')
  redis.call('HSET', key, 'count', total - shown, 'first', first)
  if #left > 0 then
    redis.call('HSET', key, 'samples', cjson.encode(left))
  end
  return tonumber(first)
end

-- `told` of a call: {"wait_us": until the own event looks again, "shown": of how many it has told | absent,
-- "posted": {"channel", "ts"} a message was posted, "window_us", "fixed": in which another one may not be,
-- "edits": its message can be edited, "ends", "failed", "delay_us"}
local function tell(at, id, key, told, header)
  local total = tonumber(redis.call('HGET', key, 'count') or nil) or 0
  if told.posted then
    local next_at = told.fixed and (math.floor(at.now / told.window_us) + 1) * told.window_us or at.now + told.window_us
    redis.call('HINCRBY', at.totals, 'notices', 1)
    redis.call('HSET', key, 'next', digits(next_at))
    for field, value in pairs(told.posted) do
      redis.call('HSET', key, field, value)
    end
  end
  if told.posted or told.failed then -- what slots it keeps are those of this message: another one takes others
    header.seq, header.unknown, header.first = redis.call('INCR', at.seq), nil, nil
  end
  if told.shown then
    redis.call('HSET', key, 'shown', told.shown)
    redis.call('HDEL', key, 'failed')
  end
  if told.ends and total <= told.shown then
    redis.call('HDEL', at.events, id)
    redis.call('DEL', key)
    redis.call('SREM', at.tallies, id)
    return
  end
  local instant = at.now + told.wait_us
  if told.ends then
    instant, header.channel = begin_again(at, key, total, told.shown) + told.delay_us, nil
  elseif told.failed then
    redis.call('HSET', key, 'failed', 1)
    header.channel = nil
  elseif told.edits then
    local next_at = tonumber(redis.call('HGET', key, 'next'))
    redis.call('HSET', key, 'edit', digits(at.now + EDIT_US))
    instant = total > told.shown and math.min(at.now + EDIT_US, next_at) or next_at
  end
  header.attempt, header.held, header.doubt, header.resent = nil, nil, nil, nil
  park_own(at, id, header, math.max(instant, at.now))
end

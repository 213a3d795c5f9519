-- What waits: an event is parked in a channel's line (ordered by seq), on a timer (its own instant), or deferred in the line
-- of its category (include/deferred.lua).
--
-- `lines` holds the instant at which the head of each channel's line may pass; 'inf' while it waits for the post in flight on
-- its channel. Whoever parks or settles and so sets an instant earlier than all others rings the bell, one sleeper wakes.
local READING = 'conversations.history' -- stands among the channels that cool down for all readings of what was posted
-- So long after a cool-down its channel takes one post at a time until one has arrived; and readings are made one by one.
local COOLED_US = 600000000

local function first_instant(lines, timers)
  local first = math.huge
  for _, key in ipairs({ lines, timers }) do
    local row = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if row[2] then
      first = math.min(first, tonumber(row[2]) or math.huge)
    end
  end
  return first
end

local function ring(wake)
  redis.call('RPUSH', wake, '1')
  redis.call('LTRIM', wake, 0, 15)
end

-- The instant from which the channel may be posted to: after its cool-down, and with room in its pace.
local function channel_free_at(channel, cooldowns, now)
  local at = tonumber(redis.call('ZSCORE', cooldowns, channel.name)) or 0
  if channel.max then
    local pace = open_scope(channel.pace, { { channel.max, channel.window_us } }, now)
    at = math.max(at, (scope_room_at(pace)))
  end
  return at
end

-- Whether the channel takes one post at a time: for its pace, or since it has cooled down and none has arrived yet.
local function is_solo(channel, cooldowns)
  return channel.max ~= nil or redis.call('ZSCORE', cooldowns, channel.name) ~= false
end

-- Sets when the head of the channel's line may pass, or forgets a line that is empty.
local function set_line(channel, keys, now)
  if redis.call('EXISTS', channel.line) == 0 then
    redis.call('ZREM', keys.lines, channel.line_name)
  elseif redis.call('HEXISTS', keys.posting, channel.name) == 1 then
    redis.call('ZADD', keys.lines, 'inf', channel.line_name)
  else
    local at = math.max(now, channel_free_at(channel, keys.cooldowns, now))
    redis.call('ZADD', keys.lines, digits(at), channel.line_name)
  end
end

-- Ends the post in flight (or the turn) of `id` on its channel.
local function free_channel(posting, channel, id)
  if redis.call('HGET', posting, channel) == id then
    redis.call('HDEL', posting, channel)
  end
end

-- Threads by a key of the producer's own: events of one key go under the first one's message in their channel.
--
-- `at` names the keys: threads  ZSET "CHANNEL\nKEY" -> instant at which it is forgotten; roots HASH "CHANNEL\nKEY" -> ts of
-- the first message; both live as long as the last of them; and now, keep_us. Of more than MOST_THREADS those go that were
-- used least lately.
local MOST_THREADS = 100000

-- The ts of the thread's first message, if there is one; it is kept on for keep_us.
local function root_of(at, name)
  local ends = tonumber(redis.call('ZSCORE', at.threads, name))
  if not ends or ends <= at.now then
    return nil
  end
  redis.call('ZADD', at.threads, digits(at.now + at.keep_us), name)
  keep_alive(at.threads, at.keep_us)
  keep_alive(at.roots, at.keep_us)
  return redis.call('HGET', at.roots, name) or nil
end

-- This message is the thread's first, unless it has one. Forgets twice as many threads whose time has come.
local function begin_thread(at, name, ts)
  if root_of(at, name) then
    return
  end
  local old = redis.call('ZRANGEBYSCORE', at.threads, '-inf', digits(at.now), 'LIMIT', 0, 2)
  if #old == 0 and redis.call('ZCARD', at.threads) >= MOST_THREADS then
    old = redis.call('ZRANGE', at.threads, 0, 0)
  end
  if #old > 0 then
    redis.call('ZREM', at.threads, unpack(old))
    redis.call('HDEL', at.roots, unpack(old))
  end
  redis.call('ZADD', at.threads, digits(at.now + at.keep_us), name)
  redis.call('HSET', at.roots, name, ts)
  keep_alive(at.threads, at.keep_us)
  keep_alive(at.roots, at.keep_us)
end

-- The keys that a call points to; nothing where none of its events names a thread.
local function threads_of(call, now)
  local told = call.threads
  return told and { threads = KEYS[told.names], roots = KEYS[told.roots], keep_us = told.keep_us, now = now }
end

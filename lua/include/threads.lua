-- Threads by a key of the producer's own: events of one key go under the first one's message in their channel.
--
-- `at` names the keys: threads  ZSET "CHANNEL\nKEY" -> instant at which it is forgotten; roots HASH "CHANNEL\nKEY" -> ts of
-- the first message; both live as long as the last of them; and now, keep_us. Of more than MOST_THREADS those go that were
-- used least lately.
local threads = module(function(threads)
  local MOST_THREADS = 100000
  local MOST_TS = 64 -- characters of a message's ts

  local function keep(at, name)
    plan.zadd(at.threads, at.now + at.keep_us, name)
    plan.keep_alive(at.threads, at.keep_us)
    plan.keep_alive(at.roots, at.keep_us)
  end

  -- The ts of the thread's first message, if there is one; it is kept on for keep_us.
  function threads.root(at, name)
    local ends = plan.zscore(at.threads, name)
    if not ends or ends <= at.now then
      return nil
    end
    keep(at, name)
    local root = plan.hget(at.roots, name)
    return root and #root <= MOST_TS and root or nil
  end

  -- The thread is forgotten, unless it has another first message by now.
  function threads.forget(at, name, root)
    if plan.hget(at.roots, name) == root then
      plan.zrem(at.threads, name)
      plan.hdel(at.roots, name)
    end
  end

  -- This message is the thread's first, unless it has one. Forgets twice as many threads whose time has come.
  function threads.begin(at, name, ts)
    if threads.root(at, name) then
      return
    end
    local old = redis.call('ZRANGEBYSCORE', at.threads, '-inf', digits(at.now), 'LIMIT', 0, 2)
    if #old == 0 and redis.call('ZCARD', at.threads) >= MOST_THREADS then
      old = redis.call('ZRANGE', at.threads, 0, 0)
    end
    for _, each in ipairs(old) do
      plan.zrem(at.threads, each)
      plan.hdel(at.roots, each)
    end
    keep(at, name)
    plan.hset(at.roots, name, ts)
  end

  -- The keys that a call points to; nothing where none of its events names a thread.
  function threads.of(call, now)
    local told = call.threads
    return told and { threads = KEYS[told.names], roots = KEYS[told.roots], keep_us = told.keep_us, now = now }
  end
end)

-- Scopes without ids: exact like sorted sets, a fraction of their memory; nothing in them can be moved, held or released.
--
-- LOG    a list of instants, the newest first. The clock stepped back: what is admitted then counts as charged at the
--        newest instant kept, so the list stays in order.
-- QUOTA  for scopes with fixed windows alone: a string "us:window:count ...", for each window of length `us` how many were
--        admitted in the one that began at window * us. The clock stepped back: nobody is admitted until it is back in
--        the window counted last.
local function log_stores()
  local LOG, QUOTA = {}, {}
  local MAX, US, leaves = slots.MAX, slots.US, slots.leaves

  function LOG.look(view)
    view.live, view.lapsed, view.ahead = 0, 0, 0
    view.newest = tonumber(redis.call('LINDEX', view.key, 0) or nil)
    view.at_us = math.max(view.now, view.newest or 0)
  end

  function LOG.scores(view, i, count)
    local rows = redis.call('LRANGE', view.key, i - count, i - 1)
    local scores = {}
    for j = 1, #rows do
      scores[count - j + 1] = tonumber(rows[j])
    end
    return scores
  end

  function LOG.add(view)
    LOG.look(view)
    local at, length = digits(view.at_us), redis.call('LLEN', view.key) + view.adding
    local rows = {}
    for i = 1, view.adding do
      rows[i] = at
    end
    plan.write_rows('LPUSH', view.key, rows, 1)
    local size, longest = slots.largest(view, MAX), slots.largest(view, US)
    if length > size then
      plan.write('LTRIM', view.key, 0, size - 1)
    end
    plan.keep_alive(view.key, longest, 2 * longest)
  end

  -- How many instants lie within the window, found by bisection.
  function LOG.used(view, window)
    local low, high = 0, redis.call('LLEN', view.key)
    while low < high do
      local middle = math.floor((low + high + 1) / 2)
      if leaves(tonumber(redis.call('LINDEX', view.key, middle - 1)), window) > view.now then
        low = middle
      else
        high = middle - 1
      end
    end
    return low
  end

  function QUOTA.look(view)
    view.live, view.counts = 0, {}
    for us, window, count in string.gmatch(redis.call('GET', view.key) or '', '(%d+):(%d+):(%d+)') do
      view.counts[tonumber(us)] = { window = tonumber(window), count = tonumber(count) }
    end
  end

  function QUOTA.used(view, window)
    if not view.live then
      QUOTA.look(view)
    end
    local counted = view.counts[window[US]]
    local current = math.floor(view.now / window[US])
    return counted and counted.window >= current and counted.count or 0
  end

  function QUOTA.room_at(view, window)
    local full = QUOTA.used(view, window) + view.adding >= window[MAX]
    local counted = view.counts[window[US]]
    local current = math.floor(view.now / window[US])
    if counted and counted.window > current then
      return (counted.window + (full and 1 or 0)) * window[US]
    end
    return full and (current + 1) * window[US] or 0
  end

  function QUOTA.add(view)
    local counts = {}
    for i, window in ipairs(view.windows) do
      local current = math.floor(view.now / window[US])
      counts[i] = string.format('%.0f:%.0f:%d', window[US], current, QUOTA.used(view, window) + view.adding)
    end
    plan.write('SET', view.key, table.concat(counts, ' '), 'PX', math.ceil(slots.largest(view, US) / 1000) + 1)
  end

  return { set = slots.SET, log = LOG, quota = QUOTA }
end

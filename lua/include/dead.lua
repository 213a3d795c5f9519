-- Dead letters: a stream, oldest first, and the hash id -> entry of each. An entry's first fields are "id" and "at" (us).
-- Removes one; returns how many: 0 where it is gone already.
local function unbury(dead, dead_ids, entry, id)
  if redis.call('HGET', dead_ids, id) == entry then
    redis.call('HDEL', dead_ids, id)
  end
  return redis.call('XDEL', dead, entry)
end

-- Drops letters beyond `max`, and those older than `max_age_us`; at most `most` of them. Returns how many.
local function trim_dead(dead, dead_ids, bounds, now, most)
  local surplus = redis.call('XLEN', dead) - bounds.max
  local trimmed = 0
  while trimmed < most do
    local oldest = redis.call('XRANGE', dead, '-', '+', 'COUNT', 1)[1]
    if not oldest then
      break
    end
    if trimmed >= surplus and tonumber(oldest[2][4]) > now - bounds.max_age_us then
      break
    end
    unbury(dead, dead_ids, oldest[1], oldest[2][2])
    trimmed = trimmed + 1
  end
  return trimmed
end

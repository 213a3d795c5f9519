-- The books: the hash `totals` counts each outcome, in all ("sent") and for each category ("sent errors"), and the
-- parked of each category ("parked errors"). Beyond MOST_NAMES names that no limits file knows, "other" is counted.
-- The name '' is that of own events (include/tally.lua), which stand in no book.
local MOST_NAMES = 1000

local function counted_name(names, category, configured)
  if configured or redis.call('SISMEMBER', names, category) == 1 then
    return category
  end
  if redis.call('SCARD', names) < MOST_NAMES then
    redis.call('SADD', names, category)
    return category
  end
  return 'other'
end

local function count(totals, outcome, name, by)
  if name == '' then
    return
  end
  redis.call('HINCRBY', totals, outcome .. ' ' .. name, by)
  if outcome ~= 'parked' then
    redis.call('HINCRBY', totals, outcome, by)
  end
end

-- What ends without a trace but for the books and the decision record, by the group.
--
-- `at` names the keys: events, leased, totals, names, seen, limited and its older part; and now, remember_us, most_decisions.

-- Remembers all of the ids, and forgets twice as many whose time has come.
local function remember(at, ids)
  local until_us = digits(at.now + at.remember_us)
  for first = 1, #ids, 1000 do
    local rows = {}
    for n = first, math.min(first + 999, #ids) do
      rows[#rows + 1] = until_us
      rows[#rows + 1] = ids[n]
    end
    local old = redis.call('ZRANGEBYSCORE', at.seen, '-inf', digits(at.now), 'LIMIT', 0, #rows)
    if #old > 0 then
      redis.call('ZREM', at.seen, unpack(old))
    end
    redis.call('ZADD', at.seen, unpack(rows))
  end
  keep_alive(at.seen, at.remember_us)
end

-- The books, the memory and the decision record of what ends: the `ids` of each group.
local function note_dropped(at, groups)
  local rows = {}
  for _, group in ipairs(groups) do
    if #group.ids > 0 then
      local why = digits(at.now) .. ' ' .. group.why
      for _, id in ipairs(group.ids) do
        rows[#rows + 1] = id
        rows[#rows + 1] = why
      end
      count(at.totals, group.outcome, counted_name(at.names, group.category, group.configured), #group.ids)
      if group.remember then
        remember(at, group.ids)
      end
    end
  end
  if #rows > 0 then
    record_decisions(at.limited, at.limited_older, rows, at.most_decisions)
  end
end

-- Ends what is still this owner's, those with 1 in `ours`: `count` of the ids belong to the first group, and so on.
local function drop(at, ids, ours, groups)
  local gone, last = {}, 0
  for _, group in ipairs(groups) do
    group.ids = {}
    for n = last + 1, last + group.count do
      if ours[n] == 1 then
        gone[#gone + 1] = ids[n]
        group.ids[#group.ids + 1] = ids[n]
      end
    end
    last = last + group.count
  end
  if #gone > 0 then
    redis.call('SREM', at.leased, unpack(gone))
    redis.call('HDEL', at.events, unpack(gone))
    note_dropped(at, groups)
  end
end

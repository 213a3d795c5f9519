-- What is counted, remembered and put on record of events.
--
-- The books: the hash `totals` counts each outcome, in all ("sent") and for each category ("sent errors"), and the parked of
-- each category ("parked errors"). Beyond MOST_NAMES names that no limits file knows, "other" is counted. The name '' is that
-- of digest messages (include/digest.lua), which stand in no book.
--
-- The decision record: a hash id -> "INSTANT JSON" of what became of events, once for those that a limit suppressed and once
-- for all others, so that a storm evicts nothing that was sent. Each has an older part: when the present one is to hold more
-- than half of what may be kept it takes the older one's place, so nothing is removed one by one.
--
-- `at` names the keys totals, names, seen, limited, limited_older, others, others_older, events, leased; and now, remember_us,
-- most_decisions.
local accounting = module(function(accounting)
  accounting.UNREADABLE = '-' -- the category of what cannot be read
  local MOST_NAMES = 1000
  local DECISIONS_MS = 604800000 -- seven days after the last one

  function accounting.name(names, category, configured)
    if configured or plan.sismember(names, category) then
      return category
    end
    accounting.known = accounting.known or redis.call('SCARD', names)
    if accounting.known < MOST_NAMES then
      accounting.known = accounting.known + 1
      plan.sadd(names, category)
      return category
    end
    return 'other'
  end

  function accounting.count(totals, outcome, name, by)
    if name == '' then
      return
    end
    plan.count(totals, outcome .. ' ' .. name, by)
    if outcome ~= 'parked' then
      plan.count(totals, outcome, by)
    end
  end

  local rows_of = {} -- of a part of the record: id, decision, ...

  local function record(present, older, ids, decision)
    local rows = rows_of[present]
    if not rows then
      rows = { older = older }
      rows_of[present] = rows
    end
    local last = #rows
    for n = 1, #ids do
      rows[last + 2 * n - 1], rows[last + 2 * n] = ids[n], decision
    end
  end

  function accounting.record_limited(at, id, decision)
    record(at.limited, at.limited_older, { id }, decision)
  end

  function accounting.record_other(at, id, decision)
    record(at.others, at.others_older, { id }, decision)
  end

  -- Plans the record of this call.
  function accounting.write_record(at)
    for present, rows in pairs(rows_of) do
      local held = redis.call('HLEN', present)
      if held > 0 and 2 * held + #rows > at.most_decisions then
        plan.write('UNLINK', rows.older)
        plan.write('RENAME', present, rows.older)
      end
      plan.write_rows('HSET', present, rows, 2)
      plan.write('PEXPIRE', present, DECISIONS_MS)
    end
  end

  local remembered = {}

  -- Remembers the ids, and forgets twice as many whose time has come.
  function accounting.remember(at, ids)
    for _, id in ipairs(ids) do
      remembered[#remembered + 1] = id
    end
  end

  -- Plans what is to be remembered.
  function accounting.write_memory(at)
    if #remembered == 0 then
      return
    end
    local kept = {}
    for _, id in ipairs(remembered) do
      kept[id] = true
    end
    local old = redis.call('ZRANGEBYSCORE', at.seen, '-inf', digits(at.now), 'LIMIT', 0, 2 * #remembered)
    local gone, rows = {}, {}
    for _, id in ipairs(old) do
      if not kept[id] then
        gone[#gone + 1] = id
      end
    end
    local until_us = digits(at.now + at.remember_us)
    for n, id in ipairs(remembered) do
      rows[2 * n - 1], rows[2 * n] = until_us, id
    end
    plan.write_rows('ZADD', at.seen, rows, 2)
    plan.write_rows('ZREM', at.seen, gone, 1) -- last: a key that loses its last member loses its lifetime
    plan.keep_alive(at.seen, at.remember_us)
  end

  -- The books, the memory and the record of what ends by the group: its `ids`, `category`, `configured`, `outcome`, `remember`
  -- and `why`.
  function accounting.note_dropped(at, groups)
    for _, group in ipairs(groups) do
      if #group.ids > 0 then
        record(at.limited, at.limited_older, group.ids, digits(at.now) .. ' ' .. group.why)
        accounting.count(at.totals, group.outcome, accounting.name(at.names, group.category, group.configured), #group.ids)
        if group.remember then
          accounting.remember(at, group.ids)
        end
      end
    end
  end

  -- Plans all of it; at the end of a script.
  function accounting.write(at)
    accounting.write_record(at)
    accounting.write_memory(at)
  end
end)

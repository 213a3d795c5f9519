-- What is counted, remembered and put on record of events.
--
-- The books: the hash `totals` counts each outcome in all ("dropped") and for each category and reason ("dropped errors
-- limit:global"). Two outcomes have fewer fields: a sent event has no reason ("sent errors"), a duplicate has no category.
-- "parked errors" says how many events wait. "held errors" says how many have a name and have not ended. What was received of a
-- category is what is held and all that ended. Beyond MOST_NAMES names that no limits file knows, "other" is counted. The name ''
-- is that of digest messages (include/digest.lua), which stand in no book.
--
-- The minutes: a hash for each minute of the clock counts in the same fields what happened in that minute. "held errors" is then
-- a difference, and "parked errors" is left out. The number of the minute since 1970 ends the key's name. The hash lives for
-- KEPT_US at least. After a step back of the clock an earlier minute goes on.
--
-- The decision record: a hash id -> "INSTANT JSON" of what became of events, once for those that a limit suppressed and once
-- for all others, so that a storm evicts nothing that was sent. Each has an older part: when the present one is to hold more
-- than half of what may be kept it takes the older one's place, so nothing is removed one by one.
--
-- `at` names the keys totals, names, seen, limited, limited_older, others, others_older, events, leased; minute: prefix of keys;
-- and now, remember_us, most_decisions.
local accounting = module(function(accounting)
  accounting.UNREADABLE = '-' -- the category of what cannot be read
  local MOST_NAMES = 1000
  local DECISIONS_MS = 604800000 -- seven days after the last one
  local MINUTE_US, HOUR_US, KEPT_US = 60000000, 3600000000, 172800000000
  local HAS_REASONS = { dropped = true, digested = true, dead = true }

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

  function accounting.count_parked(at, name, by)
    if name ~= '' then
      plan.count(at.totals, 'parked ' .. name, by)
    end
  end

  local minute

  local function minute_of(at)
    if not minute then
      minute = at.minute .. digits(math.floor(at.now / MINUTE_US))
      plan.keep_alive(minute, KEPT_US, KEPT_US + HOUR_US)
    end
    return minute
  end

  -- Counts in the books and in the minute.
  function accounting.count(at, field, by)
    plan.count(at.totals, field, by)
    plan.count(minute_of(at), field, by)
  end

  local held, ended = {}, {} -- name -> by how much it changes; field -> how many

  -- Gives an event its name in the books, unless it has one: a name is kept, whatever limits follow.
  function accounting.give_name(at, header, category, configured)
    if (header.counted or '') == '' then
      header.counted = accounting.name(at.names, category, configured)
      held[header.counted] = (held[header.counted] or 0) + 1
    end
    return header.counted
  end

  -- Counts events that end. `why` is the text for the record; `was_held`: give_name has named them, in this call or before.
  function accounting.count_ended(outcome, name, by, why, was_held)
    local reason = HAS_REASONS[outcome] and string.match(why, '^%["%a+",[^,]*,"([^"]+)"')
    local field = outcome .. ' ' .. name .. (reason and ' ' .. reason or '')
    ended[field] = (ended[field] or 0) + by
    ended[outcome] = (ended[outcome] or 0) + by
    if was_held then
      held[name] = (held[name] or 0) - by
    end
  end

  -- Plans what was counted of categories.
  function accounting.write_counts(at)
    for field, by in pairs(ended) do
      accounting.count(at, field, by)
    end
    held[''] = nil
    for name, by in pairs(held) do
      if by ~= 0 then
        accounting.count(at, 'held ' .. name, by)
      end
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

  -- The books, the memory and the record of what ends by the group: its `ids`, `category`, `configured`, `outcome`, `remember`,
  -- `why`, and the name that they have in the books (`counted`), if they have one.
  function accounting.note_dropped(at, groups)
    for _, group in ipairs(groups) do
      if #group.ids > 0 then
        record(at.limited, at.limited_older, group.ids, digits(at.now) .. ' ' .. group.why)
        local name = group.counted or accounting.name(at.names, group.category, group.configured)
        accounting.count_ended(group.outcome, name, #group.ids, group.why, group.counted ~= nil)
        if group.remember then
          accounting.remember(at, group.ids)
        end
      end
    end
  end

  -- Plans all of it; at the end of a script.
  function accounting.write(at)
    accounting.write_counts(at)
    accounting.write_record(at)
    accounting.write_memory(at)
  end
end)

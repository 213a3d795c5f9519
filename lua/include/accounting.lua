-- What is counted, remembered and put on record of events.
--
-- The books: the hash `totals` counts each outcome in all ("dropped") and for each category and reason ("dropped errors
-- limit:global"). Two outcomes have fewer fields: a sent event has no reason ("sent errors"), a duplicate has no category.
-- "parked errors limit" says how many events wait, and for what. "held errors" says how many have a name and have not ended. What was received of a
-- category is what is held and all that ended. Beyond MOST_NAMES names that no limits file knows, "other" is counted. The name ''
-- is that of digest messages (include/digest.lua), which stand in no book.
--
-- The minutes: a hash for each minute of the clock counts in the same fields what happened in that minute. "held errors" is then
-- a difference, and "parked errors limit" is left out. The number of the minute since 1970 ends the key's name. The hash lives for
-- KEPT_US at least. After a step back of the clock an earlier minute goes on.
--
-- The decision record says what became of events. It has two parts, so that a storm evicts nothing that was sent: `limited` has what
-- was dropped, duplicates, and what limits, silences and quiet hours ended otherwise (as digested or dead); `others` has all
-- else. Each part is a stream and its index:
--   stream  an entry for each call. Its id is N-0: N events are on record up to this entry. Its pairs: "INSTANT WHY" -> the ids
--           of the events that ended so, separated by blanks, and behind them a line "TEXT",{LABELS} for each of them, in the same
--           order; an empty one where text and labels are not known.
--   index   a hash id -> the entry that tells of the event last; '' -> N of the last entry. It has an older part: when the
--           present one is to hold more than half of what may be kept it takes the older one's place, so nothing is removed one
--           by one.
--
-- What an event waits for is a word of FOR, or the reason itself: header.waits for now, header.waited of all that it waited for so far
-- the one that tells most.
--
-- Beside the books, the hash `metrics` counts what nobody has to balance: "delivery WAITED PRIORITY N": posted events in the N-th
-- bucket of the time they took, and "... us": the sum of that time; "slack METHOD RESULT" and "seconds METHOD N", "... us": requests
-- to Slack, as workers report them; "letters REASON": dead letters that are kept; "trimmed": those lost to their bounds;
-- "limits_refused". It is permanent.
--
-- `at` names the keys totals, names, seen, limited, limited_older, limited_log, others, others_older, others_log, metrics;
-- and minute_prefix; and now, remember_us, most_decisions.
local accounting = module(function(accounting)
  accounting.UNREADABLE = '-' -- the category of what cannot be read
  local MOST_NAMES = 1000
  local DECISIONS_MS = 604800000 -- seven days after the last one
  local MINUTE_US, HOUR_US, KEPT_US = 60000000, 3600000000, 172800000000
  local HAS_REASONS = { dropped = true, digested = true, dead = true }

  local named -- how many names there are

  local function name_of(names, category, configured)
    if configured or plan.zscore(names, category) then
      return category
    end
    named = named or redis.call('ZCARD', names)
    if named < MOST_NAMES then
      named = named + 1
      plan.zadd(names, named, category)
      return category
    end
    return 'other'
  end

  local FOR = { ['limit:global'] = 'limit', ['limit:category'] = 'limit', ['limit:label'] = 'limit', ['repeat'] = 'limit', reconcile = 'retry' }
  local TELLS = { scheduled = 0, pace = 1, retry = 2, cooldown = 3, paused = 4, silenced = 4, quiet = 5, limit = 6 }

  local function count_parked(at, header, name, by)
    if name ~= '' then
      plan.count(at.totals, 'parked ' .. name .. ' ' .. (header.waits or 'unknown'), by)
    end
  end

  -- Counts an event that has a name and waits from now on, and notes for what; the caller writes the header afterwards.
  function accounting.park(at, header, reason)
    local waits = FOR[reason] or reason
    header.waits = waits
    if (TELLS[waits] or 1) > (TELLS[header.waited] or 0) then
      header.waited = waits
    end
    count_parked(at, header, header.counted, 1)
  end

  -- Counts that it waits no longer; `name` where the header has lost it.
  function accounting.unpark(at, header, name)
    count_parked(at, header, name or header.counted, -1)
  end

  local WAITED = { limit = 'limit', pace = 'pace', cooldown = 'cooldown', retry = 'retry', paused = 'paused', silenced = 'paused', quiet = 'quiet' }
  local BUCKETS_S = { 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 1800, 3600, 21600, 86400 } -- web/exposition.py has them too

  -- Counts how long a posted event took since `since`, the instant from which on it might be posted.
  function accounting.count_delivery(at, header, priority, since)
    local took, bucket = math.max(0, at.now - since), 1
    while BUCKETS_S[bucket] and took > BUCKETS_S[bucket] * 1000000 do
      bucket = bucket + 1
    end
    local field = 'delivery ' .. (WAITED[header.waited] or 'nothing') .. ' ' .. priority .. ' '
    plan.count(at.metrics, field .. digits(bucket), 1)
    plan.count(at.metrics, field .. 'us', took)
  end

  local minute

  local function minute_of(at)
    if not minute then
      minute = at.minute_prefix .. digits(math.floor(at.now / MINUTE_US))
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
      header.counted = name_of(at.names, category, configured)
      held[header.counted] = (held[header.counted] or 0) + 1
    end
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

  local parts = {} -- of the record: name -> its groups in order, the groups by their text, and how many events

  -- Notes what became of these events, a list that stays as it is from now on. `joined` has their ids in one text, separated by
  -- blanks; `shown` text and labels of each, as JSON without brackets, or '' where they are not known, separated by line feeds.
  local function record(name, ids, joined, shown, why)
    local part = parts[name] or { groups = {}, of = {}, number = 0 }
    parts[name] = part
    local group = part.of[why]
    if not group then
      group = { why = why, lists = {} }
      part.of[why], part.groups[#part.groups + 1] = group, group
    end
    group.lists[#group.lists + 1] = { ids = ids, joined = joined, shown = shown }
    part.number = part.number + #ids
  end

  function accounting.record_limited(id, why, shown)
    record('limited', { id }, id, shown or '', why)
  end

  function accounting.record_other(id, why, shown)
    record('others', { id }, id, shown or '', why)
  end

  -- How many events are on record so far. Where the index has lost it, the stream knows it.
  local function number_before(index, older, log)
    local number = math.max(count_of(redis.call('HGET', index, '')), count_of(redis.call('HGET', older, '')))
    if #redis.call('XRANGE', log, digits(number + 1) .. '-0', '+', 'COUNT', 1) > 0 or number == 0 then
      number = count_of((last_entry_of(log)))
    end
    return number
  end

  -- The texts of these lists that have a name, in one.
  local function joined_of(lists, name, separator)
    local texts = {}
    for n, list in ipairs(lists) do
      texts[n] = list[name]
    end
    return texts[2] and table.concat(texts, separator) or texts[1]
  end

  -- Plans the record of this call.
  local function write_record(at)
    for name, part in pairs(parts) do
      local index, older, log = at[name], at[name .. '_older'], at[name .. '_log']
      local number = number_before(index, older, log) + part.number
      local entry, pairs_of_entry = digits(number) .. '-0', {}
      local rows, filled = { '', digits(number) }, 2
      for n, group in ipairs(part.groups) do
        for _, list in ipairs(group.lists) do
          for nth = 1, #list.ids do
            rows[filled + 1], rows[filled + 2], filled = list.ids[nth], entry, filled + 2
          end
        end
        pairs_of_entry[2 * n - 1] = group.why
        pairs_of_entry[2 * n] = joined_of(group.lists, 'joined', ' ') .. '\n' .. joined_of(group.lists, 'shown', '\n')
      end
      local size = redis.call('HLEN', index)
      if size > 1 and 2 * (size - 1 + part.number) > at.most_decisions then
        plan.write('UNLINK', older)
        plan.write('RENAME', index, older)
      end
      plan.write('XADD', log, entry, unpack(pairs_of_entry))
      plan.write('XTRIM', log, 'MINID', digits(math.max(0, number - at.most_decisions + 1)))
      plan.write_rows('HSET', index, rows, 2, true) -- texts: what is none cannot be joined, as the ids were above
      plan.write('PEXPIRE', log, DECISIONS_MS)
      plan.write('PEXPIRE', index, DECISIONS_MS)
    end
  end

  local remembered = {}

  -- Remembers the ids, and forgets twice as many whose time has come.
  function accounting.remember(ids)
    for _, id in ipairs(ids) do
      remembered[#remembered + 1] = id
    end
  end

  -- Plans what is to be remembered.
  local function write_memory(at)
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

  -- The books, the memory and the record of what ends by the group: its `ids`, `shown` of each, `category`, `configured`, `outcome`,
  -- `remember`, `why`, and the name that they have in the books (`counted`), if they have one. Notes `joined`, the ids in one text.
  function accounting.note_dropped(at, groups)
    for _, group in ipairs(groups) do
      if #group.ids > 0 then
        group.joined = table.concat(group.ids, ' ')
        record('limited', group.ids, group.joined, table.concat(group.shown, '\n'), digits(at.now) .. ' ' .. group.why)
        local name = group.counted or name_of(at.names, group.category, group.configured)
        accounting.count_ended(group.outcome, name, #group.ids, group.why, group.counted ~= nil)
        if group.remember then
          accounting.remember(group.ids)
        end
      end
    end
  end

  -- Plans all of it; at the end of a script.
  function accounting.write(at)
    accounting.write_counts(at)
    write_record(at)
    write_memory(at)
  end
end)

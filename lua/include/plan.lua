-- The plan: what a script is going to write. Redis keeps what a script wrote before it raised, so a script first reads and
-- computes, and writes at its end, by `plan.commit`. Reads that go through the plan see what is planned.
--
-- Whatever can raise, raises before the first write: the first use of a key asks the server for it, so that a key of another
-- type is refused; scores are checked; texts are made. `commit` computes nothing. It frees memory first, which a full server
-- allows; after such a write the server allows the rest as well.
--
-- Scores are numbers (math.huge for 'inf'); hash values are texts or numbers.
local plan = (function()
  local plan = {}
  local call = redis.call
  local hashes, zsets, sets, counters, lifetimes = {}, {}, {}, {}, {}
  local wiped, numbers, later = {}, {}, {}
  local rings, CHUNK = 0, 1000

  local function entry_of(entries, key, size_of)
    local entry = entries[key]
    if not entry then
      if size_of then
        call(size_of, key) -- another type is refused here
      end
      entry = { known = {}, changed = {}, members = {} }
      entries[key] = entry
    end
    return entry
  end

  local function change(entry, member, value)
    if not entry.changed[member] then
      entry.changed[member] = true
      entry.members[#entry.members + 1] = member
    end
    entry.known[member] = value
  end

  -- HASH

  function plan.hget(key, field)
    local entry = entry_of(hashes, key)
    local value = entry.known[field]
    if value == nil then
      value = not wiped[key] and call('HGET', key, field) or false
      entry.known[field] = value
    end
    return value or nil
  end

  function plan.hset(key, field, value)
    change(entry_of(hashes, key, 'HLEN'), field, value)
  end

  function plan.hdel(key, field)
    change(entry_of(hashes, key, 'HLEN'), field, false)
  end

  -- Every field and its value.
  function plan.hgetall(key)
    local entry, result = entry_of(hashes, key), {}
    local rows = wiped[key] and {} or call('HGETALL', key)
    for i = 1, #rows, 2 do
      result[rows[i]] = rows[i + 1]
    end
    for _, field in ipairs(entry.members) do
      result[field] = entry.known[field] or nil
    end
    return result
  end

  function plan.hlen(key)
    local entry = entry_of(hashes, key)
    local length = wiped[key] and 0 or call('HLEN', key)
    for _, field in ipairs(entry.members) do
      local was = not wiped[key] and call('HEXISTS', key, field) == 1
      if was ~= (entry.known[field] ~= false) then
        length = length + (was and -1 or 1)
      end
    end
    return length
  end

  -- Adds to a counter that this script does not read.
  function plan.count(key, field, by)
    local counts = counters[key]
    if not counts then
      call('HLEN', key)
      counts = {}
      counters[key] = counts
    end
    counts[field] = (counts[field] or 0) + by
  end

  -- ZSET

  function plan.zscore(key, member)
    local entry = entry_of(zsets, key)
    local score = entry.known[member]
    if score == nil then
      score = not wiped[key] and number_of(call('ZSCORE', key, member)) or false
      entry.known[member] = score
    end
    return score or nil
  end

  function plan.zadd(key, score, member)
    if type(score) ~= 'number' or score ~= score then
      error('score ' .. tostring(score) .. ' of ' .. tostring(member) .. ' in ' .. key .. ', expected a number')
    end
    change(entry_of(zsets, key, 'ZCARD'), member, score)
  end

  -- Only where it is not there, or with a higher score.
  function plan.zadd_lower(key, score, member)
    local known = plan.zscore(key, member)
    if not known or score < known then
      plan.zadd(key, score, member)
    end
  end

  -- Only where it is not there, or with a lower score.
  function plan.zadd_higher(key, score, member)
    local known = plan.zscore(key, member)
    if not known or score > known then
      plan.zadd(key, score, member)
    end
  end

  -- Whether it was there.
  function plan.zrem(key, member)
    if plan.zscore(key, member) then
      change(zsets[key], member, false)
      return true
    end
    return false
  end

  -- Of the members that are planned, the one of the lowest score above `low`, or of the highest below `high`.
  local function planned(entry, low, high)
    local found, at
    for _, member in ipairs(entry.members) do
      local score = entry.known[member]
      if score and (not low or score > low) and (not high or score < high) then
        local is_better = not at or (high and score > at) or (not high and score < at) or (score == at and member < found)
        if is_better then
          found, at = member, score
        end
      end
    end
    return found, at
  end

  -- The first member that the server names and no change touches; `command` and its arguments take an offset at their end.
  local function unchanged(entry, from, ask)
    while true do
      local row = ask(from)
      if not row[1] or not entry.changed[row[1]] then
        return row[1], number_of(row[2]), from
      end
      from = from + 1
    end
  end

  local function nearer(entry, member, score, low, high)
    local other, at = planned(entry, low, high)
    local is_other = at and (not score or (high and at > score) or (not high and at < score) or (at == score and other < member))
    if is_other then
      return other, at
    end
    return member, score
  end

  -- The member of the lowest score, and that.
  function plan.zfirst(key)
    local entry = entry_of(zsets, key)
    local member, score
    if not wiped[key] then
      member, score, entry.skip = unchanged(entry, entry.skip or 0, function(at) return call('ZRANGE', key, at, at, 'WITHSCORES') end)
    end
    return nearer(entry, member, score)
  end

  -- The member of the lowest score above `low`, and that.
  function plan.znext(key, low)
    local entry = entry_of(zsets, key)
    local member, score
    if not wiped[key] then
      member, score = unchanged(entry, 0, function(at)
        return call('ZRANGEBYSCORE', key, '(' .. digits(low), '+inf', 'WITHSCORES', 'LIMIT', at, 1)
      end)
    end
    return nearer(entry, member, score, low)
  end

  -- The member of the highest score below `high`, and that.
  function plan.zprevious(key, high)
    local entry = entry_of(zsets, key)
    local member, score
    if not wiped[key] then
      member, score = unchanged(entry, 0, function(at)
        return call('ZREVRANGEBYSCORE', key, '(' .. digits(high), '-inf', 'WITHSCORES', 'LIMIT', at, 1)
      end)
    end
    return nearer(entry, member, score, nil, high)
  end

  -- Up to `most` members with scores up to `high`, the lowest first.
  function plan.zdue(key, high, most)
    local entry, rows = entry_of(zsets, key), {}
    local stored = wiped[key] and {} or call('ZRANGEBYSCORE', key, '-inf', digits(high), 'WITHSCORES', 'LIMIT', 0, most + #entry.members)
    for i = 1, #stored, 2 do
      if not entry.changed[stored[i]] then
        rows[#rows + 1] = { stored[i], number_of(stored[i + 1]) }
      end
    end
    for _, member in ipairs(entry.members) do
      local score = entry.known[member]
      if score and score <= high then
        rows[#rows + 1] = { member, score }
      end
    end
    if #entry.members > 0 then
      table.sort(rows, function(a, b)
        return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1])
      end)
    end
    local members = {}
    for n = 1, math.min(most, #rows) do
      members[n] = rows[n][1]
    end
    return members
  end

  -- How many have a score below `high`.
  function plan.zcount_below(key, high)
    local entry = entry_of(zsets, key)
    local number = wiped[key] and 0 or call('ZCOUNT', key, '-inf', '(' .. digits(high))
    for _, member in ipairs(entry.members) do
      local was, is = not wiped[key] and number_of(call('ZSCORE', key, member)), entry.known[member]
      number = number - (was and was < high and 1 or 0) + (is and is < high and 1 or 0)
    end
    return number
  end

  -- The lowest score that is planned to be added.
  function plan.zlowest_added(key)
    local entry = zsets[key]
    local _, score = planned(entry or { members = {} })
    return score or math.huge
  end

  -- SET

  function plan.sismember(key, member)
    local entry = entry_of(sets, key)
    local is_member = entry.known[member]
    if is_member == nil then
      is_member = not wiped[key] and call('SISMEMBER', key, member) == 1
      entry.known[member] = is_member
    end
    return is_member
  end

  -- Learns of many members at once.
  function plan.look_at_members(key, members)
    local entry = entry_of(sets, key)
    for first = 1, #members, CHUNK do
      local answers = call('SMISMEMBER', key, unpack(members, first, math.min(first + CHUNK - 1, #members)))
      for n, answer in ipairs(answers) do
        entry.known[members[first + n - 1]] = answer == 1
      end
    end
  end

  function plan.sadd(key, member)
    change(entry_of(sets, key, 'SCARD'), member, true)
  end

  -- Whether it was there.
  function plan.srem(key, member)
    if plan.sismember(key, member) then
      change(sets[key], member, false)
      return true
    end
    return false
  end

  -- Up to `most` members, any of them, and those that are planned.
  function plan.smembers(key, most)
    local entry, members = entry_of(sets, key), {}
    for _, member in ipairs(wiped[key] and {} or call('SRANDMEMBER', key, most)) do
      if not entry.changed[member] then
        members[#members + 1] = member
      end
    end
    for _, member in ipairs(entry.members) do
      if entry.known[member] then
        members[#members + 1] = member
      end
    end
    return members
  end

  function plan.scard(key)
    local entry = entry_of(sets, key)
    local number = wiped[key] and 0 or call('SCARD', key)
    for _, member in ipairs(entry.members) do
      local was = not wiped[key] and call('SISMEMBER', key, member) == 1
      if was ~= entry.known[member] then
        number = number + (was and -1 or 1)
      end
    end
    return number
  end

  -- KEYS AS A WHOLE

  -- The key goes, with what was planned for it; what is planned after this makes it anew.
  function plan.del(key)
    wiped[key], counters[key], lifetimes[key] = true, nil, nil
    for _, entries in ipairs({ hashes, zsets, sets }) do
      entries[key] = { known = {}, changed = {}, members = {} }
    end
  end

  -- Lets a key live for `span_us` at least; renewed, for `renew_us`. Lifetimes are whole milliseconds.
  function plan.keep_alive(key, span_us, renew_us)
    if (wiped[key] and -1 or call('PTTL', key)) < math.ceil(span_us / 1000) then
      lifetimes[key] = math.max(lifetimes[key] or 0, math.ceil((renew_us or span_us) / 1000) + 1)
    end
  end

  -- The next `number` numbers of a counter: the one before the first of them.
  function plan.next_numbers(key, number)
    local before = numbers[key] or number_of(call('GET', key)) or 0
    numbers[key] = before + number
    return before
  end

  -- The last number of a counter.
  function plan.last_number(key)
    return numbers[key] or number_of(call('GET', key)) or 0
  end

  -- Any other command, after all that is above, in the order of the calls. The caller has looked at the key before.
  function plan.write(...)
    later[#later + 1] = { ... }
  end

  -- Wakes one sleeper.
  function plan.ring(wake)
    if rings == 0 then
      call('LLEN', wake)
      lifetimes[wake] = nil
    end
    rings = math.min(rings + 1, 16)
    plan.wake = wake
  end

  -- `command` with the rows of one key, in pieces.
  local function in_pieces(commands, command, key, row, width)
    for first = 1, #row, CHUNK * width do
      commands[#commands + 1] = { command, key, unpack(row, first, math.min(first + CHUNK * width - 1, #row)) }
    end
  end

  local function note_counts(key, counts)
    local fields = {}
    for field, by in pairs(counts) do
      if by ~= 0 then
        fields[#fields + 1] = field
      end
    end
    for first = 1, #fields, CHUNK do
      local last = math.min(first + CHUNK - 1, #fields)
      local values = call('HMGET', key, unpack(fields, first, last))
      for n = first, last do
        plan.hset(key, fields[n], digits((number_of(values[n - first + 1]) or 0) + counts[fields[n]]))
      end
    end
  end

  local function commands_of(entries, remove, add, pair)
    local removing, adding = {}, {}
    for key, entry in pairs(entries) do
      local gone, rows = {}, {}
      for _, member in ipairs(entry.members) do
        local value = entry.known[member]
        if value == false then
          gone[#gone + 1] = member
        else
          pair(rows, member, value)
        end
      end
      if #gone > 0 and not wiped[key] then
        in_pieces(removing, remove, key, gone, 1)
      end
      if #rows > 0 then
        in_pieces(adding, add, key, rows, add == 'SADD' and 1 or 2)
      end
    end
    return removing, adding
  end

  local function append(commands, more)
    for _, command in ipairs(more) do
      commands[#commands + 1] = command
    end
  end

  -- Writes all that is planned; nothing where nothing is. `drained` is a hash: a call that frees more than it takes
  -- names it to be carried out on a full server too.
  function plan.commit(drained)
    for key, counts in pairs(counters) do
      note_counts(key, counts)
    end
    local commands, removals = {}, {}
    for key in pairs(wiped) do
      commands[#commands + 1] = { 'DEL', key }
    end
    for _, kind in ipairs({
      { hashes, 'HDEL', 'HSET', function(rows, field, value) rows[#rows + 1], rows[#rows + 2] = field, value end },
      { zsets, 'ZREM', 'ZADD', function(rows, member, score)
        rows[#rows + 1], rows[#rows + 2] = score == math.huge and 'inf' or score == -math.huge and '-inf' or digits(score), member
      end },
      { sets, 'SREM', 'SADD', function(rows, member) rows[#rows + 1] = member end },
    }) do
      local removing, adding = commands_of(unpack(kind))
      append(commands, adding) -- before what goes: a key that loses its last member loses its lifetime
      append(removals, removing)
    end
    append(commands, removals)
    for key, number in pairs(numbers) do
      commands[#commands + 1] = { 'SET', key, digits(number) }
    end
    append(commands, later)
    if rings > 0 then
      local tokens = {}
      for n = 1, rings do
        tokens[n] = '1'
      end
      commands[#commands + 1] = { 'RPUSH', plan.wake, unpack(tokens) }
      commands[#commands + 1] = { 'LTRIM', plan.wake, 0, 15 }
    end
    for key, ms in pairs(lifetimes) do
      commands[#commands + 1] = { 'PEXPIRE', key, ms }
    end
    if drained and #commands > 0 then
      call('HDEL', drained, '')
    end
    for _, command in ipairs(commands) do
      call(unpack(command))
    end
  end

  return plan
end)()

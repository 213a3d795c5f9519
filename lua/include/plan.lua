-- The plan: what a script is going to write. Redis keeps what a script wrote before it raised, so a script first reads and
-- computes, and writes at its end, by `plan.commit`. Reads that go through the plan see what is planned.
--
-- Whatever can raise, raises before the first write: the first use of a key asks the server for it, so that a key of another
-- type is refused; a key has one type in a call; members, scores, texts and lifetimes are checked where they are planned.
-- `commit` computes nothing that depends on what was stored. Its first write is one that a full server refuses, or, where the
-- call frees more than it takes, one that a full server allows: after that the server allows the rest as well.
--
-- Members and fields are texts, scores are numbers (math.huge for 'inf'), values of hashes are texts or whole numbers.
local plan = module(function(plan)
  local call, type, floor = redis.call, type, math.floor
  local CHUNK, MOST_TOKENS = 1000, 16
  local hashes, zsets, sets, counters, lifetimes = {}, {}, {}, {}, {}
  local type_of, wiped, numbers, later, messages = {}, {}, {}, {}, {}
  local stored, lives_ms = {}, {} -- what was read of whole numbers, and of lifetimes
  local rings, bell = 0, nil

  local NONE = {} -- changed and members of an entry that is only read, as most are

  local function new_entry()
    return { known = {}, changed = NONE, members = NONE }
  end

  local function note_type(key, entries)
    if type_of[key] and type_of[key] ~= entries then
      error('key ' .. key .. ' has two types in this call')
    end
    type_of[key] = entries
  end

  -- What is known of a key, and planned. `size_of` asks for one that was not read before.
  local function entry_of(entries, key, size_of)
    local entry = entries[key]
    if not entry then
      note_type(key, entries)
      if size_of and not wiped[key] then
        call(size_of, key)
      end
      entry = new_entry()
      entries[key] = entry
    end
    return entry
  end

  -- The server's order of members of one score: by bytes, whatever the language of its host. The first difference is found by
  -- halving: members of one key often begin alike.
  local function comes_before(member, other)
    local sub, same, length = string.sub, 0, math.min(#member, #other)
    local high = length
    while same < high do
      local middle = math.ceil((same + high) / 2)
      if sub(member, same + 1, middle) == sub(other, same + 1, middle) then
        same = middle
      else
        high = middle - 1
      end
    end
    if same < length then
      return string.byte(member, same + 1) < string.byte(other, same + 1)
    end
    return #member < #other
  end

  local function is_nearer(score, member, than, other, is_backwards)
    if not than or score == than then
      return not than or comes_before(member, other) ~= is_backwards
    end
    return (score < than) ~= is_backwards
  end

  -- Keeps what an entry knows of all its members: the length of a hash, and of a set with scores the lowest that is planned.
  local function note_change(entry, member, was, value)
    if entry.length then
      if was == nil then
        was = not wiped[entry.key] and call('HEXISTS', entry.key, member) == 1
      end
      entry.length = entry.length + (value and 1 or 0) - (was and 1 or 0)
    elseif entry.least == member then
      entry.least = nil
    elseif value and (entry.least == false or entry.least and is_nearer(value, member, entry.known[entry.least], entry.least, false)) then
      entry.least = member
    end
  end

  local function change(entry, member, value)
    if not entry.changed[member] then
      if type(member) ~= 'string' then
        error('member ' .. tostring(member) .. ', expected a text')
      end
      if entry.members == NONE then
        entry.changed, entry.members = {}, {}
      end
      entry.changed[member] = true
      entry.members[#entry.members + 1] = member
    end
    if entry.length or entry.least ~= nil then
      note_change(entry, member, entry.known[member], value)
    end
    entry.known[member] = value
  end

  -- What is stored of a member, or false. Many keys do not exist: after the first miss it asks once
  -- whether the key does.
  local function stored_of(command, entry, key, member)
    if wiped[key] then
      return false
    elseif entry.has_missed and entry.is_absent == nil then
      entry.is_absent = call('EXISTS', key) == 0
    end
    local value = not entry.is_absent and call(command, key, member)
    entry.has_missed = entry.has_missed or not value
    return value
  end

  -- A text as a command takes it.
  local function argument(value)
    if type(value) == 'number' and value == floor(value) and value > -MOST_EXACT and value < MOST_EXACT then
      return digits(value)
    elseif type(value) ~= 'string' then
      error('argument ' .. tostring(value) .. ', expected a text or a whole number')
    end
    return value
  end

  -- HASH

  function plan.hget(key, field)
    local entry = entry_of(hashes, key)
    local value = entry.known[field]
    if value == nil then
      value = stored_of('HGET', entry, key, field)
      entry.known[field] = value
    end
    return value or nil
  end

  function plan.hset(key, field, value)
    change(entry_of(hashes, key, 'HLEN'), field, argument(value))
  end

  function plan.hdel(key, field)
    change(entry_of(hashes, key, 'HLEN'), field, false)
  end

  -- Every field and its value.
  function plan.hgetall(key)
    local entry = entry_of(hashes, key)
    entry.stored = entry.stored or (wiped[key] and {} or call('HGETALL', key))
    local result = pairs_of(entry.stored)
    for _, field in ipairs(entry.members) do
      result[field] = entry.known[field] or nil
    end
    return result
  end

  function plan.hlen(key)
    local entry = entry_of(hashes, key)
    if not entry.length then
      local length = wiped[key] and 0 or call('HLEN', key)
      for _, field in ipairs(entry.members) do
        local was = not wiped[key] and call('HEXISTS', key, field) == 1
        if was ~= (entry.known[field] ~= false) then
          length = length + (was and -1 or 1)
        end
      end
      entry.key, entry.length = key, length
    end
    return entry.length
  end

  -- Adds to a counter that this call does not read, and does not set after this.
  function plan.count(key, field, by)
    local counts = counters[key]
    if not counts then
      note_type(key, hashes)
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
      score = number_of(stored_of('ZSCORE', entry, key, member)) or false
      entry.known[member] = score
    end
    return score or nil
  end

  function plan.zadd(key, score, member)
    if type(score) ~= 'number' or score ~= score then
      error('score ' .. tostring(score) .. ' of ' .. tostring(member) .. ' in ' .. key .. ', expected a number')
    end
    local entry = entry_of(zsets, key, 'ZCARD')
    entry.has_added = true
    change(entry, member, score)
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

  -- Of those that are planned the one of the lowest score, and that.
  local function least_of(entry)
    if not entry.has_added then
      return nil
    elseif entry.least == nil then
      local least, at = false, nil
      for _, member in ipairs(entry.members) do
        local score = entry.known[member]
        if score and is_nearer(score, member, at, least, false) then
          least, at = member, score
        end
      end
      entry.least = least
    end
    return entry.least, entry.known[entry.least]
  end

  -- Of a member that is stored and not changed, and of those that are planned, the one of the lowest score above `low`, or
  -- (`high`) of the highest below `high`; none of which `is_out` is true.
  local function nearest(entry, found, at, low, high, is_out)
    if not entry.has_added then
      return found, at
    end
    for _, member in ipairs(entry.members) do
      local score = entry.known[member]
      if score and (not low or score > low) and (not high or score < high) and is_nearer(score, member, at, found, high ~= nil)
        and not (is_out and is_out(member)) then
        found, at = member, score
      end
    end
    return found, at
  end

  -- The first member that the server names, no change touches, and of which `is_out` is not true; the command takes an offset
  -- and a number.
  local function unchanged(entry, ask, is_out)
    local number, from = 1, 0
    while true do
      local rows = ask(from, number)
      for i = 1, #rows, 2 do
        if not entry.changed[rows[i]] and not (is_out and is_out(rows[i])) then
          return rows[i], number_of(rows[i + 1])
        end
      end
      if #rows < 2 * number then
        return nil
      end
      from, number = from + number, math.min(2 * number, CHUNK)
    end
  end

  -- The member of the lowest score, and that.
  function plan.zfirst(key)
    local entry = entry_of(zsets, key)
    if not wiped[key] and (not entry.head or entry.changed[entry.head[1]]) then
      local rank, row = entry.rank or -1, nil
      repeat
        rank = rank + 1
        row = call('ZRANGE', key, rank, rank, 'WITHSCORES')
      until not row[1] or not entry.changed[row[1]]
      entry.rank, entry.head = rank, row
    end
    local head = entry.head or {}
    local found, at = head[1], number_of(head[2])
    local least, its_score = least_of(entry)
    if least and is_nearer(its_score, least, at, found, false) then
      return least, its_score
    end
    return found, at
  end

  -- The first member that a command finds from a score on, this one left out, or that is planned.
  local function beyond(key, command, score, last, low, high, is_out)
    local entry = entry_of(zsets, key)
    local found, at
    if not wiped[key] then
      found, at = unchanged(entry, function(from, number)
        return call(command, key, '(' .. digits(score), last, 'WITHSCORES', 'LIMIT', from, number)
      end, is_out)
    end
    return nearest(entry, found, at, low, high, is_out)
  end

  -- The member of the lowest score above `low`, and that; without those of which `is_out`, if given, is true.
  function plan.znext(key, low, is_out)
    return beyond(key, 'ZRANGEBYSCORE', low, '+inf', low, nil, is_out)
  end

  -- The member of the highest score below `high`, and that; `is_out` as in `plan.znext`.
  function plan.zprevious(key, high, is_out)
    return beyond(key, 'ZREVRANGEBYSCORE', high, '-inf', nil, high, is_out)
  end

  -- Up to `most` members with scores up to `high`, the lowest first.
  function plan.zdue(key, high, most)
    local _, first = plan.zfirst(key)
    if not first or first > high then
      return {}
    end
    local entry, rows, added, members = entry_of(zsets, key), {}, {}, {}
    local stored = wiped[key] and {} or call('ZRANGEBYSCORE', key, '-inf', digits(high), 'WITHSCORES', 'LIMIT', 0, most + #entry.members)
    for i = 1, #stored, 2 do
      if not entry.changed[stored[i]] then
        rows[#rows + 1] = { stored[i], number_of(stored[i + 1]) }
      end
    end
    for _, member in ipairs(entry.members) do
      local score = entry.known[member]
      if score and score <= high then
        added[#added + 1] = { member, score }
      end
    end
    table.sort(added, function(a, b) return a[1] ~= b[1] and is_nearer(a[2], a[1], b[2], b[1], false) end)
    local next_stored, next_added = 1, 1
    while #members < most and (rows[next_stored] or added[next_added]) do
      local row, other = rows[next_stored], added[next_added]
      if row and not (other and is_nearer(other[2], other[1], row[2], row[1], false)) then
        members[#members + 1], next_stored = row[1], next_stored + 1
      else
        members[#members + 1], next_added = other[1], next_added + 1
      end
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

  -- The lowest score, or math.huge.
  function plan.zlowest(key)
    local _, score = plan.zfirst(key)
    return score or math.huge
  end

  -- The lowest score that is planned, or math.huge.
  function plan.zlowest_added(key)
    local _, score = least_of(zsets[key] or NONE)
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

  -- The key goes, with what was planned for it; what is planned after this makes it anew, of any type.
  function plan.del(key)
    wiped[key], counters[key], lifetimes[key], type_of[key] = true, nil, nil, nil
    hashes[key], zsets[key], sets[key] = nil, nil, nil
  end

  -- Lets a key live for `span_us` at least; renewed, for `renew_us`. Lifetimes are whole milliseconds.
  function plan.keep_alive(key, span_us, renew_us)
    local ms = math.ceil((renew_us or span_us) / 1000) + 1
    if not (span_us < MOST_EXACT and ms < MOST_EXACT) then
      error('lifetime ' .. tostring(renew_us or span_us) .. ' of ' .. key .. ', expected microseconds')
    end
    lives_ms[key] = lives_ms[key] or call('PTTL', key)
    if ms > 0 and (wiped[key] and -1 or lives_ms[key]) < math.ceil(span_us / 1000) then
      lifetimes[key] = math.max(lifetimes[key] or 0, ms)
    end
  end

  -- Whether there was such a key before this call; what this reads, `plan.keep_alive` needs too.
  function plan.is_stored(key)
    lives_ms[key] = lives_ms[key] or call('PTTL', key)
    return lives_ms[key] ~= -2
  end

  -- The key lives until it is deleted.
  function plan.persist(key)
    lifetimes[key], lives_ms[key] = nil, math.huge
    plan.write('PERSIST', key)
  end

  -- A whole number that a key holds: 0 where there is none, nil where it holds something else.
  function plan.number(key)
    if stored[key] == nil then
      stored[key] = whole_of(call('GET', key) or '0') or false
    end
    return numbers[key] or stored[key] or nil
  end

  function plan.set_number(key, number)
    numbers[key] = number
  end

  -- OTHER COMMANDS, which no read of the plan sees. They run after what is added and before what is removed, in the order of
  -- the calls. The caller has looked at the key before.

  function plan.write(...)
    local command = { ... }
    for n = 1, select('#', ...) do
      command[n] = argument(command[n])
    end
    later[#later + 1] = command
  end

  -- `command` with texts, `width` of which belong together; as often as it takes. Where `key` is nil, they are keys.
  local function in_pieces(commands, command, key, rows, width)
    for first = 1, #rows, CHUNK * width do
      commands[#commands + 1] = { command, key, rows, first, math.min(first + CHUNK * width - 1, #rows) }
    end
  end

  -- `are_texts`: the caller knows that each row is a text, so none is looked at.
  function plan.write_rows(command, key, rows, width, are_texts)
    for n = 1, are_texts and 0 or #rows do
      if type(rows[n]) ~= 'string' then
        error('argument ' .. tostring(rows[n]) .. ' of ' .. command .. ', expected a text')
      end
    end
    in_pieces(later, command, key, rows, width)
  end

  -- Says it to those who listen, if the server lets us.
  function plan.publish(channel, message)
    messages[#messages + 1] = { argument(channel), argument(message) }
  end

  -- Wakes one sleeper.
  function plan.ring(wake)
    if rings == 0 then
      call('LLEN', wake)
    end
    rings, bell = math.min(rings + 1, MOST_TOKENS), wake
  end

  -- COMMIT

  local function note_counts(commands, key, counts)
    local entry, fields, rows = hashes[key], {}, {}
    for field, by in pairs(counts) do
      if by ~= 0 then
        fields[#fields + 1] = field
      end
    end
    for first = 1, #fields, CHUNK do
      local last = math.min(first + CHUNK - 1, #fields)
      local stored = wiped[key] and {} or call('HMGET', key, unpack(fields, first, last))
      for n = first, last do
        local field, value = fields[n], stored[n - first + 1]
        if entry and entry.changed[field] then
          change(entry, field, digits((whole_of(entry.known[field] or '0') or 0) + counts[field]))
        else
          rows[#rows + 1], rows[#rows + 2] = field, digits((whole_of(value or '0') or 0) + counts[field])
        end
      end
    end
    in_pieces(commands, 'HSET', key, rows, 2)
  end

  local function commands_of(entries, remove, add, width, pair, adding, removing)
    for key, entry in pairs(entries) do
      if entry.members ~= NONE then
        local gone, rows = {}, {}
        for _, member in ipairs(entry.members) do
          local value = entry.known[member]
          if value == false then
            gone[#gone + 1] = member
          else
            pair(rows, #rows, member, value)
          end
        end
        in_pieces(adding, add, key, rows, width)
        if not wiped[key] then
          in_pieces(removing, remove, key, gone, 1)
        end
      end
    end
  end

  local function of_hash(rows, n, field, value)
    rows[n + 1], rows[n + 2] = field, value
  end

  local function of_zset(rows, n, member, score)
    rows[n + 1], rows[n + 2] = score == math.huge and 'inf' or score == -math.huge and '-inf' or digits(score), member
  end

  local function of_set(rows, n, member)
    rows[n + 1] = member
  end

  -- Writes all that is planned; nothing where nothing is. A call that frees more than it takes names a key, a hash: then it is
  -- carried out on a full server too.
  --
  -- What goes, goes after what is added: a key that loses its last member loses its lifetime.
  function plan.commit(drained)
    local commands, removing = {}, {}
    for key in pairs(wiped) do
      commands[#commands + 1] = { 'UNLINK', key } -- a large key is freed beside the server's work
    end
    for key, counts in pairs(counters) do
      note_counts(commands, key, counts)
    end
    commands_of(hashes, 'HDEL', 'HSET', 2, of_hash, commands, removing)
    commands_of(zsets, 'ZREM', 'ZADD', 2, of_zset, commands, removing)
    commands_of(sets, 'SREM', 'SADD', 1, of_set, commands, removing)
    for key, number in pairs(numbers) do
      commands[#commands + 1] = { 'SET', key, argument(number) }
    end
    local last = {}
    if rings > 0 then
      local push = { 'RPUSH', bell }
      for n = 1, rings do
        push[n + 2] = '1'
      end
      last = { push, { 'LTRIM', bell, '0', digits(MOST_TOKENS - 1) } }
    end
    for key, ms in pairs(lifetimes) do
      last[#last + 1] = { 'PEXPIRE', key, digits(ms) }
    end
    if drained and (commands[1] or later[1] or rings > 0) then -- a full server allows all else that is written
      call('HDEL', drained, '')
    end
    for _, each in ipairs({ commands, later, removing, last }) do
      for _, command in ipairs(each) do
        if type(command[3]) ~= 'table' then
          call(unpack(command))
        elseif command[2] then
          call(command[1], command[2], unpack(command[3], command[4], command[5]))
        else
          call(command[1], unpack(command[3], command[4], command[5]))
        end
      end
    end
    for _, message in ipairs(messages) do
      redis.pcall('PUBLISH', message[1], message[2])
    end
  end
end)

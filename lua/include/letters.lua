-- Dead letters: a stream, oldest first; the hash id -> entry of each; and how many bytes all of them are. An entry's first
-- fields are "id", "at" (us) and "bytes" (its own); one of an earlier version has no "bytes" and counts as none.
--
-- How many there are for each reason is counted in the hash `metrics` (include/accounting.lua).
--
-- `at` names the keys dead, dead_ids, dead_bytes, metrics; and now.
local letters = module(function(letters)
  letters.MOST_READ = 8388608 -- bytes of letters that are read in one call; one more letter may be on top
  local gone, removed, removed_bytes = {}, 0, 0 -- entries that this call removes
  local buried, buried_bytes = {}, 0 -- letters that it adds

  -- The fields of a letter by name, and how many bytes these are; nothing where it is gone already.
  function letters.read(at, entry)
    local row = not gone[entry] and redis.call('XRANGE', at.dead, entry, entry)[1]
    if not row then
      return nil
    end
    local fields, size = {}, 0
    for i = 1, #row[2], 2 do
      fields[row[2][i]] = row[2][i + 1]
      size = size + #row[2][i + 1]
    end
    return fields, size
  end

  -- Plans to remove a letter that was read.
  function letters.unbury(at, entry, fields)
    gone[entry], removed, removed_bytes = true, removed + 1, removed_bytes + (tonumber(fields.bytes) or 0)
    if fields.id and plan.hget(at.dead_ids, fields.id) == entry then
      plan.hdel(at.dead_ids, fields.id)
    end
    plan.write('XDEL', at.dead, entry)
    plan.count(at.metrics, 'letters ' .. (fields.reason or ''), -1)
  end

  -- Plans a new letter; `letter` are its fields but for those that every letter has.
  function letters.bury(at, id, letter, payload)
    local bytes = #id + #payload
    local fields = { 'id', id, 'at', digits(at.now), 'bytes', '', 'payload', payload }
    for field, value in pairs(letter) do
      fields[#fields + 1] = field
      fields[#fields + 1] = value
      bytes = bytes + #field + #value
    end
    fields[6] = digits(bytes)
    buried_bytes = buried_bytes + bytes
    buried[#buried + 1] = { id = id, fields = fields, bytes = bytes, reason = letter.reason }
  end

  function letters.has_buried()
    return #buried > 0
  end

  -- How many letters there will be, and of how many bytes.
  local function sums(at)
    local stored = redis.call('XLEN', at.dead)
    local bytes = stored > 0 and tonumber(redis.call('GET', at.dead_bytes) or nil) or 0
    return stored - removed + #buried, math.max(0, bytes - removed_bytes) + buried_bytes
  end

  -- Plans to remove the oldest beyond `max` or `max_bytes`, and those older than `max_age_us`; at most `most` of them. Returns
  -- how many, and whether there may be more to remove.
  function letters.trim(at, bounds, most)
    local trimmed, read, from = 0, 0, '-'
    local count, bytes = sums(at)
    while trimmed < most and read < letters.MOST_READ do
      local row = redis.call('XRANGE', at.dead, from, '+', 'COUNT', 1)[1]
      local surplus = count > bounds.max or bytes > bounds.max_bytes
      if row then
        from = '(' .. row[1]
        local fields, size = letters.read(at, row[1])
        if fields then
          if not surplus and (tonumber(fields.at) or 0) > at.now - bounds.max_age_us then
            return trimmed, false
          end
          letters.unbury(at, row[1], fields)
          trimmed, read, count, bytes = trimmed + 1, read + size, count - 1, bytes - (tonumber(fields.bytes) or 0)
        end
      elseif surplus and count > 1 then -- the oldest of the new ones
        local letter = table.remove(buried, 1)
        buried_bytes = buried_bytes - letter.bytes
        trimmed, count, bytes = trimmed + 1, count - 1, bytes - letter.bytes
      else
        return trimmed, false
      end
    end
    return trimmed, true
  end

  -- The entry after the last that ever was in the stream, and not before now; as two numbers.
  local function next_entry(at)
    local now_ms = math.floor(microseconds() / 1000)
    local ms, n = last_entry_of(at.dead)
    if ms and ms >= now_ms then
      return ms, n + 1
    end
    return now_ms, 0
  end

  -- Plans what was buried, and how many bytes all letters are then.
  function letters.write(at)
    if #buried == 0 and removed == 0 then
      return
    end
    local count, bytes = sums(at)
    local ms, n = next_entry(at)
    for i, letter in ipairs(buried) do
      local entry = digits(ms) .. '-' .. digits(n + i - 1)
      plan.write('XADD', at.dead, entry, unpack(letter.fields))
      plan.hset(at.dead_ids, letter.id, entry)
      plan.count(at.metrics, 'letters ' .. (letter.reason or ''), 1)
    end
    if count > 0 then
      plan.write('SET', at.dead_bytes, digits(bytes))
    else
      plan.write('DEL', at.dead_bytes)
    end
  end
end)

-- Dead letters: a stream, oldest first; the hash id -> entry of each; and how many bytes all of them are. An entry's first
-- fields are "id", "at" (us) and "bytes" (its own); one of an earlier version has no "bytes" and counts as none.
--
-- Everything is read first. What is to be written goes to `at.write`, a function that takes a command: the caller executes it
-- when all is read, after write_letters. `at` names also the keys dead, dead_ids, dead_bytes; and now.
local MOST_READ = 8388608 -- bytes of letters that are read in one call; one more letter may be on top

-- The fields of a letter by name, and how many bytes these are; nothing where it is gone already.
local function read_letter(at, entry)
  local row = not (at.gone and at.gone[entry]) and redis.call('XRANGE', at.dead, entry, entry)[1]
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
local function unbury(at, entry, fields)
  at.gone, at.removed = at.gone or {}, (at.removed or 0) + 1
  at.gone[entry] = true
  at.freed = (at.freed or 0) + (tonumber(fields.bytes) or 0)
  if fields.id and redis.call('HGET', at.dead_ids, fields.id) == entry then
    at.write('HDEL', at.dead_ids, fields.id)
  end
  at.write('XDEL', at.dead, entry)
end

-- Plans a new letter; `letter` are its fields but for those that every letter has.
local function bury(at, id, letter, payload)
  local bytes = #id + #payload
  local fields = { 'id', id, 'at', digits(at.now), 'bytes', '', 'payload', payload }
  for field, value in pairs(letter) do
    fields[#fields + 1] = field
    fields[#fields + 1] = value
    bytes = bytes + #field + #value
  end
  fields[6] = digits(bytes)
  at.buried, at.added = at.buried or {}, (at.added or 0) + bytes
  at.buried[#at.buried + 1] = { id = id, fields = fields, bytes = bytes }
end

-- How many letters there will be, and of how many bytes.
local function letters_then(at)
  local stored = redis.call('XLEN', at.dead)
  local bytes = stored > 0 and tonumber(redis.call('GET', at.dead_bytes) or nil) or 0
  return stored - (at.removed or 0) + #(at.buried or {}), math.max(0, bytes - (at.freed or 0)) + (at.added or 0)
end

-- Plans to remove the oldest beyond `max` or `max_bytes`, and those older than `max_age_us`; at most `most` of them. Returns
-- how many, and whether there may be more to remove.
local function trim_dead(at, bounds, most)
  local trimmed, read, from = 0, 0, '-'
  local count, bytes = letters_then(at)
  while trimmed < most and read < MOST_READ do
    local row = redis.call('XRANGE', at.dead, from, '+', 'COUNT', 1)[1]
    local surplus = count > bounds.max or bytes > bounds.max_bytes
    if row then
      from = '(' .. row[1]
      local fields, size = read_letter(at, row[1])
      if fields then
        if not surplus and (tonumber(fields.at) or 0) > at.now - bounds.max_age_us then
          return trimmed, false
        end
        unbury(at, row[1], fields)
        trimmed, read, count, bytes = trimmed + 1, read + size, count - 1, bytes - (tonumber(fields.bytes) or 0)
      end
    elseif surplus and count > 1 then -- the oldest of the new ones
      local letter = table.remove(at.buried, 1)
      at.added = at.added - letter.bytes
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
  local facts = redis.call('EXISTS', at.dead) == 1 and redis.call('XINFO', 'STREAM', at.dead) or {}
  for i = 1, #facts, 2 do
    if facts[i] == 'last-generated-id' then
      local ms, n = string.match(facts[i + 1], '^(%d+)-(%d+)$')
      if tonumber(ms) >= now_ms then
        return tonumber(ms), tonumber(n) + 1
      end
    end
  end
  return now_ms, 0
end

-- Plans what was buried, and how many bytes all letters are then.
local function write_letters(at)
  if not at.buried and not at.removed then
    return
  end
  local count, bytes = letters_then(at)
  local ms, n = next_entry(at)
  for i, letter in ipairs(at.buried or {}) do
    local entry = digits(ms) .. '-' .. digits(n + i - 1)
    at.write('XADD', at.dead, entry, unpack(letter.fields))
    at.write('HSET', at.dead_ids, letter.id, entry)
  end
  if count > 0 then
    at.write('SET', at.dead_bytes, digits(bytes))
  else
    at.write('DEL', at.dead_bytes)
  end
end

-- Dead letters: a stream, oldest first, and the hash id -> entry of each. An entry's first fields are "id" and "at" (us).
--
-- `at` names the keys dead, dead_ids; and now.
local dead = (function()
  local dead = {}
  local last_ms, last_n -- of the newest entry, that of this call included

  -- The name of a new entry: XADD would choose it when it is too late to note it.
  local function new_entry(at)
    if not last_ms then
      last_ms, last_n = 0, 0
      if redis.call('XLEN', at.dead) > 0 or redis.call('EXISTS', at.dead) == 1 then
        local facts = redis.call('XINFO', 'STREAM', at.dead)
        for i = 1, #facts, 2 do
          if facts[i] == 'last-generated-id' then
            last_ms, last_n = string.match(facts[i + 1], '^(%d+)-(%d+)$')
            last_ms, last_n = tonumber(last_ms), tonumber(last_n)
          end
        end
      end
    end
    local ms = math.floor(at.now / 1000)
    last_ms, last_n = math.max(ms, last_ms), ms > last_ms and 0 or last_n + 1
    return digits(last_ms) .. '-' .. digits(last_n)
  end

  local added = {} -- letters of this call: { entry, id, row }

  function dead.bury(at, id, fields, payload)
    local row = { 'id', id, 'at', digits(at.now), 'payload', payload }
    for field, value in pairs(fields) do
      row[#row + 1], row[#row + 2] = field, value
    end
    added[#added + 1] = { entry = new_entry(at), id = id, row = row }
  end

  -- Plans the letters of this call, less those beyond `max`; and that stored ones go which are beyond it or older than
  -- `max_age_us`, at most `most` of them. The oldest go first. Returns how many go.
  function dead.write(at, bounds, most)
    if #added == 0 then
      return 0
    end
    local surplus, trimmed = redis.call('XLEN', at.dead) + #added - bounds.max, 0
    for _, letter in ipairs(redis.call('XRANGE', at.dead, '-', '+', 'COUNT', most)) do
      if trimmed >= surplus and (tonumber(letter[2][4]) or 0) > at.now - bounds.max_age_us then
        break
      end
      plan.write('XDEL', at.dead, letter[1])
      if plan.hget(at.dead_ids, letter[2][2]) == letter[1] then
        plan.hdel(at.dead_ids, letter[2][2])
      end
      trimmed = trimmed + 1
    end
    for _, letter in ipairs(added) do
      if trimmed < surplus and trimmed < most then
        trimmed = trimmed + 1
      else
        plan.write('XADD', at.dead, letter.entry, unpack(letter.row))
        plan.hset(at.dead_ids, letter.id, letter.entry)
      end
    end
    return trimmed
  end

  return dead
end)()

-- Removes one; returns how many: 0 where it is gone already.
local function unbury(dead_key, dead_ids, entry, id)
  if redis.call('HGET', dead_ids, id) == entry then
    redis.call('HDEL', dead_ids, id)
  end
  return redis.call('XDEL', dead_key, entry)
end

-- Drops letters beyond `max`, and those older than `max_age_us`; at most `most` of them. Returns how many.
local function trim_dead(dead_key, dead_ids, bounds, now, most)
  local surplus = redis.call('XLEN', dead_key) - bounds.max
  local trimmed = 0
  while trimmed < most do
    local oldest = redis.call('XRANGE', dead_key, '-', '+', 'COUNT', 1)[1]
    if not oldest then
      break
    end
    if trimmed >= surplus and tonumber(oldest[2][4]) > now - bounds.max_age_us then
      break
    end
    unbury(dead_key, dead_ids, oldest[1], oldest[2][2])
    trimmed = trimmed + 1
  end
  return trimmed
end

-- What every command may need first: time and numbers, what differs between Lua versions, the version of the limits.
local unpack = unpack or table.unpack -- servers with Lua 5.4

local MOST_EXACT = 9007199254740992 -- 2^53: whole numbers below it are exact in a double
local MOST_COMPACT = 32 -- slots of a scope that the server may keep in its compact form (include/slots.lua)

-- Integer microseconds. `given` (from the call) wins over the server's clock.
local function microseconds(given)
  if given then
    if type(given) ~= 'number' or given ~= math.floor(given) or given < 0 or given >= MOST_EXACT / 2 then
      error('now is ' .. tostring(given) .. ', expected whole microseconds')
    end
    return given
  end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- `tostring` and `..` keep 14 digits only; an instant has 16.
local function digits(number)
  return string.format('%.0f', number)
end

-- A score or an instant as the server says it; nil for what is none. Lua 5.4 reads no 'inf'.
local function number_of(text)
  if text == 'inf' then
    return math.huge
  elseif text == '-inf' then
    return -math.huge
  end
  local number = text and tonumber(text)
  return number == number and number or nil
end

-- A whole number that is exact; nil for what is none.
local function whole_of(text)
  local number = number_of(text)
  return number and number == math.floor(number) and number > -MOST_EXACT and number < MOST_EXACT and number or nil
end

-- A stored count: what is none counts as 0.
local function count_of(text)
  return math.max(0, whole_of(text) or 0)
end

-- The JSON in a text, or nil: what is stored may have been written by anybody.
local function json_of(text)
  local is_json, value = pcall(cjson.decode, text)
  return is_json and type(value) == 'table' and value or nil
end

-- What the server answers as a row of fields and values, or of members and scores, as a table.
local function pairs_of(rows)
  local result = {}
  for i = 1, #rows, 2 do
    result[rows[i]] = rows[i + 1]
  end
  return result
end

-- What the field `adopted` of an RQ job says once a stock worker that ran it has entered its event: when the job was created, to the
-- second, or 1 if the job does not say.
local function adoption_of(created)
  return created and #created >= 19 and string.sub(created, 1, 19) or '1'
end

-- Whether the event of an RQ job was entered so. A later job of the same id may have kept the field.
local function was_adopted(adopted, created)
  return adopted and adopted == adoption_of(created)
end

-- The two numbers of the last entry that ever was in a stream; nothing where there is no stream. An entry that was deleted
-- keeps its id.
local function last_entry_of(stream)
  local facts = redis.call('EXISTS', stream) == 1 and pairs_of(redis.call('XINFO', 'STREAM', stream)) or {}
  local first, second = string.match(facts['last-generated-id'] or '', '^(%d+)-(%d+)$')
  return number_of(first), number_of(second)
end

-- The limits in force have a version, 'NUMBER-DIGEST'. A call that names another one is told so and changes nothing, also where
-- none is in force; one that names none is not asked. (gate.lua: where none is in force, every version passes.)
local function stale(key, named)
  local in_force = named and (redis.call('GET', key) or '')
  if in_force and in_force ~= named then
    return '{"stale":' .. cjson.encode(in_force) .. '}'
  end
end

-- A part of a script, with names of its own. It is made when it is first used: few calls use all parts, and to make the
-- functions of one takes longer than to read a key.
local function module(make)
  return setmetatable({}, { __index = function(part, name)
    setmetatable(part, nil)
    make(part)
    return part[name]
  end })
end

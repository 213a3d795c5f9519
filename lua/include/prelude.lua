-- Time and numbers, and what differs between Lua versions.
local unpack = unpack or table.unpack -- servers with Lua 5.4

-- Integer microseconds, exact in a double. `given` (from the call) wins over the server's clock.
local function microseconds(given)
  if given then
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
  end
  local number = text and tonumber(text)
  return number == number and number or nil
end

-- The JSON in a text, or nil: what is stored may have been written by anybody.
local function json_of(text)
  local is_json, value = pcall(cjson.decode, text)
  return is_json and type(value) == 'table' and value or nil
end

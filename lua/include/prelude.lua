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

-- Lets a key live for `span_us` at least; renewed, for `renew_us`. Lifetimes are whole milliseconds.
local function keep_alive(key, span_us, renew_us)
  if redis.call('PTTL', key) < math.ceil(span_us / 1000) then
    redis.call('PEXPIRE', key, math.ceil((renew_us or span_us) / 1000) + 1)
  end
end

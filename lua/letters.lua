-- A page of dead letters, in their order or from the newest on: so many, and no more than MOST_READ bytes of them (one may be
-- on top). Read-only.
--
-- KEYS      1 dead  STREAM dead letters
-- ARGV[1]   JSON {"from", "to": entries, as XRANGE has them, "newest_first": true | absent, "most"}
-- Returns   [[entry, [field, value, ...]], ...]: at most "most"; empty only behind the last letter

local MOST_READ = 262144

local call = cjson.decode(ARGV[1])
local page, read, from = {}, 0, call.from

-- Asked backwards for what is older than the oldest entry, the server looks at the whole stream.
local function is_at_end()
  return call.newest_first and not redis.call('XRANGE', KEYS[1], call.to, from, 'COUNT', 1)[1]
end

while #page < call.most and read < MOST_READ and not is_at_end() do
  local command = call.newest_first and 'XREVRANGE' or 'XRANGE'
  local row = redis.call(command, KEYS[1], from, call.to, 'COUNT', 1)[1]
  if not row then
    break
  end
  page[#page + 1], from = row, '(' .. row[1]
  for _, part in ipairs(row[2]) do
    read = read + #part
  end
end
return page

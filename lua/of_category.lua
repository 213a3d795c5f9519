-- Which parked events may be of a category: a first look at many, to be asked about one by one. Read-only.
--
-- KEYS      events  HASH    id -> record (include/record.lua)
-- ARGV[1]   JSON {"category", "ids": [id, ...]}
-- Returns   those of the ids whose record names the category, cannot be read, or was not looked at since the ones before it
--           have more than MOST_READ bytes
-- @keys events
-- @include prelude

local MOST_READ = 262144

local call = cjson.decode(ARGV[1])
local found, read = {}, 0
for _, id in ipairs(call.ids) do
  local stored = read < MOST_READ and redis.call('HGET', K.events, id)
  local header = stored and json_of(string.match(stored, '^[^\n]*'))
  read = read + (stored and #stored or 0)
  if not header or type(header.category) ~= 'string' or header.category == call.category then
    found[#found + 1] = id
  end
end
return found

-- Reads the jobs at the heads of the lanes that bear no mark (include/intake.lua). Read-only: none is taken.
--
-- @keys lane_high lane_normal lane_low
-- KEYS      lane_...    LIST    the lanes high, normal, low (RQ's queues)
-- ARGV[1]   JSON {"skip": how many jobs to pass over first, "most": how many to look at after them}
-- Returns   [JSON {"ids": the ids, separated by blanks, "enqueued": the instants at which RQ says they were enqueued, separated by
--           blanks, "sizes": [bytes of the data of each, ...]}, the data]; fewer than there are after MOST_READ bytes, none if the server
--           does not let us read every key. What was a dead letter is left out, and what has no such instant or much data.
-- The keys rq:job:<id> (HASH, RQ's) are read, too.

local CHUNK = 64 -- jobs that are read at once
local MOST_READ, MOST_DATA = 1048576, 16384 -- bytes of data in all, and of one job

local call = cjson.decode(ARGV[1])
local ids, enqueued, sizes, data, read, looked = {}, {}, {}, {}, 0, 0

-- Looks at a chunk of a lane.
local function look(lane, from, number)
  local rows = redis.pcall(
    'SORT', lane, 'BY', 'nosort', 'LIMIT', from, number, 'GET', '#', 'GET', 'rq:job:*->category', 'GET', 'rq:job:*->replays',
    'GET', 'rq:job:*->enqueued_at', 'GET', 'rq:job:*->data'
  )
  for n = 1, rows.err and 0 or #rows, 5 do
    local payload, instant = rows[n + 4], rows[n + 3]
    if payload and instant and not (rows[n + 1] or rows[n + 2]) and #payload <= MOST_DATA then
      local place = #ids + 1
      ids[place], enqueued[place], sizes[place], data[place] = rows[n], instant, #payload, payload
      read = read + #payload
    end
  end
end

local skip = call.skip
for _, lane in ipairs({ K.lane_high, K.lane_normal, K.lane_low }) do
  local length = redis.call('LLEN', lane)
  local from = math.min(skip, length)
  skip = skip - from
  while from < length and looked < call.most and read < MOST_READ do
    local number = math.min(CHUNK, call.most - looked, length - from)
    look(lane, from, number)
    from, looked = from + number, looked + number
  end
end
local facts = { ids = table.concat(ids, ' '), enqueued = table.concat(enqueued, ' '), sizes = sizes }
return { cjson.encode(facts), table.concat(data) }

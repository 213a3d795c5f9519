-- Reads the jobs at the heads of the lanes that bear no mark (include/intake.lua). Read-only: none is taken.
--
-- @keys lane_high lane_normal lane_low
-- KEYS      lane_...    LIST    the lanes high, normal, low (RQ's queues)
-- ARGV[1]   JSON {"skip": how many jobs to pass over first, "most": how many to look at after them}
-- Returns   [JSON {"ids": the ids, separated by blanks, "enqueued": the instants at which RQ says that they were enqueued, separated
--           by blanks, "sizes": [bytes of the data of each, ...]}, the data]. No chunk is read after MOST_READ bytes of data, those
--           of jobs that are left out included. Left out are dead letters that are replayed, jobs that a stock worker has run,
--           jobs without such an instant, and jobs of more than MOST_DATA bytes. All are left out if the server does not let us read
--           every key.
-- The keys rq:job:<id> (HASH, RQ's) are read, too.

local FIRST_CHUNK, CHUNK = 8, 64 -- jobs that are read at once: few at first, since each may be large
local MOST_READ, MOST_DATA = 1048576, 16384 -- bytes of data in all, and of one job

local call = cjson.decode(ARGV[1])
local ids, enqueued, sizes, data, read, looked = {}, {}, {}, {}, 0, 0

-- Looks at a chunk of a lane. Returns whether the server let us.
local function look(lane, from, number)
  local rows = redis.pcall(
    'SORT', lane, 'BY', 'nosort', 'LIMIT', from, number, 'GET', '#', 'GET', 'rq:job:*->category', 'GET', 'rq:job:*->replays',
    'GET', 'rq:job:*->adopted', 'GET', 'rq:job:*->enqueued_at', 'GET', 'rq:job:*->data'
  )
  for n = 1, rows.err and 0 or #rows, 6 do
    local is_marked, instant, payload = rows[n + 1] or rows[n + 2] or rows[n + 3], rows[n + 4], rows[n + 5]
    local size = payload and #payload or 0
    read = read + size
    if payload and instant and not is_marked and size <= MOST_DATA then
      local place = #ids + 1
      ids[place], enqueued[place], sizes[place], data[place] = rows[n], instant, size, payload
    end
  end
  return not rows.err
end

local skip, most, chunk, may_look = math.floor(call.skip), math.floor(call.most), FIRST_CHUNK, true
for _, lane in ipairs({ K.lane_high, K.lane_normal, K.lane_low }) do
  local length = redis.call('LLEN', lane)
  local from = math.min(skip, length)
  skip = skip - from
  while may_look and from < length and looked < most and read < MOST_READ do
    local number = math.min(chunk, most - looked, length - from)
    may_look = look(lane, from, number)
    from, looked, chunk = from + number, looked + number, math.min(2 * chunk, CHUNK)
  end
end
local facts = { ids = table.concat(ids, ' '), enqueued = table.concat(enqueued, ' '), sizes = sizes }
return { cjson.encode(facts), table.concat(data) }

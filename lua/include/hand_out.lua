-- What take.lua gives to its owner, and what of it is to be decided.
local MAX_BATCH = 8388608 -- bytes after which no more is taken from orphans and lanes
local ids_taken, records, sizes, seqs, bytes = {}, {}, {}, {}, 0
local undecided = call.undecided -- the first seq that is to be decided
local heads_of = {} -- scopes whose heads were taken

local function hand_out(id, record, seq)
  local n = #ids_taken + 1
  ids_taken[n], records[n], sizes[n], seqs[n] = id, record, #record, seq or 0
  bytes = bytes + #record
end

local function to_decide(seq)
  undecided = math.min(undecided or seq, seq)
end

-- What is to be looked up is looked for under Slack's own name of its channel, once that is known.
local function name_place(header)
  header.place = header.doubt and redis.call('HGET', KEYS[30], header.channel) or nil
end

-- An event leaves what it waited in, which is the caller's matter, for this owner's hands.
local function unpark(id, header, payload)
  redis.call('ZREM', parked, id)
  count(totals, 'parked', header.counted, -1)
  header.state, header.timer, header.entry = nil, nil, nil
  name_place(header)
  write_record(events, id, header, payload)
  hand_out(id, cjson.encode(header) .. '\n' .. payload)
end

local function unpark_found(id)
  local header, payload = read_record(redis.call('HGET', events, id))
  unpark(id, header, payload)
  return header
end

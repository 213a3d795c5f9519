-- What take.lua gives to its owner, and what of it is to be decided.
local MAX_BATCH = 8388608 -- bytes after which no more is taken from orphans and lanes
local ids_taken, records, sizes, seqs, bytes = {}, {}, {}, {}, 0
local undecided -- the first seq of these that is to be decided
local heads_of = {} -- scopes whose heads were taken

local function hand_out(id, record, seq)
  local n = #ids_taken + 1
  ids_taken[n], records[n], sizes[n], seqs[n] = id, record, #record, seq or 0
  bytes = bytes + #record
end

local function to_decide(seq)
  undecided = math.min(undecided or seq, seq)
end

-- What was taken before and may be admitted or not: until it is decided its owner takes nothing else.
local any_old = false

local function to_decide_again(seq)
  any_old = true
  to_decide(seq)
end

-- What is to be looked up is looked for under Slack's own name of its channel, once that is known.
local function name_place(header)
  header.place = header.doubt and redis.call('HGET', KEYS[30], header.channel) or nil
end

-- The record as its owner gets it; an own event's payload is its tally as it stands now or, while the fate of its last post is
-- to be looked up, as that post told of it. An edit is not looked up but made again.
local function told_record(id, header, payload)
  if header.own then
    local key = call.tally .. id
    if string.find(id, '^digest:') and redis.call('HEXISTS', key, 'shown') == 1 then
      header.doubt = nil
    end
    header.seen, payload = digits(now), header.doubt and redis.call('HGET', key, 'snap')
    if not payload then
      redis.call('HDEL', key, 'edit', 'since', 'snap')
      local fields = redis.call('HGETALL', key)
      fields[#fields + 1], fields[#fields + 2] = 'now', digits(now)
      payload = cjson.encode(fields)
      redis.call('HSET', key, 'snap', payload)
    end
  end
  return cjson.encode(header) .. '\n' .. payload
end

-- An event leaves what it waited in, which is the caller's matter, for this owner's hands.
local function unpark(id, header, payload)
  redis.call('ZREM', parked, id)
  count(totals, 'parked', header.counted, -1)
  header.state, header.timer, header.entry = nil, nil, nil
  name_place(header)
  local record = told_record(id, header, payload)
  write_record(events, id, header, payload)
  hand_out(id, record)
  local tally = header.lone and 'digest:' .. header.category
  if tally and redis.call('HGET', call.tally .. tally, 'lone') == id then
    redis.call('DEL', call.tally .. tally)
    redis.call('SREM', KEYS[33], tally)
  end
end

local function unpark_found(id)
  local header, payload = read_record(redis.call('HGET', events, id))
  unpark(id, header, payload)
  return header
end

-- Begins a silence, or ends one before its time: what matches it is suppressed, or waits, when a worker takes it.
--
-- @keys silences silencing endings tallies events parked lines timers deciding freed wake scheduled names seq totals reopening
-- @prefixes waits tally firing
-- KEYS      silences, silencing HASH, endings ZSET  see include/silences.lua; the first and the last live as long as their members,
--           silencing is permanent
--           all others as in take.lua
-- ARGV[1]   JSON {"now": us | absent, and one of
--           "row": JSON of include/silences.lua without "from" and "until", to begin one; with "for_us", "from_us" | absent: from now
--             on, "most": silences that there may be, "category": end and replace the mute of this category | absent,
--           "expire": id of a silence to end,
--           "unmute": a category of which all mutes are to end}
-- Returns   of "row": [id, from, until], or [] where there are as many as may be; else the ids of those that have ended
-- What waits for the end of a silence stands in line for the scope 'silence:ID' (include/deferred.lua), whose instant is that end.
-- @include prelude
-- @include plan
-- @include record
-- @include lines
-- @include deferred
-- @include digest
-- @include silences

local call = cjson.decode(ARGV[1])
local at = K
at.now = microseconds(call.now)
silences.end_due(at)

local function mutes_of(category)
  local found = {}
  for _, id in ipairs(silences.ids(at)) do
    if (silences.row(at, id) or {}).category == category then
      found[#found + 1] = id
    end
  end
  return found
end

-- A mute is replaced by one of the same id: it goes on counting.
local function id_of(category)
  local known = category and mutes_of(category)[1]
  if known then
    return known
  elseif #silences.ids(at) >= call.most then
    return nil
  end
  local id = digits(count_of(plan.hget(at.silencing, 'last')) + 1)
  plan.hset(at.silencing, 'last', id)
  return id
end

local function begin()
  local id = id_of(call.category)
  if not id then
    return {}
  end
  local from = math.max(at.now, call.from_us or at.now)
  local until_us = from + call.for_us
  local instants = string.format('{"from":"%.0f","until":"%.0f",', from, until_us)
  local row = instants .. string.sub(call.row, 2)
  local key = silences.key(at, id)
  local idle = whole_of(json_of(row).idle)
  local ends = idle and math.min(until_us, from + idle) or until_us
  local is_added = not silences.row(at, id)
  plan.hset(at.silences, id, row)
  plan.zadd(at.endings, ends, id)
  plan.hset(key, 'row', row)
  plan.hset(key, 'count', plan.hget(key, 'count') or '0')
  plan.hset(key, 'first', plan.hget(key, 'first') or digits(from))
  silences.changed(at, is_added)
  deferred.open_at(at, silences.PREFIX .. id, ends)
  return { id, digits(from), digits(until_us) }
end

local function finish(ids)
  local ended = {}
  for _, id in ipairs(ids) do
    if plan.zscore(at.endings, id) then
      ended[#ended + 1] = id
    end
  end
  silences.finish(at, ended)
  return ended
end

local answer
if call.row then
  answer = begin()
else
  answer = finish(call.expire and { call.expire } or mutes_of(call.unmute))
end
lines.ring_if_earlier(at)
plan.commit(at.silences)
return answer

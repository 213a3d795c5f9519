-- What limits suppressed and nobody in Slack was told of: a tally for each category that digests, or gives notice.
--
-- `tallies` SET   ids of the tallies, 'digest:CATEGORY' or 'notice:CATEGORY'. Each has an own event, but for one of a lone event.
--                 An own event bears the tally's id, stands in `events` with "own" in its header and no payload, and waits,
--                 is taken and posted like any other; the books count it under the name '', which is nobody's.
-- tally     HASH  count, first, last (instants) of what was suppressed; why: what the decision record says of the newest;
--                 samples: JSON [[text, count at which it came last], ...];
--                 since: the first instant after the own event was taken; edit: from when on the own event may look again;
--                 shown: how many Slack was told of; channel, ts: of that message; next: when another may be posted;
--                 failed: that it cannot be posted was told; snap: JSON of all this, as the own event was last given it;
--                 lone: the one event that was suppressed, which is parked, its name and whether it is to be remembered.
--                 Lives until its own event has told of all, or the lone one has left.
--
-- `at` names the keys events, leased, parked, timers, totals, names, seq, tallies, and those of include/dropping.lua; and now.
-- A `tally` of a call: its id, its key, how long it collects (delay_us).
local MOST_SAMPLES = 5
local PATIENCE_US = 86400000000 -- after which an own event asks anew; nothing ends it

local function with_samples(known, texts, at_count)
  local samples = known and cjson.decode(known) or {}
  for _, text in ipairs(texts) do
    local found
    for _, sample in ipairs(samples) do
      if sample[1] == text then
        sample[2], found = at_count, true
      end
    end
    if not found and #samples < MOST_SAMPLES then
      samples[#samples + 1] = { text, at_count }
    end
  end
  return cjson.encode(samples)
end

-- Parks an own event on its timer.
local function park_own(at, id, header, instant)
  header.state, header.timer, header.category, header.counted = 'waiting', true, '', ''
  header.deadline, header.why, header.holds = digits(at.now + PATIENCE_US), nil, nil
  redis.call('ZADD', at.timers, digits(instant), id)
  redis.call('ZADD', at.parked, header.deadline, id)
  write_record(at.events, id, header, '')
end

-- The lone event ends with the second one. Returns its name and what the record says; nothing where it has left.
local function join_lone(at, tally, lone)
  local name, why, last, remembered = unpack(redis.call('HMGET', tally.key, 'name', 'why', 'last', 'remember'))
  if redis.call('ZREM', at.timers, lone) == 0 then
    redis.call('DEL', tally.key)
    return nil
  end
  local header = read_record(redis.call('HGET', at.events, lone))
  redis.call('HDEL', at.events, lone)
  redis.call('ZREM', at.parked, lone)
  count(at.totals, 'parked', header.counted, -1)
  count(at.totals, 'digested', header.counted, 1)
  record_decisions(at.limited, at.limited_older, { lone, last .. ' ' .. why }, at.most_decisions)
  if remembered then
    remember(at, { lone })
  end
  redis.call('HDEL', tally.key, 'lone', 'name', 'remember')
  return { name or lone, why }
end

-- Counts `number` events that ended in this step; the newest was refused as `why` says. Returns what join_lone does.
local function suppress(at, tally, number, why, texts)
  local lone = redis.call('HGET', tally.key, 'lone')
  local joined = lone and join_lone(at, tally, lone) or nil
  local first, samples, edit = unpack(redis.call('HMGET', tally.key, 'first', 'samples', 'edit'))
  local now = digits(at.now)
  local total = redis.call('HINCRBY', tally.key, 'count', number)
  redis.call('HSET', tally.key, 'first', first or now, 'last', now, 'why', why)
  redis.call('HSETNX', tally.key, 'since', now)
  if #texts > 0 then
    redis.call('HSET', tally.key, 'samples', with_samples(samples, texts, total))
  end
  if lone or not first then
    redis.call('SADD', at.tallies, tally.id)
    park_own(at, tally.id, { own = true, seq = redis.call('INCR', at.seq), seen = now }, (first or at.now) + tally.delay_us)
  elseif edit then
    redis.call('ZADD', at.timers, 'XX', 'LT', digits(math.max(tonumber(edit), at.now)), tally.id)
  end
  return joined
end

-- Parks the only event that was suppressed while nothing was: for a second one, or to be posted as itself. `wait_us` is for
-- one that was set aside before and found no room.
local function set_aside(at, tally, event, why, texts, wait_us)
  local header, payload = read_record(redis.call('HGET', at.events, event.id))
  local first = header.lone or digits(at.now)
  local instant = header.lone and at.now + wait_us or at.now + tally.delay_us
  header.state, header.timer, header.lone, header.category = 'waiting', true, first, event.category
  header.why = { cjson.decode(why)[3], cjson.null }
  header.counted, header.deadline = counted_name(at.names, event.category, event.configured), event.deadline
  redis.call('SREM', at.leased, event.id)
  redis.call('SADD', at.tallies, tally.id)
  redis.call('ZADD', at.timers, digits(instant), event.id)
  redis.call('ZADD', at.parked, event.deadline, event.id)
  count(at.totals, 'parked', header.counted, 1)
  write_record(at.events, event.id, header, payload)
  redis.call('HSET', tally.key, 'lone', event.id, 'count', 1, 'first', first, 'last', digits(at.now), 'why', why)
  if event.name then
    redis.call('HSET', tally.key, 'name', event.name)
  end
  if event.remember then
    redis.call('HSET', tally.key, 'remember', 1)
  end
  if #texts > 0 then
    redis.call('HSET', tally.key, 'samples', with_samples(nil, texts, 1))
  end
  return instant - at.now
end

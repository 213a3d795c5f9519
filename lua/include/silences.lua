-- Silences: what operators want nothing of for a time. Workers decide which events match (core/silences.py); here is what is known
-- of each silence, what is counted of it, and its end.
--
-- `silences` HASH       id -> JSON: {"from", "until": instants as strings, "matchers": [text, ...], "who", "why",
--                       "names": [category or, up to its first '*', what several begin with, ...], "category": of a mute,
--                       "idle": us as a string, "until_resolved", "no_report": true | absent}, of each that is in force or begins later
-- `silencing` HASH      version: differs after each change of `silences`; last: number of the last silence; names: JSON [name of
--                       a category as above, ...] of all silences; unnamed: from when on one is in force that names none; watched:
--                       the same of one of these that ends when nothing matches or fires any more
-- `endings` ZSET        id -> when it ends, if nobody ends it before
-- tally     HASH        its tally, 'silence:ID' (include/digest.lua): row: as in `silences`; count: how many it has
--                       suppressed; deferred: how many of these were parked to wait for its end; first: since when it is there; 'to CHANNEL': how many would have gone there; keys: '1' once one of these
--                       events said what it is about; more: '1' if more than MOST_KEYS did; ended: when it has ended.
--                       Lives until its report is told.
-- firing    ZSET        subject (include/subjects.lua) -> instant of the newest event that was suppressed and is not over.
--                       Lives as long as the tally.
--
-- A silence ends in one step: it leaves `silences`, what waits for its end goes on, and its report is parked. The report is a
-- digest message 'silence:ID', for one that has nothing to report too: workers that took events before the end may still count them.
--
-- `at` names the keys above and those of include/deferred.lua and include/digest.lua, reopening and wake; tally_prefix and
-- firing_prefix; and now.
-- A `silenced` of a call: {"ids": [the silence that suppresses the event, others that match it, ...], "to": the event's channel,
-- "fires": true of an event that tells of a failure and says which | absent}.
local silences = module(function(silences)
  silences.PREFIX = 'silence:'
  local MOST_KEYS = 10000 -- subjects that are known to be firing, of each silence
  local MOST_CHANNELS = 100 -- channels that are counted apart, of each silence
  local MOST = 1000 -- silences that one call looks at; there are 200 at most
  local SETTLE_US = 1000000 -- after the end of a silence, until workers have decided what they took before it

  function silences.key(at, id)
    return at.tally_prefix .. silences.PREFIX .. id
  end

  function silences.row(at, id)
    local text = plan.hget(at.silences, id)
    return text and json_of(text) or nil
  end

  function silences.ids(at)
    return plan.zdue(at.endings, math.huge, MOST)
  end

  -- Notes that `silences` has changed, and which categories it names. Digest messages that wait for the end of one ask again, unless
  -- all that has changed is one more silence (`is_added`): that one lets none go.
  function silences.changed(at, is_added)
    if not is_added and not digest.ask_again(at, 'silenced') then
      plan.hset(at.reopening, 'silenced', digits(at.now) .. ' 0') -- the next takes let the others ask, a page each
      plan.ring(at.wake)
    end
    local names, known, first = {}, {}, {}
    local function note_first(field, from)
      first[field] = math.min(first[field] or from, from)
    end
    for _, text in pairs(plan.hgetall(at.silences)) do
      local row = json_of(text)
      local named = row and type(row.names) == 'table' and row.names or {}
      for _, name in ipairs(named) do
        if type(name) == 'string' and not known[name] then
          known[name], names[#names + 1] = true, name
        end
      end
      if row and not named[1] then
        note_first('unnamed', count_of(row.from))
        if row.idle or row.until_resolved then
          note_first('watched', count_of(row.from))
        end
      end
    end
    table.sort(names)
    local version = count_of(plan.hget(at.silencing, 'version'))
    plan.hset(at.silencing, 'version', digits(math.max(version + 1, at.now)))
    plan.hset(at.silencing, 'names', names[1] and cjson.encode(names) or '[]')
    for _, field in ipairs({ 'unnamed', 'watched' }) do
      if first[field] then
        plan.hset(at.silencing, field, digits(first[field]))
      else
        plan.hdel(at.silencing, field)
      end
    end
  end

  -- The version of the silences, nil where there were none yet.
  function silences.version(at)
    return plan.hget(at.silencing, 'version')
  end

  -- Whether a silence that is noted in this field is in force; what somebody else has written there counts as one. Where there is no
  -- silence, what is there is left over: a worker of an older version that ends the last one does not know the field.
  local function has_begun(at, field)
    local from = plan.zfirst(at.endings) and plan.hget(at.silencing, field)
    return from and count_of(from) <= at.now
  end

  -- What says whether silences keep the pre-check from dropping events of a category, or repeats of it; nil where none does. One
  -- that names a category has to count its events, and one that is watched has to count all. A silence comes before `once`.
  function silences.guard(at)
    local keeps_repeats = has_begun(at, 'unnamed')
    if keeps_repeats and has_begun(at, 'watched') then
      return function() return true end
    end
    local names, found = json_of(plan.hget(at.silencing, 'names') or '[]') or {}, keeps_repeats and { exact = {}, begins = {} } or nil
    for _, name in ipairs(names) do
      found = found or { exact = {}, begins = {} }
      local begin = type(name) == 'string' and string.match(name, '^([^*]*)%*')
      if begin then
        found.begins[#found.begins + 1] = begin
      else
        found.exact[name] = true
      end
    end
    return found and function(category, is_repeat)
      if (is_repeat and keeps_repeats) or found.exact[category] then
        return true
      end
      for _, begin in ipairs(found.begins) do
        if string.sub(category, 1, #begin) == begin then
          return true
        end
      end
      return false
    end
  end

  local function forget(at, id)
    plan.del(silences.key(at, id))
    plan.del(at.firing_prefix .. id)
    plan.srem(at.tallies, silences.PREFIX .. id)
  end

  local idle_ends = {} -- id -> when it ends if nothing more matches; false of one that does not end for that

  local function finish(at, id)
    local row, key, report = silences.row(at, id), silences.key(at, id), silences.PREFIX .. id
    plan.hdel(at.silences, id)
    plan.zrem(at.endings, id)
    idle_ends[id] = false
    deferred.reopen(at, report)
    if not row or row.no_report or not plan.hget(key, 'row') then
      forget(at, id)
      return
    end
    plan.hset(key, 'ended', digits(at.now))
    plan.sadd(at.tallies, report)
    digest.park(at, report, digest.new_header(at), at.now + SETTLE_US)
  end

  -- Ends silences. That `silences` has changed is noted once, because that reads all that are left.
  function silences.finish(at, ids)
    for _, id in ipairs(ids) do
      finish(at, id)
    end
    if ids[1] then
      silences.changed(at)
    end
  end

  -- Ends those whose time has come.
  function silences.end_due(at)
    silences.finish(at, plan.zdue(at.endings, at.now, MOST))
  end

  -- The clock was stepped back by this much. A silence that had begun still holds: if it began within the time of the step, it
  -- moves back with the clock, and keeps its length. An idle end comes no later than the idle time from now.
  function silences.step_back(at, by_us)
    local has_moved = false
    for _, id in ipairs(silences.ids(at)) do
      local row, ends = silences.row(at, id) or {}, plan.zscore(at.endings, id)
      local from_us, until_us, idle = whole_of(row.from), whole_of(row['until']), whole_of(row.idle)
      if from_us and until_us and from_us > at.now and from_us <= at.now + by_us then
        local text = string.gsub(plan.hget(at.silences, id), '("from": ?)"%d+"', '%1"' .. digits(from_us - by_us) .. '"')
        text = string.gsub(text, '("until": ?)"%d+"', '%1"' .. digits(until_us - by_us) .. '"')
        plan.hset(at.silences, id, text)
        if plan.hget(silences.key(at, id), 'row') then
          plan.hset(silences.key(at, id), 'row', text)
        end
        plan.zadd(at.endings, ends - by_us, id)
        has_moved = true
      elseif idle and from_us and from_us <= at.now then
        plan.zadd_lower(at.endings, at.now + idle, id)
      end
    end
    if has_moved then
      silences.changed(at)
    end
  end

  local function add(key, field)
    local number = count_of(plan.hget(key, field)) + 1
    plan.hset(key, field, digits(number))
    return number
  end

  local channels = {} -- key of a tally -> how many channels it counts

  local function count_channel(key, channel)
    local field = 'to ' .. channel
    if not plan.hget(key, field) then
      if not channels[key] then
        channels[key] = 0
        for name in pairs(plan.hgetall(key)) do
          channels[key] = channels[key] + (string.find(name, '^to ') and 1 or 0)
        end
      end
      if channels[key] >= MOST_CHANNELS then
        return
      end
      channels[key] = channels[key] + 1
    end
    add(key, field)
  end

  local sizes = {} -- key of what is firing -> how many

  local function note_firing(at, id, about)
    local key, name, instant = at.firing_prefix .. id, about[subjects.NAME], tonumber(about[subjects.INSTANT])
    plan.hset(silences.key(at, id), 'keys', '1')
    if not plan.zscore(key, name) then
      sizes[key] = sizes[key] or redis.call('ZCARD', key)
      if sizes[key] >= MOST_KEYS then
        plan.hset(silences.key(at, id), 'more', '1')
        return
      end
      sizes[key] = sizes[key] + 1
    end
    plan.zadd_higher(key, instant, name)
  end

  local function idle_end_of(at, id)
    if idle_ends[id] == nil then
      local row = silences.row(at, id)
      local idle = row and whole_of(row.idle)
      idle_ends[id] = idle and math.min(count_of(row['until']), at.now + idle) or false
    end
    return idle_ends[id]
  end

  -- Whether the silence that suppresses an event has counted it before: it stood in this line, in which it waits for the end.
  function silences.has_counted(silenced, line)
    local its_lines = silences.PREFIX .. silenced.ids[1] .. ':'
    return line ~= nil and string.sub(line, 1, #its_lines) == its_lines
  end

  -- Counts an event that silences match and the first of them suppresses; `is_deferred`: it waits for the end. One that has ended
  -- counts until its report is told.
  function silences.count(at, silenced, about, seq, is_deferred)
    local fires = silenced.fires and not subjects.over(at, about, seq)
    for n, id in ipairs(silenced.ids) do
      local key = silences.key(at, id)
      if plan.hget(key, 'row') then
        if n == 1 then
          add(key, 'count')
          if is_deferred then
            add(key, 'deferred')
          end
          count_channel(key, silenced.to)
        end
        local idle_end = idle_end_of(at, id)
        if idle_end then
          plan.zadd_higher(at.endings, idle_end, id)
        end
        if fires then
          note_firing(at, id, about)
        end
      end
    end
  end

  local with_firing -- silences that have suppressed what is firing: read once in a call, which adds none

  local function ids_with_firing(at)
    if not with_firing then
      with_firing = {}
      for _, id in ipairs(silences.ids(at)) do
        if redis.call('EXISTS', at.firing_prefix .. id) == 1 then
          with_firing[#with_firing + 1] = id
        end
      end
    end
    return with_firing
  end

  -- What a subject tells of was over at `instant`. A silence that lasts until nothing is firing any more may end with it. An
  -- instant that lies ahead is from before a step back of the clock: it counts as earlier.
  function silences.resolve(at, name, instant)
    local ended = {}
    for _, id in ipairs(ids_with_firing(at)) do
      local key = at.firing_prefix .. id
      local since = plan.zscore(at.endings, id) and plan.zscore(key, name) -- unless this call has ended it
      if since and (since <= instant or since > at.now) then
        plan.zrem(key, name)
        local row = silences.row(at, id)
        if row and row.until_resolved and not plan.zfirst(key) and not plan.hget(silences.key(at, id), 'more') then
          ended[#ended + 1] = id
        end
      end
    end
    silences.finish(at, ended)
  end

  -- The payload of a report for its owner: its tally as it stands now, and how much is firing.
  function silences.told(at, report, header)
    local id, fields = string.sub(report, #silences.PREFIX + 1), {}
    header.seen = digits(at.now)
    for field, value in pairs(plan.hgetall(silences.key(at, id))) do
      fields[#fields + 1], fields[#fields + 2] = field, value
    end
    fields[#fields + 1], fields[#fields + 2] = 'now', digits(at.now)
    fields[#fields + 1], fields[#fields + 2] = 'firing', digits(redis.call('ZCARD', at.firing_prefix .. id))
    return cjson.encode(fields)
  end

  -- `reported` of a call: {"posted": true of a message that was posted, "wait_us": until it tries again | absent: that is its end}
  function silences.report(at, report, reported)
    if reported.posted then
      plan.count(at.totals, 'notices', 1)
    end
    if reported.wait_us then
      digest.park(at, report, digest.new_header(at), at.now + reported.wait_us)
    else
      plan.hdel(at.events, report)
      forget(at, string.sub(report, #silences.PREFIX + 1))
    end
  end
end)

-- What admit.lua does about tallies: the refused events of its groups are counted, a lone one is set aside.

-- The slots of one who is refused go back: a worker that died may have been admitted with it.
local function give_back(n)
  local request = request_of(n)
  for i = 2, #request do
    for _, position in ipairs(type(request[i]) == 'number' and { request[i] } or request[i]) do
      if release_slot(KEYS[position], request[1]) == 1 then
        reopen_scope(at, string.sub(KEYS[position], #call.scope + 1))
      end
    end
  end
end

-- Whether anything is counted: one lone event that has left (it was cancelled) is nothing.
local function is_open(tally)
  local lone = redis.call('HGET', tally.key, 'lone')
  if lone and not redis.call('ZSCORE', at.timers, lone) then
    redis.call('DEL', tally.key)
  end
  return redis.call('EXISTS', tally.key) == 1
end

-- `ours` says of each refused event, by the group, whether it is still this owner's; one that was set aside is not any more.
local function keep_tallies(ours)
  local before, last, ended = first_instant(at.lines, at.timers), 0, {}
  for _, tally in ipairs(call.tallies) do
    tally.number, tally.texts = 0, {}
  end
  for _, group in ipairs(groups) do
    local tally = call.tallies[group.kind[5]]
    for i, n in ipairs(group.places) do
      if tally and ours[last + i] == 1 then
        tally.number, tally.why, ended[n] = tally.number + 1, group.why, true
        tally.only = { place = last + i, n = n, group = group }
      end
    end
    last = last + #group.places
  end
  for _, n in ipairs(call.release) do
    if ended[n] then
      give_back(n)
    end
  end
  for position, tally in ipairs(call.tallies) do
    tally.key = KEYS[first + 17 + position]
    for _, sample in ipairs(tally.samples) do
      if ended[sample[1]] then
        tally.texts[#tally.texts + 1] = sample[2]
      end
    end
    local only = tally.only
    if tally.number == 1 and only.group.outcome == 'digested' and is_open(tally) == false then
      local event = {
        id = call.jobs[only.n], name = call.names[tostring(only.n)], category = only.group.category,
        configured = only.group.configured, remember = only.group.remember, deadline = only.group.kind[6],
      }
      local wait_us = set_aside(at, tally, event, tally.why, tally.texts, wait_of(only.group.verdict))
      lone[#lone + 1] = string.format('[%d,%.0f]', only.n, wait_us)
      ours[only.place] = 0
    elseif tally.number > 0 then
      local was_lone = suppress(at, tally, tally.number, tally.why, tally.texts)
      if was_lone then
        joined[#joined + 1] = cjson.encode(was_lone)
      end
    end
  end
  if first_instant(at.lines, at.timers) < before then
    ring(at.wake)
  end
end

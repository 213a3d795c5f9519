-- A pause: nobody posts, but for one event that tries, the prober. The hash `pause` is there while it lasts:
--   kind     "operator": Slack will take nothing until an operator acts. "outage": Slack is not reached. "cooldown": the whole
--            workspace cools down
--   code, detail  what was said; since; probe: when the next one may try; prober: id of who tries now; gap: of an outage, us
-- A pause by hand is another hash, `paused`: "*" or a category -> JSON; in it nobody tries.
--
-- `at` names the keys: pause, failures, cooldowns, wake; and now.
local OUTAGE = 5 -- posts in a row, of the whole fleet, that did not reach Slack
local OUTAGE_FROM_US, OUTAGE_TO_US = 1000000, 30000000
local FAILURES_MS = 3600000
local PROBES_US = { operator = 60000000, outage = 30000000, cooldown = 30000000 } -- for one who tries and is not heard of
local RETRY_PROBE_US = 1000000

local turned = {} -- [{"began": kind, "code", "detail"} | {"ended": kind}, ...] for who asked

-- Why nobody may post, and until when; nothing when one may, and for the prober itself.
local function paused_until(pause, id, now)
  local kind, probe, prober = unpack(redis.call('HMGET', pause, 'kind', 'probe', 'prober'))
  if kind and now < tonumber(probe) and prober ~= id then
    return kind == 'cooldown' and 'cooldown' or 'paused', tonumber(probe)
  end
end

-- While posting is paused this one tries, and no other before it is heard of.
local function let_try(pause, id, now)
  local kind = redis.call('HGET', pause, 'kind')
  if kind then
    redis.call('HSET', pause, 'prober', id, 'probe', digits(now + PROBES_US[kind]))
  end
end

local function begin_pause(at, kind, said, probe)
  local before, code = unpack(redis.call('HMGET', at.pause, 'kind', 'code'))
  if before ~= kind then
    redis.call('HSET', at.pause, 'since', digits(at.now), 'kind', kind)
  end
  if before ~= kind or code ~= said.code then
    turned[#turned + 1] = { began = kind, code = said.code, detail = said.detail }
  end
  redis.call('HSET', at.pause, 'code', said.code, 'detail', said.detail, 'probe', digits(probe), 'prober', '')
end

local function end_pause(at, kind)
  redis.call('DEL', at.pause)
  turned[#turned + 1] = { ended = kind }
  ring(at.wake)
end

-- A post or a reading did not reach Slack. Returns whether that is an outage, in which nobody's attempt is used up.
local function note_failure(at, id, said)
  local kind, prober, gap, probe = unpack(redis.call('HMGET', at.pause, 'kind', 'prober', 'gap', 'probe'))
  if kind == 'outage' then
    if prober == id then
      gap = math.min(2 * tonumber(gap), OUTAGE_TO_US)
      redis.call('HSET', at.pause, 'gap', digits(gap), 'probe', digits(at.now + gap), 'prober', '')
    end
    return true
  elseif kind == 'operator' then
    return false
  end
  local failures = redis.call('INCR', at.failures)
  redis.call('PEXPIRE', at.failures, FAILURES_MS)
  if failures >= OUTAGE then
    local cool_until = kind and prober ~= id and tonumber(probe) or 0
    begin_pause(at, 'outage', said, math.max(at.now + OUTAGE_FROM_US, cool_until))
    redis.call('HSET', at.pause, 'gap', digits(OUTAGE_FROM_US))
    return true
  elseif prober == id then -- of a cool-down
    redis.call('HSET', at.pause, 'probe', digits(at.now + RETRY_PROBE_US), 'prober', '')
  end
  return false
end

-- What became of the prober's try says nothing: the next one may try at once.
local function pass_try(at, id)
  if redis.call('HGET', at.pause, 'prober') == id then
    redis.call('HSET', at.pause, 'probe', digits(at.now), 'prober', '')
  end
end

-- Slack has answered; `posted`: it took the message, `replied`: it was asked to take one.
local function note_answer(at, id, posted, replied)
  redis.call('DEL', at.failures)
  local kind, prober = unpack(redis.call('HMGET', at.pause, 'kind', 'prober'))
  if kind == 'outage' or (kind == 'operator' and posted) or (kind == 'cooldown' and prober == id and replied) then
    end_pause(at, kind)
  else
    pass_try(at, id)
  end
end

-- The channel cools down for so long; where another one does so already, the whole workspace does. Slack has answered, so
-- this is the end of an outage.
local function cool_down(at, channel, span_us, said)
  redis.call('DEL', at.failures)
  local kind = redis.call('HGET', at.pause, 'kind')
  if kind == 'outage' then
    end_pause(at, kind)
  end
  local others = redis.call('ZRANGEBYSCORE', at.cooldowns, '(' .. digits(at.now), '+inf', 'WITHSCORES')
  local latest, is_wide = at.now + span_us, false
  for i = 1, #others, 2 do
    if others[i] ~= READING then
      is_wide = is_wide or others[i] ~= channel
      latest = math.max(latest, tonumber(others[i + 1]))
    end
  end
  redis.call('ZREMRANGEBYSCORE', at.cooldowns, '-inf', digits(at.now - COOLED_US))
  redis.call('ZADD', at.cooldowns, 'GT', digits(at.now + span_us), channel)
  keep_alive(at.cooldowns, span_us + COOLED_US)
  if kind ~= 'operator' and (is_wide or kind == 'cooldown') then
    begin_pause(at, 'cooldown', said, latest)
  end
end

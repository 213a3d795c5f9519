-- Stops posting by hand, of everything or of one category, or lets it go on.
--
-- @keys paused lines timers wake pause failures cooldowns events
-- @prefixes line
-- KEYS      1 paused  HASH  "*" or category -> JSON {"by", "since": string, "why"}; gone when empty
--           2 lines, 3 timers, 4 wake as in take.lua; 5 pause  HASH  why nobody posts (include/pause.lua); 6 failures HASH, 7 cooldowns
--           ZSET: the channels that are held up by what they answered; 8 events
-- ARGV[1]   JSON {"now": us | absent, "what": "*" | category,
--           "by", "why": pause it; one that is paused stays so since then | absent: let it go on}
-- Returns   1 if it was paused before, else 0
-- What was admitted of a category that is paused stands in the line 'paused:CATEGORY' (lua/pace.lua), and goes on at once. Who
-- lets everything go on has also put right what an operator was asked for: what was held up for that tries at once.
-- @include prelude
-- @include plan
-- @include record

local PAGE = 1000 -- channels that were held up, and timers, that are let go at once

local call = cjson.decode(ARGV[1])
local at = K
at.now = microseconds(call.now)
local was = plan.hget(at.paused, call.what) and 1 or 0

local is_cooldown = plan.hget(at.pause, 'kind') == 'cooldown' -- as long as Slack has said: nobody can put that right

local function let_all_try()
  if not is_cooldown then
    plan.hset(at.pause, 'probe', digits(at.now))
    plan.hset(at.pause, 'prober', '')
  end
  local channels = redis.call('HKEYS', at.failures)
  for n = 1, math.min(#channels, PAGE) do
    if plan.zscore(at.cooldowns, channels[n]) then
      plan.zadd(at.cooldowns, at.now, channels[n])
    end
    local instant = plan.zscore(at.lines, 'channel:' .. channels[n])
    if instant and instant < math.huge then
      plan.zadd(at.lines, at.now, 'channel:' .. channels[n])
    end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', at.timers, '(' .. digits(at.now), '+inf', 'LIMIT', 0, PAGE)) do
    local why = record.read(at, id).why
    if why and why[1] == 'paused' then
      plan.zadd(at.timers, at.now, id)
    end
  end
end

if call.by then
  if was == 0 then
    plan.hset(at.paused, call.what, cjson.encode({ by = call.by, since = digits(at.now), why = call.why }))
  end
else
  plan.hdel(at.paused, call.what)
  local entry = 'paused:' .. call.what
  if plan.zfirst(at.line_prefix .. entry) then
    plan.zadd(at.lines, at.now, entry)
  end
  if call.what == '*' and redis.call('EXISTS', at.pause) == 1 then
    let_all_try()
    was = is_cooldown and was or 1
  end
  if math.min(plan.zlowest(at.lines), plan.zlowest(at.timers)) < math.huge then -- in a pause `take` names no such instant
    plan.ring(at.wake)
  end
end
plan.commit(at.paused)
return was

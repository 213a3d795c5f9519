-- Parks an event whose post may have arrived, to be looked up at `instant`, and never given up before that. `at` names the
-- keys events, timers, parked, totals; and now.
local function await_look(at, id, header, payload, instant)
  instant = math.max(at.now, instant)
  header.state, header.timer = 'waiting', true
  header.why = nil
  redis.call('ZADD', at.timers, digits(instant), id)
  redis.call('ZADD', at.parked, digits(math.max(instant, tonumber(header.deadline))), id)
  count(at.totals, 'parked', header.counted, 1)
  write_record(at.events, id, header, payload)
end

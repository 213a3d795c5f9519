-- A parked event leaves the timer or the line that it waits in; that it is no longer parked, and where it is written next, is
-- the caller's matter. `at` names the keys as in include/deferred.lua, and timers.
local function leave_place(at, id, header)
  if header.timer then
    redis.call('ZREM', at.timers, id)
  elseif header.line then
    leave_line(at, id, header)
  else
    local line = header.entry or 'channel:' .. header.channel
    redis.call('ZREM', at.line .. line, id)
    if redis.call('EXISTS', at.line .. line) == 0 then
      redis.call('ZREM', at.lines, line)
    end
  end
end

-- What happens to the events of an owner whose lease has ended. A post that was under way may have arrived: its event
-- frees the channel and waits on a timer, to be looked up when `at.grace_us` have passed since the post was marked; it keeps
-- its slot. One that was being looked up waits on a timer again. One that came out of a category's line goes back there, any
-- other is an orphan.
local SUSPECT = 2 -- workers that died with an event, from which on it is taken alone

local function take_over(at, owner, theirs, now)
  for _, id in ipairs(redis.call('SMEMBERS', theirs)) do
    local header, payload = read_record(redis.call('HGET', at.events, id))
    header.deaths = (header.deaths or 0) + 1
    if header.state == 'sending' then
      if redis.call('HGET', at.posting, header.channel) == id then
        redis.call('HDEL', at.posting, header.channel)
        if redis.call('ZSCORE', at.lines, 'channel:' .. header.channel) then
          redis.call('ZADD', at.lines, digits(now), 'channel:' .. header.channel)
        end
      end
      header.held, header.doubt = nil, 0
      await_look(at, id, header, payload, tonumber(header.sent) + at.grace_us)
    elseif header.doubt then
      await_look(at, id, header, payload, now)
    elseif header.line and header.deaths < SUSPECT then
      header.takes = (header.takes or 1) + 1
      stand(at, id, header, payload)
    else
      header.line = nil
      redis.call('ZADD', at.orphans, digits(header.seq), id)
      write_record(at.events, id, header, payload)
    end
  end
  redis.call('DEL', theirs)
  redis.call('ZREM', at.leases, owner)
  decided(at, owner)
end

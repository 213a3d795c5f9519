-- An event's record in the hash `events`: a line of JSON, the header, then the payload as the producer wrote it.
--
-- Header: seq (order of first sight), seen (instant of first sight), and once they are known category, counted (its name in the books), channel,
-- attempt (posts started), unknown (posts whose fate is unknown), state ("sending" while a post may be under way,
-- "waiting" while parked), timer (true: parked on a timer), why (reason and code for
-- which it waits or waited on one; absent after a death), shadow (limits that would have refused it),
-- solo (its channel has a pace),
-- held (true: it owns held slots), holds (names of the scopes they are in), takes (how often it was taken up), replays
-- (how often it came back from the dead letters), deaths (how many workers died holding it),
-- lone (instant since which it waits as the only suppressed one), own (true: an event of the dispatcher's, include/tally.lua),
-- line and rank (where it stands or stood in a category's line, while it is not admitted),
-- sent and first (when its last and its first post were marked as sending), doubt (while the fate of its last post is to be
-- looked up: how many readings failed so far), resent (posts made again after one that never arrived), entry (the line it
-- waits in, where that is not its channel's), place (Slack's id of its channel, where there is a doubt), root (ts of the
-- message that its last post went under, by the key of its thread). Instants are strings of microseconds: cjson writes 14 digits.
local function read_record(record)
  local line = string.find(record, '\n', 1, true)
  return cjson.decode(string.sub(record, 1, line - 1)), string.sub(record, line + 1)
end

local function write_record(events, id, header, payload)
  redis.call('HSET', events, id, cjson.encode(header) .. '\n' .. payload)
end

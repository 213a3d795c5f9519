-- Removes dead letters for good: those named, and those beyond the bounds.
--
-- KEYS      1 dead      STREAM dead letters
--           2 dead_ids  HASH   id -> entry
-- ARGV[1]   JSON {"now": us | absent, "letters": [[entry, id], ...] | absent,
--           "bounds": {"max", "max_age_us"} | absent}
-- Returns   how many were removed
-- @include prelude
-- @include dead

local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local removed = 0
for _, letter in ipairs(call.letters or {}) do
  removed = removed + unbury(KEYS[1], KEYS[2], letter[1], letter[2])
end
if call.bounds then
  removed = removed + trim_dead(KEYS[1], KEYS[2], call.bounds, now, 1000)
end
return removed

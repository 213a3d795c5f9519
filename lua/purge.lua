-- Removes dead letters for good: those named, or those beyond the bounds. One call handles at most MOST letters and
-- at most letters.MOST_READ bytes of them (include/letters.lua); the next call handles the rest.
--
-- @keys dead dead_ids dead_bytes metrics
-- KEYS      as in settle.lua
-- ARGV[1]   JSON {"now": us | absent, "letters": [entry, ...] | absent, "bounds": {"max", "max_age_us", "max_bytes"} | absent}
-- Returns   [how many were removed, how many of "letters" were dealt with, 1 if the bounds may want another call, else 0]
-- @include prelude
-- @include plan
-- @include letters

local MOST = 500 -- letters in one call

local call = cjson.decode(ARGV[1])
local at = K
at.now = microseconds(call.now)
local removed, done, read, has_more = 0, 0, 0, false
for _, entry in ipairs(call.letters or {}) do
  if done == MOST or read >= letters.MOST_READ then
    break
  end
  local fields, size = letters.read(at, entry)
  if fields then
    letters.unbury(at, entry, fields)
    removed, read = removed + 1, read + size
  end
  done = done + 1
end
if call.bounds then
  removed, has_more = letters.trim(at, call.bounds, MOST)
  plan.count(at.metrics, 'trimmed', removed)
end
letters.write(at)
plan.commit(at.dead_ids)
return { removed, done, has_more and 1 or 0 }

-- Puts limits in force as a new version, and lets what waits for room or for a channel ask anew; one worker for each token
-- wakes up.
--
-- KEYS      1 version STRING  'NUMBER-DIGEST' of the limits in force; permanent
--           2 files   HASH    number -> JSON {"number", "digest", "content", "by", "file", "at"} of the last KEPT versions; permanent
--           3 digests ZSET    digest of a content -> number of the last version that had it, of the last REMEMBERED; permanent
--           4 lines   ZSET    see take.lua
--           5 timers  ZSET    id -> its instant
--           6 events  HASH    id -> record (include/record.lua)
--           7 leases  ZSET    owner -> end of its lease
--           8 wake    LIST    a token for one sleeper
-- ARGV[1]   JSON {"now": us | absent, "digest", "content", "by", "file",
--           "unless": "known": leave it when this content ever was a version, "any": when any limits are in force; "never"}
-- Returns   JSON {"version": in force now, "published": true | false, "known": number of the version that had this content | null}
-- @include prelude
-- @include record
-- @include lines

local version, files, digests, lines, timers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local KEPT, REMEMBERED = 20, 1000
local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local in_force = redis.call('GET', version)
local known = redis.call('ZSCORE', digests, call.digest)

-- What is in force but not kept (a server that lost something, a name of somebody else's) counts as nothing.
local number = in_force and string.match(in_force, '^(%d+)%-')
local is_kept = number and redis.call('HEXISTS', files, number) == 1

local function answer(published)
  return string.format('{"version":%s,"published":%s,"known":%s}', cjson.encode(in_force), tostring(published), known or 'null')
end

if is_kept and (call.unless == 'any' or (call.unless == 'known' and known)) then
  return answer(false)
end

local newest = redis.call('ZRANGE', digests, -1, -1, 'WITHSCORES')[2]
number = (tonumber(newest) or 0) + 1
in_force = string.format('%d-%s', number, call.digest)
redis.call('HDEL', files, '') -- a first write that a full server allows: after it the rest is allowed too
redis.call('HSET', files, number, cjson.encode({
  number = number, digest = call.digest, content = call.content, by = call.by, file = call.file, at = digits(now),
}))
redis.call('HDEL', files, number - KEPT)
redis.call('ZADD', digests, number, call.digest)
redis.call('ZREMRANGEBYRANK', digests, 0, -REMEMBERED - 1)
redis.call('SET', version, in_force)

for _, entry in ipairs(redis.call('ZRANGEBYSCORE', lines, '(' .. digits(now), '(inf')) do
  redis.call('ZADD', lines, digits(now), entry)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', timers, '(' .. digits(now), '+inf')) do
  local why = read_record(redis.call('HGET', KEYS[6], id)).why
  if why and string.find(why[1], '^limit:') then
    redis.call('ZADD', timers, digits(now), id)
  end
end
for _ = 1, math.max(1, math.min(redis.call('ZCARD', KEYS[7]), 16)) do
  ring(KEYS[8])
end
return answer(true)

-- Puts limits in force as a new version, and lets what waits for room or for a channel ask anew: the workers' next calls
-- of take.lua do that, a page in each. One worker for each token wakes up.
--
-- KEYS      1 version STRING  'NUMBER-DIGEST' of the limits in force; permanent
--           2 files   HASH    number -> JSON {"number", "digest", "content", "source", "by", "file", "at"} of the last KEPT versions; permanent
--           3 digests ZSET    digest of a content -> number of the last version that had it, of the last REMEMBERED; permanent
--           4 reopening HASH  how far lines and timers were let to ask anew (include/due.lua): it begins again
--           5 leases  ZSET    owner -> end of its lease
--           6 wake    LIST    a token for one sleeper
-- ARGV[1]   JSON {"now": us | absent, "digest", "content", "source": tells the text that was read from others, "by", "file",
--           "unless": "same": leave it when this content is in force, "known": when it ever was a version,
--             "any": when any limits are in force,
--           "if_version": number | absent: leave it, whatever "unless" says, when another version or none is in force}
-- Returns   JSON {"version": in force now, '' if none, "published": true | false,
--           "known": number of the last version that had this content | null}
-- @include prelude
-- @include plan

local version, files, digests, reopening = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local KEPT, REMEMBERED = 20, 1000
local call = cjson.decode(ARGV[1])
local now = microseconds(call.now)
local in_force = redis.call('GET', version)
local known = redis.call('ZSCORE', digests, call.digest)

-- What is in force but not kept (a server that lost something, a name or a row of somebody else's) counts as nothing.
local number, digest = string.match(in_force or '', '^(%d+)%-(.*)$')
local function is_readable(row)
  local facts = json_of(row)
  if not facts or facts.number ~= tonumber(number) or facts.digest ~= digest then
    return false
  end
  for _, name in ipairs({ 'content', 'at', 'by', 'file' }) do
    if type(facts[name]) ~= 'string' then
      return false
    end
  end
  return #facts.at <= 16 and string.find(facts.at, '^%d+$') ~= nil
end
local row = number and plan.hget(files, number)
local is_kept = row and is_readable(row)

local function answer(published)
  local name = (published or is_kept) and in_force or ''
  return string.format('{"version":%s,"published":%s,"known":%s}', cjson.encode(name), tostring(published), known or 'null')
end

if call.if_version and not (is_kept and tonumber(number) == call.if_version) then
  return answer(false)
end
local is_left = { any = true, known = known, same = digest == call.digest }
if is_kept and is_left[call.unless] then
  return answer(false)
end

local newest = redis.call('ZRANGE', digests, -1, -1, 'WITHSCORES')[2]
local next_number = (tonumber(newest) or 0) + 1
in_force = string.format('%d-%s', next_number, call.digest)
plan.hset(files, digits(next_number), cjson.encode({
  number = next_number, digest = call.digest, content = call.content, source = call.source, by = call.by, file = call.file, at = digits(now),
}))
plan.hdel(files, digits(next_number - KEPT))
plan.zadd(digests, next_number, call.digest)
plan.write('ZREMRANGEBYRANK', digests, 0, -REMEMBERED - 1)
plan.write('SET', version, in_force)
for _, kind in ipairs({ 'lines', 'timers' }) do
  plan.hset(reopening, kind, digits(now) .. ' 0')
end
plan.hset(reopening, 'shared', '0')
for _ = 1, math.max(1, math.min(redis.call('ZCARD', KEYS[5]), 16)) do
  plan.ring(KEYS[6])
end
local told = answer(true)
plan.commit(files)
return told

-- Writes the layout of a namespace and binds a queue to it, each where there is none yet; on a full server too, since a
-- worker that starts is what empties it.
--
-- KEYS     1 layout   STRING  version of the layout; permanent
--          2 binding  STRING  the namespace that the queue is bound to; permanent
-- ARGV     1 the version of this layout, 2 the namespace
-- Returns  what stands in both
local found = { redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2]) }
if found[1] and found[2] then
  return found
end
assert(ARGV[1] and ARGV[2], 'version and namespace are missing')
redis.call('PERSIST', KEYS[1]) -- a first write that a full server allows: after it the rest is allowed too
for n = 1, 2 do
  if not found[n] then
    redis.call('SET', KEYS[n], ARGV[n])
  end
end
return { found[1] or ARGV[1], found[2] or ARGV[2] }

-- Writes the layout of a namespace and binds a queue to it, each where there is none yet; on a full server too, since a
-- worker that starts is what empties it.
--
-- KEYS     1 layout   STRING  version of the layout; permanent
--          2 binding  STRING  the namespace that the queue is bound to; permanent
-- ARGV     1 the version of this layout, 2 the namespace
-- Returns  what stands in both
redis.call('PERSIST', KEYS[1]) -- a first write that a full server allows: after it the rest is allowed too
redis.call('SET', KEYS[1], ARGV[1], 'NX')
redis.call('SET', KEYS[2], ARGV[2], 'NX')
return redis.call('MGET', KEYS[1], KEYS[2])

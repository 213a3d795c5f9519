"""The published recipe that the gate is measured against: a limiter in one script over two sorted sets.

Drop what is older than the window from both, count both, refuse when either is full, else add the instant to both. The
recipe's member is the instant alone; a count is added here, or two calls at one instant would be one entry.
"""

from __future__ import annotations

from typing import Final

RECIPE: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local oldest = now - tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', oldest)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', oldest)
local everything, category = redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', KEYS[2])
if everything >= tonumber(ARGV[2]) or category >= tonumber(ARGV[3]) then
  return 0
end
local member = string.format('%.0f-%s', now, ARGV[4])
redis.call('ZADD', KEYS[1], now, member)
redis.call('ZADD', KEYS[2], now, member)
return 1
"""
"""KEYS: the set of everything, the set of the category. ARGV: window in microseconds, limit of each, a count."""

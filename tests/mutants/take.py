"""Mistakes one could make in lua/take.lua and what it includes."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_TAKES: Final = "tests/integration/test_store_take.py"
_WAITS: Final = "tests/integration/test_store_waiting.py"
_AHEAD: Final = "tests/integration/test_store_ahead.py"
_LETTERS: Final = "tests/integration/test_store_dead_letters.py"


def _take(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"take: {name}", "lua/take.lua", old, new, tests or (_TAKES,))


def _part(part: str, name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"take: {name}", f"lua/include/{part}.lua", old, new, tests or (_TAKES,))


TAKE: Final = (
    # Leases
    _take("nobody waits after an interruption", "if now >= grace then", "if true then"),
    _part(
        "takeover",
        "a dead worker's post is given to the next at once",
        "if header.state == 'sending' then",
        "if false then",
    ),
    _part(
        "takeover",
        "a dead worker keeps its channel",
        "redis.call('HDEL', at.posting, header.channel)",
        "redis.call('HLEN', at.posting)",
    ),
    _part(
        "takeover",
        "a dead worker's channel wakes nobody",
        "redis.call('ZADD', at.lines, digits(now), 'channel:' .. header.channel)",
        "redis.call('ZADD', at.lines, 'inf', 'channel:' .. header.channel)",
    ),
    _part("takeover", "a dead worker's list stays", "redis.call('DEL', theirs)", "redis.call('EXISTS', theirs)"),
    _part(
        "takeover",
        "a dead worker's lease stays",
        "redis.call('ZREM', at.leases, owner)",
        "redis.call('ZCARD', at.leases)",
    ),
    _take(
        "what dead workers left is taken from its end",
        "'ZRANGE', orphans, 0, most - 1",
        "'ZREVRANGE', orphans, 0, most - 1",
    ),
    _take("nobody counts who took it up", "(header.takes or 1) + 1", "(header.takes or 1)"),
    # Poison
    _part("takeover", "nobody counts who died", "(header.deaths or 0) + 1", "(header.deaths or 0)"),
    _part("takeover", "three have to die", "SUSPECT = 2", "SUSPECT = 3"),
    _part("takeover", "one has to die", "SUSPECT = 2", "SUSPECT = 1"),
    _take("new events go with a suspect", "elseif not suspended and not alone then", "elseif not suspended then"),
    _take(
        "what waits goes with a suspect",
        "if not suspended and not alone then\n  -- 3.",
        "if not suspended then\n  -- 3.",
    ),
    _take(
        "who wants nothing new gets a suspect",
        "call.new > 0 and not call.undecided and redis.call('ZRANGE', orphans, 0, 0)[1]",
        "redis.call('ZRANGE', orphans, 0, 0)[1]",
    ),
    _take(
        "who wants nothing new gets all orphans",
        "most > 0 and not alone and redis.call('ZRANGE'",
        "not alone and redis.call('ZRANGE'",
    ),
    _take("a suspect goes in a pause", "and not paused_until(pause, timer, now) then", "then"),
    _take(
        "a suspect never goes in a pause",
        "and not paused_until(pause, timer, now) then",
        "and redis.call('EXISTS', pause) == 0 then",
    ),
    _take(
        "a suspect is read ahead",
        "local most = call.due > 0 and not call.undecided and 1 or 0",
        "local most = call.due > 0 and 1 or 0",
        _AHEAD,
    ),
    _part(
        "due",
        "a suspect is read ahead from a line",
        "#ids_taken == 0 and not call.undecided",
        "#ids_taken == 0",
        _AHEAD,
    ),
    _part("due", "a suspect on a timer waits for all that is read ahead", "      old_wait = true\n", "", _AHEAD),
    # What is refused before anything is taken
    _take("the record may be another program's", "KEYS[23], KEYS[24], KEYS[25], KEYS[26], KEYS[27]", "KEYS[27]"),
    _take("the books may be another program's", "ipairs({ totals, KEYS[23]", "ipairs({ KEYS[23]"),
    _take("what became free may be another program's", ", KEYS[26], KEYS[27] })", ", KEYS[26] })"),
    _take("what is held may be another program's", "redis.call('SCARD', leased)\n", ""),
    _take("the names may be another program's", "redis.call('SCARD', KEYS[34])\n", ""),
    # What waits
    _take("suspended workers go on", "redis.call('EXISTS', KEYS[15]) == 1", "false"),
    _take(
        "an event outlives its deadline by a microsecond",
        "parked, '-inf', digits(now), 'LIMIT', 0, 100",
        "parked, '-inf', '(' .. digits(now), 'LIMIT', 0, 100",
        _WAITS,
    ),
    _part(
        "leaving",
        "an expired event stays in its line",
        "redis.call('ZREM', at.line .. line, id)",
        "redis.call('PING')",
        _WAITS,
    ),
    _part("leaving", "an expired event stays on its timer", "  if header.timer then", "  if false then", _WAITS),
    _take("a pause lets all go as probes", "0 or math.min(due, 1)", "0 or due", _WAITS),
    _part(
        "pause", "a pause lets a probe go early", "kind and now < tonumber(probe)", "kind and now < probe - 1", _WAITS
    ),
    _part(
        "due",
        "the head of a line has no turn",
        "redis.call('HSET', posting, header.channel, id)",
        "redis.call('PING')",
        _WAITS,
    ),
    _part(
        "due",
        "a line goes on beside its post",
        "redis.call('ZADD', lines, 'inf', entry)",
        "redis.call('PING')",
        _WAITS,
    ),
    _part(
        "due",
        "the last in line goes first",
        "redis.call('ZRANGE', call.line .. entry, 0, 0, 'WITHSCORES')",
        "redis.call('ZRANGE', call.line .. entry, -1, -1, 'WITHSCORES')",
        _WAITS,
    ),
    _part("due", "more is handed out than asked for", "        most = most - 1\n", "", _WAITS),
    _part(
        "hand_out",
        "what came off its timer says that it is on it",
        "header.state, header.timer, header.entry = nil, nil, nil",
        "header.state, header.entry = nil, nil",
        _WAITS,
    ),
    # New events
    _take("low starves", "math.min(lows, low_share(looks)), math.min(lows, low_share(room))", "math.min(lows, 0), 0"),
    _part(
        "entering",
        "low has a share that depends on the batch",
        "math.floor((seq + room) / 16) - math.floor(seq / 16)",
        "math.floor(room / 16)",
    ),
    _take(
        "each lane fills the batch",
        "looks, room = looks - looked, room - looked + gone",
        "looks, room = looks - 0 * looked, room - 0 * gone",
    ),
    _part("entering", "an id that is held is taken again", "if present[i] or dead[i]", "if dead[i]"),
    _part("entering", "an id that is dead is taken again", "if present[i] or dead[i]", "if present[i]"),
    _part(
        "entering",
        "an id on two lanes is taken twice",
        "entered[id] = true\n      to_decide",
        "entered[i] = true\n      to_decide",
    ),
    _part(
        "entering",
        "an id is remembered for a microsecond too long",
        "tonumber(seen[i]) > now",
        "tonumber(seen[i]) >= now",
    ),
    _part("entering", "a replayed id is a duplicate of its first life", "not again and seen[i]", "seen[i]", _LETTERS),
    _part(
        "entering",
        "jobs stay when their events were taken",
        "redis.call('DEL', unpack(jobs))",
        "redis.call('EXISTS', unpack(jobs))",
    ),
    _part(
        "entering",
        "a job of another type stops the worker",
        "redis.pcall('HMGET', job, 'data'",
        "redis.call('HMGET', job, 'data'",
    ),
    _part("entering", "payloads have no bound", "string.sub(fields[1], 1, MAX_RAW)", "fields[1]"),
    _part("entering", "ids keep bytes that nobody can print", "'[^\\33-\\57\\59-\\126]'", "'[^\\1-\\255]'"),
    _part("entering", "of ids that are shortened two become one", "return shown == id and id or", "return shown or"),
    _part("entering", "a number of replays may begin with noughts", "'^[1-9]%d*$'", "'^%d+$'"),
    # When to come again
    _part(
        "again",
        "the end of a lease wakes workers within the grace",
        "math.max(first_score(leases), grace)",
        "first_score(leases)",
    ),
    _part("again", "nobody wakes for a deadline", "math.min(next_at, first_score(parked))", "next_at", _WAITS),
    _part(
        "again",
        "a pause wakes workers for what may not go",
        "math.max(waits_until, tonumber(redis.call('HGET', pause, 'probe')) or 0)",
        "waits_until",
        _WAITS,
    ),
    _part(
        "again",
        "who cannot post is woken for what waits",
        "if call.due > 0 and not stopped and waits_until",
        "if not stopped and waits_until",
        _WAITS,
    ),
    _part("again", "nobody wakes for what waits", "if call.due > 0 and not stopped and", "if false and", _WAITS),
    _take("what dead workers left is no more", "more, old_wait = true, true", "old_wait = true"),
)

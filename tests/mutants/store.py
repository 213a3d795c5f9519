"""Mistakes one could make in the other scripts of the store: pace, settle, renew, enqueue and what they include."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_TAKES: Final = "tests/integration/test_store_take.py"
_WAITS: Final = "tests/integration/test_store_waiting.py"
_SETTLES: Final = "tests/integration/test_store_settle.py"
_SENDS: Final = "tests/integration/test_store_intake.py"
_THREADS: Final = "tests/integration/test_store_threads.py"


def _pace(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"pace: {name}", "lua/pace.lua", old, new, tests or (_WAITS,))


def _settle(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"settle: {name}", "lua/settle.lua", old, new, tests or (_WAITS, _SETTLES))


def _renew(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"renew: {name}", "lua/renew.lua", old, new, (_TAKES,))


def _part(name: str, part: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"{part}: {name}", f"lua/include/{part}.lua", old, new, tests)


STORE: Final = (
    # Pace
    _pace("a turn does not count", "if busy and busy ~= event.id then", "if busy then"),
    _pace("two posts go to a channel at once", "if busy and busy ~= event.id then", "if false then"),
    _pace("a newcomer overtakes", "tonumber(head[2]) < seq", "tonumber(head[2]) > seq"),
    _pace(
        "a cool-down lasts a microsecond more",
        "if cooldown and cooldown > now then",
        "if cooldown and cooldown >= now then",
    ),
    _pace("a cool-down has no effect", "if cooldown and cooldown > now then", "if false then"),
    _pace("a pause has no effect", "  if why then\n", "  if false then\n"),
    _part(
        "a pause lasts a microsecond more", "pause", "if kind and now < tonumber", "if kind and now <= tonumber", _WAITS
    ),
    _pace("senders are never full", "        free = free - 1\n", ""),
    _pace(
        "a call said twice is another call",
        "if header.state == 'sending' and header.attempt == event.attempt then",
        "if false then",
    ),
    _pace("what waits holds nothing", "hold_slot(KEYS[scope], event.slot", "hold_slot(KEYS[scope], ''"),
    _pace("what waits keeps the turn", "  free_channel(posting, channel.name, event.id)\n", ""),
    _pace("what waits stays leased", "redis.call('SREM', leased, event.id)", "redis.call('SCARD', leased)"),
    _pace(
        "a post leaves no mark on its channel",
        "redis.call('HSET', posting, channel.name, event.id)",
        "redis.call('PING')",
    ),
    _pace("each probe is followed by another", "        let_try(pause, event.id, now)\n", ""),
    _pace("the bell rings for what is no earlier", "keys.timers) < before then", "keys.timers) <= before then"),
    _pace("the bell never rings", "keys.timers) < before then", "keys.timers) < 0 then"),
    # Settle
    _settle(
        "who lost its lease may settle",
        "settled[n] = redis.call('SREM', leased, event.id)",
        "settled[n] = math.max(redis.call('SREM', leased, event.id), redis.call('HEXISTS', events, event.id))",
        _TAKES,
    ),
    _settle("slots are not held", "event.slots == 'hold' and event.holds or {}", "{}"),
    _settle("slots are not given back", "event.slots == 'release' and event.scopes or {}", "{}"),
    _settle("nobody knows what is held", "event.slots == 'hold' or nil", "nil"),
    _settle("attempts are not counted", "header.attempt, header.unknown = event.attempt,", "header.unknown ="),
    _settle(
        "posts of unknown fate are not counted",
        "header.attempt, header.unknown = event.attempt, event.unknown",
        "header.attempt = event.attempt",
    ),
    _settle("every post is charged to the pace", "if event.replied and channel.max then", "if channel.max then"),
    _settle("no reply is charged to the pace", "if event.replied and channel.max then", "if false then"),
    _settle("a channel stays busy", "  free_channel(posting, channel.name, event.id)\n", ""),
    _settle("a line learns of no reply", "      set_line(channel, keys, now)\n", ""),
    _part("a shorter cool-down wins", "pause", "'GT', ", "", _WAITS),
    _part(
        "cool-downs that ended stay",
        "pause",
        "redis.call('ZREMRANGEBYSCORE', at.cooldowns",
        "redis.call('ZCOUNT', at.cooldowns",
        _WAITS,
    ),
    _part("a pause begins anew each time", "pause", "  if before ~= kind then\n", "  if true then\n", _WAITS),
    _part("the end of a pause wakes nobody", "pause", "  ring(at.wake)\n", "", _WAITS),
    _part("nothing ends a pause", "pause", "(kind == 'operator' and posted)", "false", _WAITS),
    _settle("the bell never rings", "keys.timers) < before then", "keys.timers) < 0 then"),
    _settle("the bell rings for what is no earlier", "keys.timers) < before then", "keys.timers) <= before then"),
    _part("memory only grows", "dropping", "'LIMIT', 0, #rows)", "'LIMIT', 0, 0)", _SETTLES),
    _part("memory has no lifetime", "dropping", "  keep_alive(at.seen, at.remember_us)\n", "", _WAITS),
    _settle("nothing is remembered", "    if event.remember then", "    if false then", _SENDS),
    _settle("lowered bounds are never reached", "now, 2 * buried)", "now, buried)"),
    _settle("dead letters have no bounds", "buried > 0 and trim_dead", "buried < 0 and trim_dead"),
    # Renew
    _renew("what is kept is given back", "if not kept[id] then", "if true then"),
    _renew("a post that was given back uses an attempt", "header.attempt - 1", "header.attempt"),
    _renew("what was given back may be dropped", "header.attempt - 1, true", "header.attempt - 1, nil"),
    _renew(
        "what was given back is being sent",
        "header.state, header.attempt, header.held = nil,",
        "header.state, header.attempt, header.held = 'sending',",
    ),
    _renew(
        "a stopped worker's lease goes on",
        "redis.call('ZADD', KEYS[2], digits(now), call.owner)",
        "redis.call('ZCARD', KEYS[2])",
    ),
    _renew("giving back nothing rings", "if returned > 0 then", "if true then"),
    _renew("giving back wakes nobody", "if returned > 0 then", "if false then"),
    # What they share
    _part(
        "a busy line wakes workers",
        "lines",
        "redis.call('ZADD', keys.lines, 'inf', channel.line_name)",
        "redis.call('ZADD', keys.lines, digits(now), channel.line_name)",
        _WAITS,
    ),
    _part(
        "a line is due in the past",
        "lines",
        "math.max(now, channel_free_at(channel, keys.cooldowns, now))",
        "channel_free_at(channel, keys.cooldowns, now)",
        _WAITS,
    ),
    _part(
        "a line does not know its cool-down",
        "lines",
        "tonumber(redis.call('ZSCORE', cooldowns, channel.name)) or 0",
        "0",
        _WAITS,
    ),
    _part("a line does not know its pace", "lines", "at = math.max(at, (scope_room_at(pace)))", "", _WAITS),
    _part(
        "a cool-down ends with the pace",
        "lines",
        "at = math.max(at, (scope_room_at(pace)))",
        "at = scope_room_at(pace)",
        _WAITS,
    ),
    _part("the bell has no end", "lines", "redis.call('LTRIM', wake, 0, 15)", "redis.call('LLEN', wake)", _TAKES),
    _part(
        "anybody frees a channel", "lines", "if redis.call('HGET', posting, channel) == id then", "if true then", _WAITS
    ),
    _part(
        "half a lease is an interruption", "lease", "now - last > lease_us / 2", "now - last >= lease_us / 2", _TAKES
    ),
    _part("no silence is an interruption", "lease", "now - last > lease_us / 2", "false", _TAKES),
    _part("a grace of one second", "lease", "GRACE_US = 2000000", "GRACE_US = 1000000", _TAKES),
    _part(
        "a lease ends too early",
        "lease",
        "redis.call('ZADD', leases, digits(now + lease_us), owner)",
        "redis.call('ZADD', leases, digits(now + lease_us - 1), owner)",
        _TAKES,
    ),
    _part(
        "one name too many",
        "books",
        "redis.call('SCARD', names) < MOST_NAMES",
        "redis.call('SCARD', names) <= MOST_NAMES",
        _SETTLES,
    ),
    _part("names of the limits file are counted as others", "books", "if configured or", "if", _SETTLES),
    _part("what is parked is counted twice", "books", "if outcome ~= 'parked' then", "if true then", _SETTLES),
    _part(
        "letters live a microsecond too long",
        "dead",
        "> now - bounds.max_age_us",
        ">= now - bounds.max_age_us",
        _SETTLES,
    ),
    _part(
        "a letter leaves its index",
        "dead",
        "redis.call('HDEL', dead_ids, id)",
        "redis.call('HLEN', dead_ids)",
        _SETTLES,
    ),
    Mutant(
        "enqueue: a forgotten id is remembered", "lua/enqueue.lua", "forgotten > now", "forgotten >= now", (_SENDS,)
    ),
    Mutant("enqueue: one event too many", "lua/enqueue.lua", "elseif room < 1 then", "elseif room < 0 then", (_SENDS,)),
    Mutant(
        "enqueue: dead ids are forgotten",
        "lua/enqueue.lua",
        "redis.call('HEXISTS', KEYS[7], id) == 1",
        "false",
        (_SENDS,),
    ),
    Mutant(
        "enqueue: anybody may use the queue",
        "lua/enqueue.lua",
        "if bound and bound ~= ARGV[2] then",
        "if false then",
        (_SENDS,),
    ),
    Mutant(
        "enqueue: an unbound queue is nobody's",
        "lua/enqueue.lua",
        "if bound and bound ~= ARGV[2] then",
        "if bound ~= ARGV[2] then",
        (_SENDS,),
    ),
    Mutant(
        "enqueue: the order in a call is turned round",
        "lua/enqueue.lua",
        "redis.call('RPUSH', KEYS[lane], unpack(pushed[lane]))",
        "redis.call('LPUSH', KEYS[lane], unpack(pushed[lane]))",
        (_SENDS,),
    ),
    Mutant(
        "enqueue: room is not used up",
        "lua/enqueue.lua",
        "room = room - 1",
        "room = room",
        (_SENDS,),
    ),
    Mutant(
        "enqueue: every id is looked for",
        "lua/enqueue.lua",
        "string.byte(row, 2) == 49 and is_present",
        "is_present",
        ("tests/integration/test_producer.py",),
    ),
    # Threads
    _part("a thread never ends", "threads", "ends <= at.now", "ends < 0", _THREADS),
    _part("each message begins it anew", "threads", "if root_of(at, name) then", "if false then", _THREADS),
    _part(
        "what is forgotten leaves its ts",
        "threads",
        "redis.call('HDEL', at.roots, unpack(old))",
        "redis.call('HLEN', at.roots)",
        _THREADS,
    ),
    _part("one more is kept", "threads", "at.threads) >= MOST_THREADS", "at.threads) > MOST_THREADS", _THREADS),
    _settle("what has no ts begins a thread", "if event.thread and event.ts then", "if event.thread then", _THREADS),
    _pace(
        "a thread is told only once",
        "        free = free - 1\n        results[n] = go(header)",
        "        free = free - 1\n        results[n] = '\"go\"'",
        _THREADS,
    ),
)

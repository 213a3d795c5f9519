"""Mistakes one could make in what the library adds to the gate: no ids, choices, versions, waiting, giving back."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_WALK: Final = "tests/property/test_gate_model.py"
_LINE: Final = "tests/property/test_line_model.py"
_CALLS: Final = "tests/integration/test_limiter.py"
_REFUSALS: Final = "tests/integration/test_limiter_refusals.py"
_TASKS: Final = "tests/integration/test_async_limiter_waiting.py"
_WAITING: Final = "tests/integration/test_limiter_waiting.py"


def _log(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"log: {name}", "lua/include/log.lua", old, new, tests or (_CALLS, _WALK))


def _choice(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"choice: {name}", "lua/include/decide.lua", old, new, tests or (_CALLS, _WALK))


def _version(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"version: {name}", "lua/gate.lua", old, new, (_CALLS,))


def _line(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"line: {name}", "lua/include/waiters.lua", old, new, tests or (_LINE,))


def _wait(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"wait: {name}", "lua/wait.lua", old, new, tests or (_LINE,))


def _release(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"release: {name}", "lua/release.lua", old, new, tests or (_LINE,))


LIMITER: Final = (
    # Instants without ids
    _log("an instant goes before the newest", "math.max(view.now, view.newest or 0)", "view.now"),
    _log("one instant too few is kept", "'LTRIM', view.key, 0, size - 1", "'LTRIM', view.key, 0, size - 2"),
    _log("history is never dropped", "    if length > size then", "    if false then"),
    _log("a log has no lifetime", "    keep_alive(view.key, longest, 2 * longest)\n", ""),
    _log("instants are read the wrong way round", "scores[count - j + 1]", "scores[j]"),
    _log("instants are read one off", "i - count, i - 1)", "i - count + 1, i)"),
    _log("usage counts what has left", "> view.now then\n        low", ">= view.now then\n        low"),
    _log("of a large batch only the first thousand are written", "1, view.adding, 1000 do", "1, 1, 1000 do", _CALLS),
    # Counts of aligned windows
    _log("a quota opens a window too late", "full and (current + 1) *", "full and (current + 2) *"),
    _log("a quota counts past windows", "counted.window >= current and counted.count", "counted.count"),
    _log("a quota admits before its last window", "if counted and counted.window > current then", "if false then"),
    _log("a quota that is full opens with its last window", "(full and 1 or 0)", "0"),
    _log("a batch forgets what it counted", "+ view.adding >= window[MAX]", ">= window[MAX]"),
    _log("a quota lets one too many pass", "+ view.adding >= window[MAX]", "+ view.adding > window[MAX]"),
    _log(
        "a quota counts each batch as one", "QUOTA.used(view, window) + view.adding)", "QUOTA.used(view, window) + 1)"
    ),
    _log("a quota has no lifetime", ", 'PX', math.ceil(largest(view, US) / 1000) + 1)", ")"),
    _log(
        "a quota lives for its first window",
        "math.ceil(largest(view, US) / 1000)",
        "math.ceil(view.windows[1][US] / 1000)",
    ),
    # The first of several that has room
    _choice("the soonest is charged, not the first", "(instant < soonest and soonest > now)", "instant < soonest"),
    _choice("the last is charged", "(instant < soonest and soonest > now)", "soonest > now"),
    _choice("a slot in another alternative stays", "release_slot(other.key, id)", "redis.call('ZCARD', other.key)"),
    _choice("a slot that went back is remembered", "          other.own[id] = nil\n", ""),
    _choice("the charged slot goes back", "if position ~= chosen[i] and other.own[id] then", "if other.own[id] then"),
    _choice("the request forgets its alternatives", "chosen = { unpack(request) }", "chosen = request"),
    _choice("what was read before a slot went back counts", "          reset(other)\n", ""),
    # Versions
    _version("the limits in force are stale", "in_force ~= call.version", "in_force == call.version"),
    _version("without one in force all are stale", "if in_force and in_force ~=", "if in_force ~="),
    _version("the first scope is the version", "KEYS[#call.scopes + 1]", "KEYS[1]"),
    # The line
    _line("who does not come keeps its place for five seconds", "GRACE = 1000000", "GRACE = 5000000"),
    _line("nobody is woken", "WORTH_A_RING = 1000", "WORTH_A_RING = 10000000000"),
    _line("who waits counts itself", "'(' .. digits(arrived))\n  while", "digits(arrived))\n  while"),
    _line("the dead are heard", "'^[^:]*'))[2] > 0", "'^[^:]*'))[2] >= 0", _WAITING),
    _line("who does not come stays", "'LIMIT', 0, 100)", "'LIMIT', 0, 0)"),
    _line(
        "a promise lasts a microsecond longer",
        "'-inf', digits(scope.now), 'LIMIT'",
        "'-inf', digits(scope.now - 1), 'LIMIT'",
    ),
    _line(
        "of many before only one window is counted",
        "local rounds = math.floor(before / window[MAX])",
        "local rounds = 0",
    ),
    _line("those before take no slots", "window[MAX] - before % window[MAX]", "window[MAX]"),
    _line("of two windows the first decides", "    if free > at then", "    if at == 0 then"),
    _line("a ring for what is no earlier", "+ WORTH_A_RING < promised", "- 3600000000 < promised"),
    _line("leaving takes no promise along", "  redis.call('ZREM', scope.promises, token)\n", ""),
    # Turns
    _wait("who comes at one microsecond shares a place", "last_arrival(scope) + 1", "last_arrival(scope)"),
    _wait(
        "who comes after a step back of the clock goes first",
        "arrived = math.max(arrived, last_arrival(scope) + 1)",
        "arrived = now",
    ),
    _wait("who only asks stands in line", "turn.step == 'join' and awaited(", "awaited(", _WAITING),
    _wait("who leaves stands in line", "turn.step == 'join' and", "turn.step ~= 'ask' and", _WAITING),
    _wait("who waits for a choice hears of one alternative alone", "      lines = alternatives\n", ""),
    _wait("who quits is admitted", "if turn.step == 'quit' then", "if false then"),
    _wait("a promise ends at its instant", "digits(at + GRACE)", "digits(at)"),
    _wait("a line has no lifetime", "      keep_alive(scope.waiters, at + GRACE - now)\n", ""),
    _wait("promises have no lifetime", "      keep_alive(scope.promises, at + GRACE - now)\n", ""),
    _wait("who was admitted stays in line", "    elseif waited then\n      leave_line(scope, turn.token)\n", ""),
    _wait("leaving wakes nobody", "    elseif waited then\n      ring_behind(scope, arrived, call.bells)\n", ""),
    _wait("nobody looks after who is before", "math.min(at, math.max(scope.predecessor or at, now))", "at"),
    _wait("an admission is not written", "for _, scope in ipairs(scopes) do\n  write_slots(scope)\nend\n", ""),
    _wait("a stranger's key is met too late", "  redis.call('ZCARD', KEYS[i])\n", "", _TASKS),
    # Giving back
    _release("wakes nobody", "    ring_behind(scope, 0, call.bells)\n", ""),
    _release(
        "gives back in the first scope alone", "in ipairs(scopes) do\n  if", "in ipairs({ scopes[1] }) do\n  if", _CALLS
    ),
    _release("a stranger's key is met too late", "  redis.call('ZCARD', key)\n", "", _REFUSALS),
    _release("always says that there was one", "return released\n", "return 1\n", _CALLS),
)

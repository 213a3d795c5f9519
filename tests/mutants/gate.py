"""Mistakes one could make in the gate: lua/gate.lua and what it includes."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_SLOTS: Final = "lua/include/slots.lua"
_GATE: Final = "lua/gate.lua"
_PRELUDE: Final = "lua/include/prelude.lua"
_CASES: Final = "tests/integration/test_gate.py"
_MODEL: Final = "tests/property/test_gate_model.py"
_BOTH: Final = (_CASES, _MODEL)


def _slots(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"gate: {name}", _SLOTS, old, new, tests or _BOTH)


def _gate(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"gate: {name}", _GATE, old, new, tests or _BOTH)


GATE: Final = (
    # When a slot leaves, and which count
    _slots("fixed windows roll", "return (math.floor(score / window.us) + 1) * window.us", "return score + window.us"),
    _slots("a slot leaves too late", "  return score + window.us\n", "  return score + window.us + 1\n"),
    _slots("a slot leaves too early", "  return score + window.us\n", "  return score + window.us - 1\n"),
    _slots("a minute is too short to hold", "window.us >= HOLDING_WINDOW", "window.us > HOLDING_WINDOW"),
    _slots("held slots skip fixed windows", "return window.fixed or window.us >=", "return window.us >="),
    _slots("held slots count nowhere", "return window.fixed or window.us >= HOLDING_WINDOW", "return false"),
    _slots(
        "a held slot counts at its deadline",
        "view.live = redis.call('ZCOUNT', view.key, '(' .. digits(HELD + view.now), '+inf')",
        "view.live = redis.call('ZCOUNT', view.key, digits(HELD + view.now), '+inf')",
    ),
    _slots(
        "lapsed slots are taken for charged ones",
        "view.lapsed = redis.call('ZCOUNT', view.key, digits(HELD), digits(HELD + view.now))",
        "view.lapsed = 0",
    ),
    _slots(
        "a clock stepped back goes unnoticed",
        "view.ahead = newest[2] ~= nil and tonumber(newest[2]) > view.now",
        "view.ahead = false",
    ),
    # Reading the N-th newest
    _slots(
        "a chunk is read one off", "return chunk.scores[chunk.from - i + 1]", "return chunk.scores[chunk.from - i + 2]"
    ),
    _slots("a short set is read from its wrong end", "local missing = count - #rows / 2", "local missing = 0"),
    _slots(
        "held slots are taken for charged ones",
        "-(held + i), -(held + i - count + 1), 'WITHSCORES'",
        "-i, -(i - count + 1), 'WITHSCORES'",
    ),
    _slots("a batch forgets one it has admitted", "if k <= adding then", "if k < adding then"),
    _slots("an id counts against itself in a tie", "own >= score then", "own > score then"),
    _slots("an id counts against itself", "if own and own < HELD and score and own >= score then", "if false then"),
    _slots("an id leaves out another's slot", "score and own >= score then", "score then"),
    # Held slots of those who ask
    _slots("a held slot counts against its id", "  if own and own > HELD + view.now then", "  if false then"),
    _slots(
        "who waits is behind itself",
        "- (redis.call('ZCARD', view.key) - view.live)",
        "- (redis.call('ZCARD', view.key) - view.live) + 1",
    ),
    _slots("who waits is behind nobody", "return redis.call('ZRANK', view.key, id) - ", "return 0 * "),
    _slots("the wrong deadline is read", "local rank = -(view.live + 1) + i", "local rank = -view.live + i"),
    # When there is room
    _slots("held slots take no room", "charged(view, window.max - held, own)", "charged(view, window.max, own)"),
    _slots("one too few has to leave", "held + counted - window.max + 1", "held + counted - window.max"),
    _slots(
        "the later of two leaves first",
        "leaves(next_charged, window) <= lapse(view, from_held + 1)",
        "leaves(next_charged, window) > lapse(view, from_held + 1)",
    ),
    _slots(
        "only charged slots have to leave",
        "instant = math.max(instant, leaves(charged(view, counted - (go - low) + 1, own), window))",
        "instant = leaves(charged(view, counted - (go - low) + 1, own), window)",
    ),
    _slots("of windows that free up together the last is named", "    if free > at then", "    if free >= at then"),
    _slots("a known id is answered from the cache", "if not own and view.cache.at then", "if view.cache.at then"),
    # Writing
    _slots("a lifetime is never renewed", "< math.ceil(span_us / 1000) then", "< 0 then", _CASES),
    _slots(
        "a lifetime is renewed each time", "if redis.call('PTTL', key) < math.ceil(span_us / 1000)", "if true", _CASES
    ),
    _slots(
        "a lifetime covers one window",
        "math.ceil((renew_us or span_us) / 1000) + 1",
        "math.ceil(span_us / 1000) + 1",
        _CASES,
    ),
    _slots("a slot moves back", "math.max(owned, view.now) or view.now", "view.now or view.now"),
    _slots(
        "lapsed slots stay for ever",
        "redis.call('ZREMRANGEBYSCORE', view.key, digits(HELD), digits(HELD + view.now))",
        "redis.call('ZCOUNT', view.key, digits(HELD), digits(HELD + view.now))",
    ),
    _slots("one slot too few is kept", "(view.size + 1) - view.live", "view.size - view.live"),
    _slots("held slots push out charged ones", "(view.size + 1) - view.live", "(view.size + 1)"),
    _slots("history is never dropped", "if surplus > 0 then", "if false then", _CASES),
    _slots("one call pays for the whole history", "math.min(surplus, 2 * view.adding + 16)", "surplus", _CASES),
    _slots(
        "of a large batch only the first thousand are written",
        "for first = 1, view.adding, 1000 do",
        "for first = 1, math.min(view.adding, 1000), 1000 do",
        _CASES,
    ),
    _slots("holding creates a slot", "'XX', 'CH', digits(HELD + deadline)", "'CH', digits(HELD + deadline)"),
    _slots("a held slot does not keep its key", "keep_alive(key, deadline - now)", "keep_alive(key, 1)", _CASES),
    _slots("a release is forgotten", "redis.call('ZREM', key, id)", "redis.call('EXISTS', key)"),
    # The decision
    _gate("a peek charges", "if not call.peek then", "if true then"),
    _gate("room at this instant is a denial", "    if free > at then", "    if free >= at then"),
    _gate(
        "only the first scope decides",
        "  for i = 2, #request do\n    local scope =",
        "  for i = 2, 2 do\n    local scope =",
    ),
    _gate(
        "only the first scope is charged", "for i = 2, #request do\n        charge(", "for i = 2, 2 do\n        charge("
    ),
    _gate(
        "a repeated id is looked up among what is not written", "if owned and scope.adding > 0 then", "if false then"
    ),
    _gate("a slot moved behind the gate's back", "if scope.own[id] or scope.ahead then", "if scope.ahead then"),
    _gate("a step back is forgotten within a batch", "if scope.own[id] or scope.ahead then", "if scope.own[id] then"),
    _gate("an id is forgotten within a batch", "  scope.own[id] = moved_to(scope, id)\n", ""),
    _gate("an admission leaves the cache", "  scope.cache = {}\n", ""),
    _gate("nothing is written at the end", "for _, scope in ipairs(scopes) do\n  write_slots(scope)\nend\n", ""),
    _gate("of many ids the first thousand are known", "tonumber(scores[i - first + 1])", "tonumber(scores[i])", _CASES),
    _gate("a denial tells the instant", "denier, window, at - now)", "denier, window, at)"),
    Mutant("gate: instants lose their last digits", _PRELUDE, "'%.0f', number", "'%.14g', number", _BOTH),
    Mutant(
        "gate: the server's clock counts seconds",
        _PRELUDE,
        "return time[1] * 1000000 + time[2]",
        "return time[1] * 1000000",
        (_CASES,),
    ),
    Mutant("gate: a given instant is ignored", _PRELUDE, "  if given then", "  if false then", _BOTH),
    Mutant(
        "gate: usage counts what has left",
        "lua/usage.lua",
        "or '(' .. digits(now - window.us)",
        "or digits(now - window.us)",
        _BOTH,
    ),
    Mutant(
        "gate: usage leaves out held slots",
        "lua/usage.lua",
        " + (counts_held(window) and scope.live or 0)",
        "",
        _BOTH,
    ),
)

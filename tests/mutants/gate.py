"""Mistakes one could make in the gate: lua/gate.lua and what it includes."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_SLOTS: Final = "lua/include/slots.lua"
_DECIDE: Final = "lua/include/decide.lua"
_BATCH: Final = "lua/include/batch.lua"
_CASES: Final = "tests/integration/test_gate.py"
_MODEL: Final = "tests/property/test_gate_model.py"
_BOTH: Final = (_CASES, _MODEL)


def _slots(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"gate: {name}", _SLOTS, old, new, tests or _BOTH)


def _prelude(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"gate: {name}", "lua/include/prelude.lua", old, new, tests or (_CASES,))


def _glance(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"gate at a glance: {name}", "lua/include/glance.lua", old, new, tests or _BOTH)


def _decide(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"gate: {name}", _DECIDE, old, new, tests or _BOTH)


def _gate(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"gate: {name}", _BATCH, old, new, tests or _BOTH)


GATE: Final = (
    # When a slot leaves, and which count
    _slots(
        "fixed windows roll", "return (math.floor(score / window[US]) + 1) * window[US]", "return score + window[US]"
    ),
    _slots("a slot leaves too late", "  return score + window[US]\n", "  return score + window[US] + 1\n"),
    _slots("a slot leaves too early", "  return score + window[US]\n", "  return score + window[US] - 1\n"),
    _slots("a minute is too short to hold", "window[US] >= HOLDING_WINDOW", "window[US] > HOLDING_WINDOW"),
    _slots("held slots skip fixed windows", "return window[KIND] == 'fixed' or window[US] >=", "return window[US] >="),
    _slots(
        "held slots count nowhere", "return window[KIND] == 'fixed' or window[US] >= HOLDING_WINDOW", "return false"
    ),
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
    _slots("a chunk is read one off", "view.from and view.from - i + 1", "view.from and view.from - i + 2"),
    _slots(
        "a short set is read from its wrong end",
        "local scores, missing = {}, count - #rows / 2",
        "local scores, missing = {}, 0",
    ),
    _slots(
        "held slots are taken for charged ones",
        "local above = view.live + view.lapsed - adding",
        "local above = -adding",
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
    _slots("held slots take no room", "charged(view, max - held, own)", "charged(view, max, own)"),
    _slots("one too few has to leave", "held + counted - max + 1", "held + counted - max"),
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
    _slots("a known id is answered from the cache", "if not own and view.at then", "if view.at then"),
    # Writing
    _prelude("a lifetime is never renewed", "< math.ceil(span_us / 1000) then", "< 0 then", _CASES),
    _prelude(
        "a lifetime is renewed each time", "if redis.call('PTTL', key) < math.ceil(span_us / 1000)", "if true", _CASES
    ),
    _prelude(
        "a lifetime covers one window",
        "math.ceil((renew_us or span_us) / 1000) + 1",
        "math.ceil(span_us / 1000) + 1",
        _CASES,
    ),
    _slots(
        "lapsed slots stay for ever",
        "redis.call('ZREMRANGEBYSCORE', view.key, digits(HELD), digits(HELD + view.now))",
        "redis.call('ZCOUNT', view.key, digits(HELD), digits(HELD + view.now))",
    ),
    _slots("one slot too few is kept", "local kept = largest(view, MAX) + 1", "local kept = largest(view, MAX)"),
    _slots("held slots push out charged ones", "surplus - view.lapsed - view.live", "surplus - view.lapsed"),
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
    _gate("a peek charges", "charged = {}, not call.peek, 0", "charged = {}, true, 0"),
    _decide("room at this instant is a denial", "    if soonest > at then", "    if soonest >= at then"),
    _decide(
        "only the first scope decides",
        "  for i = 2, #request do\n    local item, soonest",
        "  for i = 2, 2 do\n    local item, soonest",
    ),
    _decide(
        "only the first scope is charged",
        "for i = 2, #request do\n    charge_slot(",
        "for i = 2, 2 do\n    charge_slot(",
    ),
    _decide(
        "a repeated id is looked up among what is not written",
        "  if owned then\n    write_slots(scope)",
        "  if false then\n    write_slots(scope)",
    ),
    _slots("a step back is seen too late", "if view.ahead and view.adding > 0 then", "if false then"),
    _slots("what is added has room at a glance", "stored(view, max - view.adding)", "stored(view, max)"),
    _decide(
        "a slot moved behind the gate's back",
        "if owned or (scope.live and scope.ahead) then",
        "if scope.live and scope.ahead then",
    ),
    _decide(
        "a step back is forgotten within a batch", "if owned or (scope.live and scope.ahead) then", "if owned then"
    ),
    _decide("a slot moves back", "owned < HELD and math.max(owned, scope.now) or scope.now", "scope.now or scope.now"),
    _decide("a held slot stays held", "owned and owned < HELD and math.max", "owned and math.max"),
    _decide("an id is forgotten within a batch", "  if scope.store.ids then -- to now", "  if owned then -- to now"),
    _decide("an id is not known", "tonumber(redis.call('ZSCORE', scope.key, id) or nil)", "nil"),
    _decide("an admission leaves the cache", "  scope.at = nil\n", ""),
    _decide(
        "an id that is known is answered from the cache",
        "and not scope.own[id] and free == free_at",
        "and free == free_at",
    ),
    _decide(
        "of many ids the first thousand are known", "tonumber(scores[n - first + 1])", "tonumber(scores[n])", _CASES
    ),
    _gate("nothing is written at the end", "for i = 1, #scopes do\n  write_slots(scopes[i])\nend\n", ""),
    _gate(
        "two denials of one instant are the same",
        "if at ~= last_at or denier ~= last_denier or window ~= last_window then",
        "if at ~= last_at then",
    ),
    _gate("a denial tells the instant", "denier, window, at - now)", "denier, window, at)"),
    _prelude("instants lose their last digits", "'%.0f', number", "'%.14g', number", *_BOTH),
    _prelude(
        "the server's clock counts seconds", "return time[1] * 1000000 + time[2]", "return time[1] * 1000000", _CASES
    ),
    _prelude("a given instant is ignored", "  if given then", "  if false then", *_BOTH),
    # At a glance
    _glance(
        "a known id is a new one",
        "if not key or (not call.fresh and redis.call('ZSCORE', key, id)) then",
        "if not key then",
    ),
    _glance("held slots are charged ones", "or tonumber(newest) > now or", "or"),
    _glance("all windows roll", " or windows[n][3] then", " then"),
    _glance("of several that are full the last decides", "if full + us > at then", "if full + us > now then"),
    _glance("a peek charges", "or call.peek or call.drains", "or call.drains"),
    _glance("a batch is a lone request", "if call.ids or call.requests[2] or call.stores", "if call.stores"),
    _glance("all are sorted sets", "or call.stores or call.peek", "or call.peek"),
    _glance("what has left is full", "if full + us <= now or", "if"),
    _glance("a denial tells the instant", "denier, window, at - now)", "denier, window, at)"),
    _glance(
        "a lifetime is that of the last window", "longest = math.max(longest, limit[2])", "longest = limit[2]", _CASES
    ),
    _glance("a key has no lifetime", "    keep_alive(KEYS[request[i]], longest, 2 * longest)\n", "", _CASES),
    _glance(
        "only the first scope is charged",
        "  for i = 2, #request do\n    local longest = 0",
        "  for i = 2, 2 do\n    local longest = 0",
    ),
    # What is used
    _slots("usage counts what has left", "or '(' .. digits(view.now - window[US])", "or digits(view.now - window[US])"),
    _slots("usage leaves out held slots", " + (counts_held(window) and view.live or 0)", ""),
)

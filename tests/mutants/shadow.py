"""Mistakes one could make with limits that are counted and not enforced."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Mutant

_SHADOW: Final = "lua/include/shadow.lua"
_TESTS: Final = ("tests/integration/test_shadow_limits.py",)


def _mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(f"shadow limits: {name}", file, old, new, _TESTS)


SHADOW: Final = (
    _mutant("room comes too early", _SHADOW, "if at <= now then", "if at <= now + 1 then"),
    _mutant("nothing is charged", _SHADOW, "        charge_slot(scope, id)\n", ""),
    _mutant("who is over it is charged too", _SHADOW, "      else\n", "      else charge_slot(scope, id)\n"),
    _mutant(
        "nothing is counted",
        _SHADOW,
        "shadowed, call.shadow_names[tostring(position)][window], 1)",
        "shadowed, 'x', 1)",
    ),
    _mutant("nobody is told", _SHADOW, "found[#found + 1] = string", "local _ = string"),
    _mutant("each request has the shadows of the first", _SHADOW, "call.of and call.of[n] or n", "1"),
    _mutant(
        "refused ones are counted",
        "lua/include/batch.lua",
        "    if denier then\n      if at",
        "    if denier then\n      if call.admitted then call.admitted(n, request[1], scopes) end\n      if at",
    ),
    _mutant(
        "the note is not kept while it waits",
        "lua/pace.lua",
        "channel.max ~= nil, event.shadow",
        "channel.max ~= nil, nil",
    ),
    _mutant(
        "a retry counts again",
        "dispatcher/worker/admission.py",
        "() if leased.held or leased.attempt or leased.unknown else",
        "",
    ),
    _mutant(
        "it stays charged",
        "dispatcher/store/rows.py",
        "(*all_scopes(terms.scopes), *terms.shadows)",
        "all_scopes(terms.scopes)",
    ),
    _mutant(
        "the note is not on record",
        "dispatcher/store/decisions.py",
        "and subject.shadowed else {}",
        "and False else {}",
    ),
    _mutant(
        "it is a part of the scope that is enforced",
        "dispatcher/policy.py",
        "Scope(SHADOW_PREFIX + scope.name, scope.limits)",
        "scope",
    ),
)

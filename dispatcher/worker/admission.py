"""The budget as a worker asks for it: one script decides a batch and ends what is refused and dropped, in one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from dispatcher.connection import Client, Script
from dispatcher.dispatch import Admitting, Asking
from dispatcher.errors import StaleLimits
from dispatcher.event import is_remembered
from dispatcher.json_text import decode, encode
from dispatcher.keys import Keys
from dispatcher.limiter.calls import Call, Calls, openings_of, verdicts_of
from dispatcher.model import Admitted, Scope
from dispatcher.outcome import DEFAULT_BOUNDS, Bounds, Candidate
from dispatcher.policy import SHADOW_PREFIX, Policy, limit_reason


class Admission:
    """Decides for one owner, over the slots of its namespace; ``leased`` gives the key of what the owner holds.

    ``StaleLimits``: it follows another version of the limits than the one in force, and nothing was decided.
    Redis being away raises ``GateUnavailable``: whether a slot was charged, or an event dropped, is then unknown until
    the same is asked again, and what was not dropped is still leased.
    """

    def __init__(  # noqa: PLR0913 - collaborators first, figures by name
        self,
        client: Client,
        keys: Keys,
        leased: Callable[[], str],
        *,
        remember_us: int,
        bounds: Bounds = DEFAULT_BOUNDS,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._calls = Calls(keys.namespace)
        self._admit = Script(client, "admit")
        self._keys = keys
        self._leased = leased
        self._remember_us = remember_us
        self._version = ""
        self._has_shadows = True
        self._facts = self._facts_of(bounds)
        self._clock = clock

    def follow(self, version: str, policy: Policy) -> None:
        """From now on ask by this version of the limits."""
        self._version = version
        self._facts = f'{self._facts_of(policy.dead_letters)},"version":"{version}"'
        self._has_shadows = policy.has_shadows

    def _facts_of(self, bounds: Bounds) -> str:
        return f'"remember_us":{self._remember_us},"most_decisions":{bounds.decisions}'

    def admit(self, asking: Sequence[Asking], *, ahead: Sequence[Scope]) -> Admitting:
        """See ``dispatch.Gate.admit``."""
        if not asking:
            return Admitting([], [], frozenset())
        leased = [each.candidate.leased for each in asking]
        fresh = all(each.is_fresh for each in leased)
        requests = [(each.candidate.leased.slot, each.candidate.terms.scopes) for each in asking]
        shadows = [_shadows(each.candidate) for each in asking] if self._has_shadows else []
        call = self._calls.decide(requests, fresh=fresh, ahead=ahead, shadows=shadows)
        if not call.keys:
            return Admitting([Admitted()] * len(asking), [], frozenset())
        keys = self._keys
        limited, older, _, _ = keys.decisions
        names = [*call.keys, keys.events, self._leased(), keys.totals, keys.names, keys.seen, limited, older]
        names += [keys.limits_version, keys.shadowed]
        argument = call.argument(None if self._clock is None else self._clock())
        text = f"{argument[:-1]},{self._facts},{_drops(asking, call)}{_shadow_names(call) if any(shadows) else ''}}}"
        facts = decode(self._admit(names, [text]))
        if "stale" in facts:
            raise StaleLimits(self._version, facts["stale"])
        return Admitting(
            verdicts_of(facts, call, None),
            openings_of(facts, ahead),
            frozenset(n - 1 for n in facts["lost"]),
            _shadowed(facts["shadowed"], call),
        )


def _drops(asking: Sequence[Asking], call: Call) -> str:
    """What admit.lua has to know to drop what is refused."""
    kinds: dict[tuple[str, bool], int] = {}
    rows: list[list[Any]] = []
    jobs, kind_of = [], []
    for each in asking:
        leased = each.candidate.leased
        jobs.append(leased.id)
        if not each.drops:
            kind_of.append(0)
            continue
        category, remember = leased.event.category, is_remembered(leased.event, leased.id)
        kind = kinds.get((category, remember))
        if kind is None:
            kind = kinds[category, remember] = len(kinds) + 1
            rows.append([category, each.candidate.terms.configured, remember])
        kind_of.append(kind)
    told = [_told(scope) for scope in call.scopes]
    return encode({"jobs": jobs, "kind": kind_of, "kinds": rows, "told": told}).decode()[1:-1]


def _shadows(candidate: Candidate) -> tuple[Scope, ...]:
    """Where the event is counted if it is admitted; of one that was admitted before, it was."""
    leased = candidate.leased
    return () if leased.held or leased.attempt or leased.unknown else candidate.terms.shadows


def _shadow_names(call: Call) -> str:
    """The fields in which it is counted what shadow limits would have refused; the values of a label in one."""
    names = {
        str(position): [f"{scope.name.removeprefix(SHADOW_PREFIX).partition('=')[0]} {limit}" for limit in scope.limits]
        for position, scope in enumerate(call.scopes, 1)
        if scope.name.startswith(SHADOW_PREFIX)
    }
    return f',"shadow_names":{encode(names).decode()}'


def _shadowed(rows: Sequence[Sequence[int]], call: Call) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for place, position, window in rows:
        scope = call.scopes[position - 1]
        told = f"{scope.name.removeprefix(SHADOW_PREFIX)} {scope.limits[window - 1]}"
        found[place - 1] = (*found.get(place - 1, ()), told)
    return found


@lru_cache(maxsize=4096)
def _told(scope: Scope) -> list[str]:
    """What the decision record says of a refusal by each limit of the scope, up to the time until there is room."""
    reason = limit_reason(scope.name).value
    return [encode([reason, [scope.name, str(limit)]]).decode()[1:-2] + "," for limit in scope.limits]

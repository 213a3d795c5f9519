"""The budget as a worker asks for it: one script decides a batch and ends what is refused and dropped, in one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.connection import Client, Script
from dispatcher.errors import StaleLimits
from dispatcher.json_text import decode_answer, encode
from dispatcher.keys import Keys
from dispatcher.leased import Candidate
from dispatcher.limiter.calls import Call, Calls, openings_of, verdicts_of
from dispatcher.model import Admitted, Denied, Scope, Verdict
from dispatcher.outcome import DEFAULT_BOUNDS, Bounds
from dispatcher.policy import SHADOW_PREFIX, Policy
from dispatcher.ports import Admitting, Asking
from dispatcher.worker.door import Door
from dispatcher.worker.ends import Ends, read_joined


class Admission:
    """Decides for one owner, over the slots of its namespace; ``leased`` gives the key of what the owner holds.

    ``StaleLimits``: it follows another version of the limits than the one in force, and nothing was decided.
    Redis being away raises ``GateUnavailable``: whether a slot was charged, or an event dropped, is then unknown until
    the same is asked again, and what was not dropped is still leased. At the ``door`` it names the categories whose
    events it has dropped.
    """

    def __init__(  # noqa: PLR0913 - collaborators first, figures by name
        self,
        client: Client,
        keys: Keys,
        leased: Callable[[], str],
        *,
        remember_us: int,
        bounds: Bounds = DEFAULT_BOUNDS,
        door: Door | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._calls = Calls(keys.namespace)
        self._admit = Script(client, "admit")
        self._keys = keys
        self._leased = leased
        self._remember_us = remember_us
        self._door = door
        self._policy: Policy | None = None
        self._version = ""
        self._has_shadows = True
        self._facts = self._facts_of(bounds)
        self._clock = clock

    def follow(self, version: str, policy: Policy) -> None:
        """From now on ask by this version of the limits."""
        self._version = version
        self._facts = self._facts_of(policy.dead_letters) | {"version": version}
        self._has_shadows = policy.has_shadows
        self._policy = policy
        if self._door is not None:
            self._door.open()

    def _facts_of(self, bounds: Bounds) -> dict[str, Any]:
        return {"remember_us": self._remember_us, "most_decisions": bounds.decisions}

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
        names = [
            *call.keys, keys.events, self._leased(), keys.totals, keys.names, keys.seen, limited, older,
            keys.limits_version, keys.shadowed, keys.parked, keys.lines, keys.timers, keys.wake, keys.seq,
            keys.deciding, keys.freed, keys.tallies, keys.guarantees,
        ]  # fmt: skip
        ends = Ends(asking)
        names += [keys.tally(counting.id) for counting in ends.tallies]
        said = call.facts | self._facts | ends.facts(call, keys)
        if any(shadows):
            said["shadow_names"] = _shadow_names(call)
        if self._clock is not None:
            said["now"] = self._clock()
        facts = decode_answer(self._admit(names, [encode(said)]))
        if "stale" in facts:
            raise StaleLimits(self._version, facts["stale"])
        verdicts = verdicts_of(facts, call, None)
        self._close(asking, verdicts)
        return Admitting(
            verdicts,
            openings_of(facts, ahead),
            frozenset(n - 1 for n in facts["lost"]),
            _shadowed(facts["shadowed"], call),
            {n - 1: wait_us for n, wait_us in facts.get("lone", ())},
            [read_joined(name, why) for name, why in facts.get("joined", ())],
        )

    def _close(self, asking: Sequence[Asking], verdicts: Sequence[Verdict]) -> None:
        if self._door is None or self._policy is None:
            return
        named: set[str] = set()
        for each, verdict in zip(asking, verdicts, strict=True):
            if isinstance(verdict, Denied) and each.drops and each.counting is None:
                leased, terms = each.candidate
                category = leased.event.category
                if category not in named and not self._policy.rule(category).per_label:
                    self._door.close(category, terms.scopes, verdict, configured=terms.configured)
                named.add(category)


def _shadows(candidate: Candidate) -> tuple[Scope, ...]:
    """Where the event is counted if it is admitted; of one that was admitted before, it was."""
    leased = candidate.leased
    return () if leased.was_admitted else candidate.terms.shadows


def _shadow_names(call: Call) -> dict[str, list[str]]:
    """The fields in which it is counted what shadow limits would have refused; the values of a label in one."""
    return {
        str(position): [f"{scope.name.removeprefix(SHADOW_PREFIX).partition('=')[0]} {limit}" for limit in scope.limits]
        for position, scope in enumerate(call.scopes, 1)
        if scope.name.startswith(SHADOW_PREFIX)
    }


def _shadowed(rows: Sequence[Sequence[int]], call: Call) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for place, position, window in rows:
        scope = call.scopes[position - 1]
        told = f"{scope.name.removeprefix(SHADOW_PREFIX)} {scope.limits[window - 1]}"
        found[place - 1] = (*found.get(place - 1, ()), told)
    return found

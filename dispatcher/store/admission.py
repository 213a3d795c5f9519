"""The budget as a worker asks for it: one script decides a batch and ends what is refused and dropped, in one step.

What it learns from denials goes on to ``take``, as the pre-check: that one drops new events itself, as the gate would.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dispatcher.core.event import Event, is_remembered
from dispatcher.core.limits import (
    DEFAULT_BOUNDS,
    Admitted,
    Bounds,
    Demand,
    Denied,
    DeniedInPart,
    FirstOf,
    Kind,
    Limit,
    Scope,
    Verdict,
    is_once,
    is_repeat,
)
from dispatcher.core.policy import SHADOW_PREFIX, Policy
from dispatcher.core.ports import Admitting, Asking
from dispatcher.core.quiet import QuietHours
from dispatcher.core.recovery import scope_of_key
from dispatcher.core.states import Candidate, Prefiltered
from dispatcher.core.tally import Counting, Suppressed, Telling
from dispatcher.core.units import US
from dispatcher.errors import StaleLimits
from dispatcher.jsonio import decode, decode_answer, encode
from dispatcher.limiter.wire import Call, Calls, denied_of, openings_of, verdicts_of, windows_of
from dispatcher.server.connection import Client, Script
from dispatcher.server.keys import Keys
from dispatcher.store.intake import shown_of
from dispatcher.store.script_rows import about_of, once_beside_key, told_of
from dispatcher.store.tallies import collects_us, samples_of

MOST_CATEGORIES: Final = 1_024
"""Categories that are named at a time. Each adds some 140 bytes to each ``take``.

If there are more, a new one takes the place of one that had no event for ``IDLE_S``; that happens once in ``IDLE_S``.
Where events of a category come, the server needs some 20 us to ask its limits.
"""


IDLE_S: Final = 1.0
"""A category without an event for so long gives its place to another.

To exchange them in each call would cost more than it saves.
"""


@dataclass(frozen=True, slots=True)
class PrefilterCall:
    """What take.lua is told: ``text`` as include/intake.lua has it, and the ``scopes`` that it numbers from 1 on."""

    text: str
    scopes: Sequence[Scope]

    def read(self, rows: Sequence[Sequence[Any]], now_us: int) -> list[Prefiltered]:
        """What the answer of ``now_us`` says of those that were dropped."""
        return [
            Prefiltered(category, self._denied(scope, window, int(wait_us)), ids.split(" "), now_us)
            for category, scope, window, wait_us, ids in rows
            if ids
        ]

    def _denied(self, scope: int | str, window: int, wait_us: int) -> Denied:
        """The refusal by a window of a scope, or as a repeat: then it is the scope's name, and its window in us."""
        if isinstance(scope, str):
            return Denied(scope, Limit(1, window_us=window, kind=Kind.ONCE), wait_us)
        return denied_of((scope, window, wait_us), self.scopes)


@dataclass(slots=True)
class _Named:
    """Until when a category is named, and when an event of it came last."""

    until_s: float
    came_s: float


@dataclass(slots=True)
class _Refusal(_Named):
    """What a category's events ask for; nothing is expected to come of it meanwhile."""

    demands: tuple[Demand, ...]
    configured: bool


@dataclass(slots=True)
class _Repeats(_Named):
    """Of which window a category's repeats are dropped."""

    window_us: int
    configured: bool


_AnyNamed = TypeVar("_AnyNamed", bound=_Named)

REPEATING_S: Final = 60.0
"""How long the repeats of a category are looked for after the gate refused one."""


class Prefilter:
    """The categories of one worker whose new events a limit refuses, for now.

    It decides nothing: to name a category or not affects speed only. What it names must drop, with nobody
    told of it, and ask for the same as all others of its category. Not for several threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ahead_s = 0.0
        self._hours: QuietHours | None = None
        self._refusals: dict[str, _Refusal] = {}
        self._soonest_s = math.inf
        self._call: PrefilterCall | None = None
        self._repeats: dict[str, _Repeats] = {}
        self._replaced_s = -math.inf

    def add_repeats(self, category: str, window_us: int, *, configured: bool) -> None:
        """Name the category as one whose repeats are dropped, for a while or until quiet hours begin."""
        loud_s, now_s = self._loud_s(category), self._clock()
        known = self._repeats.get(category)
        if loud_s <= 0 or (known is None and not self._has_room(self._repeats, now_s)):
            return
        until_s = now_s + min(REPEATING_S, loud_s)
        if known is None or (known.window_us, known.configured) != (window_us, configured):
            self._call = None
        self._repeats.pop(category, None)
        self._repeats[category] = _Repeats(until_s, now_s, window_us, configured)
        self._soonest_s = min(self._soonest_s, until_s)

    def add(self, category: str, demands: tuple[Demand, ...], denied: Denied, *, configured: bool) -> None:
        """Name the category until it has room again, or quiet hours begin; not while some hold for it."""
        loud_s, now_s = self._loud_s(category), self._clock()
        known = self._refusals.get(category)
        if loud_s <= 0 or (known is None and not self._has_room(self._refusals, now_s)):
            return
        until_s = now_s + min(denied.retry_after_us / US, loud_s)
        if known is None or known.demands != demands:
            self._call = None
        self._refusals.pop(category, None)
        self._refusals[category] = _Refusal(until_s, now_s, demands, configured)
        self._soonest_s = min(self._soonest_s, until_s)

    def note(self, groups: Sequence[Prefiltered]) -> None:
        """Events of these categories have come, and were dropped."""
        now_s = self._clock()
        for category, *_ in groups:
            _note(self._refusals, category, now_s)
            _note(self._repeats, category, now_s)

    def _has_room(self, named: dict[str, _AnyNamed], now_s: float) -> bool:
        """Whether one more category can be named; one of which no event came for a while is named no more.

        They stand in the order of their last events.
        """
        if len(named) < MOST_CATEGORIES:
            return True
        category, oldest = next(iter(named.items()))
        if now_s - max(oldest.came_s, self._replaced_s) < IDLE_S:
            return False
        del named[category]
        self._replaced_s = now_s
        return True

    def follow(self, hours: QuietHours) -> None:
        """Name none: other limits are in force, with these quiet hours."""
        self._hours = hours
        self.clear()

    def clear(self) -> None:
        """Name none."""
        self._refusals, self._repeats, self._soonest_s, self._call = {}, {}, math.inf, None

    def tell_time(self, now_us: int) -> None:
        """What the time is by the server's clock."""
        self._ahead_s = now_us / US - self._clock()

    def _loud_s(self, category: str) -> float:
        """For how long no quiet hours hold for the category, by the server's clock."""
        if self._hours is None:
            return math.inf
        now_us = round((self._clock() + self._ahead_s) * US)
        until_us = self._hours.loud_until_us(category, now_us)
        return 0 if until_us is None else (until_us - now_us) / US

    def call(self) -> PrefilterCall | None:
        """What a ``take`` is told now."""
        now_s = self._clock()
        if now_s >= self._soonest_s:
            left = {name: each for name, each in self._refusals.items() if each.until_s > now_s}
            repeats = {name: each for name, each in self._repeats.items() if each.until_s > now_s}
            self.clear()
            self._refusals, self._repeats = left, repeats
            instants = [*(each.until_s for each in left.values()), *(each.until_s for each in repeats.values())]
            self._soonest_s = min(instants, default=math.inf)
        if self._call is None and (self._refusals or self._repeats):
            self._call = self._named()
        return self._call

    def _named(self) -> PrefilterCall:
        scopes: dict[str, tuple[int, Scope]] = {}

        def number(scope: Scope) -> int:
            return scopes.setdefault(scope.name, (len(scopes) + 1, scope))[0]

        def asked(demand: Demand) -> int | list[int]:
            return [number(each) for each in demand.scopes] if isinstance(demand, FirstOf) else number(demand)

        named: dict[str, list[Any]] = {
            name: [each.configured, [asked(demand) for demand in each.demands]] for name, each in self._refusals.items()
        }
        named |= {
            f"#{name}": [each.window_us, each.configured, str(Limit(1, window_us=each.window_us))]
            for name, each in self._repeats.items()
        }
        named |= {
            f"@{place}": [scope.name, windows_of(scope.limits), told_of(scope)] for place, scope in scopes.values()
        }
        text = "".join(f"\n{name}\t{encode(facts).decode()}" for name, facts in named.items())
        return PrefilterCall(text, [scope for _, scope in scopes.values()])


def _note(named: dict[str, _AnyNamed], category: str, now_s: float) -> None:
    if category in named:
        known = named.pop(category)
        known.came_s = now_s
        named[category] = known


class Admission:
    """Decides for one owner, by the slots of its namespace; ``leased`` gives the key of the events that it holds.

    Raises ``StaleLimits`` if it follows another version of the limits than the one in force; nothing was decided.
    Raises ``GateUnavailable`` if Redis is away. Then it is unknown whether a slot was charged or an event dropped,
    until the same request is asked again. Events that were not dropped are still leased.

    The ``prefilter`` learns the categories of dropped events.
    """

    def __init__(  # noqa: PLR0913 - collaborators first, figures by name
        self,
        client: Client,
        keys: Keys,
        leased: Callable[[], str],
        *,
        remember_us: int,
        bounds: Bounds = DEFAULT_BOUNDS,
        prefilter: Prefilter | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._calls = Calls(keys.namespace)
        self._admit = Script(client, "admit")
        self._keys = keys
        self._leased = leased
        self._remember_us = remember_us
        self._prefilter = prefilter
        self._policy: Policy | None = None
        self._version = ""
        self._has_shadows = True
        self._shown_chars = bounds.text
        self._facts = self._facts_of(bounds)
        self._clock = clock

    def follow(self, version: str, policy: Policy) -> None:
        """Follow this version of the limits."""
        self._version = version
        self._facts = self._facts_of(policy.dead_letters) | {"version": version}
        self._has_shadows = policy.has_shadows
        self._shown_chars = policy.dead_letters.text
        self._policy = policy
        if self._prefilter is not None:
            self._prefilter.follow(policy.hours)

    def _facts_of(self, bounds: Bounds) -> dict[str, Any]:
        return {"remember_us": self._remember_us, "most_decisions": bounds.decisions}

    def admit(self, asking: Sequence[Asking], *, ahead: Sequence[Scope]) -> Admitting:
        """See ``ports.Gate.admit``."""
        if not asking:
            return Admitting([], [], frozenset())
        leased = [each.candidate.leased for each in asking]
        fresh = all(each.is_fresh for each in leased)
        slots, demands = [each.slot for each in leased], [each.candidate.terms.scopes for each in asking]
        shadows = [_shadows(each.candidate) for each in asking] if self._has_shadows else []
        call = self._calls.decide(slots, demands, fresh=fresh, ahead=ahead, shadows=shadows)
        if not call.keys and not any(each.candidate.leased.may_be_edited for each in asking):
            return Admitting([Admitted()] * len(asking), [], frozenset())
        keys = self._keys
        limited, older, _, _ = keys.decisions
        log, _ = keys.decision_logs
        names = [
            *call.keys, keys.events, self._leased(), keys.totals, keys.names, keys.seen, limited, older, log,
            keys.limits_version, keys.shadowed, keys.parked, keys.lines, keys.timers, keys.wake, keys.seq,
            keys.deciding, keys.freed, keys.tallies, keys.scheduled,
        ]  # fmt: skip
        ends = Ends(asking, self._shown_chars)
        names += [keys.tally(counting.id) for counting in ends.tallies]
        said = call.facts | {"ids": call.ids, "of": call.of} | self._facts | ends.facts(call)
        if any(shadows):
            said["shadow_names"] = _shadow_names(call)
        if self._clock is not None:
            said["now"] = self._clock()
        facts = decode_answer(self._admit(names, [encode(said)]))
        if "stale" in facts:
            raise StaleLimits(self._version, facts["stale"])
        verdicts = verdicts_of(facts, call, None)
        self._note_refused(asking, verdicts)
        return Admitting(
            verdicts,
            openings_of(facts, ahead),
            frozenset(n - 1 for n in facts["lost"]),
            _shadowed(facts["shadowed"], call),
            {n - 1: wait_us for n, wait_us in facts.get("buffered", ())},
            [read_joined(*row) for row in facts.get("joined", ())],
            frozenset(n - 1 for n in facts.get("over", ())),
            frozenset(n - 1 for n in facts.get("uncounted", ())),
        )

    def _note_refused(self, asking: Sequence[Asking], verdicts: Sequence[Verdict]) -> None:
        if self._prefilter is None or self._policy is None:
            return
        named: set[str] = set()
        for each, verdict in zip(asking, verdicts, strict=True):
            if isinstance(verdict, Denied) and is_repeat(verdict):
                self._note_repeat(each, verdict)
            elif isinstance(verdict, Denied) and each.drops and each.counting is None:
                leased, terms = each.candidate
                category = leased.event.category
                rule = self._policy.rule(category)
                if category not in named and not rule.per_label and rule.once is None:
                    self._prefilter.add(category, terms.scopes, verdict, configured=terms.configured)
                named.add(category)

    def _note_repeat(self, asking: Asking, verdict: Denied) -> None:
        """Where repeats are dropped by their ``dedup_key``, the mark of a job says enough."""
        leased, terms = asking.candidate
        is_marked = verdict.scope == scope_of_key(leased.event)
        if self._prefilter is not None and is_marked and asking.repeats and asking.repeating is None:
            window_us = verdict.limit.window_us
            self._prefilter.add_repeats(leased.event.category, window_us, configured=terms.configured)


def _asks_once(candidate: Candidate) -> bool:
    """Whether the event asks whether it is a repeat; one that was admitted before then has to find its own slot."""
    first = next(iter(candidate.terms.scopes), None)
    return isinstance(first, Scope) and is_once(first)


def _shadows(candidate: Candidate) -> tuple[Scope, ...]:
    """The shadow scopes that count the event if it is admitted. One that was admitted before is counted already."""
    leased = candidate.leased
    return () if leased.was_admitted else candidate.terms.shadows


def _shadow_names(call: Call) -> dict[str, list[str]]:
    """The fields that count what shadow limits would have refused; all values of a label share one field."""
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


class Ends:
    """The events of a batch that a refusal ends, by kinds, and the ``tallies`` that the kinds name by position."""

    def __init__(self, asking: Sequence[Asking], shown_chars: int) -> None:
        self._asking = asking
        self._shown_chars = shown_chars
        self.tallies: list[Counting] = []
        self._positions: dict[str, int] = {}
        self._kinds: dict[tuple[object, ...], int] = {}
        self._rows: list[list[Any]] = []
        self._counted: list[list[tuple[int, Event]]] = []
        self._kind_of = [self._kind(place, each) if each.drops else 0 for place, each in enumerate(asking, 1)]
        self._other_of = [self._other(each) if each.repeats else 0 for each in asking]

    def facts(self, call: Call) -> dict[str, Any]:
        """What admit.lua is told beside the gate's call."""
        named: dict[str, tuple[str, Limit]] = {}
        for counting in self.tallies:
            named |= counting.named
        facts: dict[str, Any] = {
            "jobs": [each.candidate.leased.id for each in self._asking],
            "shown": [
                shown_of(each.candidate.leased.event, self._shown_chars) if each.drops or each.repeats else ""
                for each in self._asking
            ],
            "kind": self._kind_of,
            "kinds": self._rows,
            "told": [told_of(scope, named.get(scope.name)) for scope in call.scopes],
        }
        parts = {
            str(position): encode({"refused_by": f"{scope.name} {scope.limits[0]}"}).decode()
            for position, scope in enumerate(call.scopes, 1)
            if scope.name in named
        }
        if parts:
            facts["said"] = parts
        if any(self._other_of) or any(_asks_once(each.candidate) for each in self._asking):
            facts["others"] = self._other_of
        if about := self._about():
            facts["about"] = about
        owning = [place for place, each in enumerate(self._asking, 1) if each.candidate.leased.may_own_slots]
        if owning:
            facts["release"] = owning
        if not self.tallies:
            return facts
        counted = [(place, event) for events in self._counted for place, event in events]
        leased_at = [self._asking[place - 1].candidate.leased for place, _ in counted]
        return facts | {
            "tallies": [
                {"id": counting.id, "delay_us": collects_us(counting), "samples": samples_of(events)}
                | ({"is_of_repeats": True} if counting.telling is Telling.REPEAT else {})
                for counting, events in zip(self.tallies, self._counted, strict=True)
            ],
            "names": {
                str(place): leased.name
                for (place, _), leased in zip(counted, leased_at, strict=True)
                if leased.name != leased.id
            },
        }

    def _kind(self, place: int, asking: Asking) -> int:
        leased, terms = asking.candidate
        counting, remember = asking.counting, is_remembered(leased.event, leased.id)
        tally = 0 if counting is None else self._tally(counting)
        if tally:
            self._counted[tally - 1].append((place, leased.event))
        named = leased.counted or ""
        key = (leased.event.category, remember, terms.deadline_us if tally else 0, named)
        outcome = "digested" if counting is not None and counting.telling is Telling.DIGEST else "dropped"
        row = [leased.event.category, terms.configured, remember, outcome, tally, str(terms.deadline_us), named]
        return self._numbered(key, row)

    def _about(self) -> dict[str, list[Any]]:
        """What the events are about that say it, by their places."""
        told: dict[str, list[Any]] = {}
        for place, each in enumerate(self._asking, 1):
            leased, terms = each.candidate
            if not leased.may_be_edited:
                continue
            about = about_of(leased, terms, shown_of(leased.event, self._shown_chars))
            if about is not None:
                once = once_beside_key(leased, terms)
                told[str(place)] = [*about, leased.was_admitted, *([] if once is None else [once])]
        return told

    def _other(self, asking: Asking) -> int:
        leased, terms = asking.candidate
        if not _asks_once(asking.candidate) and leased.event.dedup_key is None:
            return 0
        category, named, remember = leased.event.category, leased.counted or "", is_remembered(leased.event, leased.id)
        tally = 0 if asking.repeating is None else self._tally(asking.repeating)
        row = [category, terms.configured, remember, "digested" if tally else "dropped", tally, "0", named]
        return self._numbered(("other", *row), row)

    def _numbered(self, key: tuple[object, ...], row: list[Any]) -> int:
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = len(self._kinds) + 1
            self._rows.append(row)
        return kind

    def _tally(self, counting: Counting) -> int:
        position = self._positions.get(counting.id)
        if position is None:
            self.tallies.append(counting)
            self._counted.append([])
            position = self._positions[counting.id] = len(self.tallies)
        return position


def read_joined(name: str, why: str, seen: str, refused: str) -> Suppressed:
    """A buffered single that admit.lua ended, since a second event of its category was suppressed."""
    _, category, _, (scope, limit, retry_after_us), said = decode(why)
    denied = Denied(scope, Limit.parse(limit), retry_after_us)
    if part := said.get("refused_by"):
        denied = DeniedInPart(scope, denied.limit, retry_after_us, refused_by=part)
    return Suppressed(name, category, denied, int(seen), int(refused))

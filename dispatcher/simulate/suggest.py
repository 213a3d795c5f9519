"""Finds limits that would have lost no more than some per cent of each category, with the reason for each number.

What a number has to be is reckoned here, by the rule that no window holds more than MAX. Whether the file keeps what it
promises is for the simulation to say: a number that does not is raised, and it is simulated again.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Any, Final

from dispatcher.core.limits import Limit
from dispatcher.core.policy import OnLimit, Policy
from dispatcher.core.units import US
from dispatcher.errors import DispatcherError
from dispatcher.settings.limits_file import read_limits
from dispatcher.settings.yaml_reader import read_yaml
from dispatcher.simulate.course import MOST_NAMES, Course
from dispatcher.simulate.figures import Fullest, past_of
from dispatcher.simulate.simulation import Simulated, Trace

GREATER: Final = 1.5
"""On the second half of the trace no category may lose more than so many times what is promised."""

ROUNDS: Final = 8
_RAISED_BY: Final = 0.1

Run = Callable[[Trace, Policy, str], Simulated]
"""Simulates a trace by some limits; the text says what for."""


class NoSuggestion(DispatcherError):
    """No limits were found that keep the promise; the message says which category loses how much."""


@dataclass(slots=True)
class _Number:
    """A number to be written, with the limit it is for and the reason; ``raised`` is what simulations added to it."""

    limit: Limit
    why: str
    raised: int = 0

    @property
    def reason(self) -> str:
        """All of the reason."""
        return f"{self.why}; {self.raised} more since a simulation lost too much" if self.raised else self.why


@dataclass(slots=True)
class _Plan:
    """The numbers of a limits file: of all events, and of each category."""

    together: list[_Number] = field(default_factory=list)
    categories: dict[str, list[_Number]] = field(default_factory=dict)
    guarantees: dict[str, tuple[int, str]] = field(default_factory=dict)


def suggest(trace: Trace, halves: Sequence[Trace], base: str, percent: float, simulate: Run) -> str:
    """The text of a limits file by which each category loses at most ``percent`` of its events.

    ``base`` is the content of the limits file from which all but the numbers is taken. ``halves`` are the two halves of
    the trace: each number is large enough for both. Raises ``NoSuggestion``.
    """
    document: dict[str, Any] = read_yaml(base).data or {}
    policy = read_limits(base, "the limits file").policy
    times = _times(trace, policy)
    plan = _planned(times, halves[1].first_us, policy, percent)
    bad: dict[str, float] = {}
    for n in range(1, ROUNDS + 1):
        if bad:
            _raise(plan, bad)
        text = _written(plan, document, percent, times, trace)
        proposed = read_limits(text, "the suggestion").policy
        course = simulate(trace, proposed, f"suggestion {n}").course
        later = simulate(halves[1], proposed, f"suggestion {n}, second half").course
        bad = {**_losers(later, proposed, GREATER * percent), **_losers(course, proposed, percent)}
        if not bad:
            return text
    said = ", ".join(f"{name} {lost:.2f} %" for name, lost in bad.items())
    raise NoSuggestion(f"after {ROUNDS} rounds more than {percent:g} % are still lost: {said}")


def _times(trace: Trace, policy: Policy) -> dict[str, array[int]]:
    """When the events of each category came, by the second; none of rejected ones, and none beyond so many names."""
    times: dict[str, array[int]] = {}
    for arrival in trace:
        if arrival.category in times:
            times[arrival.category].append(arrival.at_us - arrival.at_us % US)
        elif arrival.category and len(times) < MOST_NAMES and not _rejects(policy, arrival.category):
            times[arrival.category] = array("q", [arrival.at_us - arrival.at_us % US])
    return times


def _planned(times: Mapping[str, array[int]], middle_us: int, policy: Policy, percent: float) -> _Plan:
    """Numbers for the limits that there are: what is not limited stays so."""
    plan = _Plan()
    for name, came in sorted(times.items(), key=lambda item: -len(item[1])):
        limits = policy.rule(name).limits
        plan.categories[name] = [_number(came, middle_us, each, percent / len(limits), policy, name) for each in limits]
    passing = {name: _passing(came, [each.limit for each in plan.categories[name]]) for name, came in times.items()}
    for limit in policy.global_limits:
        plan.together.append(_number_together(passing, limit))
    _guarantee(plan, passing, {name: rule.guarantee for name, rule in policy.categories.items() if name not in passing})
    return plan


def _number(  # noqa: PLR0913, PLR0917 - the events, the limit it replaces, and what may be lost
    came: array[int], middle_us: int, limit: Limit, percent: float, policy: Policy, name: str
) -> _Number:
    """The smallest MAX by which neither half of the events loses more, and some room for other days.

    The room is the square root of MAX, as chance alone would have it, or by how much the halves differ.
    """
    split = next((n for n, at_us in enumerate(came) if at_us >= middle_us), len(came))
    needs = [_smallest(part, limit, percent) for part in (came[:split], came[split:]) if part]
    low = max(needs)
    spare = max(ceil(sqrt(low)), low - min(needs))
    told = int(policy.rule(name).telling is not None)  # one slot is kept for the message that tells
    found = replace_max(limit, low + spare + told)
    below = refused(came, replace_max(limit, low - 1)) if low > 1 else len(came)
    why = (
        f"{len(came):,} came, {fullest(came, limit):,} in the fullest {_window(limit)}; by {low} it would have lost "
        f"{refused(came, replace_max(limit, low)):,}, by {low - 1} {below:,}; {spare} more for other days"
        + (", 1 for the message that tells of the rest" if told else "")
    )
    return _Number(found, why)


def _smallest(came: Sequence[int], limit: Limit, percent: float) -> int:
    """The smallest MAX by which no more than ``percent`` of these are refused."""
    low, high = 1, fullest(came, limit)
    while low < high:
        middle = (low + high) // 2
        if 100 * refused(came, replace_max(limit, middle)) <= percent * len(came):
            high = middle
        else:
            low = middle + 1
    return low


def _number_together(passing: Mapping[str, Sequence[int]], limit: Limit) -> _Number:
    """What the fullest window holds of what the categories' own limits let pass, and some room."""
    most = max(1, fullest(sorted(at_us for each in passing.values() for at_us in each), limit))
    spare = ceil(sqrt(most))
    why = f"the fullest {_window(limit)} holds {most:,} of what passes the limits below; {spare} more for other days"
    return _Number(replace_max(limit, most + spare), why)


def _guarantee(plan: _Plan, passing: Mapping[str, Sequence[int]], absent: Mapping[str, int]) -> None:
    """What those need that need less than an equal share is kept for them; the global limit gets room for it.

    ``absent`` is what was guaranteed to categories that have no events: that stays.
    """
    if not plan.together:
        return
    longest = max(plan.together, key=lambda number: number.limit.window_us)
    window, kept = _window(longest.limit), sum(absent.values())
    for name, came in passing.items():
        need = fullest(came, longest.limit)
        if need * len(passing) < longest.limit.max:
            kept += need
            plan.guarantees[name] = (need, f"its fullest {window} holds {need:,}: kept for it while others storm")
    if kept:
        longest.limit = replace_max(longest.limit, longest.limit.max + kept)
        longest.why += f"; {kept} are guaranteed"


def _losers(course: Course, policy: Policy, percent: float) -> dict[str, float]:
    """The categories that lose more, and how many per cent."""
    lost = {name: 100 * _lost(course, policy, name) / each.offered for name, each in course.categories.items()}
    return {name: share for name, share in lost.items() if share > percent}


def _lost(course: Course, policy: Policy, name: str) -> int:
    """How many were not sent when they came: dropped, digested, dead; where they wait, deferred.

    Repeats, events whose failure is over, what quiet hours held, and rejected events are not counted.
    """
    counts = course.categories[name]
    if _rejects(policy, name):
        return 0
    if policy.rule(name).on_limit is OnLimit.DEFER:
        return counts.deferred + counts.dead - counts.expired
    return counts.dropped + counts.digested + counts.dead - course.by_no_limit[name]


def _rejects(policy: Policy, name: str) -> bool:
    """Whether events of the category are no concern of any limit."""
    return policy.reject_unknown and not policy.knows(name)


def _raise(plan: _Plan, names: Iterable[str]) -> None:
    """More for these, and for all together."""
    for number in (*plan.together, *(number for name in names for number in plan.categories.get(name, ()))):
        more = ceil(_RAISED_BY * number.limit.max)
        number.limit = replace_max(number.limit, number.limit.max + more)
        number.raised += more


def fullest(came: Sequence[int], limit: Limit) -> int:
    """How many of these instants, in order, the fullest window of the limit holds."""
    window = Fullest(limit)
    for at_us in came:
        window.add(at_us)
    return window.most


def refused(came: Sequence[int], limit: Limit) -> int:
    """How many events that come at these instants, in order, the limit refuses."""
    return len(came) - sum(1 for _ in _admitted(came, limit))


def _passing(came: Sequence[int], limits: Iterable[Limit]) -> Sequence[int]:
    """What passes all of these limits, taken one after another."""
    for limit in limits:
        came = array("q", _admitted(came, limit))
    return came


def _admitted(came: Sequence[int], limit: Limit) -> Iterator[int]:
    slots: deque[int] = deque()
    for at_us in came:
        past_us = past_of(at_us, limit)
        while slots and slots[0] <= past_us:
            slots.popleft()
        if len(slots) < limit.max:
            slots.append(at_us)
            yield at_us


def replace_max(limit: Limit, most: int) -> Limit:
    """The limit with another MAX, 1 at least."""
    return Limit(max(1, most), window_us=limit.window_us, kind=limit.kind)


def _window(limit: Limit) -> str:
    return str(limit).partition("/")[2]


def _span_of(trace: Trace) -> str:
    """``2.5 days``, ``3 hours``, ``30 seconds``."""
    span_s = (trace.last_us - trace.first_us) / US
    for name, unit_s in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if span_s >= 2 * unit_s:
            return f"{span_s / unit_s:.3g} {name}"
    return f"{span_s:.3g} seconds"


def _written(
    plan: _Plan, document: Mapping[str, Any], percent: float, times: Mapping[str, Sequence[int]], trace: Trace
) -> str:
    """The limits file: the numbers of the plan, with the reason behind each, and all else as it was."""
    count = sum(map(len, times.values()))
    span = _span_of(trace)
    lines = [
        f"# Suggested from {count:,} events of {span}: of each category at most {percent:g} % may be lost.",
        "# Nothing was put in force. What another day brings, nobody knows: look at each number.",
        "global:",
        *_section(plan.together, document.get("global", {}), 2),
    ]
    lines += [f"{key}: {_value(value)}" for key, value in document.items() if key not in {"global", "categories"}]
    lines.append("categories:")
    before: Mapping[str, Any] = document.get("categories", {})
    for name in (*plan.categories, *(each for each in before if each not in plan.categories)):
        said = dict(before.get(name, {}))
        if name in plan.categories:
            said.pop("guarantee", None)
        content = _section(plan.categories.get(name, ()), said, 4)
        if name in plan.guarantees:
            number, why = plan.guarantees[name]
            content.append(f"    guarantee: {number}  # {why}")
        lines += [f"  {_value(name)}:", *content] if content else [f"  {_value(name)}: {{}}"]
    return "\n".join(lines) + "\n"


def _section(numbers: Sequence[_Number], said: Mapping[str, Any], indent: int) -> list[str]:
    """What a section ``said``, with these numbers in its ``limits`` if there are any.

    Limits that are not enforced stay what they were.
    """
    blank = " " * indent
    others = [f"{blank}{key}: {_value(value)}" for key, value in said.items() if key != "limits" or not numbers]
    if not numbers:
        return others
    shadows = [each for each in said.get("limits", ()) if isinstance(each, dict) and each.get("shadow")]
    return [
        f"{blank}limits:",
        *(f"{blank}- {number.limit}  # {number.reason}" for number in numbers),
        *(f"{blank}- {_value(shadow)}" for shadow in shadows),
        *others,
    ]


def _value(value: object) -> str:
    """JSON, which is YAML too; what is not printable is written as YAML escapes it."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)

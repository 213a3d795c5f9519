"""Suggested limits keep what they promise: on the trace, on its second half, and on days they have not seen."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator

import pytest

import dispatcher.simulate.suggest
from dispatcher.core.limits import Limit
from dispatcher.core.policy import Policy
from dispatcher.core.units import US
from dispatcher.settings.limits_file import read_limits
from dispatcher.simulate.arrivals import PLAIN, Arrival, Arrivals, Details
from dispatcher.simulate.simulation import Simulated, Trace, simulate
from dispatcher.simulate.suggest import GREATER, NoSuggestion, fullest, refused, replace_max, suggest
from tests.support.servers import Database

BASE = '{"global": {"limits": ["50/30m"]}, "categories": {"loud": {"channel": "#loud"}}}'
NARROW = '{"defaults": {"per_label": {"host": ["1/4h"]}}}'
"""Limits by label stay what they are."""
ONE_HOST = Details(labels=(("host", "db1"),))
PERCENT = 2.0
QUIET = {"b": 12, "c": 6, "d": 3}
Came = list[tuple[float, str]]
Keep = Callable[..., Arrivals]


def steadily(rates: dict[str, float], hours: int, seed: int) -> Came:
    """Events of each category at so many in half an hour, at random."""
    chance, came = random.Random(seed), []
    for name, rate in rates.items():
        at_s = chance.expovariate(rate / 1_800)
        while at_s < hours * 3_600:
            came.append((at_s, name))
            at_s += chance.expovariate(rate / 1_800)
    return sorted(came)


def steady(seed: int, hours: int) -> Came:
    return steadily({"a": 20, **QUIET}, hours, seed)


def bursts(seed: int, hours: int) -> Came:
    """Each event is the first of a burst of ten or so within a minute."""
    chance = random.Random(seed)
    begun = steadily({name: rate / 8 for name, rate in {"a": 16, **QUIET}.items()}, hours, seed)
    return sorted((at_s + 60 * chance.random(), name) for at_s, name in begun for _ in range(chance.randint(6, 10)))


def one_loud(seed: int, hours: int) -> Came:
    return steadily({"loud": 90, **QUIET}, hours, seed)


@pytest.fixture
def keep() -> Iterator[Keep]:
    kept: list[Arrivals] = []

    def keeper(came: Came, details: Details = PLAIN) -> Arrivals:
        arrivals = Arrivals()
        kept.append(arrivals)
        for line, (at_s, category) in enumerate(came, 1):
            arrivals.add(Arrival(round((1_769_860_800 + at_s) * US), line, category, details))
        return arrivals

    yield keeper
    for each in kept:
        each.__exit__(None, None, None)


def lost(simulated: Simulated) -> dict[str, float]:
    counts = simulated.course.categories
    return {name: 100 * each.dropped / each.offered for name, each in counts.items()}


def promised(redis: Database, trace: Arrivals) -> str:
    """What is suggested for the trace, which keeps its promise there and in the second half."""
    runs = []

    def run(part: Trace, policy: Policy, _: str) -> Simulated:
        runs.append(simulate(redis, part, policy))
        return runs[-1]

    text = suggest(trace, trace.halves(), BASE, PERCENT, run)
    whole, second = runs[-2:]
    assert max(lost(whole).values()) <= PERCENT
    assert max(lost(second).values()) <= GREATER * PERCENT
    assert whole.course.total.offered == len(trace)
    assert second.course.total.offered == pytest.approx(len(trace) / 2, rel=0.01)
    assert read_limits(text, "suggested.yaml").policy.categories["loud"].channel == "#loud"
    numbers = [line for line in text.splitlines() if re.match(r" +(- \d+/30m|guarantee: \d+)", line)]
    assert len(numbers) >= len(whole.course.categories) + 1
    assert all("  # " in line for line in numbers)
    return text


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "hours"), [(bursts, 10), (one_loud, 4)])
def test_a_suggestion_keeps_its_promise(
    redis: Database, shape: Callable[[int, int], Came], hours: int, keep: Keep
) -> None:
    promised(redis, keep(shape(1, hours)))


@pytest.mark.slow
@pytest.mark.parametrize("hours", [3, 6])
def test_a_suggestion_keeps_its_promise_and_another_day_of_the_same_kind_loses_not_much_more(
    redis: Database, hours: int, keep: Keep
) -> None:
    trace, other = keep(steady(1, hours)), keep(steady(2, hours))
    policy = read_limits(promised(redis, trace), "suggested.yaml").policy
    assert max(lost(simulate(redis, other, policy)).values()) <= GREATER * PERCENT


def test_what_no_number_can_save_is_no_suggestion(redis: Database, keep: Keep) -> None:
    trace = keep([(n, "a") for n in range(12)], ONE_HOST)
    with pytest.raises(NoSuggestion, match=r"after 8 rounds more than 2 % are still lost: a 91\.67 %"):
        suggest(trace, trace.halves(), NARROW, PERCENT, lambda part, policy, _: simulate(redis, part, policy))


def test_no_number_is_raised_that_no_simulation_tries(
    redis: Database, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the largest number that a limit may be there is none to raise it to."""
    trace, made, tried = keep([(n, "a") for n in range(12)], ONE_HOST), [0], [0]

    def made_of(limit: Limit, most: int) -> Limit:
        made.append(most)
        return replace_max(limit, most)

    def run(part: Trace, policy: Policy, _: str) -> Simulated:
        tried.extend(limit.max for limit in (*policy.global_limits, *policy.rule("a").limits))
        return simulate(redis, part, policy)

    monkeypatch.setattr(dispatcher.simulate.suggest, "replace_max", made_of)
    with pytest.raises(NoSuggestion):
        suggest(trace, trace.halves(), NARROW, PERCENT, run)
    assert max(made) == max(tried)


@pytest.mark.parametrize(("then", "max_age"), [("drop", None), ("digest", None), ("defer", None), ("defer", 1_800.0)])
@pytest.mark.parametrize("on_limit", ["drop", "defer"])
def test_what_quiet_hours_hold_is_not_lost(
    redis: Database, keep: Keep, then: str, max_age: float | None, on_limit: str
) -> None:
    base = (
        f"defaults: {{on_limit: {on_limit}, max_age: 4h}}\n"
        f'quiet: {{noon: {{times: ["11:00-13:00"], zone: UTC, then: {then}}}}}'
    )
    trace = keep([(1_800 * half + n, "a") for half in (0, 1) for n in range(12)], Details(max_age=max_age))
    text = suggest(trace, trace.halves(), base, PERCENT, lambda part, policy, _: simulate(redis, part, policy))
    assert "simulation lost too much" not in text


def test_what_the_limits_reject_stays_rejected_and_guarantees_of_who_was_silent_stay(
    redis: Database, keep: Keep
) -> None:
    trace = keep([(3_600 * n, name) for n in range(12) for name in ("known", "knwon")])
    base = (
        '{"global": {"limits": ["10/30m"]}, "unknown_categories": "reject",'
        ' "categories": {"known": {}, "silent": {"guarantee": 5}}}'
    )
    text = suggest(trace, trace.halves(), base, PERCENT, lambda part, policy, _: simulate(redis, part, policy))
    policy = read_limits(text, "suggested.yaml").policy
    assert "# Suggested from 12 events " in text
    assert policy.reject_unknown
    assert {name: rule.guarantee for name, rule in policy.categories.items()} == {"known": 1, "silent": 5}
    assert policy.global_limits == (Limit.parse("8/30m"),)  # 1 of known, 1 more for other days, and the guarantees


def test_what_is_not_limited_stays_so(redis: Database, keep: Keep) -> None:
    trace = keep([(n, name) for n in range(12) for name in ("audit", "shadow", "own", "other")])
    shadow = [{"max": 1, "window": "1h", "shadow": True}]
    base = {
        "global": {"limits": []},
        "defaults": {"limits": []},
        "categories": {"audit": {"limits": []}, "shadow": {"limits": shadow}, "own": {"limits": ["1/1m"]}},
    }
    text = suggest(
        trace, trace.halves(), json.dumps(base), PERCENT, lambda part, policy, _: simulate(redis, part, policy)
    )
    policy = read_limits(text, "suggested.yaml").policy
    assert policy.global_limits == policy.defaults.limits == ()
    assert set(policy.categories) == {"audit", "shadow", "own", "other"}
    assert [name for name, rule in policy.categories.items() if rule.limits] == ["own"]
    assert policy.categories["shadow"].shadows == (Limit.parse("1/1h"),)


def test_what_cannot_be_printed_is_escaped_in_a_suggestion(redis: Database, keep: Keep) -> None:
    trace, template = keep([(0, "a")]), "\u2028{{ text }}\x85 größer"
    base = json.dumps({"categories": {"a": {"template": template}}})
    text = suggest(trace, trace.halves(), base, PERCENT, lambda part, policy, _: simulate(redis, part, policy))
    made = read_limits(text, "suggested.yaml").policy.categories["a"].style.template
    assert made is not None
    assert made.source == template
    assert "größer" in text


def test_repeats_and_what_a_recovery_made_needless_are_not_lost(redis: Database) -> None:
    with Arrivals() as trace:
        for line, (at_s, key, status) in enumerate(
            [(0, "disk", "firing"), (1, "disk", "firing"), (2, "disk", "firing"), (3, "cpu", "resolved")], 1
        ):
            details = Details(dedup_key=key, status=status)
            trace.add(Arrival((1_769_860_800 + at_s) * US, line, "alerts", details))
        base = '{"defaults": {"once": {"per": "4h"}, "resolved": "ignore"}}'
        text = suggest(trace, trace.halves(), base, PERCENT, lambda part, policy, _: simulate(redis, part, policy))
    assert "simulation lost too much" not in text


def test_the_numbers_are_those_of_windows() -> None:
    came = [0, 1 * US, 59 * US, 60 * US, 61 * US, 200 * US]
    rolling, fixed = Limit.parse("2/1m"), Limit.parse("2/1m fixed")
    assert (fullest(came, rolling), fullest(came, fixed)) == (3, 3)
    assert (refused(came, rolling), refused(came, fixed)) == (1, 1)
    assert (refused(came, Limit.parse("3/1m")), refused(came, Limit.parse("1/1m"))) == (0, 3)

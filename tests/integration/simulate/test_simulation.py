"""Simulations on a real server: what becomes of events is what the limits say, by whatever way it is reckoned."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import sqrt
from statistics import mean, stdev

import pytest

from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from dispatcher.core.units import US
from dispatcher.settings.limits_file import read_limits
from dispatcher.simulate.arrivals import PLAIN, Arrival, Arrivals, Details
from dispatcher.simulate.fleet import Clock
from dispatcher.simulate.lifetimes import Lifetimes, shortest_us
from dispatcher.simulate.simulation import Simulated, simulate
from tests.support.servers import Database

START_S = 1_769_860_800


@contextmanager
def trace(came: Iterable[tuple[float, str]], details: Details = PLAIN) -> Iterator[Arrivals]:
    with Arrivals() as arrivals:
        for line, (at_s, category) in enumerate(came, 1):
            arrivals.add(Arrival(round((START_S + at_s) * US), line, category, details))
        yield arrivals


def policy(text: str) -> Policy:
    return read_limits(text, "limits.yaml").policy


def run(redis: Database, came: Iterable[tuple[float, str]], limits: str) -> Simulated:
    with trace(came) as arrivals:
        return simulate(redis, arrivals, policy(limits))


MIXED = """\
global: {limits: [9/20s, 60/10m]}
channels: {default: {pace: 3/2s}}
defaults: {limits: [6/1m, 10/4m]}
categories:
  kept: {limits: [8/3m], guarantee: 5}
  quota: {limits: [12/5m fixed], channel: "#quota"}
  told: {limits: [5/2m], notice: true, digest_delay: 20s}
  digests: {limits: [4/2m], on_limit: digest, digest_delay: 20s}
  defers: {limits: [5/1m], on_limit: defer, max_age: 2m, max_parked: 20}
  letters: {limits: [5/2m], on_limit: dead-letter}
  free: {limits: []}
  hosts: {limits: [20/2m], per_label: {host: [2/1m]}}
quiet:
  night: {times: ["12:05-12:07"], zone: UTC, then: drop, categories: [one, kept]}
"""


@pytest.mark.parametrize(
    ("seed", "events"), [(0, 120), *(pytest.param(seed, 500, marks=pytest.mark.slow) for seed in (0, 1, 2))]
)
def test_taking_refused_events_together_changes_no_outcome_and_no_reason(
    redis: Database, seed: int, events: int
) -> None:
    chance = random.Random(seed)
    names = ["kept", "quota", "told", "digests", "defers", "letters", "free", "hosts", "one", "two", "three"]
    came: list[tuple[float, str]] = []
    at_s = 0.0
    while len(came) < events:
        at_s += chance.expovariate(chance.choice((0.1, 1, 8)))
        came.append((at_s, chance.choices(names, [3, 3, 1, 1, 1, 1, 1, 2, 9, 5, 5])[0]))
    ends: list[list[tuple[int, str, str]]] = [[], []]
    with Arrivals() as arrivals:
        for line, (at_s, category) in enumerate(came, 1):
            priority, max_age = (
                chance.choice(["high", "normal", "normal", "low"]),
                chance.choice([None, None, 5.0, 90.0]),
            )
            details = Details(priority, labels=(("host", "db1"),), max_age=max_age)
            arrivals.add(Arrival(round((START_S + at_s) * US), line, category, details))
        for told, merges in zip(ends, (True, False), strict=True):
            simulated = simulate(redis, arrivals, policy(MIXED), ended=lambda *end: told.append(end), merges=merges)  # noqa: B023 - called at once
            assert simulated.course.is_over
    assert len({outcome for _, outcome, _ in ends[0]}) >= 4
    assert sorted(ends[0]) == sorted(ends[1])
    assert [line for line, _, _ in sorted(ends[0])] == list(range(1, events + 1))


def erlang_b(servers: int, load: float) -> float:
    """The share that is blocked where each holds a server for a fixed time: A. K. Erlang's loss formula."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


@pytest.mark.slow
@pytest.mark.parametrize("windows", [5, 14])
def test_the_share_of_random_arrivals_that_a_limit_drops_is_that_of_erlangs_formula(
    redis: Database, windows: int
) -> None:
    """A rolling limit is a loss system: each of MAX slots is held for WINDOW, whatever it is used for."""
    limit, load, batches = Limit.parse("5/30m"), 6.0, 30
    chance, at_s = random.Random(20), 0.0
    came: list[tuple[float, str]] = []
    window_s = limit.window_us / US
    while at_s < (batches * windows + 1) * window_s:
        came.append((at_s, "errors"))
        at_s += chance.expovariate(load / window_s)
    rule = CategoryRule((limit,), "#errors", OnLimit.DROP, 3_600 * US)
    ends: dict[int, str] = {}
    with trace(came) as arrivals:
        simulate(redis, arrivals, Policy((), rule, {}, None), ended=lambda line, end, _: ends.update({line: end}))
    offered, dropped = Counter[int](), Counter[int]()
    for line, (at_s, _) in enumerate(came, 1):
        if at_s >= window_s:  # the system begins empty
            batch = int((at_s / window_s - 1) / windows)
            offered[batch] += 1
            dropped[batch] += ends[line] == "dropped"
    shares = [dropped[each] / offered[each] for each in offered]
    within = 2.045 * stdev(shares) / sqrt(len(shares))  # Student's t for 95 % and 29 degrees of freedom
    assert within < 0.04
    assert abs(mean(shares) - erlang_b(5, load)) < within


def test_events_of_one_second_are_decided_in_their_order_at_its_beginning(redis: Database) -> None:
    ends: list[tuple[int, str, str]] = []
    with trace([(0.9, "b"), (0.1, "a"), (0.5, "a"), (59.9, "a"), (60.0, "a")]) as arrivals:
        simulate(redis, arrivals, policy("defaults: {limits: [1/1m]}"), ended=lambda *end: ends.append(end))
    assert sorted(ends) == [
        (1, "sent", "ok"),
        (2, "sent", "ok"),
        (3, "dropped", "limit:category"),
        (4, "dropped", "limit:category"),
        (5, "sent", "ok"),
    ]


def test_deferred_events_are_sent_when_there_is_room_and_what_is_left_at_the_end_waits(redis: Database) -> None:
    course = run(
        redis,
        [(n, "late") for n in range(5)] + [(130, "other")],
        "categories: {late: {limits: [2/1m], on_limit: defer}}",
    ).course
    late = course.categories["late"]
    assert (late.offered, late.sent, late.deferred, late.waiting) == (5, 5, 3, 0)
    assert (course.delays.percentile_s(50), course.delays.most_s) == (58, 116)
    late = run(
        redis, [(n, "late") for n in range(5)], "categories: {late: {limits: [2/1m], on_limit: defer}}"
    ).course.total
    assert (late.sent, late.deferred, late.waiting) == (2, 3, 3)


def test_what_waits_too_long_expires(redis: Database) -> None:
    limits = "categories: {late: {limits: [1/10m], on_limit: defer, max_age: 1m}}"
    course = run(redis, [(0, "late"), (1, "late"), (100, "other")], limits).course
    late = course.categories["late"]
    assert (late.sent, late.deferred, late.dead, late.expired) == (1, 1, 1, 1)


def test_what_finds_no_place_among_those_that_wait_overflows(redis: Database) -> None:
    limits = "categories: {late: {limits: [1/10m], on_limit: defer, max_parked: 5}}"
    ends: list[tuple[str, str]] = []
    with trace([(0, "late")] * 20) as arrivals:
        course = simulate(redis, arrivals, policy(limits), ended=lambda _, *end: ends.append(end)).course
    assert Counter(ends) == {("sent", "ok"): 1, ("dead", "overflow"): 14, ("waiting", "limit:category"): 5}
    assert course.reasons == {("dead", "overflow"): 14}


QUIET_HOUR = 'quiet: {noon: {times: ["11:00-13:00"], zone: UTC, then: defer}}\ndefaults: {max_age: 4h, '


@pytest.mark.parametrize("on_limit", ["drop", "defer"])
def test_who_waits_for_quiet_hours_waits_for_no_channel_and_is_not_deferred(redis: Database, on_limit: str) -> None:
    limits = QUIET_HOUR + f"limits: [2/1m], on_limit: {on_limit}}}"
    course = run(redis, [(0, "a"), (1, "a"), (3_601, "other")], limits).course
    assert (course.total.sent, course.total.deferred, course.delays.most_s) == (3, 0, 0)
    assert course.channels["#notifications"].delays.most_s == 0


@pytest.mark.parametrize("on_limit", ["drop", "defer"])
def test_who_finds_no_room_after_quiet_hours_is_deferred(redis: Database, on_limit: str) -> None:
    limits = QUIET_HOUR + f"limits: [1/1m], on_limit: {on_limit}}}"
    course = run(redis, [(0, "a"), (0, "a"), (4_000, "other")], limits).course
    assert (course.total.sent, course.total.deferred, course.delays.most_s) == (3, 1, 3_660)


def test_a_single_event_that_waits_for_others_waits_for_no_channel(redis: Database) -> None:
    limits = "categories: {told: {limits: [2/2m], on_limit: digest, digest_delay: 20s}}"
    course = run(redis, [(0, "told"), (1, "told"), (300, "other")], limits).course
    assert (course.total.sent, course.total.deferred) == (3, 0)
    assert course.channels["#notifications"].delays.most_s == 0


def test_admitted_events_are_posted_at_the_pace_of_their_channel(redis: Database) -> None:
    limits = 'channels: {"#slow": {pace: 1/10s}}\ndefaults: {limits: [], channel: "#slow"}\nglobal: {limits: []}'
    course = run(redis, [(0, "a")] * 4, limits).course
    slow = course.channels["#slow"]
    assert (course.total.sent, slow.posts, slow.delays.most_s) == (4, 4, 30)
    assert slow.fullest is not None
    assert slow.fullest.most == 1


def test_slack_tells_posts_to_wait_that_come_too_fast(redis: Database) -> None:
    limits = "channels: {default: {pace: none}}\ndefaults: {limits: []}\nglobal: {limits: []}"
    simulated = run(redis, [(0, "a")] * 40, limits)
    assert simulated.course.total.sent == 40
    assert simulated.slack.refused.total() > 0
    assert simulated.course.channels["#notifications"].delays.most_s >= 14


def test_a_repeated_id_is_a_duplicate(redis: Database) -> None:
    with trace([(0, "a"), (5, "a"), (90_000, "a")], Details(id="one")) as arrivals:
        total = simulate(redis, arrivals, policy("{}")).course.total
    assert (total.offered, total.sent, total.duplicate) == (3, 2, 1)


BY_TEXT = "global: {limits: []}\ndefaults: {limits: [], once: {by: text, per: 4h}%s}"


@pytest.mark.parametrize("on_limit", ["", ", on_limit: defer", ", on_limit: digest"])
def test_repeats_by_text_are_those_whose_text_is_the_same(redis: Database, on_limit: str) -> None:
    texts = ["texta", "textb", "texta", "", "", None, None]
    with Arrivals() as arrivals:
        for line, text in enumerate(texts, 1):
            arrivals.add(Arrival((START_S + line) * US, line, "logs", Details(text=text)))
        ends: dict[int, str] = {}
        simulated = simulate(
            redis, arrivals, policy(BY_TEXT % on_limit), ended=lambda line, _, reason: ends.update({line: reason})
        )
    assert ends == {1: "ok", 2: "ok", 3: "repeat", 4: "ok", 5: "ok", 6: "ok", 7: "ok"}
    assert simulated.untold == {"logs": 2}


def test_a_trace_that_counts_from_zero_is_as_any_other(redis: Database) -> None:
    with Arrivals() as arrivals:
        for line, at_s in enumerate((0, 1, 61), 1):
            arrivals.add(Arrival(at_s * US, line, "a"))
        simulated = simulate(redis, arrivals, policy("defaults: {limits: [1/1m]}"))
    assert simulated.course.total.sent == 2
    fullest = simulated.course.windows["category:a", "1/1m"]
    assert (fullest.most, fullest.at_us - simulated.shift_us) == (1, 0)


def test_what_is_counted_adds_up_in_each_bar(redis: Database) -> None:
    came = [(n * 7.0, f"c{n % 3}") for n in range(300)]
    course = run(redis, came, "defaults: {limits: [3/5m], on_limit: defer}").course
    for name, counts in course.categories.items():
        series = course.series[name]
        assert (sum(series.offered), sum(series.sent)) == (counts.offered, counts.sent)
        assert series.held[-1] == counts.waiting > 0


def test_slots_outlive_their_lifetime_while_made_up_time_is_slower_than_real_time(redis: Database) -> None:
    real_s, made_up = [0.0], Clock()
    lifetimes = Lifetimes(redis, "scope:", 10 * US, made_up, lambda: real_s[0])
    redis.set("scope:a", "1", px=60_000)
    redis.set("other", "1", px=60_000)
    for after_s, made_up_s, lives in ((4.0, 0, True), (5.0, 6, True), (10.0, 1, False)):
        real_s[0], made_up.now_us = after_s, made_up.now_us + made_up_s * US
        lifetimes.look()
        assert (redis.ttl("scope:a") > 0, redis.ttl("other") > 0) == (lives, True)


@pytest.mark.parametrize(
    "limits",
    [
        "global: {limits: [5/1s, 100/30m]}",
        "global: {limits: [{max: 5, window: 1s, shadow: true}]}",
        "categories: {errors: {limits: [5/1s]}}",
        "categories: {errors: {limits: [{max: 5, window: 1s, shadow: true}]}}",
        "categories: {errors: {per_label: {host: [5/1s]}}}",
        "categories: {errors: {per_label: {host: [{max: 5, window: 1s, shadow: true}]}}}",
        "categories: {errors: {once: {per: 1s}}}",
        "channels: {default: {pace: 5/1s}}",
    ],
)
def test_the_shortest_window_is_that_of_any_limit_shadow_limit_repeat_or_pace(limits: str) -> None:
    assert shortest_us(policy(limits)) == US

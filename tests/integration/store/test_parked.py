"""Parked events: found in every place where one can wait, and cancelled in one step that leaves nothing behind."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dispatcher.core.limits import Reason
from dispatcher.core.policy import OnLimit
from dispatcher.core.posts import Ambiguous, PostResult, RateLimitedBySlack, Receipt, Retryable
from dispatcher.core.states import GRACE_US, Dropped, ScanResult, Unreadable
from dispatcher.core.units import US, Lane
from dispatcher.store.dead_letters import Filter
from dispatcher.store.parked_events import PAGE, Cancelled, ParkedEvent, ParkedFilter, Place
from dispatcher.web import searching
from dispatcher.web.searching import search_on
from tests.support.deferral import category_line, opens_at, send
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, HOUR_MS, REMEMBER_US, UNPACED, Stage, policy_of

WINDOW_S: Final = 1_800
GUARANTEED: Final = f"""
global: {{limits: [1000/30m]}}
channels: {{"{UNPACED}": {{pace: none}}, "#slow": {{pace: 1/1h}}}}
categories:
  errors: {{guarantee: 5}}
  audit: {{limits: []}}
  reports: {{limits: [], per_label: {{host: [1/1h]}}, on_limit: defer}}
"""
RESULTS: Final[dict[str, PostResult]] = {
    "go": Receipt("#a", "1.1"),
    "fail": Retryable("http_502", "bad gateway"),
    "429": RateLimitedBySlack(5 * US, "ratelimited"),
}


def listed(stage: Stage, wanted: ParkedFilter | None = None) -> list[str]:
    return [each.id for each in stage.parked_events.find(wanted or ParkedFilter())]


def cancel(stage: Stage, *ids: str) -> list[Cancelled]:
    """Cancel those that are parked now, as an operator would; everything fits afterwards."""
    return cancel_found(stage, stage.parked_events.by_ids(ids))


def cancel_found(stage: Stage, found: list[ParkedEvent]) -> list[Cancelled]:
    with stage.watching_the_bell():
        return [result for result, _ in stage.parked_events.cancel(found, "ops@here")]


@pytest.fixture
def deferring(redis: Database) -> Stage:
    """One event of a category in half an hour; the others wait for room."""
    return Stage(redis, policy_of("", "1/30m", on_limit=OnLimit.DEFER))


@pytest.fixture
def full(redis: Database) -> Stage:
    """``a`` was posted; ``b`` is tried again later, ``c`` waits for its channel; ``d`` and ``e`` are deferred."""
    stage = Stage(redis, policy_of("3/30m", "", pace="1/10s", on_limit=OnLimit.DEFER))
    ann = stage.worker("ann")
    stage.send("a")
    ann.run()
    stage.clock.forward(10)
    stage.send("b", channel=UNPACED)
    stage.send("c", channel="#ops")
    stage.redis.zadd(stage.keys.cooldowns, {"#ops": stage.clock.now_us + 600 * US})
    stage.redis.pexpire(stage.keys.cooldowns, HOUR_MS)
    (b,) = ann.go()
    ann.answer(b, Retryable("http_502", "bad gateway"))
    stage.clock.forward(1)
    stage.send("d", category="deploys", channel=UNPACED, priority=Lane.LOW)
    stage.send("e")
    ann.run()
    return stage


# What is found


@pytest.mark.parametrize("score", [math.inf, -math.inf])
def test_what_expires_at_no_instant_hides_no_other_event(full: Stage, score: float) -> None:
    """Somebody else wrote it."""
    before = listed(full)
    full.redis.zadd(full.keys.parked, {"odd": score})
    assert before
    assert listed(full) == before


@pytest.mark.parametrize("wanted", [ParkedFilter("reports"), ParkedFilter(words=("last",))], ids=["category", "words"])
def test_a_search_that_is_out_of_time_goes_on_where_it_ended_also_where_it_has_found_nothing(
    deferring: Stage, wanted: ParkedFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "WORK_S", -1.0)
    ann = deferring.worker("ann")
    deferring.send(*(f"e{number:03}" for number in range(2 * PAGE)))
    deferring.send("first", category="reports")
    ann.run()
    deferring.send("last", category="reports")
    ann.run()
    found: list[str] = []
    place: Place | None = None
    for searches in range(1, 1_000):  # noqa: B007 - how many there were
        part, place = search_on(deferring.parked_events.behind(wanted, place), 9, lambda each: each is not None)
        found += [each.id for each in part.rows if each is not None]
        if place is None:
            break
    assert (found, searches) == (["last"], 3)


@pytest.mark.parametrize("most", [1, 5, PAGE, PAGE + 1])
def test_events_that_expire_in_the_same_microsecond_are_read_on_from_each_of_them(deferring: Stage, most: int) -> None:
    deferring.send(*(f"e{number:03}" for number in range(2 * PAGE + 9)))
    deferring.worker("ann").run()
    everything = listed(deferring)
    found: list[str] = []
    place: Place | None = None
    while len(found) < len(everything):
        rows = [row for row in deferring.parked_events.behind(ParkedFilter(), place) if row[0] is not None][:most]
        found += [place.id for _, place in rows]
        place = rows[-1][1]
    assert found == everything


def test_what_expires_in_the_same_microsecond_is_read_once_however_much_it_is(stage: Stage) -> None:
    stage.redis.zadd(stage.keys.parked, {f"e{number:04}": START_US for number in range(4_000)})
    read = [each for _, each in stage.parked_events.behind(ParkedFilter(), Place(START_US, "e0009"))]
    assert read[-1] == Place(START_US, "e3999")
    before = stage.redis.info("stats")["total_net_output_bytes"]
    assert len(list(stage.parked_events.pages(ParkedFilter()))) == -(-4_000 // PAGE)
    assert stage.redis.info("stats")["total_net_output_bytes"] - before < 1_500_000


@pytest.mark.parametrize(
    "gone", [range(5), range(PAGE + 5), range(2 * PAGE)], ids=["few", "more than a page", "all read"]
)
def test_what_ends_or_is_parked_while_parked_events_are_read_moves_no_other(stage: Stage, gone: range) -> None:
    """In the middle of a search, before the place at which it is."""
    ids = [f"e{number:03}" for number in range(4 * PAGE)]
    stage.redis.zadd(stage.keys.parked, dict.fromkeys(ids, START_US))
    pages = stage.parked_events.behind(ParkedFilter(), None)
    read = [next(pages)[1], next(pages)[1]]
    assert read[-1].id == ids[2 * PAGE - 1]
    stage.redis.zrem(stage.keys.parked, *(ids[number] for number in gone))
    assert next(pages)[1].id == ids[3 * PAGE - 1]
    stage.redis.zadd(stage.keys.parked, {f"d{number:03}": START_US for number in range(3 * PAGE)})
    assert [place.id for _, place in pages] == [ids[-1]]


def test_everything_that_waits_is_found_the_first_to_expire_first(full: Stage) -> None:
    assert listed(full)[:2] == ["b", "c"]
    told = {each.id: each.explanation for each in full.parked_events.find(ParkedFilter())}
    assert {id_: each.reason for id_, each in told.items()} == {
        "b": "retry",
        "c": "cooldown",
        "d": "limit:global",
        "e": "limit:global",
    }
    assert {id_: each.channel for id_, each in told.items()} == {
        "b": UNPACED,
        "c": "#ops",
        "d": UNPACED,
        "e": "#general",
    }
    assert full.parked_events.count() == 4


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (ParkedFilter(category="deploys"), {"d"}),
        (ParkedFilter(reason="limit:global"), {"d", "e"}),
        (ParkedFilter(reason="retry"), {"b"}),
        (ParkedFilter(channel=UNPACED), {"b", "d"}),
        (ParkedFilter(channel="#general"), {"e"}),
        (ParkedFilter(seen_before_us=START_US + 10 * US), {"b", "c"}),
        (ParkedFilter(seen_before_us=START_US + 10 * US - 1), set()),
        (ParkedFilter(category="errors", reason="limit:global"), {"e"}),
        (ParkedFilter(category="nobody"), set()),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_a_filter_finds_what_matches_all_of_it(full: Stage, wanted: ParkedFilter, expected: set[str]) -> None:
    assert set(listed(full, wanted)) == expected


@pytest.mark.parametrize("apart_s", [0, 0.000001])
def test_each_event_is_found_once_over_all_pages_even_if_many_expire_at_one_instant(
    deferring: Stage, apart_s: float
) -> None:
    ids = [f"e{n}" for n in range(2 * PAGE + 30)]
    ann = deferring.worker("ann")
    for first in range(0, len(ids), 10):
        send(deferring, *ids[first : first + 10])
        ann.run()
        deferring.clock.forward(apart_s)
    assert sorted(listed(deferring)) == sorted(ids[1:])


# What a cancel changes


def test_an_admitted_event_is_found_with_its_old_channel_after_the_category_has_a_new_one(
    redis: Database,
) -> None:
    stage = Stage(redis, policy_of(pace="1/10s", on_limit=OnLimit.DEFER))
    stage.send("a", "b")
    stage.worker("ann").run()
    rule = replace(stage.policy.defaults, channel="#new")
    stage.policy = replace(stage.policy, defaults=rule, categories={"errors": rule})
    (b,) = stage.parked_events.find(ParkedFilter())
    assert (b.id, b.explanation.channel) == ("b", "#general")


def test_a_cancelled_event_is_dropped_counted_and_on_record(full: Stage) -> None:
    assert cancel(full, "b", "c", "d", "e") == [Cancelled.DONE] * 4
    snapshot = full.snapshot()
    assert (snapshot.parked, snapshot.timers, snapshot.lines, snapshot.deferred) == (0, 0, {}, {})
    assert snapshot.by_category("dropped") == {"errors": 3, "deploys": 1}
    assert full.redis.exists(full.keys.events, full.keys.parked, full.keys.timers, full.keys.lines) == 0
    decision = full.decision("b")
    assert decision is not None
    assert (decision.outcome, decision.reason, decision.category, decision.detail, decision.at_us) == (
        "dropped", "cancelled", "errors", "by ops@here", full.clock.now_us,
    )  # fmt: skip
    assert set(full.slots("global")) == {"a"}


def test_cancel_returns_the_settlement_to_log(full: Stage) -> None:
    ((_, settlement),) = full.parked_events.cancel(full.parked_events.by_ids(["b"]), "ops@here")
    assert settlement.outcome == Dropped(None, Reason.CANCELLED, "by ops@here")


def test_the_slots_of_an_admitted_event_are_free_at_once_for_who_waits(full: Stage) -> None:
    assert full.held("global") == pytest.approx({"b": START_US + 86_410 * US, "c": START_US + 86_410 * US})
    assert cancel(full, "c") == [Cancelled.DONE]
    assert full.rung == 1
    assert set(full.held("global")) == {"b"}
    assert opens_at(full, "global") == full.clock.now_us
    full.worker("ann").run()
    assert set(listed(full)) == {"b", "d"}


def test_a_slot_that_comes_free_while_others_decide_is_not_missed(full: Stage) -> None:
    ann = full.worker("ann")
    full.send("f")
    full.once_after_admit(lambda: cancel(full, "c"))
    full.policy = replace(full.policy, categories={})
    ann.go()
    assert opens_at(full, "global") == full.clock.now_us


def test_the_head_of_a_line_leaves_the_others_in_order_and_awake(deferring: Stage) -> None:
    ann = deferring.worker("ann")
    send(deferring, "a", "b", "c", "d")
    ann.run()
    opens = opens_at(deferring, "category:errors")
    assert cancel(deferring, "b") == [Cancelled.DONE]
    assert (category_line(deferring), opens_at(deferring, "category:errors")) == (["c", "d"], opens)
    assert cancel(deferring, "d") == [Cancelled.DONE]
    deferring.clock.forward(WINDOW_S)
    ann.run()
    assert deferring.total("sent") == 2
    assert listed(deferring) == []


def test_the_last_of_a_channels_line_leaves_no_line(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "", pace="1/10s"))
    ann = stage.worker("ann")
    stage.send("a", "b", "c")
    (a,) = ann.go()
    assert cancel(stage, "b") == [Cancelled.DONE]
    assert stage.line("#general") == ["c"]
    assert cancel(stage, "c") == [Cancelled.DONE]
    assert (stage.line("#general"), stage.line_at("#general")) == ([], None)
    ann.deliver([a])
    assert stage.line_at("#general") is None
    stage.send("d")
    stage.clock.forward(10)
    ann.run()
    assert stage.total("sent") == 2


def test_a_cancelled_event_of_a_paused_category_leaves_its_line(redis: Database) -> None:
    stage = Stage(redis, policy_of("9/30m", ""))
    stage.pausing.pause("errors", "ops@here")
    stage.send("a", "b", channel=UNPACED)
    stage.worker("ann").go()
    assert listed(stage, ParkedFilter(reason="paused")) == ["a", "b"]
    assert cancel(stage, "a", "b") == [Cancelled.DONE] * 2
    assert (stage.snapshot().lines, stage.slots("global")) == ({}, {})


def test_a_post_of_unknown_delivery_status_keeps_its_slot(redis: Database) -> None:
    stage = Stage(redis, policy_of("2/30m", ""))
    ann = stage.worker("ann")
    stage.send("a", channel=UNPACED)
    ann.desk.shows = lambda _: ScanResult({}, Unreadable("missing_scope", "it may not read"))
    (a,) = ann.go()
    ann.answer(a, Ambiguous("timeout", "no answer"))
    stage.clock.forward(GRACE_US / US)
    ann.go_on()
    stage.clock.forward(BACKOFF_US / US)
    (a,) = ann.go()
    ann.answer(a, RateLimitedBySlack(60 * US, "ratelimited"))
    assert set(stage.slots("global")) == {"a", "a#1"}
    assert cancel(stage, "a") == [Cancelled.DONE]
    assert set(stage.slots("global")) == {"a"}


def test_a_post_that_a_dead_worker_was_making_keeps_its_slot(redis: Database) -> None:
    stage = Stage(redis, policy_of("2/30m", ""))
    stage.send("a", channel=UNPACED)
    stage.worker("ann").go()
    stage.clock.forward(40)
    bob = stage.worker("bob")
    bob.take(0, 0)
    stage.clock.forward(3)
    bob.take(0, 0)
    assert cancel(stage, "a") == [Cancelled.DONE]
    assert set(stage.slots("global")) == {"a"}


def test_an_id_that_was_chosen_is_remembered_and_another_is_not(deferring: Stage) -> None:
    ann = deferring.worker("ann")
    send(deferring, "first", "named")
    unnamed = deferring.send_unnamed()
    ann.run()
    deferring.redis.delete(deferring.keys.seen)
    cancel(deferring, "named", unnamed)
    assert deferring.redis.zrange(deferring.keys.seen, 0, -1, withscores=True) == [(b"named", START_US + REMEMBER_US)]


# What a cancel leaves alone


def test_an_event_that_a_worker_has_taken_meanwhile_is_not_cancelled(deferring: Stage) -> None:
    ann = deferring.worker("ann")
    send(deferring, "a", "b", "c")
    ann.run()
    found = deferring.parked_events.by_ids(["b", "c"])
    deferring.clock.forward(WINDOW_S)
    (b,) = ann.go()
    assert cancel_found(deferring, found) == [Cancelled.IN_HANDS, Cancelled.DONE]
    assert ann.answer(b, Receipt(UNPACED, "1.1")) is True
    assert cancel_found(deferring, found) == [Cancelled.GONE, Cancelled.GONE]
    assert (deferring.total("sent"), deferring.total("dropped")) == (2, 1)


def test_a_newer_event_with_the_same_id_is_not_cancelled(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m", on_limit=OnLimit.DEFER), remember_us=US)
    ann = stage.worker("ann")
    send(stage, "a", "b")
    ann.run()
    found = stage.parked_events.by_ids(["b"])
    cancel(stage, "b")
    stage.clock.forward(2)
    send(stage, "b")
    ann.run()
    assert cancel_found(stage, found) == [Cancelled.GONE]
    assert listed(stage) == ["b"]


def test_an_event_that_is_not_parked_is_not_found(deferring: Stage) -> None:
    send(deferring, "a")
    assert deferring.parked_events.by_ids(["a", "nobody"]) == []
    deferring.worker("ann").take()
    assert deferring.parked_events.by_ids(["a"]) == []


def test_a_dead_letter_that_was_replayed_and_waits_can_be_cancelled(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m", on_limit=OnLimit.DEAD_LETTER))
    ann = stage.worker("ann")
    send(stage, "a", "b")
    ann.run()
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    stage.policy = policy_of("", "1/30m", on_limit=OnLimit.DEFER)
    ann.run()
    assert cancel(stage, "b") == [Cancelled.DONE]
    assert (stage.total("dead"), stage.total("dropped"), stage.letters()) == (1, 1, [])


# Whatever happens before


@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(("send", "go", "fail", "429", "pass", "cancel", "die")), st.integers(0, 5)),
        min_size=3,
        max_size=25,
    )
)
def test_after_any_cancel_the_books_balance_and_everything_fits(redis: Database, steps: list[tuple[str, int]]) -> None:
    redis.flushdb()
    stage = Stage(redis, policy_of("4/1m", "3/1m", pace="1/5s", on_limit=OnLimit.DEFER))
    ann, sent = stage.worker("ann"), 0
    for turn, (step, n) in enumerate(steps):
        match step:
            case "send":
                stage.send(
                    *(f"e{sent + each}" for each in range(n + 1)),
                    category=("errors", "deploys")[n % 2],
                    channel=("#a", UNPACED)[n // 2 % 2],
                )
                sent += n + 1
            case "go" | "fail" | "429":
                for started in ann.go(new=n + 1):
                    ann.answer(started, RESULTS[step])
            case "die":
                ann.go(new=n + 1)
                stage.clock.forward(40)
                ann = stage.worker(f"ann{turn}")  # nobody comes back under the name of a dead one
            case "pass":
                stage.clock.forward(5 * n)
            case _:
                cancel(stage, *listed(stage)[: n + 1])
    cancel(stage, *listed(stage))
    assert listed(stage) == []
    for _ in range(60):
        stage.clock.forward(10)
        ann.run()
    assert stage.snapshot().events == 0


def test_a_slot_that_guarantees_leave_comes_back_at_one_cost_however_many_lines_wait(redis: Database) -> None:
    def commands(lines: int) -> int:
        redis.flushall()
        stage = Stage(redis)
        ann = stage.worker("ann")
        ann.follow(stage.put_in_force(GUARANTEED))
        stage.send("a", "b", category="audit", channel="#slow")
        for n in range(2 * lines):
            send(stage, f"h{n}", category="reports", labels={"host": f"host{n % lines}"})
        ann.run()
        assert len(stage.places.awaited) == lines
        found = list(stage.parked_events.find(ParkedFilter(category="audit")))
        assert len(found) == 1
        redis.config_resetstat()
        stage.parked_events.cancel(found, "ops@here")
        return sum(int(each["calls"]) for each in redis.info("commandstats").values())

    assert abs(commands(20) - commands(2)) <= 2  # the first call loads the script

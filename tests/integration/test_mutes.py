"""Muted categories: nothing of them is posted until an instant or a word, nothing is lost, and nothing takes a slot."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from dispatcher.core.event import new_event_id
from dispatcher.core.limits import US, Limit, Reason
from dispatcher.core.outcomes import DeadLettered, Dropped
from dispatcher.core.policy import CategoryRule, OnLimit
from dispatcher.core.posts import Receipt, Retryable
from dispatcher.logs.event_log import build_event_log
from dispatcher.store.dead_letters import DeadLetters, Filter
from dispatcher.store.decisions import Decisions
from dispatcher.store.explanations import Explanations
from dispatcher.store.operator_controls import Muting
from dispatcher.store.parked_events import ParkedEvents, ParkedFilter
from dispatcher.store.removals import Removals
from dispatcher.store.rq_recovery import Sweep
from dispatcher.worker.housekeeping import Housekeeping
from tests.support.deferral import Between, category_line, opens_at, run, send
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, UNPACED, Stage, Worker, policy_of

HOUR_S: Final = 3_600
UNTIL_US: Final = START_US + HOUR_S * US


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def stage(redis: Database) -> Stage:
    """Three events of each category in half an hour; ``kept`` become dead letters then, ``later`` wait, else drop."""
    policy = policy_of("", "3/30m")
    rules = {
        name: CategoryRule((Limit.parse("3/30m"),), UNPACED, on_limit, 86_400 * US)
        for name, on_limit in (("kept", OnLimit.DEAD_LETTER), ("later", OnLimit.DEFER))
    }
    return Stage(redis, replace(policy, categories=rules))


def mute(stage: Stage, category: str, seconds: float = HOUR_S) -> int:
    with stage.watching_the_bell():
        muting = Muting(stage.redis, stage.keys, clock=stage.clock)
        return muting.mute(category, round(seconds * US), "ops@here", "maintenance")


def unmute(stage: Stage, category: str) -> bool:
    with stage.watching_the_bell():
        return Muting(stage.redis, stage.keys, clock=stage.clock).unmute(category)


def sentence(stage: Stage, id_: str) -> str:
    return Explanations(stage.redis, stage.keys, stage.queue, clock=stage.clock).explain(id_).sentence


# What it does


def test_of_a_muted_category_everything_is_dropped_that_drops_over_a_limit(stage: Stage, ann: Worker) -> None:
    assert mute(stage, "errors") == UNTIL_US
    send(stage, "a", "b")
    send(stage, "x", category="other")
    run(ann)
    assert stage.snapshot().by_category("dropped") == {"errors": 2}
    assert [each.subject.id for each in ann.told.settlements if isinstance(each.outcome, Dropped)] == ["a", "b"]
    assert stage.total("sent") == 1
    assert stage.slots("category:errors") == {}
    decision = Decisions(stage.redis, stage.keys).find("a")
    assert decision is not None
    assert (decision.outcome, decision.reason, decision.detail, decision.fits_at_us) == (
        "dropped", "muted", "by ops@here: maintenance", UNTIL_US,
    )  # fmt: skip
    assert sentence(stage, "a") == (
        "Dropped at 10:53:20: category errors was muted until 11:53:20 by ops@here: maintenance."
    )
    assert stage.redis.hexists(stage.keys.decisions[0], "a")


def test_a_muted_event_with_on_limit_dead_letter_becomes_a_dead_letter(stage: Stage, ann: Worker) -> None:
    mute(stage, "kept")
    send(stage, "a", category="kept")
    run(ann)
    (letter,) = DeadLetters(stage.redis, stage.keys, stage.queue).find(Filter(reason="muted"))
    assert (letter.id, letter.detail, letter.fits_at_us) == ("a", "by ops@here: maintenance", UNTIL_US)
    assert sentence(stage, "a") == (
        "Dead letter at 10:53:20: category kept was muted until 11:53:20 by ops@here: maintenance."
    )
    assert stage.redis.hexists(stage.keys.decisions[0], "a")


def test_a_muted_event_with_on_limit_defer_waits_until_the_mute_ends(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", "b", category="later")
    run(ann)
    assert category_line(stage, "category:later") == ["a", "b"]
    assert opens_at(stage, "muted:later") == UNTIL_US
    assert [(each.reason, each.scope) for each in ann.told.waits] == [(Reason.MUTED, "muted:later")] * 2
    assert sentence(stage, "a") == "Waits: category later is muted until 11:53:20 by ops@here: maintenance."
    assert sentence(stage, "b").endswith("by ops@here: maintenance; it is behind 1 other.")
    stage.clock.forward(HOUR_S - 0.000001)
    run(ann)
    assert stage.total("sent") == 0
    stage.clock.forward(0.000001)
    assert sentence(stage, "a") == "Waits: its category was muted; as the next of its line it is expected now."
    run(ann)
    assert ann.desk.posts == ["a", "b"]
    assert stage.snapshot().muted == {}


def test_after_a_mute_what_waited_goes_by_the_limits_in_order(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    ids = [f"e{n}" for n in range(8)]
    send(stage, *ids, category="later")
    run(ann)
    stage.clock.forward(HOUR_S)
    run(ann)
    assert ann.desk.posts == ids[:3]
    assert opens_at(stage, "category:later") == UNTIL_US + 1_800 * US
    stage.clock.forward(1_800)
    run(ann)
    assert ann.desk.posts == ids[:6]


def test_an_event_deferred_before_a_mute_waits_at_its_turn_until_the_mute_ends(stage: Stage, ann: Worker) -> None:
    send(stage, *(f"e{n}" for n in range(5)), category="later")
    run(ann)
    mute(stage, "later")
    assert category_line(stage, "category:later") == ["e3", "e4"]
    assert sentence(stage, "e3").startswith("Waits: category later is muted until 11:53:20")
    stage.clock.forward(1_800)
    run(ann)
    assert (ann.desk.posts, opens_at(stage, "muted:later")) == (["e0", "e1", "e2"], UNTIL_US)
    assert category_line(stage, "category:later") == ["e3", "e4"]
    stage.clock.forward(1_800)
    run(ann)
    assert ann.desk.posts == ["e0", "e1", "e2", "e3", "e4"]


def test_an_event_admitted_before_the_mute_is_posted(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b")
    a, b = ann.go()
    ann.answer(a, Retryable("http_502", "bad gateway"))
    mute(stage, "errors")
    ann.answer(b, Receipt(UNPACED, "1.1"))
    stage.clock.forward(BACKOFF_US / US)
    run(ann)
    assert stage.total("sent") == 2


def test_of_an_event_that_a_dead_worker_may_have_been_admitted_with_the_slots_go_back(
    stage: Stage, ann: Worker
) -> None:
    send(stage, "a")
    send(stage, "b", category="later")
    batch = ann.take().batch
    ann.admission.admit([], ahead=[])
    stage.gate.try_acquire_many([("1", stage.policy.scopes("errors")), ("2", stage.policy.scopes("later"))])
    assert len(batch) == 2
    ann.give_back()
    mute(stage, "errors")
    mute(stage, "later")
    run(stage.worker("bob"))
    assert (stage.slots("category:errors"), stage.slots("category:later")) == ({}, {})
    assert (stage.total("dropped"), category_line(stage, "category:later")) == (1, ["b"])


def test_a_replayed_dead_letter_of_a_muted_category_becomes_one_again(stage: Stage, ann: Worker) -> None:
    mute(stage, "kept")
    send(stage, "a", category="kept")
    run(ann)
    letters = DeadLetters(stage.redis, stage.keys, stage.queue, clock=stage.clock)
    stage.policy = replace(stage.policy, categories={})  # it drops now
    letters.replay(letters.find(Filter()))
    run(ann)
    (letter,) = letters.find(Filter())
    assert (letter.reason, letter.replays, stage.total("dropped")) == ("muted", 1, 0)


def test_a_muted_category_that_defers_is_bounded_as_ever(stage: Stage, ann: Worker) -> None:
    rule = replace(stage.policy.rule("later"), max_parked=2)
    stage.policy = replace(stage.policy, categories={"later": rule})
    mute(stage, "later")
    send(stage, "a", "b", "c", category="later")
    run(ann)
    assert category_line(stage, "category:later") == ["a", "b"]
    assert [letter["reason"] for letter in stage.letters()] == ["overflow"]


def test_an_event_that_waits_for_a_mute_to_end_expires_at_its_max_age(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", category="later", max_age=60)
    run(ann)
    stage.clock.forward(60)
    run(ann)
    assert [letter["reason"] for letter in stage.letters()] == ["expired"]
    assert opens_at(stage, "muted:later") is None


def test_an_event_that_waits_for_a_mute_to_end_can_be_found_and_cancelled(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", category="later")
    run(ann)
    hands = ParkedEvents(
        stage.redis, stage.keys, stage.queue, stage.policy, remember_us=stage.remember_us, clock=stage.clock
    )
    found = list(hands.find(ParkedFilter(reason="muted")))
    assert [(each.id, each.explanation.next_at) for each in found] == [("a", UNTIL_US / US)]
    hands.cancel(found, "ops@here")
    stage.check()
    assert stage.snapshot().parked == 0


# Its end


def test_a_word_ends_a_mute_and_wakes_who_waits_for_that(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", "b", category="later")
    run(ann)
    stage.clock.forward(1)
    assert unmute(stage, "later") is True
    assert stage.rung == 1
    run(ann)
    assert ann.desk.posts == ["a", "b"]
    assert unmute(stage, "later") is False


def test_a_mute_is_replaced_by_a_shorter_or_a_longer_one(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", category="later")
    run(ann)
    shorter = mute(stage, "later", 60)
    assert opens_at(stage, "muted:later") == shorter
    longer = mute(stage, "later", 2 * HOUR_S)
    stage.clock.forward(60)
    run(ann)
    assert (opens_at(stage, "muted:later"), stage.total("sent")) == (longer, 0)
    stage.clock.forward(2 * HOUR_S - 60)
    run(ann)
    assert stage.total("sent") == 1


def test_an_event_lined_up_for_a_mute_that_has_ended_goes_at_once(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", category="later")
    taken = ann.take()
    unmute(stage, "later")
    ann.dispatch(taken.batch, muted=taken.muted)
    assert opens_at(stage, "muted:later") == START_US
    run(ann)
    assert stage.total("sent") == 1


def test_a_slot_that_comes_free_meanwhile_does_not_open_a_muted_line(stage: Stage, ann: Worker) -> None:
    send(stage, "a", category="later")
    (a,) = ann.go()
    mute(stage, "later")
    send(stage, "b", category="later")
    ann.go()
    stage.watch = Between(lambda: None)
    ann.answer(a, Receipt(UNPACED, "1.1"))
    run(ann)
    assert (opens_at(stage, "muted:later"), stage.total("sent")) == (UNTIL_US, 1)


def test_a_mute_lives_no_longer_than_it_says(stage: Stage) -> None:
    mute(stage, "errors", 60)
    mute(stage, "later", 30)
    assert 59_000 < stage.redis.pttl(stage.keys.muted) <= 60_001
    stage.clock.forward(31)
    assert set(stage.snapshot().muted) == {"errors"}
    assert set(stage.worker("bob").take().muted) == {"errors"}
    mute(stage, "deploys", 10)
    assert set(stage.redis.hkeys(stage.keys.muted)) == {b"errors", b"deploys"}
    unmute(stage, "errors")
    unmute(stage, "deploys")
    assert stage.redis.exists(stage.keys.muted) == 0


def test_each_take_says_what_is_muted_also_one_ahead(stage: Stage, ann: Worker) -> None:
    for n in range(4):
        send(stage, f"e{n}")
    mute(stage, "errors")
    taken = ann.take(2)
    ann.outbox.prefetch(taken, 2, 2)
    ahead = ann.outbox.take(2, 2)
    for each in (taken, ahead):
        assert [(mute.category, mute.until_us, mute.who, mute.why) for mute in each.muted.values()] == [
            ("errors", UNTIL_US, "ops@here", "maintenance")
        ]


# What is told


def test_a_worker_tells_of_each_mute_once_when_it_comes_and_when_it_goes(stage: Stage, ann: Worker) -> None:
    said = io.StringIO()
    queue, keys = stage.queue, stage.keys
    sweep, letters = Sweep(stage.redis, keys, queue, owner="ann"), DeadLetters(stage.redis, keys, queue)
    housekeeping = Housekeeping(sweep, Removals(stage.redis, keys), letters, build_event_log(stream=said, style="json"))

    def look() -> list[tuple[str, dict[str, object]]]:
        before = said.tell()
        housekeeping.tell_mutes(ann.take().muted)
        lines = [json.loads(line) for line in said.getvalue()[before:].splitlines()]
        return [
            (line.pop("event"), {name: line[name] for name in line if name not in {"level", "time"}}) for line in lines
        ]

    assert look() == []
    mute(stage, "errors")
    facts = {"category": "errors", "until": UNTIL_US / US, "who": "ops@here", "detail": "maintenance"}
    assert look() == [("category.muted", facts)]
    assert look() == []
    mute(stage, "errors", 2 * HOUR_S)
    assert look() == [("category.muted", {**facts, "until": UNTIL_US / US + HOUR_S})]
    stage.clock.forward(2 * HOUR_S)
    assert look() == [("category.unmuted", {"category": "errors"})]


def test_a_dead_letter_of_a_mute_is_no_sentence_about_a_limit(stage: Stage, ann: Worker) -> None:
    mute(stage, "kept")
    id_ = new_event_id()
    send(stage, id_, category="kept")
    run(ann)
    (settlement,) = ann.told.settlements
    assert settlement.outcome == DeadLettered(Reason.MUTED, "by ops@here: maintenance", until_us=UNTIL_US)

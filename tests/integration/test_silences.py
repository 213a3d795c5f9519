"""Silences: nothing that matches one is posted until an instant or a word, nothing is lost, nothing takes a slot."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any, Final

import pytest

from dispatcher.app.documents.silences import silences_document
from dispatcher.core.event import new_event_id
from dispatcher.core.limits import Limit, Reason
from dispatcher.core.matchers import parse_matchers
from dispatcher.core.once import Once
from dispatcher.core.policy import CategoryRule, OnLimit
from dispatcher.core.posts import Receipt, Rejected, Retryable
from dispatcher.core.recovery import recovery_of
from dispatcher.core.states import Absent, Candidate, DeadLettered, Dropped, Leased, ScanResult
from dispatcher.core.units import US
from dispatcher.logs.event_log import build_event_log
from dispatcher.store.dead_letters import DeadLetters, Filter
from dispatcher.store.parked_events import ParkedEvents, ParkedFilter
from dispatcher.store.removals import Removals
from dispatcher.store.rq_recovery import Sweep
from dispatcher.store.silences import Preview, TooManySilences, Wanted, preview
from dispatcher.worker.housekeeping import Housekeeping
from tests.support.deferral import category_line, keep_beating, opens_at, send
from tests.support.doubles import START_US
from tests.support.quiet_stage import FREE, QuietStage
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, UNPACED, Stage, Worker, policy_of, sentence

pytestmark = pytest.mark.usefixtures("in_utc")

HOUR_S: Final = 3_600
UNTIL_US: Final = START_US + HOUR_S * US


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
        return stage.silencing.mute(category, round(seconds * US), "ops@here", "maintenance")


def unmute(stage: Stage, category: str) -> bool:
    with stage.watching_the_bell():
        return stage.silencing.unmute(category)


def events_posted(worker: Worker) -> list[str]:
    """What was posted, without reports."""
    return [id_ for id_ in worker.desk.posts if not id_.startswith("silence:")]


# What it does


def test_of_a_muted_category_everything_is_dropped_that_drops_over_a_limit(stage: Stage, ann: Worker) -> None:
    assert mute(stage, "errors") == UNTIL_US
    send(stage, "a", "b")
    send(stage, "x", category="other")
    ann.run()
    assert stage.snapshot().by_category("dropped") == {"errors": 2}
    assert [each.subject.id for each in ann.told.settlements if isinstance(each.outcome, Dropped)] == ["a", "b"]
    assert stage.total("sent") == 1
    assert stage.slots("category:errors") == {}
    decision = stage.decision("a")
    assert decision is not None
    assert (decision.outcome, decision.reason, decision.detail, decision.fits_at_us) == (
        "dropped", "silenced", "by ops@here: maintenance (silence 1)", UNTIL_US,
    )  # fmt: skip
    assert sentence(stage, "a") == (
        "Dropped at 10:53:20: silenced from 10:53:20 until 11:53:20 by ops@here: maintenance (silence 1)."
    )
    assert stage.redis.hexists(stage.keys.decisions[0], "a")


def test_a_muted_event_with_on_limit_dead_letter_becomes_a_dead_letter(stage: Stage, ann: Worker) -> None:
    mute(stage, "kept")
    send(stage, "a", category="kept")
    ann.run()
    (letter,) = stage.dead_letters.find(Filter(reason="silenced"))
    assert (letter.id, letter.detail, letter.fits_at_us) == ("a", "by ops@here: maintenance (silence 1)", UNTIL_US)
    assert (letter.attempts, letter.posts) == (0, 0)
    assert sentence(stage, "a") == (
        "Dead letter at 10:53:20: silenced from 10:53:20 until 11:53:20 by ops@here: maintenance (silence 1)."
    )
    assert stage.redis.hexists(stage.keys.decisions[0], "a")


def test_a_muted_event_with_on_limit_defer_waits_until_the_mute_ends(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", "b", category="later")
    ann.run()
    assert category_line(stage, "silence:1:later") == ["a", "b"]
    assert opens_at(stage, "silence:1") == UNTIL_US
    assert [(each.reason, each.scope) for each in ann.told.waits] == [(Reason.SILENCED, "silence:1")] * 2
    assert sentence(stage, "a") == (
        "Waits: it is silenced from 10:53:20 until 11:53:20 by ops@here: maintenance (silence 1)."
    )
    assert sentence(stage, "b").endswith("by ops@here: maintenance (silence 1); it is behind 1 other.")
    stage.clock.forward(HOUR_S - 0.000001)
    ann.run()
    assert stage.total("sent") == 0
    stage.clock.forward(0.000001)
    assert sentence(stage, "a") == (
        "Waits for room: category later has used 0 of 3 in 30 min; first in line, expected now."
    )
    ann.run()
    assert ann.desk.posts == ["a", "b"]
    assert stage.snapshot().silences == {}


def test_after_a_mute_what_waited_goes_by_the_limits_in_order(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    ids = [f"e{n}" for n in range(8)]
    send(stage, *ids, category="later")
    ann.run()
    stage.clock.forward(HOUR_S)
    ann.run()
    assert ann.desk.posts == ids[:3]
    assert opens_at(stage, "category:later") == UNTIL_US + 1_800 * US
    stage.clock.forward(1_800)
    ann.run()
    assert events_posted(ann) == ids[:6]


def test_an_event_deferred_before_a_mute_waits_at_its_turn_until_the_mute_ends(stage: Stage, ann: Worker) -> None:
    send(stage, *(f"e{n}" for n in range(5)), category="later")
    ann.run()
    mute(stage, "later")
    assert category_line(stage, "category:later") == ["e3", "e4"]
    assert sentence(stage, "e3").startswith("Waits: it is silenced from 10:53:20 until 11:53:20")
    stage.clock.forward(1_800)
    ann.run()
    assert (ann.desk.posts, opens_at(stage, "silence:1")) == (["e0", "e1", "e2"], UNTIL_US)
    assert category_line(stage, "silence:1:later") == ["e3", "e4"]
    stage.clock.forward(1_800)
    ann.run()
    assert ann.desk.posts == ["e0", "e1", "e2", "e3", "e4"]


def test_an_event_admitted_before_the_mute_is_posted(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b")
    a, b = ann.go()
    ann.answer(a, Retryable("http_502", "bad gateway"))
    mute(stage, "errors")
    ann.answer(b, Receipt(UNPACED, "1.1"))
    stage.clock.forward(BACKOFF_US / US)
    ann.run()
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
    stage.worker("bob").run()
    assert (stage.slots("category:errors"), stage.slots("category:later")) == ({}, {})
    assert (stage.total("dropped"), category_line(stage, "silence:2:later")) == (1, ["b"])


def test_a_replayed_dead_letter_of_a_muted_category_becomes_one_again(stage: Stage, ann: Worker) -> None:
    mute(stage, "kept")
    send(stage, "a", category="kept")
    ann.run()
    stage.policy = replace(stage.policy, categories={})  # it drops now
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    ann.run()
    (letter,) = stage.dead_letters.find(Filter())
    assert (letter.reason, letter.replays, stage.total("dropped")) == ("silenced", 1, 0)


def test_a_muted_category_that_defers_is_bounded_as_ever(stage: Stage, ann: Worker) -> None:
    rule = replace(stage.policy.rule("later"), max_parked=2)
    stage.policy = replace(stage.policy, categories={"later": rule})
    mute(stage, "later")
    send(stage, "a", "b", "c", category="later")
    ann.run()
    assert category_line(stage, "silence:1:later") == ["a", "b"]
    assert [letter["reason"] for letter in stage.letters()] == ["overflow"]


def test_an_event_that_waits_for_a_mute_to_end_expires_at_its_max_age(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", category="later", max_age=60)
    ann.run()
    stage.clock.forward(60)
    ann.run()
    assert [letter["reason"] for letter in stage.letters()] == ["expired"]
    assert opens_at(stage, "silence:1") is None


def test_an_event_that_waits_for_a_mute_to_end_can_be_found_and_cancelled(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", category="later")
    ann.run()
    found = list(stage.parked_events.find(ParkedFilter(reason="silenced")))
    assert [(each.id, each.explanation.next_at) for each in found] == [("a", UNTIL_US / US)]
    stage.parked_events.cancel(found, "ops@here")
    stage.check()
    assert stage.snapshot().parked == 0


# Its end


def test_a_word_ends_a_mute_and_wakes_who_waits_for_that(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", "b", category="later")
    ann.run()
    stage.clock.forward(1)
    assert unmute(stage, "later") is True
    assert stage.rung == 1
    ann.run()
    assert ann.desk.posts == ["a", "b"]
    assert unmute(stage, "later") is False


def test_a_mute_is_replaced_by_a_shorter_or_a_longer_one(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", category="later")
    ann.run()
    shorter = mute(stage, "later", 60)
    assert opens_at(stage, "silence:1") == shorter
    longer = mute(stage, "later", 2 * HOUR_S)
    stage.clock.forward(60)
    ann.run()
    assert (opens_at(stage, "silence:1"), stage.total("sent")) == (longer, 0)
    stage.clock.forward(2 * HOUR_S - 60)
    ann.run()
    assert stage.total("sent") == 1


def test_an_event_lined_up_for_a_mute_that_has_ended_goes_at_once(stage: Stage, ann: Worker) -> None:
    mute(stage, "later")
    send(stage, "a", category="later")
    taken = ann.take()
    unmute(stage, "later")
    ann.dispatch(taken.batch, silences=taken.silences)
    assert opens_at(stage, "silence:1") == START_US
    ann.run()
    assert stage.total("sent") == 1


def test_a_slot_that_comes_free_meanwhile_does_not_open_a_muted_line(stage: Stage, ann: Worker) -> None:
    send(stage, "a", category="later")
    (a,) = ann.go()
    mute(stage, "later")
    send(stage, "b", category="later")
    ann.go()
    ann.answer(a, Receipt(UNPACED, "1.1"))
    ann.run()
    assert (opens_at(stage, "silence:1"), stage.total("sent")) == (UNTIL_US, 1)


def test_a_mute_lives_no_longer_than_it_says(stage: Stage) -> None:
    mute(stage, "errors", 60)
    mute(stage, "later", 30)
    stage.clock.forward(31)
    assert [each.muted for each in stage.snapshot().silences_in_force] == ["errors"]
    assert [each.muted for each in stage.worker("bob").take().silences.each] == ["errors"]
    mute(stage, "deploys", 10)
    assert set(stage.redis.hkeys(stage.keys.silences)) == {b"1", b"3"}
    unmute(stage, "errors")
    unmute(stage, "deploys")
    assert stage.redis.exists(stage.keys.silences, stage.keys.endings) == 0


def test_each_take_says_what_is_muted_also_one_ahead(stage: Stage, ann: Worker) -> None:
    for n in range(4):
        send(stage, f"e{n}")
    mute(stage, "errors")
    taken = ann.take(2)
    ann.outbox.prefetch(taken, 2, 2)
    ahead = ann.outbox.take(2, 2)
    for each in (taken, ahead):
        assert [(mute.muted, mute.until_us, mute.who, mute.why) for mute in each.silences.each] == [
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
        taken = ann.take()
        housekeeping.tell_silences(taken.silences, taken.now_us)
        lines = [json.loads(line) for line in said.getvalue()[before:].splitlines()]
        return [
            (line.pop("event"), {name: line[name] for name in line if name not in {"level", "time"}}) for line in lines
        ]

    assert look() == []
    mute(stage, "errors")
    facts = {
        "silence": "1",
        "matchers": "category=errors",
        "until": UNTIL_US / US,
        "who": "ops@here",
        "detail": "maintenance",
    }
    assert look() == [("silence.began", facts)]
    assert look() == []
    mute(stage, "errors", 2 * HOUR_S)
    assert look() == [("silence.began", {**facts, "until": UNTIL_US / US + HOUR_S})]
    stage.clock.forward(2 * HOUR_S)
    assert look() == [("silence.ended", {"silence": "1"})]


def test_a_dead_letter_of_a_mute_is_no_sentence_about_a_limit(stage: Stage, ann: Worker) -> None:
    mute(stage, "kept")
    id_ = new_event_id()
    send(stage, id_, category="kept")
    ann.run()
    (settlement,) = ann.told.settlements
    assert settlement.outcome == DeadLettered(
        Reason.SILENCED, "by ops@here: maintenance (silence 1)", until_us=UNTIL_US, since_us=START_US
    )


# Matchers


def silence(stage: Stage, *matchers: str, seconds: float = HOUR_S, **facts: Any) -> str:  # noqa: ANN401 - a Wanted's
    """Silence what matches, and return the id."""
    with stage.watching_the_bell():
        wanted = Wanted(parse_matchers(matchers), round(seconds * US), "anna", "db1 moves", **facts)
        return stage.silencing.begin(wanted).id


def expire(stage: Stage, id_: str) -> bool:
    with stage.watching_the_bell():
        return stage.silencing.expire(id_)


def suppressed(stage: Stage) -> dict[str, int]:
    """How many events each silence has suppressed so far."""
    return stage.snapshot().suppressed


def reports(worker: Worker) -> list[tuple[str, str]]:
    """The channel and the words of each report."""
    return [(each.channel, each.text) for each in worker.desk.messages if each.event_id.startswith("silence:")]


def fire(stage: Stage, *ids: str, key: str = "db1", **fields: Any) -> None:  # noqa: ANN401 - an Event's
    send(stage, *ids, dedup_key=key, **fields)


def recover(stage: Stage, id_: str, key: str = "db1", **fields: Any) -> None:  # noqa: ANN401 - an Event's
    send(stage, id_, dedup_key=key, status="resolved", **fields)


def test_what_matches_by_category_priority_and_labels_is_suppressed_and_nothing_else(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db*", "severity!=critical", "priority=normal|low")
    send(stage, "a", labels={"host": "db1"})
    send(stage, "b", labels={"host": "db1", "severity": "critical"})
    send(stage, "c", category="other", labels={"host": "web1"})
    send(stage, "d", category="other", labels={"host": "db2"})
    send(stage, "e", labels={"host": "db1"}, priority="high")
    send(stage, "f")
    ann.run()
    assert sorted(ann.desk.posts) == ["b", "c", "e", "f"]
    assert stage.snapshot().by_category("dropped") == {"errors": 1, "other": 1}
    assert suppressed(stage) == {"1": 2}
    assert sentence(stage, "d").endswith("by anna: db1 moves (silence 1).")


def test_of_several_the_one_that_ends_last_suppresses_and_where_that_waits_the_other_is_asked_then(
    stage: Stage, ann: Worker
) -> None:
    silence(stage, "category=later", seconds=60)
    silence(stage, "host=db1", seconds=30)
    send(stage, "a", category="later", labels={"host": "db1"})
    ann.run()
    assert category_line(stage, "silence:1:later") == ["a"]
    assert suppressed(stage) == {"1": 1, "2": 0}
    silence(stage, "host=db*", seconds=90)
    stage.clock.forward(60)
    ann.run()
    assert category_line(stage, "silence:3:later") == ["a"]
    assert suppressed(stage) == {"3": 1}
    stage.clock.forward(30)
    ann.run()
    assert stage.total("sent") == 1


def test_beside_what_waits_for_the_end_its_category_goes_on(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1")
    send(stage, "a", "b", category="later", labels={"host": "db1"})
    send(stage, "c", "d", category="later")
    ann.run()
    assert ann.desk.posts == ["c", "d"]
    assert category_line(stage, "silence:1:later") == ["a", "b"]


def test_what_has_waited_for_the_end_stands_in_its_categorys_line_then(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1", seconds=60, reports=False)
    send(stage, "a", category="later", labels={"host": "db1"})
    send(stage, *(f"e{n}" for n in range(5)), category="later")
    ann.run()
    stage.clock.forward(60)
    ann.run()
    assert ann.desk.posts == ["e0", "e1", "e2"]
    assert category_line(stage, "category:later") == ["a", "e3", "e4"]
    stage.clock.forward(1_800)
    ann.run()
    assert ann.desk.posts[3:] == ["a", "e3", "e4"]


def test_what_has_waited_for_the_end_does_not_overtake_who_waits_for_room_already(stage: Stage, ann: Worker) -> None:
    send(stage, *(f"e{n}" for n in range(4)), category="later")
    ann.run()
    silence(stage, "host=db1", seconds=1_799, reports=False)
    send(stage, "a", category="later", labels={"host": "db1"})
    ann.run()
    stage.clock.forward(1_800)
    ann.deliver(ann.go(due=1))
    ann.run()
    assert ann.desk.posts == ["e0", "e1", "e2", "e3", "a"]


def test_all_that_have_waited_for_the_end_ask_for_room_in_few_takes(redis: Database) -> None:
    stage = Stage(redis, replace(policy_of("", "100/30m", on_limit=OnLimit.DEFER)))
    ann = stage.worker()
    id_ = silence(stage, "host=db1")
    send(stage, *(f"e{n:02}" for n in range(60)), labels={"host": "db1"})
    ann.run()
    expire(stage, id_)
    ann.run(takes=5)
    assert events_posted(ann) == [f"e{n:02}" for n in range(60)]


def test_a_silence_begins_at_its_instant(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1", seconds=60, from_us=START_US + 60 * US)
    send(stage, "a", labels={"host": "db1"})
    ann.run()
    stage.clock.forward(60)
    send(stage, "b", labels={"host": "db1"})
    ann.run()
    stage.clock.forward(60)
    send(stage, "c", labels={"host": "db1"})
    ann.run()
    assert ann.desk.posts == ["a", "c"]
    assert sentence(stage, "b").startswith("Dropped at 10:54:20: silenced from 10:54:20 until 10:55:20 by anna")


def test_a_replayed_dead_letter_that_is_silenced_is_one_again_also_where_its_category_defers(
    stage: Stage, ann: Worker
) -> None:
    mute(stage, "kept")
    send(stage, "a", category="kept")
    ann.run()
    stage.policy = replace(stage.policy, categories={"kept": stage.policy.rule("later")})  # it defers now
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    ann.run()
    (letter,) = stage.dead_letters.find(Filter())
    assert (letter.reason, letter.replays) == ("silenced", 1)


@pytest.mark.parametrize("on_limit", [OnLimit.DEFER, OnLimit.DROP])
def test_a_silenced_event_takes_no_key_and_gives_back_the_one_that_it_had_in_line(
    redis: Database, on_limit: OnLimit
) -> None:
    rule = CategoryRule(
        (Limit.parse("1/30m"),), UNPACED, OnLimit.DEFER, 86_400 * US, once=Once("dedup_key", 3_600 * US)
    )
    stage = Stage(redis, replace(policy_of("", "1/30m"), categories={"later": rule}))
    ann = stage.worker()
    fire(stage, "a", key="x", category="later")
    fire(stage, "b", key="y", category="later")
    ann.run()
    (taken,) = [name for name in stage.places.slots if name.startswith("once:") and stage.held(name)]
    stage.policy = replace(stage.policy, categories={"later": replace(rule, on_limit=on_limit)})
    silence(stage, "category=later", seconds=3_600)
    stage.clock.forward(1_800)
    ann.run()
    assert category_line(stage, "silence:1:later") == (["b"] if on_limit is OnLimit.DEFER else [])
    assert stage.slots(taken) == {}


def test_what_matches_everything_is_no_silence(stage: Stage) -> None:
    with pytest.raises(ValueError, match="it would match everything"):
        silence(stage, "host=*", "priority=high|normal|low")


def test_the_matchers_of_a_silence_are_bounded_together(stage: Stage) -> None:
    values = "|".join(f"{n:02}{'x' * 248}" for n in range(16))
    assert len(f"host={values}") == 4_020
    assert silence(stage, f"host={values}", "zone=" + "z" * 71) == "1"
    with pytest.raises(ValueError, match=r"^its matchers have 4097 bytes together, expected at most 4096$"):
        silence(stage, f"host={values}", "zone=" + "z" * 70 + "\u00e4")


@pytest.mark.parametrize("by_clock", [True, False])
def test_silences_that_end_at_once_are_one_change_of_what_is_known(
    stage: Stage, ann: Worker, *, by_clock: bool
) -> None:
    for host in ("db1", "db*", "db1|db2"):
        silence(stage, f"host={host}", until_resolved=True)
    fire(stage, "a", labels={"host": "db1"})
    ann.run()
    before = int(stage.redis.hget(stage.keys.named("silencing"), "version"))
    stage.clock.forward(HOUR_S if by_clock else 60)
    if not by_clock:
        recover(stage, "b", labels={"host": "db1"})
    ann.run()
    assert stage.redis.hgetall(stage.keys.silences) == {}
    after = int(stage.redis.hget(stage.keys.named("silencing"), "version"))
    assert (after > before, after) == (True, stage.clock.now_us)


def test_there_are_200_silences_at_most_and_a_mute_is_replaced_all_the_same(stage: Stage) -> None:
    for n in range(199):
        stage.silencing.begin(Wanted(parse_matchers(f"host=db{n}"), HOUR_S * US, "anna", "x"))
    assert mute(stage, "errors") == UNTIL_US
    with pytest.raises(TooManySilences):
        silence(stage, "host=web")
    assert mute(stage, "errors", 60) == START_US + 60 * US
    stage.clock.forward(60)
    assert silence(stage, "host=web") == "201"


def test_categories_that_a_silence_names_are_not_dropped_by_the_pre_check(stage: Stage, ann: Worker) -> None:
    stage.put_in_force("categories: {errors: {limits: [1/30m]}, erased: {limits: [1/30m]}, other: {limits: [1/30m]}}")
    ann.run()
    version = stage.versions.in_force()
    assert version is not None
    ann.follow(version)
    for category in ("errors", "erased", "other"):
        send(stage, *(f"{category}{n}" for n in range(2)), category=category)
    ann.run()
    silence(stage, "category=err*|erased", "host!=web")
    for category in ("errors", "erased", "other"):
        send(stage, f"{category}2", category=category)
    taken = ann.take()
    assert ([each.id for each in taken.batch], [each.names for each in taken.prefiltered]) == (
        ["errors2", "erased2"], [["other2"]],
    )  # fmt: skip
    ann.dispatch(taken.batch, silences=taken.silences)
    assert suppressed(stage) == {"1": 2}
    expire(stage, "1")
    silence(stage, "category=other")
    for category in ("errors", "erased", "other"):
        send(stage, f"{category}3", category=category)
    taken = ann.take()
    assert ([each.id for each in taken.batch], len(taken.prefiltered)) == (["other3"], 2)


@pytest.mark.parametrize("facts", [{"idle_us": 600 * US}, {"until_resolved": True}, {}])
def test_while_a_silence_without_a_category_can_end_by_itself_the_pre_check_drops_nothing(
    stage: Stage, ann: Worker, facts: dict[str, Any]
) -> None:
    ann.follow(stage.put_in_force("categories: {errors: {limits: [1/30m]}}"))
    send(stage, "a", "b")
    ann.run()
    silence(stage, "host=db1", "category!=other", from_us=stage.clock.now_us + 60 * US, **facts)
    for n, begins in enumerate((0, 60)):
        stage.clock.forward(begins)
        fire(stage, f"c{n}", labels={"host": "db1"})
        taken = ann.take()
        is_dropped = not facts or not begins
        assert [each.names for each in taken.prefiltered] == ([[f"c{n}"]] if is_dropped else [])
        ann.dispatch(taken.batch, silences=taken.silences)
    assert suppressed(stage) == {"1": 1 if facts else 0}
    assert [each.firing for each in stage.silencing.all()] == [1 if facts else None]
    expire(stage, "1")
    send(stage, "d")
    assert [each.names for each in ann.take().prefiltered] == [["d"]]


def test_what_an_older_worker_leaves_of_a_silence_that_it_ended_stops_no_pre_check(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force("categories: {errors: {limits: [1/30m]}}"))
    send(stage, "a", "b")
    ann.run()
    silence(stage, "host=db1", until_resolved=True)
    silencing = stage.keys.named("silencing")
    left = {field: stage.redis.hget(silencing, field) for field in ("unnamed", "watched")}
    expire(stage, "1")
    stage.redis.hset(silencing, mapping=left)
    send(stage, "c")
    assert [each.names for each in ann.take().prefiltered] == [["c"]]


def test_what_is_silenced_without_a_category_is_no_repeat_in_the_pre_check_either(stage: Stage, ann: Worker) -> None:
    rule = f'{{limits: [], channel: "{UNPACED}", on_limit: dead-letter, once: {{per: 1h}}}}'
    ann.follow(stage.put_in_force(f'channels: {{"{UNPACED}": {{pace: none}}}}\ncategories: {{errors: {rule}}}'))
    fire(stage, "a", "b")
    ann.run()
    fire(stage, "again")
    ann.run()
    fire(stage, "dropped")
    assert [each.names for each in ann.take().prefiltered] == [["dropped"]]
    silence(stage, "host=db1")
    fire(stage, "silenced", labels={"host": "db1"})
    fire(stage, "loud")
    ann.run()
    assert stage.snapshot().counts.by_reason("dead") == {("errors", "silenced"): 1}
    assert stage.snapshot().counts.by_reason("dropped") == {("errors", "repeat"): 4}


# Its end and its report


def test_at_its_end_one_line_says_what_it_has_suppressed_where_most_of_it_would_have_gone(
    stage: Stage, ann: Worker
) -> None:
    silence(stage, "host=db1")
    for n, channel in enumerate(("#b", "#a", "#b")):
        stage.send(f"e{n}", channel=channel, labels={"host": "db1"}, dedup_key=f"key{n}")
    recover(stage, "r", key="key0", labels={"host": "db1"})
    ann.run()
    assert ann.desk.posts == []
    stage.clock.forward(HOUR_S)
    ann.run()
    assert reports(ann) == []  # workers may still be deciding what they took before the end
    stage.clock.forward(1)
    ann.run()
    assert reports(ann) == [("#b", "Silence by anna ended: 3 suppressed, 2 still firing (host=db1)")]
    assert (stage.total("notices"), stage.total("dropped"), stage.total("sent")) == (1, 4, 0)
    assert stage.redis.keys("*silence:1*") + stage.redis.keys("*firing*") == []


def test_the_report_says_how_many_of_what_it_suppressed_were_only_deferred(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1")
    fire(stage, "a", "b", labels={"host": "db1"}, category="later")
    fire(stage, "c", labels={"host": "db1"}, key="other")
    ann.run()
    stage.clock.forward(60)
    ann.run()  # what waits is counted once, however often it is looked at
    expire(stage, "1")
    stage.clock.forward(1)
    ann.run()
    assert events_posted(ann) == ["a", "b"]
    said = "Silence by anna ended: 3 suppressed, 2 of them deferred, 2 still firing (host=db1)"
    assert [text for _, text in reports(ann)] == [said]


def test_the_report_asks_for_room_in_the_global_limits_alone(redis: Database) -> None:
    stage = Stage(redis, replace(policy_of("1/30m", "1/30m"), defaults=policy_of("1/30m", "1/30m").defaults))
    ann = stage.worker()
    silence(stage, "host=db1", seconds=60)
    send(stage, "a", labels={"host": "db1"})
    send(stage, "b")
    ann.run()
    stage.clock.forward(61)
    ann.run()
    assert ann.desk.posts == ["b"]
    stage.clock.forward(1_800)
    ann.run()
    assert [text for _, text in reports(ann)] == ["Silence by anna ended: 1 suppressed (host=db1)"]
    assert stage.slots("category:silences") == {}


@pytest.mark.parametrize(("events", "facts"), [(0, {}), (2, {"reports": False})], ids=["nothing", "not wanted"])
def test_no_report_is_posted_where_there_is_nothing_to_tell_or_none_is_wanted(
    stage: Stage, ann: Worker, events: int, facts: dict[str, Any]
) -> None:
    silence(stage, "host=db1", seconds=60, **facts)
    send(stage, *(f"e{n}" for n in range(events)), labels={"host": "db1"})
    ann.run()
    stage.clock.forward(60)
    ann.run()
    stage.clock.forward(1)
    ann.run()
    assert (ann.desk.posts, stage.snapshot().events, stage.redis.keys("*silence:*")) == ([], 0, [])


def test_a_silence_that_is_expired_ends_at_once_and_is_reported(stage: Stage, ann: Worker) -> None:
    id_ = silence(stage, "host=db1")
    send(stage, "a", labels={"host": "db1"})
    ann.run()
    assert expire(stage, id_)
    assert stage.rung == 1
    assert not expire(stage, id_)
    send(stage, "b", labels={"host": "db1"})
    ann.run()
    assert ann.desk.posts == ["b"]
    stage.clock.forward(1)
    ann.run()
    assert [text for _, text in reports(ann)] == ["Silence by anna ended: 1 suppressed (host=db1)"]


def test_an_event_that_was_taken_before_the_end_still_counts(stage: Stage, ann: Worker) -> None:
    id_ = silence(stage, "host=db1")
    send(stage, "a", labels={"host": "db1"})
    taken = ann.take()
    expire(stage, id_)
    ann.dispatch(taken.batch, silences=taken.silences)
    stage.clock.forward(1)
    ann.run()
    assert [text for _, text in reports(ann)] == ["Silence by anna ended: 1 suppressed (host=db1)"]


def test_an_event_that_was_taken_before_the_end_does_not_wait_for_it(stage: Stage, ann: Worker) -> None:
    id_ = silence(stage, "host=db1")
    send(stage, "a", category="later", labels={"host": "db1"})
    taken = ann.take()
    expire(stage, id_)
    ann.dispatch(taken.batch, silences=taken.silences)
    assert opens_at(stage, "silence:1") == START_US
    ann.run()
    assert events_posted(ann) == ["a"]


def test_until_resolved_a_silence_ends_with_the_last_that_fires(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db*", until_resolved=True)
    for key in ("x", "y"):
        fire(stage, f"f{key}", f"g{key}", key=key, labels={"host": f"db{key}"})
    ann.run()
    recover(stage, "rx", key="x")
    ann.run()
    assert [each.firing for each in stage.silencing.all()] == [1]
    recover(stage, "ry", key="y")
    ann.run()
    assert stage.silencing.all() == []
    stage.clock.forward(1)
    ann.run()
    assert [text for _, text in reports(ann)] == ["Silence by anna ended: 4 suppressed, 0 still firing (host=db*)"]


def test_a_recovery_that_is_older_than_what_fires_ends_nothing(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1", until_resolved=True)
    fire(stage, "f", labels={"host": "db1"}, created_at=START_US / US)
    ann.run()
    recover(stage, "r", created_at=START_US / US - 60)
    ann.run()
    assert [each.firing for each in stage.silencing.all()] == [1]


def test_a_silence_ends_once_nothing_has_matched_for_a_time_and_a_worker_wakes_for_it(stage: Stage) -> None:
    ann = stage.worker(lease_us=86_400 * US)
    silence(stage, "host=db1", idle_us=600 * US)
    for n in range(3):
        stage.clock.forward(599)
        send(stage, f"e{n}", labels={"host": "db1"})
        ann.run()
    assert [each.silence.ends_us for each in stage.silencing.all()] == [stage.clock.now_us + 600 * US]
    ann.go_on()
    assert ann.next_us == stage.clock.now_us + 600 * US
    stage.clock.forward(600)
    ann.go_on()
    assert stage.silencing.all() == []
    assert ann.next_us == stage.clock.now_us + US
    stage.clock.forward(1)
    ann.run()
    assert [text for _, text in reports(ann)] == ["Silence by anna ended: 3 suppressed (host=db1)"]


def test_what_a_silence_is_said_to_last_is_until_it_is_idle(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1", idle_us=600 * US)
    stage.clock.forward(60)
    for id_, category in (("a", "errors"), ("b", "kept"), ("c", "later")):
        send(stage, id_, category=category, labels={"host": "db1"})
    ann.run()
    said = "silenced from 10:53:20 until 11:04:20 by anna: db1 moves (silence 1)."
    assert sentence(stage, "a") == f"Dropped at 10:54:20: {said}"
    assert sentence(stage, "b") == f"Dead letter at 10:54:20: {said}"
    assert sentence(stage, "c") == f"Waits: it is {said}"
    ends_us = stage.clock.now_us + 600 * US
    waits = stage.explanations.explain("c")
    assert waits.next_at == ends_us / US
    (listed,) = silences_document(stage.silencing.all())["silences"]
    assert (listed["until"], listed["ends"]) == (UNTIL_US / US, ends_us / US)
    (in_force,) = stage.snapshot().silences_in_force
    assert (in_force.until_us, in_force.ends_us) == (UNTIL_US, ends_us)
    assert {each.next_us for each in stage.snapshot().lines.values()} == {ends_us}
    stage.clock.forward(600)
    assert not stage.snapshot().silences_in_force


def test_another_silence_that_matches_too_is_not_idle(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1", idle_us=600 * US)
    silence(stage, "category=errors", seconds=2 * HOUR_S)
    stage.clock.forward(599)
    send(stage, "a", labels={"host": "db1"})
    ann.run()
    assert suppressed(stage) == {"1": 0, "2": 1}
    assert next(each.silence.ends_us for each in stage.silencing.all()) == stage.clock.now_us + 600 * US


def test_a_silence_that_has_begun_holds_after_a_step_back_of_the_clock_and_lasts_as_long_as_it_was_to(
    stage: Stage, ann: Worker
) -> None:
    silence(stage, "host=db1")
    stage.clock.forward(60)
    later = silence(stage, "host=db1", from_us=stage.clock.now_us + HOUR_S * US)
    stage.clock.forward(60)
    ann.notice_step(-86_400 * US)
    send(stage, "a", labels={"host": "db1"})
    ann.run()
    assert suppressed(stage) == {"1": 1, later: 0}
    assert [each.silence.until_us for each in stage.silencing.all()] == [
        UNTIL_US - 86_400 * US,
        UNTIL_US + 60 * US + HOUR_S * US,
    ]
    stage.clock.forward(HOUR_S - 120)
    ann.run()
    send(stage, "b", labels={"host": "db1"})
    ann.run()
    assert (suppressed(stage), events_posted(ann)) == ({later: 0}, ["b"])


def test_after_a_step_back_of_the_clock_a_silence_is_idle_within_its_time(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1", seconds=200_000, idle_us=600 * US)
    stage.clock.forward(500)
    send(stage, "a", labels={"host": "db1"})
    ann.run()
    stage.clock.forward(60)
    ann.notice_step(-120 * US)
    assert [each.silence.ends_us for each in stage.silencing.all()] == [stage.clock.now_us + 600 * US]


def test_what_fired_before_a_step_back_of_the_clock_is_over_with_the_recovery_after_it(
    stage: Stage, ann: Worker
) -> None:
    silence(stage, "host=db1", seconds=200_000, until_resolved=True)
    stage.clock.forward(60)
    fire(stage, "a", labels={"host": "db1"})
    ann.run()
    ann.notice_step(-30 * US)
    recover(stage, "r", labels={"host": "db1"})
    ann.run()
    assert stage.silencing.all() == []


def test_the_resolved_of_a_posted_message_passes_a_silence(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", labels={"host": "db1"})
    ann.run()
    silence(stage, "host=db1")
    recover(stage, "r", labels={"host": "db1"})
    ann.run()
    assert len(ann.desk.edits) == 1
    assert suppressed(stage) == {"1": 0}


def test_a_recovery_that_becomes_a_message_after_it_was_tried_as_an_edit_is_silenced(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", labels={"host": "db1"})
    ann.run()
    post = ann.desk.reply
    ann.desk.reply = lambda _: Retryable("http_500", "", uses_attempt=True, reached=True)
    recover(stage, "r", labels={"host": "db1"})
    ann.deliver(ann.go())
    ann.desk.reply, ann.desk.can_update = post, False
    silence(stage, "host=db1")
    stage.clock.forward(60)
    ann.run()
    assert (ann.desk.posts, suppressed(stage)) == (["f"], {"1": 1})


def test_a_recovery_that_would_be_a_message_is_silenced(stage: Stage, ann: Worker) -> None:
    ann.desk.can_update = False
    fire(stage, "f", labels={"host": "db1"})
    ann.run()
    silence(stage, "host=db1")
    recover(stage, "r", labels={"host": "db1"})
    ann.run()
    assert (ann.desk.posts, suppressed(stage)) == (["f"], {"1": 1})
    assert sentence(stage, "r").startswith("Dropped at 10:53:20: silenced")


def test_a_report_that_cannot_be_posted_is_tried_again_for_a_day(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1", seconds=60)
    send(stage, "a", labels={"host": "db1"})
    ann.run()
    ann.desk.reply = lambda _: Rejected("channel_not_found", "there is no such channel")
    stage.clock.forward(61)
    for _ in range(26):
        ann.run()
        stage.clock.forward(HOUR_S)
    assert len(reports(ann)) == 24
    assert (stage.total("notices"), stage.snapshot().events) == (0, 0)


def test_a_report_that_waits_is_no_parked_event(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1", seconds=60)
    send(stage, "a", "b", labels={"host": "db1"})
    send(stage, "c", category="later", labels={"host": "db1"})
    ann.run()
    events = ParkedEvents(stage.redis, stage.keys, stage.queue, stage.policy, remember_us=0, clock=stage.clock)
    assert events.count() == len(list(events.find(ParkedFilter()))) == 1
    stage.clock.forward(60)
    ann.run()
    assert (events.count(), stage.snapshot().parked_with_digests) == (0, 1)


def test_a_digest_that_a_silence_holds_back_is_posted_when_the_silence_ends_early(stage: Stage, ann: Worker) -> None:
    rule = replace(stage.policy.rule("kept"), on_limit=OnLimit.DIGEST)
    stage.policy = replace(stage.policy, categories={**stage.policy.categories, "told": rule})
    send(stage, *"abcdef", category="told")
    ann.run()
    mute(stage, "told")
    stage.clock.forward(HOUR_S / 2)
    ann.run()
    assert ann.desk.posts == ["a", "b"]
    assert unmute(stage, "told")
    ann.run()
    assert ann.desk.posts == ["a", "b", "digest:told#7"]


def test_the_early_end_of_a_silence_wakes_a_digest_that_waits_among_very_many_counts_of_repeats(
    stage: Stage, redis: Database
) -> None:
    rule = replace(stage.policy.rule("kept"), on_limit=OnLimit.DIGEST)
    quiet = QuietStage(redis, FREE)
    quiet.policy = replace(stage.policy, categories={**stage.policy.categories, "told": rule})
    ann = quiet.worker()
    send(quiet, *"abcdef", category="told")
    ann.run()
    id_ = silence(quiet, "category=told", reports=False)
    quiet.clock.forward(HOUR_S / 2)
    ann.run()
    redis.sadd(quiet.keys.tallies, *(f"repeat:errors:{n}" for n in range(30_000)))
    redis.delete(quiet.keys.wake)
    assert expire(quiet, id_)
    assert redis.llen(quiet.keys.wake) == 1
    ann.run()
    assert ann.desk.posts == ["a", "b", "digest:told#7"]
    assert redis.exists(quiet.keys.reopening) == 0


def test_of_very_many_counts_of_repeats_none_asks_again_when_a_silence_begins_and_all_may_when_a_mute_is_replaced(
    redis: Database,
) -> None:
    quiet = QuietStage(redis, FREE)
    redis.sadd(quiet.keys.tallies, *(f"repeat:errors:{n}" for n in range(30_000)))
    silence(quiet, "category=kept")
    mute(quiet, "told")
    assert (redis.exists(quiet.keys.reopening), redis.llen(quiet.keys.wake)) == (0, 1)
    redis.delete(quiet.keys.wake)
    mute(quiet, "told")
    assert (redis.hkeys(quiet.keys.reopening), redis.llen(quiet.keys.wake)) == ([b"silenced"], 1)
    later_us = quiet.clock.now_us + US
    waiting = ("repeat:errors:1", "digest:told")  # a repeat never waits for a silence: nobody reads its header
    redis.zadd(quiet.keys.timers, dict.fromkeys(waiting, later_us))
    redis.hset(quiet.keys.events, mapping=dict.fromkeys(waiting, '{"why":["silenced"]}\n'))
    quiet.worker().take(0, 0)
    assert [redis.zscore(quiet.keys.timers, id_) for id_ in waiting] == [later_us, quiet.clock.now_us]


def test_an_event_that_finds_no_place_to_wait_for_the_end_of_a_silence_is_counted_by_it(
    stage: Stage, ann: Worker
) -> None:
    rule = replace(stage.policy.rule("later"), max_parked=2)
    stage.policy = replace(stage.policy, categories={"later": rule})
    silence(stage, "host=db1", idle_us=600 * US)
    send(stage, "a", "b", category="later", labels={"host": "db1"})
    ann.run()
    stage.clock.forward(300)
    send(stage, "c", category="later", labels={"host": "db1"})
    ann.run()
    assert (len(list(stage.dead_letters.find(Filter(reason="overflow")))), suppressed(stage)) == (1, {"1": 3})
    assert [each.silence.ends_us for each in stage.silencing.all()] == [stage.clock.now_us + 600 * US]


def test_a_report_whose_channel_is_gone_goes_to_the_fallback(stage: Stage, ann: Worker) -> None:
    stage.policy = replace(stage.policy, defaults=replace(stage.policy.defaults, fallback="#ops"))
    silence(stage, "host=db1", seconds=60)
    send(stage, "a", labels={"host": "db1"})
    ann.run()
    ann.desk.reply = lambda message: (
        Receipt("#ops", "1.5") if message.channel == "#ops" else Rejected("is_archived", "archived")
    )
    stage.clock.forward(60)
    ann.run()
    stage.clock.forward(1)
    ann.run()
    gone, posted = ann.desk.messages
    assert (gone.channel, posted.channel) == (UNPACED, "#ops")
    assert posted.text.splitlines()[1:] == [gone.text]
    assert (stage.total("notices"), stage.snapshot().events) == (1, 0)


def test_a_report_whose_worker_dies_while_posting_is_found_and_not_posted_again(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1", seconds=60)
    send(stage, "a", labels={"host": "db1"})
    ann.run()
    stage.clock.forward(60)
    ann.run()
    stage.clock.forward(1)
    (started,) = ann.go()
    bob = stage.worker("bob")
    bob.desk.shows = lambda search: ScanResult(
        {id_: Receipt(search.channel, "1.5") for id_ in search.event_ids}, Absent()
    )
    keep_beating(stage, 40, "bob")
    bob.run()
    assert [each.event_ids for each in bob.desk.searches] == [(started.candidate.leased.name,)]
    assert (bob.desk.posts, stage.total("notices"), stage.snapshot().events) == ([], 1, 0)


def test_a_worker_that_dies_with_silenced_events_counts_them_once(stage: Stage, ann: Worker) -> None:
    silence(stage, "host=db1", seconds=2 * HOUR_S)
    send(stage, "a", labels={"host": "db1"})
    send(stage, "b", category="later", labels={"host": "db1"})
    ann.take()
    ann.give_back()
    bob = stage.worker("bob")
    taken = bob.take()
    bob.dispatch(taken.batch, silences=taken.silences)
    bob.dispatch(taken.batch, silences=taken.silences)
    assert suppressed(stage) == {"1": 2}
    stage.worker("carl").run()  # lets all lines ask again
    assert suppressed(stage) == {"1": 2}


def test_beyond_10000_keys_a_silence_lasts_until_its_end_and_its_report_says_at_least(
    stage: Stage, ann: Worker
) -> None:
    id_ = silence(stage, "host=db1", until_resolved=True)
    fire(stage, "a", key="x", labels={"host": "db1"})
    ann.run()
    stage.redis.zadd(stage.keys.firing(id_), {f"subject{n}": START_US for n in range(9_998)})
    fire(stage, "b", key="y", labels={"host": "db1"})
    fire(stage, "c", key="z", labels={"host": "db1"})
    ann.run()
    assert stage.redis.zcard(stage.keys.firing(id_)) == 10_000
    recover(stage, "r", key="y")
    ann.run()
    assert len(stage.silencing.all()) == 1
    stage.clock.forward(HOUR_S)
    ann.run()
    stage.clock.forward(1)
    ann.run()
    assert [text for _, text in reports(ann)] == [
        "Silence by anna ended: 3 suppressed, at least 9999 still firing (host=db1)"
    ]


def test_of_a_silence_100_channels_are_counted_apart(stage: Stage, ann: Worker) -> None:
    id_ = silence(stage, "host=db1")
    for n in range(102):
        stage.send(f"e{n}", channel=f"#c{n}", labels={"host": "db1"})
    ann.run()
    counted = [name for name in stage.redis.hkeys(stage.keys.tally(f"silence:{id_}")) if name.startswith(b"to ")]
    assert (len(counted), suppressed(stage)) == (100, {id_: 102})


# What is seen


def test_a_preview_counts_the_newest_decisions_by_the_same_function(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", labels={"host": "db1"})
    stage.clock.forward(1)
    send(stage, "c", labels={"host": "db2"}, priority="high")
    send(stage, "d", labels={"host": "web"})
    ann.run()
    stage.send("a")
    ann.run()
    seen = preview(parse_matchers("host=db*"), stage.decisions)
    assert replace(seen, newest=()) == Preview(3, 4, START_US + US, {"high": 1, "normal": 2})
    assert [each.id for each in seen.newest] == ["b", "a", "c"]
    assert preview(parse_matchers("priority=high"), stage.decisions).matched == 1
    assert preview(parse_matchers("host!=db1"), stage.decisions, lambda: False) == Preview(0, 0, START_US + US, {}, [])


def test_a_take_tells_of_silences_where_they_have_changed_and_a_worker_keeps_the_others(
    stage: Stage, ann: Worker
) -> None:
    assert ann.take().silences.each == ()
    silence(stage, "host=db1")
    first = ann.take().silences
    assert ann.take().silences is first
    silence(stage, "host=db2")
    assert len(ann.take().silences.each) == 2
    expire(stage, "1")
    assert [each.id for each in ann.take().silences.each] == ["2"]
    stage.redis.flushall()
    assert ann.take().silences.each == ()


def test_a_call_with_many_recoveries_reads_once_which_silences_there_are(stage: Stage, ann: Worker) -> None:
    for n in range(5):
        silence(stage, f"host=other{n}", until_resolved=True)
    id_ = silence(stage, "host=db1", until_resolved=True)
    for n in range(30):
        stage.send(f"f{n}", labels={"host": "db1"}, dedup_key=f"key {n}")
    ann.run()
    assert suppressed(stage)[id_] == 30
    for n in range(30):
        stage.send(f"r{n}", dedup_key=f"key {n}", status="resolved")
    batch = [each for each in ann.take().batch if isinstance(each, Leased)]
    recoveries = [recovery_of(Candidate(each, ann.policy.terms(each)), ann.policy, can_edit=True) for each in batch]
    stage.redis.config_resetstat()
    ann.outbox.recover(recoveries, lambda _: None)
    assert stage.redis.info("commandstats")["cmdstat_zrangebyscore"]["calls"] <= 3
    assert stage.silencing.get(id_) is None

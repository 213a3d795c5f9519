"""Pauses, in which one event at a time tries: Slack is not reached, the workspace cools down, an operator is needed."""

from __future__ import annotations

from typing import Final

import pytest

from dispatcher.core.limits import Reason
from dispatcher.core.posts import Ambiguous, Paused, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.states import GRACE_US, Absent, Parked, PauseChange, ScanLater, ScanResult, Started
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from tests.support.doubles import NOTHING_TO_READ, START_US
from tests.support.servers import Database
from tests.support.stage import LEASE_US, UNPACED, Stage, Worker, policy_of

OUTAGE: Final = 5
"""So many failures in a row are an outage."""

REFUSED: Final = Retryable("connection_refused", "nobody listens there")
LOST: Final = Ambiguous("http_503", "no answer of Slack's own came back")
TOKEN: Final = Paused("invalid_auth", "Slack does not accept the token")
COOL: Final = RateLimitedBySlack(30 * US, "ratelimited")
ARRIVED: Final = Receipt("#general", "1.1")
NEVER: Final = Rejected("is_archived", "the channel is archived")


def begin(worker: Worker, count: int, prefix: str = "e") -> list[Started]:
    """Posts under way, each to a channel of its own."""
    for n in range(count):
        worker.stage.send(f"{prefix}{n}", channel=f"#{prefix}{n}")
    started = worker.go()
    assert len(started) == count
    return started


def fail(worker: Worker, count: int, result: PostResult = REFUSED) -> None:
    for started in begin(worker, count):
        worker.answer(started, result)


def pause_changes(worker: Worker) -> list[PauseChange]:
    pauses, worker.told.pauses = worker.told.pauses, []
    return pauses


def kind(stage: Stage) -> str | None:
    value = stage.redis.hget(stage.keys.pause, "kind")
    return None if value is None else value.decode()


def probe_in(stage: Stage) -> float:
    """Seconds until the next one may try."""
    pause = stage.snapshot().pause
    assert pause is not None
    return (pause.probe_us - stage.clock.now_us) / US


def next_prober(worker: Worker) -> Started:
    """Let time pass until one may try; nobody may before, and no other beside it. Somebody waits for it."""
    stage = worker.stage
    stage.send(f"at{stage.clock.now_us}", channel=f"#{stage.clock.now_us}")
    assert worker.go(due=0) == []
    wait_s = probe_in(stage)
    stage.clock.now_us += round(wait_s * US) - 1
    assert worker.go(new=0) == []
    stage.clock.now_us += 1
    (started,) = worker.go(new=0)
    assert worker.go(new=0) == []
    return started


# An outage


@pytest.mark.parametrize("result", [REFUSED, LOST], ids=["refused", "no answer"])
def test_five_failures_in_a_row_of_the_fleet_are_an_outage(stage: Stage, result: PostResult) -> None:
    worker = stage.worker("w")
    for n in range(OUTAGE):
        worker = stage.worker(f"w{n}")
        assert kind(stage) is None
        (started,) = begin(worker, 1, f"w{n}-")
        worker.answer(started, result)
        worker.decided()
    assert kind(stage) == "outage"
    assert probe_in(stage) == 1
    stage.send("new", channel="#new")
    assert worker.go() == []
    assert worker.told.waits[-1].reason is Reason.PAUSED


@pytest.mark.parametrize("answer", [ARRIVED, NEVER, COOL], ids=lambda answer: type(answer).__name__)
def test_an_answer_in_between_begins_the_count_anew(stage: Stage, ann: Worker, answer: PostResult) -> None:
    started = begin(ann, 2 * OUTAGE - 1)
    for each in started[: OUTAGE - 1]:
        ann.answer(each, REFUSED)
    ann.answer(started[OUTAGE - 1], answer)
    for each in started[OUTAGE:]:
        ann.answer(each, REFUSED)
    assert kind(stage) is None


@pytest.mark.parametrize("result", [Retryable("request_timeout", "incomplete", reached=True), TOKEN])
def test_an_answer_of_slack_itself_is_no_failure_to_reach_it(stage: Stage, ann: Worker, result: PostResult) -> None:
    fail(ann, OUTAGE, result)
    assert kind(stage) != "outage"
    assert stage.redis.exists(stage.keys.failures) == 0


def test_failed_scans_count_as_failures(stage: Stage, ann: Worker) -> None:
    ann.desk.shows = lambda _: ScanResult({}, ScanLater("http_503", "no answer"))
    fail(ann, OUTAGE - 2, LOST)
    stage.clock.now_us += GRACE_US
    ann.go(new=0)
    assert kind(stage) == "outage"


def test_failed_scans_of_one_channel_are_no_outage(stage: Stage, ann: Worker) -> None:
    ann.desk.shows = lambda _: ScanResult({}, ScanLater("http_503", "no answer"))
    fail(ann, 1, LOST)
    stage.clock.now_us += GRACE_US
    for _ in range(2 * OUTAGE):
        ann.go(new=0)
        stage.clock.forward(5)
    assert len(ann.desk.searches) == 2 * OUTAGE
    assert kind(stage) is None


def test_a_history_scan_that_slack_answers_does_not_end_an_outage_and_costs_it_no_time(
    stage: Stage, ann: Worker
) -> None:
    """What takes no posts may well be read."""
    fail(ann, OUTAGE, LOST)
    stage.clock.now_us += GRACE_US
    assert ann.dispatch(ann.take(due=1).batch) == []
    assert len(ann.desk.searches) == 1
    assert (kind(stage), probe_in(stage)) == ("outage", 0)
    stage.send("new", channel="#new")
    ann.deliver(ann.go(due=0))
    assert kind(stage) is None


def show_all(worker: Worker) -> None:
    """From now on a history scan finds whatever it looks for."""
    worker.desk.shows = lambda search: ScanResult(dict.fromkeys(search.event_ids, ARRIVED), Absent())


def test_a_post_made_before_the_outage_that_is_found_does_not_end_it(stage: Stage, ann: Worker) -> None:
    fail(ann, OUTAGE - 1, LOST)
    stage.clock.forward(1)
    ann.answer(begin(ann, 1, "last")[0], LOST)
    show_all(ann)
    stage.clock.now_us += GRACE_US
    ann.go(due=1)
    assert (kind(stage), stage.total("sent"), probe_in(stage)) == ("outage", 1, 0)


def test_a_post_made_in_the_outage_that_is_found_ends_it(stage: Stage, ann: Worker) -> None:
    fail(ann, OUTAGE, LOST)
    ann.answer(next_prober(ann), LOST)
    assert kind(stage) == "outage"
    show_all(ann)
    stage.clock.now_us += 2 * GRACE_US
    for _ in range(OUTAGE + 1):
        ann.go(due=1)
    assert (kind(stage), stage.total("sent")) == (None, OUTAGE + 1)


@pytest.mark.parametrize(
    ("result", "key"), [(LOST, "failing"), (LOST, "failures"), (TOKEN, "denials"), (ARRIVED, "posted")]
)
def test_the_result_of_a_post_is_forgotten_after_an_hour(
    stage: Stage, ann: Worker, result: PostResult, key: str
) -> None:
    fail(ann, 1, result)
    assert 3_599_000 < stage.redis.pttl(stage.keys.named(key)) <= 3_600_001


def test_in_an_outage_no_attempt_is_used_up(stage: Stage, ann: Worker) -> None:
    started = begin(ann, OUTAGE + 3)
    for each in started:
        ann.answer(each, REFUSED)
    attempts = [stage.header(each.candidate.leased.id)["attempt"] for each in started]
    assert attempts == [1] * (OUTAGE - 1) + [0] * 4
    for _ in range(10):
        ann.answer(next_prober(ann), REFUSED)
    assert max(stage.header(each.candidate.leased.id)["attempt"] for each in started) == 1


def test_the_gap_between_two_tries_doubles_up_to_half_a_minute(stage: Stage, ann: Worker) -> None:
    fail(ann, OUTAGE)
    gaps = [probe_in(stage)]
    for _ in range(7):
        ann.answer(next_prober(ann), REFUSED)
        gaps.append(probe_in(stage))
    assert gaps == [1, 2, 4, 8, 16, 30, 30, 30]


def test_only_the_prober_lengthens_the_gap(stage: Stage, ann: Worker) -> None:
    for each in begin(ann, OUTAGE + 4):
        ann.answer(each, REFUSED)
    assert probe_in(stage) == 1


def test_all_workers_together_have_one_prober_at_a_time(stage: Stage, ann: Worker, bob: Worker) -> None:
    fail(ann, OUTAGE)
    stage.clock.forward(6)
    one, two = ann.take(), bob.take()
    assert [len(each.batch) for each in (one, two)] == [1, 1]
    assert len(ann.dispatch(one.batch)) == 1
    assert bob.dispatch(two.batch) == []
    assert bob.go() == []


def test_a_prober_whose_worker_dies_is_followed_by_another(stage: Stage, ann: Worker, bob: Worker) -> None:
    fail(ann, OUTAGE)
    stage.clock.forward(6)
    (prober,) = ann.go()
    assert probe_in(stage) == 30
    stage.clock.forward(29)
    assert bob.go() == []
    stage.clock.forward(1)
    (other,) = bob.go()
    assert other.candidate.leased.id != prober.candidate.leased.id


def test_a_history_scan_may_be_the_prober(stage: Stage, ann: Worker, bob: Worker) -> None:
    fail(ann, OUTAGE, LOST)
    stage.clock.now_us += GRACE_US
    batch = ann.take(due=1).batch
    (lookup,) = ann.dispatcher.scans(batch, stage.clock.now_us)
    assert (probe_in(stage), bob.go()) == (30, [])
    ann.desk.shows = lambda _: ScanResult({}, ScanLater("http_503", "no answer"))
    ann.settle(ann.dispatcher.scan(lookup))
    assert probe_in(stage) == 2


@pytest.mark.parametrize("answer", [ARRIVED, NEVER, COOL], ids=lambda answer: type(answer).__name__)
def test_any_answer_ends_an_outage(stage: Stage, ann: Worker, answer: PostResult) -> None:
    fail(ann, OUTAGE)
    ann.answer(next_prober(ann), answer)
    assert (kind(stage), stage.redis.exists(stage.keys.failures)) == (None, 0)
    stage.clock.forward(5)
    assert len(ann.go()) == OUTAGE


def test_the_answer_to_a_post_that_began_before_ends_it_too(stage: Stage, ann: Worker) -> None:
    *failing, slow = begin(ann, OUTAGE + 1)
    for each in failing:
        ann.answer(each, REFUSED)
    ann.answer(slow, ARRIVED)
    assert kind(stage) is None


def test_the_beginning_and_the_end_are_told_once(ann: Worker) -> None:
    for each in begin(ann, OUTAGE + 3):
        ann.answer(each, REFUSED)
    ann.answer(next_prober(ann), REFUSED)
    assert pause_changes(ann) == [
        PauseChange("outage", began=True, code="connection_refused", detail="nobody listens there")
    ]
    ann.answer(next_prober(ann), ARRIVED)
    assert pause_changes(ann) == [PauseChange("outage", began=False)]
    ann.deliver(ann.go())
    assert pause_changes(ann) == []


def test_no_worker_is_woken_before_the_prober_may_try(stage: Stage, ann: Worker, bob: Worker) -> None:
    bob.outbox._lease_us = 3_600 * US  # noqa: SLF001 - its own lease is not what it wakes for
    fail(ann, OUTAGE)
    ann.give_back()
    for _ in range(4):
        bob.answer(next_prober(bob), REFUSED)
    assert bob.take().next_us == stage.clock.now_us + 16 * US


def test_an_event_admitted_in_an_outage_is_posted_after_it(redis: Database) -> None:
    stage = Stage(redis, policy_of("8/30m", "8/30m"))
    ann = stage.worker("ann")
    fail(ann, OUTAGE)
    stage.send("f", "g", "h", "i", channel="#late")
    assert ann.go() == []
    assert (stage.total("dropped"), len(stage.held("global"))) == (1, 8)
    for _ in range(4):
        ann.answer(next_prober(ann), REFUSED)
    ann.deliver([next_prober(ann)])
    stage.clock.forward(5)
    ann.run()
    assert (stage.total("sent"), stage.letters()) == (8, [])


# A cool-down of the whole workspace


def widen(worker: Worker, first_s: int = 30, second_s: int = 20) -> list[Started]:
    """Two channels answer 429; returns what was under way beside."""
    one, two, *rest = begin(worker, 5)
    worker.answer(one, RateLimitedBySlack(first_s * US, "ratelimited", "slower"))
    worker.answer(two, RateLimitedBySlack(second_s * US, "ratelimited", "slower"))
    return rest


def test_a_single_channel_that_cools_down_does_not_pause_the_workspace(stage: Stage, ann: Worker) -> None:
    one, two, *_ = begin(ann, 5)
    ann.answer(one, COOL)
    assert (kind(stage), pause_changes(ann)) == (None, [])
    ann.answer(two, ARRIVED)
    stage.send("new", channel="#new")
    assert len(ann.go()) == 1


def test_the_same_channel_twice_is_no_matter_of_the_workspace(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    for each in ann.go():
        ann.answer(each, COOL)
    assert kind(stage) is None


def test_two_channels_one_after_the_other_are_no_matter_of_the_workspace(stage: Stage, ann: Worker) -> None:
    one, two, *_ = begin(ann, 5)
    ann.answer(one, COOL)
    stage.clock.forward(30)
    ann.answer(two, COOL)
    assert kind(stage) is None


def test_a_429_on_history_scans_is_no_matter_of_the_posts(stage: Stage, ann: Worker) -> None:
    one, two, *_ = begin(ann, 5)
    ann.answer(one, LOST)
    stage.clock.now_us += GRACE_US
    ann.desk.shows = lambda _: ScanResult({}, ScanLater("ratelimited", "Slack limits it", 60 * US, reached=True))
    ann.go(new=0, due=1)
    ann.answer(two, COOL)
    assert kind(stage) is None


@pytest.mark.parametrize(("first_s", "second_s"), [(30, 20), (20, 30)])
def test_a_second_channel_that_cools_down_stops_the_workspace_until_the_later_end(
    stage: Stage, ann: Worker, first_s: int, second_s: int
) -> None:
    widen(ann, first_s, second_s)
    assert (kind(stage), probe_in(stage)) == ("cooldown", 30)
    assert pause_changes(ann) == [PauseChange("cooldown", began=True, code="ratelimited", detail="slower")]
    stage.send("new", channel="#new")
    assert ann.go() == []
    assert ann.told.waits[-1].reason is Reason.COOLDOWN
    assert ann.told.waits[-1].wait_us == 30 * US


def test_after_it_one_goes_first_and_its_success_lets_all_others_go(stage: Stage, ann: Worker) -> None:
    rest = widen(ann)
    stage.send("new", channel="#new")
    ann.go()
    for each in rest:
        ann.answer(each, ARRIVED)
    assert kind(stage) == "cooldown", "an answer to what was under way says nothing of later"
    ann.answer(next_prober(ann), ARRIVED)
    assert (kind(stage), pause_changes(ann)[-1]) == (None, PauseChange("cooldown", began=False))
    assert len(ann.go()) == 3


def test_resume_ends_no_cool_down_of_the_workspace(stage: Stage, ann: Worker) -> None:
    widen(ann)
    assert not stage.pausing.resume("*")
    assert (kind(stage), probe_in(stage)) == ("cooldown", 30)


def test_another_429_for_the_prober_lengthens_the_cooldown(stage: Stage, ann: Worker) -> None:
    widen(ann)
    ann.answer(next_prober(ann), RateLimitedBySlack(7 * US, "ratelimited"))
    assert (kind(stage), probe_in(stage)) == ("cooldown", 7)
    assert len(pause_changes(ann)) == 1


def test_a_history_scan_does_not_end_a_cool_down_and_costs_it_no_time(stage: Stage, ann: Worker) -> None:
    first, *_ = widen(ann)
    ann.answer(first, LOST)
    stage.clock.forward(30)
    assert ann.dispatch(ann.take(due=1).batch) == []
    assert len(ann.desk.searches) == 1
    assert (kind(stage), probe_in(stage)) == ("cooldown", 0)
    assert len(ann.go(new=0)) == 1


def test_a_prober_that_fails_is_followed_by_another_in_a_second(stage: Stage, ann: Worker) -> None:
    widen(ann)
    ann.answer(next_prober(ann), REFUSED)
    assert (kind(stage), probe_in(stage)) == ("cooldown", 1)


def test_failures_in_a_cool_down_become_an_outage_that_waits_for_its_end(stage: Stage, ann: Worker) -> None:
    started = begin(ann, OUTAGE + 2)
    ann.answer(started[0], COOL)
    ann.answer(started[1], COOL)
    for each in started[2:]:
        assert kind(stage) == "cooldown"
        ann.answer(each, REFUSED)
    assert (kind(stage), probe_in(stage)) == ("outage", 30)
    stage.clock.forward(30)
    ann.answer(ann.go(new=0)[0], REFUSED)
    assert probe_in(stage) == 2


def test_probers_of_a_cool_down_that_fail_again_and_again_become_an_outage(stage: Stage, ann: Worker) -> None:
    widen(ann)
    for _ in range(OUTAGE - 1):
        ann.answer(next_prober(ann), REFUSED)
        assert kind(stage) == "cooldown"
    ann.answer(next_prober(ann), REFUSED)
    assert (kind(stage), probe_in(stage)) == ("outage", 1)


def test_an_outage_that_two_channels_end_with_429_becomes_a_cool_down(stage: Stage, ann: Worker) -> None:
    *failing, one, two = begin(ann, OUTAGE + 2)
    for each in failing:
        ann.answer(each, REFUSED)
    ann.answer(one, COOL)
    ann.answer(two, COOL)
    assert kind(stage) == "cooldown"
    assert [(each.kind, each.began) for each in pause_changes(ann)] == [
        ("outage", True),
        ("outage", False),
        ("cooldown", True),
    ]


# A channel that is held up


def held_for(stage: Stage, channel: str) -> float:
    """Seconds until the channel may be posted to again."""
    instant: float | None = stage.redis.zscore(stage.keys.cooldowns, channel)
    return 0 if instant is None else max(0, (instant - stage.clock.now_us) / US)


def test_a_channel_with_two_failures_in_a_row_is_held_up_alone_and_ever_longer(stage: Stage, ann: Worker) -> None:
    spans = []
    for n in range(9):
        stage.send(f"e{n}", channel="#bad")
        stage.send(f"good{n}", channel="#good")
        bad, good = sorted(ann.go(), key=lambda each: each.candidate.terms.channel)
        ann.answer(good, ARRIVED)
        ann.answer(bad, LOST)
        spans.append(held_for(stage, "#bad"))
        stage.clock.forward(spans[-1])
    assert spans == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert kind(stage) is None


def test_posts_under_way_when_a_channel_is_held_up_do_not_lengthen_its_wait(stage: Stage, ann: Worker) -> None:
    stage.send(*(f"e{n}" for n in range(8)), channel=UNPACED)
    for started in ann.go():
        ann.answer(started, LOST)
    assert held_for(stage, UNPACED) == 1
    stage.send("next", "after", channel=UNPACED)
    stage.clock.forward(1)
    (started,) = ann.go()
    ann.answer(started, LOST)
    assert held_for(stage, UNPACED) == 2


@pytest.mark.parametrize("answer", [ARRIVED, NEVER, COOL], ids=lambda answer: type(answer).__name__)
def test_an_answer_lets_a_channel_go_on_and_its_failures_count_anew(
    stage: Stage, ann: Worker, answer: PostResult
) -> None:
    stage.send("a", "b", "c", "d", "e", channel="#bad")
    for result in (LOST, LOST, answer):
        ann.answer(ann.go()[0], result)
        stage.clock.forward(held_for(stage, "#bad"))
    ann.answer(ann.go()[0], LOST)
    assert held_for(stage, "#bad") == 0


def test_a_post_that_is_found_lets_its_channel_go_on(stage: Stage, ann: Worker) -> None:
    show_all(ann)
    for n in range(2):
        stage.send(f"e{n}", channel="#slow")
        ann.answer(ann.go()[0], LOST)
    stage.clock.now_us += GRACE_US
    ann.go()
    assert stage.total("sent") == 2
    stage.send("next", channel="#slow")
    ann.answer(ann.go()[0], LOST)
    assert held_for(stage, "#slow") == 0


# A channel without pace after its cool-down


def test_a_channel_without_pace_takes_one_at_a_time_until_one_has_arrived(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c", "d", channel=UNPACED)
    first, *others = ann.go()
    for each in (first, *others):
        ann.answer(each, COOL)
    stage.clock.forward(30)
    (again,) = ann.go()
    assert stage.posting(UNPACED) == again.candidate.leased.id
    stage.send("e", channel=UNPACED)
    assert ann.go() == []
    ann.answer(again, COOL)
    stage.clock.forward(30)
    batch = ann.take().batch
    assert len(batch) == 1, "the others are not handed out in vain"
    (again,) = ann.dispatch(batch)
    ann.answer(again, ARRIVED)
    assert len(ann.go()) == 4
    assert stage.redis.zcard(stage.keys.cooldowns) == 0


def test_an_answer_within_the_cool_down_does_not_end_it(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    one, two = ann.go()
    ann.answer(one, COOL)
    ann.answer(two, ARRIVED)
    assert stage.snapshot().cooldowns == {UNPACED: START_US + 30 * US}


def test_a_solo_post_whose_worker_dies_frees_its_channel(stage: Stage, ann: Worker, bob: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    for each in ann.go():
        ann.answer(each, RateLimitedBySlack(US, "ratelimited"))
    stage.clock.forward(1)
    assert len(ann.go()) == 1
    for _ in range(3):
        stage.clock.now_us += LEASE_US // 3
        bob.take(0, 0)
    assert stage.posting(UNPACED) is None
    assert len(bob.go(due=2)) == 1


# An operator's pause


@pytest.mark.parametrize(("before", "until_s"), [("outage", 1), ("cooldown", 30)])
def test_an_operator_pause_replaces_any_other_and_keeps_the_end_of_a_cool_down(
    stage: Stage, ann: Worker, before: str, until_s: int
) -> None:
    started = begin(ann, OUTAGE + 2)
    for each in started[:OUTAGE]:
        ann.answer(each, REFUSED if before == "outage" else COOL)
    assert kind(stage) == before
    ann.answer(started[OUTAGE], TOKEN)
    assert (kind(stage), probe_in(stage)) == ("operator", until_s)
    ann.answer(started[OUTAGE + 1], REFUSED if before == "outage" else COOL)
    assert (kind(stage), probe_in(stage)) == ("operator", until_s)


def test_neither_an_outage_nor_a_cool_down_replaces_an_operator_pause(stage: Stage, ann: Worker) -> None:
    first, *started = begin(ann, OUTAGE + 5)
    ann.answer(first, TOKEN)
    for each in started[:2]:
        ann.answer(each, COOL)
    for each in started[2:]:
        ann.answer(each, REFUSED)
        assert stage.header(each.candidate.leased.id)["attempt"] == 1, "this is no outage"
    assert kind(stage) == "operator"


@pytest.mark.parametrize("answer", [NEVER, COOL], ids=["rejected", "429"])
def test_only_a_post_that_arrives_ends_an_operator_pause(stage: Stage, ann: Worker, answer: PostResult) -> None:
    first, second, third = begin(ann, 3)
    ann.answer(first, TOKEN)
    ann.answer(second, answer)
    assert kind(stage) == "operator"
    ann.answer(third, ARRIVED)
    assert (kind(stage), pause_changes(ann)[-1]) == (None, PauseChange("operator", began=False))


def test_an_event_that_is_denied_alone_pauses_all_once_and_ends_as_rejected(stage: Stage, ann: Worker) -> None:
    stage.prolongs = True
    stage.send("poison", channel="#theirs")
    tries = 0
    while not stage.letters() and stage.clock.now_us < START_US + 900 * US:
        for started in ann.go_on():
            is_poison = started.candidate.leased.id == "poison"
            tries += is_poison
            ann.answer(started, TOKEN if is_poison else ARRIVED)
        stage.send(f"at{stage.clock.now_us}", channel=UNPACED)
        stage.clock.forward(15)
    assert [(letter["id"], letter["reason"]) for letter in stage.letters()] == [("poison", "rejected")]
    assert MAX_ATTEMPTS < tries <= MAX_ATTEMPTS + 2, "those that met the pause used up no attempt"
    assert [turn.began for turn in pause_changes(ann)] == [True, False]


def deny_until_there_is_something_to_read(worker: Worker) -> None:
    """The one event that waits beside is denied again and again, until a history scan is due and one may try."""
    stage = worker.stage
    while stage.clock.now_us < START_US + GRACE_US:
        stage.clock.now_us += round(probe_in(stage) * US)
        for started in worker.go(new=0, due=1) if stage.clock.now_us < START_US + GRACE_US else []:
            worker.answer(started, TOKEN)


def test_a_history_scan_does_not_end_a_pause_for_an_operator_and_costs_it_no_time(stage: Stage, ann: Worker) -> None:
    first, second, _ = begin(ann, 3)
    ann.answer(first, TOKEN)
    ann.answer(second, LOST)
    deny_until_there_is_something_to_read(ann)
    assert ann.dispatch(ann.take(due=1).batch) == []
    assert len(ann.desk.searches) == 1
    assert (kind(stage), probe_in(stage)) == ("operator", 0)
    ann.deliver(ann.go(new=0))
    assert kind(stage) is None


@pytest.mark.parametrize(("result", "so_many"), [(COOL, 2), (TOKEN, 1)], ids=["cool-down", "operator"])
def test_a_prober_that_hears_nothing_of_slack_lets_the_next_one_try_at_once(
    stage: Stage, ann: Worker, result: PostResult, so_many: int
) -> None:
    """Through a webhook nothing can be reconciled, and nobody is asked."""
    *others, lost, _ = begin(ann, so_many + 2)
    for each in others:
        ann.answer(each, result)
    ann.answer(lost, LOST)
    ann.desk.shows = lambda _: NOTHING_TO_READ
    deny_until_there_is_something_to_read(ann)
    assert ann.dispatch(ann.take(due=1).batch) == []
    assert len(ann.desk.searches) == 1
    assert probe_in(stage) == 0
    ann.deliver(ann.go(new=0))
    assert kind(stage) is None


def test_a_prober_that_is_rejected_lets_the_next_one_try_at_once(stage: Stage, ann: Worker) -> None:
    for each in begin(ann, 2):
        ann.answer(each, TOKEN)
    ann.answer(next_prober(ann), NEVER)
    assert (kind(stage), probe_in(stage)) == ("operator", 0)
    ann.deliver(ann.go(new=0))
    assert kind(stage) is None


def test_the_same_cause_again_is_not_told_again(ann: Worker) -> None:
    one, two, three = begin(ann, 3)
    ann.answer(one, TOKEN)
    ann.answer(two, TOKEN)
    assert pause_changes(ann) == [PauseChange("operator", began=True, code=TOKEN.code, detail=TOKEN.detail)]
    ann.answer(three, Paused("account_inactive", "the app was removed"))
    assert pause_changes(ann) == [], "who is no prober was sent before"
    ann.answer(next_prober(ann), Paused("account_inactive", "the app was removed"))
    assert [each.code for each in pause_changes(ann)] == ["account_inactive"]


def test_an_event_that_waits_for_an_operator_is_parked_with_that_reason(stage: Stage, ann: Worker) -> None:
    (first,) = begin(ann, 1)
    ann.answer(first, TOKEN)
    waits = ann.told.settlements[-1].outcome
    assert isinstance(waits, Parked)
    assert (waits.reason, waits.code, waits.detail) == (Reason.PAUSED, TOKEN.code, TOKEN.detail)
    assert stage.header("e0")["attempt"] == 0


REFUSED_TOKEN: Final = Paused("invalid_auth", "Slack does not accept the token", "0a1b")


def deny_and_wait(worker: Worker) -> None:
    """The credential is refused; two events wait on timers, and nobody may try for a minute."""
    first, second = begin(worker, 2)
    worker.answer(first, REFUSED_TOKEN)
    worker.stage.redis.hset(worker.stage.keys.pause, "probe", worker.stage.clock.now_us + 60 * US)
    worker.answer(second, REFUSED_TOKEN)
    assert (kind(worker.stage), probe_in(worker.stage)) == ("operator", 60)


def test_a_worker_with_another_credential_tries_at_once_and_before_all_others(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    deny_and_wait(ann)
    bob.outbox.introduce("ffff")
    batch = bob.take(new=0).batch
    assert ann.go() == [], "it posts with what was refused"
    bob.deliver(bob.dispatch(batch))
    assert kind(stage) is None
    assert len(ann.go()) == 1, "nobody waits for the end of the minute"


def test_a_worker_with_the_refused_credential_waits_for_the_next_try(stage: Stage, ann: Worker, bob: Worker) -> None:
    deny_and_wait(ann)
    bob.outbox.introduce(REFUSED_TOKEN.fingerprint)
    assert (bob.go(), probe_in(stage)) == ([], 60)


def test_another_credential_that_is_refused_too_gets_one_try(stage: Stage, ann: Worker, bob: Worker) -> None:
    deny_and_wait(ann)
    bob.outbox.introduce("ffff")
    (started,) = bob.go(new=0)
    bob.answer(started, Paused("invalid_auth", "Slack does not accept the token", "ffff"))
    assert (bob.go(), ann.go()) == ([], [])
    assert probe_in(stage) > 0
    stage.clock.now_us += round(probe_in(stage) * US)
    assert len([*ann.go(new=0), *bob.go(new=0)]) == 1


def test_a_worker_with_another_credential_that_has_nothing_to_post_holds_nobody_up_for_long(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    deny_and_wait(ann)
    bob.outbox.introduce("ffff")
    bob.take(new=0, due=0)
    assert probe_in(stage) == 10
    stage.clock.now_us += 10 * US
    assert len(ann.go(new=0)) == 1

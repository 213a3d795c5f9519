"""Events that are to be posted later: they wait apart, and ask for room in the limits at their instant."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from dispatcher.core.explain import State
from dispatcher.core.limits import Reason
from dispatcher.core.policy import OnLimit
from dispatcher.core.states import Dropped, Parked, Place
from dispatcher.core.units import US
from dispatcher.store.dead_letters import Filter
from dispatcher.store.parked_events import Cancelled, ParkedFilter
from tests.support.deferral import posted, send
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import LEASE_US, Stage, policy_of

HOUR_S: Final = 3_600
START_S: Final = START_US / US
AT_S: Final = START_S + HOUR_S


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_of("", "1/30m", max_age_us=600 * US))


def explained(stage: Stage, id_: str) -> tuple[State, str | None, float | None]:
    told = stage.explanations.explain(id_)
    return told.state, told.reason, told.next_at


def scheduled(stage: Stage) -> dict[str, int]:
    """The instants of all that is scheduled."""
    return {id_.decode(): int(at) for id_, at in stage.redis.zrange(stage.keys.scheduled, 0, -1, withscores=True)}


def test_a_scheduled_event_waits_without_a_slot_and_is_posted_at_its_instant(stage: Stage) -> None:
    ann = stage.worker()
    send(stage, "later", not_before=AT_S)
    ann.run()
    (settled,) = ann.told.settlements
    assert settled.outcome == Parked(Place.SCHEDULED, Reason.SCHEDULED, HOUR_S * US)
    assert explained(stage, "later") == (State.PARKED, "scheduled", AT_S)
    assert (scheduled(stage), stage.slots("category:errors")) == ({"later": START_US + HOUR_S * US}, {})
    stage.clock.now_us = START_US + HOUR_S * US - 1
    taken = ann.take()
    assert (taken.batch, taken.next_us, taken.next_busy_us) == ([], START_US + HOUR_S * US, START_US + HOUR_S * US)
    stage.clock.now_us += 1
    ann.run()
    assert (posted(stage), scheduled(stage), stage.total("sent")) == (["later"], {}, 1)


def test_it_goes_where_the_limits_say_at_its_instant(stage: Stage) -> None:
    stage.send("later", not_before=AT_S)
    stage.worker().run()
    elsewhere = replace(stage.policy.rule("errors"), channel="#elsewhere")
    stage.policy = replace(stage.policy, categories={"errors": elsewhere})
    stage.clock.forward(HOUR_S)
    (started,) = stage.worker("bob").go()
    assert started.candidate.terms.channel == "#elsewhere"


def test_at_its_instant_a_limit_refuses_it_like_any_other_event(stage: Stage) -> None:
    ann = stage.worker()
    send(stage, "later", not_before=AT_S)
    ann.run()
    stage.clock.forward(HOUR_S - 60)
    send(stage, "first")
    ann.run()
    stage.clock.forward(60)
    ann.run()
    assert posted(stage) == ["first"]
    ended = ann.told.settlements[-1]
    assert isinstance(ended.outcome, Dropped)
    assert (ended.subject.id, ended.outcome.reason) == ("later", Reason.LIMIT_CATEGORY)
    assert stage.total("dropped") == 1


def test_a_limit_that_is_full_now_does_not_drop_an_event_of_later(stage: Stage) -> None:
    version = stage.put_in_force(
        "global: {limits: []}\ndefaults: {limits: [1/30m]}\nchannels: {default: {pace: none}}\n"
    )
    ann = stage.worker()
    ann.follow(version)
    send(stage, "first", "second")
    ann.run()
    send(stage, "third", "later", not_before=None)
    send(stage, "tomorrow", not_before=AT_S)
    ann.run()
    assert [name for group in ann.prefiltered for name in group.names] == ["third", "later"]
    assert list(scheduled(stage)) == ["tomorrow"]


@pytest.mark.usefixtures("in_utc")
def test_its_age_counts_from_its_instant(stage: Stage) -> None:
    ann = stage.worker()
    send(stage, "later", not_before=AT_S)
    ann.run()
    stage.clock.forward(HOUR_S + 599)
    assert stage.redis.zscore(stage.keys.parked, "later") == START_US + (HOUR_S + 600) * US
    stage.clock.forward(1)
    ann.run()
    (letter,) = stage.letters()
    assert (letter["reason"], letter["detail"]) == ("expired", "waited longer than its max_age, since its not_before")
    assert stage.explanations.explain("later").sentence == (
        "Dead letter at 12:03:20, expired: waited longer than its max_age, since its not_before, since 11:53:20."
    )


def test_an_instant_in_the_past_changes_nothing(stage: Stage) -> None:
    ann = stage.worker()
    send(stage, "now", not_before=START_S - 1, max_age=5)
    (started,) = ann.go()
    assert (started.candidate.leased.id, started.candidate.terms.deadline_us) == ("now", START_US + 5 * US)


def test_a_delay_in_a_foreign_job_counts_from_when_it_is_first_taken_and_not_again_after_a_replay(
    redis: Database,
) -> None:
    stage = Stage(redis, policy_of("", "1/2h", on_limit=OnLimit.DEAD_LETTER))
    ann = stage.worker()
    job = stage.queue.job("late")
    stage.redis.hset(
        job, "data", '["dispatcher.jobs.dispatch", null, [{"category": "errors", "text": "x", "delay": "1h"}], {}]'
    )
    stage.redis.rpush(stage.queue.lanes[1], "late")
    stage.clock.forward(10)
    ann.run()
    assert scheduled(stage) == {"late": START_US + (HOUR_S + 10) * US}
    send(stage, "first")
    ann.run()
    stage.clock.forward(HOUR_S)
    ann.run()
    assert [letter["reason"] for letter in stage.letters()] == ["limit:category"]
    stage.clock.forward(HOUR_S)
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    ann.run()
    assert posted(stage) == ["first", "late"]


def test_an_event_that_was_not_to_be_posted_later_waits_for_no_step_back_of_the_clock(stage: Stage) -> None:
    """Its first sight lies ahead then."""
    ann, bob = stage.worker("ann"), stage.worker("bob")
    send(stage, "now")
    assert ann.taken() == ["now"]
    ann.give_back()
    bob.notice_step(-86_400 * US)
    bob.run()
    assert (posted(stage), scheduled(stage)) == (["now"], {})


def test_a_scheduled_event_is_found_and_cancelled_by_hand(stage: Stage) -> None:
    ann = stage.worker()
    send(stage, "a", "b", not_before=AT_S)
    ann.run()
    assert [each.id for each in stage.parked_events.find(ParkedFilter(reason="scheduled"))] == ["a", "b"]
    ((result, settlement),) = stage.parked_events.cancel(stage.parked_events.by_ids(["a"]), "ops@here")
    assert result is Cancelled.DONE
    assert isinstance(settlement.outcome, Dropped)
    stage.check()
    assert list(scheduled(stage)) == ["b"]


def test_a_burst_does_not_wait_for_what_is_scheduled_for_later(stage: Stage) -> None:
    ann = stage.worker()
    send(stage, "later", not_before=AT_S)
    assert not stage.books.is_drained()
    ann.run()
    assert stage.books.is_drained()
    stage.clock.forward(HOUR_S)
    assert not stage.books.is_drained()


def test_scheduled_events_whose_instant_comes_at_once_are_taken_in_batches_also_while_nothing_can_be_posted(
    redis: Database,
) -> None:
    stage = Stage(redis, policy_of("", "5/30m"))
    ann = stage.worker()
    send(stage, *(f"e{n:02}" for n in range(25)), not_before=AT_S)
    ann.run()
    stage.clock.forward(HOUR_S)
    taken = ann.take(new=10, due=0)
    assert ([each.id for each in taken.batch], taken.more) == ([f"e{n:02}" for n in range(5)], True)
    ann.deliver(ann.dispatch(taken.batch))
    ann.run()
    assert (stage.total("sent"), stage.total("dropped")) == (5, 20)


def test_a_new_event_does_not_wait_until_all_that_is_due_at_once_is_decided(stage: Stage) -> None:
    ann = stage.worker()
    send(stage, *(f"e{n:02}" for n in range(25)), not_before=AT_S)
    ann.run()
    stage.clock.forward(HOUR_S)
    send(stage, "new")
    assert [each.id for each in ann.take(new=10).batch] == [*(f"e{n:02}" for n in range(5)), "new"]


def test_a_worker_sleeps_until_the_second_for_which_a_stock_producer_has_scheduled_a_job(stage: Stage) -> None:
    at_s = START_US // US + 20
    stage.redis.hset(stage.queue.job("job"), "data", "no event")
    stage.redis.zadd(stage.queue.scheduled[2], {"job": at_s, "later": at_s + 5})
    ann = stage.worker()
    taken = ann.take()
    assert (taken.batch, taken.next_us, taken.next_busy_us) == ([], at_s * US, at_s * US)
    stage.clock.now_us = at_s * US
    taken = ann.take()
    assert (taken.batch, taken.more, taken.next_us) == ([], True, (at_s + 5) * US)
    assert ann.taken() == ["job"]


def test_a_worker_that_dies_with_a_scheduled_event_leaves_it_to_the_next_worker(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    send(stage, "later", not_before=AT_S)
    ann.run()
    stage.clock.forward(HOUR_S)
    assert ann.taken() == ["later"]
    stage.clock.forward(LEASE_US / US)
    bob.take()
    stage.clock.forward(3)
    bob.run()
    assert posted(stage) == ["later"]


def test_an_event_that_killed_two_workers_is_taken_alone_at_its_instant(stage: Stage) -> None:
    send(stage, "poison", not_before=AT_S)
    for n in range(2):
        stage.worker(f"dead{n}").take()
        stage.clock.forward(LEASE_US / US + 3)
        stage.worker("eve").renew()
        stage.clock.forward(3)
        stage.worker("eve").take(0, 0)
    ann = stage.worker()
    ann.run()
    assert (stage.header("poison")["deaths"], list(scheduled(stage))) == (2, ["poison"])
    stage.clock.now_us = START_US + HOUR_S * US
    send(stage, "new")
    assert ann.taken() == ["poison"]

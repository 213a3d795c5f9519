"""Limits that change while events are decided: by others than those in force nothing is decided. In made-up time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dispatcher.core.event import Event
from dispatcher.core.ports import Overtaken
from dispatcher.core.posts import Ambiguous, PostResult, Receipt, Rejected, Retryable
from dispatcher.core.states import Leased, Undecodable, Waiting
from dispatcher.core.units import US
from dispatcher.store.versions import Version
from tests.support.deferral import category_line, keep_beating, opens_at, posted, send
from tests.support.doubles import START_US, Told
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, LEASE_US, UNPACED, Stage, Worker

HALF_HOUR_US = 1_800 * US
CHANNEL = f'channels: {{"{UNPACED}": {{pace: none}}}}\n'


def limits(each: str, on_limit: str = "drop", together: str = "100/30m", more: str = "") -> str:
    return f"{CHANNEL}global: {{limits: [{together}]}}\ndefaults: {{limits: [{each}], on_limit: {on_limit}{more}}}\n"


def change_behind_the_gate(stage: Stage, text: str) -> list[Version]:
    """The next answer of a gate is the last by the limits of now; the version after it, once it is in force."""
    published: list[Version] = []
    stage.once_after_admit(lambda: published.append(stage.put_in_force(text)))
    return published


def overtaken(worker: Worker, batch: Sequence[Leased | Undecodable]) -> Overtaken:
    """How a decision by limits that are no longer in force ends."""
    with pytest.raises(Overtaken) as caught:
        worker.dispatch(batch)
    return caught.value


def decide_again(stage: Stage, ann: Worker, bob: Worker, newer: str, *, dies: bool) -> Worker:
    """Newer limits come in force when ann has admitted a batch. She decides it by these, or bob after her death."""
    published = change_behind_the_gate(stage, newer)
    undecided = overtaken(ann, ann.take().batch).undecided
    worker = bob if dies else ann
    worker.follow(published[0])
    if dies:
        keep_beating(stage, LEASE_US // US, "bob")
        worker.run()
    else:
        worker.deliver(worker.dispatch(undecided))
    return worker


# Nothing is decided by other limits than those in force


def test_a_gate_asked_by_an_older_version_decides_nothing(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(limits("1/30m")))
    send(stage, "a", "b")
    batch = ann.take().batch
    second = stage.put_in_force(limits("2/30m"))
    error = overtaken(ann, batch)
    assert (error.undecided, error.version) == (batch, second.name)
    assert (stage.slots("category:errors"), stage.total("dropped"), ann.told.settlements) == ({}, 0, [])
    ann.follow(second)
    ann.deliver(ann.dispatch(error.undecided))
    assert (posted(stage), stage.total("sent")) == (["a", "b"], 2)


def test_a_version_that_the_server_lost_is_none_in_force(stage: Stage, ann: Worker, redis: Database) -> None:
    ann.follow(stage.put_in_force(limits("1/30m")))
    send(stage, "a")
    batch = ann.take().batch
    redis.delete(stage.keys.limits_version)
    assert overtaken(ann, batch).version == ""
    assert stage.slots("category:errors") == {}


def test_a_take_says_which_version_is_in_force(stage: Stage, ann: Worker) -> None:
    assert ann.take().version is None
    first = stage.put_in_force(limits("1/30m"))
    assert ann.take().version == first.name
    ann.follow(first)
    second = stage.put_in_force(limits("2/30m"))
    assert ann.take().version == second.name


def test_newcomers_of_a_category_that_deferred_are_not_lined_up(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(limits("1/30m", "defer")))
    send(stage, "a", "b")
    ann.run()
    send(stage, "c")
    batch = ann.take().batch
    second = stage.put_in_force(limits("1/30m", "drop"))
    assert overtaken(ann, batch).undecided == batch
    assert category_line(stage) == ["b"]
    ann.follow(second)
    ann.dispatch(batch)
    assert (category_line(stage), stage.total("dropped")) == (["b"], 1)


def test_an_event_refused_by_older_limits_does_not_wait_in_their_line(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(limits("1/30m", "defer")))
    send(stage, "a", "b", "c")
    published = change_behind_the_gate(stage, limits("2/30m", "defer"))
    error = overtaken(ann, ann.take().batch)
    assert sorted(each.id for each in error.undecided) == ["a", "b", "c"]
    assert (category_line(stage), list(stage.slots("category:errors"))) == ([], ["a"])
    ann.follow(published[0])
    ann.deliver(ann.dispatch(error.undecided))
    assert (posted(stage), category_line(stage)) == (["a", "b"], ["c"])
    assert stage.slots("category:errors").keys() == {"a", "b"}


def test_an_event_that_stands_in_line_already_is_not_decided_again(stage: Stage, ann: Worker) -> None:
    class Publishing(Told):
        """Told of what was lined up, it publishes other limits."""

        def waiting(self, events: Sequence[Waiting]) -> None:
            if events:
                stage.put_in_force(limits("2/30m", "defer"))

    ann.follow(stage.put_in_force(limits("1/30m", "defer")))
    send(stage, "a", "b")
    ann.told = Publishing()
    error = overtaken(ann, ann.take().batch)
    assert ([each.id for each in error.undecided], category_line(stage)) == (["a"], ["b"])


@pytest.mark.parametrize(("together", "goes"), [(3, ["a", "b", "c"]), (2, [])], ids=["fits", "lowered below its use"])
def test_an_event_admitted_by_older_limits_asks_again_and_its_slot_counts_as_used(
    stage: Stage, ann: Worker, together: int, goes: list[str]
) -> None:
    ann.follow(stage.put_in_force(limits("3/30m")))
    send(stage, *"abcd")
    published = change_behind_the_gate(stage, limits("9/30m", together=f"{together}/30m"))
    error = overtaken(ann, ann.take().batch)
    assert [each.id for each in error.undecided] == ["a", "b", "c"]
    assert stage.total("dropped") == 1
    ann.follow(published[0])
    ann.deliver(ann.dispatch(error.undecided))
    assert (posted(stage), stage.total("dropped"), stage.snapshot().parked) == (goes, 1, 3 - len(goes))
    assert stage.slots("category:errors").keys() == stage.slots("global").keys() == {"a", "b", "c"}


@pytest.mark.parametrize("on_limit", ["drop", "dead-letter", "defer"])
@pytest.mark.parametrize("dies", [False, True], ids=["overtaken", "its worker dies"])
def test_what_older_limits_have_admitted_waits_for_room_in_lowered_ones(
    stage: Stage, ann: Worker, bob: Worker, on_limit: str, *, dies: bool
) -> None:
    ann.follow(stage.put_in_force(limits("5/30m", on_limit)))
    send(stage, *"abcde")
    worker = decide_again(stage, ann, bob, limits("2/30m", on_limit), dies=dies)
    worker.run()
    assert (len(posted(stage)), stage.snapshot().parked) == (2, 3)
    for _ in range(3):
        before = len(posted(stage))
        stage.clock.now_us += HALF_HOUR_US
        worker.run()
        assert before < len(posted(stage)) <= min(before + 2, 5) or before == 5
    assert (sorted(posted(stage)), stage.total("sent"), stage.snapshot().parked) == (list("abcde"), 5, 0)


@pytest.mark.parametrize(("newer", "first"), [("2/30m", 2), ("2/24h", 2), ("4/1h", 4)])
def test_what_older_limits_have_admitted_and_lowered_ones_have_room_for_goes_at_once(
    stage: Stage, ann: Worker, bob: Worker, newer: str, first: int
) -> None:
    """Though the timers that waited for a limit have asked again before it has one: another worker took."""
    ann.follow(stage.put_in_force(limits("5/30m")))
    send(stage, *"abcde")
    published = change_behind_the_gate(stage, limits(newer, together="100/24h"))
    undecided = overtaken(ann, ann.take().batch).undecided
    for worker in (ann, bob):
        worker.follow(published[0])
    assert (bob.take().batch, stage.redis.exists(stage.keys.reopening)) == ([], 0)
    ann.deliver(ann.dispatch(undecided))
    assert (posted(stage), stage.snapshot().parked) == ([], 5)
    ann.run()
    assert posted(stage) == list("abcde")[:first]
    assert ann.take().batch == [], "each asked once more, and then waits for its time"


@pytest.mark.parametrize("is_stale", [False, True], ids=["parked before", "parked after"])
def test_a_repeat_by_newer_limits_goes_at_once_when_older_ones_are_in_force_again(
    stage: Stage, ann: Worker, *, is_stale: bool
) -> None:
    """It was admitted, so it waits. The books say that it waits for a limit."""
    older, newer = limits("5/30m"), limits("5/30m", more=", once: {per: 24h}")
    ann.follow(stage.put_in_force(older))
    send(stage, "a", "b", dedup_key="db1")
    published = change_behind_the_gate(stage, newer)
    undecided = overtaken(ann, ann.take().batch).undecided
    ann.follow(published[0])
    started = ann.dispatch(undecided)
    if not is_stale:
        ann.deliver(started)
        ann.run()
        assert (posted(stage), stage.total("parked errors limit")) == (["a"], 1)
    ann.follow(stage.put_in_force(older))
    if is_stale:
        ann.deliver(started)
    ann.run()
    assert (posted(stage), stage.snapshot().parked) == (["a", "b"], 0)


@pytest.mark.parametrize("dies", [False, True], ids=["overtaken", "its worker dies"])
@pytest.mark.parametrize(
    "more",
    ['quiet: {day: {times: ["01:00-23:00"], zone: UTC, then: drop}}\n', "unknown_categories: reject\n"],
    ids=["quiet hours", "an unknown category"],
)
def test_what_older_limits_have_admitted_is_posted_whatever_newer_ones_say_of_new_events(
    stage: Stage, ann: Worker, bob: Worker, more: str, *, dies: bool
) -> None:
    ann.follow(stage.put_in_force(limits("5/30m")))
    send(stage, *"ab")
    decide_again(stage, ann, bob, limits("5/30m") + more, dies=dies)
    assert (posted(stage), stage.total("sent")) == (["a", "b"], 2)


@pytest.mark.parametrize("dies", [False, True], ids=["overtaken", "its worker dies"])
def test_a_recovery_that_became_a_message_and_was_admitted_waits_for_room_in_lowered_limits(
    stage: Stage, ann: Worker, bob: Worker, *, dies: bool
) -> None:
    """Slack refused the edit of the message about the failure."""
    ann.follow(stage.put_in_force(limits("5/30m")))
    ann.desk.reply = bob.desk.reply = lambda message: Receipt(message.channel, "1.1")
    send(stage, "a", dedup_key="db1")
    ann.run()
    send(stage, "b", dedup_key="db1", status="resolved")
    started = ann.go()
    ann.desk.reply = lambda _: Rejected("edit_window_closed", "")
    ann.deliver(started)
    ann.desk.reply = bob.desk.reply
    worker = decide_again(stage, ann, bob, limits("1/30m"), dies=dies)
    worker.run()
    assert (stage.total("dropped"), stage.snapshot().parked) == (0, 1)
    stage.clock.now_us += HALF_HOUR_US
    worker.run()
    assert (stage.total("sent"), stage.snapshot().parked) == (2, 0)


@pytest.mark.parametrize("dies", [False, True], ids=["overtaken", "its worker dies"])
def test_what_no_limit_has_admitted_is_decided_by_the_newer_limits(
    stage: Stage, ann: Worker, bob: Worker, *, dies: bool
) -> None:
    """A slot for what an event is about is none of a limit."""
    older = f"{CHANNEL}global: {{limits: []}}\ndefaults: {{limits: [], once: {{per: 1h}}}}\n"
    ann.follow(stage.put_in_force(older))
    send(stage, "a", dedup_key="db1")
    decide_again(stage, ann, bob, older + 'quiet: {day: {times: ["01:00-23:00"], zone: UTC, then: drop}}\n', dies=dies)
    assert (posted(stage), stage.total("dropped errors quiet")) == ([], 1)
    assert stage.redis.keys("*:scope:once:*") == []


@pytest.mark.parametrize("dies", [False, True], ids=["overtaken", "its worker dies"])
def test_a_head_that_older_limits_have_admitted_stands_in_line_no_more(
    stage: Stage, ann: Worker, bob: Worker, *, dies: bool
) -> None:
    ann.follow(stage.put_in_force(limits("1/30m", "defer")))
    send(stage, "a", "b", "c")
    ann.run()
    stage.clock.now_us += HALF_HOUR_US - 60 * US
    send(stage, "x", category="news")
    ann.run()
    bob.renew()
    stage.clock.forward(60)
    worker = decide_again(stage, ann, bob, limits("1/30m", "drop", together="1/30m"), dies=dies)
    worker.run()
    header = stage.header("b")
    assert (header.get("line"), header.get("rank"), header["held"]) == (None, None, True)
    assert posted(stage) == ["a", "x"]
    stage.clock.now_us += HALF_HOUR_US
    worker.run()
    assert "b" in posted(stage)
    assert stage.total("sent") == 3


@pytest.mark.parametrize("dies", [False, True], ids=["overtaken", "its worker dies"])
@pytest.mark.parametrize(
    ("together", "on_limit"), [(3, "drop"), (2, "drop"), (2, "defer")], ids=["admitted again", "dropped", "deferred"]
)
def test_slots_in_scopes_that_newer_limits_do_not_name_go_back(
    stage: Stage, ann: Worker, together: int, on_limit: str, *, dies: bool
) -> None:
    ann.follow(stage.put_in_force(limits("3/30m")))
    send(stage, *"abc")
    newer = f"{CHANNEL}global: {{limits: [{together}/30m]}}\ndefaults: {{limits: [], on_limit: {on_limit}}}\n"
    published = change_behind_the_gate(stage, newer)
    undecided = overtaken(ann, ann.take().batch).undecided
    assert stage.slots("category:errors").keys() == {"a", "b", "c"}
    worker = stage.worker("bob") if dies else ann
    worker.follow(published[0])
    if dies:
        keep_beating(stage, LEASE_US // US, "bob")
        worker.run()
    else:
        worker.deliver(worker.dispatch(undecided))
    assert stage.slots("category:errors") == {}


def test_an_admitted_event_does_not_wait_for_its_instant_again(stage: Stage, ann: Worker) -> None:
    """Though the clock was stepped back to before it."""
    ann.follow(stage.put_in_force(limits("3/30m")))
    stage.send("a", category="errors", not_before=stage.clock.now_us / US + 10)
    ann.go()
    stage.clock.forward(10)
    published = change_behind_the_gate(stage, limits("2/30m"))
    undecided = overtaken(ann, ann.take().batch).undecided
    stage.clock.now_us -= 60 * US
    ann.follow(published[0])
    ann.deliver(ann.dispatch(undecided))
    assert (posted(stage), stage.redis.zcard(stage.keys.scheduled)) == (["a"], 0)


def test_an_event_that_waits_for_its_instant_again_gives_back_what_its_dead_worker_took_for_it(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    """The clock was stepped back to before it, and no limit has admitted it."""
    text = f"{CHANNEL}global: {{limits: []}}\ndefaults: {{limits: [], once: {{per: 1h}}}}\n"
    ann.follow(stage.put_in_force(text))
    send(stage, "a", dedup_key="db1", not_before=stage.clock.now_us / US + 10)
    ann.go()
    bob.renew()
    stage.clock.forward(10)
    published = change_behind_the_gate(stage, text.replace("1h", "2h"))
    overtaken(ann, ann.take().batch)
    bob.follow(published[0])
    keep_beating(stage, LEASE_US // US, "bob")
    taken = bob.take()
    stage.clock.now_us -= 90 * US
    bob.finish(taken)
    assert (stage.redis.keys("*:scope:once:*"), stage.redis.zcard(stage.keys.scheduled)) == ([], 1)


def test_a_refusal_of_limits_that_were_in_force_is_final_where_nobody_has_to_wait_for_it(
    stage: Stage, ann: Worker
) -> None:
    ann.follow(stage.put_in_force(limits("1/30m", "dead-letter")))
    send(stage, "a", "b")
    published = change_behind_the_gate(stage, limits("2/30m", "dead-letter"))
    error = overtaken(ann, ann.take().batch)
    ann.follow(published[0])
    ann.deliver(ann.dispatch(error.undecided))
    assert (posted(stage), stage.total("dead")) == (["a"], 1)


def test_limits_without_any_scope_are_asked_for_before_the_post(stage: Stage, ann: Worker) -> None:
    unlimited = CHANNEL + "global: {limits: []}\ndefaults: {limits: []}\n"
    ann.follow(stage.put_in_force(unlimited))
    send(stage, "a", "b")
    batch = ann.take().batch
    second = stage.put_in_force(limits("1/30m"))
    error = overtaken(ann, batch)
    ann.follow(second)
    ann.deliver(ann.dispatch(error.undecided))
    assert (posted(stage), stage.total("dropped")) == (["a"], 1)


def test_no_two_workers_decide_by_different_limits_at_once(stage: Stage, ann: Worker, bob: Worker) -> None:
    first = stage.put_in_force(limits("5/30m"))
    ann.follow(first)
    bob.follow(first)
    send(stage, *"abcdefgh")
    ahead = ann.take(new=4).batch
    second = stage.put_in_force(limits("2/30m"))
    bob.follow(second)
    bob.deliver(bob.dispatch(bob.take().batch))
    assert posted(stage) == ["e", "f"]
    undecided = overtaken(ann, ahead).undecided
    ann.follow(second)
    ann.deliver(ann.dispatch(undecided))
    assert (posted(stage), stage.total("dropped")) == (["e", "f"], 6)


# What is held by limits that are no longer in force


def with_category(each: str) -> str:
    return f"{CHANNEL}global: {{limits: []}}\ndefaults: {{limits: []}}\ncategories: {{errors: {each}}}\n"


LIMITED = with_category("{limits: [2/30m], per_label: {host: [2/30m]}}")
FREE = with_category("{}")


@pytest.mark.parametrize("answer", [Receipt(UNPACED, "1.0"), Rejected("channel_not_found", "")], ids=["sent", "dead"])
def test_an_event_tried_again_after_its_limits_were_removed_leaves_no_slots(
    stage: Stage, ann: Worker, answer: PostResult
) -> None:
    ann.follow(stage.put_in_force(LIMITED))
    send(stage, "a", labels={"host": "db1"})
    (started,) = ann.go()
    ann.answer(started, Retryable("connection_refused", ""))
    assert stage.held("category:errors").keys() == stage.held("label:errors:host=db1").keys() == {"a"}
    ann.follow(stage.put_in_force(FREE))
    stage.clock.forward(5)
    (again,) = ann.go()
    assert stage.slots("category:errors") == stage.slots("label:errors:host=db1") == {}
    ann.answer(again, answer)
    ann.follow(stage.put_in_force(LIMITED))
    send(stage, "b", "c", labels={"host": "db1"})
    assert [each.candidate.leased.id for each in ann.go()] == ["b", "c"]


def test_an_event_that_expires_after_its_limits_were_removed_leaves_no_slots(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(LIMITED))
    send(stage, "a", labels={"host": "db1"})
    (started,) = ann.go()
    ann.answer(started, Retryable("connection_refused", ""))
    ann.follow(stage.put_in_force(with_category("{max_age: 4s}")))
    stage.clock.forward(5)
    assert ann.go() == []
    assert (stage.total("dead"), stage.slots("category:errors")) == (1, {})


@pytest.mark.parametrize("later", [[], ["c", "d"]])
def test_an_event_that_is_digested_by_new_limits_gives_back_the_key_of_older_ones(
    stage: Stage, ann: Worker, later: list[str]
) -> None:
    ann.follow(stage.put_in_force(with_category("{limits: [2/30m], on_limit: defer, once: {per: 30m}}")))
    stage.send("a", "b")
    stage.send("waits", dedup_key="db1")
    ann.run()
    (key,) = stage.redis.scan_iter(match="*once:*")
    assert stage.redis.zcard(key) == 1
    ann.follow(stage.put_in_force(with_category("{limits: [2/30m], on_limit: digest}")))
    stage.send(*later)
    ann.run()
    assert stage.snapshot().all_tallies == 1
    assert not stage.redis.zcard(key)


def test_an_event_that_waits_again_holds_slots_of_the_limits_in_force_only(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(LIMITED))
    send(stage, "a", labels={"host": "db1"})
    (started,) = ann.go()
    ann.answer(started, Retryable("connection_refused", ""))
    ann.follow(stage.put_in_force(with_category("{limits: [1/30m]}")))
    stage.clock.forward(5)
    (started,) = ann.go()
    ann.answer(started, Retryable("connection_refused", ""))
    assert stage.held("category:errors").keys() == {"a"}
    assert stage.slots("label:errors:host=db1") == {}


def test_a_retried_event_gives_back_slots_of_removed_limits_while_another_worker_decides(
    stage: Stage, ann: Worker
) -> None:
    ann.follow(stage.put_in_force(LIMITED))
    send(stage, "a", labels={"host": "db1"})
    ann.answer(ann.go()[0], Retryable("connection_refused", ""))
    ann.follow(stage.put_in_force(with_category("{limits: [2/30m]}")))
    send(stage, "b")
    assert stage.worker("bob").taken(due=0) == ["b"]
    stage.clock.forward(5)
    ann.deliver(ann.go())
    assert stage.slots("label:errors:host=db1") == {}
    assert stage.total("sent") == 1


@pytest.mark.parametrize("result", [Receipt("#a", "1.1"), Ambiguous("timeout", "no answer")], ids=["sent", "unknown"])
def test_a_post_that_may_have_arrived_stays_charged_by_limits_that_may_come_back(
    stage: Stage, ann: Worker, result: PostResult
) -> None:
    ann.follow(stage.put_in_force(LIMITED))
    send(stage, "a", labels={"host": "db1"})
    (started,) = ann.go()
    ann.follow(stage.put_in_force(with_category("{limits: [1/30m]}")))
    ann.answer(started, result)
    assert stage.slots("label:errors:host=db1") == {"a": START_US}


# A change wakes what waits


def test_a_raised_limit_lets_what_waits_go_at_once(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(limits("1/30m", "defer")))
    send(stage, "a", "b", "c", "d")
    ann.run()
    assert (posted(stage), opens_at(stage, "category:errors")) == (["a"], START_US + HALF_HOUR_US)
    stage.clock.forward(60)
    stage.collect_tokens()
    version = stage.put_in_force(limits("3/30m", "defer"))
    assert stage.collect_tokens() == 1
    ann.follow(version)
    ann.take(0, 0)
    assert opens_at(stage, "category:errors") == stage.clock.now_us
    ann.run()
    assert (posted(stage), category_line(stage)) == (["a", "b", "c"], ["d"])
    assert opens_at(stage, "category:errors") == START_US + HALF_HOUR_US


def test_a_new_version_lets_many_lines_ask_anew_a_page_in_each_take(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(with_category("{per_label: {host: [1/30m]}, on_limit: defer}")))
    events = [(f"{n}-{host}", Event("errors", "x", id=f"{n}-{host}", channel=UNPACED, labels={"host": f"db{host}"}))
              for n in (1, 2) for host in range(35)]  # fmt: skip
    stage.intake.enqueue(events)
    ann.run()
    assert (len(posted(stage)), stage.snapshot().parked) == (35, 35)
    stage.clock.forward(60)
    ann.follow(stage.put_in_force(with_category("{per_label: {host: [2/30m]}, on_limit: defer}")))
    may_ask: list[int] = []
    for _ in range(3):
        assert ann.take(0, 0).more is not (len(may_ask) > 0)
        may_ask.append(stage.redis.zcount(stage.keys.lines, 0, stage.clock.now_us))
    assert may_ask == [25, 35, 35]
    ann.run()
    assert (len(posted(stage)), stage.snapshot().parked) == (70, 0)


def test_a_lowered_limit_lets_nobody_pass_until_it_fits(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(limits("3/30m", "defer")))
    for id_ in "abc":
        send(stage, id_)
        ann.run()
        stage.clock.forward(60)
    send(stage, "d", "e")
    ann.run()
    ann.follow(stage.put_in_force(limits("2/30m", "defer")))
    ann.run()
    assert (posted(stage), category_line(stage)) == (["a", "b", "c"], ["d", "e"])
    stage.clock.now_us = START_US + HALF_HOUR_US  # a has left: two are in the window still
    ann.run()
    assert posted(stage) == ["a", "b", "c"]
    stage.clock.forward(60)
    ann.run()
    assert (posted(stage), category_line(stage)) == (["a", "b", "c", "d"], ["e"])


def test_a_refusal_by_older_limits_closes_no_scope(stage: Stage, ann: Worker, bob: Worker) -> None:
    first = stage.put_in_force(limits("1/30m", "defer"))
    ann.follow(first)
    send(stage, "a", "b", "c")
    ann.run()
    stage.clock.now_us = START_US + HALF_HOUR_US
    ann.deliver(ann.dispatch(ann.take().batch))  # b, and c has to wait for another half hour
    second = stage.put_in_force(limits("2/30m", "defer"))
    ann.decided()
    assert opens_at(stage, "category:errors") == stage.clock.now_us
    bob.follow(second)
    bob.run()
    assert posted(stage) == ["a", "b", "c"]


def test_what_older_limits_found_out_closes_no_scope_once_newer_ones_are_followed(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    ann.follow(stage.put_in_force(limits("1/30m", "defer")))
    send(stage, "a", "b", "c")
    ann.run()
    stage.clock.now_us = START_US + HALF_HOUR_US
    ann.deliver(ann.dispatch(ann.take().batch))  # b, and c has to wait for another half hour
    second = stage.put_in_force(limits("2/30m", "defer"))
    bob.follow(second)
    bob.run()  # lets all lines ask anew
    ann.follow(second)
    ann.run()
    assert posted(stage) == ["a", "b", "c"]


def test_a_limit_that_is_gone_closes_no_scope_by_what_was_found_out_before(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(limits("1/30m", "defer")))
    send(stage, *"abcd")
    ann.run()
    stage.clock.now_us = START_US + HALF_HOUR_US
    published = change_behind_the_gate(stage, f"{CHANNEL}global: {{limits: []}}\ndefaults: {{limits: []}}\n")
    error = overtaken(ann, ann.take().batch)
    ann.follow(published[0])
    ann.deliver(ann.dispatch(error.undecided))
    ann.run()
    assert (posted(stage), category_line(stage)) == (list("abcd"), [])


def test_a_faster_pace_lets_the_line_of_a_channel_go_at_once(stage: Stage, ann: Worker) -> None:
    text = 'channels: {"#slow": {pace: 1/%s}}\nglobal: {limits: []}\ndefaults: {limits: [], channel: "#slow"}\n'
    ann.follow(stage.put_in_force(text % "1h"))
    stage.send("a", "b")
    (first,) = ann.go()
    version = stage.put_in_force(text % "1s")
    ann.answer(first, Receipt("#slow", "1.0"))  # settled by limits that are no longer in force
    assert stage.line_at("#slow") == stage.clock.now_us
    ann.follow(version)
    stage.clock.forward(1)
    (second,) = ann.go()
    assert second.candidate.leased.id == "b"
    stage.put_in_force(text % "2s")
    assert ann.answer(second, Receipt("#slow", "1.0"))


@pytest.mark.parametrize(
    ("before", "after", "waits_s"),
    [("1/1h", "none", 0), ("1/1h", "1/10s", 10), ("none", "1/10s", 10)],
    ids=["lifted", "faster", "introduced"],
)
def test_a_post_answered_after_a_change_of_limits_is_charged_to_the_pace_in_force(
    stage: Stage, ann: Worker, before: str, after: str, waits_s: int
) -> None:
    text = 'channels: {"#slow": {pace: %s}}\nglobal: {limits: []}\ndefaults: {limits: [], channel: "#slow"}\n'
    stage.same_pace = False
    ann.follow(stage.put_in_force(text % before))
    stage.send("a", "b")
    (first,) = ann.go(free=1)
    ann.follow(stage.put_in_force(text % after))
    ann.answer(first, Receipt("#slow", "1.0"))
    assert stage.line_at("#slow") == stage.clock.now_us + waits_s * US
    stage.clock.forward(waits_s)
    (second,) = ann.go()
    assert second.candidate.leased.id == "b"


def test_an_event_on_a_timer_for_a_limit_asks_at_once_when_limits_change(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(limits("2/30m")))
    send(stage, "a", "b")
    first, second = ann.go()
    ann.answer(first, Retryable("connection_refused", ""))
    ann.answer(second, Receipt(UNPACED, "1.0"))
    ann.follow(stage.put_in_force(limits("1/30m")))
    assert timers(stage) == {"a": stage.clock.now_us + BACKOFF_US}  # for its next attempt, not for a limit
    stage.clock.forward(5)
    assert ann.go() == []
    assert timers(stage) == {"a": START_US + HALF_HOUR_US}
    ann.follow(stage.put_in_force(limits("2/30m")))
    ann.take(0, 0)
    assert timers(stage) == {"a": stage.clock.now_us}
    (again,) = ann.go()
    assert (again.candidate.leased.id, again.attempt) == ("a", 2)


def test_a_retry_that_is_settled_by_older_limits_waits_for_its_instant(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(limits("2/30m")))
    send(stage, "a")
    (started,) = ann.go()
    stage.put_in_force(limits("3/30m"))
    ann.answer(started, Retryable("connection_refused", ""))
    assert timers(stage) == {"a": stage.clock.now_us + BACKOFF_US}


def test_a_refusal_by_older_limits_that_is_settled_late_sets_no_instant(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(limits("2/30m")))
    send(stage, "a", "b")
    first, second = ann.go()
    ann.answer(first, Retryable("connection_refused", ""))
    ann.answer(second, Receipt(UNPACED, "1.0"))
    ann.follow(stage.put_in_force(limits("1/30m")))
    stage.clock.forward(5)
    change_behind_the_gate(stage, limits("2/30m"))
    assert ann.go() == []
    assert timers(stage) == {"a": stage.clock.now_us}


def timers(stage: Stage) -> dict[str, float]:
    return {id_.decode(): at for id_, at in stage.redis.zrange(stage.keys.timers, 0, -1, withscores=True)}

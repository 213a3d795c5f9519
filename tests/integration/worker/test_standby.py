"""Admitted events stand by in the worker until one of its senders is free: when, for how long, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from dispatcher.app.limits import publish
from dispatcher.app.servers import keys_of
from dispatcher.core.posts import Message, Paused, PostResult, RateLimitedBySlack, Receipt
from dispatcher.core.states import Candidate, Leased, Started, Waiting
from dispatcher.core.units import US
from dispatcher.errors import GateUnavailable
from dispatcher.producer.blocking import Producer
from dispatcher.settings.environment import Settings
from dispatcher.store.versions import Unless, Versions
from dispatcher.worker.post_pool import STANDBY_S
from tests.support.hand_driven_worker import HandDrivenWorker, send
from tests.support.processes import until
from tests.support.servers import Database
from tests.support.slack import StandingClock
from tests.support.stage import handed_out

EVENTS: Final = tuple(f"e{n}" for n in range(12))
SENDERS: Final = 4
LEASED: Final = "{dispatcher}:leased:ann"
WAKE: Final = "{dispatcher}:wake"
PARKED: Final = "{dispatcher}:parked"
TIMERS: Final = "{dispatcher}:timers"
GLOBAL: Final = "{dispatcher}:scope:global"
NUMBERS: Final = count()
LIMITS: Final = """\
global: {limits: [100/1h]}
channels: {default: {pace: none}}
defaults: {limits: []}
"""


class Slack:
    """Answers one post for each time that it is told to."""

    def __init__(self) -> None:
        self._answers = threading.Semaphore(0)
        self.result: Callable[[Message], PostResult] = lambda message: Receipt(message.channel, "1.1")

    def __call__(self, message: Message) -> PostResult:
        assert self._answers.acquire(timeout=10)
        return self.result(message)

    def answer(self, number: int) -> None:
        self._answers.release(number)


@pytest.fixture
def slack() -> Slack:
    return Slack()


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def driven(redis: Database, tmp_path: Path, slack: Slack, clock: StandingClock) -> Iterator[HandDrivenWorker]:
    built = HandDrivenWorker(redis, len(EVENTS), tmp_path, clock, limits=LIMITS)
    built.desk.reply = slack
    yield built
    slack.answer(100)
    built.worker.sign_off()


@pytest.fixture
def standing_by(driven: HandDrivenWorker) -> None:
    """Of twelve admitted events four posts are in flight, and eight stand by."""
    send(driven, *EVENTS)
    assert driven.next() == list(EVENTS)
    until(lambda: len(driven.desk.posts) == SENDERS, "the first posts")
    assert stand_by(driven) == 8


def stand_by(driven: HandDrivenWorker) -> int:
    return len(driven.worker._standby)  # noqa: SLF001 - nothing else tells


def go_on(driven: HandDrivenWorker, posts: int = 0) -> None:
    """The loop goes on until nothing stands by, and so many of the events are posted."""

    def is_done() -> bool:
        send(driven, f"next{next(NUMBERS)}")
        assert driven.next()
        return not stand_by(driven) and len(posted(driven)) >= posts

    until(is_done, f"{posts} posts")


def is_due(driven: HandDrivenWorker) -> bool:
    """Whether a parked event may ask again now."""
    seconds, us = driven.client.time()
    return bool(driven.client.zcount(TIMERS, 0, seconds * US + us))


def all_posts_end(driven: HandDrivenWorker, slack: Slack) -> None:
    """All posts in flight end; the loop has not looked yet."""
    slack.answer(SENDERS)
    until(lambda: len(driven.worker._post_pool._done) == SENDERS, "the end of the posts")  # noqa: SLF001 - as above


def posted(driven: HandDrivenWorker) -> list[str]:
    """The events in the order of their posts, but for those that only made the loop go on."""
    return [id_ for id_ in driven.desk.posts if not id_.startswith("next")]


def publish_elsewhere(driven: HandDrivenWorker, redis: Database) -> None:
    """Limits by which all events go to another channel."""
    put_in_force(driven, redis, LIMITS.replace("defaults: {", 'defaults: {channel: "#elsewhere", '))


def put_in_force(driven: HandDrivenWorker, redis: Database, text: str) -> None:
    keys, _ = keys_of(Settings.isolated())
    publish(Versions(redis, keys), driven.file(text), "bob", Unless.SAME, lambda *_, **__: None)


def members(redis: Database, key: str) -> set[str]:
    found: Any = redis.zrange(key, 0, -1)
    return {member.decode() for member in found}


@pytest.mark.usefixtures("standing_by")
def test_events_that_stand_by_are_not_parked_and_start_in_order(driven: HandDrivenWorker, slack: Slack) -> None:
    assert driven.client.scard(LEASED) == len(EVENTS)
    slack.answer(100)
    go_on(driven, len(EVENTS))
    fours = [set(posted(driven)[at : at + SENDERS]) for at in range(0, len(EVENTS), SENDERS)]
    assert fours == [{*EVENTS[:4]}, {*EVENTS[4:8]}, {*EVENTS[8:]}]
    assert not driven.client.exists(PARKED)
    assert "event.waiting" not in driven.said.getvalue()


@pytest.mark.usefixtures("standing_by")
def test_the_slots_of_an_event_move_to_the_start_of_its_post(driven: HandDrivenWorker, slack: Slack) -> None:
    """A window is as long at Slack as it is at the limiter."""
    seconds, micros = driven.client.time()
    slack.answer(100)
    go_on(driven)
    rows: Any = driven.client.zrange(GLOBAL, 0, -1, withscores=True)
    unmoved = [member for member, score in rows if score < seconds * US + micros]
    assert len(unmoved) == SENDERS


@pytest.mark.usefixtures("standing_by")
def test_while_more_than_half_a_batch_stands_by_nothing_is_taken(
    driven: HandDrivenWorker, slack: Slack, asked: list[tuple[str, int, int]]
) -> None:
    """And then only as much as may stand by. Nothing is prefetched, since it might find no room."""

    def meanwhile() -> None:
        driven.bell.meanwhile = lambda: None
        all_posts_end(driven, slack)

    send(driven, *(f"new{n}" for n in range(40)))
    driven.bell.meanwhile = meanwhile
    assert driven.next() == [f"new{n}" for n in range(8)]
    assert asked == [("take", 8, 0)]


def test_after_a_sleep_nothing_is_prefetched_before_it_is_known_whether_events_stand_by(
    driven: HandDrivenWorker, asked: list[tuple[str, int, int]]
) -> None:
    send(driven, *EVENTS, *(f"new{n}" for n in range(40)))
    assert driven.next() == list(EVENTS)
    assert asked == [("take", len(EVENTS), SENDERS)]


def test_after_a_batch_that_was_posted_nothing_is_prefetched(
    driven: HandDrivenWorker, slack: Slack, asked: list[tuple[str, int, int]]
) -> None:
    """What was prefetched would be admitted too, and find no room."""
    send(driven, "first")
    assert driven.next() == ["first"]
    slack.answer(1)
    until(lambda: len(driven.worker._post_pool._done) == 1, "the end of the post")  # noqa: SLF001 - nothing else tells
    send(driven, *EVENTS, *(f"new{n}" for n in range(40)))
    asked.clear()
    assert driven.next() == list(EVENTS)
    assert asked == [("take", len(EVENTS), SENDERS)]


@pytest.mark.usefixtures("standing_by")
def test_an_event_that_has_stood_by_for_long_is_parked_for_any_worker(
    driven: HandDrivenWorker, clock: StandingClock
) -> None:
    clock.by_s += STANDBY_S
    send(driven, "next")
    assert driven.next() == ["next"]
    assert members(driven.client, PARKED) == {*EVENTS[SENDERS:]}
    assert driven.client.zcard(GLOBAL) == len(EVENTS) + 1, "no second slots"


@pytest.mark.usefixtures("standing_by")
def test_new_limits_decide_what_stands_by(driven: HandDrivenWorker, slack: Slack, redis: Database) -> None:
    publish_elsewhere(driven, redis)
    slack.answer(100)
    go_on(driven, len(EVENTS))
    elsewhere = {message.event_id for message in driven.desk.messages if message.channel == "#elsewhere"}
    assert {*EVENTS[SENDERS:]} <= elsewhere
    assert elsewhere.isdisjoint(EVENTS[:SENDERS])


@pytest.mark.usefixtures("standing_by")
@pytest.mark.parametrize("is_started", [False, True], ids=["told by a take", "told by the start of a post"])
def test_lowered_limits_let_what_stands_by_wait(
    driven: HandDrivenWorker, slack: Slack, redis: Database, *, is_started: bool
) -> None:
    """They drop nothing of it. Of twelve two more than four in flight have room; the others hold their slots."""
    put_in_force(driven, redis, LIMITS.replace("100/1h", "6/1h"))
    if is_started:
        all_posts_end(driven, slack)
    slack.answer(100)
    go_on(driven)
    while is_due(driven):
        assert driven.next()
    until(lambda: len(posted(driven)) >= 6, "the posts that have room")
    waiting = members(driven.client, PARKED)
    assert {*posted(driven)} | {id_ for id_ in waiting if id_ in EVENTS} == {*EVENTS}
    assert len(posted(driven)) == 6
    assert all("event.dropped" not in line or '"next' in line for line in driven.said.getvalue().splitlines())


@pytest.mark.usefixtures("standing_by")
def test_no_event_that_stands_by_is_posted_after_a_refusal_that_pauses_posting(
    driven: HandDrivenWorker, slack: Slack
) -> None:
    slack.result = lambda _: Paused("invalid_auth", "the token is not valid")
    slack.answer(100)
    go_on(driven)
    assert len(driven.desk.posts) == SENDERS
    assert {*EVENTS[SENDERS:]} <= members(driven.client, PARKED)


@pytest.mark.usefixtures("standing_by")
@pytest.mark.parametrize(
    "refusal", [Paused("invalid_auth", "the token is not valid"), RateLimitedBySlack(30 * US, "ratelimited")]
)
def test_after_a_refusal_that_holds_them_up_all_that_stand_by_are_parked_at_once(
    driven: HandDrivenWorker, slack: Slack, monkeypatch: pytest.MonkeyPatch, refusal: PostResult
) -> None:
    calls: list[int] = []

    def noted(
        candidates: Sequence[Candidate], free: int, *, is_last: bool = False, stood_by: bool = False
    ) -> list[Started | Waiting | None]:
        calls.append(len(candidates))
        return start(candidates, free, is_last=is_last, stood_by=stood_by)

    start = driven.outbox.start
    monkeypatch.setattr(driven.outbox, "start", noted)
    slack.result = lambda _: refusal
    slack.answer(1)
    until(lambda: len(driven.worker._post_pool._done) == 1, "the end of the post")  # noqa: SLF001 - as above
    go_on(driven)
    assert calls[:2] == [1, 7]
    assert {*EVENTS[SENDERS:]} <= members(driven.client, PARKED)
    slack.answer(100)


@pytest.mark.usefixtures("standing_by")
def test_events_that_stand_by_are_parked_at_a_stop(driven: HandDrivenWorker, slack: Slack) -> None:
    """Given back, they would ask the gate again, by limits or silences that may be others then."""
    slack.answer(SENDERS)
    driven.worker.sign_off()
    assert len(driven.desk.posts) == SENDERS
    assert members(driven.client, PARKED) == {*EVENTS[SENDERS:]}


@pytest.mark.usefixtures("standing_by")
def test_after_an_outage_of_the_server_events_still_stand_by_but_for_those_that_it_may_have_started(
    driven: HandDrivenWorker, slack: Slack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        monkeypatch.setattr(driven.outbox, "start", start)
        raise GateUnavailable("the answer was lost")

    start = driven.outbox.start
    monkeypatch.setattr(driven.outbox, "start", lost)
    all_posts_end(driven, slack)
    taken = driven.take()
    assert handed_out(taken) == [*EVENTS[4:8]]
    assert {each.takes for each in taken.batch if isinstance(each, Leased)} == {2}
    driven.worker.dispatch(taken)
    slack.answer(100)
    go_on(driven, len(EVENTS))
    assert sorted(posted(driven)) == sorted(EVENTS)


@pytest.mark.usefixtures("standing_by")
def test_no_sender_is_left_idle_while_events_stand_by(
    driven: HandDrivenWorker, slack: Slack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The posts end just after the loop has looked for free senders, and there is nothing to take."""
    settle = driven.worker._settle_posts  # noqa: SLF001 - between two steps of the loop
    stood_by: list[int] = []

    def late() -> None:
        monkeypatch.setattr(driven.worker, "_settle_posts", settle)
        all_posts_end(driven, slack)
        settle()

    all_posts_end(driven, slack)  # four events stand by
    monkeypatch.setattr(driven.worker, "_settle_posts", late)

    def as_it_falls_asleep() -> None:
        stood_by.append(stand_by(driven))
        send(driven, "next")

    driven.bell.meanwhile = as_it_falls_asleep
    assert driven.next() == ["next"]
    assert stood_by == [0]


@pytest.mark.usefixtures("standing_by")
def test_posts_that_end_while_others_are_settled_make_room_for_what_stands_by_before_new_events(
    driven: HandDrivenWorker, slack: Slack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next take asks for as many as may stand by then, so none has to be parked."""
    settle = driven.worker._settle_posts  # noqa: SLF001 - between two steps of the loop

    def late() -> None:
        monkeypatch.setattr(driven.worker, "_settle_posts", settle)
        all_posts_end(driven, slack)
        settle()

    send(driven, *(f"new{n}" for n in range(40)))
    all_posts_end(driven, slack)  # four events stand by
    monkeypatch.setattr(driven.worker, "_settle_posts", late)
    assert driven.next() == [f"new{n}" for n in range(12)]
    assert not driven.client.exists(PARKED)
    assert posted(driven)[:12] == [*EVENTS]


@pytest.mark.usefixtures("standing_by")
def test_parked_events_that_come_first_are_taken_before_others_that_stand_by_are_parked_too(
    driven: HandDrivenWorker, slack: Slack
) -> None:
    Producer(driven.client).send("news", "x", id="urgent", priority="high", thread="t")  # in a thread, so it is parked
    send(driven, *(f"new{n}" for n in range(7)))
    all_posts_end(driven, slack)  # four events stand by
    assert len(driven.next()) == 8
    assert stand_by(driven) == 11
    all_posts_end(driven, slack)
    assert driven.next() == ["urgent", "e8", "e9", "e10"]
    assert stand_by(driven) == 7


@pytest.mark.usefixtures("standing_by")
def test_parked_events_that_are_due_go_before_those_that_stand_by(
    driven: HandDrivenWorker, slack: Slack, clock: StandingClock
) -> None:
    clock.by_s += STANDBY_S
    send(driven, "next")
    assert driven.next() == ["next"]  # the others were parked, and it stands by
    all_posts_end(driven, slack)
    assert driven.next() == [*EVENTS[4:8]]
    assert stand_by(driven) == 1


def test_no_event_stands_by_twice_if_other_limits_come_in_force_while_its_batch_is_decided(
    driven: HandDrivenWorker, slack: Slack, redis: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_late(
        candidates: Sequence[Candidate], free: int, *, is_last: bool = False, stood_by: bool = False
    ) -> list[Started | Waiting | None]:
        monkeypatch.setattr(driven.outbox, "start", start)
        publish_elsewhere(driven, redis)
        return start(candidates, free, is_last=is_last, stood_by=stood_by)

    start = driven.outbox.start
    monkeypatch.setattr(driven.outbox, "start", start_late)
    slack.answer(100)
    send(driven, *EVENTS)
    driven.next()
    assert stand_by(driven) == 0, "the newer limits decide all of them, and these are parked"
    go_on(driven, len(EVENTS))
    assert sorted(posted(driven)) == sorted(EVENTS)
    assert {message.channel for message in driven.desk.messages} == {"#elsewhere"}

"""The worker's loop, step by step: which posts it settles together, and what it takes while posts wait for a sender."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from dispatcher.core.event import Event
from dispatcher.core.posts import Message, PostResult, Receipt
from dispatcher.core.states import boottime_s
from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.worker.post_pool import TOGETHER_S
from tests.support.hand_driven_worker import HandDrivenWorker, send
from tests.support.processes import until
from tests.support.servers import Database
from tests.support.stage import handed_out

EVENTS: Final = "{dispatcher}:events"
LANE: Final = "rq:queue:notifications"
WAKE: Final = "{dispatcher}:wake"
SENDERS: Final = 4


class Clock:
    """Seconds that only a test moves, once it has stopped them."""

    def __init__(self) -> None:
        self.now: float | None = None

    def __call__(self) -> float:
        return boottime_s() if self.now is None else self.now

    def stop(self) -> None:
        self.now = boottime_s()

    def forward(self, seconds: float) -> None:
        assert self.now is not None
        self.now += seconds


class ServerClock:
    """The server's clock. It keeps its pace, and a test can set it forward, or stop it."""

    def __init__(self) -> None:
        self._ahead_us = 0
        self._stopped_us: int | None = None

    def __call__(self) -> int:
        now_us = time.time_ns() // 1_000 if self._stopped_us is None else self._stopped_us
        return now_us + self._ahead_us

    def stop(self) -> None:
        self._stopped_us = time.time_ns() // 1_000

    def forward(self, seconds: float) -> None:
        self._ahead_us += round(seconds * US)


class Slack:
    """Answers each post when it is told to."""

    def __init__(self) -> None:
        self._answers = {id_: threading.Event() for id_ in ("quick", "slow")}
        self.is_slow = False
        self.go_on = threading.Event()
        """All other posts wait for it while Slack is slow."""

    def __call__(self, message: Message) -> PostResult:
        answers = self._answers.get(message.event_id, self.go_on if self.is_slow else None)
        assert answers is None or answers.wait(10)
        return Receipt(message.channel, "1.1")

    def answer(self, *ids: str) -> None:
        for id_ in ids:
            self._answers[id_].set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slack() -> Slack:
    return Slack()


@pytest.fixture
def server_clock() -> ServerClock:
    return ServerClock()


@pytest.fixture
def driven(
    redis: Database, tmp_path: Path, clock: Clock, slack: Slack, server_clock: ServerClock
) -> Iterator[HandDrivenWorker]:
    built = HandDrivenWorker(redis, 8, tmp_path, clock=clock, server_clock=server_clock)
    built.desk.reply = slack
    built.worker._post_pool.post_s = 1.0  # noqa: SLF001 - posts took long, so nothing stands by
    yield built
    slack.answer("quick", "slow")
    slack.go_on.set()
    built.worker.sign_off()


@pytest.fixture
def two_posts(driven: HandDrivenWorker, clock: Clock) -> None:
    """Of two events, of which the posts are in flight; time stands still."""
    clock.stop()
    send(driven, "quick", "slow")
    assert driven.next() == ["quick", "slow"]
    driven.client.delete(WAKE)  # new limits have left a token


def unsettled_while_it_sleeps(driven: HandDrivenWorker, happens: Sequence[Callable[[], object]]) -> list[set[str]]:
    """Which events are not settled each time the loop goes to sleep; then one of these things happens."""
    seen: list[set[str]] = []

    def next_sleep() -> None:
        seen.append({id_.decode() for id_ in driven.client.hkeys(EVENTS)})
        happens[len(seen) - 1]()

    driven.bell.meanwhile = next_sleep
    assert driven.next() == ["next"]
    driven.bell.meanwhile = lambda: None  # what follows is the stop
    return seen


def answer(driven: HandDrivenWorker, slack: Slack, id_: str) -> None:
    """Slack answers, and the loop hears of it."""
    rings = driven.bell.rings
    slack.answer(id_)
    until(lambda: driven.bell.rings > rings, f"the end of the post of {id_}")


def ended(driven: HandDrivenWorker) -> int:
    """How many posts have ended, whether the loop has settled them or not."""
    settled = sum(outcome == "sent" for _, outcome in driven.told())
    return settled + len(driven.worker._post_pool._done)  # noqa: SLF001 - nothing else tells


@pytest.mark.usefixtures("two_posts")
def test_posts_that_began_together_are_settled_together_however_long_they_take(
    driven: HandDrivenWorker, slack: Slack, clock: Clock
) -> None:
    def late_answer() -> None:
        clock.forward(1.0)
        answer(driven, slack, "quick")

    happens = (
        late_answer,
        lambda: answer(driven, slack, "slow"),
        lambda: send(driven, "next"),
    )
    assert unsettled_while_it_sleeps(driven, happens) == [{"quick", "slow"}, {"quick", "slow"}, set()]


@pytest.mark.usefixtures("two_posts")
def test_the_loop_waits_for_a_post_in_flight_only_so_long(driven: HandDrivenWorker, slack: Slack, clock: Clock) -> None:
    def time_passes() -> None:
        clock.forward(2 * TOGETHER_S)
        driven.bell.ring()

    happens = (lambda: answer(driven, slack, "quick"), time_passes, lambda: send(driven, "next"))
    assert unsettled_while_it_sleeps(driven, happens) == [{"quick", "slow"}, {"quick", "slow"}, {"slow"}]


@pytest.mark.usefixtures("two_posts")
def test_a_job_is_taken_at_once_while_others_in_flight_are_waited_for(driven: HandDrivenWorker, slack: Slack) -> None:
    happens = (lambda: answer(driven, slack, "quick"), lambda: send(driven, "next"))
    assert unsettled_while_it_sleeps(driven, happens) == [{"quick", "slow"}, {"quick", "slow"}]


@pytest.fixture
def waiting(driven: HandDrivenWorker, asked: list[tuple[str, int, int]]) -> None:
    """Of 16 admitted events four are posted, and twelve wait for a sender."""
    send(driven, *(f"e{n}" for n in range(16)))
    driven.worker.dispatch(driven.outbox.take(16, SENDERS))
    until(lambda: ended(driven) == SENDERS, "the end of the first posts")
    asked.clear()


@pytest.mark.usefixtures("waiting")
def test_while_posts_wait_for_a_sender_every_other_batch_holds_no_new_events(
    driven: HandDrivenWorker, asked: list[tuple[str, int, int]]
) -> None:
    """And nothing is prefetched: what a post came to would be settled after that."""
    send(driven, *(f"new{n}" for n in range(9)))
    batches = []
    for posted in (4, 8, 12):
        until(partial(lambda number: ended(driven) == number, posted), f"the end of {posted} posts")
        batches.append(driven.next())
    assert batches == [
        ["e4", "e5", "e6", "e7", "new0", "new1", "new2", "new3"],
        ["e8", "e9", "e10", "e11"],
        ["e12", "e13", "e14", "e15", "new4", "new5", "new6", "new7"],
    ]
    assert asked == [("take", 8, SENDERS), ("take", 0, SENDERS), ("take", 8, SENDERS)]


@pytest.mark.usefixtures("waiting")
def test_a_busy_worker_does_not_take_again_for_posts_that_wait(
    driven: HandDrivenWorker, slack: Slack, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float] = []

    def sleep(seconds: float, *, lanes: bool = True, wake: bool = True) -> bool:
        sleeps.append(seconds)
        slack.go_on.set()
        return type(driven.bell).sleep(driven.bell, seconds, lanes=lanes, wake=wake)

    taken = driven.take()
    slack.is_slow = True
    driven.worker.dispatch(taken)
    monkeypatch.setattr(driven.bell, "sleep", sleep)
    following = driven.worker.next_batch(taken)
    assert following is not None
    assert handed_out(following) == ["e8", "e9", "e10", "e11"]
    assert sleeps[0] > 0, "what is due now needs a sender"


@pytest.mark.usefixtures("waiting")
def test_a_busy_worker_decides_a_scheduled_event_at_its_instant(
    driven: HandDrivenWorker, slack: Slack, server_clock: ServerClock
) -> None:
    """It took the event with the batch that filled its senders. So no take has told it the instant."""
    server_clock.stop()
    at_s = server_clock() / US + 0.05
    Producer(driven.client).send("news", "x", id="later", not_before=at_s)
    taken = driven.take()
    assert handed_out(taken) == ["e4", "e5", "e6", "e7", "later"]
    slack.is_slow = True
    driven.worker.dispatch(taken)
    driven.bell.sleep(0, server=False)  # it has heard of the posts that ended before
    driven.bell.meanwhile = lambda: server_clock.forward(0.05)
    following = driven.worker.next_batch(taken)
    assert following is not None
    assert handed_out(following) == ["later"]
    assert following.now_us >= at_s * US
    assert driven.worker._post_pool.free == 0, "the posts are still in flight"  # noqa: SLF001 - nothing else tells


def test_scheduled_events_that_are_due_are_no_posts_that_wait(
    driven: HandDrivenWorker, asked: list[tuple[str, int, int]], server_clock: ServerClock
) -> None:
    """A batch without new events would hold none of them."""
    at_s = server_clock() / US + 3_600
    events = [Event("news", "x", id=f"later{n}", not_before=at_s) for n in range(12)]
    Producer(driven.client).send_many(events)
    while driven.client.exists(LANE):
        driven.next()
    server_clock.forward(3_600)
    asked.clear()
    decided: list[str] = []
    while len(decided) < len(events):
        decided += driven.next()
    assert {new for what, new, _ in asked if what == "take"} == {8}


def test_posts_that_began_to_wait_while_all_senders_were_busy_come_first(
    driven: HandDrivenWorker, slack: Slack, asked: list[tuple[str, int, int]]
) -> None:
    slack.is_slow = True
    send(driven, *(f"e{n}" for n in range(8)))
    assert len(driven.next()) == 8  # four are posted, and four wait
    send(driven, *(f"new{n}" for n in range(20)))
    assert driven.next() == [f"new{n}" for n in range(8)]
    asked.clear()
    slack.go_on.set()
    until(lambda: ended(driven) == SENDERS, "the end of the posts")
    assert driven.next()[:SENDERS] == ["e4", "e5", "e6", "e7"]
    assert [what for what, _, _ in asked] == ["take"]


def test_after_the_prefetched_batches_come_the_posts_that_wait(driven: HandDrivenWorker, slack: Slack) -> None:
    slack.is_slow = True
    for id_ in ("first", "second"):  # one may be posted; after a batch that was not, others are prefetched
        send(driven, id_, category="errors")
        assert driven.next() == [id_]
    send(driven, *(f"e{n}" for n in range(8)), *(f"new{n}" for n in range(90)))
    while not driven.worker._posts_wait or not driven.outbox.ahead:  # noqa: SLF001 - nothing else tells
        assert "e7" not in driven.next() or driven.client.exists(LANE), "new events are left"
    slack.go_on.set()
    until(lambda: ended(driven) == SENDERS, "the end of the posts")
    batches = [driven.next() for _ in range(3)]
    assert ["e3", "e4", "e5", "e6"] in batches

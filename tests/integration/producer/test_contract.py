"""What every producer promises: the real ones on a server, and those of ``dispatcher.testing`` without one."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Protocol

import pytest
import redis.asyncio

from dispatcher import AsyncProducer, DuplicateEvent, Event, InvalidEvent, Producer, QueueFull, QueueUnavailable
from dispatcher.core.event import MAX_EVENT_BYTES, job_id_for
from dispatcher.core.explain import Explanation, State
from dispatcher.core.units import Lane
from dispatcher.producer.blocking import CHUNK
from dispatcher.server.clients import connect, connect_async
from dispatcher.store.intake import open_envelope
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.testing import AsyncFakeProducer, FakeProducer
from tests.support.servers import Database, RedisServer

QUEUE = QueueKeys("notifications")

Source = Event | Mapping[str, Any]


class Awaited:
    """An asyncio producer's calls, each run to its end."""

    def __init__(self, run: Callable[[Callable[[AsyncProducer], Any]], Any]) -> None:
        self._run = run

    def send(self, category: str, text: str = "", **fields: Any) -> str:  # noqa: ANN401 - the producer's
        return str(self._run(lambda producer: producer.send(category, text, **fields)))

    def resolve(self, category: str, dedup_key: str, text: str | None = None) -> str:
        return str(self._run(lambda producer: producer.resolve(category, dedup_key, text)))

    def send_many(self, events: Iterable[Any], **options: Any) -> list[str]:  # noqa: ANN401 - the producer's
        return list(self._run(lambda producer: producer.send_many(events, **options)))

    def explain(self, event_id: str) -> Explanation:
        told: Explanation = self._run(lambda producer: producer.explain(event_id))
        return told


Calls = Producer | Awaited
"""The calls of a producer, as plain code makes them."""


class Subject(Protocol):
    """A producer with its queue."""

    calls: Calls

    def queued(self) -> list[Event]:
        """What waits, in order, lane after lane, each with its id."""

    def take(self) -> list[Event]:
        """The same, which then waits no longer."""


class OnServer:
    def __init__(self, database: Database, calls: Calls) -> None:
        self._database = database
        self.calls: Calls = calls

    def queued(self) -> list[Event]:
        return [self._event(id_.decode()) for lane in QUEUE.lanes for id_ in self._database.lrange(lane, 0, -1)]

    def take(self) -> list[Event]:
        taken = self.queued()
        self._database.delete(*QUEUE.lanes)
        return taken

    def _event(self, job_id: str) -> Event:
        event = open_envelope(job_id, self._database.hget(QUEUE.job(job_id), "data"))
        return event if event.id is not None else Event.from_payload({**event.to_payload(), "id": job_id})


class InMemory:
    def __init__(self, fake: FakeProducer | AsyncFakeProducer, calls: Calls) -> None:
        self._fake = fake
        self._taken = 0
        self.calls: Calls = calls

    def queued(self) -> list[Event]:
        waiting = self._fake.events[self._taken :]
        return sorted(waiting, key=lambda event: list(Lane).index(event.priority))

    def take(self) -> list[Event]:
        taken = self._fake.take()
        assert taken == list(self._fake.events[self._taken :])
        self._taken = len(self._fake.events)
        return taken


Make = Callable[..., Subject]
REAL = {"producer", "async producer"}


@pytest.fixture(params=["producer", "async producer", "fake", "async fake"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a producer of each kind, with an empty queue."""
    database: Any = request.getfixturevalue("redis") if request.param in REAL else None
    url = request.getfixturevalue("redis_url") if request.param in REAL else ""

    def maker(**options: Any) -> Subject:  # noqa: ANN401 - the producer's
        if request.param == "producer":
            return OnServer(database, Producer(database, **options))
        if request.param == "async producer":

            async def call(do: Callable[[AsyncProducer], Any]) -> Any:  # noqa: ANN401 - any call's answer
                async with redis.asyncio.Redis.from_url(url) as client:
                    return await do(AsyncProducer(client, **options))

            return OnServer(database, Awaited(lambda do: asyncio.run(call(do))))
        if request.param == "fake":
            fake = FakeProducer(**options)
            return InMemory(fake, fake)
        slow = AsyncFakeProducer(**options)

        async def ask(do: Callable[[AsyncProducer], Any]) -> Any:  # noqa: ANN401 - any call's answer
            return await do(slow)

        return InMemory(slow, Awaited(lambda do: asyncio.run(ask(do))))

    return maker


def events(count: int, *, ids: bool = True) -> list[dict[str, str]]:
    return [{"category": "errors", "text": f"text {n}", **({"id": f"e{n}"} if ids else {})} for n in range(count)]


def ids(found: Iterable[Event]) -> list[str | None]:
    return [event.id for event in found]


def test_an_event_arrives_as_it_was_sent(make: Make) -> None:
    subject = make()
    fields: dict[str, Any] = {
        "channel": "#ops",
        "blocks": [{"type": "divider"}],
        "labels": {"host": "db1"},
        "created_at": 1.5,
        "max_age": 60.0,
        "thread_ts": "1732100000.000100",
        "mrkdwn": True,
    }
    assert subject.calls.send("errors", "disk full", id="a/b", priority="high", **fields) == "a/b"
    [event] = subject.queued()
    assert (event.category, event.text, event.id, event.priority) == ("errors", "disk full", "a/b", Lane.HIGH)
    assert {name: getattr(event, name) for name in fields} == {**fields, "blocks": ({"type": "divider"},)}


def test_a_delay_counts_from_send(make: Make) -> None:
    subject = make()
    before = time.time()
    subject.calls.send("reports", "x", delay="2h")
    subject.calls.send_many([{"category": "reports", "text": "y", "delay": 7200}])
    for event in subject.queued():
        assert event.delay is None
        assert event.not_before is not None
        assert before + 7200 <= event.not_before <= time.time() + 7200


@pytest.mark.parametrize(("text", "said"), [(None, "Resolved: db1"), ("db1 is back", "db1 is back")])
def test_a_recovery_names_what_is_over_where_it_has_no_text(make: Make, text: str | None, said: str) -> None:
    subject = make()
    id_ = subject.calls.resolve("errors", "db1", text)
    [event] = subject.queued()
    assert (event.id, event.category, event.text, event.dedup_key) == (id_, "errors", said, "db1")
    assert event.is_resolved


def test_lanes_are_kept_apart(make: Make) -> None:
    subject = make()
    for priority in ("low", "high", "normal", "high"):
        subject.calls.send("errors", priority, priority=priority)
    assert [event.text for event in subject.queued()] == ["high", "high", "normal", "low"]


def test_events_may_be_mappings_of_any_kind_and_come_from_anywhere(make: Make) -> None:
    subject = make()
    plain, frozen = ({"category": "errors", "text": "x", "id": id_} for id_ in ("b", "c"))
    given: list[Source] = [Event("errors", "x", id="a"), plain, MappingProxyType(frozen)]
    assert subject.calls.send_many(iter(given)) == ids(subject.queued()) == ["a", "b", "c"]


def test_many_keep_their_order_over_chunks(make: Make) -> None:
    subject = make()
    assert subject.calls.send_many(events(CHUNK + 7)) == ids(subject.queued()) == [f"e{n}" for n in range(CHUNK + 7)]


def test_nobodys_id_is_generated(make: Make) -> None:
    subject = make()
    one, *many = subject.calls.send("errors", "x"), *subject.calls.send_many(events(50, ids=False))
    assert ids(subject.queued()) == [one, *many]
    assert len({one, *many}) == 51
    assert {len(id_) for id_ in (one, *many)} == {36}
    assert subject.calls.send("errors", "again", id=one) == one
    assert len(subject.queued()) == 51


def test_the_first_of_an_id_wins(make: Make) -> None:
    subject = make()
    assert [subject.calls.send("errors", text, id="e1") for text in ("first", "second")] == ["e1", "e1"]
    with pytest.raises(DuplicateEvent, match=r"^id 'e1' is already present or was settled not long ago$") as caught:
        subject.calls.send("errors", "third", id="e1", on_duplicate="raise")
    assert caught.value.duplicates == ("e1",)
    assert [event.text for event in subject.queued()] == ["first"]


def test_duplicates_among_many_are_told_at_the_end(make: Make) -> None:
    subject = make()
    subject.calls.send("errors", "first", id="e1")
    with pytest.raises(DuplicateEvent, match=r"^2 of 6 ids are already present .* the first is 'e1'$") as caught:
        subject.calls.send_many([*events(5), {"category": "errors", "text": "x", "id": "e3"}], on_duplicate="raise")
    assert caught.value.duplicates == ("e1", "e3")
    assert list(caught.value.ids) == ["e0", "e1", "e2", "e3", "e4", "e3"]
    assert ids(subject.queued()) == ["e1", "e0", "e2", "e3", "e4"]
    assert subject.calls.send_many(events(5)) == ["e0", "e1", "e2", "e3", "e4"]


def test_an_id_outside_of_rqs_alphabet_is_recognised_too(make: Make) -> None:
    subject = make()
    subject.calls.send("errors", "first", id="ärger/1")
    subject.calls.send("errors", "second", id="ärger/1")
    assert [(event.id, event.text) for event in subject.queued()] == [("ärger/1", "first")]


@pytest.mark.parametrize(
    ("category", "fields", "said"),
    [
        ("no spaces", {"text": "x"}, "category is 'no spaces', expected 1 to 64 of"),
        ("errors", {}, "text is empty, expected some text, or blocks"),
        ("errors", {"text": None}, "text is None, expected a string"),
        ("errors", {"text": "x", "chanel": "#ops"}, "'chanel' is not a key of an event; did you mean channel?"),
        ("errors", {"text": "x", "priority": "urgent"}, "priority is 'urgent', expected high, normal or low"),
        ("errors", {"text": "x", "id": ""}, "id is '', expected 1 to 128 printable characters"),
        ("errors", {"text": "x" * MAX_EVENT_BYTES}, "bytes as JSON, expected at most 262144"),
        ("errors", {"blocks": [{"type": "x", "x": {1}}]}, "blocks hold a set, which JSON has no form for"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_event_is_refused_in_the_same_words(
    make: Make, category: str, fields: dict[str, Any], said: str
) -> None:
    subject = make()
    with pytest.raises(InvalidEvent) as caught:
        subject.calls.send(category, **fields)
    assert said in str(caught.value)
    assert subject.queued() == []


@pytest.mark.parametrize("source", [iter, list])
def test_an_invalid_one_among_many_names_its_position_and_nothing_of_its_chunk_is_sent(
    make: Make, source: Callable[[Any], Any]
) -> None:
    subject = make()
    given: list[dict[str, str]] = [*events(CHUNK + 3), {"category": "errors", "text": " "}, *events(5)]
    with pytest.raises(InvalidEvent, match=r"^event 503: text is empty, expected some text, or blocks$") as caught:
        subject.calls.send_many(source(given))
    assert ids(subject.queued()) == list(caught.value.ids) == [f"e{n}" for n in range(CHUNK)]
    assert list(caught.value.rest) == given[CHUNK : CHUNK + 4]


@pytest.mark.parametrize("error", [KeyError("x"), InvalidEvent("not mine")], ids=lambda error: type(error).__name__)
def test_what_an_iterator_raises_comes_after_the_events_that_it_gave(make: Make, error: Exception) -> None:
    def source() -> Iterator[dict[str, str]]:
        yield from events(CHUNK + 3)
        raise error

    subject = make()
    with pytest.raises(type(error)) as caught:
        subject.calls.send_many(source())
    assert ids(subject.queued()) == [f"e{n}" for n in range(CHUNK + 3)]
    if isinstance(caught.value, InvalidEvent):
        assert (list(caught.value.ids), caught.value.rest) == (ids(subject.queued()), ())


def test_a_full_queue_is_told_before_an_invalid_event_of_the_next_chunk(make: Make) -> None:
    subject = make(max_waiting=7)
    given: list[dict[str, str]] = [*events(CHUNK), {"category": "errors", "text": " "}]
    with pytest.raises(QueueFull) as caught:
        subject.calls.send_many(given)
    assert ids(subject.queued()) == list(caught.value.ids) == [f"e{n}" for n in range(7)]
    assert list(caught.value.rest) == given[7:CHUNK]


def test_a_full_queue_tells_what_is_on_it_and_takes_a_repeat(make: Make) -> None:
    subject = make(max_waiting=CHUNK + 7)
    given = events(2 * CHUNK)
    with pytest.raises(QueueFull, match=r"^the queue is full after 507 events$") as caught:
        subject.calls.send_many(given)
    assert ids(subject.queued()) == list(caught.value.ids) == [f"e{n}" for n in range(CHUNK + 7)]
    assert list(caught.value.rest) == given[CHUNK + 7 :]
    words = "the queue is full: at least 507 events wait, are in flight or parked, and DISPATCHER_MAX_WAITING is 507"
    with pytest.raises(QueueFull, match=f"^{words}$"):
        subject.calls.send("errors", "x")
    assert subject.calls.send("errors", "again", id="e3") == "e3"


def test_a_queue_for_one_event_is_full_with_it(make: Make) -> None:
    subject = make(max_waiting=1)
    subject.calls.send("errors", "x")
    words = "the queue is full: at least 1 event waits, is in flight or parked, and DISPATCHER_MAX_WAITING is 1"
    with pytest.raises(QueueFull, match=f"^{words}$"):
        subject.calls.send("errors", "x")


def test_a_call_goes_on_where_a_full_queue_stopped_it(make: Make) -> None:
    subject = make(max_waiting=300)
    rest: Iterator[Any] = iter(events(1_100, ids=False))
    taken: list[Event] = []
    while True:
        try:
            subject.calls.send_many(rest)
            break
        except QueueFull as error:
            rest = chain(error.rest, rest)
            taken += subject.take()
    taken += subject.take()
    assert [event.text for event in taken] == [f"text {n}" for n in range(1_100)], "an id would hide a repeat"
    assert subject.queued() == []


def test_an_id_stays_known_while_its_event_is_worked_on(make: Make) -> None:
    subject = make()
    subject.calls.send("errors", "first", id="e1")
    subject.take()
    with pytest.raises(DuplicateEvent):
        subject.calls.send("errors", "second", id="e1", on_duplicate="raise")
    assert subject.queued() == []


@pytest.mark.parametrize("value", ["raises", None])
def test_what_on_duplicate_cannot_be_is_refused_before_anything_is_sent(make: Make, value: Any) -> None:  # noqa: ANN401 - of any type
    subject = make()
    said = rf"^on_duplicate is {value!r}, expected ignore or raise$"
    with pytest.raises(ValueError, match=said):
        subject.calls.send("errors", "x", on_duplicate=value)
    with pytest.raises(ValueError, match=said):
        subject.calls.send_many(events(1), on_duplicate=value)
    assert subject.queued() == []


def test_an_event_that_waits_is_explained_by_its_id_and_by_its_jobs(make: Make) -> None:
    subject = make()
    urgent: dict[str, Any] = {"priority": "high"}
    for id_, fields in (("urgent", urgent), ("first", {}), ("b/ä", {})):
        subject.calls.send("errors", "x", id=id_, **fields)
    one, same = subject.calls.explain("b/ä"), subject.calls.explain(job_id_for("b/ä"))
    assert (one.id, one.job_id, one.state, one.before) == ("b/ä", job_id_for("b/ä"), State.WAITING, 1)
    assert same == replace(one, id=job_id_for("b/ä"))
    assert one.sentence == "Waits on the queue, on lane normal, behind 1 other; no worker has taken it yet."


def test_of_an_id_that_never_came_nothing_is_known(make: Make) -> None:
    told = make().calls.explain("nobody")
    assert (told.id, told.state) == ("nobody", State.UNKNOWN)
    assert told.sentence.startswith("There is nothing about 'nobody': it was never handed over")


@pytest.mark.parametrize("kind", ["producer", "async producer", "fake", "async fake"])
def test_a_server_that_is_away_leaves_everything_open(kind: str, request: pytest.FixtureRequest) -> None:
    calls: Calls
    if kind in REAL:
        server: RedisServer = request.getfixturevalue("own_server")
        server.kill()
        calls = (
            Producer(connect(server.url)) if kind == "producer" else Awaited(lambda do: asyncio.run(away(server, do)))
        )
    else:
        fake, slow = FakeProducer(), AsyncFakeProducer()
        fake.is_away = slow.is_away = True

        async def ask(do: Callable[[AsyncProducer], Any]) -> Any:  # noqa: ANN401 - any call's answer
            return await do(slow)

        calls = fake if kind == "fake" else Awaited(lambda do: asyncio.run(ask(do)))
    with pytest.raises(QueueUnavailable) as caught:
        calls.send("errors", "x", id="e1")
    assert caught.value.ids == ()
    with pytest.raises(QueueUnavailable) as many:
        calls.send_many(events(3))
    assert (list(many.value.ids), list(many.value.rest)) == ([], events(3))
    with pytest.raises(QueueUnavailable):
        calls.explain("e1")


async def away(server: RedisServer, do: Callable[[AsyncProducer], Any]) -> Any:  # noqa: ANN401 - any call's answer
    client = connect_async(server.url)
    try:
        return await do(AsyncProducer(client))
    finally:
        await client.aclose()


@pytest.mark.parametrize(("fake", "real"), [(FakeProducer, Producer), (AsyncFakeProducer, AsyncProducer)])
def test_a_fake_has_the_calls_of_the_real_one(fake: type[Any], real: type[Any]) -> None:
    assert issubclass(fake, real)
    for name in ("send", "send_many", "__enter__", "__aenter__", "close", "aclose"):
        assert getattr(fake, name, None) is getattr(real, name, None)
    assert set(inspect.signature(fake).parameters) == {"max_waiting"}

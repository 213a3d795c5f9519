"""Log records and structlog's entries as events, on a real server: nothing waits, nothing is lost without a word."""

from __future__ import annotations

import concurrent.futures.thread
import json
import logging
import logging.config
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, TracebackType
from typing import Any, NoReturn

import pytest
import structlog

from dispatcher import Event, InvalidEvent, Producer, QueueUnavailable
from dispatcher.core.rendering import message_for
from dispatcher.handlers import DispatcherHandler, structlog_processor
from dispatcher.producer.background import EXIT_S, BackgroundSender
from dispatcher.producer.log_handlers import MOST_TRACEBACK
from dispatcher.store.intake import open_envelope
from tests.support.commands import environment
from tests.support.processes import until
from tests.support.servers import Database

LANE = "rq:queue:notifications"


def queued(redis: Database, lane: str = LANE) -> list[Event]:
    """The events on the lane, in order."""
    ids = [id_.decode() for id_ in redis.lrange(lane, 0, -1)]
    return [open_envelope(id_, redis.hget(f"rq:job:{id_}", "data") or b"") for id_ in ids]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.Logger("shop.checkout")  # noqa: LOG001 - outside the tree: no other test sees its handlers
    yield made
    for handler in made.handlers:
        handler.close()


def fail(words: str) -> None:
    raise ValueError(words)


def left_out(too_many: int, invalid: int) -> dict[str, str]:
    """What a sender of these tests tells."""
    return {"category": "errors", "text": f"{too_many + invalid} left out"}


class Hindered:
    """A producer whose queue is away until it ``opens``."""

    def __init__(self, redis: Database) -> None:
        self.producer = Producer(redis)
        self.is_open = False
        self.tries = 0

    def send_many(self, events: list[Any]) -> list[str]:
        self.tries += 1
        if not self.is_open:
            error = QueueUnavailable("away")
            error.rest = tuple(events)
            raise error
        return self.producer.send_many(events)


def test_a_record_becomes_an_event_with_its_logger_level_and_host(redis: Database, logger: logging.Logger) -> None:
    logger.addHandler(DispatcherHandler("payments", channel="#ops", labels={"team": "a"}, producer=Producer(redis)))
    logger.warning("not from this level on")
    logger.error("order %s failed", 42, extra={"dispatch": {"priority": "high", "labels": {"order": "42"}}})
    logger.handlers[0].flush()
    (event,) = queued(redis, f"{LANE}:high")
    assert (event.category, event.text, event.channel) == ("payments", "order 42 failed", "#ops")
    host = {"host": os.uname().nodename}
    assert event.labels == {**host, "team": "a", "logger": "shop.checkout", "level": "ERROR", "order": "42"}
    assert queued(redis) == []


def test_records_of_one_message_about_one_fault_have_one_key(redis: Database, logger: logging.Logger) -> None:
    def log(error: Exception, words: str, number: int) -> None:
        try:
            raise error
        except type(error):
            logger.exception(words, number)

    logger.addHandler(DispatcherHandler(producer=Producer(redis)))
    for number in range(2):
        logger.error("order %s failed", number)
        log(ValueError(str(number)), "order %s failed", number)
    log(KeyError("x"), "order %s failed", 3)
    logger.error("order %s is late", 4)
    logger.handlers[0].flush()
    keys = [event.dedup_key for event in queued(redis)]
    assert keys[:2] == keys[2:4]
    assert len(set(keys)) == 4


def test_a_fault_that_pythons_library_raises_is_that_of_the_function_which_called_it(
    redis: Database, logger: logging.Logger
) -> None:
    def read_order() -> None:
        json.loads("{")

    def read_price() -> None:
        json.loads("{")

    logger.addHandler(DispatcherHandler(producer=Producer(redis)))
    for read in (read_order, read_price, read_order):
        try:
            read()
        except ValueError:
            logger.exception("cannot be read")
    logger.handlers[0].flush()
    first, second, third = (event.dedup_key for event in queued(redis))
    assert first == third
    assert first != second


def failed_in(*frames: tuple[str, str]) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """A fault whose traceback has these frames, each a file and a function; the last one raises it."""

    def step(then: Callable[[], object]) -> None:
        then()

    run: Callable[[], object] = partial(int, "x")
    for file, name in reversed(frames):
        run = partial(FunctionType(step.__code__.replace(co_filename=file, co_name=name), {}), run)
    with pytest.raises(ValueError, match="invalid literal") as caught:
        run()
    here = caught.value.__traceback__
    assert here
    return ValueError, caught.value, here.tb_next


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_a_function_of_an_installed_package_counts_where_there_is_none_of_the_application(
    redis: Database, logger: logging.Logger, folder: str
) -> None:
    thread = (concurrent.futures.thread.__file__, "run")
    pay, ship = ((f"/usr/lib/python3/{folder}/shop.py", name) for name in ("pay", "ship"))
    run, loads, frozen = ("/srv/app.py", "run"), (json.__file__, "loads"), ("<frozen runpy>", "_run_code")
    made = ("<string>", "__init__")  # as of a dataclass
    logger.addHandler(DispatcherHandler(producer=Producer(redis)))
    for frames in ((thread, pay, loads), (frozen, thread, pay), (thread, ship), (run, pay), (run, made, loads)):
        logger.error("failed", exc_info=failed_in(*frames))
    for frames in ((thread, loads), (frozen, loads)):
        logger.error("failed", exc_info=failed_in(*frames))
    logger.handlers[0].flush()
    keys = [event.dedup_key for event in queued(redis)]
    assert keys[0] == keys[1]
    assert keys[3] == keys[4]
    assert keys[5] == keys[6]
    assert len(set(keys)) == 4


def test_a_traceback_is_a_code_block_that_is_cut_in_its_middle(redis: Database, logger: logging.Logger) -> None:
    logger.addHandler(DispatcherHandler(producer=Producer(redis)))
    try:
        fail("x" * 3 * MOST_TRACEBACK + "the \udfff end ```")
    except ValueError:
        logger.exception("failed")
    logger.handlers[0].flush()
    (event,) = queued(redis)
    assert event.text.startswith("failed\n```\nTraceback (most recent call last):")
    assert "characters left out" in event.text
    assert event.text.endswith("the \ufffd end '''\n```")
    assert len(event.text) < MOST_TRACEBACK + 200


def test_the_end_of_a_long_traceback_is_posted_though_its_characters_grow_when_they_are_escaped(
    redis: Database, logger: logging.Logger
) -> None:
    logger.addHandler(DispatcherHandler(producer=Producer(redis)))
    try:
        fail("<&>" * MOST_TRACEBACK + "the end")
    except ValueError:
        logger.exception("&" * 1_000)
    logger.handlers[0].flush()
    (event,) = queued(redis)
    posted = message_for(event, "id", "#errors").text
    assert posted.startswith("&amp;" * 199 + "…\n```\nTraceback (most recent call last):")
    assert posted.endswith("the end\n```")
    assert MOST_TRACEBACK < len(posted) < 1_000 + MOST_TRACEBACK + 100


def test_the_stack_that_a_record_carries_is_shown_under_its_traceback(redis: Database, logger: logging.Logger) -> None:
    logger.addHandler(DispatcherHandler(producer=Producer(redis)))
    logger.error("one", stack_info=True)
    try:
        fail("why")
    except ValueError:
        logger.exception("two", stack_info=True)
    logger.handlers[0].flush()
    alone, below = (event.text for event in queued(redis))
    assert alone.startswith("one\n```\nStack (most recent call last):\n")
    assert "ValueError: why\nStack (most recent call last):\n" in below
    assert below.endswith("\n```")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("x" * 1_000, "x" * 1_000),
        ("x" * 1_001, "x" * 999 + "…"),
        ("file \ud800.txt is gone", "file \ufffd.txt is gone"),
        ("\ud83d\ude00", "\U0001f600"),
    ],
    ids=["as long as may be", "too long", "half of a surrogate pair", "a surrogate pair"],
)
def test_a_message_that_cannot_be_sent_as_it_is_is_sent_as_near_as_can_be(
    redis: Database, logger: logging.Logger, message: str, text: str
) -> None:
    logger.addHandler(DispatcherHandler(producer=Producer(redis)))
    logger.error(message)
    logger.handlers[0].flush()
    process = structlog_processor(producer=Producer(redis))
    process(None, "error", {"event": message, "notify": "errors"})
    until(lambda: len(queued(redis)) == 2, "both events")
    assert [event.text for event in queued(redis)] == [text, text]


@pytest.mark.parametrize("name", ["dispatcher", "redis.asyncio", "rq.worker", "slack_sdk", "aiohttp.client"])
def test_records_of_what_hands_events_over_are_not_taken(redis: Database, name: str) -> None:
    handler = DispatcherHandler(producer=Producer(redis))
    handler.handle(logging.LogRecord(name, logging.ERROR, __file__, 1, "x", None, None))
    handler.handle(logging.LogRecord("redisson", logging.ERROR, __file__, 1, "y", None, None))
    handler.close()
    assert [event.text for event in queued(redis)] == ["y"]


def test_a_producer_that_logs_hands_over_no_record_of_its_own_thread(redis: Database, logger: logging.Logger) -> None:
    class Logs(Producer):
        def send_many(self, events: Any, **options: Any) -> list[str]:  # noqa: ANN401 - the producer's
            logger.error("about to send")
            return super().send_many(events, **options)

    logger.addHandler(DispatcherHandler(producer=Logs(redis)))
    logger.error("one")
    logger.handlers[0].flush()
    assert [event.text for event in queued(redis)] == ["one"]


@pytest.mark.parametrize(
    "fields",
    [
        {"category": "no name"},
        {"max_age": "a while"},
        {"priority": "urgent"},
        {"labels": ["db1"]},
        {"labels": {f"label {n}": "x" for n in range(31)}},  # with host and level there are 33
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_fields_that_no_event_can_have_are_refused_at_once(fields: dict[str, Any]) -> None:
    for make in (DispatcherHandler, structlog_processor):
        with pytest.raises(InvalidEvent, match=next(iter(fields))):
            make(**fields)


def test_a_handler_that_was_refused_is_not_flushed_at_the_end_of_the_program() -> None:
    program = """\
from dispatcher import InvalidEvent
from dispatcher.handlers import DispatcherHandler
try:
    DispatcherHandler("no name")
except InvalidEvent as error:
    kept = error
"""
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, env=environment({}), capture_output=True, check=True).stderr == b""


def test_the_handler_can_be_configured_by_a_dictionary_from_json(redis_url: str, redis: Database) -> None:
    program = """\
import json, logging.config, logging, sys
logging.config.dictConfig(json.loads(sys.argv[1]))
logging.getLogger("shop").error("disk %s", "full")
"""
    configuration = {
        "version": 1,
        "handlers": {
            "slack": {"class": "dispatcher.handlers.DispatcherHandler", "category": "disks", "level": "ERROR"}
        },
        "root": {"handlers": ["slack"], "level": "INFO"},
    }
    run_program(program, redis_url, json.dumps(configuration))
    assert [(event.category, event.text) for event in queued(redis)] == [("disks", "disk full")]


def run_program(program: str, redis_url: str, *arguments: str) -> str:
    """Run it to its end; returns what it printed."""
    env = environment({"DISPATCHER_REDIS_URL": redis_url})
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=env, check=True, timeout=60, stdout=subprocess.PIPE, text=True).stdout


def test_records_logged_while_the_queue_is_away_wait_and_arrive_once(redis: Database, logger: logging.Logger) -> None:
    hindered = Hindered(redis)
    logger.addHandler(DispatcherHandler(producer=hindered))
    for n in range(50):
        logger.error("number %d", n)
    until(lambda: hindered.tries > 1, "a second try")
    hindered.is_open = True
    logger.handlers[0].flush()
    until(lambda: len(queued(redis)) == 50, "all of them")
    assert [event.text for event in queued(redis)] == [f"number {n}" for n in range(50)]


@pytest.mark.parametrize("burst", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_of_a_burst_none_is_lost_without_a_word(redis: Database, logger: logging.Logger, burst: int) -> None:
    hindered = Hindered(redis)
    logger.addHandler(DispatcherHandler(producer=hindered))
    for n in range(burst):
        logger.error("number %d", n)
    hindered.is_open = True

    def told_of() -> tuple[list[str], int]:
        """The texts that have arrived, and how many others were told of."""
        texts = [event.text for event in queued(redis)]
        told = [int(text.partition(" ")[0].replace(",", "")) for text in texts if "left out" in text]
        return [text for text in texts if "left out" not in text], sum(told)

    until(lambda: len(told_of()[0]) + told_of()[1] >= burst, "what was left out")
    arrived, left_out = told_of()
    assert len(arrived) + left_out == burst
    assert len(set(arrived)) == len(arrived) >= 1_000


def test_a_forked_child_sends_its_own_records_and_not_its_parents(redis_url: str, redis: Database) -> None:
    program = """\
import logging, os
from dispatcher.handlers import DispatcherHandler
log = logging.getLogger("shop")
log.addHandler(DispatcherHandler())
log.error("parent")
children = []
for n in range(4):
    pid = os.fork()
    if not pid:
        log.error("child %d", n)
        logging.shutdown()
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
"""
    run_program(program, redis_url)
    assert sorted(event.text for event in queued(redis)) == [*(f"child {n}" for n in range(4)), "parent"]


def test_at_its_end_a_program_waits_for_a_queue_that_is_away_once_and_no_longer_than_2_seconds() -> None:
    program = """\
import atexit, time
atexit.register(lambda: print(time.monotonic() - ended))
import logging
from dispatcher.handlers import DispatcherHandler
log = logging.getLogger("shop")
log.addHandler(DispatcherHandler())
for n in range(10):
    log.error("number %d", n)
ended = time.monotonic()
"""
    waited_s = float(run_program(program, "redis://127.0.0.1:1/0"))
    assert EXIT_S - 0.1 < waited_s < 2 * EXIT_S


def test_structlogs_entries_are_handed_over_by_their_notify_and_pass_unchanged(redis: Database) -> None:
    passed: list[Any] = []

    def last(_logger: object, _method: str, entry: Any) -> NoReturn:  # noqa: ANN401 - structlog's
        passed.append(dict(entry))
        raise structlog.DropEvent

    process = structlog_processor(producer=Producer(redis), channel="#ops", labels={"team": "db"})
    log = structlog.wrap_logger(None, processors=[structlog.processors.add_log_level, process, last])
    log.error("disk full", notify="disks", host="db1")
    log.error("nobody is told")
    until(lambda: len(queued(redis)) == 1, "the event")
    (event,) = queued(redis)
    assert (event.category, event.text, event.channel) == ("disks", "disk full", "#ops")
    assert (event.labels["level"], event.labels["team"]) == ("error", "db")
    assert passed == [
        {"event": "disk full", "notify": "disks", "host": "db1", "level": "error"},
        {"event": "nobody is told", "level": "error"},
    ]


def test_an_entry_with_an_exception_is_sent_with_its_traceback_and_a_key(redis: Database) -> None:
    process, entry = structlog_processor(producer=Producer(redis)), {"event": "boom", "notify": "errors"}
    try:
        fail("why")
    except ValueError as error:
        for exc_info in (True, error, sys.exc_info()):
            process(None, "error", {**entry, "exc_info": exc_info})
        process(None, "error", structlog.processors.format_exc_info(None, "error", {**entry, "exc_info": True}))
    process(None, "error", {**entry, "stack": "Stack (most recent call last):"})
    until(lambda: len(queued(redis)) == 5, "all events")
    *failed, other = queued(redis)
    assert all(event.text.startswith("boom\n```\nTraceback (most recent call last):") for event in failed)
    assert all(event.text.endswith("ValueError: why\n```") for event in failed)
    assert other.text == "boom\n```\nStack (most recent call last):\n```"
    assert len({event.dedup_key for event in failed[:3]}) == 1
    assert other.dedup_key not in {None, failed[0].dedup_key}


@pytest.mark.parametrize("notify", [None, False])
def test_an_entry_whose_notify_says_no_is_not_sent(redis: Database, notify: object) -> None:
    process = structlog_processor(producer=Producer(redis))
    process(None, "error", {"event": "silent", "notify": notify})
    process(None, "error", {"event": "last", "notify": "errors"})
    until(lambda: queued(redis), "the event")
    assert [event.text for event in queued(redis)] == ["last"]


def test_an_entry_of_which_no_event_can_be_made_passes_and_is_counted(
    redis: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unspeakable:
        def __str__(self) -> NoReturn:
            raise RuntimeError("no words")

    process = structlog_processor(producer=Producer(redis))
    entry = {"event": Unspeakable(), "notify": "errors"}
    assert process(None, "error", entry) is entry
    process(None, "error", {"event": "no category", "notify": True})
    process(None, "error", {"event": "good", "notify": "errors"})
    until(lambda: len(queued(redis)) == 2, "the good one, and the count")
    texts = {event.text for event in queued(redis)}
    assert texts == {"good", "2 log entries were left out: 2 not valid (stderr says why)"}
    first, second = capsys.readouterr().err.splitlines()
    assert first == "dispatcher: an event is left out, it is not valid: RuntimeError: no words"
    assert second.startswith(
        "dispatcher: an event with the text 'no category' is left out, it is not valid: category is True, expected "
    )


def test_each_reason_why_records_are_invalid_is_said_once_on_stderr_and_ten_in_all(
    redis: Database, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.addHandler(DispatcherHandler(producer=Producer(redis)))
    for number in [0, 0, *range(12)]:
        logger.error("order %d", number, extra={"dispatch": {"category": f"no name {number}"}})
    logger.handlers[0].flush()
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        "dispatcher: an event with the text 'order 0' is left out, it is not valid: category is 'no name 0', "
        "expected 1 to 64 of A-Z a-z 0-9 _ . : - beginning with a letter or digit"
    )
    assert [line.partition(" is left out")[0][-2:] for line in said] == [f"{n}'"[-2:] for n in range(10)]


def test_events_that_are_invalid_are_counted_and_hold_up_no_other(redis: Database, logger: logging.Logger) -> None:
    logger.addHandler(DispatcherHandler(producer=Producer(redis)))
    logger.error("one", extra={"dispatch": {"category": "no name"}})
    for _ in range(6):
        logger.error("")
    logger.error("two", extra={"dispatch": {"labels": None}})
    logger.handlers[0].flush()
    told = "7 log records were left out: 7 not valid (stderr says why)"
    assert sorted(event.text for event in queued(redis)) == [told, "two"]


def test_an_event_that_fails_in_an_unknown_way_is_counted_and_holds_up_no_other(redis: Database) -> None:
    class Fails:
        """A producer that cannot take one of the events, and does not say which."""

        def send_many(self, events: list[Any]) -> list[str]:
            if any(event["text"] == "poison" for event in events):
                raise TypeError
            return Producer(redis).send_many(events)

    sender = BackgroundSender(Fails, left_out, every_s=60)
    for text in ("one", "two", "poison", "three"):
        sender.offer({"category": "errors", "text": text})
    until(lambda: sender.flush() and len(queued(redis)) == 4, "all but the one, and the count")
    assert [event.text for event in queued(redis)] == ["one", "two", "three", "1 left out"]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "htp://x"], ids=["away", "no URL"])
def test_why_events_wait_is_said_once_on_stderr(url: str) -> None:
    program = """\
import logging
from dispatcher.handlers import DispatcherHandler
log = logging.getLogger("shop")
log.addHandler(DispatcherHandler())
log.error("one")
"""
    command, env = [sys.executable, "-c", program], environment({"DISPATCHER_REDIS_URL": url})
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith("dispatcher: events wait, they cannot be handed over: ")


def test_a_forked_child_of_multiprocessing_sends_its_records(redis_url: str, redis: Database) -> None:
    program = """\
import logging, multiprocessing
from dispatcher.handlers import DispatcherHandler
log = logging.getLogger("shop")
log.addHandler(DispatcherHandler())
child = multiprocessing.get_context("fork").Process(target=log.error, args=("child",))
child.start()
child.join()
"""
    run_program(program, redis_url)
    assert [event.text for event in queued(redis)] == ["child"]


def test_an_id_that_is_none_is_generated_once(redis: Database) -> None:
    given: list[str] = []

    class LosesAnAnswer:
        """A producer of which the first answer does not arrive."""

        def send_many(self, events: list[Any]) -> list[str]:
            given.extend(Producer(redis).send_many(events))
            if len(given) == 1:
                raise QueueUnavailable("the answer was lost")
            return given

    sender = BackgroundSender(LosesAnAnswer, left_out)
    sender.offer({"category": "errors", "text": "one", "id": None})
    assert sender.flush(10)
    assert len(queued(redis)) == 1
    assert len(set(given)) == 1


def test_how_many_were_left_out_is_told_once_though_answers_are_lost(redis: Database) -> None:
    class LosesAnswers:
        """A producer of which the first answers do not arrive."""

        lost = 0

        def send_many(self, events: Iterable[Mapping[str, Any] | Event]) -> list[str]:
            ids = Producer(redis).send_many(events)
            if self.lost < 2:
                self.lost += 1
                raise QueueUnavailable("the answer was lost")
            return ids

    sender = BackgroundSender(LosesAnswers, left_out, most_waiting=1, every_s=60)
    for text in ("one", "two", "three"):
        sender.offer({"category": "errors", "text": text})
    assert sender.flush()
    assert [event.text for event in queued(redis)] == ["one", "2 left out"]


def test_a_thousand_events_wait_beside_those_that_are_being_handed_over_and_no_more(redis: Database) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def connect() -> Producer:
        asked.set()
        goes_on.wait(10)
        return Producer(redis)

    sender = BackgroundSender(connect, left_out, every_s=60)
    for n in range(200):
        sender.offer({"category": "errors", "text": f"in hand {n}"})
    assert asked.wait(10)
    for n in range(1_002):
        sender.offer({"category": "errors", "text": f"waits {n}"})
    goes_on.set()
    assert sender.flush(10)
    texts = [event.text for event in queued(redis)]
    assert (len(texts), "2 left out" in texts) == (1_201, True)


def test_a_sender_that_is_closed_hands_over_what_is_valid_of_the_batch_in_hand(redis: Database) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def connect() -> Producer:
        asked.set()
        goes_on.wait(10)
        return Producer(redis)

    sender = BackgroundSender(connect, left_out)
    for text in ("", "good"):
        sender.offer({"category": "errors", "text": text})
    assert asked.wait(10)
    sender.close(0)
    goes_on.set()
    until(lambda: len(queued(redis)) == 2, "the valid event and the count")
    assert {event.text for event in queued(redis)} == {"good", "1 left out"}


def test_a_count_of_which_no_event_can_be_made_holds_up_nothing(redis: Database) -> None:
    sender = BackgroundSender(lambda: Producer(redis), lambda *_counts: {"category": "no name"})
    for text in ("", "good"):
        sender.offer({"category": "errors", "text": text})
    assert sender.flush()
    assert [event.text for event in queued(redis)] == ["good"]


def test_a_closed_sender_takes_events_again(redis: Database) -> None:
    sender = BackgroundSender(lambda: Producer(redis), left_out)
    for text in ("one", "two"):
        sender.offer({"category": "errors", "text": text})
        sender.close()
    assert [event.text for event in queued(redis)] == ["one", "two"]
    assert sender.flush() is True

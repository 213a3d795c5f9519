"""One event's way: the files whose functions run between ``Producer.send`` and the log line, start-up excluded.

docs/internals.md lists them, for who follows an event. Who puts a file on this way sees it here.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import dispatcher
from dispatcher.producer.blocking import Producer
from dispatcher.stand_in import StandIn
from tests.support.hand_driven_worker import LIMITS, HandDrivenWorker
from tests.support.servers import Database
from tests.support.slack import MESSAGE, token_sink

PACKAGE: Final = Path(dispatcher.__file__).parent
PAGE: Final = PACKAGE.parent / "docs" / "internals.md"

MOST: Final = 25

NOT_HERE: Final = {"logs/line_buffer"}
"""The log of the worker in this test is written to memory."""


class Watch:
    """Notes the files of the package whose functions are called while it is ``on``."""

    def __init__(self) -> None:
        self.on = False
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        del argument
        if self.on and event == "call" and frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            self.files.add(Path(frame.f_code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix())


@contextmanager
def watching() -> Iterator[Watch]:
    """A watch over this thread, and those that begin meanwhile."""
    watch, before = Watch(), (sys.getprofile(), threading.getprofile())
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield watch
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])


def listed() -> set[str]:
    """The files that the page lists: a room and its modules in each line, or a module of the root."""
    [block] = re.findall(r"run for one event.*?```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.split(maxsplit=1) for line in block.splitlines()]
    return {f"{room}/{name}" for room, *names in lines for name in "".join(names).split(", ") if names} | {
        room for room, *names in lines if not names
    }


def of_slack(files: set[str]) -> set[str]:
    return {each for each in files if each.startswith("slack/")}


def test_one_event_passes_the_files_that_the_page_lists(redis: Database, tmp_path: Path) -> None:
    with watching() as watch:
        driven = HandDrivenWorker(redis, 10, tmp_path, limits=LIMITS.replace("1/1h", "2/1h"))
        producer = Producer(redis)

        def send_the_event() -> None:
            watch.on = True
            producer.send("errors", "disk full", id="event")

        def stop() -> None:
            watch.on = False
            driven.worker.request_stop(signal.SIGTERM, None)

        steps: list[tuple[int, Callable[[], None]]] = [(1, send_the_event), (2, stop)]

        def as_it_falls_asleep() -> None:
            if steps and len(driven.told()) == steps[0][0]:
                steps.pop(0)[1]()

        driven.bell.meanwhile = as_it_falls_asleep
        producer.send("errors", "what comes first is loaded with it", id="warm-up")
        driven.worker.run()
    assert driven.told() == [("warm-up", "sent"), ("event", "sent")]
    assert watch.files == listed() - of_slack(listed()) - NOT_HERE


def test_its_post_passes_the_files_of_slack_that_the_page_lists() -> None:
    with StandIn() as slack, watching() as watch:
        sink = token_sink(slack)
        sink.post(MESSAGE)  # connects
        watch.on = True
        sink.post(MESSAGE)
        watch.on = False
    assert of_slack(watch.files) == of_slack(listed())


def test_the_page_lists_few_files() -> None:
    assert len(listed()) <= MOST

"""Tests of the sink that prints."""

from __future__ import annotations

import io
import os
import select
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from dispatcher.core.event import Event
from dispatcher.core.posts import Message, Paused, Receipt, Retryable
from dispatcher.core.rendering import message_for
from dispatcher.core.states import boottime_s
from dispatcher.slack.console import ConsoleSink
from tests.support.forked import SEEN_BY_ALL
from tests.support.processes import PATIENCE_S
from tests.support.slack import MESSAGE


def test_the_console_sink_prints_one_neutral_line_per_message() -> None:
    stream = io.StringIO()
    message = message_for(Event("errors", "disk\nfull \x1b[31m & \u202ered"), "e1", "#ops")
    assert ConsoleSink(stream).post(message) == Receipt("#ops", None)
    assert stream.getvalue() == "#ops  disk full [31m & \\u202ered\n"


def test_an_edit_is_printed_with_the_channel_of_its_message() -> None:
    stream = io.StringIO()
    ConsoleSink(stream).update("#ops", "1.0", Message("event-1", "edits", "disk empty"))
    assert stream.getvalue() == "#ops  disk empty\n"


def test_a_message_that_comes_too_late_is_not_printed() -> None:
    stream = io.StringIO()
    result = ConsoleSink(stream).post(MESSAGE, by_s=boottime_s() - 1)
    assert isinstance(result, Retryable)
    assert (result.code, result.uses_attempt, stream.getvalue()) == ("too_late", False, "")
    assert isinstance(ConsoleSink(stream).post(MESSAGE, by_s=boottime_s() + 60), Receipt)


def test_the_console_sink_prints_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleSink().post(MESSAGE)
    assert capsys.readouterr().out == "#ops  disk full\n"


def test_the_console_sink_writes_what_the_terminal_cannot_show_as_escapes() -> None:
    raw = io.BytesIO()
    terminal = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    ConsoleSink(terminal).post(Message("e1", "#ops", "größe"))
    assert raw.getvalue() == b"#ops  gr\\xf6\\xdfe\n"


def test_the_console_sink_says_when_its_output_is_closed() -> None:
    stream = io.StringIO()
    stream.close()
    result = ConsoleSink(stream).post(MESSAGE)
    assert isinstance(result, Retryable)
    assert (result.code, result.uses_attempt, result.reached) == ("console_closed", False, None)


def test_an_output_that_takes_nothing_needs_an_operator() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        result = ConsoleSink(full).post(MESSAGE)
    assert isinstance(result, Paused)
    assert result.code == "console_failed"
    assert result.detail.endswith("([Errno 28] No space left on device)")


FILLS: Final = """
import resource, sys
from dispatcher.core.posts import Message
from dispatcher.slack.console import ConsoleSink

def post(text, room):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    print(type(sink.post(Message("e1", "#ops", text))).__name__, file=sys.stderr)

sink = ConsoleSink()
post("first", 20)
post("second", 20)
post("second", 20)
post("second", 1000)
post("third", 1000)
"""


def test_a_message_that_a_full_disk_tears_is_printed_once_when_there_is_room(tmp_path: Path) -> None:
    with (tmp_path / "printed").open("wb") as printed:
        child = subprocess.run(
            [sys.executable, "-c", FILLS],
            env=SEEN_BY_ALL,
            cwd=tmp_path,
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
    assert child.stderr.split() == ["Receipt", "Paused", "Paused", "Receipt", "Receipt"]
    assert (tmp_path / "printed").read_text().splitlines() == ["#ops  first", "#ops  se", "#ops  second", "#ops  third"]


class Told:
    """What a program may put in the place of ``sys.stdout``."""

    def __init__(self) -> None:
        self.said = ""

    def write(self, text: str) -> None:
        self.said += text

    def flush(self) -> None:
        pass


class ToldWithoutFile(Told):
    encoding = "ascii"

    def fileno(self) -> None:
        pass


@pytest.mark.parametrize(("kind", "said"), [(Told, "größe"), (ToldWithoutFile, "gr\\xf6\\xdfe")])
def test_the_console_sink_prints_to_what_only_takes_texts(
    monkeypatch: pytest.MonkeyPatch, kind: type[Told], said: str
) -> None:
    told = kind()
    monkeypatch.setattr(sys, "stdout", told)
    assert ConsoleSink().post(Message("e1", "#ops", "größe")) == Receipt("#ops", None)
    assert told.said == f"#ops  {said}\n"


def test_the_console_sink_waits_for_the_reader_of_an_output_that_does_not_block() -> None:
    reader, writer = os.pipe()
    read: list[bytes] = []
    with os.fdopen(reader, "rb") as source, os.fdopen(writer, "w", encoding="utf-8") as stream:
        os.set_blocking(writer, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writer, b"." * select.PIPE_BUF)
        thread = threading.Thread(target=lambda: read.append(source.read()))
        thread.start()
        sink = ConsoleSink(stream)
        results = [sink.post(Message("e1", "#ops", "ö" * 3_900)) for _ in range(100)]
        stream.close()
        thread.join(PATIENCE_S)
    assert results == [Receipt("#ops", None)] * 100
    assert read[0].lstrip(b".") == ("#ops  " + "ö" * 3_900 + "\n").encode() * 100


def test_the_console_sink_prints_again_what_has_changed() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    assert sink.can_update
    sink.post(MESSAGE)
    assert sink.update("#ops", "", Message("e1", "#ops", "disk empty")) == Receipt("#ops", None)
    assert stream.getvalue() == "#ops  disk full\n#ops  disk empty\n"

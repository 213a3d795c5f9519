"""Tests of the sink that prints."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from dispatcher.core.event import Event
from dispatcher.core.posts import Message, Paused, Receipt, Retryable
from dispatcher.core.rendering import message_for
from dispatcher.core.states import boottime_s
from dispatcher.slack.console import ConsoleSink
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
    full = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - to close it is to write once more
    result = ConsoleSink(full).post(MESSAGE)
    with pytest.raises(OSError, match="No space left"):
        full.close()
    assert isinstance(result, Paused)
    assert result.code == "console_failed"
    assert result.detail.endswith("([Errno 28] No space left on device)")


def test_the_console_sink_prints_again_what_has_changed() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    assert sink.can_update
    sink.post(MESSAGE)
    assert sink.update("#ops", "", Message("e1", "#ops", "disk empty")) == Receipt("#ops", None)
    assert stream.getvalue() == "#ops  disk full\n#ops  disk empty\n"

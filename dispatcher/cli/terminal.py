"""What a command says and where: results to stdout, everything else to stderr; foreign text does nothing there."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from textwrap import wrap
from typing import TYPE_CHECKING, Final, TextIO

from dispatcher.core.units import HIDDEN, visible

if TYPE_CHECKING:
    from rich.console import Console

    from dispatcher.cli.drawing import Part

_WIDTH_OF_A_PIPE: Final = 160
_WIDTH_OF_A_TERMINAL: Final = 80
_NARROWEST: Final = 20
_NAME: Final = "dispatcher: "
_WARNING: Final = "warning:"
_ERROR: Final = "error:"
_STYLES: Final = {_WARNING: "33", _ERROR: "31"}
_WITHOUT_STYLES: Final = frozenset({"dumb", "unknown"})
_WITHOUT_COLOURS: Final = frozenset({"", "dumb", "unknown"})


class Terminal:
    """The two streams of a command. Secrets it was told of with ``hide`` stand in no message.

    Who reads stdout may go away at any time, or be nobody from the start: what is printed then is lost, and the
    command goes on. ``is_unread`` says that the reader has gone. A stdout that is there and takes nothing raises
    ``OSError`` that says so. What stderr does not take is lost.
    """

    def __init__(self) -> None:
        self._secrets: list[str] = []
        self.is_unread = False
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    def hide(self, secrets: Iterable[str]) -> None:
        """Show none of these in a message; results are built of what holds none."""
        self._secrets = sorted({*self._secrets, *secrets}, key=len, reverse=True)

    def without_secrets(self, text: str) -> str:
        """The text with every secret hidden."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def print(self, text: str) -> None:
        """A line of the result, on stdout at once; may hold line breaks, other control characters are escaped."""
        self._write("\n".join(map(visible, text.split("\n"))) + "\n")

    def tell(self, sentence: str) -> None:
        """A sentence of the result, on stdout; on a terminal its lines break between words."""
        self._write("\n".join(_lines(visible(sentence), sys.stdout)) + "\n")

    def print_json(self, value: object) -> None:
        """The result as one line of JSON, in ASCII."""
        self._write(json.dumps(value) + "\n")

    def draw(self, *parts: Part) -> None:
        """Tables and the like on stdout: in colour on a terminal, unless ``NO_COLOR`` is set; wide in a pipe."""
        from dispatcher.cli.drawing import Look, painted

        stream = sys.stdout
        is_terminal = stream.isatty()
        room = _columns(stream, _WIDTH_OF_A_TERMINAL if is_terminal else _WIDTH_OF_A_PIPE)
        is_styled = bool(os.environ.get("FORCE_COLOR")) or (
            is_terminal and os.environ.get("TERM", "") not in _WITHOUT_STYLES
        )
        look = Look(
            is_ascii=not stream.encoding.lower().startswith("utf"),
            is_styled=is_styled,
            has_colours=not os.environ.get("NO_COLOR"),
        )
        self._write("".join(f"{painted(line, look)}\n" for part in parts for line in part.lines(room)))

    def say(self, text: str) -> None:
        """A message for the operator, on stderr: one line, on a terminal as many as it takes, broken between words."""
        self.complain(f"{_NAME}{visible(self.without_secrets(text))}")

    def complain(self, text: str) -> None:
        """As ``say``, for text that holds no secret and no control character but line breaks."""
        self._report("\n".join(line for part in text.split("\n") for line in _lines(part, sys.stderr)))

    def warn(self, *texts: str) -> None:
        """A warning for each."""
        for text in texts:
            self.say(f"{_WARNING} {text}")

    def fail(self, text: str) -> None:
        """Why the command could not do what it should."""
        self.say(f"{_ERROR} {text}")

    def show_defect(self, trace: str) -> None:
        """A traceback: this must not happen, and whoever reports it needs all of it but secrets."""
        self.fail("a defect of the dispatcher; please report it with the following")
        for line in self.without_secrets(trace).splitlines():
            self._report(f"{_NAME}  {visible(line)}")

    def _report(self, text: str) -> None:
        for word, style in _STYLES.items() if sys.stderr.isatty() and _has_colours() else ():
            if text.startswith(f"{_NAME}{word}"):
                text = f"{_NAME}\x1b[{style}m{word}\x1b[0m{text[len(_NAME) + len(word) :]}"
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Write what is left. Python's own attempt at exit would change the exit code where nobody reads."""
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            _forget(sys.stderr)
        self._write("")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            _forget(sys.stdout)
            self.is_unread = True
            if not isinstance(error, BrokenPipeError):
                raise OSError(f"standard output cannot be written: {error.strerror or error}") from error


def open_closed_streams() -> None:
    """Have all three streams lead somewhere, if need be nowhere: else what is opened next would be taken for one."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    sys.stdin, sys.stdout, sys.stderr = (
        stream if stream is not None else os.fdopen(descriptor, mode)
        for descriptor, (stream, mode) in enumerate(((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w")))
    )


def _forget(stream: TextIO) -> None:
    """Have what is still in the stream's buffer go nowhere: it would fail again at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _has_colours() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in _WITHOUT_COLOURS


def _lines(text: str, stream: TextIO) -> list[str]:
    """The text in lines no longer than the terminal is wide, if it is one; a word is never broken."""
    if not stream.isatty():
        return [text]
    width = max(_NARROWEST, _columns(stream, _WIDTH_OF_A_TERMINAL))
    return wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) or [""]


def _columns(stream: TextIO, otherwise: int) -> int:
    """How many columns a stream has: those of the variable, of the terminal, or else."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    with suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns or otherwise
    return otherwise


def console_on(stream: TextIO) -> Console:
    """A rich console that takes text as it is: nothing in it is markup."""
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)

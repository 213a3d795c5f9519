"""What a command says and where: results to stdout, everything else to stderr; foreign text does nothing there."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HIDDEN: Final = "***"
_WIDTH_OF_A_PIPE: Final = 160


class Terminal:
    """The two streams of a command. Secrets it was told of with ``hide`` stand in no message.

    Who reads stdout may go away at any time: what is printed after that is lost, and the command goes on.
    """

    def __init__(self) -> None:
        self._secrets: list[str] = []
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

    def print_json(self, value: object) -> None:
        """The result as one line of JSON, in ASCII."""
        self._write(json.dumps(value) + "\n")

    def draw(self, *parts: RenderableType) -> None:
        """Tables and the like on stdout: in colour on a terminal, unless ``NO_COLOR`` is set."""
        console = console_on(sys.stdout)
        with console.capture() as drawn:
            for part in parts:
                console.print(part)
        self._write("\n".join(line.rstrip(" ") for line in drawn.get().split("\n")))

    def say(self, text: str) -> None:
        """One line for the operator, on stderr."""
        line = f"dispatcher: {visible(self.without_secrets(text))}\n"
        with suppress(OSError, ValueError, AttributeError):  # stderr is gone, closed, or was never there
            sys.stderr.write(line)
            sys.stderr.flush()

    def doubt(self, text: str) -> None:
        """A warning."""
        self.say(f"warning: {text}")

    def fail(self, text: str) -> None:
        """Why the command could not do what it should."""
        self.say(f"error: {text}")

    def show_defect(self, trace: str) -> None:
        """A traceback: this must not happen, and whoever reports it needs all of it but secrets."""
        self.fail("a defect of the dispatcher; please report it with the following")
        for line in self.without_secrets(trace).splitlines():
            self.say(f"  {line}")

    def close(self) -> None:
        """Write what is left. Python's own attempt at exit would complain about a reader that went away."""
        self._write("")

    def _write(self, text: str) -> None:
        if sys.stdout is None:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            # What is still in the buffer would fail again at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                raise


def visible(text: str) -> str:
    r"""The text with every character that is not printable as its escape, such as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode() for char in text
    )


def console_on(stream: TextIO) -> Console:
    """A rich console that takes text as it is: nothing in it is markup. A pipe gets lines that are not cut."""
    from rich.console import Console

    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH_OF_A_PIPE
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)

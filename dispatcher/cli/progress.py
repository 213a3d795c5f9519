"""A progress bar on stderr for a stream of known or unknown length."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from dispatcher.cli.terminal import console_on

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress(Protocol):
    """Told how far a stream has come."""

    def advance(self, count: int) -> None:
        """So much more, in the unit of the total."""
        ...

    def show(self, text: str) -> None:
        """The figures so far."""
        ...


@contextmanager
def progress_bar(total: int | None, *, is_wanted: bool = True) -> Iterator[Progress]:
    """A bar, or a spinner where the ``total`` is not known; gone at its end. None where stderr is no terminal.

    Lines of stdout and stderr appear above it.
    """
    if not (is_wanted and sys.stderr.isatty()):
        yield _Nothing()
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar

    bar_column = BarColumn(bar_width=30, complete_style="green", finished_style="green")
    known = (bar_column, TextColumn("{task.percentage:>3.0f}%")) if total else (SpinnerColumn(style="green"),)
    columns = (*known, TextColumn("{task.description}"))
    console = console_on(sys.stderr)
    with Bar(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        yield _Drawn(bar, bar.add_task("", total=total))


class _Nothing:
    def advance(self, count: int) -> None:
        """Nothing."""

    def show(self, text: str) -> None:
        """Nothing."""


class _Drawn:
    def __init__(self, bar: Bar, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def advance(self, count: int) -> None:
        self._bar.advance(self._task, count)

    def show(self, text: str) -> None:
        self._bar.update(self._task, description=text)

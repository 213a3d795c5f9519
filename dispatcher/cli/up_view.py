"""What ``up`` shows at its start: what runs where, and how to send, look and stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dispatcher.app.limits import LoadedLimits
from dispatcher.app.servers import Server
from dispatcher.cli.context import limits_named, near
from dispatcher.cli.drawing import Part as Drawn
from dispatcher.cli.drawing import Table, Text
from dispatcher.cli.terminal import Terminal
from dispatcher.core.units import visible
from dispatcher.settings.describe import sentences
from dispatcher.settings.environment import Settings

_INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class Part:
    """A heading with rows below it: a label, and the lines of what it stands for."""

    heading: str
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def screen(
    settings: Settings, limits: LoadedLimits, server: Server, pids: Sequence[int], http: str
) -> tuple[Part, Part]:
    """What runs, and what to do with it. Holds no secret."""
    first, *others = sentences(limits.policy)
    category = next(iter(limits.policy.categories), "errors")
    running = (
        ("server", (_server(settings, server),)),
        ("queue", (f"{settings.queue}, in namespace {settings.namespace}",)),
        ("limits", (limits_named(settings, limits), first, *_more(len(others)))),
        ("posts to", (_target(settings),)),
        ("workers", (f"{', '.join(map(str, pids))}; one that crashes is started again",)),
        ("HTTP", (http,)),
    )
    doing = (
        ("send", (f'dispatcher send {category} "hello"',)),
        ("look", ("dispatcher status --watch", "dispatcher limits show", "dispatcher limits check")),
        ("mend", ("dispatcher doctor",)),
        ("stop", (f"Ctrl-C here, or: kill {os.getpid()}",)),
    )
    return (
        Part(f"dispatcher is up, as process {os.getpid()}", running),
        Part(f"In another terminal, in {Path.cwd()} and with the same variables:", doing),
    )


def draw(terminal: Terminal, parts: Sequence[Part]) -> None:
    """On stdout: wrapped to its width and in colour on a terminal, else each line as it is."""
    if sys.stdout is not None and sys.stdout.isatty():
        terminal.draw(*_tables(parts))
    else:
        terminal.print("\n".join(line for part in parts for line in _lines(part)))


def _server(settings: Settings, server: Server) -> str:
    if settings.redis_url is None:
        return f"embedded, with its data in {near(settings.data_dir)}"
    return server.shown


def _target(settings: Settings) -> str:
    if settings.sink == "console":
        return "standard output, not to Slack (DISPATCHER_SINK=console)"
    if settings.slack_token is None:
        return "Slack, by a webhook: to its own channel, whatever an event names"
    if settings.slack_base_url is None:
        return "Slack, with a bot token"
    return f"Slack at {settings.slack_base_url}, with a bot token"


def _more(rules: int) -> Iterator[str]:
    if rules:
        yield f"And {rules} more {'rule' if rules == 1 else 'rules'}."


def _lines(part: Part) -> Iterator[str]:
    yield part.heading
    for label, lines in part.rows:
        for number, line in enumerate(lines):
            yield f"{_INDENT}{'' if number else label:<10}{line}"
    yield ""


def _tables(parts: Sequence[Part]) -> Iterator[Drawn]:
    for part in parts:
        yield Text(visible(part.heading), "bold")
        table = Table(is_grid=True)
        table.add_column(style="cyan", breaks=False, least=8 + len(_INDENT))
        table.add_column(folds=True)
        for label, lines in part.rows:
            table.add_row(_INDENT + label, "\n".join(map(visible, lines)))
        yield table
        yield Text()

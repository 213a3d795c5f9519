"""The course of ``dispatcher simulate``: read all that is given, simulate, and only then show and write."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from dispatcher.app.limits import LoadedLimits, open_limits, read_limits_file
from dispatcher.app.operating import open_desk
from dispatcher.cli.context import near, server_to_look_at, settings_in_force
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE, USAGE, Ended
from dispatcher.cli.progress import progress_bar
from dispatcher.cli.terminal import Terminal
from dispatcher.core.units import US, format_duration
from dispatcher.simulate import picture
from dispatcher.simulate.arrivals import Arrivals
from dispatcher.simulate.cases import Case, CasesError, read_cases
from dispatcher.simulate.course import Ends
from dispatcher.simulate.recorded import SPREAD, read_recorded
from dispatcher.simulate.simulation import Simulated, Trace, private_server, simulate
from dispatcher.simulate.suggest import suggest
from dispatcher.simulate.trace import TraceError, read_trace

if TYPE_CHECKING:
    from dispatcher.core.policy import Policy
    from dispatcher.server.connection import Client
    from dispatcher.settings.environment import Settings

LIVE: Final = "live"
_STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command was given."""

    trace: str | None
    limits: Path | None
    against: str | None
    recorded_us: int | None
    lost_percent: float | None
    svg: Path | None
    events: Path | None
    expect: Path | None
    seed: int
    as_json: bool


def run(terminal: Terminal, asked: Asked) -> int:
    """Returns the exit code."""
    with ExitStack() as stack:
        try:
            cases = read_cases(_text_of(asked.expect), str(asked.expect)) if asked.expect is not None else []
            arrivals = stack.enter_context(Arrivals())
            settings = settings_in_force(terminal)
            proposed = _read(terminal, asked.limits, settings)
            before = _other(terminal, asked.against, settings)
            _fill(terminal, asked, settings, arrivals, [each.policy for each in (proposed, before) if each is not None])
        except (TraceError, CasesError) as error:
            raise Ended(USAGE, str(error)) from None
        client = stack.enter_context(private_server())
        return _Answer(terminal, asked, arrivals, client, proposed, before, settings).give(cases)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CasesError(f"{path}: line 1: not UTF-8, expected cases in YAML") from None


def _read(terminal: Terminal, path: Path | None, settings: Settings) -> LoadedLimits:
    limits = open_limits(settings) if path is None else read_limits_file(path)
    terminal.warn(*limits.warnings)
    return limits


def _other(terminal: Terminal, against: str | None, settings: Settings) -> LoadedLimits | None:
    """The limits to compare with."""
    if against is None:
        return None
    if against != LIVE:
        return read_limits_file(Path(against))
    with server_to_look_at(terminal, settings) as server:
        return open_desk(settings, server).limits()


def _fill(terminal: Terminal, asked: Asked, settings: Settings, arrivals: Arrivals, policies: Sequence[Policy]) -> None:
    """Read the whole trace, for a simulation by each of these policies."""

    def needs_text(category: str) -> bool:
        return any(policy.rule(category).repeats_by_text for policy in policies)

    if asked.recorded_us is not None:
        span = format_duration(asked.recorded_us)
        with server_to_look_at(terminal, settings) as server:
            desk = open_desk(settings, server)
            read_recorded(desk.client, desk.keys, asked.recorded_us, arrivals)
            if not len(arrivals):
                raise Ended(USAGE, f"no event came to namespace {settings.namespace} in the last {span}")
        terminal.say(SPREAD)
        return
    with (
        _opened(asked.trace or _STDIN) as (file, name, size),
        progress_bar(size, is_wanted=not asked.as_json) as progress,
    ):
        progress.show(f"reading {name}")
        read_trace(file, name, arrivals, progress.advance, needs_text)


@contextmanager
def _opened(trace: str) -> Iterator[tuple[BinaryIO, str, int | None]]:
    """The trace as a file, how to name it, and how many bytes it has, if that is known."""
    if trace == _STDIN:
        yield sys.stdin.buffer, "stdin", None
        return
    with Path(trace).open("rb") as file:
        yield file, near(Path(trace)), os.fstat(file.fileno()).st_size


class _Answer:
    """Simulates, and gives the answer in all forms that were asked for."""

    def __init__(  # noqa: PLR0913, PLR0917 - what was read
        self,
        terminal: Terminal,
        asked: Asked,
        arrivals: Arrivals,
        client: Client,
        proposed: LoadedLimits,
        other: LoadedLimits | None,
        settings: Settings,
    ) -> None:
        self._by_webhook = settings.by_webhook
        self._remember_us = round(settings.dedup_window.total_seconds() * US)
        self._terminal = terminal
        self._asked = asked
        self._arrivals = arrivals
        self._client = client
        self._proposed = proposed
        self._other = other

    def give(self, cases: list[Case]) -> int:
        """Returns the exit code."""
        asked, terminal = self._asked, self._terminal
        before = None if self._other is None else self._simulated(self._arrivals, self._other.policy, "before")
        ends = None if asked.events is None else Ends()
        after = self._simulated(self._arrivals, self._proposed.policy, "after", ends)
        if asked.events is not None and ends is not None:
            ends.write(asked.events)
        self._warn(after if before is None else before, after)
        failures = [failure for case in cases if (failure := case.failure(after.course)) is not None]
        if asked.svg is not None:
            title = f"{len(self._arrivals):,} events by {self._named(self._proposed)}"
            against = "" if self._other is None else f", before by {self._named(self._other)}"
            asked.svg.write_text(picture.drawn(before, after, title + against), encoding="utf-8")
        suggestion = None if asked.lost_percent is None else self._suggest(asked.lost_percent)
        if asked.as_json:
            terminal.print_json(
                {
                    "before": None if before is None else before.course.document(),
                    "after": after.course.document(),
                    "suggestion": suggestion,
                }
            )
        elif suggestion is not None:
            terminal.print(suggestion.rstrip("\n"))
        else:
            self._show(before, after)
        for failure in failures:
            terminal.fail(f"{asked.expect}: {failure}")
        return DOES_NOT_HOLD if failures else DONE

    def _warn(self, *runs: Simulated) -> None:
        """Say which repeats could not be seen."""
        untold = {name: count for run in runs for name, count in run.untold.items()}
        for name, count in sorted(untold.items()):
            events = f"{count:,} {'event' if count == 1 else 'events'}"
            self._terminal.warn(f"the trace has no text of {events} of {name}: no repeats by text are seen among them")

    def _simulated(self, trace: Trace, policy: Policy, word: str, ends: Ends | None = None) -> Simulated:
        with progress_bar(len(trace), is_wanted=not self._asked.as_json) as progress:
            progress.show(f"simulating {len(trace):,} events, {word}")
            return simulate(
                self._client,
                trace,
                replace(policy, by_webhook=self._by_webhook),
                ended=None if ends is None else ends.note,
                advance=progress.advance,
                seed=self._asked.seed,
                remember_us=self._remember_us,
            )

    def _suggest(self, percent: float) -> str:
        return suggest(self._arrivals, self._arrivals.halves(), self._proposed.content.text, percent, self._simulated)

    def _show(self, before: Simulated | None, after: Simulated) -> None:
        from dispatcher.cli.simulate.view import drawn

        compared = "" if self._other is None else f", against {self._named(self._other)}"
        self._terminal.say(f"{len(self._arrivals):,} events by {self._named(self._proposed)}{compared}")
        self._terminal.draw(*drawn(before, after))

    @staticmethod
    def _named(limits: LoadedLimits) -> str:
        return near(limits.path) if limits.version is None else f"version {limits.version.number} in force"

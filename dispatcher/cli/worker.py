"""``dispatcher worker``: one worker in this process, or several below it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from dispatcher.cli.context import near
from dispatcher.cli.exits import CONFIGURATION, DEFECT, DONE, conclude
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.terminal import Terminal
from dispatcher.errors import ConfigError, DispatcherError

if TYPE_CHECKING:
    from dispatcher.app.limits import InForce, LoadedLimits
    from dispatcher.app.servers import Server
    from dispatcher.core.ports import Sink
    from dispatcher.logs.event_log import EventLog
    from dispatcher.logs.line_buffer import LineBuffer
    from dispatcher.settings.environment import Settings

T = TypeVar("T")


@click.command()
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option(
    "--burst",
    is_flag=True,
    help="End when nothing is waiting and nothing admitted is still to be posted, or all is stopped by 'rq suspend'.",
)
@click.pass_obj
def worker(terminal: Terminal, processes: int, *, burst: bool) -> int:
    """Post what waits on the queue, within the limits.

    Runs until SIGTERM or Ctrl-C. With --burst it ends when the queue is empty and no admitted event is left to post;
    deferred events stay parked.

    The first signal finishes the posts in flight and gives the rest back; a second one stops at once, and nothing
    is lost either way.
    """
    try:
        with prepared(terminal, burst=burst) as job:
            if sys.stderr.isatty():
                terminal.say(job.head())
            job.say_warnings()
            return job.work() if processes == 1 else job.supervise(processes, terminal)
    except KeyboardInterrupt:
        return DONE


@contextmanager
def prepared(terminal: Terminal, *, burst: bool = False) -> Iterator[Job]:
    """All that workers share, with the server held; nothing starts before the settings, limits and sink are found good.

    Raises ``ConfigError``, ``GateUnavailable``, and ``KeyboardInterrupt`` at a signal, as long as neither worker nor
    supervisor has put its own handlers in place.
    """
    from dispatcher.app.building import build_sink
    from dispatcher.app.limits import open_limits
    from dispatcher.app.servers import REACH_S, open_server
    from dispatcher.logs.event_log import process_log
    from dispatcher.settings.loading import load_settings

    with Interruption(has_limits=True) as interruption, interruption.outranks_errors():
        settings, warnings = load_settings()
        terminal.hide(settings.secrets())
        limits, no_limits = _tried(lambda: open_limits(settings))
        sink, no_sink = _tried(lambda: build_sink(settings))
        faults = [*no_limits, *no_sink]
        warnings += limits.warnings if limits else ()
        if limits is None or sink is None:  # the reason may stand among the warnings
            raise ConfigError(
                *(problem for fault in faults for problem in fault.problems),
                warnings=(*warnings, *(warning for fault in faults for warning in fault.warnings)),
            ) from faults[0]
        with (
            process_log(settings.log_level, settings.log_format, settings.secrets(), text=settings.log_text) as (
                log,
                lines,
            ),
            open_server(settings, start=True, within_s=REACH_S) as server,
        ):
            yield Job(settings, limits, server, sink, log, lines, (*warnings, *server.warnings), burst, interruption)


def _tried(make: Callable[[], T]) -> tuple[T | None, list[ConfigError]]:
    """What is made, or the fault that keeps it from being made, to be told with others."""
    try:
        return make(), []
    except ConfigError as error:
        return None, [error]


class Sibling(Protocol):
    """A child process beside the workers."""

    @property
    def patience_s(self) -> float:
        """How long its stop may take."""

    def run(self, job: Job) -> int:
        """Work until a signal, in the child; returns the exit code."""

    def reread(self) -> None:
        """Read again what children to come begin with, in the parent, at SIGHUP."""

    def close(self) -> None:
        """Let go of what only that child needs: in the others, and in the parent when no such child is to come."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker process does, built once before there are several."""

    settings: Settings
    limits: LoadedLimits
    server: Server
    sink: Sink
    log: EventLog
    lines: LineBuffer
    warnings: tuple[str, ...]
    burst: bool
    interruption: Interruption
    has_parent: bool = False
    """Whether a supervisor runs it, which has published what the limits file says."""

    def head(self) -> str:
        """What it works on, in one line; log lines on a terminal do not say it again."""
        settings = self.settings
        return f"queue {settings.queue} on {self.server.shown}, limits in {near(self.limits.path)}, to {settings.sink}"

    def say_warnings(self) -> None:
        """A log line for each."""
        for warning in self.warnings:
            self.log.say("setting.warning", detail=warning)

    def work(self) -> int:
        """Run one worker in this process; returns its exit code. The embedded server is kept running meanwhile.

        Raises ``KeyboardInterrupt`` at a signal before the worker heeds signals itself.
        """
        from dispatcher.app.running import run_worker
        from dispatcher.app.servers import kept_server
        from dispatcher.settings.loading import load_settings

        try:
            with kept_server(self.settings, self.log.say), self.interruption.outranks_errors():
                run_worker(
                    self.settings,
                    self.limits,
                    self.server,
                    self.sink,
                    self.log,
                    burst=self.burst,
                    has_parent=self.has_parent,
                    read_again=lambda: load_settings()[0],
                    heeding=self.interruption.hand_over,
                    is_hung_up=self.interruption.hangup.is_end,
                )
        except DispatcherError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of ours; nothing is lost: what is in hand stays leased
            self.log.failed(error, "worker.failed")
            return DEFECT
        return DONE

    def supervise(
        self,
        processes: int,
        terminal: Terminal,
        begun: Callable[[Job, Sequence[int]], None] = lambda *_: None,
        door: Sibling | None = None,
    ) -> int:
        """Run several below this process, and what serves HTTP beside them; returns when all workers are done.

        ``begun`` gets this job with the limits that are in force, and their ids, before any works.
        Raises ``GateUnavailable`` and ``ConfigError`` before there are any, when the server cannot be used.
        """
        from dispatcher.app.limits import enter_limits
        from dispatcher.app.servers import preflight
        from dispatcher.logs.event_log import LAST_LINES_S
        from dispatcher.worker.supervisor import BESIDE, Supervisor
        from dispatcher.worker.worker import STOP_GRACE_S

        told: list[tuple[str, dict[str, object]]] = []

        def begin(pids: Sequence[int]) -> None:
            self.interruption.hand_over()  # from here on the supervisor hears
            begun(job, pids)
            for event, facts in told:
                self.log.say(event, **facts)

        def child(place: int) -> int:
            try:
                if door is not None:
                    if place == BESIDE:
                        return door.run(job)
                    door.close()
                return job.work()
            except Exception as error:  # noqa: BLE001 - every one has its exit code
                return conclude(error, terminal)
            finally:
                self.lines.drain(LAST_LINES_S)

        def enter() -> InForce:
            return enter_limits(
                self.settings, self.limits, self.server, lambda event, **facts: told.append((event, facts))
            )

        found = preflight(self.settings, self.server, self.log, enter)
        job = replace(self, limits=found.as_file(), has_parent=True)
        patience_s = self.settings.slack_timeout.total_seconds() + STOP_GRACE_S
        if door is not None:
            patience_s = max(patience_s, door.patience_s)
        fatal = frozenset({CONFIGURATION})
        supervisor = Supervisor(
            child,
            processes,
            self.log.say,
            fatal=fatal,
            patience_s=patience_s,
            is_hung_up=partial(self._is_hung_up, door),
            beside=door is not None,
            let_go=door.close if door is not None else lambda: None,
        )
        return supervisor.supervise(begin)

    def _is_hung_up(self, door: Sibling | None) -> bool:
        """Whether a SIGHUP ends everything; else children to come begin with what is read again."""
        if self.interruption.hangup.is_end():
            return True
        if door is not None:
            door.reread()
        return False

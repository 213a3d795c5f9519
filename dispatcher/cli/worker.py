"""``dispatcher worker``: one worker in this process, or several below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from dispatcher.cli.exits import CONFIGURATION, DEFECT, DONE, conclude
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.terminal import Terminal
from dispatcher.errors import DispatcherError

if TYPE_CHECKING:
    from dispatcher.app import LimitsFile, Server
    from dispatcher.dispatch import Sink
    from dispatcher.logs import EventLog
    from dispatcher.settings import Settings


@click.command()
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option("--burst", is_flag=True, help="End when nothing is waiting and nothing admitted is still to be posted.")
@click.pass_obj
def worker(terminal: Terminal, processes: int, *, burst: bool) -> int:
    """Post what waits on the queue, within the limits.

    Runs until SIGTERM or Ctrl-C, with --burst until all is done.

    The first signal finishes the posts in flight and gives the rest back; a second one stops at once, and nothing
    is lost either way.
    """
    from dispatcher.app import build_sink, greet_server, open_limits, open_server
    from dispatcher.logs import EventLog, build_log
    from dispatcher.settings import load_settings

    settings, doubts = load_settings()
    terminal.hide(settings.secrets())
    limits = open_limits(settings)
    sink = build_sink(settings)
    log = EventLog(build_log(level=settings.log_level, style=settings.log_format, secrets=settings.secrets()))
    try:
        # The worker's loop and the supervisor put their own handlers in place of these, which stop at once.
        with Interruption(), open_server(settings, start=True) as server:
            for doubt in (*doubts, *limits.warnings, *server.warnings):
                log.say("setting.doubted", detail=doubt)
            job = _Job(settings, limits, server, sink, log, burst)
            if processes == 1:
                return job.work()
            greet_server(settings, server, log)
            return job.supervise(processes, terminal)
    except KeyboardInterrupt:
        return DONE


@dataclass(frozen=True, slots=True)
class _Job:
    """What every worker process does, built once before there are several."""

    settings: Settings
    limits: LimitsFile
    server: Server
    sink: Sink
    log: EventLog
    burst: bool

    def work(self) -> int:
        """Run one worker in this process; returns its exit code."""
        from dispatcher.app import run_worker

        try:
            run_worker(self.settings, self.limits, self.server, self.sink, burst=self.burst)
        except DispatcherError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of ours; nothing is lost: what is in hand stays leased
            self.log.failed(error)
            return DEFECT
        return DONE

    def supervise(self, processes: int, terminal: Terminal) -> int:
        """Run several below this process; returns when all are done."""
        from dispatcher.worker.supervisor import Supervisor

        def child(_place: int) -> int:
            try:
                return self.work()
            except Exception as error:  # noqa: BLE001 - every one has its exit code
                return conclude(error, terminal)

        return Supervisor(child, processes, self.log.say, fatal=frozenset({CONFIGURATION})).supervise()

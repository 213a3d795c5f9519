"""``dispatcher up``: everything for one machine in the foreground."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.exits import DONE
from dispatcher.cli.terminal import Terminal
from dispatcher.cli.up_http import opened
from dispatcher.cli.worker import prepared
from dispatcher.errors import ConfigError

if TYPE_CHECKING:
    from dispatcher.cli.worker import Job

FEWEST: Final = 2
"""So that there is one while another is started again."""

MOST: Final = 4
"""More than enough for one Slack workspace; whoever needs more says so."""

_LOCK: Final = "up.lock"


@click.command()
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    show_default=f"one for each processor, {FEWEST} to {MOST}",
    help="Worker processes.",
)
@click.option(
    "--no-serve",
    is_flag=True,
    help="Do not start the HTTP server. By default it runs with the workers if the extra 'serve' is installed.",
)
@click.pass_obj
def up(terminal: Terminal, processes: int | None, *, no_serve: bool) -> int:
    """Run all that one machine needs: a server, unless one is set, workers, and HTTP.

    Stays in the foreground until SIGTERM or Ctrl-C. Workers that crash are started again, and so is the server. When it
    ends, so do they, and what they have not done is kept for the next time.

    The first signal finishes the posts in flight and gives the rest back; a second one stops at once, and nothing
    is lost either way.
    """
    try:
        with prepared(terminal) as job, _the_only_one(job), opened(job, wanted=not no_serve) as http:
            told = job if http.fault is None else replace(job, warnings=(*job.warnings, http.fault))
            return told.supervise(
                processes or default_processes(), terminal, partial(_begun, terminal, http.said), http.door
            )
    except KeyboardInterrupt:
        return DONE


def default_processes() -> int:
    """One for each processor, within bounds."""
    return min(max(os.cpu_count() or FEWEST, FEWEST), MOST)


@contextmanager
def _the_only_one(job: Job) -> Iterator[None]:
    """Hold the data dir of the embedded server as its one ``up``; raises ``ConfigError`` that names the other one.

    With a server of its own address any number may run, on any number of machines.
    """
    if job.settings.redis_url is not None:
        yield
        return
    with (job.settings.data_dir / _LOCK).open("a+", encoding="ascii") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process alone: workers below it do not hold it
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read().strip()
            raise ConfigError(
                f"'dispatcher up' runs here already, as process {pid}, with its data in {job.settings.data_dir}: "
                f"stop it with Ctrl-C or kill {pid}, or add workers to it with 'dispatcher worker'"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _begun(terminal: Terminal, http: str, job: Job, pids: Sequence[int]) -> None:
    """Show what runs where, by which limits; log lines stand below it."""
    from dispatcher.cli.up_view import draw, screen

    draw(terminal, screen(job.settings, job.limits, job.server, pids, http))
    job.say_warnings()

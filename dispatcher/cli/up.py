"""``dispatcher up``: everything for one machine in the foreground."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.exits import DONE
from dispatcher.cli.terminal import Terminal
from dispatcher.cli.worker import prepared

if TYPE_CHECKING:
    from dispatcher.cli.worker import Job

FEWEST: Final = 2
"""So that there is one while another is started again."""

MOST: Final = 4
"""More than enough for one Slack workspace; whoever needs more says so."""


@click.command()
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    show_default=f"one for each processor, {FEWEST} to {MOST}",
    help="Worker processes.",
)
@click.pass_obj
def up(terminal: Terminal, processes: int | None) -> int:
    """Run all that one machine needs: a server, unless one is set, and workers.

    Stays in the foreground until SIGTERM or Ctrl-C. Workers that crash are started again, and so is the server. When it
    ends, so do they, and what they have not done is kept for the next time.

    The first signal finishes the posts in flight and gives the rest back; a second one stops at once, and nothing
    is lost either way.
    """
    try:
        with prepared(terminal) as job:
            return job.supervise(processes or default_processes(), terminal, partial(_begun, terminal, job))
    except KeyboardInterrupt:
        return DONE


def default_processes() -> int:
    """One for each processor, within bounds."""
    return min(max(os.cpu_count() or FEWEST, FEWEST), MOST)


def _begun(terminal: Terminal, job: Job, pids: Sequence[int]) -> None:
    """Show what runs where; log lines stand below it."""
    from dispatcher.cli.up_view import draw, screen

    draw(terminal, screen(job.settings, job.limits, job.server, pids))
    job.say_doubts()

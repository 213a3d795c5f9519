"""``python -m tests.support.forking_server``: forks killable workers, each in a few ms; see ``killable_workers``.

An order is a line of JSON on stdin: environment, files, and the kill point. Its beginning and end are told on stdout.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dispatcher.app.running
import dispatcher.slack.clients
import dispatcher.worker.keeper  # noqa: F401 - these are what every child would import
from dispatcher.cli.exits import DONE, conclude
from dispatcher.cli.terminal import Terminal
from dispatcher.cli.worker import prepared
from dispatcher.worker.child_process import ParentLink
from tests.support.forked import warm_up
from tests.support.journal import keep_journal
from tests.support.kill_points import KillPoint, die_at

PATIENCE_S = 5.0


def main() -> None:
    """Fork what is ordered until stdin ends; the children end with this process."""
    heard, rung = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(rung, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(rung)
    warm_up()
    parent_link = ParentLink(PATIENCE_S)
    parent_link.release()
    orders = b""
    while True:
        ready, _, _ = select.select([0, heard], [], [])
        with suppress(BlockingIOError):
            os.read(heard, 4096)
        _tell_of_the_dead()
        if 0 not in ready:
            continue
        piece = os.read(0, 65_536)
        if not piece:
            return
        *whole, orders = (orders + piece).split(b"\n")
        for line in whole:
            order = json.loads(line)
            # Who is told to stop as soon as it is known hears of it once it has a handler, and exits with 0.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            pid = parent_link.fork(partial(live, order))
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _tell(began=order["number"], pid=pid)


def live(order: dict[str, Any]) -> int:
    """One worker's life, as ``dispatcher worker`` leads it; returns its exit code."""
    signal.set_wakeup_fd(-1)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    for ours, theirs in ((nothing, 0), (nothing, 1), (log, 2)):
        os.dup2(ours, theirs)
    keep_journal(Path(order["journal"]))
    if order["kill_point"]:
        die_at(KillPoint(**order["kill_point"]))
    terminal = Terminal()
    try:
        with prepared(terminal) as job:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            job.say_warnings()
            return job.work()
    except KeyboardInterrupt:
        return DONE
    except Exception as error:  # noqa: BLE001 - as the command does
        return conclude(error, terminal)


def _tell_of_the_dead() -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            _tell(ended=pid, code=os.waitstatus_to_exitcode(status))


def _tell(**facts: int) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

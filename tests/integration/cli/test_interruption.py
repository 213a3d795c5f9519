"""A command that is told to stop stops, also where what the signal raised got lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.cli.interruption import Interruption
from dispatcher.worker.child_process import SAME_FROM_PARENT_S
from tests.support.forked import SEEN_BY_ALL
from tests.support.processes import until

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Last:
    """Its finalizer gets a signal, and what a finalizer raises is lost."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    with Interruption() as entered:
        yield entered


def test_a_lost_interruption_is_raised_before_the_next_piece_of_work(interruption: Interruption) -> None:
    Last()
    assert interruption.asked
    with pytest.raises(KeyboardInterrupt), interruption.held_back():
        pytest.fail("begun")


@pytest.mark.usefixtures("interruption")
def test_a_second_signal_is_heard_where_the_first_was_lost() -> None:
    Last()
    os.kill(os.getpid(), signal.SIGTERM)
    asked = time.monotonic()
    until(lambda: time.monotonic() - asked > 1.1 * SAME_FROM_PARENT_S, "a signal of its own")
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


def serialize() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        raise ValueError("cannot be serialized") from None


def test_an_error_that_a_library_made_of_it_is_the_interruption(interruption: Interruption) -> None:
    with pytest.raises(KeyboardInterrupt), interruption.outranks_errors():
        serialize()


def test_any_other_error_stays_what_it_is(interruption: Interruption) -> None:
    with pytest.raises(ValueError, match="no number"), interruption.outranks_errors():
        raise ValueError("no number")


WORKER = """\
from dispatcher.cli.terminal import Terminal
from dispatcher.cli.worker import prepared
from tests.integration.cli.test_interruption import Last

terminal = Terminal()
try:
    with prepared(terminal) as job:
        Last()
        {run}
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("run", ["job.work()", "job.supervise(2, terminal)"])
def test_a_worker_that_was_told_to_stop_unheard_does_not_begin(redis_url: str, tmp_path: Path, run: str) -> None:
    (tmp_path / "limits.yaml").write_text("global: {limits: [100/30m]}", encoding="utf-8")
    env = {
        **SEEN_BY_ALL,
        "DISPATCHER_REDIS_URL": redis_url,
        "DISPATCHER_LIMITS_FILE": "limits.yaml",
        "DISPATCHER_SINK": "console",
    }
    command = [sys.executable, "-c", WORKER.format(run=run)]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr

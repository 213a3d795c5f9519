"""Signals to ``worker`` and ``up`` at any instant from exec on, before they have said a word."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from tests.support.extent import slow_except
from tests.support.forked import SEEN_BY_ALL
from tests.support.processes import PATIENCE_S, Command, until

START_S: Final = 0.7
"""About what a start takes; it lasts longer on a busy machine."""

COMMANDS: Final = (("worker",), ("up", "--processes", "1"))


@pytest.fixture
def env(redis_url: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "limits.yaml").write_text("global: {limits: [100/30m]}\n", encoding="utf-8")
    return {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": "limits.yaml", "DISPATCHER_SINK": "console"}


def hears(pid: int) -> bool:
    """Whether the program has handlers by now; before, while Python itself starts, it is a program like any other."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def instants(count: int, seed: int) -> Iterator[float]:
    """Seconds after exec: the instant at which the program begins to hear, and ``count`` later ones."""
    chance = random.Random(seed)
    yield 0.0
    for _ in range(count):
        yield chance.uniform(0.0, START_S)


def signal_when_heard(command: Command, number: signal.Signals, after_s: float) -> None:
    """Send a signal so many seconds after the program began to hear."""
    until(lambda: hears(command.pid), "its handlers")
    heard = time.monotonic()
    until(lambda: time.monotonic() >= heard + after_s, "the instant")
    command.signal(number)


@pytest.mark.parametrize(
    ("arguments", "number", "count"),
    [
        (COMMANDS[0], signal.SIGTERM, 1),
        (COMMANDS[1], signal.SIGINT, 1),
        *(
            pytest.param(arguments, number, 15, marks=pytest.mark.slow)
            for arguments in COMMANDS
            for number in (signal.SIGTERM, signal.SIGINT)
        ),
    ],
)
def test_told_to_stop_at_any_instant_of_its_start_it_ends_with_0_and_without_a_trace(
    env: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], number: signal.Signals, count: int
) -> None:
    for after_s in instants(count, number):
        with Command(*arguments, env=env, cwd=tmp_path, from_scratch=True) as command:
            signal_when_heard(command, number, after_s)
            assert command.wait() == 0, (after_s, command.stderr())
        assert "Traceback" not in command.stderr()


def test_a_signal_while_a_class_is_made_is_handled_and_ends_the_process_with_its_own_code() -> None:
    """Modules that are loaded late make their classes through ``exec``."""
    program = """\
from dispatcher.cli.interruption import Interruption
try:
    with Interruption():
        exec("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
except KeyboardInterrupt:
    raise SystemExit(3)
"""
    assert (
        subprocess.run([sys.executable, "-c", program], env=SEEN_BY_ALL, timeout=PATIENCE_S, check=False).returncode
        == 3
    )


@pytest.mark.parametrize(
    ("arguments", "count"),
    slow_except([(COMMANDS[0], 1)], product(COMMANDS, (1, 15))),
    ids=lambda value: value[0] if isinstance(value, tuple) else str(value),
)
def test_sighup_at_any_instant_of_its_start_ends_nothing(
    env: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], count: int
) -> None:
    for after_s in instants(count, count):
        with Command(*arguments, env=env, cwd=tmp_path, from_scratch=True) as command:
            signal_when_heard(command, signal.SIGHUP, after_s)
            command.await_line("worker.started")
            command.signal(signal.SIGTERM)
            assert command.wait() == 0, (after_s, command.stderr())
        assert command.named("worker.crashed") == []


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(each, id=each[0], marks=pytest.mark.slow if each[0] == "up" else ()) for each in COMMANDS],
)
def test_a_sighup_that_came_too_early_has_the_limits_read_again_later(
    env: dict[str, str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with Command(*arguments, env=env, cwd=tmp_path, from_scratch=True) as command:
        signal_when_heard(command, signal.SIGHUP, 0.0)
        command.await_line("limits.kept")


@pytest.mark.parametrize(
    ("arguments", "after_s"),
    [
        (COMMANDS[0], 0.0),
        (COMMANDS[1], 1.5),
        pytest.param(COMMANDS[1], 0.0, marks=pytest.mark.slow),
        pytest.param(COMMANDS[0], 1.5, marks=pytest.mark.slow),
        *(pytest.param(arguments, 0.3, marks=pytest.mark.slow) for arguments in COMMANDS),
    ],
)
def test_a_terminal_that_is_closed_stops_it_at_any_instant(
    env: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], after_s: float
) -> None:
    ours, theirs = pty.openpty()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", ON_A_TERMINAL, str(theirs), *arguments],
            env={**SEEN_BY_ALL, **env},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=(theirs,),
            start_new_session=True,
        )
    os.close(theirs)
    try:
        until(lambda: hears(process.pid), "its handlers")
        heard = time.monotonic()
        until(lambda: time.monotonic() >= heard + after_s, "the instant")
        os.close(ours)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


ON_A_TERMINAL: Final = """
import fcntl, os, sys, termios
terminal, *arguments = sys.argv[1:]
fcntl.ioctl(int(terminal), termios.TIOCSCTTY, 0)
os.close(int(terminal))
os.execv(sys.executable, [sys.executable, "-m", "dispatcher", *arguments])
"""


def test_the_program_hears_before_it_loads_anything() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import dispatcher.cli, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env=SEEN_BY_ALL,
        timeout=PATIENCE_S,
    ).stdout.split()
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"__main__", "sitecustomize"}
    assert {name for name in others if "editable" not in name and "distutils" not in name} == {"dispatcher"}

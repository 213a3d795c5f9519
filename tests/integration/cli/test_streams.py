"""The command line on streams that are closed, full, or read by nobody, and Ctrl-C before it has begun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from dispatcher.cli.exits import CONFIGURATION, conclude
from dispatcher.cli.terminal import Terminal
from tests.support.commands import Streams, environment, run, run_on
from tests.support.forked import PYTHON_DISPATCHER
from tests.support.processes import PATIENCE_S
from tests.support.screens import Screen

INTERRUPTED_IMPORT: Final = """
import sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            raise KeyboardInterrupt

module = sys.argv.pop(1)
sys.meta_path.insert(0, CtrlC())
from dispatcher.cli import main
main()
"""


def shell(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in bash, where ``$d`` is ``dispatcher``; its exit codes are its own matter."""
    return subprocess.run(
        ["/bin/bash", "-c", command],
        env=environment({"d": " ".join(PYTHON_DISPATCHER), **env}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("$d status >&-", 0),
        ("$d status --watch >&-", 2),
        pytest.param("$d dead list >&-", 0, marks=pytest.mark.slow),
        pytest.param("$d doctor >&-", 0, marks=pytest.mark.slow),
        pytest.param("$d limits show >&- 2>&-", 0, marks=pytest.mark.slow),
        ("$d send --stdin <&- >&- 2>&-", 0),
        ("$d sned >&- 2>&-", 2),
        pytest.param("$d status 2>/dev/full", 0, marks=pytest.mark.slow),
        ("$d sned 2>/dev/full", 2),
        pytest.param("$d send errors '' 2>/dev/full", 2, marks=pytest.mark.slow),
        ("$d worker --burst 2>/dev/full", 0),
        pytest.param("$d demo --json >&- <&-", 0, marks=pytest.mark.slow),
    ],
)
def test_a_stream_that_is_closed_or_full_changes_no_exit_code(command: str, code: int, redis_url: str) -> None:
    ended = shell(command, DISPATCHER_REDIS_URL=redis_url, DISPATCHER_SINK="console")
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("status", 0),
        ("--help", 0),
        pytest.param("status --help", 0, marks=pytest.mark.slow),
        pytest.param("sned", 2, marks=pytest.mark.slow),
        pytest.param("worker --burst", 0, marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_goes_away_changes_no_exit_code(command: str, code: int, redis_url: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        ended = subprocess.run(
            [*PYTHON_DISPATCHER, *command.split()],
            env=environment({"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SINK": "console"}),
            stdout=theirs,
            stderr=theirs,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(theirs)
    assert ended.returncode == code


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "send errors x",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("status --json", "limits check", "doctor")),
    ],
)
def test_results_that_cannot_be_written_are_an_error_that_says_so(command: str, redis_url: str) -> None:
    ended = shell(f"$d {command} >/dev/full", DISPATCHER_REDIS_URL=redis_url, DISPATCHER_SINK="console")
    said = "dispatcher: error: standard output cannot be written: No space left on device"
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, said)


@pytest.mark.parametrize(
    "module",
    [
        "click",
        "redis",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("dispatcher.cli.status", "pydantic", "dispatcher.cli.drawing")
        ),
    ],
)
def test_ctrl_c_while_it_loads_exits_with_130_and_without_a_traceback(module: str, redis_url: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, "status"],
        env=environment({"DISPATCHER_REDIS_URL": redis_url}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.strip() in {"", "dispatcher: interrupted"}


def test_a_file_that_cannot_be_reached_is_named_and_a_matter_of_configuration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path("config" * 100, "limits.yaml")
    with pytest.raises(OSError, match="File name too long") as refusal:
        path.stat()
    assert conclude(refusal.value, Terminal()) == CONFIGURATION
    assert capsys.readouterr().err == f"dispatcher: error: {path} cannot be used: File name too long\n"


def test_a_message_on_a_terminal_breaks_between_words_and_elsewhere_nowhere() -> None:
    with Screen(columns=40) as screen:
        run_on(Streams(stderr=screen.stream), "send", "errors", "x")
    lines = screen.text().splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(line.strip() for line in lines) == run("send", "errors", "x").err.strip()


def test_a_usage_error_on_a_terminal_breaks_between_words() -> None:
    with Screen(columns=50) as screen:
        run_on(Streams(stderr=screen.stream), "send", "errors", "x", "--channel", "no channel")
    lines = screen.text().splitlines()
    assert max(map(len, lines)) <= 50
    assert " ".join(line.strip() for line in lines).endswith("or an id such as C0123ABCD")


@pytest.mark.parametrize(
    ("env", "start"),
    [
        ({"TERM": "xterm"}, "dispatcher: \x1b[31merror:\x1b[0m no embedded"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "dispatcher: error: no embedded"),
        ({"TERM": "dumb"}, "dispatcher: error: no embedded"),
    ],
    ids=["colour", "NO_COLOR", "dumb"],
)
def test_an_error_is_marked_in_colour_where_there_is_any(env: dict[str, str], start: str) -> None:
    with Screen() as screen:
        run_on(Streams(stderr=screen.stream), "send", "errors", "x", **env)
    assert screen.text().startswith(start)

"""The supervisor on real processes: children that end, crash, hang and are hit by signals at awkward moments."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from dispatcher.worker.child_process import SAME_SIGNAL_S
from dispatcher.worker.supervisor import RESPAWN_FROM_S, RESPAWN_TO_S, STEADY_S, backoff_s, crashes_now
from tests.support.forked import SEEN_BY_ALL
from tests.support.processes import PATIENCE_S, until

PROGRAM: Final = """
import errno, json, os, select, signal, subprocess, sys, time
from pathlib import Path
from dispatcher.worker.hangup import Hangup
from dispatcher.worker.supervisor import Supervisor

def tell(event, **facts):
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)

def await_file(name, within_s):
    end = time.monotonic() + within_s
    while time.monotonic() < end and not Path(name).exists():
        time.sleep(0.01)

def stop_by(number):
    def heard(*_):
        tell("child.stopping", pid=os.getpid())
        await_file("enough", SLOW_S)
        tell("child.stopped", pid=os.getpid())
        os._exit(0)
    signal.signal(number, heard)

def wait():
    stop_by(signal.SIGTERM)
    signal.signal(signal.SIGHUP, lambda *_: tell("child.reread", pid=os.getpid()))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    tell("child.ready", pid=os.getpid())
    Path("ready").touch()
    while True:
        signal.pause()

def wrong_late():
    await_file("ready", 60.0)
    return 78

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("child.ready", pid=os.getpid())
    while True:
        signal.pause()

def bare():
    tell("child.ready", pid=os.getpid())
    while True:
        signal.pause()

def crash_once():
    if Path("crashed").exists():
        return wait()
    Path("crashed").touch()
    os.kill(os.getpid(), signal.SIGSEGV)

def stumble():
    raise RuntimeError("xoxb-sesame")

WAYS = {"done": lambda: 0, "crash": lambda: 3, "wrong": lambda: 78, "wrong-late": wrong_late, "wait": wait,
        "deaf": deaf, "bare": bare, "crash-once": crash_once, "stumble": stumble}
SLOW_S = 0.0
patience_s, *ways = sys.argv[1:]
beside = ways[-1].startswith("beside-")
ways[-1] = ways[-1].removeprefix("beside-")
count = len(ways) - beside

def run(place):
    tell("child.began", place=place, pid=os.getpid())
    return WAYS[ways[place]]()

def begun(pids):
    tell("begun", pids=pids)

SET_UP
supervisor = Supervisor(run, count, tell, fatal=frozenset({78}), patience_s=float(patience_s),
                        is_hung_up=Hangup().is_end, beside=beside, let_go=lambda: tell("let.go"))
sys.exit(supervisor.supervise(begun))
"""


class Family:
    """A parent that supervises one child for each of ``ways``, and what all of them tell."""

    def __init__(
        self,
        cwd: Path,
        *ways: str,
        patience_s: float = PATIENCE_S,
        set_up: str = "",
        wrapper: tuple[str, ...] = (),
        inherited: tuple[int, ...] = (),
    ) -> None:
        self._told = cwd / f"told.{os.urandom(4).hex()}"
        with self._told.open("wb") as told:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, "-c", PROGRAM.replace("SET_UP", set_up), str(patience_s), *ways],
                cwd=cwd,
                env=SEEN_BY_ALL,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=inherited,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.pids():
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def lines(self, event: str) -> list[dict[str, Any]]:
        told = [json.loads(line) for line in self._told.read_text().splitlines()]
        return [line for line in told if line["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        return until(
            lambda: found if len(found := self.lines(event)) >= count else None,
            f"{count} x {event}; told: {self._told.read_text()}",
        )

    def pids(self) -> set[int]:
        """The children that were seen."""
        first = {pid for line in self.lines("begun") for pid in line["pids"]}
        return first | {line["pid"] for line in self.lines("child.began")}

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        return self.process.wait(PATIENCE_S)

    def is_over(self) -> bool:
        """Whether no child runs any more, whoever its parent is by now."""
        return not any(map(is_running, self.pids()))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[..., Family]]:
    started: list[Family] = []

    def start(*ways: str, **options: Any) -> Family:  # noqa: ANN401 - those of Family
        started.append(Family(tmp_path, *ways, **options))
        return started[-1]

    yield start
    for each in started:
        each.__exit__(None, None, None)


Start = Callable[..., Family]


# The arithmetic


def test_the_pause_doubles_up_to_its_bound_and_stays_there_for_ever() -> None:
    assert [backoff_s(crashes) for crashes in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff_s(1) == RESPAWN_FROM_S
    assert backoff_s(1_000_000) == RESPAWN_TO_S


@pytest.mark.parametrize(
    ("before", "ran_s", "now"),
    [(0, 0.0, 1), (1, 0.0, 2), (7, STEADY_S - 0.001, 8), (7, STEADY_S, 1)],
    ids=["first", "second", "soon again", "after a steady run"],
)
def test_a_steady_run_ends_a_row_of_crashes(before: int, ran_s: float, now: int) -> None:
    assert crashes_now(before, ran_s) == now


# How children end


def test_children_that_are_done_are_not_started_again(family: Start) -> None:
    ended = family("done", "done", "done")
    assert ended.code() == 0
    assert [len(ended.lines(name)) for name in ("child.began", "worker.crashed", "worker.given_up")] == [3, 0, 0]


def test_no_child_runs_before_its_parent_has_told_of_all(family: Start) -> None:
    slow = """
def begun(pids):
    select.select([], [], [], 0.2)
    tell("begun", pids=pids)
"""
    ended = family("done", "done", "done", set_up=slow)
    assert ended.code() == 0
    (begun,) = ended.lines("begun")
    assert set(begun["pids"]) == ended.pids()
    assert all(line["at"] > begun["at"] for line in ended.lines("child.began"))


def test_when_all_are_given_up_their_code_is_returned(family: Start) -> None:
    ended = family("wrong", "wrong")
    assert ended.code() == 78
    assert {line["pid"] for line in ended.lines("worker.given_up")} == ended.pids()
    assert len(ended.lines("child.began")) == 2


def test_a_worker_that_is_given_up_leaves_the_others_at_work(family: Start) -> None:
    parent = family("wrong", "wait")
    parent.wait_for("worker.given_up")
    parent.wait_for("child.ready")
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0, "told to stop, it stops cleanly"
    assert len(parent.lines("child.stopped")) == 1


def test_the_child_beside_the_others_ends_with_the_last_of_them(family: Start) -> None:
    parent = family("wrong", "done", "beside-wait")
    assert parent.code() == 78
    assert len(parent.lines("worker.given_up")) == 1
    assert [len(line["pids"]) for line in parent.lines("begun")] == [2]
    assert parent.lines("workers.killed") == []
    assert parent.is_over()


def test_the_child_beside_the_others_is_started_again_under_its_own_name(family: Start) -> None:
    parent = family("wait", "beside-crash-once")
    parent.wait_for("child.ready", 2)
    assert [line["detail"] for line in parent.lines("serve.crashed")] == ["Segmentation fault"]
    assert parent.lines("worker.crashed") == []
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0


@pytest.mark.parametrize("way", ["done", "wrong"])
def test_what_is_kept_for_the_child_beside_the_others_goes_when_it_ends_for_good(family: Start, way: str) -> None:
    parent = family("wait", f"beside-{way}")
    parent.wait_for("child.ready")
    parent.wait_for("let.go")
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0


def test_what_is_kept_for_the_child_beside_the_others_stays_while_it_is_to_be_started_again(family: Start) -> None:
    parent = family("wait", "beside-crash-once")
    parent.wait_for("child.ready", 2)
    assert parent.lines("let.go") == []
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0
    (gone,), stopped = parent.lines("let.go"), parent.lines("child.stopped")
    assert all(gone["at"] < each["at"] for each in stopped), "it goes when the stop begins"


def test_a_crash_loop_is_told_and_does_not_spin(family: Start) -> None:
    parent = family("crash", "wait")
    crashes = parent.wait_for("worker.crashed", 3)[:3]
    began = [line["at"] for line in parent.lines("child.began") if line["place"] == 0]
    parent.signal(signal.SIGINT)
    assert parent.code() == 0
    facts = [(line["code"], line["in_a_row"], line["respawn_s"]) for line in crashes]
    assert facts == [(3, 1, 0.5), (3, 2, 1.0), (3, 3, 2.0)]
    assert began[1] - began[0] >= 0.5
    assert began[2] - began[1] >= 1.0
    assert len([line for line in parent.lines("child.began") if line["place"] == 1]) == 1


def test_a_child_killed_by_a_signal_is_replaced_and_the_signal_is_named(family: Start) -> None:
    parent = family("crash-once")
    (ready,) = parent.wait_for("child.ready")
    (crash,) = parent.lines("worker.crashed")
    assert (crash["code"], crash["detail"]) == (-signal.SIGSEGV, "Segmentation fault")
    assert crash["pid"] != ready["pid"]
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0


def test_an_error_ends_the_child_alone_and_is_named_without_what_it_says(family: Start) -> None:
    parent = family("stumble")
    assert parent.wait_for("worker.crashed")[0]["code"] == 70
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0
    assert parent.process.stderr is not None
    said = parent.process.stderr.read()
    (pid,) = parent.pids()
    assert said == f"process {pid} ends: RuntimeError\n"


def test_a_system_without_room_for_a_process_is_tried_again(family: Start) -> None:
    full = """
fork = os.fork
def no_room():
    os.fork = fork
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
os.fork = no_room
"""
    parent = family("wait", set_up=full)
    parent.wait_for("child.ready")
    assert [line["detail"] for line in parent.lines("worker.crashed")] == [
        "no new process: Resource temporarily unavailable"
    ]
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0


def test_a_stranger_that_ends_is_reaped_and_is_nobodys_crash(family: Start) -> None:
    parent = family(
        "wait",
        set_up="child = subprocess.Popen(['cat'], stdin=subprocess.PIPE); tell('unknown_child', pid=child.pid)",
    )
    (unknown_child,) = parent.wait_for("unknown_child")
    parent.wait_for("child.ready")
    os.kill(unknown_child["pid"], signal.SIGKILL)
    until(lambda: not Path(f"/proc/{unknown_child['pid']}").exists(), "the stranger reaped")
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0
    assert parent.lines("worker.crashed") == []


# Stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_lets_every_child_finish(family: Start, number: signal.Signals) -> None:
    parent = family("wait", "wait", set_up="SLOW_S = 0.2")
    parent.wait_for("child.ready", 2)
    parent.signal(number)
    assert parent.code() == 0
    assert len(parent.lines("child.stopped")) == 2
    assert [line["signal"] for line in parent.lines("stop.asked")] == [number.name]


def test_ctrl_c_is_for_the_parent_alone_which_passes_it_on_once(family: Start) -> None:
    parent = family("wait", "wait", set_up="SLOW_S = 0.1")
    parent.wait_for("child.ready", 2)
    os.killpg(parent.process.pid, signal.SIGINT)
    assert parent.code() == 0
    assert [len(parent.lines(f"child.{did}")) for did in ("stopping", "stopped")] == [2, 2]


def test_signals_that_come_together_are_one(family: Start) -> None:
    parent = family("wait", set_up="SLOW_S = 0.3")
    parent.wait_for("child.ready")
    state = Path(f"/proc/{parent.process.pid}/stat")
    parent.signal(signal.SIGSTOP)
    until(lambda: state.read_text(encoding="utf-8").rpartition(") ")[2].startswith("T"), "a parent that stands still")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        parent.signal(number)
    assert parent.code() == 0
    assert len(parent.lines("child.stopped")) == 1


def test_a_second_signal_stops_at_once(family: Start) -> None:
    parent = family("deaf", "wait", set_up="SLOW_S = 60.0")
    parent.wait_for("child.ready", 2)
    parent.signal(signal.SIGTERM)
    (asked,) = parent.wait_for("stop.asked")
    until(lambda: time.monotonic() > asked["at"] + 2 * SAME_SIGNAL_S, "a signal of its own")
    parent.signal(signal.SIGINT)
    assert parent.process.wait(5) == 128 + signal.SIGINT
    assert parent.is_over()
    assert parent.lines("child.stopped") == []


def test_the_first_signal_is_the_first_though_the_child_beside_the_others_is_ending_already(
    family: Start, tmp_path: Path
) -> None:
    parent = family("wrong-late", "beside-wait", set_up="SLOW_S = 60.0")
    (stopping,) = parent.wait_for("child.stopping")
    until(lambda: parent.lines("let.go"), "the parent has ended it")
    let_go = parent.lines("let.go")[-1]["at"]
    until(lambda: time.monotonic() > let_go + 2 * SAME_SIGNAL_S, "a signal of its own")
    parent.signal(signal.SIGTERM)
    (asked,) = parent.wait_for("stop.asked")
    assert 0 < asked["within_s"] < PATIENCE_S
    (tmp_path / "enough").touch()
    assert parent.code() == 0
    assert [line["pid"] for line in parent.lines("child.stopped")] == [stopping["pid"]]
    assert len(parent.lines("child.stopping")) == 1


def test_a_second_signal_stops_the_child_beside_the_others_at_once(family: Start) -> None:
    parent = family("wrong-late", "beside-wait", set_up="SLOW_S = 60.0")
    parent.wait_for("child.stopping")
    parent.signal(signal.SIGTERM)
    (asked,) = parent.wait_for("stop.asked")
    until(lambda: time.monotonic() > asked["at"] + 2 * SAME_SIGNAL_S, "a signal of its own")
    parent.signal(signal.SIGINT)
    assert parent.process.wait(5) == 128 + signal.SIGINT
    assert parent.is_over()


def test_a_worker_that_does_not_stop_in_time_is_killed(family: Start) -> None:
    parent = family("deaf", "wait", patience_s=0.3)
    parent.wait_for("child.ready", 2)
    parent.signal(signal.SIGTERM)
    assert parent.process.wait(5) == 0
    (killed,) = parent.lines("workers.killed")
    assert len(killed["pids"]) == 1
    assert len(parent.lines("child.stopped")) == 1
    assert parent.is_over()


def test_a_parent_that_stood_still_kills_nobody_who_has_ended(family: Start) -> None:
    parent = family("wait", "wait", patience_s=1.0, set_up="SLOW_S = 0.3")
    parent.wait_for("child.ready", 2)
    parent.signal(signal.SIGTERM)
    (asked,) = parent.wait_for("stop.asked")
    parent.wait_for("child.stopping", 2)
    parent.signal(signal.SIGSTOP)
    parent.wait_for("child.stopped", 2)
    until(lambda: time.monotonic() > asked["at"] + 1.1, "the end of its patience")
    parent.signal(signal.SIGCONT)
    assert parent.code() == 0
    assert parent.lines("workers.killed") == []


def test_nothing_is_started_again_once_it_is_to_stop(family: Start) -> None:
    parent = family("crash", "deaf", patience_s=1.0)
    parent.wait_for("worker.crashed")
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0
    assert len([line for line in parent.lines("child.began") if line["place"] == 0]) == 1


# Signals at awkward moments


def test_a_signal_between_fork_and_its_return_reaches_every_child(family: Start) -> None:
    parent = family(
        "wait", "wait", "wait", set_up="os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), 15))"
    )
    assert parent.process.wait(10) == 0
    assert parent.is_over()
    assert len(parent.lines("stop.asked")) == 1
    assert parent.lines("workers.killed") == []


def test_a_signal_to_a_child_that_is_not_set_up_yet_is_not_lost(family: Start) -> None:
    early = """
def early():
    if not Path("hit").exists():
        Path("hit").touch()
        os.kill(os.getpid(), signal.SIGTERM)
os.register_at_fork(after_in_child=early)
"""
    parent = family("wait", set_up=early)
    parent.wait_for("child.ready")
    assert [line["code"] for line in parent.lines("worker.crashed")] == [-signal.SIGTERM]
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0


def test_a_parent_that_stumbles_at_the_beginning_leaves_no_child(family: Start) -> None:
    stumbles = """
def begun(pids):
    tell("begun", pids=pids)
    raise OSError("no room for the screen")
"""
    parent = family("wait", "wait", set_up=stumbles)
    assert parent.code() == 1
    (begun,) = parent.lines("begun")
    until(lambda: not any(map(is_running, begun["pids"])), "no child")


# kill -9 of the parent


def test_children_finish_and_end_when_their_parent_is_killed(family: Start) -> None:
    parent = family("wait", "wait", set_up="SLOW_S = 0.1")
    parent.wait_for("child.ready", 2)
    parent.signal(signal.SIGKILL)
    until(parent.is_over, "no child")
    assert len(parent.lines("child.stopped")) == 2


def test_a_child_that_does_not_stop_is_killed_when_its_parent_was(family: Start) -> None:
    parent = family("deaf", patience_s=0.2)
    parent.wait_for("child.ready")
    parent.signal(signal.SIGKILL)
    until(parent.is_over, "no child")


def test_a_child_started_again_ends_with_its_parent_too(family: Start) -> None:
    parent = family("crash-once", "wait")
    parent.wait_for("child.ready", 2)
    parent.signal(signal.SIGKILL)
    until(parent.is_over, "no child")
    assert len(parent.lines("child.stopped")) == 2


# SIGHUP


def test_sighup_is_passed_on_and_stops_nobody(family: Start) -> None:
    parent = family("wait", "bare")
    parent.wait_for("child.ready", 2)
    parent.signal(signal.SIGHUP)
    parent.wait_for("child.reread")
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0
    assert parent.lines("worker.crashed") == [], "one that has no handler yet ignores it"


def test_sighup_stays_ignored_under_nohup(family: Start) -> None:
    parent = family("wait", wrapper=("nohup",))
    parent.wait_for("child.ready")
    parent.signal(signal.SIGHUP)
    parent.signal(signal.SIGTERM)
    assert parent.code() == 0
    assert parent.lines("child.reread") == []


def test_a_closed_terminal_stops_everything(family: Start) -> None:
    ours, theirs = pty.openpty()
    take_it = f"import fcntl, termios; fcntl.ioctl({theirs}, termios.TIOCSCTTY, 0)"
    parent = family("wait", "wait", set_up=take_it, inherited=(theirs,))
    os.close(theirs)
    parent.wait_for("child.ready", 2)
    parent.signal(signal.SIGHUP)
    parent.wait_for("child.reread", 2)
    os.close(ours)
    assert parent.code() == 0
    assert len(parent.lines("child.stopped")) == 2

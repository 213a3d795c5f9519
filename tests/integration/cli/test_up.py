"""``dispatcher up``: one command that survives whatever is killed, says what runs where, and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from redis import Redis

from dispatcher.cli.up import FEWEST, MOST, default_processes
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.embedded import EmbeddedServer
from dispatcher.server.keys import Keys
from dispatcher.settings.redaction import redacted_url
from dispatcher.stand_in import Held, Hold, StandIn, landed
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books, Snapshot
from dispatcher.web.server import STOP_S
from dispatcher.worker.child_process import SAME_SIGNAL_S
from tests.support.commands import Streams, environment, run, started_on, terminal
from tests.support.forked import PYTHON_DISPATCHER
from tests.support.processes import PATIENCE_S, Command, until
from tests.support.slack import mark_of

LIMITS: Final = """\
global: {limits: [10000/30m]}
channels: {default: {pace: none}}
defaults: {limits: [5000/30m], channel: "#notifications"}
categories:
  deploys: {limits: [300/30m]}
"""
SLACK_TIMEOUT_S: Final = 3.0


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path, so that the socket lies with the data, and what stands below it in no other command line."""
    path = Path(tempfile.mkdtemp(prefix="dsp-"))
    (path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def env(slack: StandIn, place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(place)
    return {
        "DISPATCHER_LIMITS_FILE": "limits.yaml",
        "DISPATCHER_SLACK_BASE_URL": slack.base_url,
        "DISPATCHER_SLACK_TOKEN": slack.token,
        "DISPATCHER_SLACK_TIMEOUT": str(SLACK_TIMEOUT_S),
        "DISPATCHER_SERVE_PORT": "0",
    }


Up = Callable[..., Command]


@pytest.fixture
def up(place: Path, env: dict[str, str]) -> Iterator[Up]:
    """Starts it with two workers, and returns when they wait for work."""
    started: list[Command] = []

    def start(*arguments: str, **more: str) -> Command:
        command = Command("up", "--processes", "2", *arguments, env={**env, **more}, cwd=place, name="up")
        started.append(command)
        until(lambda: len(command.named("worker.started")) == 2, "two workers")
        until(lambda: blocked_clients(place) >= 2 * 4, "each waiting on three lanes and the wake list")
        return command

    yield start
    for command in started:
        command.__exit__(None, None, None)
        print(command.stderr())  # noqa: T201 - pytest shows it with a failure
    until(lambda: not processes_in(place), "no process of the test")


def processes_in(place: Path) -> dict[int, str]:
    """All processes that work in the place or below, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(place):
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    found.pop(os.getpid(), None)
    return found


def workers_of(command: Command) -> set[int]:
    """The workers that have told of their start."""
    return {int(line["worker"].rsplit(".", 2)[1]) for line in command.named("worker.started")}


def http_pid(command: Command, place: Path) -> int:
    """The child that serves."""
    (pid,) = {pid for pid in processes_in(place) if parent_of(pid) == command.pid} - workers_of(command)
    return pid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def url_of(command: Command) -> str:
    """Where it serves."""
    return str(command.await_line("serve.started")["url"])


def url_in(place: Path) -> str:
    return f"unix://{place}/.dispatcher/server.sock"


def server_facts(place: Path) -> Any:  # noqa: ANN401 - redis-py types an answer as everything it could ever be
    with Redis.from_url(url_in(place)) as redis:
        return redis.info()


def server_pid(place: Path) -> int:
    return int(server_facts(place)["process_id"])


def blocked_clients(place: Path) -> int:
    return int(server_facts(place)["blocked_clients"])


def guard_pid(place: Path) -> int:
    return parent_of(server_pid(place))


def send(place: Path, *ids: str, category: str = "errors") -> None:
    with connect(url_in(place)) as client:
        Producer(client).send_many({"category": category, "text": each, "id": each} for each in ids)


def snapshot_of(place: Path) -> Snapshot:
    """The books of the server that runs; they balance."""
    with connect(url_in(place)) as client:
        snapshot = Books(client, Keys("dispatcher"), QueueKeys("notifications")).snapshot()
    assert snapshot.imbalances() == []
    return snapshot


def await_sent(place: Path, count: int) -> None:
    until(lambda: snapshot_of(place).overall()["sent"] == count, f"{count} sent", 2 * PATIENCE_S)


def snapshot_afterwards(place: Path) -> Snapshot:
    """The books when nothing runs any more."""
    with EmbeddedServer.join(place / ".dispatcher"):
        return snapshot_of(place)


# Before anything starts


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, "no way to post: set DISPATCHER_SLACK_TOKEN"),
        ({"DISPATCHER_SINK": "console", "DISPATCHER_LIMITS_FILE": "nowhere.yaml"}, "nowhere.yaml"),
        ({"DISPATCHER_SINK": "cnosole"}, "DISPATCHER_SINK is 'cnosole', expected slack or console"),
    ],
    ids=["no token", "no limits file", "no such sink"],
)
def test_nothing_starts_that_could_not_post(env: dict[str, str], said: str) -> None:
    refused = run("up", **env)
    assert (refused.code, refused.out) == (78, "")
    assert said in refused.err
    assert not Path(".dispatcher").exists()


def test_without_a_number_there_are_two_to_four_workers() -> None:
    assert FEWEST <= default_processes() <= MOST
    assert "one for each processor, 2 to 4" in " ".join(run("up", "--help").out.split())


# The screen


def test_the_screen_says_what_runs_where_and_its_commands_work(up: Up, place: Path, slack: StandIn) -> None:
    command = up()
    pids = sorted(workers_of(command))
    assert command.process.stdout is not None
    shown = os.read(command.process.stdout.fileno(), 65_536).decode()
    assert shown.splitlines() == [
        f"dispatcher is up, as process {command.pid}",
        "  server    embedded, with its data in .dispatcher",
        "  queue     notifications, in namespace dispatcher",
        "  limits    version 1, as limits.yaml says",
        "            All events together: at most 10000 in any 30 minutes.",
        "            And 5 more rules.",
        f"  posts to  Slack at {slack.base_url}, with a bot token",
        f"  workers   {pids[0]}, {pids[1]}; one that crashes is started again",
        f"  HTTP      {url_of(command)}: its page, in a browser, shows what happens",
        "",
        f"In another terminal, in {place} and with the same variables:",
        '  send      dispatcher send deploys "hello"',
        "  look      dispatcher status --watch",
        "            dispatcher limits show",
        "            dispatcher limits check",
        "  mend      dispatcher doctor",
        f"  stop      Ctrl-C here, or: kill {command.pid}",
        "",
    ]
    commands = [shlex.split(line.partition(" dispatcher ")[2]) for line in shown.splitlines() if " dispatcher " in line]
    env = {"DISPATCHER_LIMITS_FILE": "limits.yaml", "DISPATCHER_SINK": "console"}
    watch = commands.pop(1)
    assert run(*watch, **env).err.startswith("Usage: dispatcher status")  # it is for terminals
    assert [run(*words, **env).code for words in commands] == [0, 0, 0, 0]
    until(lambda: [posted.text for posted in slack.ledger.posted()] == ["hello"], "the post")
    assert slack.token not in shown + command.stderr()
    assert set(processes_in(place)) == {
        command.pid,
        *pids,
        http_pid(command, place),
        server_pid(place),
        guard_pid(place),
    }


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ({"DISPATCHER_SINK": "console"}, "standard output, not to Slack (DISPATCHER_SINK=console)"),
        (
            {"DISPATCHER_SLACK_WEBHOOK_URL": "https://hooks.slack.com/services/T1/B1/sesame"},
            "Slack, by a webhook: to its own channel, whatever an event names",
        ),
        ({"DISPATCHER_SLACK_TOKEN": "xoxb-sesame"}, "Slack, with a bot token"),
    ],
    ids=["console", "webhook", "token"],
)
def test_a_server_that_is_set_is_used_and_none_started(
    redis_url: str, tmp_path: Path, env: dict[str, str], shown: str
) -> None:
    with Command(
        "up", env={"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SERVE_PORT": "0", **env}, cwd=tmp_path, name="up"
    ) as command:
        command.await_line("worker.started")
        command.signal(signal.SIGTERM)
        out, _ = command.process.communicate(timeout=PATIENCE_S)
    assert f"  server    {redacted_url(redis_url)}\n" in out.decode()
    assert f"  posts to  {shown}\n" in out.decode()
    assert "sesame" not in out.decode() + command.stderr()
    assert command.process.returncode == 0
    assert not (tmp_path / ".dispatcher").exists()


def test_on_a_terminal_it_is_drawn_and_the_log_stands_below(place: Path, env: dict[str, str]) -> None:
    with terminal() as (stream, written):
        env |= {"TERM": "xterm-256color", "COLUMNS": "70"}
        with started_on(Streams(stdout=stream, stderr=stream), "up", **env) as process:
            until(lambda: len(processes_in(place)) == 4 + default_processes(), "everything up")
            send(place, "e1")
            await_sent(place, 1)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
        drawn = written().replace("\r\n", "\n")
    assert drawn.startswith("\x1b[1mdispatcher is up, as process")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    screen, _, log = plain.partition(f"stop      Ctrl-C here, or: kill {process.pid}\n")
    assert max(map(len, screen.splitlines())) <= 70 + len(str(place))
    assert "worker.started" in log
    assert "worker.started" not in screen


def test_a_second_one_in_the_same_folder_is_refused_and_names_the_first(up: Up, place: Path) -> None:
    first = up()
    second = Command("up", env={"DISPATCHER_SINK": "console", "DISPATCHER_LIMITS_FILE": "limits.yaml"}, cwd=place)
    with second:
        assert second.wait() == 78
        assert second.process.stdout is not None
        assert second.process.stdout.read() == b""
    assert second.stderr() == (
        f"dispatcher: error: 'dispatcher up' runs here already, as process {first.pid}, with its data in .dispatcher: "
        f"stop it with Ctrl-C or kill {first.pid}, or add workers to it with 'dispatcher worker'\n"
    )
    first.signal(signal.SIGKILL)
    first.wait()
    until(lambda: not processes_in(place), "no process of the first")
    up()


# Ctrl-C and SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_finishes_the_post_in_flight_and_ends_everything(
    up: Up, place: Path, slack: StandIn, number: signal.Signals
) -> None:
    hold = Hold()
    slack.faults.add(landed(Held(hold)))
    command = up()
    send(place, "e1")
    hold.wait_for_arrival()
    asked = time.monotonic()
    command.signal(number)
    command.await_line("stop.asked")
    hold.release()
    assert command.wait() == 0
    assert time.monotonic() - asked < SLACK_TIMEOUT_S + 5
    assert processes_in(place) == {}
    assert [line["outcome"] for line in command.named("event.settled")] == ["sent"]
    assert snapshot_afterwards(place).overall()["sent"] == 1


def test_a_post_that_does_not_end_delays_the_stop_no_longer_than_its_deadline(
    up: Up, place: Path, slack: StandIn
) -> None:
    hold = Hold()
    slack.faults.add(landed(Held(hold)))
    command = up(DISPATCHER_SLACK_TIMEOUT="0.5")
    send(place, "e1")
    hold.wait_for_arrival()
    command.signal(signal.SIGTERM)
    assert command.wait(0.5 + 5) == 0
    hold.release()
    assert processes_in(place) == {}
    assert snapshot_afterwards(place).parked == 1


def test_a_second_signal_stops_at_once_and_the_event_is_posted_next_time(up: Up, place: Path, slack: StandIn) -> None:
    hold = Hold()
    slack.faults.add(landed(Held(hold)))
    command = up(DISPATCHER_SLACK_TIMEOUT="3", DISPATCHER_LEASE="3.1")
    send(place, "e1")
    hold.wait_for_arrival()
    command.signal(signal.SIGINT)
    command.await_line("stop.asked")
    again = time.monotonic() + 2 * SAME_SIGNAL_S
    until(lambda: time.monotonic() > again, "a signal of its own")
    command.signal(signal.SIGINT)
    assert command.wait() == 128 + signal.SIGINT
    hold.release()
    assert processes_in(place) == {}
    assert snapshot_afterwards(place).in_flight == 1
    up(DISPATCHER_RECONCILE_GRACE="0")
    await_sent(place, 1)
    assert {posted.mark for posted in slack.ledger.posted()} == {mark_of("e1")}


# kill -9


def test_kill_9_of_up_leaves_no_process_and_loses_nothing(up: Up, place: Path, slack: StandIn) -> None:
    hold = Hold()
    slack.faults.add(landed(Held(hold)))
    command = up()
    server, guard = server_pid(place), guard_pid(place)
    everybody = {command.pid, *workers_of(command), http_pid(command, place), server, guard}
    assert set(processes_in(place)) == everybody
    send(place, "e1", *(f"more-{number}" for number in range(100)))
    hold.wait_for_arrival()
    command.signal(signal.SIGKILL)
    command.wait()
    assert set(processes_in(place)) <= everybody - {command.pid}
    hold.release()
    until(lambda: processes_in(place) == {}, "no process", SLACK_TIMEOUT_S + 5)
    books = snapshot_afterwards(place)
    assert books.overall()["enqueued"] == 101
    assert books.leased == 0, "what was in flight was finished"
    up()
    await_sent(place, 101)
    marks = [posted.mark for posted in slack.ledger.posted()]
    assert len(marks) == len(set(marks)) == 101


@pytest.mark.parametrize(("command", "begun"), [("worker", "worker.started"), ("serve", "serve.started")])
def test_the_last_process_waits_until_the_embedded_server_has_ended(
    place: Path, env: dict[str, str], command: str, begun: str
) -> None:
    with Command(command, env=env, cwd=place) as last:
        last.await_line(begun)
        until(lambda: server_facts(place)["connected_clients"] > 1, "the keeper")
        last.signal(signal.SIGTERM)
        assert last.wait() == 0
        assert processes_in(place) == {}


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param(("server",), marks=pytest.mark.slow),
        pytest.param(("guard",), marks=pytest.mark.slow),
        ("server", "guard"),
    ],
    ids=" and ".join,
)
def test_kill_9_of_the_embedded_server_is_mended_and_loses_nothing(
    up: Up, place: Path, slack: StandIn, victims: tuple[str, ...]
) -> None:
    ids = [f"e{number}" for number in range(150)]
    command = up()
    find = {"server": server_pid, "guard": guard_pid}
    killed = [find[victim](place) for victim in victims]
    send(place, *ids)
    until(lambda: len(slack.ledger) >= 20, "some posts")
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(command.named("redis.found")) >= 2, "both workers again")
    await_sent(place, len(ids))
    assert server_pid(place) not in killed
    marks = [posted.mark for posted in slack.ledger.posted()]
    assert set(marks) == {mark_of(each) for each in ids}
    assert len(marks) == len(ids), "a server that comes back costs no post twice"
    send(place, "after", category="deploys")
    await_sent(place, len(ids) + 1)
    command.signal(signal.SIGTERM)
    assert command.wait() == 0
    assert processes_in(place) == {}
    assert command.named("worker.crashed") == []


def test_a_server_killed_again_and_again_comes_back_each_time(up: Up, place: Path, slack: StandIn) -> None:
    command = up()
    for number in range(3):
        os.kill(server_pid(place), signal.SIGKILL)
        until(lambda: len(command.named("redis.found")) >= 2 * (number + 1), "both workers again")  # noqa: B023 - called here
        send(place, f"e{number}")
        until(lambda: len(slack.ledger) == number + 1, "the post")  # noqa: B023 - called here


def test_a_server_that_cannot_restart_is_logged_until_its_fault_is_repaired(
    up: Up, place: Path, slack: StandIn
) -> None:
    command = up()
    pid = server_pid(place)
    (place / ".dispatcher").chmod(0o707)
    os.kill(pid, signal.SIGKILL)
    told = command.await_line("server.failed")
    assert "can be written by everyone" in told["detail"]
    assert told["retry_s"] > 0
    (place / ".dispatcher").chmod(0o700)
    until(lambda: len(command.named("redis.found")) >= 2, "both workers again")
    send(place, "e1")
    until(lambda: len(slack.ledger) == 1, "the post")


def test_a_worker_killed_with_kill_9_is_replaced_and_a_line_says_so(up: Up, place: Path, slack: StandIn) -> None:
    command = up()
    victim = min(workers_of(command))
    os.kill(victim, signal.SIGKILL)
    crash = command.await_line("worker.crashed")
    assert {name: crash[name] for name in ("pid", "code", "detail", "in_a_row", "respawn_s")} == {
        "pid": victim,
        "code": -signal.SIGKILL,
        "detail": "Killed",
        "in_a_row": 1,
        "respawn_s": 0.5,
    }
    until(lambda: len(workers_of(command)) == 3, "a third worker")
    send(place, "e1")
    until(lambda: len(slack.ledger) == 1, "the post")


def test_events_come_in_over_http_also_after_its_process_was_killed(up: Up, place: Path, slack: StandIn) -> None:
    command = up()
    url = url_of(command)
    assert httpx.post(f"{url}/v1/events/errors", content="one").status_code == 202
    victim = http_pid(command, place)
    os.kill(victim, signal.SIGKILL)
    assert command.await_line("serve.crashed")["pid"] == victim
    assert httpx.post(f"{url}/v1/events/errors", content="two", timeout=PATIENCE_S).status_code == 202
    until(lambda: {posted.text for posted in slack.ledger.posted()} == {"one", "two"}, "both posts")


def test_a_token_that_was_taken_back_stays_refused_after_the_http_process_was_killed(up: Up, place: Path) -> None:
    tokens = place / "tokens"
    tokens.write_text("old read secret-old\n", encoding="utf-8")
    command = up(DISPATCHER_SERVE_TOKENS_FILE=str(tokens))
    url = url_of(command)

    def answers() -> list[int]:
        return [
            httpx.get(
                f"{url}/v1/status", headers={"Authorization": f"Bearer secret-{name}"}, timeout=PATIENCE_S
            ).status_code
            for name in ("old", "new")
        ]

    def kill(count: int) -> None:
        os.kill(http_pid(command, place), signal.SIGKILL)
        until(lambda: len(command.named("serve.started")) == count, "another HTTP process")

    tokens.write_text("new read secret-new\n", encoding="utf-8")
    kill(2)
    assert answers() == [401, 200], "the process that begins reads the file"
    tokens.write_text("old read secret-old\n", encoding="utf-8")
    command.signal(signal.SIGHUP)
    command.await_line("tokens.read")
    tokens.write_text("old read\n", encoding="utf-8")
    kill(3)
    assert answers() == [200, 401], "of a file with faults the tokens that were read last stay"
    assert "line 1: 2 words" in command.await_line("tokens.refused")["faults"][0]


def refuses(url: str) -> bool:
    """Whether nobody listens there."""
    try:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))).close()
    except ConnectionRefusedError:
        return True
    return False


def test_nobody_can_connect_while_the_last_posts_are_finished(up: Up, place: Path, slack: StandIn) -> None:
    hold = Hold()
    slack.faults.add(landed(Held(hold)))
    command = up(DISPATCHER_SLACK_TIMEOUT=str(2 * PATIENCE_S))
    url = url_of(command)
    send(place, "e1")
    hold.wait_for_arrival()
    command.signal(signal.SIGTERM)
    until(lambda: refuses(url), "a closed port")
    assert command.named("event.settled") == []
    hold.release()
    assert command.wait() == 0
    assert [line["outcome"] for line in command.named("event.settled")] == ["sent"]


def test_nobody_can_connect_after_the_http_process_was_told_to_stop(up: Up, place: Path, slack: StandIn) -> None:
    command = up()
    url = url_of(command)
    os.kill(http_pid(command, place), signal.SIGTERM)
    until(lambda: refuses(url), "a closed port")
    send(place, "e1")
    until(lambda: len(slack.ledger) == 1, "the post")


def test_a_request_that_has_begun_has_its_time_at_a_stop_whatever_the_time_out_of_slack_is(up: Up) -> None:
    command = up(DISPATCHER_SLACK_TIMEOUT="0.5")
    url_of(command)
    command.signal(signal.SIGTERM)
    assert command.await_line("stop.asked")["within_s"] > STOP_S
    assert command.wait() == 0


def test_a_port_in_use_is_a_warning_and_the_workers_run(redis_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SINK": "console", "DISPATCHER_SERVE_PORT": str(port)}
        with Command("up", env=env, cwd=tmp_path, name="up") as command:
            warning = command.await_line("setting.warning")
            command.await_line("worker.started")
            command.signal(signal.SIGTERM)
            out, _ = command.process.communicate(timeout=PATIENCE_S)
    fault = f"127.0.0.1 port {port} cannot be listened on: Address already in use"
    assert warning["detail"] == f"HTTP is off: {fault}; set DISPATCHER_SERVE_PORT to another, 0 for a free one"
    assert f"  HTTP      no: {fault}\n" in out.decode()
    assert command.process.returncode == 0


def test_without_http_nothing_listens(redis_url: str, tmp_path: Path) -> None:
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SINK": "console"}
    with Command("up", "--no-serve", env=env, cwd=tmp_path, name="up") as command:
        command.await_line("worker.started")
        command.signal(signal.SIGTERM)
        out, _ = command.process.communicate(timeout=PATIENCE_S)
    assert "  HTTP      no, as --no-serve says\n" in out.decode()
    assert command.named("serve.started") == []


def test_tokens_that_are_wrong_are_refused_before_anything_runs(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("olga everything secret\n", encoding="utf-8")
    tokens = str(tmp_path / "tokens")
    said = run("up", DISPATCHER_REDIS_URL=redis_url, DISPATCHER_SINK="console", DISPATCHER_SERVE_TOKENS_FILE=tokens)
    assert (said.code, said.out) == (78, "")
    assert f"{tokens}, line 1: a scope that is not known" in said.err


def test_a_missing_tokens_file_is_told_with_the_command_that_writes_one(redis_url: str) -> None:
    said = run("up", DISPATCHER_REDIS_URL=redis_url, DISPATCHER_SINK="console", DISPATCHER_SERVE_TOKENS_FILE="tokens")
    assert (said.code, said.out) == (78, "")
    assert (
        "the tokens file 'tokens' (--tokens or DISPATCHER_SERVE_TOKENS_FILE) cannot be read: No such file or "
        "directory; 'dispatcher serve --create-tokens' writes one"
    ) in said.err


def test_the_server_stays_while_another_process_uses_it(up: Up, place: Path) -> None:
    command = up()
    with EmbeddedServer.join(place / ".dispatcher", start=False):
        pid = server_pid(place)
        command.signal(signal.SIGTERM)
        assert command.wait() == 0
        assert server_pid(place) == pid


def test_a_closed_terminal_ends_everything(place: Path, env: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    take_it = f"import fcntl, os, termios; fcntl.ioctl(0, {termios.TIOCSCTTY}, 0); "
    process = subprocess.Popen(
        [sys.executable, "-c", f"{take_it}os.execv({sys.executable!r}, {[*PYTHON_DISPATCHER, 'up']!r})"],
        env=environment(env),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        until(lambda: len(processes_in(place)) == 4 + default_processes(), "everything up")
        os.close(ours)
        until(lambda: processes_in(place) == {}, "no process")
    finally:
        process.kill()
        process.wait()

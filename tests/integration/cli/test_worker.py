"""``dispatcher worker`` as a command: what it refuses to start with, and how it stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from dispatcher import Producer
from dispatcher.errors import QueueUnavailable
from dispatcher.server.clients import connect
from dispatcher.server.embedded import EmbeddedServer
from dispatcher.server.keys import Keys
from dispatcher.stand_in import StandIn
from tests.support.commands import Streams, ended, run, run_on, started
from tests.support.processes import Command
from tests.support.screens import Screen
from tests.support.servers import Database, RedisServer


@pytest.mark.usefixtures("tmp_path")
def test_nothing_starts_without_a_way_to_post_or_with_a_wrong_limits_file() -> None:
    Path("bad.yaml").write_text("global: {limits: [10/30]}\nnonsense: 1\n", encoding="utf-8")
    without_token = run("worker")
    assert (without_token.code, without_token.out) == (78, "")
    assert without_token.err.startswith("dispatcher: error: no way to post: set DISPATCHER_SLACK_TOKEN")
    wrong_limits = run("worker", "--processes", "2", DISPATCHER_SINK="console", DISPATCHER_LIMITS_FILE="bad.yaml")
    assert wrong_limits.code == 78
    assert [line.split(":")[3] for line in wrong_limits.err.splitlines()] == ["1", "2"]
    wrong_twice = run("worker", DISPATCHER_LIMITS_FILE="bad.yaml")
    assert wrong_twice.err == wrong_limits.err + without_token.err, "all that keeps it from a start is said at once"
    assert not Path(".dispatcher").exists()


def test_a_burst_starts_the_embedded_server_and_ends_when_all_is_posted(tmp_path: Path) -> None:
    """The second worker finds what the first left; a producer needs a server that runs."""
    with StandIn() as slack:
        env = {
            "DISPATCHER_SLACK_BASE_URL": slack.base_url,
            "DISPATCHER_SLACK_TOKEN": slack.token,
            "DISPATCHER_LIMTS_FILE": "x",
        }
        with Command("worker", env=env, cwd=tmp_path) as worker:
            started = worker.await_line("worker.started")
            assert run("send", "errors", "disk <full>", "--id", "e1").out == "e1\n"
            worker.await_line("event.settled")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        burst = run("worker", "--burst", "--processes", "2", DISPATCHER_LOG_FORMAT="json", **env)
    assert burst.code == 0
    assert started["server"] == "embedded server in .dispatcher"
    assert started["limits"].endswith("config/limits.yaml")
    (warning,) = worker.named("setting.warning")
    assert warning["detail"].startswith("DISPATCHER_LIMTS_FILE is not a known variable and is ignored; did you mean")
    assert [posted.text for posted in slack.ledger.posted()] == ["disk &lt;full&gt;"]
    assert slack.token not in worker.stderr() + burst.err


@pytest.mark.slow
def test_an_embedded_server_that_hangs_is_unreachable_and_a_worker_waits_longer_for_it(tmp_path: Path) -> None:
    """78 would say that the settings are wrong, and no service manager would start the worker again."""
    with EmbeddedServer.join(tmp_path / ".dispatcher") as server, connect(server.url) as client:
        pid = int(client.info("server")["process_id"])
        os.kill(pid, signal.SIGSTOP)
        try:
            with started("worker", "--burst", DISPATCHER_SINK="console") as worker:
                commands = ["status", "serve --port 0", "send errors x", "doctor"]
                with ExitStack() as stack:
                    asked = [stack.enter_context(started(*command.split())) for command in commands]
                    with pytest.raises(QueueUnavailable, match="has not answered for 2 s"):
                        Producer.from_env()
                    answers = [ended(each) for each in asked]
                assert [answer.code for answer in answers] == [69] * len(commands)
                assert worker.poll() is None
                os.kill(pid, signal.SIGCONT)
                done = ended(worker)
        finally:
            os.kill(pid, signal.SIGCONT)
    assert done.code == 0, done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_several_processes_stop_with_0_at_a_signal(redis_url: str, tmp_path: Path, number: signal.Signals) -> None:
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SINK": "console"}
    with Command("worker", "--processes", "2", env=env, cwd=tmp_path) as worker:
        worker.await_line("worker.started")
        worker.signal(number)
        assert worker.wait(5) == 0
    assert "Traceback" not in worker.stderr()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_that_still_looks_for_its_server_stops_with_0_as_well(tmp_path: Path, processes: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{closed.getsockname()[1]}/0"
        env = {"DISPATCHER_REDIS_URL": url, "DISPATCHER_SINK": "console"}
        with Command("worker", "--processes", processes, env=env, cwd=tmp_path) as worker:
            assert worker.await_line("redis.lost")["server"] == url
            worker.signal(signal.SIGTERM)
            assert worker.wait(5) == 0
    assert "Traceback" not in worker.stderr()


@pytest.mark.parametrize("arguments", [("--burst",), (), ("--processes", "2")], ids=" ".join)
def test_a_worker_that_prints_stops_when_nobody_reads_it(
    redis_url: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SINK": "console"}
    Producer(connect(redis_url)).send_many({"category": "errors", "text": str(n)} for n in range(5))
    with Command("worker", *arguments, env=env, cwd=tmp_path) as worker:
        assert worker.process.stdout is not None
        worker.process.stdout.close()
        assert worker.wait() == 0
    assert "Traceback" not in worker.stderr()
    assert worker.named("event.parked")[-1]["code"] == "console_closed"
    status = json.loads(run("status", "--json", **env).out)
    assert (status["paused"], status["totals"]["dead"]) == (None, 0)
    assert run("status", "--check", **env).code == 0


@pytest.mark.usefixtures("tmp_path")
def test_on_a_terminal_it_says_at_its_head_what_it_works_on() -> None:
    with Screen(columns=200) as screen:
        assert (
            run_on(Streams(stderr=screen.stream), "worker", "--burst", DISPATCHER_SINK="console", NO_COLOR="1").code
            == 0
        )
    head, published, first, *_ = screen.text().splitlines()
    assert head.startswith("dispatcher: queue notifications on embedded server in .dispatcher, limits in /")
    assert head.endswith("limits.yaml, to console")
    assert "limits.published" in published
    assert re.fullmatch(r"\d\d:\d\d:\d\dZ worker.started worker=\S+ version=1", first)


def test_an_event_that_breaks_the_loop_stays_leased_and_ends_after_three_workers(
    own_server: RedisServer, tmp_path: Path
) -> None:
    """The message that a recovery edits has lost its channel, as by a hand."""
    env = {"DISPATCHER_REDIS_URL": own_server.url, "DISPATCHER_SINK": "console"}

    def burst() -> Command:
        with Command("worker", "--burst", env=env, cwd=tmp_path) as worker:
            worker.wait()
        return worker

    with own_server.client() as client:
        database: Database = client
        producer, keys = Producer(database), Keys("dispatcher")
        producer.send("errors", "x", dedup_key="db1")
        burst()
        (subject,) = database.scan_iter(f"{keys.subject_prefix}*")
        database.hset(subject, "ts", "1.2")
        producer.send("errors", "y", dedup_key="db1", id="over", status="resolved")
        for _ in range(3):
            broken = burst()
            assert broken.wait() == 70
            assert "KeyError: 'channel'" in broken.named("worker.failed")[0]["exception"]
            (owner,) = database.zrange(keys.leases, 0, -1)
            assert database.smembers(keys.leased(owner.decode())) == {b"over"}
            database.zadd(keys.leases, {owner: 0})  # its lease ends
    assert [line["reason"] for line in burst().named("event.settled")] == ["exhausted"]

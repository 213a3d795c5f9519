"""Token, webhook and password occur nowhere: in no output, no log, no command line, nothing Redis was ever told.

Every way to fail is gone through with all three in use, and then all bytes are searched.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from dispatcher.stand_in import (
    Close,
    CutBody,
    FaultReply,
    Page,
    Reset,
    Setup,
    SlackError,
    StandIn,
    Text,
    TooManyRequests,
    landed,
    not_landed,
)
from tests.support.commands import run
from tests.support.processes import Command, until
from tests.support.secrecy import Evidence
from tests.support.servers import RedisServer

TOKEN: Final = "xoxb-4711-sesame-R7kq2pYw9Zt"
PASSWORD: Final = "s3same @nd/mohn:50%"
LIMITS: Final = """\
global: {limits: [40/30m]}
channels: {default: {pace: none}}
categories: {errors: {limits: [30/30m]}, few: {limits: [1/30m], on_limit: dead-letter}}
"""


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn(setup=Setup(token=TOKEN)) as stand_in:
        yield stand_in


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server with a password that is not on its command line, and a file of everything it is told."""
    with RedisServer(append_only=True, options=("--aof-use-rdb-preamble", "no", "--rdbcompression", "no")) as server:
        with server.client() as client:
            client.config_set("requirepass", PASSWORD)
        yield server


@dataclass(frozen=True, slots=True)
class Scene:
    """A server, a Slack, an environment that uses both but names no way to post, and what is said on the way."""

    slack: StandIn
    server: RedisServer
    env: dict[str, str]
    folder: Path
    evidence: Evidence

    def run(self, *arguments: str, stdin: str = "", **env: str) -> int:
        """Run a command; all it says is evidence."""
        result = run(*arguments, stdin=stdin, **{**self.env, **env})
        self.evidence.add(" ".join(arguments), f"{result.out}\n{result.err}")
        assert "Traceback" not in result.err
        return result.code

    def start(self, *arguments: str) -> Command:
        return Command(*arguments, env=self.env, cwd=self.folder)

    def stop(self, worker: Command) -> None:
        """End a worker, whose log is evidence, after a look at all command lines."""
        self.evidence.add_command_lines()
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert worker.process.stdout is not None
        self.evidence.add("log", worker.process.stdout.read() + worker.stderr().encode())

    def collect(self) -> None:
        """Everything the server was ever told, what it holds now, and its log."""
        for file in self.server.directory.rglob("*"):
            if file.is_file():
                self.evidence.add("appendonly" if "appendonly" in str(file) else file.name, file.read_bytes())
        with self.server.client(password=PASSWORD) as client:
            self.evidence.add_server(client)
            self.evidence.add("clients", repr(client.client_list()))


@pytest.fixture
def scene(slack: StandIn, server: RedisServer, tmp_path: Path) -> Scene:
    (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    env = {
        "DISPATCHER_REDIS_URL": url_of(server, PASSWORD),
        "DISPATCHER_LIMITS_FILE": "limits.yaml",
        "DISPATCHER_SLACK_BASE_URL": slack.base_url,
        "DISPATCHER_RECONCILE_GRACE": "0.2",
        "DISPATCHER_SLACK_TIMEOUT": "2",
        "DISPATCHER_LOG_LEVEL": "debug",
    }
    path = slack.webhook_url.partition("://")[2].partition("/")[2]
    return Scene(slack, server, env, tmp_path, Evidence(frozenset({TOKEN, PASSWORD, path, path.rpartition("/")[2]})))


def url_of(server: RedisServer, password: str) -> str:
    return f"unix://:{quote(password, safe='')}@{server.socket}"


def test_no_failure_of_slack_shows_the_token(scene: Scene) -> None:
    scene.env["DISPATCHER_SLACK_TOKEN"] = TOKEN
    go_through_failures(scene)
    scene.slack.workspace.revoke_token("token_revoked")
    end_paused(scene)


def test_no_failure_of_slack_shows_the_webhook(scene: Scene) -> None:
    file = scene.folder / "webhook"
    file.write_text(scene.slack.webhook_url + "\n", encoding="utf-8")
    scene.env["DISPATCHER_SLACK_WEBHOOK_URL_FILE"] = str(file)
    go_through_failures(scene)
    file.write_text(scene.slack.webhook_url + "x\n", encoding="utf-8")
    end_paused(scene)


def go_through_failures(scene: Scene) -> None:
    """Answers of all kinds, most of which hold the secrets themselves; then nobody answers."""
    slack = scene.slack
    echo = f"<html>no service for {TOKEN} at {slack.webhook_url}</html>"
    pages: list[FaultReply] = [Page(status, echo) for status in (200, 302, 403, 404, 429, 500, 503)]
    others: list[FaultReply] = [
        Text(echo),
        TooManyRequests("1"),
        Reset(),
        Close(),
        CutBody(),
        SlackError("msg_too_long"),
    ]
    slack.faults.add(*(not_landed(reply) for reply in pages), *(landed(reply) for reply in others))
    events = [f'{{"category": "errors", "text": "t{n}", "channel": "#c{n}"}}' for n in range(len(pages + others) + 2)]
    assert scene.run("send", "--stdin", stdin="\n".join(events)) == 0
    assert scene.run("worker", "--burst", "--processes", "2", DISPATCHER_LOG_FORMAT="console") == 0
    assert slack.faults.played == len(pages + others)
    assert scene.run("send", "few", "one") == 0
    with slack.down(), scene.start("up", "--processes", "1") as worker:
        until(lambda: "connection_refused" in worker.stderr(), "a post that was refused")
        scene.run("doctor")
        scene.stop(worker)


def end_paused(scene: Scene) -> None:
    """The credential is not valid any more; everything that looks is asked, and everything is searched."""
    assert scene.run("send", "errors", "late") == 0
    with scene.start("worker") as worker:
        worker.await_line("slack.paused")
        for looks in ("status", "status --json", "doctor --json", "dead list", "dead list --json", "limits show"):
            scene.run(*looks.split())
        scene.stop(worker)
    scene.collect()
    assert b"slack.paused" in scene.evidence.found["log"]
    assert b"errors" in scene.evidence.found["appendonly"]
    assert scene.evidence.leaks() == []


def test_no_failure_of_the_server_or_the_settings_shows_a_secret(scene: Scene) -> None:
    scene.env["DISPATCHER_SLACK_TOKEN"] = TOKEN
    away = f"redis://app:{quote(PASSWORD, safe='')}@127.0.0.1:1/0"
    for command in ("send errors x", "status", "doctor", "dead list"):
        assert scene.run(*command.split(), DISPATCHER_REDIS_URL=away) == 69
        assert scene.run(*command.split(), DISPATCHER_REDIS_URL=url_of(scene.server, f"{PASSWORD}x")) == 78
    assert scene.run("worker", "--burst", DISPATCHER_REDIS_URL=url_of(scene.server, f"{PASSWORD}x")) == 78
    for url in (
        f"redis://:{PASSWORD}@127.0.0.1/0",
        f"http://:{quote(PASSWORD)}@db/0",
        f"redis://db/one?password={quote(PASSWORD)}",
    ):
        assert scene.run("status", DISPATCHER_REDIS_URL=url) == 78
    for faults in (
        {"DISPATCHER_SLACK_TOKEN": f"{TOKEN} {TOKEN}"},
        {"DISPATCHER_SLACK_TOKEN": f"https://{TOKEN}", "DISPATCHER_SLACK_TIMEOUT": TOKEN},
        {"DISPATCHER_SLACK_WEBHOOK_URL": f"https://hooks.test/{TOKEN}"},
        {"DISPATCHER_BATCH": TOKEN, "DISPATCHER_SLACK_BASE_URL": TOKEN},
    ):
        assert scene.run("worker", **faults) == 78
    assert scene.run("send", "--stdin", stdin="{bad\n") == 1
    assert scene.run("demo", "--json") == 0
    scene.collect()
    assert scene.evidence.leaks() == []

"""Alerts from Prometheus and Alertmanager themselves: `make test-prometheus`. pytest alone does not find these.

They need `prometheus` and `prometheus-alertmanager`, of Debian's packages of these names.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Self, TypeAlias

import httpx
import pytest
from ruamel.yaml import YAML

from dispatcher.server.keys import Keys
from dispatcher.stand_in import Posted, StandIn
from tests.support.commands import run
from tests.support.processes import PATIENCE_S, Command, environment, until
from tests.support.prometheus import Disks, alertmanager, await_cluster, prometheus, respond
from tests.support.scrapes import Scrape
from tests.support.servers import Database, free_port
from tests.support.serving import Serving

LIMITS: Final = """\
channels: {default: {pace: none}}
defaults: {limits: [100/30m], channel: "#alerts"}
categories: {disks: {once: {per: 4h}}}
"""
RULE: Final = {
    "alert": "DiskFull",
    "expr": "disk_used_ratio > 0.9",
    "labels": {"severity": "critical"},
    "annotations": {"summary": "disk full on {{ $labels.host }}"},
}

State: TypeAlias = tuple[tuple[str, str], ...]
"""Each host of a notification, and whether its alert fires."""


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn() as stand_in:
        yield stand_in


@pytest.fixture
def env(redis_url: str, slack: StandIn, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    return environment(redis_url, slack.base_url, slack.token, tmp_path / "limits.yaml")


@pytest.fixture
def serving(env: dict[str, str], redis_url: str, tmp_path: Path) -> Iterator[Serving]:
    """With a worker beside it; it takes alerts from who has the token ``pair``."""
    (tmp_path / "alertmanager-token").write_text("secret-of-pair", encoding="utf-8")
    (tmp_path / "tokens").write_text("pair ingest secret-of-pair\neve read,metrics secret-of-eve\n", encoding="utf-8")
    with Command("worker", env=env, cwd=tmp_path), Serving(redis_url, tmp_path, "--tokens", "tokens") as serving:
        yield serving


@pytest.fixture
def disks() -> Iterator[Disks]:
    with Disks() as exporter:
        yield exporter


@contextmanager
def watching(disks: Disks, alertmanagers: list[int], folder: Path) -> Iterator[None]:
    """A Prometheus whose rule fires for each disk that is nearly full, once it has scraped them."""
    rules = folder / "rules.yaml"
    with rules.open("w", encoding="utf-8") as file:
        YAML().dump({"groups": [{"name": "disks", "rules": [RULE]}]}, file)
    disks.used = {"db1": 0.5, "db2": 0.5}
    with prometheus(folder, [disks.port], rules, alertmanagers) as client:
        query = {"query": "count(disk_used_ratio) == 2"}
        until(lambda: client.get("/api/v1/query", params=query).json()["data"]["result"], "a scrape by Prometheus")
        yield


def messages(slack: StandIn, count: int) -> tuple[Posted, ...]:
    """What Slack has, once it is so much."""
    until(lambda: len(slack.ledger.posted()) >= count, f"message {count}")
    found = slack.ledger.posted()
    assert len(found) == count, [message.text for message in found]
    return found


def duplicates(client: httpx.Client) -> float:
    told = Scrape.of(client.get("/metrics").text).samples.get("http_events_total", {})
    return told.get((("result", "duplicate"), ("source", "pair")), 0)


def test_an_alert_is_one_message_however_often_it_repeats_and_its_end_edits_that(  # noqa: PLR0913, PLR0917 - one fixture for each program
    disks: Disks, serving: Serving, slack: StandIn, redis: Database, env: dict[str, str], tmp_path: Path
) -> None:
    with (
        serving.client("secret-of-eve") as client,
        alertmanager(tmp_path, f"{serving.url}/v1/alertmanager", repeat_interval="500ms") as port,
        watching(disks, [port], tmp_path),
    ):
        disks.used = {"db1": 0.95, "db2": 0.5}
        (message,) = messages(slack, 1)
        assert message.text.startswith("[FIRING 1] disk full on db1\nSource: http")

        until(lambda: duplicates(client) >= 2, "repeats within five minutes, which are duplicates")
        redis.delete(*redis.keys(Keys("dispatcher").fold("*")))  # five minutes are over
        until(lambda: client.get("/v1/events?reason=repeat").json()["events"], "a repeat that `once` refuses")
        assert len(slack.ledger.posted()) == 1

        disks.used = {"db1": 0.5, "db2": 0.5}
        until(lambda: slack.ledger.posted()[0].edits, "the message to be edited")
        (message,) = messages(slack, 1)
        assert message.text.startswith(":white_check_mark: ~[FIRING 1] disk full on db1~")

        disks.used = {"db1": 0.95, "db2": 0.5}
        assert [message.edits for message in messages(slack, 2)] == [1, 0]
    assert run("status", "--check", **env).code == 0


class Faults:
    """A proxy before `dispatcher serve` that answers 500 to the first request of each Alertmanager for a notification.

    It waits until both have sent it. The first one's it does not pass on; the other one's it passes on before. What
    they send again it only passes on. ``answered`` are the codes by notification and Alertmanager. A context manager.
    """

    def __init__(self, target: str) -> None:
        self.answered: dict[State, dict[str, list[int]]] = {}
        self._target = target
        self._changed = threading.Condition()
        faults = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                respond(self, *faults.answer(self.path, body, self.headers["Authorization"]))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str, body: bytes, token: str) -> tuple[int, bytes]:
        """The code and the body for a request."""
        notification = json.loads(body)
        sender = notification["externalURL"]
        state = tuple(sorted((alert["labels"]["host"], alert["status"]) for alert in notification["alerts"]))
        with self._changed:
            by_sender = self.answered.setdefault(state, {})
            is_first, is_lost = sender not in by_sender, not by_sender
            codes = by_sender.setdefault(sender, [])
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(by_sender) == 2, PATIENCE_S), "the other one sends it too"
        code, answer = (500, b"") if is_first and is_lost else self._passed_on(path, body, token)
        code = 500 if is_first else code
        with self._changed:
            codes.append(code)
            self._changed.notify_all()
        return code, answer

    def _passed_on(self, path: str, body: bytes, token: str) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", "Authorization": token}
        answer = httpx.post(self._target + path, content=body, headers=headers)
        return answer.status_code, answer.content

    def await_done(self, state: State) -> None:
        """Return when both Alertmanagers have delivered a notification."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: [codes[-1:] for codes in self.answered.get(state, {}).values()] == [[200], [200]], PATIENCE_S
            ), f"{state} is not among {self.answered}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_a_pair_of_alertmanagers_and_a_server_with_faults_make_one_message_of_each_notification(
    disks: Disks, serving: Serving, slack: StandIn, env: dict[str, str], tmp_path: Path
) -> None:
    first, second = free_port(), free_port()
    one: State = (("db1", "firing"),)
    joined: State = (("db1", "firing"), ("db2", "firing"))
    over: State = (("db1", "resolved"), ("db2", "resolved"))
    with ExitStack() as stack:
        faults = stack.enter_context(Faults(serving.url))
        ports = [
            stack.enter_context(alertmanager(tmp_path, f"{faults.url}/v1/alertmanager", "4h", *cluster))
            for cluster in ((first, second), (second, first))
        ]
        await_cluster(*ports)
        stack.enter_context(watching(disks, ports, tmp_path))
        for used, state in (((0.95, 0.5), one), ((0.95, 0.95), joined), ((0.5, 0.5), over)):
            disks.used = dict(zip(("db1", "db2"), used, strict=True))
            faults.await_done(state)
        until(lambda: slack.ledger.posted()[-1].edits, "the newest message to be edited")
        assert faults.answered.keys() == {one, joined, over}
        assert Counter(code for codes in faults.answered.values() for each in codes.values() for code in each) == {
            500: 6,
            200: 6,
        }
    older, newer = messages(slack, 2)
    assert (older.text.splitlines()[0], older.edits) == ("[FIRING 1] disk full on db1", 0)
    assert (newer.texts[0].splitlines()[0], newer.edits) == ("[FIRING 2] DiskFull", 1)
    assert newer.text.startswith(":white_check_mark: ~[FIRING 2]")
    totals = json.loads(run("status", "--json", **env).out)["totals"]
    assert (totals["received"], totals["sent"], totals["digested"]) == (3, 2, 1)

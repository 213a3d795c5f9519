"""Metrics, rules and board before Prometheus itself: `make test-prometheus`. pytest alone does not find these.

They need `promtool` and `prometheus`, of Debian's package prometheus.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import httpx
import pytest

from dispatcher.producer.blocking import Producer
from tests.deploy.test_prometheus import BOARD, CHECKOUT, queries
from tests.support.commands import run
from tests.support.processes import until
from tests.support.prometheus import prometheus
from tests.support.servers import Database
from tests.support.serving import Serving

RULES = CHECKOUT / "deploy" / "prometheus"


def promtool(*arguments: str, stdin: str = "") -> str:
    """What it says; fails where it finds a fault."""
    tool = str(which("promtool"))
    done = subprocess.run([tool, *arguments], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def env(redis: Database, redis_url: str) -> dict[str, str]:
    Producer(redis).send_many([{"category": "errors", "text": str(n)} for n in range(12)])
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SINK": "console"}
    assert run("worker", "--burst", **env).code == 0
    return env


def test_promtool_finds_nothing_to_say_about_the_metrics(env: dict[str, str], tmp_path: Path) -> None:
    assert promtool("check", "metrics", stdin=run("metrics", **env).out) == ""
    with Serving(env["DISPATCHER_REDIS_URL"], tmp_path) as serving, serving.client() as client:
        client.get("/metrics")
        assert promtool("check", "metrics", stdin=client.get("/metrics").text) == ""


def test_promtool_passes_the_rules_and_their_tests() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES / "rules.yaml"))
    assert "SUCCESS" in promtool("test", "rules", str(RULES / "rules.test.yaml"))


@pytest.fixture
def scraping(env: dict[str, str], tmp_path: Path) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes a server of ours and keeps our rules."""
    with (
        Serving(env["DISPATCHER_REDIS_URL"], tmp_path) as serving,
        prometheus(tmp_path, [serving.port], RULES / "rules.yaml") as client,
    ):
        yield client


def test_prometheus_answers_every_query_of_rules_and_board(scraping: httpx.Client) -> None:
    def ask(query: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(scraping.get("/api/v1/query", params={"query": query}).content)
        return answer

    until(lambda: ask("count_over_time(dispatcher_redis_up[1m]) > 2")["data"]["result"], "three scrapes by Prometheus")
    for where, query in queries():
        assert ask(query.replace("$job", ".*"))["status"] == "success", (where, query)
    (up,) = ask('up{job="dispatcher"}')["data"]["result"]
    assert up["value"][1] == "1"
    shown = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "stat"]
    assert shown[0] == "Workers alive"
    (sent,) = ask('max without (instance) (dispatcher_events_total{outcome="sent"})')["data"]["result"]
    assert sent["value"][1] == "10"

"""Scrapes while workers are killed: every one of them balances, and none is dear."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from dispatcher.app.metrics import read_facts
from dispatcher.app.operating import Desk
from dispatcher.app.servers import Server
from dispatcher.producer.blocking import Producer
from dispatcher.settings.environment import Settings
from dispatcher.web.metrics import text
from tests.support.processes import PATIENCE_S, Command
from tests.support.scrapes import Scrape
from tests.support.servers import Database

LIMITS = """\
global: {limits: [200/1s]}
channels: {default: {pace: none}, "#slow": {pace: 5/1s}}
defaults: {limits: [40/1s]}
categories:
  errors: {limits: [20/1s], channel: "#slow"}
  deploys: {limits: [5/1s], on_limit: defer, max_parked: 200}
  reports: {limits: [3/2s], on_limit: digest, digest_delay: 1s}
  audit: {limits: [2/1s], on_limit: dead-letter}
"""
CATEGORIES = ("errors", "deploys", "reports", "audit", "chatter", "mystery")


@contextmanager
def storm(redis: Database, env: dict[str, str], folder: Path) -> Iterator[None]:
    """Events come all the time, and of two workers one is killed about twice a second and another one started."""
    over, chance = threading.Event(), random.Random(7)

    def send() -> None:
        producer, number = Producer(redis), 0
        while not over.wait(0.05):
            number += 1
            rows = [{"category": category, "text": f"{number}", "id": f"{category}-{number % 400}-{n}"}
                    for category in CATEGORIES for n in range(3)]  # fmt: skip
            producer.send_many(rows)

    def kill() -> None:
        with ExitStack() as stack:
            workers = [stack.enter_context(Command("worker", env=env, cwd=folder)) for _ in range(2)]
            while not over.wait(chance.uniform(0.3, 0.7)):
                os.kill(workers.pop(0).pid, signal.SIGKILL)
                workers.append(stack.enter_context(Command("worker", env=env, cwd=folder)))

    threads = [threading.Thread(target=work) for work in (send, kill)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("scrapes", [10, pytest.param(1_000, marks=pytest.mark.slow)])
def test_every_scrape_during_a_storm_with_kills_balances(
    redis: Database, redis_url: str, tmp_path: Path, scrapes: int
) -> None:
    (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    env = {
        "DISPATCHER_REDIS_URL": redis_url,
        "DISPATCHER_LIMITS_FILE": "limits.yaml",
        "DISPATCHER_SINK": "console",
        "DISPATCHER_LEASE": "2",
        "DISPATCHER_SLACK_TIMEOUT": "0.5",
        "DISPATCHER_RECONCILE_GRACE": "0.5",
    }
    desk = Desk(Settings.isolated(redis_url=redis_url), Server(redis_url, "here"), timeout_s=PATIENCE_S)
    found: list[Scrape] = []
    with storm(redis, env, tmp_path):
        while len(found) < scrapes or not {"sent", "dropped"} <= found[-1].by("events_total", "outcome").keys():
            assert len(found) < 10 * scrapes, "workers send and drop"
            scrape = Scrape.of(text(read_facts(desk)))  # each by a look of its own
            assert scrape.faults() == []
            found.append(scrape)
            threading.Event().wait(0.1 if scrapes < 100 else 0.02)
    for earlier, later in pairwise(found):
        for name, samples in earlier.samples.items():
            if name.endswith(("_total", "_count", "_bucket")) and name != "enqueued_total":
                fallen = [labels for labels, value in samples.items() if later.samples[name].get(labels, -1) < value]
                assert not fallen, f"{name} of {fallen} has fallen"

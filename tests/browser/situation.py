"""A dispatcher on a bad evening: real workers, a stand-in, a storm, dead letters, silences, a pause, quiet hours."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from dispatcher.producer.blocking import Producer
from dispatcher.server.keys import Keys
from dispatcher.stand_in import Setup, SlackError, StandIn, not_landed
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from tests.support.processes import Command, until
from tests.support.servers import Database, RedisServer
from tests.support.serving import TOKENS, Serving

CHANNELS: Final = frozenset({"#alerts", "#deploys", "#errors", "#general", "#oncall", "#orders"})
LIMITS: Final = """\
global: {limits: [50/1m, 300/30m]}
channels:
  default: {pace: 10/10s}
  "#deploys": {pace: 1/20s}
defaults: {limits: [20/30m], channel: "#general", fallback: "#general"}
categories:
  alerts:
    limits: [20/10m, 60/30m]
    channel: "#alerts"
    routes: [{match: severity=critical, channel: "#oncall"}]
    on_limit: digest
    guarantee: 10
    once: {by: [alertname, host], per: 4h}
  errors: {limits: [10/30m], channel: "#errors", guarantee: 5}
  deploys: {limits: [6/5m, 30/1h], per_label: {host: [3/10m]}, channel: "#deploys", on_limit: defer}
  chatter: {limits: [{max: 5, window: 10m, shadow: true}, 10/1h]}
  orders: {channel: "#orders", limits: [40/30m], on_limit: dead-letter}
  reports: {channel: "#sales-reports", fallback: none}
quiet:
  evenings: {times: ["00:00-23:59"], zone: Europe/Berlin, categories: [chatter], unless: {priority: high}, then: digest}
"""
STORM: Final = {
    "invoices": [f"invoice {n} cannot be printed" for n in (4711, 4712, 4713)],  # the stand-in refuses three posts
    "reports": [f"sales of week {week} are ready" for week in (44, 45, 46, 47)],  # to a channel that is not there
    "orders": [f"order {n}: 3 items, 57.20" for n in range(20_300, 20_309)],
    "deploys": [f"shop 2.{n} is live on web{n % 4}" for n in range(14)],
    "chatter": [f"{name} joined" for name in ("ada", "bob", "cem", "dot", "eva")],
    "signups": [f"user {n} signed up" for n in range(34)],
    "errors": [f"checkout: payment gateway timed out after 30 s, order {n}" for n in range(20_211, 20_297)],
}
_FULL: Final = ("DiskFull", "91 % of /var are used")
ALERTS: Final = (_FULL, ("ReplicaLate", "4 minutes behind"), _FULL, _FULL)
_KEYS: Final = Keys("dispatcher")
_MINUTES: Final = 48 * 60


@contextmanager
def situation(cwd: Path) -> Iterator[Serving]:
    """The ``dispatcher serve`` that shows it, until the context ends."""
    (cwd / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    (cwd / "tokens").write_text(TOKENS, encoding="utf-8")
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        redis = stack.enter_context(server.client())
        slack = stack.enter_context(StandIn(setup=Setup(channels=CHANNELS)))
        _fill_history(redis)
        env = {"DISPATCHER_REDIS_URL": server.url, "DISPATCHER_LIMITS_FILE": "limits.yaml", **slack.environment}
        stack.enter_context(Command("worker", "--processes", "2", env=env, cwd=cwd, name="worker"))
        serving = stack.enter_context(
            Serving(server.url, cwd, "--tokens", "tokens", DISPATCHER_LIMITS_FILE="limits.yaml")
        )
        _happen(serving, redis, slack)
        yield serving


def _happen(serving: Serving, redis: Database, slack: StandIn) -> None:
    with serving.client("secret-of-olga") as olga:
        for silence in (
            {"matchers": ["host=db2"], "for": "2h", "why": "db2 moves to new disks"},
            {"matchers": ["category=backups"], "for": "1h", "why": "typed the wrong one"},
            {
                "matchers": ["team=web", "severity!=critical"],
                "for": "3h",
                "why": "the shop moves",
                "start": _tomorrow(),
            },
        ):
            olga.post("/v1/silences", json=silence)
        olga.delete("/v1/silences/2")
        olga.put("/v1/pause/orders", json={"why": "the bank does not answer"})
    slack.faults.add(*[not_landed(SlackError("msg_too_long"))] * 3)
    producer = Producer(redis)
    for category, texts in STORM.items():
        producer.send_many({"category": category, "text": text} for text in texts)
        _settle(redis)
    for host, severity in (("db1", "critical"), ("db2", "warning"), ("db3", "warning")):
        for alertname, text in ALERTS:
            labels = {"alertname": alertname, "host": host, "severity": severity}
            producer.send("alerts", f"{alertname} on {host}: {text}", labels=labels)
    _settle(redis)


def _tomorrow() -> float:
    return time.time() + 86_400


def _settle(redis: Database) -> None:
    """Wait until everything has ended or is parked."""
    books = Books(redis, _KEYS, QueueKeys("notifications"))

    def is_done() -> bool:
        seen = books.snapshot()
        lines = (line.next_us or 0 for name, line in seen.lines.items() if not name.startswith("paused:"))
        return not seen.waiting and not seen.in_flight and min(lines, default=math.inf) > seen.now_us

    until(is_done, "all events to be decided")


def _fill_history(redis: Database) -> None:
    """Two days as the books would have counted them."""
    newest = int(redis.time()[0]) // 60
    pipe = redis.pipeline()
    for ago in range(1, _MINUTES):
        day = 1 - math.cos(2 * math.pi * ((newest - ago) % 1440) / 1440)
        received = round(2.2 * day + (ago * 7919 % 5) * 0.6 * day)
        is_storm = 1490 < ago < 1650
        counts: dict[str, Any] = {"sent": received}
        if is_storm:
            counts |= {"dropped": 3 + ago % 4, "digested": ago % 3}
        if ago % 241 == 3:
            counts["dead"] = 1
        counts["received"] = sum(counts.values())
        pipe.hset(_KEYS.minute(newest - ago), mapping=counts)
    pipe.execute()

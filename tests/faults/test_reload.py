"""Limits that change under a fleet of real workers: all follow the version in force, and nobody falls behind it."""

from __future__ import annotations

import json
import signal
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dispatcher.app.limits import LoadedLimits
from dispatcher.core.states import boottime_s
from dispatcher.errors import ConfigError
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.connection import Client
from dispatcher.server.keys import LAYOUT_VERSION
from dispatcher.settings.limits_file import read_limits
from dispatcher.stand_in import Held, Hold, StandIn, landed
from dispatcher.store.decisions import Decisions
from dispatcher.store.snapshot import Books
from dispatcher.store.versions import Unless, Version, Versions
from tests.support.hand_driven_worker import HandDrivenWorker, send
from tests.support.kill_round import KEYS, QUEUE
from tests.support.killable_workers import KillableWorker, KillableWorkers
from tests.support.processes import Command, environment, until
from tests.support.servers import RedisServer
from tests.support.snapshots import is_drained, watch

SOON_S = 5.0
"""Sooner than any heartbeat of these workers, which would wake them too."""

LEASE_S = 60


def limits(each: str, on_limit: str = "drop") -> str:
    return f"""\
global: {{limits: []}}
channels: {{default: {{pace: none}}}}
defaults: {{limits: [{each}], on_limit: {on_limit}}}
"""


@dataclass(frozen=True, slots=True)
class Shop:
    """A server, a Slack, workers started when they are needed, and the limits file that each of them reads."""

    killable: KillableWorkers
    client: Client
    slack: StandIn
    versions: Versions
    env: dict[str, str]
    file: Path

    @property
    def books(self) -> Books:
        return Books(self.client, KEYS, QUEUE)

    def send(self, count: int) -> None:
        Producer(self.client).send_many({"category": "news", "text": "x"} for _ in range(count))

    def start(self, count: int = 1, **env: str) -> list[KillableWorker]:
        """Workers that have begun to take, and so hear signals."""
        started = [self.killable.start({**self.env, **env}) for _ in range(count)]
        for worker in started:
            name = await_line(worker, "worker.started")["worker"]
            until(lambda: self.client.zscore(KEYS.leases, name), "its first take")  # noqa: B023 - called at once
        return started

    def await_ears(self, count: int) -> None:
        """Return when so many workers wait for a token: each of them gets one of the next tokens, and none gets two."""

        def ears() -> int:
            return sum(each["cmd"] == "blpop" and "b" in each["flags"] for each in self.client.client_list())

        until(lambda: ears() == count, f"{count} workers wait for a token")

    def apply(self, text: str) -> Version:
        """As ``limits apply`` does."""
        content = read_limits(text, "x").content
        self.versions.publish(content.text, content.digest, by="ed@desk", file="x.yaml", unless=Unless.SAME)
        return self.in_force()

    def in_force(self) -> Version:
        found = self.versions.in_force()
        assert found is not None
        return found

    def await_sent(self, count: int) -> None:
        until(lambda: len(self.slack.ledger) >= count, f"{count} posts", SOON_S)
        assert len(self.slack.ledger) == count

    def drained(self) -> dict[str, int]:
        """The totals, once every event has its outcome."""
        return watch(self.books, is_drained, 60).overall()


def await_line(worker: KillableWorker, event: str, count: int = 1) -> dict[str, Any]:
    until(lambda: len(worker.lines(event)) >= count, f"{event}; said: {worker.said()[-2000:]}")
    return worker.lines(event)[count - 1]


def code_of(worker: KillableWorker, shop: Shop) -> int | None:
    """The exit code of a worker that has ended."""
    shop.killable.poll()
    return worker.code


@pytest.fixture
def shop(killable: KillableWorkers, own_server: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    file = tmp_path / "limits.yaml"
    file.write_text(limits("10/1h"), encoding="utf-8")
    with StandIn() as slack, connect(own_server.url) as client:
        env = environment(own_server.url, slack.base_url, slack.token, file, DISPATCHER_LEASE=str(LEASE_S))
        yield Shop(killable, client, slack, Versions(client, KEYS), env, file)
        killable.clear()


def test_every_decision_of_four_workers_is_by_the_limits_that_were_in_force(shop: Shop) -> None:
    shop.file.write_text(limits("5/1h"), encoding="utf-8")
    shop.start(4, DISPATCHER_BATCH="16")
    published = [shop.in_force()]
    for most in (30, 12, 45, 7, 60, 20, 90):
        shop.send(400)
        watch(shop.books, lambda snapshot: snapshot.received >= 400 * len(published) - 200, 30)
        published.append(shop.apply(limits(f"{most}/1h")))
    shop.send(400)
    totals = shop.drained()
    assert totals["sent"] + totals["dropped"] == 3_200
    assert len(shop.slack.ledger) == totals["sent"] == 90

    instants = [version.at_us for version in published]
    dropped = [each for each in Decisions(shop.client, KEYS).newest() if each.outcome == "dropped"]
    assert len(dropped) == totals["dropped"]
    for decision in dropped:
        version = published[bisect_right(instants, decision.at_us) - 1]
        assert f'"{decision.limit}"' in version.content, f"{decision.at_us - version.at_us} us after it was published"
    assert len({decision.limit for decision in dropped}) == len(published)


def test_a_raised_limit_wakes_an_idle_fleet_and_a_lowered_one_holds_it(shop: Shop) -> None:
    shop.file.write_text(limits("2/1h", "defer"), encoding="utf-8")
    workers = shop.start(2)
    shop.send(8)
    shop.await_sent(2)
    watch(shop.books, lambda snapshot: snapshot.parked == 6, SOON_S)
    shop.await_ears(2)
    shop.apply(limits("5/1h", "defer"))
    shop.await_sent(5)
    for worker in workers:
        line = await_line(worker, "limits.followed")
        assert (line["version"], line["was"], line["by"], line["file"]) == (2, 1, "ed@desk", "x.yaml")
    shop.await_ears(2)
    shop.apply(limits("3/1h", "defer"))
    for worker in workers:
        await_line(worker, "limits.followed", 2)
    watch(shop.books, lambda snapshot: snapshot.parked == 3, SOON_S)
    shop.apply(limits("6/1h", "defer"))
    shop.await_sent(6)


SLOW = "channels: {default: {pace: 1/1h}}\ndefaults: {limits: []}\n"
FREE = "channels: {default: {pace: none}}\ndefaults: {limits: []}\n"


def test_a_lifted_pace_lets_a_line_go_at_once(shop: Shop) -> None:
    shop.file.write_text(SLOW, encoding="utf-8")
    shop.start(2)
    shop.send(4)
    watch(shop.books, lambda snapshot: (snapshot.totals.get("sent"), snapshot.parked) == (1, 3), SOON_S)
    shop.apply(FREE)
    shop.await_sent(4)


def test_a_pace_that_is_lifted_during_a_post_lets_the_line_go_behind_it(shop: Shop) -> None:
    shop.file.write_text(SLOW, encoding="utf-8")
    answer = Hold()
    shop.slack.faults.add(landed(Held(answer)))
    workers = shop.start(2)
    shop.send(4)
    answer.wait_for_arrival()
    shop.await_ears(2)
    shop.apply(FREE)
    for worker in workers:
        await_line(worker, "limits.followed")
    answer.release()
    shop.await_sent(4)


def test_a_host_that_comes_back_with_an_old_file_follows_the_fleet(shop: Shop) -> None:
    (first,) = shop.start()
    shop.apply(limits("3/1h"))
    (late,) = shop.start()
    assert shop.in_force().number == 2
    (line,) = late.lines("limits.superseded")
    assert (line["version"], line["file"], line["level"]) == (2, str(shop.file), "warning")
    assert line["detail"].startswith(
        "the file says what version 1 did, and version 2 is in force since, published by ed@desk"
    )
    assert late.lines("worker.started")[0]["version"] == 2
    shop.send(20)
    assert shop.drained()["sent"] == 3
    late.signal(signal.SIGHUP)
    await_line(late, "limits.superseded", 2)
    assert first.lines("limits.superseded") == []
    assert shop.in_force().number == 2


def test_a_hangup_publishes_what_is_new_and_refuses_what_is_wrong(shop: Shop) -> None:
    first, second = shop.start(2)
    first.signal(signal.SIGHUP)
    assert await_line(first, "limits.kept")["version"] == 1
    shop.file.write_text("global: {limits: [10/30]}\ncategoris: {}\n", encoding="utf-8")
    first.signal(signal.SIGHUP)
    line = await_line(first, "limits.refused")
    assert (line["version"], line["level"]) == (1, "warning")
    assert [fault.split(": ")[0] for fault in line["faults"]] == [f"{shop.file}:1:19", f"{shop.file}:2:1"]
    assert shop.in_force().number == 1
    shop.file.write_text(limits("4/1h"), encoding="utf-8")
    shop.await_ears(2)
    first.signal(signal.SIGHUP)
    until(lambda: [line for line in first.lines("limits.published") if line["version"] == 2], "its publishing")
    assert await_line(second, "limits.followed")["version"] == 2
    shop.send(20)
    assert shop.drained()["sent"] == 4


def read_fault() -> LoadedLimits:
    raise ConfigError("limits.yaml:1:1: a fault")


def events_of(driven: HandDrivenWorker) -> list[str]:
    said = [json.loads(line)["event"] for line in driven.said.getvalue().splitlines()]
    return [event for event in said if event.startswith(("limits.", "redis."))]


def test_a_hangup_while_the_server_is_away_is_obeyed_once_it_is_back(own_server: RedisServer, tmp_path: Path) -> None:
    with connect(own_server.url) as client:
        driven = HandDrivenWorker(client, 1, tmp_path)
        send(driven, "e1")
        assert len(driven.take().batch) == 1
        driven.read = read_fault
        driven.worker._hear_hangup(signal.SIGHUP, None)  # noqa: SLF001 - as the signal does
        own_server.stop()
        starts = iter([own_server.start])
        driven.bell.meanwhile = lambda: [start() for start in starts]
        assert len(driven.take().batch) == 1
        events = ["limits.published", "limits.refused", "redis.lost", "redis.found", "limits.refused"]
        assert events_of(driven) == events
        assert client.hget(KEYS.metrics, "limits_refused") == b"1"


def test_a_hangup_on_a_full_server_stops_nobody_and_is_obeyed_once_there_is_room(
    own_server: RedisServer, tmp_path: Path
) -> None:
    late_s = 0.0
    with connect(own_server.url) as client:
        driven = HandDrivenWorker(client, 1, tmp_path, clock=lambda: boottime_s() + late_s)
        for number in range(4):
            send(driven, f"e{number}")
        assert len(driven.take().batch) == 1
        driven.read = read_fault
        client.config_set("maxmemory", "1")
        driven.worker._hear_hangup(signal.SIGHUP, None)  # noqa: SLF001 - as the signal does
        assert [len(driven.take().batch) for _ in range(2)] == [1, 1], "it goes on"
        client.config_set("maxmemory", "0")
        once = ["limits.published", "limits.refused", "redis.lost", "redis.found"]
        assert events_of(driven) == once
        late_s = driven.LEASE_S / 2  # the next heartbeat is due
        assert len(driven.take().batch) == 1
        assert events_of(driven) == [*once, "limits.refused"]
        assert client.hget(KEYS.metrics, "limits_refused") == b"1"


def test_under_nohup_a_hangup_is_ignored(shop: Shop, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup leaves it to what it starts
    try:
        worker = Command("worker", env=shop.env, cwd=tmp_path, from_scratch=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    with worker:
        name = worker.await_line("worker.started")["worker"]
        until(lambda: shop.client.zscore(KEYS.leases, name), "its first take")
        shop.file.write_text(limits("4/1h"), encoding="utf-8")
        worker.signal(signal.SIGHUP)
        shop.send(1)
        shop.await_sent(1)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    assert shop.in_force().number == 1


def test_an_empty_file_takes_no_limits_out_of_force(shop: Shop) -> None:
    (first,) = shop.start()
    shop.file.write_text("", encoding="utf-8")
    first.signal(signal.SIGHUP)
    line = await_line(first, "limits.refused")
    said = "the file is empty; if the built-in defaults are meant, write {} into it"
    assert (line["version"], line["faults"]) == (1, [f"{shop.file}: {said}"])
    shop.file.write_text("# nothing yet\n", encoding="utf-8")
    (late,) = shop.start()
    (line,) = late.lines("limits.superseded")
    assert line["detail"].startswith("the file is empty, and version 1 stays in force")
    assert shop.in_force().number == 1
    shop.file.write_text("{}", encoding="utf-8")
    late.signal(signal.SIGHUP)
    assert await_line(late, "limits.followed")["version"] == 2
    shop.file.write_text("", encoding="utf-8")
    late.signal(signal.SIGHUP)
    assert await_line(late, "limits.kept")["version"] == 2, "it says the same"


def test_the_first_worker_publishes_the_defaults_where_its_file_is_empty(shop: Shop) -> None:
    shop.file.write_text("", encoding="utf-8")
    shop.start()
    assert shop.in_force().number == 1


def test_a_parent_passes_a_hangup_on(shop: Shop, tmp_path: Path) -> None:
    with Command("worker", "--processes", "2", env=shop.env, cwd=tmp_path) as parent:
        until(lambda: shop.client.zcard(KEYS.leases) == 2, "the first takes of both")
        assert [line["version"] for line in parent.named("limits.published")] == [1]
        shop.file.write_text(limits("4/1h"), encoding="utf-8")
        parent.signal(signal.SIGHUP)
        until(lambda: len(parent.named("limits.followed")) == 2, "both followed")
        assert [line["version"] for line in parent.named("limits.published")] == [1, 2]
        assert parent.named("limits.superseded") == []
        parent.signal(signal.SIGTERM)
        assert parent.wait() == 0


def test_a_server_that_lost_everything_gets_the_limits_again(shop: Shop) -> None:
    shop.start(DISPATCHER_LEASE="1.5", DISPATCHER_SLACK_TIMEOUT="1")
    shop.apply(limits("3/1h"))
    shop.send(5)
    shop.await_sent(3)
    shop.client.flushall()
    shop.send(5)
    shop.await_sent(6)
    assert '"3/1h"' in shop.in_force().content
    assert shop.client.get(KEYS.layout) == LAYOUT_VERSION.encode()
    assert shop.client.get(QUEUE.binding) == KEYS.namespace.encode()


def test_a_program_that_cannot_read_the_limits_gives_back_what_it_holds_and_ends(shop: Shop) -> None:
    (worker,) = shop.start()
    newer = '{"defaults": {"some_day": true}}'
    shop.versions.publish(newer, "f" * 16, by="eve@far", file="x", unless=Unless.SAME)
    shop.send(3)
    assert until(lambda: code_of(worker, shop), "its end") == 78
    assert "published by eve@far, says what this program does not know" in worker.said()
    snapshot = shop.books.snapshot()
    assert snapshot.imbalances() == []
    assert snapshot.leases == {}
    shop.apply(limits("9/1h"))
    shop.start()
    assert shop.drained()["sent"] == 3

"""Slack is down for longer than a window while events keep coming: nothing admitted is lost, and then all is used."""

from __future__ import annotations

import time
from bisect import bisect_left
from pathlib import Path
from typing import Any, Final

import pytest

from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.stand_in import Outage, Setup, StandIn
from dispatcher.store.snapshot import Books
from tests.support.kill_round import KEYS, QUEUE
from tests.support.killable_workers import KillableWorkers
from tests.support.processes import environment
from tests.support.servers import Database
from tests.support.snapshots import is_drained, watch

WORKERS: Final = 2
SENDERS: Final = 4
CHANNELS: Final = 10
EVERY_S: Final = 0.1
LATENCY_S: Final = 2.0
"""What a post may take from its slot to Slack: the time-out."""

BEFORE_S: Final = 1.5


def lines(killable: KillableWorkers, event: str) -> list[dict[str, Any]]:
    return [line for process in killable.started for line in process.lines(event)]


@pytest.mark.parametrize(
    ("most", "window_s", "down_s", "windows", "share"),
    [
        pytest.param(10, 2, 2.5, 4, 0.9, id="windows of 2 s"),
        pytest.param(60, 12, 13, 5, 0.99, id="windows of 12 s", marks=pytest.mark.slow),
    ],
)
def test_after_an_outage_all_of_the_budget_is_used_and_nothing_admitted_is_lost(  # noqa: PLR0913, PLR0915, PLR0917 - fixtures, figures, and one story
    redis_url: str,
    killable: KillableWorkers,
    tmp_path: Path,
    most: int,
    window_s: int,
    down_s: float,
    windows: int,
    share: float,
) -> None:
    """Connections are refused, then every call is answered 503, each for longer than a window."""
    path = tmp_path / "limits.yaml"
    path.write_text(
        f"""\
global: {{limits: [{most}/{window_s}s]}}
channels: {{default: {{pace: none}}}}
defaults: {{limits: [], channel: "#c0"}}
""",
        encoding="utf-8",
    )
    client: Database = connect(redis_url)
    producer, books = Producer(client), Books(client, KEYS, QUEUE)
    slots: dict[int, float] = {}

    def note_slots() -> bool:
        """The slot of each event, by the number of its first sight, as it was charged last."""
        rows = client.zrange(KEYS.scope("global"), 0, -1, withscores=True)
        slots.update((int(owner), score / US) for owner, score in rows)
        return False

    back_s = BEFORE_S + 2 * down_s
    outages = (Outage(BEFORE_S, BEFORE_S + down_s), Outage(BEFORE_S + down_s, back_s, refuses=False))
    try:
        with StandIn() as probe:  # only to learn that workers are up before the clock of the outages runs
            port = probe.port
        env = environment(
            redis_url, f"http://127.0.0.1:{port}/api/", probe.token, path, DISPATCHER_SENDERS=str(SENDERS)
        )
        env |= {"DISPATCHER_SLACK_TIMEOUT": "2", "DISPATCHER_RECONCILE_GRACE": "1"}
        for _ in range(WORKERS):
            killable.start(env)
        watch(books, lambda snapshot: len(snapshot.leases) == WORKERS, 20)
        with StandIn(port=port, setup=Setup(outages=outages)) as slack:
            began, sent, at_return = time.time(), 0, 0
            until_s = back_s + 40.0
            while time.time() - began < until_s:
                producer.send_many(
                    {"category": "storm", "channel": f"#c{n % CHANNELS}", "text": str(n)} for n in range(sent, sent + 2)
                )
                sent += 2
                assert books.snapshot().imbalances() == []
                note_slots()
                killable.poll(EVERY_S)
                if time.time() - began < back_s:
                    at_return = slack.workspace.posts
                returned = [each for each in slack.ledger.posted() if each.arrived_at - began > back_s]
                if returned:
                    until_s = returned[0].arrived_at - began + windows * window_s
            end = watch(books, lambda snapshot: is_drained(snapshot) | note_slots(), 60 + 4 * window_s)
            killable.stop()
            posted = slack.ledger.posted()
        parked, turned = lines(killable, "event.parked"), lines(killable, "slack.paused")
        settled = {line["event_id"]: line for line in lines(killable, "event.settled")}
    finally:
        killable.clear()

    arrived = sorted(each.arrived_at - began for each in posted)
    after = [at for at in arrived if at > back_s]
    used = bisect_left(after, after[0] + windows * window_s)
    refused = sum(line.get("code") == "connection_refused" for line in parked)
    in_503 = at_return - sum(at < back_s for at in arrived)
    charged = sorted(slots.values())
    closest_s = min(later - earlier for earlier, later in zip(charged, charged[most:], strict=False))
    latencies = [each.arrived_at - slots[int(each.text) + 1] for each in posted]
    print(  # noqa: T201 - the figures, with -s
        f"{sent} sent, {len(arrived)} arrived, first {after[0] - back_s:.1f} s after the return; "
        f"{used} of {windows * most} in {windows} windows = {100 * used / (windows * most):.1f} %; "
        f"refused {refused}, answered 503 {in_503}, latency up to {max(latencies):.2f} s"
    )
    assert used >= share * windows * most
    assert closest_s >= window_s, "a window holds more than it may"
    assert 0 <= min(latencies) <= max(latencies) < LATENCY_S, (
        "each post follows its slot, so Slack's windows are the gate's"
    )
    assert refused + in_503 <= WORKERS * SENDERS + 12, "while it lasts one tries at a time, ever more seldom"
    assert [line["kind"] for line in turned] == ["outage"] * len(turned)
    assert len(turned) >= 1
    admitted = {line["event_id"] for line in parked}
    assert {settled[id_]["outcome"] for id_ in admitted} == {"sent"}
    assert end.overall()["sent"] == len(arrived) == len({each.mark for each in posted})
    assert end.overall().get("dead", 0) == 0
    assert end.received == sent

"""Deferred events in real time: they use all of a limit and never more, in order, over several workers."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Final

import pytest

from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.stand_in import StandIn, TooManyRequests, not_landed
from dispatcher.store.snapshot import Books, Snapshot
from tests.support.kill_round import KEYS, QUEUE
from tests.support.killable_workers import KillableWorkers
from tests.support.models import HELD
from tests.support.processes import environment, until
from tests.support.servers import Database
from tests.support.snapshots import is_drained, watch

WORKERS: Final = 3
COOL_S: Final = 5


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn() as stand_in:
        yield stand_in


def start_workers(killable: KillableWorkers, redis_url: str, slack: StandIn, cwd: Path, limit: str) -> None:
    """Workers of one category, which defers."""
    path = cwd / "limits.yaml"
    path.write_text(
        f"""\
global: {{limits: []}}
channels: {{default: {{pace: 1000/1s}}}}
categories:
  later: {{limits: [{limit}], channel: "#later", on_limit: defer}}
""",
        encoding="utf-8",
    )
    for _ in range(WORKERS):
        killable.start(environment(redis_url, slack.base_url, slack.token, path))


def asked_again(killable: KillableWorkers) -> set[str]:
    """Those whose slot left its window while Slack kept their channel waiting: others may go before them."""
    lines = [line for process in killable.started for line in process.lines("event.parked")]
    admitted, again = set(), set()
    for line in sorted(lines, key=itemgetter("time")):
        if line["reason"] == "pace":
            admitted.add(line["event_id"])
        elif line["event_id"] in admitted:
            again.add(line["event_id"])
    return again


@pytest.mark.parametrize(
    ("count", "window_ms", "excess"),
    [
        pytest.param(40, 1_000, 0.5, id="40 events"),
        pytest.param(300, 2_000, 0.05, id="300 events", marks=pytest.mark.slow),
    ],
)
def test_deferred_events_use_all_of_a_limit_in_order_and_never_more(  # noqa: PLR0913, PLR0917 - fixtures and figures
    redis: Database,
    redis_url: str,
    killable: KillableWorkers,
    slack: StandIn,
    tmp_path: Path,
    count: int,
    window_ms: int,
    excess: float,
) -> None:
    books = Books(redis, KEYS, QUEUE)
    ids = Producer(redis).send_many({"category": "later", "text": str(n)} for n in range(count))
    slots: dict[bytes, int] = {}

    def is_done(snapshot: Snapshot) -> bool:
        slots.update((owner, int(score)) for owner, score in redis.zrange(scope, 0, -1, withscores=True))
        return is_drained(snapshot)

    scope = KEYS.scope("category:later")
    ideal_s = (count // 10 - 1) * window_ms / 1_000
    start_workers(killable, redis_url, slack, tmp_path, f"10/{window_ms}ms")
    try:
        end = watch(books, is_done, 2 * ideal_s + 10)
        killable.stop()
        assert [process.code for process in killable.started] == [0] * WORKERS
        again = asked_again(killable)
    finally:
        killable.clear()

    assert end.overall()["sent"] == count
    posted = [int(each.text) for each in slack.ledger.posted()]
    assert sorted(posted) == list(range(count))
    in_turn = [n for n in posted if ids[n] not in again]
    assert in_turn == sorted(in_turn)
    instants = sorted(slots.values())
    assert instants[-1] < HELD
    assert len(instants) == count
    assert min(later - earlier for earlier, later in zip(instants, instants[10:], strict=False)) >= window_ms * 1_000
    assert ideal_s <= (instants[-1] - instants[0]) / US <= ideal_s * (1 + excess)


def test_a_channel_that_cools_down_holds_up_no_other_of_its_category(
    redis: Database, redis_url: str, killable: KillableWorkers, slack: StandIn, tmp_path: Path
) -> None:
    books, producer = Books(redis, KEYS, QUEUE), Producer(connect(redis_url))
    slack.faults.add(not_landed(TooManyRequests(retry_after=str(COOL_S))))
    start_workers(killable, redis_url, slack, tmp_path, "10/500ms")
    try:
        producer.send("later", "0", channel="#cold")
        (until_us,) = until(lambda: books.snapshot().cooldowns, "the cool-down").values()
        for n in range(1, 21):
            producer.send("later", str(n), channel="#cold")
            producer.send("later", str(n), channel="#warm")
        watch(books, is_drained, 2 * COOL_S + 10)
        killable.stop()
    finally:
        killable.clear()
    posted = slack.ledger.posted()
    warm = [each for each in posted if each.channel == "#warm"]
    cold = [each for each in posted if each.channel == "#cold"]
    assert {int(each.text) for each in warm} == set(range(1, 21))
    assert {int(each.text) for each in cold} == set(range(21))
    assert max(each.arrived_at for each in warm) * US < until_us <= min(each.arrived_at for each in cold) * US

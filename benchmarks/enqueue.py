"""Handing events over: our producer against RQ's own calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from rq import Queue

from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Table
from benchmarks.ours import LANE
from benchmarks.rounds import Contender, Lap, cpu, interleave, rate, ratio, wall
from benchmarks.stage import stage
from benchmarks.storms import Storm
from dispatcher import Producer
from tests.support.servers import Database

SEND: Final = "send, one by one"
SEND_MANY: Final = "send_many"
ENQUEUE: Final = "RQ's enqueue, one by one"
ENQUEUE_MANY: Final = "RQ's enqueue_many"

_JOB: Final = "benchmarks.jobs.rq_job.decide"


def run(effort: Effort) -> Report:
    """The same events, one by one and all in one call."""
    proofs = Proofs()
    with stage(effort.cores) as (_, client):
        laps = interleave(_contenders(client, effort), effort, client, proofs)
    return Report((_table(laps),), tuple(_goals(laps)), proofs.collected())


def _contenders(client: Database, effort: Effort) -> tuple[Contender, ...]:
    few, many = effort.of(500, quick=50), effort.of(5_000, quick=500)
    rows = [(category, text) for category, text, _ in Storm(many).rows()]
    events = [{"category": category, "text": text} for category, text in rows]
    producer, queue = Producer(client), Queue("storm", connection=client)

    def send() -> None:
        for category, text in rows[:few]:
            producer.send(category, text)

    def enqueue() -> None:
        for row in rows[:few]:
            queue.enqueue(_JOB, *row)

    def enqueue_many() -> None:
        queue.enqueue_many([Queue.prepare_data(_JOB, args=row) for row in rows])

    contender = partial(handing_over, client, effort)
    return (
        contender(SEND, send, few),
        contender(ENQUEUE, enqueue, few, queue.key),
        contender(SEND_MANY, lambda: producer.send_many(events), many),
        contender(ENQUEUE_MANY, enqueue_many, many, queue.key),
    )


def handing_over(  # noqa: PLR0913, PLR0917 - the server and the effort, and what differs
    client: Database, effort: Effort, name: str, hand_over: Callable[[], object], count: int, lane: str = LANE
) -> Contender:
    """Hands so many events over, which stand on the lane then."""

    def decide() -> int:
        hand_over()
        return int(client.llen(lane))

    return Contender(name, decide, count, count, client.flushdb, effort.of(2, quick=1), proof="enqueued by")


def _table(laps: dict[str, list[Lap]]) -> Table:
    columns = ("", "events/s", "us", "CPU of both, us", "times RQ's enqueue")
    rows = ((name, rate(each), wall(each), cpu(each), ratio(laps, name, ENQUEUE)) for name, each in laps.items())
    return Table("handing events over", columns, tuple(rows))


def _goals(laps: dict[str, list[Lap]]) -> list[Goal]:
    return [
        Goal(f"{ours} / {theirs}", ratio(laps, ours, theirs), at_least=bound)
        for ours, theirs, bound in (
            (SEND_MANY, ENQUEUE, 40.0),
            (SEND_MANY, ENQUEUE_MANY, 7.0),
            (SEND, ENQUEUE, 3.0),
        )
    ]

"""From ``send`` to Slack on an idle system: the instant of the call against that of the arrival at the stand-in."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Spread, Table, Unproven
from benchmarks.ours import await_sleep, settled, worker
from benchmarks.processes import Process
from benchmarks.slack import Slack, slack
from benchmarks.stage import stage
from dispatcher import Producer

WORKERS: Final = 2
SEED: Final = 20
SHORTEST_S: Final = 0.005
LONGEST_S: Final = 0.045
"""Between two sends: each finds the workers asleep again."""

LIMITS: Final = """\
global: {limits: [1000000/30m]}
channels: {default: {pace: none}}
defaults: {limits: [1000000/30m], channel: "#notifications"}
"""
PERCENTS: Final = (50, 90, 99, 100)


def run(effort: Effort) -> Report:
    """So many sends in each round; the workers and the stand-in stay the same."""
    sends, proofs = effort.of(500, quick=20), Proofs()
    rounds: list[list[float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as made,
        stage(effort.cores) as (server, client),
        slack(Path(made)) as posted,
    ):
        limits = Path(made) / "limits.yaml"
        limits.write_text(LIMITS, encoding="utf-8")
        with worker(server.url, posted, limits, WORKERS) as workers:
            await_sleep(client, workers, WORKERS)
            producer, chance = Producer(client), random.Random(SEED)  # noqa: S311 - gaps, no cryptography
            _round(producer, posted, workers, [0.0] * WORKERS * 5)  # connections and caches are there
            for _ in range(effort.rounds):
                gaps = [chance.uniform(SHORTEST_S, LONGEST_S) for _ in range(sends)]
                took = _round(producer, posted, workers, gaps)
                proofs.add("arrived at the stand-in", len(took), sends)
                rounds.append(took)
            sent = effort.rounds * sends + WORKERS * 5
            workers.until(lambda: settled(client) == sent, f"{sent:,} settled events")
            proofs.add("settled", settled(client), sent)
    figures = {percent: Spread.of(percentile(took, percent) for took in rounds) for percent in PERCENTS}
    columns = ("percent of the sends arrived within", "ms")
    table = Table(
        f"from send to arrival, {WORKERS} workers asleep", columns, tuple((f"{p}", s) for p, s in figures.items())
    )
    goals = (
        Goal("half of the sends arrived, ms", figures[50], at_most=3.0),
        Goal("99 % of the sends arrived, ms", figures[99], at_most=10.0),
    )
    return Report((table,), goals, proofs.collected(), _NOTES)


_NOTES: Final = (
    "From before the call of send, in one process, to when the stand-in has accepted it, in another; one clock.",
    "Gaps between two sends are random: 5 to 45 ms.",
)


def _round(producer: Producer, posted: Slack, workers: Process, gaps: Sequence[float]) -> list[float]:
    """How long each send took to arrive, in milliseconds."""
    posted.reset()
    begun: dict[str, float] = {}
    for n, gap_s in enumerate(gaps):
        time.sleep(gap_s)
        text = f"disk {n} is nearly full on db1"
        begun[text] = time.monotonic()
        producer.send("disks", text)
    workers.until(lambda: len(posted.landed()) >= len(begun), f"{len(begun)} messages at the stand-in")
    took = [(post["arrived_at"] - begun.pop(post["text"])) * 1_000 for post in posted.landed()]
    if begun:
        raise Unproven(f"{len(begun)} messages arrived twice in place of others")
    return took


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]

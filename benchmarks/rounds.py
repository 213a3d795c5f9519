"""Measures contenders in turn, round after round: what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.effort import Effort
from benchmarks.figures import Proofs, Spread, Table
from benchmarks.stage import server_cpu_s
from dispatcher.core.units import US
from tests.support.servers import Database

TURNS: Final = 3
"""How often each has its turn in a round: short turns, so that all meet the same disturbances."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work.

    A turn is ``passes`` times: ``prepare``, which is not measured, then ``decide``, which is; it returns how many were
    admitted, and ``admitted`` is how many have to be. ``proof`` names that count where the work is another one.
    """

    name: str
    decide: Callable[[], int]
    decisions: int
    admitted: int
    prepare: Callable[[], object] = lambda: None
    passes: int = 1
    proof: str = "admitted by"


@dataclass(frozen=True, slots=True)
class Lap:
    """One contender in one round, or in one turn of it, in microseconds for one decision.

    On the clock, inside the server's scripts, and of CPU time, ours and the server's.
    """

    wall_us: float
    server_us: float
    cpu_us: float


def interleave(
    contenders: Sequence[Contender], effort: Effort, client: Database, proofs: Proofs
) -> dict[str, list[Lap]]:
    """The laps of each contender, one a round. Every pass has to admit exactly what is expected."""
    laps: dict[str, list[Lap]] = {contender.name: [] for contender in contenders}
    for contender in contenders:  # connections, scripts and caches are there before the first round
        contender.prepare()
        contender.decide()
    turns_each = effort.of(TURNS, quick=1)
    for _ in range(effort.rounds):
        turns = [[_lap(contender, client, proofs) for contender in contenders] for _ in range(turns_each)]
        for contender, *of_one in zip(contenders, *turns, strict=True):
            laps[contender.name].append(_mean(of_one))
    return laps


def ratio(laps: dict[str, list[Lap]], ours: str, theirs: str) -> Spread:
    """How many times as fast ours is, taken inside each round."""
    return Spread.of(b.wall_us / a.wall_us for a, b in zip(laps[ours], laps[theirs], strict=True))


def dearest(first: Sequence[Lap], larger: Sequence[Sequence[Lap]], cost: Callable[[Lap], float]) -> Spread:
    """The largest of the costs over the first one, taken inside each round; by the medians."""
    over = (Spread.of(cost(b) / cost(a) for a, b in zip(first, each, strict=True)) for each in larger)
    return max(over, key=lambda spread: spread.median)


def wall(laps: Iterable[Lap]) -> Spread:
    """Microseconds for one decision."""
    return Spread.of(lap.wall_us for lap in laps)


def server(laps: Iterable[Lap]) -> Spread:
    """Microseconds for one decision inside the server's scripts."""
    return Spread.of(lap.server_us for lap in laps)


def cpu(laps: Iterable[Lap]) -> Spread:
    """Microseconds of CPU time for one decision, ours and the server's: other load on the machine hardly moves it."""
    return Spread.of(lap.cpu_us for lap in laps)


def rate(laps: Iterable[Lap]) -> Spread:
    """Decisions per second."""
    return Spread.of(US / lap.wall_us for lap in laps)


def decisions_table(title: str, laps: dict[str, list[Lap]], base: str, base_in_words: str) -> Table:
    """What one decision costs each contender, and how many times as fast as ``base`` it is."""
    columns = ("", "decisions/s", "us", "of it in the server, us", "CPU of both, us", f"times {base_in_words}")
    rows = (
        (name, rate(each), wall(each), server(each), cpu(each), ratio(laps, name, base)) for name, each in laps.items()
    )
    return Table(title, columns, tuple(rows))


def _lap(contender: Contender, client: Database, proofs: Proofs) -> Lap:
    seconds, scripts_us, cpu_s = 0.0, 0.0, 0.0
    for _ in range(contender.passes):
        contender.prepare()
        gc.collect()
        before_us, before_s = script_time_us(client), _cpu_s(client)
        begun = time.perf_counter()
        admitted = contender.decide()
        seconds += time.perf_counter() - begun
        cpu_s += _cpu_s(client) - before_s
        scripts_us += script_time_us(client) - before_us
        proofs.add(f"{contender.proof} {contender.name}", admitted, contender.admitted)
    decided = contender.passes * contender.decisions
    return Lap(seconds * US / decided, scripts_us / decided, cpu_s * US / decided)


def _mean(laps: Sequence[Lap]) -> Lap:
    return Lap(
        statistics.fmean(lap.wall_us for lap in laps),
        statistics.fmean(lap.server_us for lap in laps),
        statistics.fmean(lap.cpu_us for lap in laps),
    )


def _cpu_s(client: Database) -> float:
    """What this process and the server have used since they started."""
    return time.process_time() + server_cpu_s(client)


def script_time_us(client: Database) -> int:
    """What the server has spent in scripts since it started."""
    return _script_total(client, "usec")


def command_time_us(client: Database) -> int:
    """What the server has spent in commands since it started, each script with all that it calls counted once."""
    return int(client.info("stats")["eventloop_duration_cmd_sum"])


def script_calls(client: Database) -> int:
    """How many scripts the server has run since it started."""
    return _script_total(client, "calls")


def _script_total(client: Database, field: str) -> int:
    commands = client.info("commandstats")
    return sum(int(commands.get(f"cmdstat_{name}", {}).get(field, 0)) for name in ("evalsha", "eval"))

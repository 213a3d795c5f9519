"""Where the time of a storm goes: ``python -m benchmarks.profile``. A tool for who makes it faster; no benchmark."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.console import Console

from benchmarks.drains import watch
from benchmarks.effort import Cores
from benchmarks.figures import Cell, Proofs, Report, Table
from benchmarks.ours import Ours
from benchmarks.printing import show
from benchmarks.processes import ROOT
from benchmarks.sampled import CLOCKS
from benchmarks.stage import server_cpu_s, stage_with_slack
from benchmarks.storms import Storm
from dispatcher.core.units import US
from tests.support.servers import Database

WIDTH: Final = 140
_CORES: Final = tuple(each.value for each in Cores)


@click.command()
@click.option("--events", type=click.IntRange(100), default=100_000, show_default=True, help="Of the storm.")
@click.option(
    "--clock", type=click.Choice(tuple(CLOCKS)), default="wall", show_default=True, help="What samples follow."
)
@click.option("--top", type=click.IntRange(1), default=25, show_default=True, help="Rows of a table.")
@click.option("--cores", type=click.Choice(_CORES), default=_CORES[0], show_default=True, help="Of workers and server.")
def main(events: int, clock: str, top: int, cores: str) -> None:
    """Drain one storm with one worker process, and say where its time went, for one event."""
    show(Console(width=None if sys.stdout.isatty() else WIDTH), profile(Storm(events), clock, top, Cores(cores)))


def profile(storm: Storm, clock: str, top: int, cores: Cores) -> Report:
    """Who worked and who waited, the server's commands, and the functions."""
    proofs = Proofs()
    with stage_with_slack(cores) as (server, client, posted, folder):
        file = folder / "samples.json"
        command = (sys.executable, "-m", "benchmarks.sampled", str(file), clock, "worker")
        ours = Ours("ours", storm, server.url, posted, folder, command=command)
        ours.fill(client)
        with ours.workers(client) as worker:
            before, server_s = _commands(client), server_cpu_s(client)
            os.kill(worker.pid, signal.SIGUSR1)
            ours.release(client, worker)
            watch(ours, client, worker)
            os.kill(worker.pid, signal.SIGUSR1)
            server_s = server_cpu_s(client) - server_s
            commands = [each.since(before.get(each.name)) for each in _commands(client).values()]
            worker.until(file.exists, "the samples")
            ours.prove(client, worker, proofs)
        seen = json.loads(file.read_text(encoding="utf-8"))
    tables = (
        _shares(seen["used"], server_s, storm),
        _commands_table(commands, top, storm),
        *(_functions(seen, top, storm, by) for by in _BY),
    )
    return Report(tables, (), proofs.collected(), _NOTES)


_NOTES: Final = (
    "The drain is measured with its sampling, which costs a few percent, and with one HMGET of this tool every 10 ms.",
    "What a function calls in C, waiting for an answer too, is its own. EVALSHA holds the commands of its script.",
)


@dataclass(frozen=True, slots=True)
class _Command:
    """What the server says of one command."""

    name: str
    calls: int
    us: int

    def since(self, before: _Command | None) -> _Command:
        return self if before is None else _Command(self.name, self.calls - before.calls, self.us - before.us)


def _commands(client: Database) -> dict[str, _Command]:
    said = client.info("commandstats")
    named = {name.removeprefix("cmdstat_"): row for name, row in said.items()}
    return {name: _Command(name, int(row["calls"]), int(row["usec"])) for name, row in named.items()}


def _shares(used: dict[str, float], server_s: float, storm: Storm) -> Table:
    each = US / storm.events
    process = used["user"] + used["kernel"]
    rows: tuple[tuple[Cell, ...], ...] = (
        ("on the clock", used["wall"] * each),
        ("CPU of the worker's loop", used["main"] * each),
        ("CPU of its senders and other threads", (process - used["main"]) * each),
        ("of both, in the kernel", used["kernel"] * each),
        ("the loop waits", (used["wall"] - used["main"]) * each),
        ("CPU of the server", server_s * each),
    )
    return Table(f"{storm.events:,} events: microseconds for one", ("", "us"), rows)


def _commands_table(commands: list[_Command], top: int, storm: Storm) -> Table:
    rows = tuple(
        (each.name, each.calls, each.calls * 1_000 / storm.events, each.us / storm.events)
        for each in sorted(commands, key=lambda each: -each.us)[:top]
        if each.calls > 0
    )
    return Table("commands of the server", ("", "calls", "for 1,000 events", "us for one event"), rows)


def _functions(seen: dict[str, Any], top: int, storm: Storm, by: str) -> Table:
    """Without those that were there at every look, which say nothing."""
    samples = max(1, seen["samples"])
    us = seen["used"]["wall"] * US / storm.events
    found = sorted((each for each in seen["functions"] if each["within"] < samples), key=lambda each: -each[by])
    rows = tuple(
        (
            each["name"],
            _shown(each["place"]),
            100 * each["within"] / samples,
            100 * each["own"] / samples,
            us * each[by] / samples,
        )
        for each in found[:top]
    )
    columns = ("function", "place", "% with what it calls", "% its own", "us for one event")
    return Table(f"{samples:,} looks at the loop, {_BY[by]}", columns, rows)


_BY: Final = {"within": "each function with what it calls", "own": "each function by itself"}


def _shown(place: str) -> str:
    """Below the project's folder, or the last parts of the path."""
    return place.removeprefix(f"{ROOT}/") if place.startswith(str(ROOT)) else "/".join(place.split("/")[-3:])


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.profile")

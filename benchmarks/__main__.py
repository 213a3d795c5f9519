"""``python -m benchmarks [NAME ...]``: runs them, prints their tables, writes a JSON file for each."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import click
from redis import RedisError
from rich.console import Console

from benchmarks import (
    deferral,
    enqueue,
    gate,
    growth,
    idle,
    latency,
    libraries,
    memory,
    once,
    peers,
    post,
    queues,
    scripts,
    serving,
    slots,
    start,
    starvation,
    storm,
    viewers,
    volume,
)
from benchmarks.comparison import compare
from benchmarks.effort import Cores, Effort
from benchmarks.figures import Unproven
from benchmarks.libraries import FOLDER, find
from benchmarks.page import PAGE, is_full
from benchmarks.printing import machine, show, show_compared, write
from dispatcher.errors import DispatcherError
from tests.support.servers import SERVER_BINARY

BENCHMARKS: Final = {
    "gate": gate.run,
    "growth": growth.run,
    "volume": volume.run,
    "slots": slots.run,
    "peers": peers.run,
    "storm": storm.run,
    "enqueue": enqueue.run,
    "serving": serving.run,
    "viewers": viewers.run,
    "deferral": deferral.run,
    "latency": latency.run,
    "post": post.run,
    "idle": idle.run,
    "memory": memory.run,
    "once": once.run,
    "starvation": starvation.run,
    "start": start.run,
    "scripts": scripts.run,
}
NEEDED: Final[dict[str, tuple[str, ...]]] = {"peers": libraries.PACKAGES, "storm": queues.PACKAGES}
"""What has to be installed to run all of a benchmark."""

ONCE: Final = frozenset({"deferral", "memory", "scripts", "slots"})
"""They run once, however many rounds are asked for."""

RESULTS: Final = Path(__file__).parent / "results"
LOOKS: Final = RESULTS / "looks"
"""Where a run leaves its files that is not full, so that none takes the place of one that is."""

LEAST_ROUNDS: Final = 5
CORES: Final = tuple(each.value for each in Cores)
WIDTH: Final = 140
"""Columns where no terminal says how many there are."""


@click.command()
@click.argument("names", nargs=-1, metavar=f"[{'|'.join(BENCHMARKS)}]...")
@click.option(
    "--rounds", type=click.IntRange(1), default=7, show_default=True, help="Rounds of each; 5 at least count."
)
@click.option("--quick", is_flag=True, help="Tiny sizes: whether everything works, no figures to quote.")
@click.option("--without-peers", is_flag=True, help="Leave the other libraries out.")
@click.option("--cores", type=click.Choice(CORES), default=CORES[0], show_default=True, help="Of client and server.")
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Of what scripts and volume build.",
)
@click.option("--results", type=click.Path(path_type=Path), default=None, help="Folder of the JSON files.")
def main(  # noqa: PLR0913 - one for each option
    names: tuple[str, ...],
    rounds: int,
    cores: str,
    scale: float,
    results: Path | None,
    *,
    quick: bool,
    without_peers: bool,
) -> None:
    """Measure; exit 1 when a run did not do its work. A goal that is missed is shown, and no failure."""
    chosen = names or tuple(BENCHMARKS)
    for name in chosen:
        if name not in BENCHMARKS:
            raise click.UsageError(f"benchmark {name!r}, expected one of {', '.join(BENCHMARKS)}")
    needed = {package for name in chosen for package in NEEDED.get(name, ())}
    missing = sorted(needed - set(find(sorted(needed))))
    if missing and not without_peers:
        raise click.UsageError(
            f"not installed: {', '.join(missing)}; make bench installs them into {FOLDER}, or say --without-peers"
        )
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    facts = {**machine(SERVER_BINARY), "cores used": cores, "rounds": rounds, "quick": quick, "scale": scale}
    console.print(", ".join(f"{key} {value}" for key, value in facts.items()), highlight=False)
    if rounds < LEAST_ROUNDS or quick:
        console.print("a look, no measurement: quote runs of 5 rounds and more without --quick", style="yellow")
    folder = results or (RESULTS if is_full(facts) else LOOKS)
    page, compared = PAGE.read_text(encoding="utf-8"), []
    for name in chosen:
        begun = time.monotonic()
        try:
            report = BENCHMARKS[name](
                Effort(rounds, quick=quick, peers=not without_peers, cores=Cores(cores), scale=scale)
            )
        except (Unproven, RedisError, DispatcherError) as error:  # a machine that is too busy answers too late
            console.print(f"{name} did not do its work: {error}", style="red", markup=False)
            sys.exit(1)
        path = write(folder, name, facts | ({"rounds": 1} if name in ONCE else {}), report)
        show(console, report)
        compared.append(compare(name, report.goals, page))
        console.print(f"{name}: {time.monotonic() - begun:.0f} s, {path}", style="dim", highlight=False)
    if is_full(facts) and cores == Cores.FREE:  # as the page's figures were taken
        show_compared(console, compared)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")

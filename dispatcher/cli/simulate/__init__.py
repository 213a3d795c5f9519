"""``dispatcher simulate``: what limits would have done to recorded events."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from dispatcher.cli.options import Parsed, as_json
from dispatcher.cli.terminal import Terminal
from dispatcher.core.units import format_duration, parse_duration

_FILE = click.Path(path_type=Path)
_LOST: Final = re.compile(r"\s*lose\s+([0-9]{1,2}|[0-9]{0,2}\.[0-9]+)%\s*")


def _lost(text: str) -> float:
    """Per cent, from ``lose 1%``."""
    found = _LOST.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}, expected 'lose X%', for example 'lose 1%'")
    return float(found[1])


def _recorded_us(text: str) -> int:
    from dispatcher.simulate.recorded import MOST_US

    span_us = parse_duration(text)
    if span_us > MOST_US:
        raise ValueError(f"{text!r}: the books keep {format_duration(MOST_US)}, expected no more")
    return span_us


@click.command(short_help="Show what limits would have done to recorded events.")
@click.argument("trace", required=False, metavar="[RECORDING]")
@click.option(
    "--limits", "limits", type=_FILE, metavar="FILE", help="What would be in force. Default: the limits file."
)
@click.option("--against", metavar="FILE|live", help="Also show what these limits would have done, or those in force.")
@click.option(
    "--from-redis",
    "recorded_us",
    type=Parsed("SPAN", _recorded_us),
    help="In place of a recording: what came in the last SPAN, as the books counted it. At most 48h.",
)
@click.option("--suggest", type=Parsed("TEXT", _lost), metavar="'lose X%'", help="Print limits that lose no more.")
@click.option("--svg", type=_FILE, metavar="FILE", help="Draw a picture.")
@click.option("--events", type=_FILE, metavar="FILE", help="Write what became of each event, in lines of JSON.")
@click.option("--expect", type=_FILE, metavar="FILE", help="Exit with 1 unless the cases in this file hold.")
@click.option("--seed", type=int, default=20, show_default=True, help="Seed for the random numbers.")
@as_json
@click.pass_obj
def simulate(  # noqa: PLR0913, PLR0917 - click passes by name
    terminal: Terminal,
    /,
    trace: str | None,
    limits: Path | None,
    against: str | None,
    recorded_us: int | None,
    suggest: float | None,
    svg: Path | None,
    events: Path | None,
    expect: Path | None,
    seed: int,
    as_json: bool,  # noqa: FBT001 - as above
) -> int:
    """Show what limits would have done to recorded events.

    RECORDING is a file, or - for stdin: lines of JSON with "time" and "category" ("labels", "priority", "id",
    "channel", "max_age" may follow), a log of the workers in JSON, or CSV with a header. Events of one second come
    together.

    The workers' own code and scripts decide, on made-up time, on a server of their own: nothing is posted, and no other
    server is written to.
    """
    if (trace is None) is (recorded_us is None):
        raise click.UsageError("Expected RECORDING or --from-redis, and not both.")
    if suggest is not None and against is not None and not as_json and svg is None:
        raise click.UsageError("With --suggest, --against shows something only beside --json or --svg.")
    from dispatcher.cli.simulate.run import Asked, run

    return run(
        terminal, Asked(trace, limits, against, recorded_us, suggest, svg, events, expect, seed, as_json=as_json)
    )

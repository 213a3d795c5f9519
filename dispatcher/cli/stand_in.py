"""``dispatcher slack-stand-in``: the local Slack in the foreground."""

from __future__ import annotations

import re
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.cli.interruption import Interruption
from dispatcher.cli.options import FiniteRange, Parsed
from dispatcher.cli.terminal import Terminal
from dispatcher.errors import ConfigError

if TYPE_CHECKING:
    from dispatcher.stand_in import Faults, Setup

USUAL_PORT: Final = 8901

_SEEDS: Final = 1_000_000


def _from_to(text: str) -> tuple[float, float]:
    """Two instants in seconds: ``30-60``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)-([0-9]+(?:\.[0-9]+)?)", text)
    if match is None or not float(match[1]) < float(match[2]):
        raise ValueError(f"{text!r} is no span, expected two instants in seconds such as 30-60.")
    return float(match[1]), float(match[2])


_FROM_TO: Final = Parsed("from-to", _from_to)


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=USUAL_PORT, show_default=True, help="0 takes a free one."
)
@click.option(
    "--rate",
    type=click.Choice(["realistic", "strict", "none"]),
    default="realistic",
    show_default=True,
    help="Posts to one channel: realistic lets 25 pass at once and one a second after that, strict one a second. "
    "Both take 300 posts a minute in all, 50 edits and 50 history calls.",
)
@click.option(
    "--fault-rate",
    type=FiniteRange(0, 1),
    default=0.0,
    metavar="SHARE",
    help="The share of posts, history calls and edits that go wrong by chance: 0.2 is every fifth.",
)
@click.option(
    "--faults",
    type=click.Choice(["transient", "every"]),
    default="transient",
    show_default=True,
    help="What may go wrong: what passes without an operator, or also what needs an operator or ends an event.",
)
@click.option("--seed", type=int, metavar="NUMBER", help="The same faults as the last time with this number.")
@click.option(
    "--down",
    type=_FROM_TO,
    multiple=True,
    metavar="FROM-TO",
    help="Seconds in which it refuses connections: 30-60.",
)
@click.option(
    "--history-lag",
    type=FiniteRange(0),
    default=0.0,
    metavar="SECONDS",
    help="Delay until a posted message appears in the history.",
)
@click.option(
    "--history-items",
    type=click.IntRange(1, 999),
    metavar="COUNT",
    help="The most that a history call returns, with one call a minute: 15 for apps outside of Slack's marketplace.",
)
@click.option("--scopes", metavar="A,B", help="The scopes of its token; all that the dispatcher uses if not given.")
@click.pass_obj
def slack_stand_in(  # noqa: PLR0913 - one parameter per option
    terminal: Terminal,
    *,
    port: int,
    rate: str,
    fault_rate: float,
    faults: str,
    seed: int | None,
    down: tuple[tuple[float, float], ...],
    history_lag: float,
    history_items: int | None,
    scopes: str | None,
) -> None:
    """Run a local Slack that shows what is posted to it.

    It listens on 127.0.0.1 only, and forgets everything when it ends. Without options it takes all that Slack would
    take.
    """
    from dispatcher.stand_in import StandIn

    is_idle = not fault_rate and (seed is not None or faults != "transient")
    seed = secrets.randbelow(_SEEDS) if seed is None else seed
    setup = _setup(rate, down, history_lag, history_items, scopes)
    stand_in = StandIn(port, setup, _faults(fault_rate, faults, seed))
    with Interruption() as interruption:
        try:
            with _hint_at_other_ports(port), stand_in:
                terminal.tell(f"Slack stand-in: {stand_in.url} shows what is posted.")
                terminal.tell("Workers post to it with these lines in .env, or with 'export' before each:")
                terminal.print(
                    f"  DISPATCHER_SLACK_BASE_URL={stand_in.base_url}\n  DISPATCHER_SLACK_TOKEN={stand_in.token}"
                )
                for line in _modes(setup, fault_rate, seed):
                    terminal.tell(line)
                if is_idle:
                    terminal.tell(
                        "Nothing goes wrong by chance: --faults and --seed have no effect without --fault-rate."
                    )
                terminal.tell("Ctrl-C ends it.")
                while True:
                    interruption.raise_if_asked()
                    signal.pause()
        except KeyboardInterrupt:
            count = len(stand_in.ledger)
            terminal.say(f"ended; {count} {'message was' if count == 1 else 'messages were'} posted")


@contextmanager
def _hint_at_other_ports(port: int) -> Iterator[None]:
    """Add to the words about a port that cannot be used who has it, if that can be told, and how to take another."""
    try:
        yield
    except ConfigError as error:
        from dispatcher.cli.ports import holder

        process = holder(port)
        held = f"; process {process} has it" if process else ""
        raise ConfigError(f"{error}{held}; --port takes another one, --port 0 a free one") from error


def _setup(
    rate: str,
    down: tuple[tuple[float, float], ...],
    history_lag: float,
    history_items: int | None,
    scopes: str | None,
) -> Setup:
    from dispatcher.stand_in import REALISTIC, SCOPES, STRICT, Outage, Setup

    more: dict[str, Any] = {
        "outages": tuple(Outage(*span) for span in down),
        "history_lag_s": history_lag,
        "history_items": history_items,
        "scopes": SCOPES if scopes is None else tuple(filter(None, map(str.strip, scopes.split(",")))),
    }
    rates = {"realistic": REALISTIC, "strict": STRICT}
    return Setup.paced(rates[rate], **more) if rate in rates else Setup(**more)


def _faults(share: float, which: str, seed: int) -> Faults:
    from dispatcher.stand_in import EVERY_ROW, TRANSIENT, Chance, Faults

    return Faults(Chance(seed, share, EVERY_ROW if which == "every" else TRANSIENT) if share else None)


def _modes(setup: Setup, fault_rate: float, seed: int) -> Iterator[str]:
    """What is not as usual, a sentence each."""
    if fault_rate:
        share = f"{100 * fault_rate:.3g}%"
        yield f"{share} of posts, history calls and edits go wrong; --seed {seed} repeats the same faults."
    for outage in setup.outages:
        yield f"It is down from {outage.begins_s:g} s to {outage.ends_s:g} s after now."
    if setup.history_lag_s:
        yield f"Messages show up in the history after {setup.history_lag_s:g} s."
    if setup.history_items is not None:
        yield f"A history call returns {setup.history_items} messages, and there is one a minute."

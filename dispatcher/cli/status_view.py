"""The status as tables. Imports rich, so only for drawing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dispatcher.cli.drawing import Bar, plain_table, share_bar
from dispatcher.cli.status import COUNTS, Status
from dispatcher.content import one_line
from dispatcher.limiter import Usage
from dispatcher.model import US, format_duration
from dispatcher.outcome import NO_CATEGORY
from dispatcher.store.snapshot import Snapshot

_ALWAYS: Final = ("sent", "dropped", "dead", "parked")
_STYLES: Final = {"sent": "green", "dropped": "yellow", "dead": "red", "parked": "cyan"}
_CHANNEL: Final = "channel:"
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Rows:
    """The most rows of each table; of those beyond, one says how many they are."""

    categories: int
    others: int


def tables(status: Status, rows: Rows | None = None) -> Iterator[RenderableType]:
    """What there is to show, in order; a table without rows is left out.

    With ``rows``, those that say most are shown, in their usual order.
    """
    rows = rows or Rows(sys.maxsize, sys.maxsize)
    yield _summary(status)
    for table in (
        _categories(status, rows.categories),
        _channels(status.look, rows.others),
        _workers(status, rows.others),
    ):
        if table.row_count:
            table.show_edge = False
            yield Text("")
            yield table


def span(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3m 5s``, ``2h 10m``, ``4d 3h``."""
    if seconds < 10:  # noqa: PLR2004 - below it tenths matter
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for name, unit_s, next_name, next_s in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if whole >= unit_s:
            return f"{whole // unit_s}{name} {whole % unit_s // next_s}{next_name}"
    return f"{whole}s"


def _summary(status: Status) -> Table:
    look, totals = status.look, status.look.overall()
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    grid.add_row("Queue", f"{look.waiting} waiting, {look.in_flight} in flight, {look.parked} parked")
    ended = [_counted(name, totals[name]) for name in (*_ALWAYS[:3], *_others(totals))]
    grid.add_row("Events", Text(", ").join([Text(f"{totals['enqueued']} enqueued"), *ended]))
    if look.timers:
        when = "" if look.pause else f", the next {_in((look.next_timer_us or look.now_us) - look.now_us)}"
        grid.add_row("Timers", f"{look.timers} parked{when}")
    if look.dead_letters:
        grid.add_row("Dead letters", f"{look.dead_letters} kept")
    if look.pause is not None:
        grid.add_row("Posting", Text(_pause(look), style="bold red"))
    if not status.workers:
        grid.add_row("Workers", Text("none is running", style="yellow"))
    return grid


def _counted(name: str, count: int) -> Text:
    return Text(f"{count} {name}", style=_STYLES.get(name, "") if count else "")


def _others(totals: dict[str, int]) -> list[str]:
    return [name for name in (*COUNTS, "replayed", "notices") if name not in _ALWAYS and totals.get(name)]


def _pause(look: Snapshot) -> str:
    if look.pause is None:
        return ""
    since_s, next_s = ((look.now_us - look.pause.since_us) / US, (look.pause.probe_us - look.now_us) / US)
    tries = f"tries again in {span(next_s)}" if next_s > 0 else "tries again with the next event"
    why = one_line(f"{look.pause.code}: {look.pause.detail}" if look.pause.detail else look.pause.code)
    return f"paused for {span(max(0.0, since_s))}, {tries}: {why}"


def _bar(usage: Usage) -> Bar:
    return share_bar(usage.used, usage.limit.max, "red" if usage.wait_us else "green")


def _used(usage: Usage) -> Text:
    return Text(f"{usage.used}/{usage.limit.max} in {format_duration(usage.limit.window_us)}")


def _room(usage: Usage) -> Text:
    if not usage.wait_us:
        return Text("")
    if usage.wait_us > usage.limit.window_us:  # longer than any post counts: what is parked has to be posted first
        return Text("held", style="red")
    return Text(f"in {span(usage.wait_us / US)}", style="red")


def _categories(status: Status, rows: int) -> Table:
    totals = {name: sum(status.look.by_category(name).values()) for name in COUNTS}
    shown = [name for name in COUNTS if name in _ALWAYS or totals[name]]
    table = plain_table()
    table.add_column("Category", overflow="fold", min_width=10)
    for name in shown:
        table.add_column(name.capitalize(), justify="right", no_wrap=True)
    for heading in ("Use", "Limit", "Room"):
        table.add_column(heading, no_wrap=True)
    counts = status.counts()
    chosen = _most(
        list(status.categories), rows, lambda name: (_fullest(status.categories[name]), counts[name]["parked"])
    )
    for category in chosen:
        name = "(unreadable)" if category == NO_CATEGORY else one_line(category)
        table.add_row(Text(name), *_figures(counts[category], shown), *limit_cells(status.categories[category]))
    _say_how_many_more(table, len(status.categories) - len(chosen))
    table.add_section()
    table.add_row(Text("all together", "bold"), *_figures(totals, shown), *limit_cells(status.together))
    return table


def _figures(counts: Mapping[str, int], shown: Sequence[str]) -> list[Text]:
    return [Text(str(counts[name]), style=_STYLES.get(name, "") if counts[name] else "dim") for name in shown]


def limit_cells(usages: Sequence[Usage]) -> tuple[RenderableType, RenderableType, RenderableType]:
    """How much of each limit is used: as a bar, in figures, and when there is room."""
    if not usages:
        return "", Text("none", style="dim"), ""
    lines = Text("\n")
    return Group(*map(_bar, usages)), lines.join(map(_used, usages)), lines.join(map(_room, usages))


def _fullest(usages: Sequence[Usage]) -> float:
    return max((usage.used / usage.limit.max for usage in usages), default=0.0)


def _most(items: list[_Item], rows: int, weight: Callable[[_Item], Any]) -> list[_Item]:
    """The weightiest items, in their own order; as many as leave room for a row about the others."""
    if len(items) <= rows:
        return items
    ranked = sorted(range(len(items)), key=lambda place: weight(items[place]), reverse=True)
    return [items[place] for place in sorted(ranked[: rows - 1])]


def _say_how_many_more(table: Table, count: int) -> None:
    if count:
        table.add_row(Text(f"and {count} more", style="dim"))


def _channels(look: Snapshot, rows: int) -> Table:
    table = plain_table()
    table.add_column("Channel", overflow="fold")
    table.add_column("Waiting", justify="right", no_wrap=True)
    for heading in ("Next post", "Cool-down"):
        table.add_column(heading, no_wrap=True)
    lines = {name.removeprefix(_CHANNEL): line for name, line in look.lines.items()}
    channels = sorted(lines.keys() | look.cooldowns.keys())
    chosen = _most(channels, rows, lambda channel: lines[channel].waiting if channel in lines else 0)
    for channel in chosen:
        line, until_us = lines.get(channel), look.cooldowns.get(channel, 0)
        if line is None:
            following = ""
        elif look.pause is not None:
            following = "when posting goes on"
        elif line.next_us is None:
            following = "after the one in flight"
        else:
            following = _in(line.next_us - look.now_us)
        cooldown = span((until_us - look.now_us) / US) if until_us > look.now_us else ""
        table.add_row(Text(one_line(channel)), str(line.waiting if line else 0), following, Text(cooldown, "red"))
    _say_how_many_more(table, len(channels) - len(chosen))
    return table


def _in(wait_us: int) -> str:
    return f"in {span(wait_us / US)}" if wait_us > 0 else "now"


def _workers(status: Status, rows: int) -> Table:
    table = plain_table()
    for heading in ("Worker", "Host"):
        table.add_column(heading, overflow="fold")
    for heading in ("PID", "State", "Heartbeat"):
        table.add_column(heading, no_wrap=True)
    chosen = _most(list(status.workers), rows, lambda each: not each.alive)
    for each in chosen:
        ago = span(max(0.0, status.look.now_us / US - each.last_heartbeat))
        state = Text(one_line(each.state)) if each.alive else Text("silent", style="red")
        name, host = Text(one_line(each.name)), Text(one_line(each.host))
        table.add_row(name, host, str(each.pid), state, Text(f"{ago} ago", style="" if each.alive else "red"))
    _say_how_many_more(table, len(status.workers) - len(chosen))
    return table

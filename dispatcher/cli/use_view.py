"""What became of the events of each category, and how much of its limits is used: a table that fits. Imports rich."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dispatcher.cli.drawing import Bar, Fitting, Form, cut, plain_table, share_bar
from dispatcher.cli.spans import span
from dispatcher.cli.status import COUNTS, Status
from dispatcher.content import one_line
from dispatcher.limiter import Usage
from dispatcher.model import US, format_duration
from dispatcher.outcome import NO_CATEGORY

ALWAYS: Final = ("sent", "dropped", "dead", "parked")
STYLES: Final = {"sent": "green", "dropped": "yellow", "dead": "red", "parked": "cyan"}
_READABLE: Final = 20
_SHORTEST: Final = len("all together")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class _Shape:
    """Which columns there are, how close to each other, and how long a name may be at most."""

    counts: Sequence[str]
    has_bars: bool = True
    is_tight: bool = False
    longest: int | None = None


def categories(status: Status, rows: int) -> Fitting:
    """Each category, and all together.

    Where there is little room the bars go first, then long names are cut, then columns that hold nothing go.
    """
    totals = {name: sum(status.look.by_category(name).values()) for name in COUNTS}
    shown = [name for name in COUNTS if name in ALWAYS or totals[name]]
    needed = [name for name in shown if totals[name]] or ["sent"]
    table = partial(_table, status, rows, totals)
    return Fitting(
        lambda: Form(table(_Shape(shown))),
        lambda: Form(table(_Shape(shown, has_bars=False))),
        lambda: Form(table(_Shape(shown, has_bars=False)), table(_Shape(shown, has_bars=False, longest=_READABLE))),
        lambda: Form(
            table(_Shape(shown, has_bars=False, is_tight=True)),
            table(_Shape(shown, has_bars=False, is_tight=True, longest=_SHORTEST)),
        ),
        lambda: Form(
            table(_Shape(needed, has_bars=False, is_tight=True)),
            table(_Shape(needed, has_bars=False, is_tight=True, longest=_SHORTEST)),
        ),
        lambda: Form(table(_Shape((), has_bars=False, is_tight=True))),
    )


def _table(status: Status, rows: int, totals: Mapping[str, int], shape: _Shape) -> Table:
    table = plain_table(tight=shape.is_tight)
    table.add_column("Category")
    for name in shape.counts:
        table.add_column(name.capitalize(), justify="right", no_wrap=True)
    for heading in ("Use", "Limit", "Room") if shape.has_bars else ("Limit", "Room"):
        table.add_column(heading, no_wrap=True)
    counts = status.counts()
    chosen = most(
        list(status.categories), rows, lambda name: (_fullest(status.categories[name]), counts[name]["parked"])
    )
    for category in chosen:
        name = "(unreadable)" if category == NO_CATEGORY else one_line(category)
        limits = limit_cells(status.categories[category], has_bars=shape.has_bars)
        table.add_row(cut(name, shape.longest), *_figures(counts[category], shape.counts), *limits)
    say_how_many_more(table, len(status.categories) - len(chosen))
    table.add_section()
    limits = limit_cells(status.together, has_bars=shape.has_bars)
    table.add_row(Text("all together", "bold"), *_figures(totals, shape.counts), *limits)
    return table


def _figures(counts: Mapping[str, int], shown: Sequence[str]) -> list[Text]:
    return [Text(str(counts[name]), style=STYLES.get(name, "") if counts[name] else "dim") for name in shown]


def limit_cells(usages: Sequence[Usage], *, has_bars: bool = True) -> Sequence[RenderableType]:
    """How much of each limit is used: as a bar, unless that is not wanted, in figures, and when there is room."""
    lines = Text("\n")
    figures = lines.join(map(_used, usages)) if usages else Text("none", style="dim")
    cells = (figures, lines.join(map(_room, usages)))
    return (Group(*map(_bar, usages)), *cells) if has_bars else cells


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


def _fullest(usages: Sequence[Usage]) -> float:
    return max((usage.used / usage.limit.max for usage in usages), default=0.0)


def most(items: list[_Item], rows: int, weight: Callable[[_Item], Any]) -> list[_Item]:
    """The weightiest items, in their own order; as many as leave room for a row about the others."""
    if len(items) <= rows:
        return items
    ranked = sorted(range(len(items)), key=lambda place: weight(items[place]), reverse=True)
    return [items[place] for place in sorted(ranked[: rows - 1])]


def say_how_many_more(table: Table, count: int) -> None:
    """A row about those that are left out, if any are."""
    if count:
        table.add_row(Text(f"and {count} more", style="dim"))

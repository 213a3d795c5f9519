"""What became of the events of each category, and how much of its limits is used: a table that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from dispatcher.app.documents.facts import COUNTS, SUPPRESSED, Shadowed, Status, window
from dispatcher.app.documents.instants import span
from dispatcher.app.documents.recent import NOTHING, Lately
from dispatcher.cli.drawing import EMPTY, Fitting, Group, OneLine, Part, Table, Text, cut, share_bar
from dispatcher.core.limits import NO_CATEGORY
from dispatcher.core.policy import GLOBAL_SCOPE
from dispatcher.core.rendering import one_line
from dispatcher.core.units import US
from dispatcher.limiter import Usage

ALWAYS: Final = ("sent", "dropped", "dead", "parked")
STYLES: Final = {"sent": "green", "dropped": "yellow", "dead": "red", "parked": "cyan"}
_GOING: Final = ("duplicate", "digested", "parked", "dropped", "sent", "dead")
"""The counts as they go where there is little room, one after the other."""

_SHORTEST: Final = 17
"""Characters of what was suppressed, where there is little room."""

SHARED: Final = "shared"
"""What the guarantees leave of all together."""

_Item = TypeVar("_Item")


class UseRow(NamedTuple):
    """How much of one limit is used."""

    figures: OneLine
    bar: Part = EMPTY
    room: Part = EMPTY


def categories(status: Status, rows: int) -> Fitting:
    """Each category, and all together.

    Where there is little room the bars go first, then names are cut, then empty columns go, then counts one by one,
    then what was suppressed lately; then limits are cut. What the rows are sorted by stays.
    """
    totals = {name: sum(status.snapshot.by_category(name).values()) for name in COUNTS}
    shown = [name for name in COUNTS if name in ALWAYS or name == status.sorted_by or totals[name]]
    needed = [name for name in shown if name == status.sorted_by or totals[name]] or ["sent"]
    going = [name for name in _GOING if name in needed and name != status.sorted_by]
    fewer = [[name for name in needed if name not in going[:gone]] for gone in range(len(going) + 1)]
    draw = partial(_table, status, rows, totals)
    return Fitting(
        partial(draw, shown),
        partial(draw, shown, has_bars=False),
        *(partial(draw, names, has_bars=False) for names in fewer),
        partial(draw, fewer[-1], has_bars=False, lately=status.sorted_by == SUPPRESSED),
    )


def _table(  # noqa: PLR0913 - what may give way, by name
    status: Status,
    rows: int,
    totals: Mapping[str, int],
    shown: Sequence[str],
    *,
    has_bars: bool = True,
    lately: bool = True,
) -> Table:
    together = status.recent.together()
    is_suppressing = bool(together.suppressed())
    left_out = [name.capitalize() for name in COUNTS if totals[name] and name not in shown]
    left_out += ["Suppressed"] if is_suppressing and not lately else []
    lately = lately and is_suppressing

    def add(name: Part | str, figures: Sequence[Part], recent: Lately, uses: Sequence[UseRow]) -> None:
        suppressed = [_suppressed(recent)] if lately else []
        table.add_row(name, *figures, *suppressed, *limit_cells(uses, has_bars=has_bars))

    table = Table()
    table.add_column("Category")
    for name in shown:
        table.add_column(name.capitalize(), is_right=True, breaks=False)
    if lately:
        table.add_column("Suppressed in 30m")
    add_use_columns(table, has_bars=has_bars, are_cut=not shown and not lately)
    counts = status.counts()
    names = list(status.categories)
    chosen = (
        names[: rows - 1] if status.sorted_by and len(names) > rows else most(names, rows, status.weights().__getitem__)
    )
    for category in chosen:
        name = "(unreadable)" if category == NO_CATEGORY else one_line(category)
        uses = use_rows(
            status.categories[category],
            status.shares.get(category),
            status.shadows.get(f"category:{category}"),
            _wider(status, category),
        )
        add(cut(name), _figures(counts[category], shown), status.recent.of(category), uses)
    table.add_section()
    use = use_rows(status.together, shadows=status.shadows.get(GLOBAL_SCOPE))
    add(cut("all together", "bold"), _figures(totals, shown), together, use)
    if status.shared is not None:
        add(SHARED, [EMPTY] * len(shown), NOTHING, use_rows([status.shared]))
    if more := len(names) - len(chosen):
        what = "category" if more == 1 else "categories"
        table.add_note(Text(f"{more} more {what}: choose with --category GLOB or --sort", style="dim"))
    if left_out:
        table.add_note(Text(f"{', '.join(left_out)}: on a wider screen", style="dim"))
    return table


def _suppressed(recent: Lately) -> OneLine:
    """``15 own``, ``15: 12 own, 3 global``."""
    causes = recent.causes()
    said = ", ".join(f"{number} {cause}" for cause, number in causes.items())
    return OneLine(said if len(causes) <= 1 else f"{recent.suppressed()}: {said}", "yellow", _SHORTEST)


def _wider(status: Status, category: str) -> tuple[str, Usage] | None:
    """The limit beyond the category's own that keeps its events waiting longest, by name; None where all have room.

    A category with a guarantee takes from what is kept for it, or from what all share: whichever has room first.
    """
    full = [("all", usage) for usage in status.together]
    if status.shared is not None:
        pools = [*filter(None, [status.shares.get(category)]), status.shared]
        full.append((SHARED, min(pools, key=lambda usage: usage.wait_us)))
    longest = max(full, key=lambda named: named[1].wait_us, default=None)
    return longest if longest is not None and longest[1].wait_us else None


def _figures(counts: Mapping[str, int], shown: Sequence[str]) -> list[Text]:
    return [Text(str(counts[name]), style=STYLES.get(name, "") if counts[name] else "dim") for name in shown]


def use_rows(
    usages: Sequence[Usage],
    share: Usage | None = None,
    shadows: Sequence[Shadowed] | None = None,
    wider: tuple[str, Usage] | None = None,
) -> list[UseRow]:
    """A row for each limit, or one that says there is none; then for what is kept for a category, and shadow limits.

    Where a ``wider`` limit keeps events waiting longer than these, the first row says which one, and for how long.

    A share that is used up is no alarm: beyond it a category takes from what all share. Nor is a shadow limit.
    """
    rows = [_use_row(usage, "red") for usage in usages] or [rule_row("none")]
    if wider is not None and wider[1].wait_us > max((usage.wait_us for usage in usages), default=0):
        name, usage = wider
        rows[0] = rows[0]._replace(room=OneLine(f"{_room(usage)} ({name})", "red"))
    rows += [] if share is None else [_use_row(share, "", " kept")]
    return [*rows, *(_shadow_row(each) for each in shadows or ())]


def _shadow_row(shadowed: Shadowed) -> UseRow:
    usage = shadowed.usage
    figures = f"{usage.used}/{usage.limit.max} shadow in {window(usage.limit)}"
    refused = f"{shadowed.would_deny} over it" if shadowed.would_deny else ""
    return UseRow(OneLine(figures, "dim"), share_bar(usage.used, usage.limit.max, "green"), OneLine(refused))


def rule_row(rule: str) -> UseRow:
    """A row that has a rule and no use."""
    return UseRow(OneLine(rule, "dim"))


def _use_row(usage: Usage, alarm: str, kept: str = "") -> UseRow:
    limit = usage.limit
    figures = f"{usage.used}/{limit.max}{kept} in {window(limit)}"
    bar = share_bar(usage.used, limit.max, alarm if usage.wait_us and alarm else "green")
    return UseRow(OneLine(figures), bar, OneLine(_room(usage), alarm))


def add_use_columns(table: Table, *, has_bars: bool, are_cut: bool = False) -> None:
    """Adds the columns of ``limit_cells``; where limits ``are_cut``, the names beside them keep room."""
    for heading in ("Use", "Limit", "Room") if has_bars else ("Limit", "Room"):
        table.add_column(heading, breaks=are_cut and heading == "Limit")


def limit_cells(rows: Sequence[UseRow], *, has_bars: bool) -> Sequence[Part]:
    """The rows as cells: a bar, unless that is not wanted, the figures, and when there is room."""
    cells = (Group(*(row.figures for row in rows)), Group(*(row.room for row in rows)))
    return (Group(*(row.bar for row in rows)), *cells) if has_bars else cells


def _room(usage: Usage) -> str:
    if not usage.wait_us:
        return ""
    return "held" if usage.is_held else f"in {span(usage.wait_us / US)}"


def most(items: list[_Item], rows: int, weight: Callable[[_Item], Any]) -> list[_Item]:
    """The weightiest items, in their own order; as many as leave room for a row about the others."""
    if len(items) <= rows:
        return items
    ranked = sorted(range(len(items)), key=lambda place: weight(items[place]), reverse=True)
    return [items[place] for place in sorted(ranked[: rows - 1])]


def say_how_many_more(table: Table, count: int) -> None:
    """A row about those that are left out, if any are."""
    if count:
        table.add_note(Text(f"and {count} more in 'dispatcher status'", style="dim"))

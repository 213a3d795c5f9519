"""Ended events as a table and as lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from dispatcher.app.documents.instants import clock, short, span
from dispatcher.cli.drawing import Fitting, Group, OneLine, Part, Table, Text, cut, joined
from dispatcher.core.explain import Decision
from dispatcher.core.rendering import one_line
from dispatcher.core.units import US

_STYLES: Final = {"sent": "green", "dropped": "yellow", "digested": "cyan", "dead": "red", "duplicate": "dim"}
_READABLE: Final = 20
_BEGINNING: Final = 16


def listing(decisions: Sequence[Decision]) -> Fitting:
    """Each in one line, or in a few below each other where there is little room; times are always whole.

    In a line the text gives way, down to its beginning, then the id, down to a beginning that ``explain`` takes.
    """
    whole, beginnings = partial(_in_lines, decisions), partial(_in_lines, decisions, _BEGINNING)
    return Fitting(whole, whole, beginnings, partial(_in_blocks, decisions))


def _in_lines(decisions: Sequence[Decision], most: int | None = None) -> Table:
    table = Table()
    for heading in ("Ended", "Id", "Category", "Outcome"):
        table.add_column(OneLine(heading), breaks=False)
    table.add_column("Text")
    for each in decisions:
        table.add_row(
            OneLine(short(each.at_us / US)),
            OneLine(_cut_to(one_line(each.id), most)),
            OneLine(one_line(each.category or "")),
            OneLine(_outcome(each), _STYLES.get(each.outcome, "")),
            OneLine(one_line(each.text or ""), shortest=_READABLE),
        )
    return table


def _cut_to(id_: str, most: int | None) -> str:
    return id_ if most is None or len(id_) <= most else f"{id_[: most - 1]}…"


def _in_blocks(decisions: Sequence[Decision]) -> Table:
    table = Table()
    table.add_column("Ended", breaks=False)
    table.add_column("Id, category, outcome, text", folds=True)
    for each in decisions:
        facts = [Text(one_line(each.category))] if each.category else []
        facts.append(Text(_outcome(each), _STYLES.get(each.outcome, "")))
        parts: list[Part | str] = [Text(one_line(each.id), "bold"), joined("  ", facts)]
        parts += [cut(one_line(each.text))] if each.text else []
        table.add_row(short(each.at_us / US), Group(*parts))
    return table


def line(decision: Decision) -> str:
    """One ended event for a terminal that goes on."""
    parts = (short(decision.at_us / US), decision.id, decision.category or "", _outcome(decision), decision.text or "")
    return "  ".join(one_line(each) for each in parts if each)


def kept(since_us: int | None) -> str:
    """Since when no event is missing."""
    if since_us is None:
        return "nothing is kept"
    since_s = since_us / US
    now_s = time.time()
    return f"the record holds all that ended since {short(since_s)}, {span(now_s - since_s)} ago; it is {clock(now_s)}"


def _outcome(decision: Decision) -> str:
    if decision.outcome in {"sent", "duplicate"}:
        return decision.outcome
    code = f": {decision.code}" if decision.code else ""
    return one_line(f"{decision.outcome} {decision.reason}{code}")

"""Ended events as a table and as lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from dispatcher.app.documents.instants import clock, local, span
from dispatcher.cli.drawing import Fitting, OneLine, Table
from dispatcher.core.explain import Decision
from dispatcher.core.limits import US
from dispatcher.core.rendering import one_line

_STYLES: Final = {"sent": "green", "dropped": "yellow", "digested": "cyan", "dead": "red", "duplicate": "dim"}
_READABLE: Final = 20
_WHOLE_ID: Final = 1_000


def listing(decisions: Sequence[Decision]) -> Fitting:
    """Each in one line; where there is little room, an id is cut to a beginning that ``explain`` takes."""
    return Fitting(*(partial(_table, decisions, most) for most in (_WHOLE_ID, _WHOLE_ID, 16, 9)))


def _table(decisions: Sequence[Decision], most: int) -> Table:
    table = Table()
    for heading in ("Ended", "Id", "Category", "Outcome"):
        table.add_column(OneLine(heading), breaks=False)
    table.add_column("Text")
    for each in decisions:
        id_ = one_line(each.id)
        table.add_row(
            OneLine(_when(each.at_us)),
            OneLine(id_ if len(id_) <= most else f"{id_[: most - 1]}…"),
            OneLine(one_line(each.category or "")),
            OneLine(_outcome(each), _STYLES.get(each.outcome, "")),
            OneLine(one_line(each.text or ""), shortest=_READABLE),
        )
    return table


def line(decision: Decision) -> str:
    """One ended event for a terminal that goes on."""
    parts = (_when(decision.at_us), decision.id, decision.category or "", _outcome(decision), decision.text or "")
    return "  ".join(one_line(each) for each in parts if each)


def kept(since_us: int | None) -> str:
    """Since when no event is missing."""
    if since_us is None:
        return "nothing is kept"
    since_s = since_us / US
    now_s = time.time()
    return f"the record holds all that ended since {_when(since_us)}, {span(now_s - since_s)} ago; it is {clock(now_s)}"


def _outcome(decision: Decision) -> str:
    if decision.outcome in {"sent", "duplicate"}:
        return decision.outcome
    code = f": {decision.code}" if decision.code else ""
    return one_line(f"{decision.outcome} {decision.reason}{code}")


def _when(at_us: int) -> str:
    at = local(at_us / US)
    return at.strftime("%H:%M:%S" if at.date() == local(time.time()).date() else "%Y-%m-%d %H:%M")

"""Silences as a table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from dispatcher.app.documents.instants import short, zone
from dispatcher.cli.drawing import Fitting, Group, OneLine, Table, Text
from dispatcher.core.rendering import one_line
from dispatcher.core.silences import Silence
from dispatcher.core.units import US
from dispatcher.store.silences import Kept

_LONGEST: Final = 1_000
"""Characters of what is silenced, or why."""

_LEAST: Final = 18
"""Columns for each of these, where each silence is in one line."""


def listing(silences: Sequence[Kept]) -> Fitting:
    """Each in one line, or in a few below each other where there is little room."""
    whole = partial(_in_lines, silences)
    return Fitting(whole, whole, partial(_in_blocks, silences))


def _in_lines(silences: Sequence[Kept]) -> Table:
    table, here = Table(), zone(time.time())
    table.add_column("Id", breaks=False)
    table.add_column("Silenced is what matches", folds=True, least=_LEAST)
    for heading in (f"From ({here})", f"Until ({here})"):
        table.add_column(heading, breaks=False)
    table.add_column("Suppressed", is_right=True, breaks=False)
    table.add_column("By", folds=True)
    table.add_column("Why", folds=True, least=_LEAST)
    for each in silences:
        said = each.silence
        begins, ends = OneLine(short(said.from_us / US)), OneLine(_until(said))
        what, why = (one_line(text, _LONGEST) for text in (str(said.matchers), said.why))
        table.add_row(one_line(said.id), what, begins, ends, str(each.suppressed), one_line(said.who), why)
    return table


def _in_blocks(silences: Sequence[Kept]) -> Table:
    table = Table()
    table.add_column("Id", breaks=False)
    table.add_column(f"Silenced is what matches, from when until when ({zone(time.time())}), why, by whom", folds=True)
    for each in silences:
        said = each.silence
        when = f"{short(said.from_us / US)} until {_until(said)}, {each.suppressed} suppressed"
        lines = (Text(when), Text(one_line(said.why, _LONGEST)), Text(one_line(said.who), "dim"))
        table.add_row(one_line(said.id), Group(Text(one_line(str(said.matchers), _LONGEST), "bold"), *lines))
    return table


def _until(silence: Silence) -> str:
    """The latest end, and the one that comes if nothing more matches."""
    latest = short(silence.until_us / US)
    idle_end_us = silence.idle_end_us
    return latest if idle_end_us is None else f"{latest}, if idle {short(idle_end_us / US)}"

"""A report on the terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from benchmarks.comparison import Compared
from benchmarks.figures import Cell, Goal, Report, Table, spelled


def machine(server: Path) -> dict[str, object]:
    """What the figures depend on."""
    said = subprocess.run([str(server), "--version"], capture_output=True, text=True, check=True).stdout
    return {
        "server": " ".join(said.split()[:3]),
        "python": platform.python_version(),
        "redis-py": version("redis"),
        "cores": os.cpu_count() or 0,
        "load": round(os.getloadavg()[0], 1),
    }


def show(console: Console, report: Report) -> None:
    """Tables, notes, goals."""
    for table in report.tables:
        console.print(_drawn(table))
    for note in report.notes:
        console.print(note, style="dim", markup=False, highlight=False)
    if report.goals:
        console.print(_drawn_goals(report.goals))
    console.print(f"{len(report.proofs)} counts were as expected", style="dim", highlight=False)


def show_compared(console: Console, compared: Sequence[Compared]) -> None:
    """Which figures are worse than those of the page, of how many."""
    worse = [said for each in compared for said in each.worse]
    count = sum(each.count for each in compared)
    console.print(
        f"{len(worse)} of {count} figures with a goal are worse than on docs/benchmarks.md by more than their range"
        f"{':' if worse else ''}",
        style="yellow" if worse else "green",
        highlight=False,
    )
    for said in worse:
        console.print(said, markup=False, highlight=False)


def write(folder: Path, name: str, facts: Mapping[str, object], report: Report) -> Path:
    """Replaces ``NAME.json``: machine, tables with a column's name at each figure, goals, proofs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    content = {
        "benchmark": name,
        "machine": dict(facts),
        "tables": [
            {
                "title": table.title,
                "columns": list(table.columns),
                "rows": [[_plain(c) for c in row] for row in table.rows],
            }
            for table in report.tables
        ],
        "goals": [
            {
                "what": goal.what,
                "reached": dataclasses.asdict(goal.reached),
                "at_least": goal.at_least,
                "at_most": goal.at_most,
                "met": goal.met,
            }
            for goal in report.goals
        ],
        "proofs": [dataclasses.asdict(proof) for proof in report.proofs],
        "notes": list(report.notes),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _drawn(table: Table) -> Drawn:
    drawn = Drawn(title=table.title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for n, column in enumerate(table.columns):
        figures = n > 0 and not any(isinstance(row[n], str) for row in table.rows)
        drawn.add_column(Text(column), justify="right" if figures else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(_text(cell)) for cell in row))
    return drawn


def _drawn_goals(goals: tuple[Goal, ...]) -> Drawn:
    drawn = Drawn("goal", "reached", "bound", "", box=SIMPLE_HEAD)
    for goal in goals:
        bounds = [f">= {spelled(goal.at_least)}"] if goal.at_least is not None else []
        bounds += [f"<= {spelled(goal.at_most)}"] if goal.at_most is not None else []
        verdict = Text("met", "green") if goal.met else Text("missed", "red")
        drawn.add_row(Text(goal.what), Text(str(goal.reached)), Text(", ".join(bounds)), verdict)
    return drawn


def _text(cell: Cell) -> str:
    return f"{cell:,}" if isinstance(cell, int) else spelled(cell) if isinstance(cell, float) else str(cell)


def _plain(cell: Cell) -> Any:  # noqa: ANN401 - JSON
    return dataclasses.asdict(cell) if dataclasses.is_dataclass(cell) else cell

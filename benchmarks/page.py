"""The results and the picture in docs/benchmarks.md, made from the JSON of a run: ``python -m benchmarks.page``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Spread, spelled
from benchmarks.picture import drawn, panels

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "benchmarks.md"
PICTURE: Final = ROOT / "docs" / "growth.svg"
RESULTS: Final = Path(__file__).parent / "results"

PART: Final = re.compile(
    r"(?P<begin>^<!-- results of (?P<name>[a-z]+), [^\n]*-->\n).*?(?P<end>^<!-- end of the results -->$)",
    re.MULTILINE | re.DOTALL,
)
"""What the page says of one benchmark."""


def write_page(page: Path, results: Path) -> list[str]:
    """Put what was measured between the marks; a benchmark without a result keeps what stands there.

    Returns the names of those that were put. Raises ``ValueError`` for a result of a run that was not full.
    """
    put = []

    def part(match: re.Match[str]) -> str:
        file = results / f"{match['name']}.json"
        if not file.exists():
            return match[0]
        result = json.loads(file.read_text(encoding="utf-8"))
        if not is_full(result["machine"]):
            raise ValueError(f"{file} is of a run with --quick or --scale: no figures for the page")
        put.append(match["name"])
        return f"{match['begin']}{markdown(result)}{match['end']}"

    page.write_text(PART.sub(part, page.read_text(encoding="utf-8")), encoding="utf-8")
    return put


def is_full(machine: Mapping[str, object]) -> bool:
    """Whether a run had the sizes that the page speaks of; a result may be older than the option --scale."""
    return not machine.get("quick") and machine.get("scale", 1.0) == 1.0


def markdown(result: dict[str, Any]) -> str:
    """Tables and goals of one benchmark."""
    machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items() if key not in {"quick", "scale"})
    tables = [f"**{_said(each['title'])}**\n\n{_rows(each['columns'], each['rows'])}" for each in result["tables"]]
    parts = [f"{machine}.\n", *tables, *(f"{note}\n" for note in result["notes"])]
    if result["goals"]:
        goals = [
            [goal["what"], goal["reached"], _bound(goal), "met" if goal["met"] else "**missed**"]
            for goal in result["goals"]
        ]
        parts.append(_rows(["goal", "reached", "bound", ""], goals))
    return "\n".join(parts)


def _rows(columns: list[str], rows: list[list[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(_said(cell) for cell in line)} |\n" for line in lines)


def _said(cell: Any) -> str:  # noqa: ANN401 - JSON
    match cell:
        case dict():
            return str(Spread(**cell))
        case int():
            return f"{cell:,}"
        case float():
            return spelled(cell)
        case _:
            return escaped(str(cell)) if cell != "**missed**" else cell


def escaped(text: str) -> str:
    """As it stands in a table of the page."""
    return text.replace("|", "\\|").replace("*", "\\*")


def _bound(goal: dict[str, Any]) -> str:
    if goal["at_least"] is not None:
        return f"at least {spelled(goal['at_least'])}"
    return f"at most {spelled(goal['at_most'])}"


def write_picture(picture: Path, results: Path) -> None:
    """Draw what grows, where both benchmarks that it shows have been run."""
    files = [results / f"{name}.json" for name in ("growth", "volume")]
    if all(file.exists() for file in files):
        growth, volume = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        picture.write_text(drawn(panels(growth, volume)), encoding="utf-8")


if __name__ == "__main__":
    write_page(PAGE, RESULTS)
    write_picture(PICTURE, RESULTS)

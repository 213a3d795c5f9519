"""Mutants that behave as the original does: ``equivalent.txt`` holds their names, below each the reason, indented."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_LIST: Final = Path(__file__).with_name("equivalent.txt")


def equivalents() -> dict[str, str]:
    """The reason by name; ``ValueError`` for a name without one or one that stands twice."""
    return parsed(_LIST.read_text(encoding="utf-8"))


def parsed(text: str) -> dict[str, str]:
    """As ``equivalents``, of the text of such a file."""
    reasons: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("    ") and name:
            reasons[name] = f"{reasons[name]} {line.strip()}".strip()
        elif line in reasons:
            raise ValueError(f"equivalent.txt names {line!r} twice")
        elif line:
            name, reasons[line] = line, ""
    if bare := [each for each, reason in reasons.items() if not reason]:
        raise ValueError(f"equivalent.txt gives no reason for {bare}")
    return reasons

"""Reads the samples of a Markdown page, and what the page says about running each.

A block of ``sh``, ``console``, ``python`` or ``yaml`` is run; an HTML comment on the line before may say otherwise:

    <!-- not run: WHY -->
    <!-- runs in the background until it says "TEXT" -->
    <!-- in FILE -->                                      yaml: also written to FILE, for what follows on the page
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")))
RUNNABLE: Final = frozenset({"sh", "console", "python", "yaml"})

_BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<language>[a-z]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK: Final = re.compile(r"\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """One fenced block; ``line`` is where its fence stands."""

    page: Path
    line: int
    language: str
    text: str
    note: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUNNABLE and not self.note.startswith("not run: ")

    @property
    def awaited(self) -> str | None:
        """What a sample that stays in the background says once it is ready."""
        match = re.fullmatch(r'runs in the background until it says "(.+)"', self.note)
        return match and match[1]

    @property
    def file(self) -> str | None:
        """Where the text belongs for what follows."""
        match = re.fullmatch(r"in (\S+)", self.note)
        return match and match[1]


def samples(page: Path) -> Iterator[Sample]:
    """Every fenced block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start("language")) + 1
        yield Sample(page, line, block["language"], block["text"], block["note"] or "")


def links(page: Path) -> Iterator[str]:
    """The target of every link outside of blocks."""
    for link in _LINK.finditer(_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        yield link["target"]


def anchors(page: Path) -> set[str]:
    """What links to the page's headings may end in, spelt as GitHub does."""
    headings = _HEADING.findall(_BLOCK.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def section(page: Path, heading: str) -> str:
    """The text below a heading, up to the next one of its rank or a higher one."""
    text = page.read_text(encoding="utf-8")
    match = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"{page} has no heading {heading!r}"
    return match[2]


def code_spans(text: str) -> list[str]:
    """Everything between single backticks, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", _BLOCK.sub("", text))

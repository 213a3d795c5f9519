"""A page as a tree, for tests that look at it without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

_VOID: Final = {"meta", "link", "br", "img", "hr", "input", "rect", "line", "polyline", "path"}


@dataclass
class Node:
    """An element; ``parts`` are the elements and texts in it."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    parts: list[Node | str] = field(default_factory=list)

    def all(self, *tags: str) -> Iterator[Node]:
        """The elements of these tags in it, of all without any."""
        for part in self.parts:
            if isinstance(part, Node):
                if not tags or part.tag in tags:
                    yield part
                yield from part.all(*tags)

    def one(self, tag: str) -> Node:
        (found,) = self.all(tag)
        return found

    @property
    def text(self) -> str:
        """What it says, on one line."""
        return " ".join("".join(self.texts()).split())

    @property
    def verbatim(self) -> str:
        """What it says, character by character."""
        return "".join(part if isinstance(part, str) else part.verbatim for part in self.parts)

    def texts(self) -> Iterator[str]:
        """The texts in it as they stand, with a space behind each element."""
        for part in self.parts:
            if isinstance(part, str):
                yield part
            else:
                yield from part.texts()
                yield " "

    def rows(self) -> list[list[str]]:
        """The cells of all rows of the tables in it, but for headings."""
        return [
            [cell.text for cell in row.parts if isinstance(cell, Node)]
            for body in self.all("tbody")
            for row in body.all("tr")
        ]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].parts.append(node)
        if tag not in _VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def read_html(page: str) -> Node:
    """The page; fails where an element is closed by another one, or not at all."""
    reader = _Reader()
    reader.feed(page)
    (root,) = reader.open
    return root

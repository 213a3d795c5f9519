"""One small change of a source file, and the mutant that it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Change:
    """``text[start:end]`` becomes ``new``; ``operator`` says so in words, ``place`` is the function it stands in."""

    start: int
    end: int
    new: str
    operator: str
    place: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong file: what stands from ``start`` on, ``old``, becomes ``new``, and one of ``tests`` has to fail."""

    name: str
    file: str
    start: int
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The mutated text; ``ValueError`` unless ``old`` stands where it has to, and the change is one."""
        end = self.start + len(self.old)
        if text[self.start : end] != self.old or self.old == self.new:
            raise ValueError(f"mutant {self.name!r}: {self.file} holds {text[self.start : end]!r}, not {self.old!r}")
        return text[: self.start] + self.new + text[end:]

    def difference(self, text: str) -> str:
        """The lines that change, before and after, as a diff shows them."""
        first = text.rfind("\n", 0, self.start) + 1
        after = self.applied(text)
        before_end = _line_end(text, self.start + len(self.old))
        after_end = _line_end(after, self.start + len(self.new))
        head = f"{self.file}:{text.count(chr(10), 0, self.start) + 1}"
        removed = [f"-{line}" for line in text[first:before_end].splitlines()]
        added = [f"+{line}" for line in after[first:after_end].splitlines()]
        return "\n".join([head, *removed, *added])


def named(file: str, text: str, changes: Iterable[Change], tests: tuple[str, ...]) -> Iterator[Mutant]:
    """A mutant for each change. Its name is made of file, function, line and operator, and a number for repeats.

    So a name stays while other lines of the file change.
    """
    seen = Counter[str]()
    for change in sorted(changes, key=lambda each: (each.start, each.end, each.operator)):
        line = text[text.rfind("\n", 0, change.start) + 1 : _line_end(text, change.start)]
        name = f"{file} {change.place}: {line.strip()} [{change.operator}]"
        seen[name] += 1
        nth = f" #{seen[name]}" if seen[name] > 1 else ""
        yield Mutant(name + nth, file, change.start, text[change.start : change.end], change.new, tests)


_LARGE: Final = 10_000
"""From here on a number is a span or a size, of which nobody can tell one more or less."""


def next_number(number: float) -> float:
    """One more; twice as much of a large number."""
    return 2 * number if number >= _LARGE else number + 1


def are_akin(name: str, other: str) -> bool:
    """Whether two names speak of the same kind of thing: parts of one object, or names with the same last word."""
    owner, _, last = name.rpartition(".")
    other_owner, _, other_last = other.rpartition(".")
    if name == other:
        return False
    return owner == other_owner != "" or last.rsplit("_", 1)[-1] == other_last.rsplit("_", 1)[-1]


def _line_end(text: str, offset: int) -> int:
    end = text.find("\n", offset)
    return len(text) if end < 0 else end

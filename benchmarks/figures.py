"""What benchmarks count and measure, as values: spreads over rounds, goals, proofs, tables, reports."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias


class Unproven(Exception):
    """A run did not do the work it measured; its figures say nothing."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over several rounds: the median, the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Of at least one value."""
        figures = list(values)
        return cls(statistics.median(figures), min(figures), max(figures))

    def __str__(self) -> str:
        if self.low == self.high:
            return spelled(self.median)
        return f"{spelled(self.median)} ({spelled(self.low)}-{spelled(self.high)})"


Cell: TypeAlias = str | int | float | Spread


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure with a bound; its median decides."""

    what: str
    reached: Spread
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the median is within the bounds."""
        enough = self.at_least is None or self.reached.median >= self.at_least
        return enough and (self.at_most is None or self.reached.median <= self.at_most)


@dataclass(frozen=True, slots=True)
class Proof:
    """What had to be counted, and was."""

    what: str
    counted: int


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's result. ``notes`` are sentences that the tables need."""

    tables: tuple[Table, ...]
    goals: tuple[Goal, ...]
    proofs: tuple[Proof, ...]
    notes: tuple[str, ...] = ()


class Proofs:
    """Collects what was counted; the first count that is not as expected ends the run with ``Unproven``."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}

    def add(self, what: str, counted: int, expected: int) -> None:
        """Counts of the same thing add up."""
        if counted != expected:
            raise Unproven(f"{what}: counted {counted:,}, expected {expected:,}")
        self._counted[what] = self._counted.get(what, 0) + counted

    def collected(self) -> tuple[Proof, ...]:
        """All of them, in the order in which they were first added."""
        return tuple(Proof(what, counted) for what, counted in self._counted.items())


@dataclass(frozen=True, slots=True)
class Line:
    """The straight line through some points: what one more costs, and how straight it is (1: perfectly)."""

    slope: float
    straightness: float

    @classmethod
    def through(cls, xs: Sequence[float], ys: Sequence[float]) -> Self:
        """Least squares."""
        slope, _ = statistics.linear_regression(xs, ys)
        return cls(slope, statistics.correlation(xs, ys) ** 2)


def spelled(figure: float) -> str:
    """Three digits that mean something: 0.0123, 4.56, 78.9, 1,230."""
    if figure == 0:
        return "0"
    size = abs(figure)
    for bound, digits in _DIGITS:
        if size < bound:
            return f"{figure:.{digits}f}"
    return f"{figure:,.0f}"


_DIGITS: Final = ((0.1, 4), (1, 3), (10, 2), (100, 1))

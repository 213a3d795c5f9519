"""The events of a trace, and where they are kept in order of time: a bounded number in memory, the rest in a file."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from dispatcher.core.units import Lane
from dispatcher.jsonio import decode, encode

RUN: Final = 50_000
"""Arrivals that are sorted at once, and held in memory at most."""

_BLOCK: Final = 1_000
"""Arrivals that are read back at once."""


class Details(NamedTuple):
    """What an event says of itself, beside its time and category; each as ``Event`` has it.

    But ``text`` stands for all texts that differ in nothing but what differs between repeats: '' where nothing else is
    there, None where the text is not known or nothing depends on it.
    """

    priority: str = Lane.NORMAL.value
    labels: tuple[tuple[str, str], ...] = ()
    id: str | None = None
    channel: str | None = None
    max_age: float | None = None
    dedup_key: str | None = None
    status: str | None = None
    text: str | None = None

    @property
    def is_remarkable(self) -> bool:
        """Whether what becomes of the event depends on other events than those that take slots: it may be a repeat."""
        return self.id is not None or self.dedup_key is not None


PLAIN: Final = Details()


class Arrival(NamedTuple):
    """One event of a trace: when it came, in microseconds since 1970, and in which line it stands, from 1.

    ``category`` is '' where the trace says that it was a duplicate, and no more.
    """

    at_us: int
    line: int
    category: str
    details: Details = PLAIN


class Arrivals:
    """Arrivals in order of time, and of the trace where times are equal; a context manager.

    ``add`` all of them, then iterate, as often as needed.
    """

    def __init__(self, run: int = RUN) -> None:
        self._run = run
        self._held: list[Arrival] = []
        self._runs: list[_Run] = []
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._count = 0
        self.first_us = 0
        self.last_us = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._count

    def add(self, arrival: Arrival) -> None:
        """Keep one more."""
        if not self._count or arrival.at_us < self.first_us:
            self.first_us = arrival.at_us
        if not self._count or arrival.at_us > self.last_us:
            self.last_us = arrival.at_us
        self._count += 1
        self._held.append(arrival)
        if len(self._held) == self._run:
            self._write()

    def __iter__(self) -> Iterator[Arrival]:
        self._held.sort(key=_order)
        runs: list[Iterator[Arrival]] = [self._read(run) for run in self._runs]
        ends = [(run.first, run.last) for run in self._runs]
        if self._held:
            runs.append(iter(self._held))
            ends.append((_order(self._held[0]), _order(self._held[-1])))
        if all(before[1] <= after[0] for before, after in pairwise(ends)):
            for run in runs:
                yield from run
        else:
            yield from heapq.merge(*runs, key=_order)

    def halves(self) -> tuple[Part, Part]:
        """The first half of the events, and the others; those of one instant stay together."""
        left, middle_us = self._count // 2, self.first_us
        for arrival in self:
            if left <= 0 and arrival.at_us > middle_us:
                middle_us = arrival.at_us
                break
            middle_us = arrival.at_us
            left -= 1
        return Part(self, self.first_us, middle_us), Part(self, middle_us, self.last_us + 1)

    def _write(self) -> None:
        self._held.sort(key=_order)
        blocks: list[tuple[int, int]] = []
        self._file.seek(0, 2)
        for begin in range(0, len(self._held), _BLOCK):
            block = encode([_row(each) for each in self._held[begin : begin + _BLOCK]])
            blocks.append((self._file.tell(), len(block)))
            self._file.write(block)
        self._runs.append(_Run(_order(self._held[0]), _order(self._held[-1]), blocks))
        self._held = []

    def _read(self, run: _Run) -> Iterator[Arrival]:
        for begin, length in run.blocks:
            self._file.seek(begin)
            for row in decode(self._file.read(length)):
                yield _arrival(row)


class Part:
    """The arrivals from ``from_us`` on and before ``to_us``."""

    def __init__(self, whole: Arrivals, from_us: int, to_us: int) -> None:
        self._whole = whole
        self._from_us = from_us
        self._to_us = to_us
        self.first_us = max(whole.first_us, from_us)
        self.last_us = min(whole.last_us, to_us - 1)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Arrival]:
        return (each for each in self._whole if self._from_us <= each.at_us < self._to_us)


class _Run(NamedTuple):
    """A sorted part in the file: its first and last place in order, and where its blocks stand."""

    first: tuple[int, int]
    last: tuple[int, int]
    blocks: list[tuple[int, int]]


def _order(arrival: Arrival) -> tuple[int, int]:
    return arrival[0], arrival[1]


def _row(arrival: Arrival) -> tuple[Any, ...]:
    """The arrival as JSON; what most of them do not say is left out."""
    return arrival[:3] if arrival.details is PLAIN else (*arrival[:3], *arrival.details)


def _arrival(row: list[Any]) -> Arrival:
    if len(row) == 3:  # noqa: PLR2004 - see _row
        return Arrival(*row)
    at_us, line, category, priority, labels, *rest = row
    return Arrival(at_us, line, category, Details(priority, tuple((name, value) for name, value in labels), *rest))


def details_of(fields: Mapping[str, Any]) -> Details:
    """The details of valid fields of an event."""
    if not fields:
        return PLAIN
    labels = tuple(sorted(fields.get("labels", {}).items()))
    return PLAIN._replace(**{name: value for name, value in fields.items() if name != "labels"}, labels=labels)

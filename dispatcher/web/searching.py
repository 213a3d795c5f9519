"""Searches that end in time: what may match stands anywhere among a hundred thousand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

WORK_S: Final = 1.5
"""How long a request looks, or works, before it says that there is more."""

T = TypeVar("T")
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """What was found, and whether there may be more: beyond ``limit``, or where the search did not come to."""

    rows: Sequence[T]
    more: bool


def first(pages: Iterable[Sequence[T]], limit: int | None) -> Iterator[Sequence[T]]:
    """The pages as far as their first ``limit`` rows; all without one."""
    for page in pages:
        if limit is not None and len(page) >= limit:
            yield page[:limit]
            return
        yield page
        limit = None if limit is None else limit - len(page)


def search(pages: Iterable[Sequence[T]], limit: int) -> Found[T]:
    """The first ``limit`` of all pages; ends after ``WORK_S`` with what it has found by then."""
    return _search(pages, limit, time.monotonic() + WORK_S)


def search_both(one: Iterable[Sequence[T]], other: Iterable[Sequence[P]], limit: int) -> tuple[Found[T], Found[P]]:
    """As ``search`` in both, which end together after ``WORK_S``; the first one after half of it."""
    begin_s = time.monotonic()
    return _search(one, limit, begin_s + WORK_S / 2), _search(other, limit, begin_s + WORK_S)


def _search(pages: Iterable[Sequence[T]], limit: int, ends_s: float) -> Found[T]:
    rows: list[T] = []
    for page in pages:
        rows += page
        if len(rows) > limit:
            return Found(rows[:limit], more=True)
        if time.monotonic() > ends_s:
            return Found(rows, more=True)
    return Found(rows, more=False)


def search_on(rows: Iterable[tuple[T, P]], limit: int, matches: Callable[[T], bool]) -> tuple[Found[T], P | None]:
    """As ``search``, of the rows that match; each comes with the place behind it.

    Where there may be more, the second value is the place from which a further search goes on. It is further than the
    one from which this search began.
    """
    ends_s = time.monotonic() + WORK_S
    found: list[T] = []
    place: P | None = None
    for row, behind in rows:
        is_found = matches(row)
        if place is not None and (time.monotonic() > ends_s or (is_found and len(found) == limit)):
            return Found(found, more=True), place
        if is_found:
            found.append(row)
        place = behind
    return Found(found, more=False), None

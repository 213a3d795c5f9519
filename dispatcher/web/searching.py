"""Searches that end in time: what may match stands anywhere among a hundred thousand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

WORK_S: Final = 1.5
"""How long a request looks, or works, before it says that there is more."""

T = TypeVar("T")


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
    ends_s = time.monotonic() + WORK_S
    rows: list[T] = []
    for page in pages:
        rows += page
        if len(rows) > limit:
            return Found(rows[:limit], more=True)
        if time.monotonic() > ends_s:
            return Found(rows, more=True)
    return Found(rows, more=False)


def search_instants(
    rows: Iterable[T], limit: int, matches: Callable[[T], bool], instant_of: Callable[[T], int]
) -> Found[T]:
    """As ``search``, of what matches; ends within no instant, so what is before the last one found goes on exactly.

    Rows of one instant follow each other. There may be more than ``limit`` of it.
    """
    ends_s = time.monotonic() + WORK_S
    found: list[T] = []
    instant: int | None = None
    for row in rows:
        if instant_of(row) != instant and time.monotonic() > ends_s:
            return Found(found, more=True)
        instant = instant_of(row)
        if matches(row):
            if len(found) >= limit and instant_of(found[-1]) != instant:
                return Found(found, more=True)
            found.append(row)
    return Found(found, more=False)

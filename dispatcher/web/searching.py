"""Searches that end in time: what may match stands anywhere among a hundred thousand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

WORK_S: Final = 1.5
"""How long a request looks, or works, before it says that there is more."""

T = TypeVar("T")


class Place(NamedTuple):
    """How far a search has come: it has looked at so many rows of this instant, and at all newer ones."""

    at_us: int
    looked: int


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """What was found, and whether there may be more: beyond ``limit``, or where the search did not come to.

    Then ``place`` is where a further search goes on, if the search is one that can.
    """

    rows: Sequence[T]
    more: bool
    place: Place | None = None


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


def search_after(
    rows: Iterable[T],
    limit: int,
    matches: Callable[[T], bool],
    instant_of: Callable[[T], int],
    after: Place | None = None,
) -> Found[T]:
    """As ``search``, of the rows behind a place that match. The rows come by their instants, the newest first."""
    place, ends_s = after, time.monotonic() + WORK_S
    found: list[T] = []
    instant, looked = -1, 0
    for row in rows:
        looked = looked + 1 if instant_of(row) == instant else 1
        instant = instant_of(row)
        if after is not None and (instant > after.at_us or (instant == after.at_us and looked <= after.looked)):
            ends_s = time.monotonic() + WORK_S
            continue
        is_found = matches(row)
        if place is not after and (time.monotonic() > ends_s or (is_found and len(found) == limit)):
            return Found(found, more=True, place=place)
        if is_found:
            found.append(row)
        place = Place(instant, looked)
    return Found(found, more=False)

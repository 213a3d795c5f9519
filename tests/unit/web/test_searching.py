"""Searches over HTTP end in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import repeat

import pytest

from dispatcher.web import searching
from dispatcher.web.searching import first, search, search_instants


def test_a_search_that_finds_nothing_ends_and_says_that_there_may_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "WORK_S", 0.01)
    nothing: list[str] = []
    found = search(repeat(nothing), 1)
    assert (found.rows, found.more) == ([], True)


@pytest.mark.parametrize(("limit", "rows", "more"), [(2, "ab", True), (3, "abc", False), (4, "abc", False)])
def test_a_search_says_whether_there_is_more_than_it_shows(limit: int, rows: str, *, more: bool) -> None:
    found = search(["a", "", "bc"], limit)
    assert ("".join(found.rows), found.more) == (rows, more)


@pytest.mark.parametrize(
    ("limit", "found", "more"), [(1, "aA", True), (2, "aA", True), (3, "aAbB", True), (5, "aAbBc", False)]
)
def test_a_search_by_instants_ends_within_none(limit: int, found: str, *, more: bool) -> None:
    rows = search_instants("aA-b-Bc-", limit, str.isalpha, lambda row: ord(row.lower()) if row != "-" else 0)
    assert ("".join(rows.rows), rows.more) == (found, more)


def test_a_search_by_instants_that_is_out_of_time_reads_the_instant_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "WORK_S", 0.01)

    def rows() -> Iterator[str]:
        ends_s = time.monotonic() + 0.02
        while time.monotonic() < ends_s:
            yield "a"
        yield from "AbB"

    found = search_instants(rows(), 1_000_000, str.isalpha, lambda row: ord(row.lower()))
    assert (found.rows[0], found.rows[-1], found.more) == ("a", "A", True)


@pytest.mark.parametrize(("limit", "pages"), [(1, ["a"]), (2, ["ab"]), (3, ["ab", "", "c"]), (None, ["ab", "", "cd"])])
def test_the_first_of_all_pages_are_as_many_as_asked_for(limit: int | None, pages: list[str]) -> None:
    assert list(first(["ab", "", "cd"], limit)) == pages

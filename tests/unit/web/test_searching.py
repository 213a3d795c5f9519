"""Searches over HTTP end in time."""

from __future__ import annotations

from itertools import repeat

import pytest

from dispatcher.web import searching
from dispatcher.web.searching import first, search


def test_a_search_that_finds_nothing_ends_and_says_that_there_may_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "WORK_S", 0.01)
    nothing: list[str] = []
    found = search(repeat(nothing), 1)
    assert (found.rows, found.more) == ([], True)


@pytest.mark.parametrize(("limit", "rows", "more"), [(2, "ab", True), (3, "abc", False), (4, "abc", False)])
def test_a_search_says_whether_there_is_more_than_it_shows(limit: int, rows: str, *, more: bool) -> None:
    found = search(["a", "", "bc"], limit)
    assert ("".join(found.rows), found.more) == (rows, more)


@pytest.mark.parametrize(("limit", "pages"), [(1, ["a"]), (2, ["ab"]), (3, ["ab", "", "c"]), (None, ["ab", "", "cd"])])
def test_the_first_of_all_pages_are_as_many_as_asked_for(limit: int | None, pages: list[str]) -> None:
    assert list(first(["ab", "", "cd"], limit)) == pages

"""Searches over HTTP end in time."""

from __future__ import annotations

from itertools import repeat

import pytest

from dispatcher.web import searching
from dispatcher.web.searching import first, search, search_after


def test_a_search_that_finds_nothing_ends_and_says_that_there_may_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "WORK_S", 0.01)
    nothing: list[str] = []
    found = search(repeat(nothing), 1)
    assert (found.rows, found.more) == ([], True)


@pytest.mark.parametrize(("limit", "rows", "more"), [(2, "ab", True), (3, "abc", False), (4, "abc", False)])
def test_a_search_says_whether_there_is_more_than_it_shows(limit: int, rows: str, *, more: bool) -> None:
    found = search(["a", "", "bc"], limit)
    assert ("".join(found.rows), found.more) == (rows, more)


def instant(row: str) -> int:
    """Later letters are older."""
    return 1_000 - ord(row.lower())


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 9])
def test_a_search_goes_on_where_the_one_before_ended(limit: int) -> None:
    rows, lists, after = "aAa1bBbBc2cC", list[str](), None
    while True:
        found = search_after(sorted(rows, key=instant, reverse=True), limit, str.isalpha, instant, after)
        lists.append("".join(found.rows))
        if (after := found.place) is None:
            break
    assert "".join(lists) == "aAabBbBccC"
    assert all(len(each) == limit for each in lists[:-1])


def test_a_search_that_is_out_of_time_has_come_further_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "WORK_S", 0)
    found, after, searches = "", None, 0
    while searches == 0 or after is not None:
        part = search_after("aAbBc", 9, str.isupper, instant, after)
        found, after, searches = found + "".join(part.rows), part.place, searches + 1
    assert (found, 2 <= searches <= 5) == ("AB", True)


@pytest.mark.parametrize(("limit", "pages"), [(1, ["a"]), (2, ["ab"]), (3, ["ab", "", "c"]), (None, ["ab", "", "cd"])])
def test_the_first_of_all_pages_are_as_many_as_asked_for(limit: int | None, pages: list[str]) -> None:
    assert list(first(["ab", "", "cd"], limit)) == pages

"""Searches over HTTP end in time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import pytest

from dispatcher.web import searching
from dispatcher.web.searching import WORK_S, first, search, search_both, search_on
from tests.support.doubles import Stopwatch


def test_a_search_that_finds_nothing_ends_and_says_that_there_may_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "WORK_S", 0.01)
    nothing: list[str] = []
    found = search(repeat(nothing), 1)
    assert (found.rows, found.more) == ([], True)


def test_two_searches_end_in_the_time_of_one_and_each_has_some_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Stopwatch()
    monkeypatch.setattr(searching, "time", clock)

    def pages(cost_s: float) -> Iterator[list[str]]:
        while True:
            clock.now_s += cost_s
            yield ["a"]

    one, other = search_both(pages(0.1), pages(0.1), 1_000)
    assert (one.more, other.more) == (True, True)
    assert WORK_S <= clock.now_s < WORK_S + 0.2
    assert min(len(one.rows), len(other.rows)) >= 7
    begin_s = clock.now_s
    one, other = search_both([["b"]], pages(0.1), 1_000)
    assert (one.rows, one.more, other.more) == (["b"], False, True)
    assert WORK_S <= clock.now_s - begin_s < WORK_S + 0.2


@pytest.mark.parametrize(("limit", "rows", "more"), [(2, "ab", True), (3, "abc", False), (4, "abc", False)])
def test_a_search_says_whether_there_is_more_than_it_shows(limit: int, rows: str, *, more: bool) -> None:
    found = search(["a", "", "bc"], limit)
    assert ("".join(found.rows), found.more) == (rows, more)


def rows(text: str, after: int | None) -> list[tuple[str, int]]:
    """The letters behind a place, each with the place behind it."""
    return [(letter, place) for place, letter in enumerate(text, 1) if place > (after or 0)]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 9])
def test_a_search_goes_on_where_the_one_before_ended(limit: int) -> None:
    lists, after = list[str](), None
    while True:
        found, after = search_on(rows("aAa1bBbBc2cC", after), limit, str.isalpha)
        lists.append("".join(found.rows))
        assert found.more is (after is not None)
        if after is None:
            break
    assert "".join(lists) == "aAabBbBccC"
    assert all(len(each) == limit for each in lists[:-1])


def test_a_search_that_is_out_of_time_has_come_further_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "WORK_S", 0)
    found, after, searches = "", None, 0
    while searches == 0 or after is not None:
        part, after = search_on(rows("aAbBc", after), 9, str.isupper)
        found, searches = found + "".join(part.rows), searches + 1
    assert (found, 2 <= searches <= 5) == ("AB", True)


@pytest.mark.parametrize(("limit", "pages"), [(1, ["a"]), (2, ["ab"]), (3, ["ab", "", "c"]), (None, ["ab", "", "cd"])])
def test_the_first_of_all_pages_are_as_many_as_asked_for(limit: int | None, pages: list[str]) -> None:
    assert list(first(["ab", "", "cd"], limit)) == pages

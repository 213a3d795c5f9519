"""What an action was about, in words."""

from __future__ import annotations

import pytest

from dispatcher.app.documents.acted import ids_in_words, letters_in_words, parked_in_words
from dispatcher.core.typed_instants import read_when
from dispatcher.store.dead_letters import Filter
from dispatcher.store.parked_events import ParkedFilter

NOW_US = 1_800_000_000_000_000


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["a"], "a"),
        (["a", "b", "c", "d", "e"], "a, b, c, d, e"),
        (["a", "b", "c", "d", "e", "f"], "a, b, c, d, e and 1 more"),
        (["x" * 300], "x" * 199 + "…"),
    ],
)
def test_the_first_ids_are_named_and_the_others_counted(ids: list[str], words: str) -> None:
    assert ids_in_words(ids) == words


def test_a_filter_is_said_by_the_fields_it_has() -> None:
    wanted = Filter("errors", "rejected", "is_archived", NOW_US, NOW_US + 1, ("disk", "full"))
    assert letters_in_words(wanted, 10) == (
        "category errors, reason rejected, code is_archived, died since 2027-01-15 08:00:00 UTC, "
        "died before 2027-01-15 08:00:00 UTC, text disk full, at most 10"
    )
    assert letters_in_words(Filter(), None) == "all"
    assert (
        parked_in_words(ParkedFilter("errors", "pace", "#ops", NOW_US, ("disk",)), None)
        == "category errors, reason pace, channel #ops, first seen before 2027-01-15 08:00:00 UTC, text disk"
    )


@pytest.mark.parametrize(
    ("when", "words"),
    [("99999999999d", "1970-01-01 00:00:00 UTC"), ("9999-12-31T23:59-12:00", "9999-12-31 23:59:59 UTC")],
)
def test_an_instant_that_is_no_date_is_said_as_the_nearest(when: str, words: str) -> None:
    assert letters_in_words(Filter(since_us=read_when(when)(NOW_US)), None) == f"died since {words}"


def test_no_screen_is_told_to_do_anything_and_no_text_is_too_odd_for_the_trail() -> None:
    assert letters_in_words(Filter(category="a\x1b[2J\udcff"), None) == r"category a\x1b[2J\udcff"

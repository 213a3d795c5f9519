"""Who is suppressed by what, and since when: what decisions and the minutes of the books say together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any, Final, TypeVar

import pytest

from dispatcher.app.documents.recent import recent_of
from dispatcher.core.explain import Decision
from dispatcher.core.units import US
from dispatcher.store.counts import Counts
from dispatcher.store.dead_letters import DeadLetter, read_letter
from dispatcher.web.page import views
from dispatcher.web.page.views import GROUPED, GROUPED_S, PAUSE_US, by_books, causes, groups
from dispatcher.web.searching import WORK_S
from tests.support.doubles import Stopwatch

NOW_US: Final = 1_000 * 60 * US
MINUTE_US: Final = 60 * US
OWN: Final = {"reason": "limit:category", "scope": "category:errors", "limit": "10/30m"}
COST_S: Final = 0.001
"""What it takes to read one."""

T = TypeVar("T")


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    found = Stopwatch()
    monkeypatch.setattr(views, "time", found)
    return found


def many(row: T, stopwatch: Stopwatch, cost_s: float = COST_S) -> Iterator[T]:
    """More than there is time for."""
    for each in repeat(row, 10_000):
        stopwatch.now_s += cost_s
        yield each


def dropped(at_us: int, **told: Any) -> Decision:  # noqa: ANN401 - a Decision's fields
    return Decision("e", at_us, "dropped", category="errors", **told)


def test_what_was_before_a_pause_is_told_as_earlier() -> None:
    instants = [NOW_US, NOW_US - PAUSE_US, NOW_US - 2 * PAUSE_US - 1, NOW_US - 2 * PAUSE_US - 2]
    (cause,), _, is_all = causes((dropped(at_us, **OWN) for at_us in instants), 10)
    assert (cause.by, is_all) == ("the limit of category errors, 10 in 30m", True)
    assert (cause.count, cause.since_us, cause.earlier) == (2, instants[1], 2)


def test_repeats_of_one_category_are_one_row_and_silences_one_each() -> None:
    repeats = [dropped(NOW_US, reason="repeat", scope=f"once:{n}", limit="1/4h") for n in range(3)]
    silenced = [dropped(NOW_US, reason="silenced", detail=f"by olga: x (silence {n})") for n in (1, 2, 1)]
    found, newest, _ = causes(iter([*repeats, *silenced]), 2)
    assert [(each.by, each.count) for each in found] == [
        ("repeats: one in 4h is posted", 3),
        ("silenced by olga: x (silence 1)", 2),
        ("silenced by olga: x (silence 2)", 1),
    ]
    assert newest == repeats[:2]


def test_the_books_say_since_when_where_not_all_could_be_counted() -> None:
    found, _, _ = causes(iter([dropped(NOW_US, **OWN), dropped(NOW_US, reason="repeat", limit="1/4h")]), 10)
    minutes = [Counts({"dropped errors limit:category": 9} if ago in {0, 7, 12} else {}) for ago in range(31)]
    by_books(found, recent_of(minutes, NOW_US), NOW_US)
    assert [each.since_us for each in found] == [NOW_US - 12 * MINUTE_US, NOW_US]


def test_a_search_for_what_was_never_suppressed_ends_in_time_and_does_not_say_that_it_saw_all(
    stopwatch: Stopwatch,
) -> None:
    found, newest, is_all = causes(many(dropped(NOW_US, **OWN), stopwatch), 10, lambda _: False)
    assert (found, newest, is_all) == ([], [], False)
    assert WORK_S <= stopwatch.now_s <= WORK_S + 101 * COST_S


def test_where_enough_was_suppressed_counting_ends_sooner(stopwatch: Stopwatch) -> None:
    found, newest, is_all = causes(many(dropped(NOW_US, **OWN), stopwatch), 10)
    assert (found[0].count, len(newest), is_all) == (2 * GROUPED, 10, False)
    assert stopwatch.now_s < GROUPED_S + 201 * COST_S


def test_a_search_for_dead_letters_that_are_not_there_ends_in_time(stopwatch: Stopwatch) -> None:
    nothing: list[DeadLetter] = []
    assert groups(many(nothing, stopwatch), 10) == ([], [], 0, False)
    assert WORK_S <= stopwatch.now_s <= WORK_S + 2 * COST_S
    page = [read_letter(b"1-0", {b"reason": b"rejected"})] * (GROUPED + 1)
    stopwatch.now_s = 0.0
    (group,), _, counted, is_all = groups(many(page, stopwatch, GROUPED_S + COST_S), 10)
    assert (group.count, counted, is_all) == (GROUPED + 1, GROUPED + 1, False)

"""The chart of 48 hours, as numbers."""

from __future__ import annotations

import pytest

from dispatcher.store.counts import OUTCOMES
from dispatcher.web.page.chart import HEIGHT, WIDTH, chart
from dispatcher.web.page.looks import HISTORY, Minute


def minute(received: int = 0, **ended: int) -> Minute:
    return Minute(received, {**dict.fromkeys(OUTCOMES, 0), **ended})


def test_the_highest_bar_fills_the_height_and_bars_stand_on_each_other() -> None:
    minutes = [minute()] * (HISTORY - 1) + [minute(4, sent=3, dropped=1)]
    drawn = chart(minutes)
    sent, dropped = drawn["rects"]
    assert [sent.outcome, dropped.outcome] == ["sent", "dropped"]
    assert (sent.y + sent.height, dropped.y + dropped.height) == (HEIGHT, sent.y)
    assert sent.height + dropped.height == HEIGHT
    assert sent.x + WIDTH / 144 == WIDTH
    assert (drawn["top"], drawn["received"], drawn["ended"]["dropped"]) == (4, 4, 1)


def test_a_line_shows_what_was_received_over_all_48_hours() -> None:
    drawn = chart([minute(1)] * HISTORY)
    points = [tuple(map(float, point.split(","))) for point in drawn["line"].split()]
    assert (points[0], points[-1]) == ((0.0, 0.0), (WIDTH, 0.0))


@pytest.mark.parametrize("minutes", [[], [minute()] * HISTORY])
def test_where_nothing_happened_there_is_no_bar(minutes: list[Minute]) -> None:
    assert chart(minutes)["rects"] == []


def test_marks_stand_twelve_hours_apart() -> None:
    assert [(mark["x"], mark["ago"]) for mark in chart([minute()] * HISTORY)["marks"]] == [
        (WIDTH * part / 4, 48 - 12 * part) for part in range(4)
    ]

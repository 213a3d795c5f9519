"""Spans of the stand-in's history calls: how many, and what a caller may say."""

from __future__ import annotations

import pytest

from dispatcher.stand_in.asked import USUAL_ITEMS, as_ts, is_true, ts_us
from dispatcher.stand_in.history import Span


@pytest.mark.parametrize(
    ("limit", "most", "items"),
    [(None, None, 100), (7, None, 7), ("7", None, 7), (999, None, 999), (None, 15, 15), (7, 15, 7)],
)
def test_as_many_are_returned_as_are_asked_for_and_allowed(limit: object, most: int | None, items: int) -> None:
    assert Span.asked_for({"limit": limit}, USUAL_ITEMS, most).items == items


@pytest.mark.parametrize("at_us", [0, 1, 999_999, 1_732_100_000_000_001])
def test_a_ts_is_exact_to_the_microsecond(at_us: int) -> None:
    assert ts_us(as_ts(at_us)) == at_us


@pytest.mark.parametrize(
    ("said", "is_yes"),
    [(True, True), ("true", True), ("TRUE", True), ("1", True), (1, True), (False, False), ("no", False), (2, False)],
)
def test_yes_is_said_in_json_and_in_forms(said: object, *, is_yes: bool) -> None:
    assert is_true(said) is is_yes

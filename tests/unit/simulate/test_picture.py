"""The picture of a simulation: well-formed, without anything that is fetched or run, and true to the figures."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from dispatcher.core.units import US
from dispatcher.simulate.arrivals import Arrival
from dispatcher.simulate.course import Course
from dispatcher.simulate.figures import Bars
from dispatcher.simulate.fleet import START_US, Clock
from dispatcher.simulate.picture import MOST_CATEGORIES, drawn
from dispatcher.simulate.simulation import Simulated
from dispatcher.simulate.sink import SimulatedSlack

SVG = "{http://www.w3.org/2000/svg}"
RULE = CategoryRule((Limit.parse("10/30m"),), "#a", OnLimit.DROP, 1)
POLICY = Policy((Limit.parse("100/30m"),), RULE, {}, None)


def simulated(categories: int = 2, shift_us: int = 0, name: str = "category-") -> Simulated:
    """An hour in which one event comes every ten minutes in each category, and all of them wait."""
    clock = Clock(START_US)
    course = Course(POLICY, clock, Bars(START_US, START_US + 3_599 * US))
    for n in range(6 * categories):
        at_us = START_US + n // categories * 600 * US
        course.offer(str(n), Arrival(at_us, n, f"{name}{n % categories:02}"), at_us)
    course.finish()
    return Simulated(POLICY, course, SimulatedSlack(clock), shift_us)


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - our own


def test_each_diagram_has_its_figures_its_limit_and_its_time() -> None:
    said = texts(drawn(None, simulated(), "two categories"))
    assert "two categories" in said
    assert "all events0 of 12 sent, 12 waiting" in said
    assert "category-000 of 6 sent" in said
    assert said.count("limit 100/30m") == 1
    assert said.count("limit 10/30m") == 2
    assert "each bar 1m" in said
    assert any(text.endswith(" UTC") for text in said)


def test_with_another_simulation_both_stand_above_each_other() -> None:
    said = texts(drawn(simulated(), simulated(), "two"))
    assert [text.partition("0 of")[0] for text in said if text.startswith("all")] == [
        "all events, before",
        "all events, after",
    ]


def test_a_trace_that_counts_from_zero_has_seconds_in_its_picture() -> None:
    assert "0 s" in texts(drawn(None, simulated(shift_us=START_US - START_US % (60 * US)), "zero"))


def test_of_many_categories_the_largest_are_drawn() -> None:
    said = texts(drawn(None, simulated(MOST_CATEGORIES + 3), "many"))
    assert sum(text.startswith("category-") for text in said) == MOST_CATEGORIES
    assert "and 3 more categories" in said


@pytest.mark.parametrize(("char", "kept"), [("W", 9), ("n", 20)])
def test_the_name_of_a_category_is_cut_by_how_wide_it_is(char: str, kept: int) -> None:
    """What stands behind it has room, also in the last column."""
    (said,) = [text for text in texts(drawn(None, simulated(1, name=char * 40), "wide")) if text.startswith(char)]
    assert kept <= said.count(char) < 2 * kept
    assert said.endswith("…0 of 6 sent")


def test_nothing_in_it_is_fetched_or_run_and_it_is_light_and_dark() -> None:
    svg = drawn(None, simulated(), "<b> & 'c'")
    assert "prefers-color-scheme: dark" in svg
    assert not re.search(r"<script|href|url\(|@import|<b>", svg)
    assert "<b> & 'c'" in texts(svg)


@pytest.mark.parametrize(
    ("span_s", "width_s", "count"),
    [(1, 1, 1), (100, 1, 100), (3_600, 60, 61), (86_400, 900, 97), (10**8, 840_337, 120)],
)
def test_a_span_of_time_has_few_bars_of_round_width(span_s: int, width_s: int, count: int) -> None:
    bars = Bars(START_US, START_US + span_s * US - 1)
    assert bars.width_us == width_s * US
    assert abs(bars.count - count) <= 1
    assert bars.place(START_US - 1) == 0
    assert bars.place(START_US + 10**9 * US) == bars.count - 1

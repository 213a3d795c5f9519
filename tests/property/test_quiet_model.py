"""Quiet hours against a model that looks at the clock of the zone minute by minute, also where the clocks are set."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.core.matchers import parse_matcher
from dispatcher.core.quiet import Hush, Quiet, QuietHours, QuietThen, Span, Times, longest_us
from dispatcher.core.units import US
from dispatcher.settings.zones import zone_names, zone_of

MINUTE_US: Final = 60 * US
DAY_MINUTES: Final = 1_440
LOOKS: Final = 3 * DAY_MINUTES
SECONDS_OF_DAY: Final = 86_400


def is_quiet(quiet: Quiet, minute: int) -> bool:
    """By the definition: some span that begins on one of the days has begun on the wall and has not ended."""
    wall = datetime.fromtimestamp(minute * 60, quiet.clock)
    at, day = wall.hour * 60 + wall.minute, wall.weekday()
    return any(
        begins <= minute_of_day < (ends if ends > begins else ends + DAY_MINUTES)
        for minute_of_day, began_on in ((at, day), (at + DAY_MINUTES, (day - 1) % 7))
        if began_on in quiet.days
        for begins, ends in quiet.times
    )


@cache
def changes_of_the_clock(name: str, year: int) -> tuple[int, ...]:
    """The days of a year, as seconds since 1970, before whose end the clocks are set."""
    zone, first = zone_of(name), round(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    days = range(first, first + 366 * SECONDS_OF_DAY, SECONDS_OF_DAY)
    return tuple(day for day in days if offset(zone, day) != offset(zone, day + SECONDS_OF_DAY))


def offset(zone: tzinfo, at_s: int) -> timedelta | None:
    return datetime.fromtimestamp(at_s, zone).utcoffset()


MINUTES: Final = st.one_of(st.integers(0, DAY_MINUTES - 1), st.sampled_from([0, 60, 90, 119, 120, 150, 180, 1_439]))
TIMES: Final = st.builds(Times, MINUTES, st.one_of(MINUTES, st.just(DAY_MINUTES))).filter(
    lambda times: times.begins != times.ends
)
ZONES: Final = st.one_of(
    st.sampled_from(zone_names()),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia"]),
)


@st.composite
def quiet_and_minutes(draw: st.DrawFn) -> tuple[Quiet, int]:
    """Quiet hours, and a minute: often one on a day on which the clocks are set."""
    name, year = draw(ZONES), draw(st.integers(1976, 2036))
    first = round(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    days: st.SearchStrategy[int] = st.integers(0, 365).map(lambda day: first + day * SECONDS_OF_DAY)
    if set_on := changes_of_the_clock(name, year):
        days = st.one_of(st.sampled_from(set_on), days)
    day = draw(days)
    quiet = Quiet(
        "q",
        tuple(draw(st.lists(TIMES, min_size=1, max_size=3))),
        name,
        zone_of(name),
        QuietThen.DEFER,
        draw(st.one_of(st.just(frozenset(range(7))), st.frozensets(st.integers(0, 6), min_size=1))),
    )
    return quiet, day // 60 + draw(st.integers(-DAY_MINUTES, 2 * DAY_MINUTES))


def nights(*times: Times, zone: str = "Europe/Berlin", days: frozenset[int] = frozenset(range(7))) -> Quiet:
    return Quiet("q", times, zone, zone_of(zone), QuietThen.DEFER, days)


@given(quiet_and_minutes())
@example((nights(Times(90, 150)), 1_792_890_000 // 60))
@example((nights(Times(120, 180)), 1_774_746_000 // 60))
def test_quiet_hours_are_those_of_the_clock_of_the_zone(drawn: tuple[Quiet, int]) -> None:
    compare(*drawn)


@pytest.mark.slow
@given(quiet_and_minutes())
def test_many_quiet_hours_are_those_of_the_clock_of_the_zone(drawn: tuple[Quiet, int]) -> None:
    compare(*drawn)


def compare(quiet: Quiet, minute: int) -> None:
    """Its spans from that minute on are those that the clock shows, minute by minute."""
    states = [is_quiet(quiet, each) for each in range(minute, minute + LOOKS)]
    for place in (0, 1, 97, 1_000, 2_000):
        at_us = (minute + place) * MINUTE_US + 7
        assert (quiet.span_at(at_us) is not None) is states[place]
    found = quiet.span_at(minute * MINUTE_US) or quiet.next_after(minute * MINUTE_US)
    place = 0
    while place < LOOKS:
        begins = next((n for n in range(place, LOOKS) if states[n]), LOOKS)
        ends = next((n for n in range(begins, LOOKS) if not states[n]), LOOKS)
        if begins == LOOKS:
            assert found is None or found.since_us >= (minute + LOOKS) * MINUTE_US
            return
        assert found is not None
        if begins > 0:
            assert found.since_us == (minute + begins) * MINUTE_US
        if ends == LOOKS:
            assert found.until_us is None or found.until_us >= (minute + LOOKS) * MINUTE_US
            return
        assert found.until_us == (minute + ends) * MINUTE_US
        assert quiet.span_at(found.until_us - 1) == found
        found, place = quiet.next_after(found.until_us), ends


def berlin(text: str, fold: int = 0) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone_of("Europe/Berlin"), fold=fold).timestamp()) * US


@pytest.mark.parametrize(
    ("times", "after", "span"),
    [
        pytest.param(
            Times(22 * 60, 7 * 60), "2026-03-28T12:00", ("2026-03-28T22:00", 0, "2026-03-29T07:00", 0), id="8 hours"
        ),
        pytest.param(
            Times(22 * 60, 7 * 60), "2026-10-24T12:00", ("2026-10-24T22:00", 0, "2026-10-25T07:00", 0), id="10 hours"
        ),
        pytest.param(
            Times(120, 180), "2026-03-28T12:00", ("2026-03-30T02:00", 0, "2026-03-30T03:00", 0), id="skipped"
        ),
        pytest.param(
            Times(150, 210), "2026-03-28T12:00", ("2026-03-29T03:00", 0, "2026-03-29T03:30", 0), id="begins later"
        ),
        pytest.param(
            Times(120, 180), "2026-10-24T12:00", ("2026-10-25T02:00", 0, "2026-10-25T03:00", 0), id="two hours long"
        ),
        pytest.param(
            Times(135, 165), "2026-10-25T02:20", ("2026-10-25T02:15", 1, "2026-10-25T02:45", 1), id="a second time"
        ),
    ],
)  # fmt: skip
def test_where_the_clocks_are_set(times: Times, after: str, span: tuple[str, int, str, int]) -> None:
    begins, first_fold, ends, last_fold = span
    assert nights(times).next_after(berlin(after)) == Span(berlin(begins, first_fold), berlin(ends, last_fold))


def test_days_are_those_on_which_a_span_begins() -> None:
    friday = nights(Times(22 * 60, 7 * 60), days=frozenset({4}))
    assert friday.span_at(berlin("2026-11-21T06:59")) is not None
    assert friday.span_at(berlin("2026-11-21T22:00")) is None
    assert friday.span_at(berlin("2026-11-20T06:59")) is None


def test_the_longest_time_without_a_break_is_that_of_all_together() -> None:
    hour_us, from_us = 3_600 * US, berlin("2026-01-01T00:00")
    night, weekend = nights(Times(22 * 60, 7 * 60)), nights(Times(0, DAY_MINUTES), days=frozenset({5, 6}))
    assert longest_us([], from_us) == 0
    assert longest_us([night], from_us) == 10 * hour_us
    assert longest_us([weekend], from_us) == 49 * hour_us
    assert longest_us([night, weekend], from_us) == (2 + 49 + 7) * hour_us
    assert longest_us([nights(Times(0, DAY_MINUTES))], from_us) is None
    assert longest_us([nights(Times(0, 720)), nights(Times(720, 1440))], from_us) is None


def test_the_longest_wait_begins_with_hours_that_defer_and_goes_on_in_those_that_follow() -> None:
    hour_us, from_us = 3_600 * US, berlin("2026-01-01T00:00")

    def longest_wait(*hours: tuple[int, int, QuietThen]) -> int | None:
        found = [replace(nights(Times(begins * 60, ends * 60)), then=then) for begins, ends, then in hours]
        return longest_us(found, from_us, QuietThen.DEFER)

    drop, defer = QuietThen.DROP, QuietThen.DEFER
    assert longest_wait((10, 12, drop)) == 0
    assert longest_wait((10, 12, drop), (12, 14, defer), (14, 17, drop)) == 5 * hour_us
    assert longest_wait((10, 13, drop), (12, 14, defer)) == 2 * hour_us
    assert longest_wait((10, 15, drop), (12, 14, defer)) == 0, "the drop decides, since it ends last"
    assert longest_wait((12, 15, drop), (12, 15, defer)) == 3 * hour_us
    assert longest_wait((12, 13, defer), (12, 18, drop)) == longest_wait((12, 18, drop), (12, 13, defer)) == 0
    assert longest_wait((10, 12, defer), (13, 15, drop)) == 2 * hour_us


def test_of_the_hours_of_a_file_those_for_the_category_are_asked_also_when_the_clock_is_set_back() -> None:
    zone = "Europe/Berlin"
    night = Quiet("night", (Times(1_320, 420),), zone, zone_of(zone), QuietThen.DROP, categories=("a",))
    noon = Quiet(
        "noon", (Times(720, 780),), zone, zone_of(zone), QuietThen.DEFER, unless=(parse_matcher("priority=high"),)
    )
    hours = QuietHours([night, noon])
    at_noon, at_night, morning = (berlin(f"2026-11-23T{at}") for at in ("12:30", "23:00", "10:00"))
    span_us = (berlin("2026-11-23T22:00"), berlin("2026-11-24T07:00"))
    for _ in range(2):
        assert hours.hush("a", at_night, ("low", {})) == Hush("night", *span_us, QuietThen.DROP)
        assert hours.hush("b", at_night, ("low", {})) is None
        assert hours.hush("b", at_noon, ("low", {})) is not None
        assert hours.hush("b", at_noon, ("high", {})) is None
        assert hours.hush("b", at_noon) is not None
        assert hours.named("noon", at_noon) == hours.hush("a", at_noon)
        assert hours.named("noon", at_night) is None
        assert hours.loud_until_us("a", morning) == berlin("2026-11-23T12:00")
        assert hours.loud_until_us("b", berlin("2026-11-23T13:00")) == berlin("2026-11-24T12:00")
        assert hours.loud_until_us("a", berlin("2026-11-23T13:00")) == span_us[0]
        assert hours.loud_until_us("a", at_night) is None
        assert [quiet.name for quiet, _ in hours.holding(at_night)] == ["night"]

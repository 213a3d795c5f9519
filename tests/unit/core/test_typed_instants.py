"""Times as people type them on the command line."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from dispatcher.core.typed_instants import read_when
from dispatcher.core.units import US

ZONE = timezone(timedelta(hours=1))
NOW = datetime(2026, 11, 21, 23, 30, tzinfo=UTC)
"""Half past midnight on the 22nd in the zone."""


def us(instant: datetime) -> int:
    return round(instant.timestamp() * US)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2h", NOW - timedelta(hours=2)),
        ("today", datetime(2026, 11, 22, tzinfo=ZONE)),
        ("yesterday", datetime(2026, 11, 21, tzinfo=ZONE)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=ZONE)),
        ("2026-11-20T08:00", datetime(2026, 11, 20, 8, tzinfo=ZONE)),
        ("2026-11-20T08:00Z", datetime(2026, 11, 20, 8, tzinfo=UTC)),
        ("1795161600", datetime(2026, 11, 20, 8, tzinfo=UTC)),
        ("1795161600.250001", datetime(2026, 11, 20, 8, 0, 0, 250_001, tzinfo=UTC)),
        ("2026-11-20T08:00-05:00", datetime(2026, 11, 20, 13, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_in_the_zone_unless_it_names_one(text: str, meant: datetime) -> None:
    assert read_when(text, ZONE)(us(NOW)) == us(meant)


def test_a_day_of_the_clock_change_begins_at_its_own_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        noon = us(datetime(2026, 10, 25, 12, tzinfo=ZONE))
        assert read_when("today")(noon) == us(datetime(2026, 10, 24, 22, tzinfo=UTC))
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "90", "173210000", "17321000000", "tomorrow", "2026-13-01", "2 h", "0001-01-01", "-2h"]
)
def test_what_is_no_time_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 2h"):
        read_when(text)

"""What events are about: when two of them are about the same thing, and what differs from one repeat to the next."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.event import Event
from dispatcher.core.limits import Kind, Limit
from dispatcher.core.once import By, Once, digest_of, without_volatile
from dispatcher.core.units import US

HOUR_US = 3_600 * US


def name(event: Event, by: By = "dedup_key", category: str = "alerts") -> str | None:
    scope = Once(by, HOUR_US).scope(category, event)
    return None if scope is None else scope.name


def about(key: str, **fields: Any) -> Event:  # noqa: ANN401 - an Event's
    return Event("alerts", "disk full", dedup_key=key, **fields)


def test_one_event_passes_in_each_window() -> None:
    scope = Once("dedup_key", HOUR_US).scope("alerts", about("db1"))
    assert scope is not None
    assert scope.limits == (Limit(1, window_us=HOUR_US, kind=Kind.ONCE),)
    assert str(scope.limits[0]) == "1/1h"


def test_events_of_one_key_in_one_category_are_about_the_same() -> None:
    assert name(about("db1")) == name(Event("alerts", "still full", dedup_key="db1"))
    assert len({name(about("db1")), name(about("db2")), name(about("db1"), category="other")}) == 3


def test_a_once_key_takes_the_place_of_the_dedup_key() -> None:
    assert name(about("group", once_key="db1")) == name(about("other", once_key="db1"))
    assert name(about("group", once_key="db1")) != name(about("group"))


def test_events_of_the_same_values_of_all_labels_are_about_the_same() -> None:
    by = ("alertname", "instance")
    labels = {"alertname": "Disk", "instance": "db1"}
    assert name(Event("alerts", "a", labels={**labels, "value": "93"}), by) == name(
        Event("alerts", "b", labels=labels), by
    )
    assert name(Event("alerts", "a", labels={**labels, "instance": "db2"}), by) != name(
        Event("alerts", "b", labels=labels), by
    )


@pytest.mark.parametrize("by", ["dedup_key", ("instance",)])
def test_an_event_that_does_not_say_what_it_is_about_is_not_asked(by: By) -> None:
    assert name(Event("alerts", "disk full", labels={"alertname": "Disk"}), by) is None


def test_by_text_an_event_of_blocks_alone_is_not_asked() -> None:
    assert name(Event("alerts", blocks=[{"type": "divider"}]), "text") is None


def test_a_recovery_is_not_asked() -> None:
    assert name(about("db1", status="resolved")) is None


def test_another_by_begins_afresh() -> None:
    event = Event("alerts", "same", dedup_key="same", labels={"a": "same", "b": "same"})
    assert len({name(event, by) for by in ("dedup_key", "text", ("a",), ("b",), ("a", "b"))}) == 5


def test_parts_of_a_digest_count_apart() -> None:
    assert digest_of("ab", "c") != digest_of("a", "bc")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("disk 93% full on db1", "disk 94.5% full on db1"),
        ("took 12ms, -3 left", "took 1450ms, +7 left"),
        ("rate 5MB/s", "rate 17MB/s"),
        ("job 3f2504e0-4f89-41d3-9a0c-0305e82c3301 failed", "job 00000000-4f89-41d3-9a0c-0305e82c3301 failed"),
        ("commit deadbeef1 broke it", "commit 0123abcdef broke it"),
        ('cannot open "/tmp/a b"', 'cannot open "/tmp/c"'),
        ("no 'x' in `y`", "no 'z z' in `w`"),
        ("queue=42 (3)", "queue=17 (99)"),
        ("one  two\nthree", "one two three"),
    ],
)
def test_numbers_ids_and_quotes_do_not_make_two_things(first: str, second: str) -> None:
    assert without_volatile(first) == without_volatile(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("disk full on db1", "disk full on db2"),
        ("10.0.0.1 is down", "10.0.0.2 is down"),
        ("host web-1 down", "host web-2 down"),
        ("release v2.1", "release v2.2"),
        ("deadbeef", "feedcafe"),
        ("can't read, isn't there", "can't write, isn't there"),
    ],
)
def test_words_that_hold_digits_stay_two_things(first: str, second: str) -> None:
    assert without_volatile(first) != without_volatile(second)

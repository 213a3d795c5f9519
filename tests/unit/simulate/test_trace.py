"""Traces: what each form of them says, and where what is none goes wrong."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator

import pytest

from dispatcher.core.once import without_volatile
from dispatcher.core.units import US
from dispatcher.simulate.arrivals import PLAIN, Arrival, Arrivals, Details, Part
from dispatcher.simulate.trace import MOST_BYTES, TraceError, read_trace

NOON_US = 1_769_860_800 * US


@pytest.fixture
def arrivals() -> Iterator[Arrivals]:
    with Arrivals() as made:
        yield made


def read(text: str | bytes, into: Arrivals) -> list[Arrival]:
    read_trace(io.BytesIO(text.encode() if isinstance(text, str) else text), "trace", into)
    return list(into)


def test_lines_of_json_say_when_what_came(arrivals: Arrivals) -> None:
    rows = (
        '{"time": 1769860800, "category": "errors"}',
        "",
        '{"time": 1769860800.25, "category": "errors", "text": "left alone"}',
        '{"time": "2026-01-31T13:00:01+01:00", "category": "ci", "priority": "high", "labels": {"n": 1, "host": "a"}}',
    )
    assert read("\ufeff" + "\n".join(rows), arrivals) == [
        Arrival(NOON_US, 1, "errors"),
        Arrival(NOON_US + 250_000, 3, "errors"),
        Arrival(NOON_US + US, 4, "ci", Details("high", (("host", "a"), ("n", "1")))),
    ]


def test_what_else_an_event_says_of_itself_is_kept(arrivals: Arrivals) -> None:
    said = {"id": "a", "channel": "ops", "max_age": "30m", "dedup_key": "db1", "status": "firing"}
    (arrival,) = read(json.dumps({"time": 0, "category": "errors", **said}), arrivals)
    assert arrival.details == Details(id="a", channel="#ops", max_age=1800.0, dedup_key="db1", status="firing")
    assert arrival.details.is_remarkable


def test_a_text_is_kept_as_what_repeats_have_in_common_and_only_where_it_matters(arrivals: Arrivals) -> None:
    told = [
        ("errors", "disk 90 % full on db1"),
        ("errors", "disk  91 % full on db1"),
        ("errors", "disk 91 % full on db2"),
        ("errors", "deadbeef12345678"),
        ("errors", ""),
        ("errors", None),
        ("news", "disk 90 % full on db1"),
    ]
    lines = "\n".join(json.dumps({"time": 0, "category": category, "text": text}) for category, text in told)
    read_trace(io.BytesIO(lines.encode()), "trace", arrivals, needs_text=lambda category: category == "errors")
    texts = [each.details.text for each in arrivals]
    assert texts[0] == texts[1]
    assert len(set(texts[1:4])) == 3
    assert all(text and without_volatile(text) == text for text in texts[:4])
    assert texts[4:] == ["", None, None]


def test_a_log_says_when_each_event_was_first_seen(arrivals: Arrivals) -> None:
    log = [
        {"event": "worker.started", "time": "2026-01-31T12:00:00Z"},
        {"event": "event.parked", "event_id": "a", "category": "errors", "time": "2026-01-31T12:00:01Z"},
        {"event": "event.settled", "category": "errors", "outcome": "sent", "seen": 1769860801.5, "time": "later"},
        {"event": "event.settled", "category": "errors", "outcome": "dropped", "time": "2026-01-31T12:00:00Z"},
        {"event": "event.settled", "outcome": "duplicate", "time": "2026-01-31T12:00:03Z"},
        {"event": "event.settled", "outcome": "dead", "reason": "invalid", "time": "2026-01-31T12:00:03Z"},
    ]
    assert read("\n".join(map(json.dumps, log)), arrivals) == [
        Arrival(NOON_US, 4, "errors"),
        Arrival(NOON_US + 1_500_000, 3, "errors"),
        Arrival(NOON_US + 3 * US, 5, ""),
    ]


def test_csv_has_a_header_and_a_line_for_each_event(arrivals: Arrivals) -> None:
    text = (
        "category, time, priority, labels.host, labels, max_age\r\n"
        'errors, 1769860800.5,, db1, "{""zone"": ""a""}", 90\r\n'
        "deploys,2026-01-31T12:00:00Z,low,,,\r\n"
    )
    assert read(text, arrivals) == [
        Arrival(NOON_US, 3, "deploys", Details("low")),
        Arrival(NOON_US + 500_000, 2, "errors", Details(labels=(("host", "db1"), ("zone", "a")), max_age=90.0)),
    ]


GOOD = '{"time": 1, "category": "a"}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "trace: line 1: nothing here, expected JSON lines, or CSV with a header"),
        ('{"event": "worker.started"}\n', "trace: line 1: no event here or below, expected at least one"),
        (GOOD + "{oops}", "trace: line 2, column 2: not JSON (Expecting property name"),
        (GOOD + "[1]", "trace: line 2, column 1: list, expected a JSON object"),
        (GOOD.encode() + b'{"time": 1, "category": "\xff"}', "trace: line 2, column 26: the byte 0xff is not UTF-8"),
        (GOOD + '{"category": "a"}', "trace: line 2, column 1: time is missing, expected seconds since 1970 or ISO"),
        ('{"time": 1}', "trace: line 1, column 1: category is missing, expected 1 to 64 of A-Z"),
        ('{"time": true, "category": "a"}', "trace: line 1, column 2: time is true, expected seconds"),
        ('{"time": -1, "category": "a"}', "trace: line 1, column 2: time is -1, expected seconds"),
        ('{"time": 1769860800000, "category": "a"}', "for example 2026-01-31T12:00:00Z; these are milliseconds?"),
        ('{"time": "2026-01-31 12:00", "category": "a"}', 'time is "2026-01-31 12:00", expected seconds since 1970 or'),
        ('{"time": 1, "category": "not one"}', 'line 1, column 13: category is "not one", expected 1 to 64 of A-Z'),
        ('{"time": 1, "category": 7}', "line 1, column 13: category is 7, expected"),
        ('{"time": 1, "categry": "a"}', 'line 1, column 13: the key "categry" is not known; did you mean category?'),
        ('{"time": 1, "category": "a", "x": 1}', 'column 30: the key "x" is not known; expected some of category'),
        ('{"time": 1, "category": "é"}', 'column 13: category is "\\u00e9"'),
        ('{"time": 1, "category": "a", "priority": "now"}', "line 1, column 30: priority is"),
        ('{"time": 1, "category": "a", "labels": [1]}', "line 1, column 30: labels is"),
        ('{"time": 1, "category": "a", "status": "odd"}', "line 1, column 30: status is"),
        ('{"time": 1, "category": "a", "dedup_key": 1}', "line 1, column 30: dedup_key is 1, expected"),
        ("time\n1\n", "trace: line 1: a header without the column category, expected time and category"),
        ("time,category,oops\n", 'trace: line 1, column 3: the column "oops" is not known, expected a header'),
        ("time,category,time\n", 'trace: line 1, column 3: the column "time" stands here twice'),
        ("time,category\n1,a\n2\n", "trace: line 3, column 2: 1 columns, expected 2 as the header has"),
        ("time,category\n1,a\nx,b\n", 'trace: line 3, column 1: time is "x", expected seconds since 1970'),
        ("time,category,priority\n1,a,now\n", "trace: line 2, column 3: priority is"),
        ("time,category,labels\n1,a,b\n", 'trace: line 2, column 3: labels is "b", expected a JSON object'),
        ('time,category\n1,"a\n', "trace: line 2: not CSV"),
        ("time,category\n", "trace: line 1: no event here or below, expected at least one"),
        (GOOD + '{"x": "' + "x" * MOST_BYTES, f"trace: line 2: longer than {MOST_BYTES} bytes, expected one event"),
    ],
)
def test_what_is_no_event_is_told_with_its_place(text: str | bytes, said: str, arrivals: Arrivals) -> None:
    with pytest.raises(TraceError) as told:
        read(text, arrivals)
    assert said in str(told.value)


def test_more_arrivals_than_fit_in_memory_come_in_order_again_and_again() -> None:
    chance = random.Random(7)
    came = [
        Arrival(chance.randrange(500), line, f"c{line % 3}", Details(labels=(("n", "1"),)) if line % 5 == 0 else PLAIN)
        for line in range(1, 2_501)
    ]
    with Arrivals(run=600) as kept:
        for each in came:
            kept.add(each)
        expected = sorted(came)
        assert list(kept) == list(kept) == expected
        assert (len(kept), kept.first_us, kept.last_us) == (2_500, expected[0].at_us, expected[-1].at_us)
        half = Part(kept, 100, 200)
        assert list(half) == [each for each in expected if 100 <= each.at_us < 200]


def test_sorted_arrivals_need_no_merge() -> None:
    with Arrivals(run=10) as kept:
        for line in range(1, 96):
            kept.add(Arrival(line // 2, line, "a"))
        assert [each.line for each in kept] == list(range(1, 96))

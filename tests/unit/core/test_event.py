"""What a valid event is, and what is said of one that is not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.event import MAX_EVENT_BYTES, Event, Status, encode_event, is_remembered, job_id_for
from dispatcher.core.limits import slot_id
from dispatcher.core.units import Lane
from dispatcher.errors import EventTooLarge, InvalidEvent

BLOCKS = "expected a list of at most 50 objects, each with a type"
THREAD = "expected a key of 1 to 128 printable characters"


class Word(str, Enum):  # noqa: UP042 - as many programs have it
    """A text that shows its name instead of itself."""

    GENERAL = "general"


FULL: dict[str, Any] = {
    "v": 1,
    "category": "errors",
    "text": "disk full on db1",
    "id": "disk-1",
    "channel": "#ops",
    "blocks": [{"type": "divider"}],
    "thread_ts": "1732100000.123456",
    "priority": "high",
    "labels": {"host": "db1"},
    "created_at": 1732100000.123,
    "max_age": 3600,
    "mrkdwn": True,
    "thread": "disk-db1",
    "not_before": 1732100600.0,
}


def test_every_field_survives_the_queue() -> None:
    event = Event.from_payload(FULL)
    assert json.loads(encode_event(event)) == FULL
    assert Event.from_payload(json.loads(encode_event(event))) == event
    assert event.priority is Lane.HIGH


def test_category_and_text_are_enough() -> None:
    assert json.loads(encode_event(Event("errors", "x"))) == {"v": 1, "category": "errors", "text": "x"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"category": None}, "category is null, expected 1 to 64 of"),
        ({"category": "é"}, "category is 'é', expected 1 to 64 of"),
        ({"category": "x" * 65}, "x' (65 characters), expected 1 to 64 of"),
        ({"category": "-x"}, "beginning with a letter or digit"),
        ({"text": 7}, "text is 7, expected a string"),
        ({"text": "  \n", "blocks": []}, "text is empty, expected some text, or blocks"),
        ({"text": "\ud800"}, "expected a string of well-formed Unicode"),
        ({"blocks": "x"}, f"blocks is 'x', {BLOCKS}"),
        ({"blocks": [{}] * 51}, f"blocks is a list of 51, {BLOCKS}"),
        ({"blocks": [7]}, f"blocks is [7], {BLOCKS}"),
        ({"blocks": {"type": "divider"}}, f'blocks is {{"type": "divider"}}, {BLOCKS}'),
        ({"blocks": [{"text": "x"}]}, f'blocks is [{{"text": "x"}}], {BLOCKS}'),
        ({"blocks": [{"type": "divider"}, {"type": 7}]}, f'blocks is [{{"type": "divider"}}, {{"type": 7}}], {BLOCKS}'),
        ({"id": ""}, "id is '', expected 1 to 128 printable characters"),
        ({"id": "x" * 300}, "x... (300 characters), expected 1 to 128 printable characters"),
        ({"id": "a\x1b[31m"}, r"id is 'a\x1b[31m', expected 1 to 128 printable characters"),
        ({"channel": 5}, "channel is 5, expected a name such as #ops"),
        ({"channel": "#"}, "channel is '#', expected a name such as #ops"),
        ({"text": "\x01 \x02\n", "blocks": []}, "text is empty, expected some text, or blocks"),
        ({"thread_ts": "now"}, "thread_ts is 'now', expected Slack's ts"),
        ({"status": "resolved"}, "dedup_key is missing, expected what is resolved"),
        ({"priority": "urgent"}, "priority is 'urgent', expected high, normal or low"),
        ({"priority": ["high"]}, 'priority is ["high"], expected high, normal or low'),
        ({"labels": {"a": "x", "b": True}}, "the label 'b' is true, expected a string or a number"),
        ({"labels": {"a": 10**400}}, "the label 'a' is a number of very many digits, expected a smaller number"),
        ({"labels": {"a": float("nan")}}, "the label 'a' is not a number, expected a string or a number"),
        ({"max_age": "soon"}, "max_age is 'soon', expected a number of seconds above 0, up to 366 days, or a span"),
        ({"labels": {"a": None}}, "the label 'a' is null, expected a string"),
        ({"labels": {1: "a"}}, "a key of labels is 1, expected a string"),
        ({"labels": {b"a": "x"}}, "a key of labels is b'a', expected a string"),
        ({"created_at": "x"}, "created_at is 'x', expected seconds since 1970"),
        ({"created_at": float("nan")}, "created_at is not a number, expected seconds since 1970"),
        ({"max_age": 0}, "max_age is 0, expected a number of seconds above 0"),
        ({"max_age": 1e303}, "max_age is 1e+303, expected a number of seconds above 0, up to 366 days"),
        ({"max_age": float("-inf")}, "max_age is infinite, expected a number of seconds above 0, up to 366 days"),
        ({"max_age": {1, 2}}, 'max_age is "set", expected a number of seconds above 0'),
        (
            {"labels": dict.fromkeys(map(str, range(33)), "x")},
            "labels is an object of 33 keys, expected an object of at most 32 strings",
        ),
        (
            {"max_age": 10**400},
            "max_age is a number of very many digits, expected a number of seconds above 0, up to 366 days",
        ),
        ({"created_at": 10**400}, "expected seconds since 1970"),
        (dict.fromkeys(map(str, range(1000)), 1), "; and 997 more"),
        ({"delay": 367 * 86_400}, "delay is 31708800, expected a number of seconds above 0, up to 366 days, or a span"),
        ({"delay": "1h", "not_before": 1}, "delay and not_before are both given, expected one of them"),
        (
            {"not_before": "2026-11-24T08:00:00"},
            "expected seconds since 1970, or an instant with its zone",
        ),
        ({"not_before": datetime(2026, 11, 24, 8)}, 'not_before is "datetime", expected seconds since 1970'),  # noqa: DTZ001 - refused for it
        ({"not_before": -1}, "not_before is -1, expected seconds since 1970"),
        ({"not_before": 4_102_444_801}, "not_before is 4102444801, expected seconds since 1970"),
        ({"not_before": "tomorrow"}, "not_before is 'tomorrow', expected seconds since 1970"),
        ({"not_before": 1732100600000}, "not_before is 1732100600000, expected seconds since 1970"),
        ({"max_age": True}, "max_age is true, expected a number of seconds above 0"),
        ({"mrkdwn": "yes"}, "mrkdwn is 'yes', expected true or false"),
        ({"v": 2}, "v is 2, expected 1"),
        ({"v": True}, "v is true, expected 1"),
        ({"thread": ""}, f"thread is '', {THREAD}"),
        ({"thread": "a\nb"}, f"thread is 'a\\nb', {THREAD}"),
        ({"thread": "x" * 129}, f"x... (129 characters), {THREAD}"),
        ({"thread": 7}, f"thread is 7, {THREAD}"),
        ({"#": 1}, ", thread, thread_ts, v"),
        ({"chanel": "#x"}, "'chanel' is not a key of an event; did you mean channel?"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value))[:20],
)
def test_a_bad_event_says_key_value_and_expectation(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        Event.from_payload({**FULL, **change})
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": None}, "text is None, expected a string"),
        ({"max_age": True}, "max_age is True, expected a number of seconds"),
        ({"labels": {"a": None}}, "the label 'a' is None, expected a string"),
    ],
    ids=str,
)
def test_what_python_made_is_refused_in_the_words_of_python(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEvent, match=f"^{message}"):
        Event(**{"category": "errors", "text": "x", **fields})


@pytest.mark.parametrize(
    ("payload", "shown"), [(None, "null"), ([], r"\[\]"), ("x", "'x'"), (7, "7"), (True, "true"), (inf, "infinite")]
)
def test_a_payload_that_is_no_object_is_no_event(payload: object, shown: str) -> None:
    with pytest.raises(InvalidEvent, match=f"^event is {shown}, expected a JSON object$"):
        Event.from_payload(payload)


def test_a_missing_category_is_named() -> None:
    with pytest.raises(InvalidEvent, match="category is missing"):
        Event.from_payload({"text": "x"})


@pytest.mark.parametrize("change", [{}, {"blocks": []}, {"blocks": None}])
def test_a_missing_text_is_not_called_empty(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent, match=r"^text is missing, expected some text, or blocks$"):
        Event.from_payload({"category": "errors", **change})


@pytest.mark.parametrize("letter", ["x", "漢"], ids=["ascii", "of three bytes"])
def test_an_event_of_too_many_bytes_is_refused_before_it_is_sent(letter: str) -> None:
    letters = MAX_EVENT_BYTES // len(letter.encode())
    assert encode_event(Event("errors", letter * (letters - 100)))
    with pytest.raises(EventTooLarge, match=f"expected at most {MAX_EVENT_BYTES}"):
        encode_event(Event("errors", letter * (letters + 1)))


def nested(depth: int) -> dict[str, Any]:
    block: dict[str, Any] = {}
    for _ in range(depth):
        block = {"type": "x", "x": block}
    return block


CIRCLE: dict[str, Any] = {"type": "x"}
CIRCLE["x"] = CIRCLE


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"type": "x", "x": {1}}, "blocks hold a set, which JSON has no form for"),
        (
            {"type": "x", "x": inf},
            "blocks hold a number that is infinite, not a number, or of very many digits, which JSON has no form for",
        ),
        ({"type": "x", ("x",): 1}, "blocks hold an object with a key that is no string, which JSON has no form for"),
        (CIRCLE, "blocks contain themselves, which JSON has no form for"),
        (nested(100_000), "blocks are nested too deeply to be written as JSON"),
    ],
    ids=["type", "number", "key", "circle", "depth"],
)
def test_blocks_that_json_cannot_hold_are_refused_in_plain_words(block: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        encode_event(Event("errors", blocks=(block,)))
    assert str(caught.value) == message


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_any_json_value_is_an_event_or_is_invalid(payload: object) -> None:
    try:
        Event.from_payload(payload)
    except InvalidEvent:
        return


def test_an_id_in_rqs_alphabet_is_the_job_id_and_any_other_becomes_a_digest() -> None:
    assert job_id_for("disk-1_A") == "disk-1_A"
    digest = job_id_for("disk 1")
    assert digest.startswith("id-")
    assert digest != job_id_for("disk 2")
    assert digest.replace("-", "").isalnum()


@pytest.mark.parametrize(
    ("event_id", "job_id", "remembered"),
    [
        ("chosen", "chosen", True),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", "0f8fad5b-d9cb-469f-a165-70867728950e", True),
        (None, "0f8fad5b-d9cb-469f-a165-70867728950e", False),
        (None, "picked-by-a-stock-producer", True),
    ],
)
def test_an_id_the_producer_chose_is_remembered(event_id: str | None, job_id: str, remembered: bool) -> None:  # noqa: FBT001 - a row of the table
    assert is_remembered(Event("errors", "x", id=event_id), job_id) is remembered


def test_a_slot_of_a_long_id_is_named_by_a_digest() -> None:
    long = "0f8fad5b-d9cb-469f-a165-70867728950e"
    assert slot_id("short") == "short"
    assert len(slot_id(long)) == 16
    assert slot_id(long) != slot_id(long.replace("0", "1"))


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("max_age", "30m", 1800),
        ("max_age", "1.5", 1.5),
        ("max_age", "250ms", 0.25),
        ("delay", "30m", 1800),
        ("not_before", "2026-11-24T08:00:00Z", 1795507200.0),
        ("not_before", "2026-11-24T09:00:00.5+01:00", 1795507200.5),
        ("not_before", datetime(2026, 11, 24, 8, tzinfo=UTC), 1795507200.0),
        ("not_before", 1795507200, 1795507200),
        ("labels", {"port": 6379, "load": 0.5, "host": "db1"}, {"port": "6379", "load": "0.5", "host": "db1"}),
        ("channel", "general", "#general"),
        ("channel", "#general", "#general"),
        ("channel", "C0123ABCD", "C0123ABCD"),
        ("channel", "two words", "two words"),
        ("channel", Word.GENERAL, "#general"),
        ("id", Word.GENERAL, "general"),
        ("labels", {Word.GENERAL: Word.GENERAL}, {"general": "general"}),
        ("labels", MappingProxyType({"host": "db1"}), {"host": "db1"}),
        ("blocks", [{"type": "divider"}], ({"type": "divider"},)),
        ("created_at", 0, 0),
    ],
)
def test_a_field_that_has_several_spellings_is_kept_in_one(field: str, given: object, kept: object) -> None:
    fields: dict[str, Any] = {"category": "errors", "text": "x", field: given}
    assert getattr(Event.from_payload(fields), field) == kept
    assert Event(**fields).to_payload()[field] == kept
    assert Event.from_payload(json.loads(encode_event(Event(**fields)))) == Event(**fields)


def test_construction_takes_the_spellings_by_their_types() -> None:
    """The type checker reads these calls too."""
    later = Event("errors", "x", max_age="30m", priority="high", labels={"port": 6379}, not_before="2026-11-24T08:00Z")
    at = Event("errors", "x", max_age=1800, priority=Lane.HIGH, labels={"port": "6379"}, not_before=1795507200.0)
    assert later == at
    assert Event("errors", blocks=[{"type": "divider"}]) == Event("errors", blocks=({"type": "divider"},))
    assert Event("errors", "x", status="firing") == Event("errors", "x", status=Status.FIRING)

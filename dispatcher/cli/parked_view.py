"""Parked events as tables and text."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from dispatcher.app.documents.instants import with_distance, zone
from dispatcher.cli.drawing import Fitting, Group, OneLine, Part, Table, Text, cut, joined, named_facts
from dispatcher.core.explain import Clock, Explanation, clock_of
from dispatcher.core.rendering import one_line, text_of
from dispatcher.core.units import US
from dispatcher.store.parked_events import ParkedEvent

_READABLE_TEXT: Final = 20


def listing(events: Sequence[ParkedEvent]) -> Fitting:
    """Each in one line, or in a few below each other where there is little room; an id is always whole.

    In a line the text gives way, down to its beginning.
    """
    return Fitting(lambda: _in_lines(events), lambda: _in_lines(events), lambda: _in_blocks(events))


def _in_lines(events: Sequence[ParkedEvent]) -> Table:
    table = Table()
    for heading in (_since(), "Id", "Category", "Channel", "Reason", "Expected"):
        table.add_column(heading, breaks=False)
    table.add_column("Text")
    table.add_column("What it waits for", breaks=False)
    clock = clock_of(_now_us())
    for each in events:
        told = each.explanation
        facts = [told.id, told.category or "", told.channel or "", told.reason or "", _expected(told, clock)]
        row: list[Part | str] = [OneLine(one_line(fact, 400)) for fact in facts]
        row += [OneLine(_text(each), shortest=_READABLE_TEXT), OneLine(one_line(told.sentence, 400), "dim")]
        table.add_row(clock(each.seen_us), *row)
    return table


def _in_blocks(events: Sequence[ParkedEvent]) -> Table:
    table = Table()
    table.add_column(_since(), breaks=False)
    table.add_column("Expected", breaks=False)
    table.add_column("Id, category, channel, reason, text", folds=True)
    clock = clock_of(_now_us())
    for each in events:
        told = each.explanation
        facts = [Text(one_line(fact)) for fact in (told.category, told.channel, told.reason) if fact]
        sentence = Text(one_line(told.sentence, 400), "dim")
        parts: list[Part | str] = [Text(one_line(told.id), "bold"), joined("  ", facts)]
        parts += [cut(text)] if (text := _text(each)) else []
        table.add_row(clock(each.seen_us), _expected(told, clock), Group(*parts, sentence))
    return table


def _text(parked: ParkedEvent) -> str:
    return "" if parked.event is None else one_line(text_of(parked.event))


def _expected(told: Explanation, clock: Clock) -> str:
    """When it is expected to go; an estimate has a tilde before it."""
    at_us, is_estimate = _expected_us(told)
    return "" if at_us is None else f"{'~' if is_estimate else ''}{clock(at_us)}"


def _expected_us(told: Explanation) -> tuple[int | None, bool]:
    """When it is expected to go, and whether that is an estimate."""
    at = told.next_at if told.expected_at is None else told.expected_at
    is_estimate = told.expected_at is not None and told.place != 1
    return None if at is None else round(at * US), is_estimate


def summary(events: Sequence[ParkedEvent]) -> Table:
    """How many of each category and reason."""
    groups = Counter((each.explanation.category or "", each.explanation.reason or "") for each in events)
    table = Table()
    for heading in ("Category", "Reason"):
        table.add_column(heading)
    table.add_column("Events", is_right=True)
    for (category, reason), count in sorted(groups.items()):
        table.add_row(Text(one_line(category)), Text(one_line(reason)), str(count))
    return table


def details(parked: ParkedEvent) -> Table:
    """Everything but the event itself."""
    told = parked.explanation
    facts = [
        ("Id", told.id),
        ("On the queue", told.job_id if told.job_id != told.id else ""),
        ("In short", told.sentence),
        ("Category", told.category or ""),
        ("Channel", told.channel or ""),
        ("Reason", f"{told.reason}: {told.code}" if told.code else told.reason or ""),
        ("Waits for", told.scope or ""),
        ("Limit", "" if told.limit is None else f"{told.limit}, {told.used} of {told.max} used"),
        ("Place", "" if told.place is None else str(told.place)),
        ("Before it", "" if told.before is None else str(told.before)),
        ("Expected", _expected_in_full(told)),
        ("First seen", with_distance(parked.seen_us / US)),
        ("Expires", with_distance(parked.deadline_us / US)),
        ("Tries", str(told.attempts)),
        ("Replays", str(told.replays)),
    ]
    return named_facts(facts)


def payload_text(parked: ParkedEvent) -> str:
    """The event, indented; control characters are the caller's matter."""
    if parked.event is None:
        return "its payload cannot be read"
    return json.dumps(parked.event.to_payload(), indent=2, ensure_ascii=False)


def _since() -> str:
    return f"First seen ({zone(_now_us() / US)})"


def _expected_in_full(told: Explanation) -> str:
    at_us, is_estimate = _expected_us(told)
    return "" if at_us is None else f"{with_distance(at_us / US)}{' (an estimate)' if is_estimate else ''}"


def _now_us() -> int:
    return time.time_ns() // 1_000

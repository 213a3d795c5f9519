"""Dead letters as tables and text."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from dispatcher.app.documents.instants import short, with_distance, zone
from dispatcher.cli.drawing import Fitting, Group, OneLine, Part, Table, Text, cut, joined, named_facts
from dispatcher.core.explain import clock_of, ended, fits_label, why
from dispatcher.core.limits import NO_CATEGORY
from dispatcher.core.rendering import one_line, text_of
from dispatcher.core.units import US
from dispatcher.store.dead_letters import DeadLetter

_LONGEST_PAYLOAD: Final = 4_000
_READABLE: Final = 30
_READABLE_TEXT: Final = 20


def listing(letters: Sequence[DeadLetter]) -> Fitting:
    """Each in one line, or in a few below each other where there is little room; an id is always whole.

    Where a line has too little room for all, detail and tries give way: ``show`` has them.
    """
    whole = partial(_in_lines, letters, is_whole=True)
    return Fitting(whole, whole, partial(_in_lines, letters, is_whole=False), lambda: _in_blocks(letters))


def _in_lines(letters: Sequence[DeadLetter], *, is_whole: bool) -> Table:
    """A column that no letter fills is left out; where it is not whole, detail and tries too."""
    has_attempts = is_whole and any(letter.attempts for letter in letters)
    texts = [_text(letter) for letter in letters]
    table = Table()
    for heading in (f"Died ({zone(_now_us() / US)})", "Id", "Category", "Reason"):
        table.add_column(OneLine(heading), breaks=False)
    if any(texts):
        table.add_column("Text")
    if is_whole:
        table.add_column("Detail")
    if has_attempts:
        table.add_column("Tries", is_right=True, breaks=False)
    for letter, text in zip(letters, texts, strict=True):
        row: list[Part | str] = [OneLine(short(letter.at_us / US)), OneLine(one_line(letter.name)), _category(letter)]
        row.append(OneLine(_reason(letter), "red"))
        row += [OneLine(text, shortest=_READABLE_TEXT)] if any(texts) else []
        row += [OneLine(_why(letter), "dim", _READABLE)] if is_whole else []
        if has_attempts:
            row.append(Text(str(letter.attempts), "" if letter.attempts else "dim"))
        table.add_row(*row)
    return table


def _in_blocks(letters: Sequence[DeadLetter]) -> Table:
    table = Table()
    table.add_column(f"Died ({zone(_now_us() / US)})", breaks=False)
    table.add_column("Id, then category and reason, text, detail", folds=True)
    for letter in letters:
        facts = [_category(letter), Text(_reason(letter), "red")]
        facts += [Text(f"{letter.attempts} {'try' if letter.attempts == 1 else 'tries'}")] if letter.attempts else []
        parts: list[Part | str] = [Text(one_line(letter.name), "bold"), joined("  ", facts)]
        parts += [cut(text)] if (text := _text(letter)) else []
        table.add_row(short(letter.at_us / US), Group(*parts, Text(_why(letter), "dim")))
    return table


def summary(letters: Sequence[DeadLetter]) -> Table:
    """How many of each category and reason, and since when."""
    groups: defaultdict[tuple[str, str], list[DeadLetter]] = defaultdict(list)
    for letter in letters:
        groups[letter.category, letter.reason].append(letter)
    table = Table()
    for heading in ("Category", "Reason"):
        table.add_column(heading)
    table.add_column("Letters", is_right=True)
    table.add_column(f"Oldest ({zone(_now_us() / US)})")
    for _, group in sorted(groups.items()):
        oldest = min(letter.at_us for letter in group)
        table.add_row(_category(group[0]), Text(one_line(group[0].reason)), str(len(group)), short(oldest / US))
    return table


def details(letter: DeadLetter) -> Table:
    """Everything but the payload."""
    facts: list[tuple[str, str | Text]] = [
        ("Id", letter.name),
        ("On the queue", letter.id if letter.id != letter.name else ""),
        ("Category", _category(letter)),
        ("Channel", letter.channel or ""),
        ("Died", _instant(letter.at_us)),
        ("Reason", Text(_coded(letter), "red")),
        ("Detail", letter.detail),
        ("In short", ended(letter.decision(), clock_of(_now_us()))),
        ("Scope", letter.scope or ""),
        ("Limit", letter.limit or ""),
        _fits(letter),
        ("First seen", _instant(letter.seen_us)),
        ("Tries", str(letter.attempts)),
        ("Replays", str(letter.replays)),
        ("Repeats", f"{letter.repeats} more about the same thing, which no message counts" if letter.repeats else ""),
        ("Payload", _payload_kind(letter)),
    ]
    return named_facts(facts)


def payload_text(letter: DeadLetter) -> str:
    """The event, indented, or what lay there instead, inflated and cut; control characters are the caller's matter."""
    event = letter.event()
    if event is not None:
        text = json.dumps(event.to_payload(), indent=2, ensure_ascii=False)
    else:
        text = letter.content().decode("utf-8", "backslashreplace")
    rest = len(text) - _LONGEST_PAYLOAD
    return text if rest <= 0 else f"{text[:_LONGEST_PAYLOAD]}\n... {rest} characters more; --json prints all of it"


def _payload_kind(letter: DeadLetter) -> str:
    if not letter.payload:
        return "none was left"
    kind = "an event" if letter.event() is not None else "no event"
    return f"{len(letter.payload)} bytes, {kind}"


def _category(letter: DeadLetter) -> Text:
    return Text("(unreadable)", "dim") if letter.category == NO_CATEGORY else Text(one_line(letter.category))


def _reason(letter: DeadLetter) -> str:
    """``rejected: channel_not_found in #ops``: with the channel where Slack refused a post to it."""
    return f"{_coded(letter)} in {one_line(letter.refused_in)}" if letter.refused_in else _coded(letter)


def _coded(letter: DeadLetter) -> str:
    return one_line(f"{letter.reason}: {letter.code}" if letter.code else letter.reason)


def _text(letter: DeadLetter) -> str:
    event = letter.event()
    return "" if event is None else one_line(text_of(event))


def _why(letter: DeadLetter) -> str:
    return one_line(why(letter.decision(), clock_of(_now_us())))


def _fits(letter: DeadLetter) -> tuple[str, str]:
    """From when on it would have passed, if that is known."""
    at_us = letter.fits_at_us
    label = None if at_us is None else fits_label(letter.reason, letter.limit, letter.at_us, at_us)
    return ("", "") if label is None else (label, _instant(at_us))


def _instant(at_us: int | None) -> str:
    return "" if at_us is None else with_distance(at_us / US)


def _now_us() -> int:
    return round(datetime.now(UTC).timestamp() * US)

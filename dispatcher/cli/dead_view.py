"""Dead letters as tables and text. Imports rich, so only for drawing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dispatcher.cli.drawing import plain_table
from dispatcher.cli.status_view import span
from dispatcher.content import one_line
from dispatcher.model import US
from dispatcher.outcome import NO_CATEGORY
from dispatcher.store.dead_letters import DeadLetter

_LONGEST_PAYLOAD: Final = 4_000
_WIDE: Final = 120


def listing(letters: Sequence[DeadLetter], width: int) -> Table:
    """Each in one line, or in two where the ``width`` is small; a column that no letter fills is left out."""
    is_narrow = width < _WIDE
    has_attempts = any(letter.attempts for letter in letters)
    has_fits = any(letter.fits_at_us is not None for letter in letters)
    table = plain_table()
    table.show_edge = False
    table.add_column("Died", no_wrap=True)
    for heading in ("Id, category", "Reason") if is_narrow else ("Id", "Category", "Reason", "Detail"):
        table.add_column(heading, overflow="fold")
    if has_attempts:
        table.add_column("Tries", justify="right", no_wrap=True)
    if has_fits:
        table.add_column("Fits at", no_wrap=True)
    for letter in letters:
        name, reason = Text(one_line(letter.name)), Text(_reason(letter), "red")
        detail = Text(one_line(letter.detail), "dim" if is_narrow else "", no_wrap=True, overflow="ellipsis")
        row: list[RenderableType] = [Text(_short(letter.at_us))]
        row += [Group(name, _category(letter)), Group(reason, detail)] if is_narrow else []
        row += [] if is_narrow else [name, _category(letter), reason, detail]
        if has_attempts:
            row.append(Text(str(letter.attempts), "" if letter.attempts else "dim"))
        if has_fits:
            row.append(Text("" if letter.fits_at_us is None else _short(letter.fits_at_us)))
        table.add_row(*row)
    return table


def summary(letters: Sequence[DeadLetter]) -> Table:
    """How many of each category and reason, and since when."""
    groups: defaultdict[tuple[str, str], list[DeadLetter]] = defaultdict(list)
    for letter in letters:
        groups[letter.category, letter.reason].append(letter)
    table = plain_table()
    table.show_edge = False
    for heading in ("Category", "Reason"):
        table.add_column(heading)
    table.add_column("Letters", justify="right")
    table.add_column("Oldest")
    for _, group in sorted(groups.items()):
        oldest = min(letter.at_us for letter in group)
        table.add_row(_category(group[0]), Text(one_line(group[0].reason)), str(len(group)), _short(oldest))
    return table


def details(letter: DeadLetter) -> Table:
    """Everything but the payload."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    rows: list[tuple[str, str | Text]] = [
        ("Id", letter.name),
        ("On the queue", letter.id if letter.id != letter.name else ""),
        ("Category", _category(letter)),
        ("Died", _instant(letter.at_us)),
        ("Reason", Text(_reason(letter), "red")),
        ("Detail", letter.detail),
        ("Scope", letter.scope or ""),
        ("Limit", letter.limit or ""),
        ("Fits at", _instant(letter.fits_at_us)),
        ("First seen", _instant(letter.seen_us)),
        ("Tries", str(letter.attempts)),
        ("Replays", str(letter.replays)),
        ("Payload", _payload_kind(letter)),
    ]
    for name, value in rows:
        if value:
            grid.add_row(name, Text(one_line(value, 2_000)) if isinstance(value, str) else value)
    return grid


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
    return one_line(f"{letter.reason}: {letter.code}" if letter.code else letter.reason)


def _short(at_us: int) -> str:
    at = _local(at_us)
    return at.strftime("%H:%M:%S" if at.date() == _local(_now_us()).date() else "%Y-%m-%d %H:%M")


def _instant(at_us: int | None) -> str:
    """``2026-11-20 20:31:22 (3m 5s ago)``; empty for none."""
    if at_us is None:
        return ""
    passed_s = (_now_us() - at_us) / US
    distance = f"{span(passed_s)} ago" if passed_s >= 0 else f"in {span(-passed_s)}"
    return f"{_local(at_us):%Y-%m-%d %H:%M:%S} ({distance})"


def _local(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / US, UTC).astimezone()


def _now_us() -> int:
    return round(datetime.now(UTC).timestamp() * US)

"""Reads a trace: JSON lines, the dispatcher's own log in JSON, or CSV with a header.

A line that is no event of a trace ends the reading with ``TraceError``, which says where and what was expected.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from difflib import get_close_matches
from itertools import chain
from math import isfinite
from typing import Any, BinaryIO, Final

from dispatcher.core.event import Event
from dispatcher.core.once import digest_of, without_volatile
from dispatcher.core.units import CATEGORY, CATEGORY_WORDS, US
from dispatcher.errors import DispatcherError, InvalidEvent
from dispatcher.jsonio import NotPlain, decode
from dispatcher.simulate.arrivals import PLAIN, Arrival, Arrivals, Details, details_of

MOST_BYTES: Final = 1024 * 1024
"""Of one line."""

LAST_S: Final = 4_102_444_800
"""The year 2100: what is stored can hold no later deadlines."""

_TIME: Final = "seconds since 1970 or ISO 8601 with a zone, for example 2026-01-31T12:00:00Z"
_CHECKED: Final = ("priority", "labels", "id", "channel", "max_age", "dedup_key", "status")
_IGNORED: Final = ("v",)
"""What events have and a trace may have, but nothing depends on."""

_KNOWN: Final = frozenset(("time", "category", "text", *_CHECKED, *_IGNORED))
_LABEL: Final = re.compile(r"labels?\.(.+)")
_SETTLED: Final = "event.settled"


class TraceError(DispatcherError):
    """The trace is not what was expected; the message says in which line, and if it can, in which column."""


def read_trace(
    file: BinaryIO,
    name: str,
    into: Arrivals,
    advance: Callable[[int], None] = lambda _: None,
    needs_text: Callable[[str], bool] = lambda _: False,
) -> None:
    """Read a whole trace called ``name`` into ``into``; ``advance`` is told how many bytes were read.

    ``needs_text`` says of which categories the texts are read: that takes its time, and they matter to few limits.

    Raises ``TraceError``. Lines of a log that tell of no event's end are left out.
    """
    lines = _lines(file, name, advance)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{name}: line 1: nothing here, expected JSON lines, or CSV with a header")
    read = _read_json if first[1].startswith((b"{", b"[")) else _read_csv
    for arrival in read(chain([first], lines), name, needs_text):
        into.add(arrival)
    if not len(into):
        raise TraceError(f"{name}: line {first[0]}: no event here or below, expected at least one")


def _lines(file: BinaryIO, name: str, advance: Callable[[int], None]) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers from 1."""
    number = 0
    while line := file.readline(MOST_BYTES + 1):
        number += 1
        advance(len(line))
        if len(line) > MOST_BYTES:
            raise TraceError(f"{name}: line {number}: longer than {MOST_BYTES} bytes, expected one event")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line := line.strip():
            yield number, line


def _read_json(lines: Iterator[tuple[int, bytes]], name: str, needs_text: Callable[[str], bool]) -> Iterator[Arrival]:
    for number, line in lines:
        try:
            row = decode(line)
        except NotPlain as error:
            raise TraceError(f"{name}: line {number}, {_syntax(line, error)}") from None
        if not isinstance(row, dict):
            raise TraceError(f"{name}: line {number}, column 1: {_shown(row)}, expected a JSON object")
        try:
            arrival = _logged(row, number) if "event" in row else _arrival(row, number, needs_text)
        except _Fault as fault:
            raise TraceError(f"{name}: line {number}, column {_column(line, fault.key)}: {fault}") from None
        if arrival is not None:
            yield arrival


def _syntax(line: bytes, error: json.JSONDecodeError) -> str:
    """Where a line stops being JSON; the standard library's words are for people."""
    try:
        json.loads(line)
    except UnicodeDecodeError as found:
        return f"column {found.start + 1}: the byte 0x{line[found.start]:02x} is not UTF-8, expected text in UTF-8"
    except json.JSONDecodeError as found:
        return f"column {found.colno}: not JSON ({found.msg}), expected one object on each line"
    except (ValueError, RecursionError):
        pass
    return f"column {error.colno}: not JSON, expected one object on each line"


def _column(line: bytes, key: str) -> int:
    """Where a key stands, counted in characters; 1 where it does not."""
    found = line.find(b'"%b"' % key.encode()) if key else -1
    return 1 if found < 0 else len(line[:found].decode("utf-8", "replace")) + 1


class _Fault(Exception):
    """A value that is not as expected. Never leaves this module."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def _arrival(row: dict[str, Any], line: int, needs_text: Callable[[str], bool]) -> Arrival:
    """An event of a trace."""
    if not row.keys() <= _KNOWN:
        key = min(row.keys() - _KNOWN)
        near = get_close_matches(key, _KNOWN, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected some of {', '.join(sorted(_KNOWN))}"
        raise _Fault(key, f"the key {_shown(key)} is not known; {hint}")
    at_us, category = _time_us(row, "time"), _category(row)
    said = {name: row[name] for name in _CHECKED if row.get(name) is not None}
    details = _details(category, said) if said else PLAIN
    if isinstance(text := row.get("text"), str) and needs_text(category):
        details = details._replace(text=_told(text))
    return Arrival(at_us, line, category, details)


def _told(text: str) -> str:
    """What stands for the text: one word, which is no number, since those are what differs between repeats."""
    left = without_volatile(text)
    return f"text{digest_of(left)}" if left else ""


def _logged(row: dict[str, Any], line: int) -> Arrival | None:
    """The event that a line of our own log tells the end of: it came when it was first seen."""
    if row["event"] != _SETTLED:
        return None
    at_us = _time_us(row, "seen" if row.get("seen") is not None else "time")
    if row.get("category") is None:  # a duplicate is not read; what is no event has no limits
        return Arrival(at_us, line, "") if row.get("outcome") == "duplicate" else None
    return Arrival(at_us, line, _category(row))


def _time_us(row: dict[str, Any], key: str) -> int:
    value = row.get(key)
    if value is None:
        raise _Fault(key, f"{key} is missing, expected {_TIME}")
    seconds = value if type(value) in {int, float} else _seconds(value)
    if seconds is None or not isfinite(seconds) or not 0 <= seconds < LAST_S:
        hint = "; these are milliseconds?" if seconds is not None and LAST_S <= seconds < LAST_S * 1_000 else ""
        raise _Fault(key, f"{key} is {_shown(value)}, expected {_TIME}{hint}")
    return round(seconds * US)


def _seconds(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo is not None else None


def _category(row: dict[str, Any]) -> str:
    category = row.get("category")
    if not isinstance(category, str) or CATEGORY.fullmatch(category) is None:
        said = "category is missing" if category is None else f"category is {_shown(category)}"
        raise _Fault("category", f"{said}, expected {CATEGORY_WORDS}, for example errors")
    return category


def _details(category: str, said: dict[str, Any]) -> Details:
    """What the event says of itself, as a producer would be told what is wrong with it."""
    try:
        event = Event.from_payload({"category": category, "text": "-", **said})
    except InvalidEvent as error:
        key = (error.pointer or "").strip("/").partition("/")[0]
        raise _Fault(key or next(iter(said)), str(error)) from None
    found = {name: getattr(event, name) for name in said}
    plain = {name: found[name].value for name in ("priority", "status") if name in found}
    return details_of(found | plain)


def _shown(value: object) -> str:
    text = json.dumps(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - of a message


def _read_csv(lines: Iterator[tuple[int, bytes]], name: str, needs_text: Callable[[str], bool]) -> Iterator[Arrival]:
    rows = _csv_rows(lines, name)
    line, first = next(rows)
    header = [cell.strip() for cell in first]
    for place, column in enumerate(header, 1):
        if column not in _KNOWN and not _LABEL.fullmatch(column):
            raise TraceError(
                f"{name}: line {line}, column {place}: the column {_shown(column)} is not known, expected a "
                f"header with time, category and some of {', '.join(_CHECKED)}, labels.NAME"
            )
        if column in header[: place - 1]:
            raise TraceError(f"{name}: line {line}, column {place}: the column {_shown(column)} stands here twice")
    for missing in {"time", "category"} - set(header):
        raise TraceError(f"{name}: line {line}: a header without the column {missing}, expected time and category")
    for line, cells in rows:
        if len(cells) != len(header):
            said = f"{len(cells)} columns, expected {len(header)} as the header has"
            raise TraceError(f"{name}: line {line}, column {min(len(cells), len(header)) + 1}: {said}")
        try:
            yield _arrival(_cells(header, cells), line, needs_text)
        except _Fault as fault:
            place = next((n for n, column in enumerate(header, 1) if column.partition(".")[0] == fault.key), 1)
            raise TraceError(f"{name}: line {line}, column {place}: {fault}") from None


def _csv_rows(lines: Iterator[tuple[int, bytes]], name: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line, with its number."""
    for number, raw in lines:
        try:
            yield number, next(csv.reader(io.StringIO(raw.decode("utf-8")), strict=True, skipinitialspace=True))
        except UnicodeDecodeError as error:
            said = f"the byte 0x{raw[error.start]:02x} is not UTF-8, expected text in UTF-8"
            raise TraceError(f"{name}: line {number}, column {error.start + 1}: {said}") from None
        except csv.Error as error:
            raise TraceError(f"{name}: line {number}: not CSV ({error}), expected one event") from None


def _cells(header: list[str], cells: list[str]) -> dict[str, Any]:
    """A row as the object that a line of JSON would be; an empty cell says nothing."""
    row: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    for column, cell in zip(header, cells, strict=True):
        text = cell.strip()
        if not text:
            continue
        if label := _LABEL.fullmatch(column):
            labels[label[1]] = text
        elif column == "labels":
            labels |= _labels(text)
        else:
            row[column] = _number(text) if column in {"time", "max_age"} else text
    return row | {"labels": labels} if labels else row


def _labels(text: str) -> dict[str, Any]:
    try:
        found = decode(text)
    except NotPlain:
        found = None
    if not isinstance(found, dict):
        raise _Fault("labels", f"labels is {_shown(text)}, expected a JSON object, or columns such as labels.host")
    return found


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text

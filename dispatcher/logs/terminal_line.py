"""A log entry as a person reads it on a terminal: short, in words, one line where there is room."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any, Final, TextIO

from structlog.typing import EventDict, WrappedLogger

_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN = "1", "2", "31", "32", "33", "36"
_LEVELS: Final = {"warning": _YELLOW, "error": _RED, "critical": _RED}
_OUTCOMES: Final = {"sent": _GREEN, "dropped": _YELLOW, "dead": _RED, "parked": _CYAN}
_ALIGNED: Final = len("event.settled")
_AT_THE_HEAD: Final = {"worker.started": ("server", "limits", "queue", "sink")}
_UUID: Final = re.compile(r"([0-9a-f]{8})-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")
_PLAIN: Final = re.compile(r"[^\s\"=]+")
_TIME: Final = slice(len("2026-11-20T"), len("2026-11-20T22:08:35"))
_DATE: Final = slice(len("2026-11-20"))
_INSTANTS: Final = frozenset({"since", "until"})
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_WIDTH: Final = 80
_NARROWEST: Final = 40
_LAST: Final = ("id", "detail", "text")


class TerminalLine:
    """Renders an entry; what stands in it twice, and what only a program needs, is in the JSON lines alone.

    A line about an event has no ``worker``, ``ts``, ``channel_id``, ``sentence`` and ``seen``, its ``scope`` and
    ``detail`` only where the reason does not say the same, and of an id that was generated the beginning. On a terminal
    a worker that starts does not say again what stands at the head of its command.
    """

    def __init__(self, stream: TextIO, *, in_colour: bool) -> None:
        self._stream = stream
        self._in_colour = in_colour

    def __call__(self, logger: WrappedLogger, name: str, entry: EventDict) -> str:
        """The line, or the lines."""
        del logger, name
        trace = entry.pop("exception", None)
        at = str(entry.pop("timestamp", ""))
        words = [self._styled(f"{at[_TIME]}Z", _DIM)]
        for key in _INSTANTS & entry.keys():
            entry[key] = _instant(entry[key], at[_DATE])
        level = str(entry.pop("level", ""))
        if level in _LEVELS:
            words.append(self._styled(level, _LEVELS[level]))
        event = str(entry.pop("event", ""))
        words.append(self._styled(event, _BOLD) + " " * (_ALIGNED - len(event) if event.startswith("event.") else 0))
        if "event_id" in entry:
            words += self._subject(event, entry)
        for key in _AT_THE_HEAD.get(event, ()) if self._stream.isatty() else ():
            entry.pop(key, None)
        words += [f"{self._styled(f'{key}=', _DIM)}{_value(value)}" for key, value in _in_order(entry)]
        line = self._fitted(words)
        return line if trace is None else f"{line}\n{trace}"

    def _subject(self, event: str, entry: EventDict) -> list[str]:
        """What has become of which event, and why; takes from the entry what it says, and what need not be said."""
        category, outcome, reason = (str(entry.pop(key, "")) for key in ("category", "outcome", "reason"))
        if entry.get("scope") in {"global", f"category:{category}"}:
            del entry["scope"]
        if reason.startswith("limit:"):
            reason = f"{reason} {entry.pop('limit', '')}".rstrip()
        if reason.startswith(("limit:", "cooldown")):
            entry.pop("detail", None)
        for key in ("worker", "ts", "channel_id", "sentence", "seen"):
            entry.pop(key, None)
        entry["id"] = _UUID.sub("\\1…", str(entry.pop("event_id")))
        entry["retry_in" if outcome == "parked" else "room_in"] = entry.pop("retry_after_s", None)
        outcome = "" if event.endswith(f".{outcome}") else self._styled(outcome, _OUTCOMES.get(outcome, ""))
        return [word for word in (category, outcome, "" if reason in {"ok", "duplicate"} else reason) if word]

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._in_colour and style else text

    def _fitted(self, words: list[str]) -> str:
        """In lines as wide as the terminal, a fact never broken but where it has blanks itself."""
        line = " ".join(words)
        if not self._stream.isatty():
            return line
        width = max(_NARROWEST, _width(self._stream))
        lines, room = [""], width
        for word in words:
            length = len(_COLOUR.sub("", word)) + 1
            if length <= room + 1:
                lines[-1] += f"{word} "
                room -= length
                continue
            pieces = wrap(word, width - len(_INDENT), break_long_words=False, break_on_hyphens=False)
            lines += [f"{_INDENT}{piece} " for piece in pieces]
            room = width - len(_COLOUR.sub("", lines[-1]))
        return "\n".join(each.rstrip() for each in lines if each)


_INDENT: Final = " " * len("22:08:35Z ")


def _width(stream: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    except OSError:
        return _WIDTH


def _in_order(entry: EventDict) -> list[tuple[str, Any]]:
    """What is known, with the id, sentences and the text last."""
    facts = [(key, _span(value) if key.endswith("_in") else value) for key, value in entry.items() if value is not None]
    return sorted(facts, key=lambda fact: _LAST.index(fact[0]) if fact[0] in _LAST else -1)


def _span(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return str(seconds)
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{seconds:.1f}s" if seconds < 10 else f"{whole}s"  # noqa: PLR2004 - below it tenths matter
    if whole < _HOUR_S:
        return f"{whole // 60}m{whole % 60}s"
    return f"{whole // 3600}h{whole % 3600 // 60}m"


def _instant(seconds: object, today: str) -> object:
    """Seconds since 1970 as a time in UTC, as the line has its own; of another day with the date."""
    if not isinstance(seconds, int | float):
        return seconds
    said = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return said.removeprefix(f"{today}T")


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

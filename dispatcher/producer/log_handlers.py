"""Log records as events: a handler of ``logging``, and a processor of structlog."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, MutableMapping
from hashlib import blake2b
from html import escape
from itertools import accumulate
from sysconfig import get_path
from traceback import walk_tb
from types import TracebackType
from typing import Any, Final, TypeAlias

from dispatcher.core.event import Event
from dispatcher.core.units import plain, with_whole_characters
from dispatcher.producer.background import BackgroundSender, Fields, Sender

IGNORED: Final = ("dispatcher", "redis", "rq", "slack_sdk", "aiohttp")
"""Loggers whose records are not handed over, with those below them: they may tell of the handing over itself."""

MOST_TRACEBACK: Final = 2_500
"""Characters of a traceback that are shown, its beginning and its end. Measured as Slack does, after escaping."""

_MOST_TEXT: Final = 1_000
_LABEL_CHARS: Final = 200
_PACKAGES: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_NOBODYS: Final = (*(get_path(name) + os.sep for name in ("stdlib", "platstdlib")), "<")
"""How names of files begin that are nobody's: those of Python's own library, and what is no file (``<string>``)."""

_ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class DispatcherHandler(logging.Handler):
    """Hands each record over as an event of ``category``. Configurable by ``logging.config.dictConfig``.

    A call of the logger never waits for the queue and never raises: see ``BackgroundSender``. ``channel``,
    ``priority``, ``max_age`` and ``labels`` are those of each event; ``extra={"dispatch": {...}}`` replaces fields of
    one event. Labels also name ``logger``, ``level`` and ``host``. The ``dedup_key`` is made of the logger, the message
    before its arguments, the type of the exception and the last function of the application in its traceback. If the
    traceback has none, it is the last function outside Python's library. The key holds nothing that differs from one
    repeat to the next. Without ``producer`` one is made as the environment says (``Producer.from_env``). Records of the
    libraries that hand events over (``IGNORED``) are not taken.

    Raises ``InvalidEvent`` where no event can have these fields.
    """

    def __init__(  # noqa: PLR0913 - the fields of an event, each by its name
        self,
        category: str = "errors",
        level: int | str = "ERROR",
        *,
        channel: str | None = None,
        priority: str | None = None,
        max_age: float | str | None = None,
        labels: Mapping[str, str] | None = None,
        producer: Sender | None = None,
    ) -> None:
        self._category = category
        given = {"channel": channel, "priority": priority, "max_age": max_age}
        self._fields = {name: value for name, value in given.items() if value is not None}
        self._labels = _joined({"host": socket.gethostname()}, labels)
        Event.from_payload(self._told(1, 0), in_python=True)
        sample = logging.LogRecord("logger", logging.ERROR, "", 0, "message", None, None)
        Event.from_payload(self._event_of(sample), in_python=True)
        super().__init__(level)  # from here on logging flushes it at the end of the program
        self._sender = BackgroundSender(_connector(producer), self._told)

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging``; a record that cannot be made into an event goes the way of ``handleError``."""
        if self._sender.is_own_thread() or record.name.partition(".")[0] in IGNORED:
            return
        try:
            self._sender.offer(self._event_of(record))
        except Exception:  # noqa: BLE001 - a call of the logger never raises
            self.handleError(record)

    def flush(self) -> None:
        """Wait until nothing is in the buffer, 2 s at most."""
        self._sender.flush()

    def close(self) -> None:
        """Hand over what is in the buffer, for 2 s at most, and end the thread."""
        self._sender.close()
        super().close()

    def _event_of(self, record: logging.LogRecord) -> Fields:
        message = record.getMessage()
        text = _text_of(message, _traceback_of(record.exc_info), record.stack_info)
        labels = {**self._labels, "logger": record.name[:_LABEL_CHARS], "level": record.levelname}
        key = _key_of(record.name, str(record.msg), record.exc_info)
        event: dict[str, Any] = {"category": self._category, "text": text, "dedup_key": key}
        event |= {**self._fields, "labels": labels}
        more = getattr(record, "dispatch", None)
        if isinstance(more, Mapping):
            event |= more
            event["labels"] = _joined(labels, more.get("labels"))
        return event

    def _told(self, too_many: int, invalid: int) -> Fields:
        text = _told_text("log record was", "log records were", too_many, invalid)
        return {"category": self._category, "text": text, **self._fields, "labels": self._labels}


def structlog_processor(
    *,
    producer: Sender | None = None,
    **fields: Any,  # noqa: ANN401 - fields of an event
) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
    """A processor that hands over entries with ``notify="CATEGORY"`` and passes each entry on unchanged.

    The text is the entry's ``event``, with its traceback and stack. ``fields`` are those of each event
    (``channel="#ops"``). The ``dedup_key`` is made as ``DispatcherHandler`` does it, and the label ``level`` is the
    entry's. It never waits for the queue and never raises: see ``BackgroundSender``. Raises ``InvalidEvent`` where no
    event can have these fields.
    """
    given = _joined({"host": socket.gethostname()}, fields.pop("labels", None))

    def told(too_many: int, invalid: int) -> Fields:
        text = _told_text("log entry was", "log entries were", too_many, invalid)
        return {"category": "errors", "text": text, **fields, "labels": given}

    def event_of(category: object, method: str, entry: Mapping[str, Any]) -> Fields:
        message, error = str(entry.get("event", "")), _exc_info_of(entry)
        text = _text_of(message, entry.get("exception"), _traceback_of(error), entry.get("stack"))
        key = _key_of(str(entry.get("logger", "")), message, error)
        labels = {**given, "level": str(entry.get("level", method))}
        return {"category": plain(category), "text": text, "dedup_key": key, **fields, "labels": labels}

    Event.from_payload(told(1, 0), in_python=True)
    Event.from_payload(event_of("errors", "error", {"event": "message"}), in_python=True)
    sender = BackgroundSender(_connector(producer), told)

    def process(_logger: object, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        category = entry.get("notify")
        if category is not None and category is not False and not sender.is_own_thread():
            try:
                sender.offer(event_of(category, method, entry))
            except Exception as error:  # noqa: BLE001 - a call of the logger never raises
                sender.leave_out(error)
        return entry

    return process


def _joined(labels: dict[str, str], own: Any) -> dict[str, str]:  # noqa: ANN401 - of any type: the event refuses what is none
    """The labels, and those that were given too. What is no mapping stays alone, for the event to refuse."""
    return {**labels, **own} if isinstance(own, Mapping) else own or labels


def _key_of(name: str, message: str, exc_info: _ExcInfo | None) -> str:
    """What a record is about, as 32 hexadecimal digits."""
    kind, error, trace = exc_info or (None, None, None)
    about = [name, message, "" if kind is None else f"{kind.__module__}.{kind.__qualname__}"]
    frames = [(frame.f_code.co_filename, frame.f_code.co_name) for frame, _ in walk_tb(trace)]
    if frames:
        file, name = max(reversed(frames), key=lambda frame: _closeness(frame[0]))
        about += [file, name]
    del error, trace
    return blake2b("\0".join(about).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _closeness(file: str) -> int:
    """How close a file is to the application: 2 for one of it, 1 in an installed package, else 0."""
    if any(folder in file for folder in _PACKAGES):
        return 1
    return 0 if file.startswith(_NOBODYS) else 2


def _exc_info_of(entry: Mapping[str, Any]) -> _ExcInfo | None:
    """The exception of structlog's entry, in whichever form it was given."""
    given = entry.get("exc_info")
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
    if isinstance(given, tuple):
        return given
    return sys.exc_info() if given else None


def _traceback_of(exc_info: _ExcInfo | None) -> str:
    return logging.Formatter().formatException(exc_info) if exc_info and exc_info[0] is not None else ""


def _text_of(message: str, *details: object) -> str:
    """The message, and those of the details that are texts as a code block."""
    shown = "\n".join(text for text in details if isinstance(text, str) and text)
    return f"{_cut(message)}\n{_as_code(with_whole_characters(shown))}" if shown else _cut(message)


def _told_text(one: str, many: str, too_many: int, invalid: int) -> str:
    """How many were left out, and why."""
    whys = [f"{too_many:,} too many at once"] if too_many else []
    whys += [f"{invalid:,} not valid (stderr says why)"] if invalid else []
    count = too_many + invalid
    return f"{count:,} {one if count == 1 else many} left out: {', '.join(whys)}"


def _cut(text: str) -> str:
    text = with_whole_characters(text)  # an event that holds half of one is refused
    return text if _fits(text, _MOST_TEXT) else f"{text[: _fitting(text, _MOST_TEXT - 1)]}…"


def _as_code(text: str) -> str:
    """A code block; of a long text the beginning and the end."""
    if not _fits(text, MOST_TRACEBACK):
        half = MOST_TRACEBACK // 2
        begin, end = _fitting(text, half), len(text) - _fitting(text[::-1], half)
        text = f"{text[:begin]}\n  ... {end - begin:,} characters left out ...\n{text[end:]}"
    return "```\n" + re.sub("```", "'''", text) + "\n```"


def _fits(text: str, most: int) -> bool:
    return len(text) <= most and len(escape(text, quote=False)) <= most


def _fitting(text: str, most: int) -> int:
    """How many characters of the beginning are no more than ``most`` after escaping."""
    lengths = accumulate(len(escape(char, quote=False)) for char in text[:most])
    return bisect_right(list(lengths), most)


def _connector(producer: Sender | None) -> Callable[[], Sender]:
    """What makes the producer. All that it needs is imported now: at the end of the interpreter redis-py is not."""
    if producer is not None:
        return lambda: producer
    from dispatcher.producer.blocking import Producer
    from dispatcher.server import connection  # noqa: F401 - see above

    return Producer.from_env

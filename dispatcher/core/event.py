"""An event as a producer hands it over: its fields, what is valid, and its JSON form.

The one place that knows the event format; ``send`` and the worker refuse the same things with the same words.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from math import isfinite, isnan
from sys import float_info
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from dispatcher.core.units import CATEGORY, CATEGORY_WORDS, Lane, normal_channel, plain, seconds_of
from dispatcher.errors import EventTooLarge, InvalidEvent
from dispatcher.jsonio import encode

MAX_EVENT_BYTES: Final = 256 * 1024
MAX_BLOCKS: Final = 50
MAX_LABELS: Final = 32
MAX_ID: Final = 128
MAX_INSTANT: Final = 1e11
MAX_NOT_BEFORE: Final = 4_102_444_800  # 2100-01-01: include/record.lua can hold deadlines until 2112
LEAST_AGE: Final = 1e-6
MAX_AGE: Final = 366 * 86_400
MAX_CHANNEL: Final = 100
MAX_THREAD: Final = 128
MAX_KEY: Final = 256
TRACEPARENT: Final = "traceparent"
"""The label that says to which trace an event belongs, in the form of W3C's Trace Context; log lines tell it."""


_RQ_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_VISIBLE: Final = re.compile(r"[^\s\x00-\x1f\x7f-\x9f]")
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_THREAD_TS: Final = re.compile(r"[0-9]{1,12}\.[0-9]{1,6}")

LONGEST: Final = 80
MOST_TOLD: Final = 3

_LONG_BITS: Final = 256
_LONG_TEXT: Final = 64


class Status(StrEnum):
    """Whether what an event is about goes on, or is over."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True)  # without slots: what a payload leaves out is read from the class
class Event:
    """One notification. ``category`` and one of ``text`` and ``blocks`` are required.

    ``max_age`` is in seconds, or text such as ``30m``; ``created_at`` is in seconds since 1970. A ``channel`` without
    its ``#`` gets it, and a number as the value of a label becomes text. Events of one ``thread``, a key of the
    producer's own, go under the first one's message in their channel; ``thread_ts`` names such a message itself.

    ``dedup_key`` says what the event is about, within its category. With the ``status`` ``resolved`` it tells that this
    is over, and needs the key. ``once_key`` takes the place of ``dedup_key`` where repeats are recognised.

    An event with ``not_before`` (seconds since 1970, ISO 8601 text with a zone, or an aware ``datetime``) or ``delay``
    (as ``max_age``) asks for room in the limits at that instant, not earlier. ``delay`` counts from ``send``, or in a
    job that no producer of this package wrote, from when a worker first takes it.

    Construction checks everything and raises ``InvalidEvent``, so an ``Event`` that exists is valid.
    """

    category: str
    text: str = ""
    id: str | None = None
    channel: str | None = None
    blocks: tuple[dict[str, Any], ...] = ()
    thread_ts: str | None = None
    priority: Lane = Lane.NORMAL
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: float | None = None
    max_age: float | None = None
    mrkdwn: bool = False
    thread: str | None = None
    not_before: float | None = None
    delay: float | None = None
    dedup_key: str | None = None
    status: Status = Status.FIRING
    once_key: str | None = None

    if TYPE_CHECKING:  # the spellings that construction takes; the fields hold the one of each

        def __init__(  # noqa: PLR0913, PLR0917 - the fields of an event, each by its name
            self,
            category: str,
            text: str = "",
            id: str | None = None,  # noqa: A002 - the field's name on the wire
            channel: str | None = None,
            blocks: Sequence[dict[str, Any]] = (),
            thread_ts: str | None = None,
            priority: Lane | Literal["high", "normal", "low"] = Lane.NORMAL,
            labels: Mapping[str, str | int | float] = ...,
            created_at: float | None = None,
            max_age: float | str | None = None,
            mrkdwn: bool = False,  # noqa: FBT001, FBT002 - as above
            thread: str | None = None,
            not_before: float | str | datetime | None = None,
            delay: float | str | None = None,
            dedup_key: str | None = None,
            status: Status | Literal["firing", "resolved"] = Status.FIRING,
            once_key: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        _check(self, _KEYS, in_python=True)

    @classmethod
    def from_payload(cls, payload: object, *, in_python: bool = False) -> Event:
        """The event in a decoded JSON object; raises ``InvalidEvent`` naming key, value and what was expected.

        With ``in_python`` the values are named as Python writes them: None, not null.
        """
        if not isinstance(payload, dict):
            expected = "an Event or a mapping of its fields" if in_python else "a JSON object"
            raise InvalidEvent(f"event is {in_words(payload, in_python=in_python)}, expected {expected}")
        fields = dict(payload)
        version = fields.pop("v", 1)
        if type(version) is not int or version != 1:
            raise InvalidEvent(f"v is {in_words(version, in_python=in_python)}, expected 1", pointer="/v")
        if not fields.keys() <= _KEYS:
            unknown = sorted(fields.keys() - _KEYS, key=str)
            raise InvalidEvent(_unknown_keys(unknown), pointer=_pointer(unknown[0]))
        if "category" not in fields:
            raise InvalidEvent("category is missing, expected a name such as errors", pointer="/category")
        if "text" not in fields and not fields.get("blocks"):
            raise InvalidEvent("text is missing, expected some text, or blocks", pointer="/text")
        event = object.__new__(cls)
        event.__dict__.update(fields)
        if "labels" not in fields:
            event.__dict__["labels"] = {}
        _check(event, fields, in_python=in_python)
        return event

    def to_payload(self) -> dict[str, Any]:
        """The JSON object on the queue; keys at their default are left out."""
        given = {
            key: value
            for key, value in self.__dict__.items()
            if (value or type(value) in _NUMBERS) and value is not Lane.NORMAL and value is not Status.FIRING
        }
        return {"v": 1, "category": self.category, **given}

    @property
    def is_resolved(self) -> bool:
        """Whether it tells that what it is about is over."""
        return self.status is Status.RESOLVED

    @property
    def is_scheduled(self) -> bool:
        """Whether it is to be posted later than now."""
        return self.not_before is not None or self.delay is not None

    def sent_at(self, now: float) -> Event:
        """The event as it is handed over at ``now`` (seconds since 1970): a delay counts from here."""
        return self if self.delay is None else replace(self, delay=None, not_before=now + self.delay)


_NUMBERS: Final = (int, float)
"""0 is an instant as any other; False is what ``mrkdwn`` is without a word."""

_KEYS: Final = frozenset(Event.__dataclass_fields__)
_NAMES: Final = sorted({"v", *_KEYS})
"""The keys that an event may have on the wire."""


def encode_event(event: Event) -> str:
    """The event's JSON text; raises ``InvalidEvent`` when it is larger than ``MAX_EVENT_BYTES``.

    Of all fields only ``blocks`` can hold what JSON has no form for.
    """
    payload = event.to_payload()
    if not event.blocks:
        try:
            return _bounded(encode(payload).decode(), payload)
        except TypeError:
            pass  # the slower way says what is wrong
    try:
        text = json.dumps(payload, separators=(",", ":"), allow_nan=False, default=_refuse_type)
    except RecursionError as error:
        raise InvalidEvent("blocks are nested too deeply to be written as JSON", pointer="/blocks") from error
    except TypeError as error:
        detail = "hold an object with a key that is no string"
        raise InvalidEvent(f"blocks {detail}, which JSON has no form for", pointer="/blocks") from error
    except ValueError as error:
        number = "hold a number that is infinite, not a number, or of very many digits"
        detail = "contain themselves" if "ircular" in str(error) else number
        raise InvalidEvent(f"blocks {detail}, which JSON has no form for", pointer="/blocks") from error
    return _bounded(text, payload)


def _bounded(text: str, payload: Mapping[str, Any]) -> str:
    if len(text if text.isascii() else text.encode()) > MAX_EVENT_BYTES:
        check_size(payload)
    return text


def check_size(payload: Mapping[str, Any]) -> None:
    """Refuse an event that is too large, however its JSON text is written: in UTF-8, without blanks and without ``v``.

    Raises ``EventTooLarge``.
    """
    counted = {key: value for key, value in payload.items() if key != "v"}
    text = json.dumps(counted, separators=(",", ":"), ensure_ascii=False)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_EVENT_BYTES:
        raise EventTooLarge(f"event is {size} bytes as JSON, expected at most {MAX_EVENT_BYTES}")


def _refuse_type(value: object) -> NoReturn:
    raise InvalidEvent(f"blocks hold a {type(value).__name__}, which JSON has no form for", pointer="/blocks")


def job_id_for(event_id: str) -> str:
    """The RQ job id of an event id: itself where RQ's alphabet allows, else a digest."""
    if _RQ_ID.fullmatch(event_id):
        return event_id
    return "id-" + blake2b(event_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def new_event_id() -> str:
    """A generated id: a UUID, which the dispatcher does not remember after the event is settled."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def is_remembered(event: Event, job_id: str) -> bool:
    """Whether the id was chosen by the producer, so that a repeat is recognised after the event is settled."""
    return event.id is not None or not _UUID.fullmatch(job_id)


def _check(event: Event, given: Collection[str], *, in_python: bool) -> None:
    """Look at the fields that were given; the first of those that are not valid is told, in the order of the rules."""
    values = event.__dict__
    _spell(values, given)
    for name in given:
        if not _IS_VALID[name](values[name]):
            _refuse(event, in_python=in_python)
    if not event.blocks and not _VISIBLE.search(event.text):
        raise InvalidEvent("text is empty, expected some text, or blocks", pointer="/text")
    if event.delay is not None and event.not_before is not None:
        raise InvalidEvent("delay and not_before are both given, expected one of them", pointer="/delay")
    if type(event.priority) is not Lane:
        values["priority"] = Lane(event.priority)
    if type(event.status) is not Status:
        values["status"] = Status(event.status)
    if event.status is Status.RESOLVED and event.dedup_key is None:
        raise InvalidEvent("dedup_key is missing, expected what is resolved", pointer="/dedup_key")


def _spell(values: dict[str, Any], given: Collection[str]) -> None:
    """Put each value that was given in the one spelling that the queue and the worker know."""
    for name in given:
        if type(value := values[name]) is not str and isinstance(value, str):
            values[name] = plain(value)
    for name, spelt in _SPELLINGS:
        if name in given:
            values[name] = spelt(values[name])


def _spelt_blocks(value: Any) -> Any:  # noqa: ANN401 - as it was given, not looked at yet
    return tuple(value) if isinstance(value, list) else value


def _spelt_channel(value: Any) -> Any:  # noqa: ANN401 - as above
    return normal_channel(value) if isinstance(value, str) else value


def _spelt_labels(value: Any) -> Any:  # noqa: ANN401 - as above
    if type(value) is dict and all(type(key) is str is type(text) for key, text in value.items()):
        return value
    if not isinstance(value, Mapping):
        return value
    return {plain(key): plain(_spelt_number(text)) for key, text in value.items()}


def _spelt_number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= float_info.max:
        return value
    return _as_json(value)


def _spelt_span(value: Any) -> Any:  # noqa: ANN401 - as above
    try:
        return seconds_of(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _spelt_instant(value: Any) -> Any:  # noqa: ANN401 - as above
    try:
        instant = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
    is_aware = isinstance(instant, datetime) and instant.utcoffset() is not None
    return instant.timestamp() if is_aware else value


_SPELLINGS: Final[tuple[tuple[str, Callable[[Any], Any]], ...]] = (
    ("blocks", _spelt_blocks),
    ("channel", _spelt_channel),
    ("labels", _spelt_labels),
    ("max_age", _spelt_span),
    ("delay", _spelt_span),
    ("not_before", _spelt_instant),
)
"""Fields that may be given in several spellings, and what makes the one of it."""


def _refuse(event: Event, *, in_python: bool) -> NoReturn:
    name, expected = next((name, expected) for name, is_valid, expected in _RULES if not is_valid(getattr(event, name)))
    value = getattr(event, name)
    _refuse_label(value if name == "labels" else None, in_python=in_python)
    raise InvalidEvent(f"{name} is {in_words(value, in_python=in_python)}, expected {expected}", pointer=f"/{name}")


def _refuse_label(labels: object, *, in_python: bool) -> None:
    """Names the label that is wrong where one of few is; what is wrong with labels as a whole is not said here."""
    if not isinstance(labels, Mapping) or len(labels) > MAX_LABELS:
        return
    for name, value in labels.items():
        if not isinstance(name, str):
            raise InvalidEvent(
                f"a key of labels is {in_words(name, in_python=True)}, expected a string", pointer="/labels"
            )
        if not isinstance(value, str):
            said = in_words(value, in_python=in_python)
            place = f"/labels{_pointer(name)}"
            is_large = isinstance(value, int) and not isinstance(value, bool)
            expected = "a smaller number" if is_large else "a string or a number"
            raise InvalidEvent(f"the label {in_words(name)} is {said}, expected {expected}", pointer=place)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and (value.isascii() or not _LONE_SURROGATE.search(value))


def _is_blocks(value: object) -> bool:
    return isinstance(value, tuple) and len(value) <= MAX_BLOCKS and all(map(_is_block, value))


def _is_block(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _is_labels(value: object) -> bool:
    return value == {} or (
        isinstance(value, Mapping)
        and len(value) <= MAX_LABELS
        and all(_is_text(key) and _is_text(text) for key, text in value.items())
    )


def _is_id(value: object) -> bool:
    return value is None or _is_printable(value, MAX_ID)


def _is_channel(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip("# ") != "" and _is_printable(value, MAX_CHANNEL))


def _is_thread_ts(value: object) -> bool:
    return value is None or (isinstance(value, str) and _THREAD_TS.fullmatch(value) is not None)


def _is_thread(value: object) -> bool:
    return value is None or _is_printable(value, MAX_THREAD)


def _is_key(value: object) -> bool:
    return value is None or (_is_text(value) and 1 <= len(str(value).encode()) <= MAX_KEY)


def _is_printable(value: object, longest: int) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= longest and value.isprintable() and not value.isspace()


def _is_number(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most  # NaN is neither


def _is_span(value: object) -> bool:
    return value is None or _is_number(value, LEAST_AGE, MAX_AGE)


_SPAN_WORDS: Final = "a number of seconds above 0, up to 366 days, or a span such as 30m"


def _pointer(key: object) -> str:
    """A key as the step of a JSON pointer, cut where it is long."""
    return "/" + str(key)[:LONGEST].replace("~", "~0").replace("/", "~1")


def _unknown_keys(keys: list[Any]) -> str:
    told = "; ".join(map(_unknown_key, keys[:MOST_TOLD]))
    if len(keys) > MOST_TOLD:
        told = f"{told}; and {len(keys) - MOST_TOLD} more"
    return f"{told}, expected one of {', '.join(_NAMES)}" if not any(map(_near, keys[:MOST_TOLD])) else told


def _unknown_key(key: object) -> str:
    near = _near(key)
    return f"{in_words(key)} is not a key of an event" + (f"; did you mean {near}?" if near else "")


def _near(key: object) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(str(key)[:LONGEST], _NAMES, n=1)), None)


_RULES: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    (
        "category",
        lambda value: isinstance(value, str) and CATEGORY.fullmatch(value) is not None,
        CATEGORY_WORDS,
    ),
    ("text", _is_text, "a string of well-formed Unicode"),
    ("blocks", _is_blocks, f"a list of at most {MAX_BLOCKS} objects, each with a type"),
    ("id", _is_id, f"1 to {MAX_ID} printable characters"),
    ("channel", _is_channel, "a name such as #ops, or a channel id"),
    ("thread_ts", _is_thread_ts, "Slack's ts, for example 1732100000.123456"),
    ("priority", lambda value: value in tuple(Lane), "high, normal or low"),
    ("labels", _is_labels, f"an object of at most {MAX_LABELS} strings of well-formed Unicode"),
    ("created_at", lambda value: value is None or _is_number(value, 0, MAX_INSTANT), "seconds since 1970"),
    ("max_age", _is_span, _SPAN_WORDS),
    ("mrkdwn", lambda value: isinstance(value, bool), "true or false"),
    ("thread", _is_thread, f"a key of 1 to {MAX_THREAD} printable characters"),
    (
        "not_before",
        lambda value: value is None or _is_number(value, 0, MAX_NOT_BEFORE),
        "seconds since 1970, or an instant with its zone such as 2026-11-24T08:00:00Z, before the year 2100",
    ),
    ("delay", _is_span, _SPAN_WORDS),
    ("dedup_key", _is_key, f"1 to {MAX_KEY} bytes of text"),
    ("status", lambda value: value in tuple(Status), "firing or resolved"),
    ("once_key", _is_key, f"1 to {MAX_KEY} bytes of text"),
)
_IS_VALID: Final = {name: is_valid for name, is_valid, _ in _RULES}


def in_words(value: object, *, in_python: bool = False) -> str:
    """A value for a message, cut where it is long."""
    is_own_word = isinstance(value, str | bytes) or (in_python and (value is None or isinstance(value, bool)))
    text = repr(value) if is_own_word else _as_json(value)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 3]}..."
    return f"{text} ({len(value)} characters)" if isinstance(value, str) and len(value) > _LONG_TEXT else text


def _as_json(value: object) -> str:
    """A value in the words of JSON, not of Python: producers may be written in any language."""
    match value:
        case float() if not isfinite(value):
            return "not a number" if isnan(value) else "infinite"
        case int() if value.bit_length() > _LONG_BITS:
            return "a number of very many digits"
        case list() | tuple() if len(value) > MOST_TOLD:
            return f"a list of {len(value)}"
        case dict() if len(value) > MOST_TOLD:
            return f"an object of {len(value)} keys"
        case _:
            pass
    try:
        return json.dumps(value, default=lambda other: type(other).__name__)
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__}"

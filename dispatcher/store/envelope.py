"""RQ's wire format: a job's ``data`` around one event, sealed by producers (``sealing``) and opened by workers.

Nothing a job names is ever imported or called, and nothing is unpickled: the one function a job may name is a constant.
"""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import replace
from typing import Any, Final

from dispatcher.core.event import MAX_EVENT_BYTES, Event, job_id_for
from dispatcher.core.leased_event import Leased, Undecodable, is_digest_message
from dispatcher.core.limits import Reason
from dispatcher.core.units import CATEGORY
from dispatcher.errors import InvalidEvent
from dispatcher.jsonio import NotPlain, decode, decode_answer
from dispatcher.store.enqueue import FUNCTION, HEAD, TAIL
from dispatcher.store.tallies import gone_of, read_digest_message, unconfirmed_of

_MAX_DATA: Final = MAX_EVENT_BYTES + len(HEAD) + len(TAIL)
_FRESH: Final = 2
"""What the header of an event that was never taken before holds: seq and seen."""

_MOST_SEARCHED: Final = 1024 * 1024
"""Bytes of what is no event in which its category is looked for: so much of it is kept."""

_ZLIB: Final = 0x78
_PICKLE: Final = 0x80


def open_envelope(job_id: str, data: bytes) -> Event:
    """The event in a job's ``data``, compressed or not; raises ``InvalidEvent`` saying what is wrong with it."""
    try:
        call = decode(data)
    except NotPlain:
        call = _decode(_plain(data))
    if len(data) > _MAX_DATA:
        raise InvalidEvent(f"event is larger than {MAX_EVENT_BYTES} bytes")
    if not isinstance(call, list) or len(call) != len(("function", "instance", "arguments", "keywords")):
        raise InvalidEvent("job data is not RQ's list of function, instance, arguments and keywords")
    function, instance, arguments, keywords = call
    if function != FUNCTION:
        raise InvalidEvent(f"job names the function {str(function)[:100]!r}; this worker runs only {FUNCTION}")
    if instance is not None or not isinstance(arguments, list) or len(arguments) != 1 or keywords:
        raise InvalidEvent("job carries other arguments than one event")
    event = Event.from_payload(arguments[0])
    if event.id is not None and job_id_for(event.id) != job_id:
        raise InvalidEvent(
            f"id is {event.id!r}, but the job's id is {job_id!r}; pass job_id={job_id_for(event.id)!r} to enqueue"
        )
    return event


def names_us(data: bytes) -> bool:
    """Whether a job names our function, whatever arguments it has for it."""
    begin = data[: len(HEAD)]
    if begin[:1] and begin[0] == _ZLIB:
        try:
            begin = zlib.decompressobj().decompress(data, len(HEAD))
        except zlib.error:
            return False
    return begin.startswith(f'["{FUNCTION}",'.encode())


def read_new(job_id: str, payload: bytes, seq: int, seen_us: int) -> Leased | Undecodable:
    """A payload that is seen for the first time as a value, as ``read`` would."""
    return _guarded(job_id, payload, {"seq": seq, "seen": seen_us})


def read(job_id: str, record: bytes) -> Leased | Undecodable:
    """A record of ``take`` as a value: the event under lease, or why it is undecodable. Raises nothing.

    A defect of ours that one payload brings to light must not stop the events beside it.
    """
    text, _, payload = record.partition(b"\n")
    try:
        header = decode_answer(text)
    except ValueError:
        header = {"malformed": True}
    return _guarded(job_id, payload, header)


def _guarded(job_id: str, payload: bytes, header: dict[str, Any]) -> Leased | Undecodable:
    try:
        subject = _read_one(job_id, payload, header)
    except Exception as error:  # noqa: BLE001 - see read; the payload is kept with the words
        subject = Undecodable(job_id, Reason.INVALID, f"cannot be read: {type(error).__name__}: {str(error)[:200]}")
    return subject if isinstance(subject, Leased) else replace(subject, category=_shown_category(payload))


def _shown_category(payload: bytes) -> str | None:
    """The category of what is no valid event: where an event has it, or where a call by keywords would have it."""
    try:
        call = json.loads(_plain(payload, _MOST_SEARCHED))
    except (ValueError, RecursionError, InvalidEvent):
        return None
    match call:
        case (
            {"category": str(category)}
            | [_, _, [{"category": str(category)}, *_], _]
            | [_, _, _, {"category": str(category)}]
        ):
            return category if CATEGORY.fullmatch(category) else None
        case _:
            return None


def _read_one(job_id: str, payload: bytes, header: dict[str, Any]) -> Leased | Undecodable:
    if is_digest_message(job_id):
        return read_digest_message(job_id, header, payload)
    if "malformed" in header:
        return Undecodable(job_id, Reason.INVALID, "its stored header cannot be read; the dead letter keeps it")
    return _read(job_id, payload, header)


def _read(job_id: str, payload: bytes, header: dict[str, Any]) -> Leased | Undecodable:
    if not payload:
        detail = "the job's time to live ended before it was taken; no payload is left"
        return Undecodable(job_id, Reason.EXPIRED, detail, header.get("replays", 0))
    try:
        event = open_envelope(job_id, payload)
    except InvalidEvent as error:
        return Undecodable(job_id, Reason.INVALID, str(error), header.get("replays", 0))
    seq, seen_us = int(header["seq"]), int(header["seen"])
    if len(header) == _FRESH:
        return Leased(job_id, event, seq, seen_us)
    return Leased(
        id=job_id,
        event=event,
        seq=seq,
        seen_us=seen_us,
        attempt=header.get("attempt", 0),
        unknown=header.get("unknown", 0),
        held=header.get("held", False),
        channel=header.get("channel"),
        takes=header.get("takes", 1),
        replays=header.get("replays", 0),
        deaths=header.get("deaths", 0),
        line=header.get("line"),
        unconfirmed=unconfirmed_of(header),
        resent=header.get("resent", 0),
        shadowed=tuple(header.get("shadow", ())),
        buffered="buffered" in header,
        posts=header.get("posts", 0),
        why=_why(header.get("why")),
        code=header.get("code"),
        counted=header.get("counted"),
        gone=gone_of(header),
    )


def _why(row: Any) -> tuple[str, str | None] | None:  # noqa: ANN401 - a field of the header
    return (row[0], row[1]) if row else None


def _plain(data: bytes, most: int = _MAX_DATA) -> bytes:
    """The data, inflated if it is compressed; raises ``InvalidEvent``, also where it is larger than ``most``."""
    if data[:1] and data[0] == _ZLIB:
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(data, most + 1)
        except zlib.error as error:
            raise InvalidEvent("job data begins like zlib's, but cannot be decompressed; expected JSON") from error
    if len(data) > most:
        raise InvalidEvent(f"event is larger than {MAX_EVENT_BYTES} bytes")
    return data


def _decode(data: bytes) -> object:
    if data[:1] and data[0] == _PICKLE:
        raise InvalidEvent("job data is pickled, expected JSON (pass serializer=JSONSerializer to the queue)")
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:  # a ValueError; its words depend on the encoding that JSON's rules guess
        raise InvalidEvent("job data is not UTF-8, expected JSON") from error
    except json.JSONDecodeError as error:
        raise InvalidEvent(f"job data is not JSON at character {error.pos + 1}: {error.msg}") from error
    except RecursionError as error:
        raise InvalidEvent("job data is nested too deeply") from error
    except ValueError as error:
        raise InvalidEvent(f"job data holds a number of more than {sys.get_int_max_str_digits()} digits") from error

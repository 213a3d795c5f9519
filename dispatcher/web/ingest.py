"""Events in: what a request holds becomes events on the queue, or an answer that says why not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from http import HTTPStatus
from itertools import islice
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.core.event import MAX_LABELS, TRACEPARENT, Event, job_id_for, new_event_id
from dispatcher.core.strict_json import NotStrict, read_json
from dispatcher.errors import ConfigError, EventTooLarge, GateUnavailable, InvalidEvent
from dispatcher.producer.blocking import CHUNK, CHUNK_BYTES
from dispatcher.server.within import Within
from dispatcher.store.intake import AsyncIntake, Enqueued, Job, queue_is_full
from dispatcher.web import cloudevents
from dispatcher.web.auth import caller_of
from dispatcher.web.problems import FULL_RETRY_S, Problem, unavailable, unavailable_by

BEGUN_S: Final = 2.0
"""No chunk begins later than this after the body's end: the server runs what was sent to it, whatever we answer."""

ENQUEUED_S: Final = 2.3
"""Within this time of the body's end all is on the queue, or the answer says how far it got."""

MOST_LINES: Final = 10_000
"""JSON lines of one request: a fast machine enqueues so many in a part of that time."""

MOST_ERRORS: Final = 100
"""Invalid events of one request that are told, the first ones."""

_MOST_KEY: Final = 255
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_LINES: Final = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})
_SEQUENCE: Final = "application/json-seq"
_BEGIN: Final = b"\x1e"
"""Stands before each value of a sequence (RFC 7464); a value may go on over several lines."""

_JSON: Final = frozenset({"", "application/json", "text/json", "text/plain", "application/octet-stream"})
_HEADERS: Final = {
    "x-id": "id",
    "x-channel": "channel",
    "x-priority": "priority",
    "x-dedup-key": "dedup_key",
    "x-status": "status",
}


@dataclass(frozen=True, slots=True)
class Ready:
    """A valid event as it goes to the queue, and the id that its producer is told."""

    id: str
    job: Job


@dataclass(slots=True)
class Faults:
    """What is wrong with the events of a request, the first ones in detail."""

    count: int = 0
    told: list[dict[str, object]] = field(default_factory=list)
    all_too_large: bool = True

    def note(self, index: int, error: InvalidEvent) -> None:
        """One more."""
        self.count += 1
        self.all_too_large = self.all_too_large and isinstance(error, EventTooLarge)
        if len(self.told) < MOST_ERRORS:
            self.told.append({"index": index, "pointer": error.pointer, "detail": str(error)})

    def raise_if_any(self, of: int) -> None:
        """Raise ``Problem``, of ``of`` events, where there is a fault."""
        if self.count:
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if self.all_too_large else HTTPStatus.UNPROCESSABLE_ENTITY
            detail = f"{self.count} of {of} events cannot be dispatched; none was enqueued"
            raise Problem(status, str(self.told[0]["detail"]) if of == 1 else detail, errors=self.told)


@dataclass(slots=True)
class Progress:
    """What has become of the events of a request so far."""

    ids: list[str] = field(default_factory=list)
    enqueued: int = 0
    duplicate: int = 0

    def note(self, events: Sequence[Ready], results: Sequence[Enqueued]) -> None:
        """These were handed over."""
        self.ids += [event.id for event in events]
        self.enqueued += results.count(Enqueued.DONE)
        self.duplicate += results.count(Enqueued.DUPLICATE)

    def so_far(self) -> dict[str, Any]:
        """For an answer that says from which event on it is not known that the rest is on the queue."""
        return {"ids": self.ids, "rest_from": len(self.ids), **self._counts()}

    def done(self) -> dict[str, Any]:
        """For an answer that says that all is done."""
        return {"ids": self.ids, **self._counts()}

    def _counts(self) -> dict[str, int]:
        return {"enqueued": self.enqueued, "duplicate": self.duplicate}


class Ingest:
    """The routes that take events. Keeps none: what was answered with 202 is on the queue."""

    def __init__(self, intake: AsyncIntake) -> None:
        self._intake = intake

    async def post_events(self, request: Request, body: bytes) -> Response:
        """``POST /v1/events``: an object, an array, JSON lines, or CloudEvents."""
        events = await self.valid(payloads_in(request, body), request)
        return JSONResponse((await self.enqueue(events, request)).done(), HTTPStatus.ACCEPTED)

    async def post_text(self, request: Request, body: bytes) -> Response:
        """``POST /v1/events/{category}``: the body is the text, headers are further fields."""
        if kind_of(request).startswith("multipart/"):
            raise _unsupported(request, "the text itself")
        events = await self.valid([_text_payload(request, body)], request)
        return JSONResponse((await self.enqueue(events, request)).done(), HTTPStatus.ACCEPTED)

    async def valid(self, payloads: Iterable[object], request: Request) -> list[Ready]:
        """The events of all payloads; raises ``Problem`` that names those that are none."""
        key, trace = _idempotency_key(request), request.headers.get(TRACEPARENT)
        ready: list[Ready] = []
        faults, index = Faults(), -1
        for index, payload in enumerate(payloads):
            try:
                ready.append(self._ready(_traced(payload, trace), _named(key, index)))
            except InvalidEvent as error:
                faults.note(index, error)
            if index % CHUNK == CHUNK - 1:
                await asyncio.sleep(0)  # other requests have their turn
        faults.raise_if_any(index + 1)
        return ready

    def _ready(self, payload: object, given_id: str | None) -> Ready:
        if isinstance(payload, InvalidEvent):
            raise payload
        if given_id is not None and isinstance(payload, Mapping) and payload.get("id") is None:
            payload = {**payload, "id": given_id}
        event = Event.from_payload(payload)
        id_ = event.id or new_event_id()
        return Ready(id_, self._intake.calls.job(job_id_for(id_), event, is_generated=event.id is None))

    async def enqueue(self, events: Sequence[Ready], request: Request, *, fold: str | None = None) -> Progress:
        """Hand all over, each chunk all or nothing; raises ``Problem`` that says how far it got.

        A repeat of a ``fold`` is a duplicate as a whole; see ``AsyncIntake.enqueue_whole``.
        """
        progress, clock = Progress(), asyncio.get_running_loop().time
        asked_at: float = request.state.asked_at
        late = f"not all events were on the queue within {BEGUN_S:g} s"
        try:
            async with Within(asked_at + ENQUEUED_S - clock()):
                for number, chunk in enumerate(_chunks(events)):
                    if clock() > asked_at + BEGUN_S:
                        raise unavailable(late, **progress.so_far())
                    named = None if fold is None else f"{fold}.{number}"
                    results = await self._intake.enqueue_whole([event.job for event in chunk], fold=named)
                    if Enqueued.FULL in results:
                        detail = queue_is_full(self._intake.calls.max_waiting)
                        raise unavailable(detail, FULL_RETRY_S, **progress.so_far())
                    progress.note(chunk, results)
        except (GateUnavailable, ConfigError) as error:
            raise unavailable_by(error, **progress.so_far()) from error
        except TimeoutError:
            raise unavailable(late, **progress.so_far()) from None
        return progress


def payloads_in(request: Request, body: bytes) -> Iterable[object]:
    """What stands for an event in a request, in order: a decoded value, or the ``InvalidEvent`` that it is."""
    kind = kind_of(request)
    if kind == cloudevents.BATCH:
        return map(_cloud_payload, _array(body))
    if kind == cloudevents.STRUCTURED:
        return [_cloud_payload(_value(body))]
    if cloudevents.MARK in request.headers:
        return [_binary_payload(request, body)]
    if kind == _SEQUENCE and _BEGIN in body:
        return _values("value", enumerate(body.split(_BEGIN)))
    if kind == _SEQUENCE or kind in _LINES:
        return _values("line", enumerate(body.split(b"\n"), start=1))
    if kind not in _JSON and not kind.endswith("+json"):
        raise _unsupported(request, "application/json, application/x-ndjson or a CloudEvent")
    value = _value(body)
    return _bounded(value) if isinstance(value, list) else [value]


def _chunks(events: Sequence[Ready]) -> Iterator[Sequence[Ready]]:
    """The events in parts of at most ``CHUNK``, and of ``CHUNK_BYTES`` unless one request fits into one part."""
    if len(events) <= CHUNK:
        if events:
            yield events
        return
    begin = size = 0
    for end, event in enumerate(events):
        size += len(event.job.row)
        if end - begin == CHUNK or size > CHUNK_BYTES:
            yield events[begin:end]
            begin, size = end, len(event.job.row)
    yield events[begin:]


def _value(body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return read_json(body, "a JSON object or an array of them")
    except NotStrict as error:
        raise _not_json(error, error.of_body) from error


def _array(body: bytes) -> list[object]:
    value = _value(body)
    if not isinstance(value, list):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the body is no array, expected an array of CloudEvents")
    return _bounded(value)


def _bounded(value: list[object]) -> list[object]:
    if len(value) > CHUNK:
        detail = f"the array holds {len(value)} events, expected at most {CHUNK}; JSON lines may be more"
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    return value


def _values(kind: str, parts: Iterable[tuple[int, bytes]]) -> Iterator[object]:
    """The value of each part that is not blank; raises ``Problem`` for too many, and for the first that is not JSON.

    Parts are numbered, and named by their ``kind``.
    """
    texts = list(islice(((number, part) for number, part in parts if part.strip()), MOST_LINES + 1))
    if len(texts) > MOST_LINES:
        detail = f"the body holds over {MOST_LINES} events, expected at most {MOST_LINES}"
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    for index, (number, text) in enumerate(texts):
        try:
            yield read_json(text)
        except NotStrict as error:
            raise _not_json(error, f"{kind} {number}: {error}", index) from error


def _not_json(error: NotStrict, detail: str, index: int = 0, pointer: str = "") -> Problem:
    errors = [{"index": index, "pointer": pointer, "detail": str(error)}]
    return Problem(HTTPStatus.BAD_REQUEST, detail, errors=errors)


def _cloud_payload(value: object) -> object:
    try:
        payload = cloudevents.payload_of(value)
    except InvalidEvent as error:
        return error
    return _traced(payload, value.get(TRACEPARENT) if isinstance(value, Mapping) else None)


def _traced(payload: object, trace: object) -> object:
    """The payload with the label of this trace, unless it has one, no room for it, or there is none of W3C's form."""
    if not isinstance(trace, str) or not _TRACE.fullmatch(trace) or not isinstance(payload, Mapping):
        return payload
    labels = payload.get("labels") or {}
    if not isinstance(labels, Mapping) or TRACEPARENT in labels or len(labels) >= MAX_LABELS:
        return payload
    return {**payload, "labels": {**labels, TRACEPARENT: trace}}


def _binary_payload(request: Request, body: bytes) -> object:
    try:
        value = cloudevents.from_headers(request.headers.items(), request.headers.get("content-type", ""), body)
    except NotStrict as error:
        raise _not_json(error, error.of_body, pointer="/data") from error
    return _cloud_payload(value)


def _text_payload(request: Request, body: bytes) -> object:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        fault = NotStrict(f"not UTF-8 at byte {error.start + 1}")
        raise _not_json(fault, fault.of_body, pointer="/text") from error
    payload: dict[str, object] = {"category": request.path_params["name"], "text": text}
    for header, name in _HEADERS.items():
        if header in request.headers:
            payload[name] = _header_text(request.headers[header])
    labels = [_header_text(value).partition("=") for value in request.headers.getlist("x-label")]
    if not all(mark and name for name, mark, _ in labels):
        return InvalidEvent("X-Label is no NAME=VALUE, expected one such as host=db1", pointer="/labels")
    return {**payload, "labels": {name.strip(): value.strip() for name, _, value in labels}}


def _header_text(value: str) -> str:
    """A header's value as its sender wrote it: nearly all write UTF-8."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def kind_of(request: Request) -> str:
    """Its content type, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _unsupported(request: Request, expected: str) -> Problem:
    return Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the content type is {kind_of(request)!r}, expected {expected}")


def _idempotency_key(request: Request) -> str | None:
    """The key with the name of who asks, so that two callers do not share one."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= _MOST_KEY:
        detail = f"Idempotency-Key has {len(key)} characters, expected 1 to {_MOST_KEY}"
        raise Problem(HTTPStatus.BAD_REQUEST, detail)
    return f"{caller_of(request).name} {key}"


def _named(key: str | None, index: int) -> str | None:
    """The id of the event at this place of the whole body."""
    return None if key is None else f"key-{blake2b(f'{index} {key}'.encode(), digest_size=16).hexdigest()}"

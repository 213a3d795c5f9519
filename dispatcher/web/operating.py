"""The routes that change something: dead letters, parked events, pauses, mutes, silences, limits.

Each leaves an entry in the trail. A request works for ``WORK_S`` at most. What it did not come to is left as it was:
``more`` says so, and the same request again goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.app.documents.acted import ids_in_words, letters_in_words, letters_of, parked_in_words
from dispatcher.app.documents.silences import begun_document, preview_document
from dispatcher.app.limits import LoadedLimits
from dispatcher.app.operating import Desk
from dispatcher.core.explain import State
from dispatcher.core.limits import EVERYTHING
from dispatcher.core.matchers import Matchers, parse_matchers
from dispatcher.core.units import CATEGORY, CATEGORY_WORDS, CHANNEL_NAME, US, length_us, normal_channel
from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.logs.event_log import EventLog
from dispatcher.server.connection import is_answer_missing
from dispatcher.settings.describe import sentences
from dispatcher.settings.limits_file import read_limits
from dispatcher.settings.limits_text import MAX_BYTES
from dispatcher.store.audit import Action
from dispatcher.store.dead_letters import DeadLetter, Replayed
from dispatcher.store.parked_events import PAGE, Cancelled, ParkedEvent, ParkedEvents
from dispatcher.store.silences import (
    MATCHES_EVERYTHING,
    Preview,
    StoredSilence,
    TooManySilences,
    Wanted,
    check_wanted,
    preview,
)
from dispatcher.store.versions import Unless
from dispatcher.web.asked import Asked
from dispatcher.web.auth import caller_of
from dispatcher.web.problems import Problem
from dispatcher.web.reading import DEAD_FILTERS, PARKED_FILTERS, dead_filter, parked_filter
from dispatcher.web.searching import WORK_S, first
from dispatcher.web.threads import Threads

MOST_IDS: Final = 500
MOST_LIMITS: Final = 64 * 1024
"""Bytes of limits in one request: a fast machine reads so many in one or two seconds."""

LARGER_LIMITS: Final = f"; the command 'dispatcher limits apply' takes files of up to {MAX_BYTES} bytes"
"""What the answer to larger limits says."""

_MOST: Final = 1_000_000
_BODY: Final = "body"

T = TypeVar("T")


class Operating:
    """What operators do."""

    def __init__(self, desk: Desk, threads: Threads, log: EventLog) -> None:
        self._desk = desk
        self._threads = threads
        self._log = log

    async def replay(self, request: Request, body: bytes) -> Response:
        """``POST /v1/dead/replay``: send dead letters through the limits again, the oldest first."""
        return JSONResponse(await self.replay_letters(request, Asked.in_body(body)))

    async def purge(self, request: Request, body: bytes) -> Response:
        """``POST /v1/dead/purge``: remove dead letters for good."""
        return JSONResponse(await self.purge_letters(request, Asked.in_body(body)))

    async def replay_letters(self, request: Request, asked: Asked) -> dict[str, Any]:
        """Send those that are asked for through the limits again; how many, or how many it would be."""
        to = asked.take("to", _channel, "a channel such as #ops")
        find, dry_run = self._letters(asked)

        def work() -> dict[str, Any]:
            def act(page: Sequence[DeadLetter]) -> int:
                return self._desk.dead_letters.replay(page, to).count(Replayed.DONE)

            pages, about = find()
            about += "" if to is None else f" to {to}"
            return self._in_pages(request, "dead replay", "replayed", pages, None if dry_run else act, about)

        return await self._work(work, changes=not dry_run)

    async def purge_letters(self, request: Request, asked: Asked) -> dict[str, Any]:
        """Remove those that are asked for; how many, or how many it would be."""
        find, dry_run = self._letters(asked)

        def work() -> dict[str, Any]:
            pages, about = find()
            act = None if dry_run else self._desk.dead_letters.purge
            return self._in_pages(request, "dead purge", "purged", pages, act, about)

        return await self._work(work, changes=not dry_run)

    async def cancel(self, request: Request, body: bytes) -> Response:
        """``POST /v1/parked/cancel``: end parked events without a post."""
        asked = Asked.in_body(body)
        wanted = parked_filter(asked)
        ids, limit, dry_run = _selection(asked, PARKED_FILTERS)
        who = caller_of(request).name

        def work() -> dict[str, Any]:
            events = self._desk.parked(self._desk.limits().policy)

            def act(page: Sequence[ParkedEvent]) -> int:
                results = events.cancel(events.by_ids([each.id for each in page]), who)
                done = [settlement for result, settlement in results if result is Cancelled.DONE]
                self._log.settled(done)
                return len(done)

            if ids is None:
                meant = wanted(events)
                pages, about = first(events.pages(meant), limit), parked_in_words(meant, limit)
            else:
                pages, about = _parked_of(events, ids)
            return self._in_pages(request, "parked cancel", "cancelled", pages, None if dry_run else act, about)

        return JSONResponse(await self._work(work, changes=not dry_run))

    async def pause(self, request: Request, body: bytes) -> Response:
        """``PUT /v1/pause[/{category}]``: post nothing, or nothing of a category. What is paused stays as it is."""
        what = _category(request) or EVERYTHING
        asked = Asked.in_body(body)
        why = asked.text("why") or ""
        asked.done()

        def work() -> None:
            if self._desk.pausing.pause(what, caller_of(request).name, why):
                self._note(request, "pause", about=what, why=why)

        return await self._do(work)

    async def resume(self, request: Request, body: bytes) -> Response:
        """``DELETE /v1/pause[/{category}]``: let it go on; 404 where it is not paused."""
        what = _category(request) or EVERYTHING
        Asked.in_body(body).done()

        def work() -> None:
            if not self._desk.pausing.resume(what):
                raise Problem(HTTPStatus.NOT_FOUND, f"{'posting' if what == EVERYTHING else what} is not paused")
            self._note(request, "resume", about=what)

        return await self._do(work)

    async def mute(self, request: Request, body: bytes) -> Response:
        """``PUT /v1/mutes/{category}``: suppress a category ``for`` a time, and ``why``."""
        category = str(_category(request))
        asked = Asked.in_body(body)
        for_us, why = _how_long_and_why(asked)
        asked.done()
        if for_us is None or why is None:
            raise TypeError("what is missing is a fault")

        def work() -> dict[str, Any]:
            who = caller_of(request).name
            until_us = _stored(lambda: self._desk.silencing.mute(category, for_us, who, why))
            self._note(request, "mute", about=category, why=why)
            return {"category": category, "until": until_us / US, "who": who, "why": why}

        return await self._do(work)

    async def unmute(self, request: Request, body: bytes) -> Response:
        """``DELETE /v1/mutes/{category}``: end a mute; 404 where there is none."""
        category = str(_category(request))
        Asked.in_body(body).done()

        def work() -> None:
            if not self._desk.silencing.unmute(category):
                raise Problem(HTTPStatus.NOT_FOUND, f"{category} is not muted")
            self._note(request, "unmute", about=category)

        return await self._do(work)

    async def silence(self, request: Request, body: bytes) -> Response:
        """``POST /v1/silences``: suppress what ``matchers`` match ``for`` a time, and ``why``."""
        asked = Asked.in_body(body)
        start_us = asked.take("start", _instant_us, "an instant such as 2026-11-21T22:00Z, or seconds since 1970")
        wanted = wanted_of(asked, caller_of(request).name, start_us)
        return JSONResponse(begun_document(await self.begin_silence(request, wanted), wanted), HTTPStatus.CREATED)

    async def begin_silence(self, request: Request, wanted: Wanted) -> StoredSilence:
        """Store a silence."""

        def work() -> StoredSilence:
            begun = _stored(lambda: self._desk.silencing.begin(wanted))
            self._note(request, "silence add", about=f"{begun.id}: {wanted.matchers}", why=wanted.why)
            return begun

        return await self._work(work)

    async def preview_silence(self, _request: Request, body: bytes) -> Response:
        """``POST /v1/silences/preview``: how many of the newest ended events ``matchers`` match."""
        asked = Asked.in_body(body)
        matchers = _matchers(asked)
        asked.done()
        if matchers is None:
            raise TypeError("what is missing is a fault")
        return JSONResponse(preview_document(await self.preview_of(matchers)))

    async def preview_of(self, matchers: Matchers) -> Preview:
        """What matchers match of the newest ended events."""

        def work() -> Preview:
            ends_s = time.monotonic() + WORK_S
            return preview(matchers, self._desk.decisions, lambda: time.monotonic() < ends_s)

        return await self._work(work, changes=False)

    async def expire_silence(self, request: Request, body: bytes) -> Response:
        """``DELETE /v1/silences/{id}``: end a silence; 404 where there is none."""
        Asked.in_body(body).done()
        await self.end_silence(request, str(request.path_params["id"]))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def end_silence(self, request: Request, id_: str) -> None:
        """End a silence; raises ``Problem`` where there is none."""

        def work() -> None:
            if not self._desk.silencing.expire(id_):
                raise Problem(HTTPStatus.NOT_FOUND, f"there is no silence {id_!r}")
            self._note(request, "silence expire", about=id_)

        await self._work(work)

    async def check_limits(self, request: Request, body: bytes) -> Response:
        """``POST /v1/limits/check``: every rule of a limits file as a sentence, or its faults."""
        Asked.in_query(request).done()

        def read() -> dict[str, Any]:
            limits = _limits(body)
            return {"rules": sentences(limits.policy), "warnings": list(limits.warnings)}

        return JSONResponse(await self._threads.read(read))

    async def apply_limits(self, request: Request, body: bytes) -> Response:
        """``POST /v1/limits/apply``: put a limits file in force, with ``if_version`` only in place of that version."""
        asked = Asked.in_query(request)
        if_version = asked.count("if_version", _MOST, 0) or None
        asked.done()
        who, versions = caller_of(request).name, self._desk.versions
        try:
            content = (await self._threads.read(lambda: _limits_to_apply(body))).content
        except Problem:
            await self._work(versions.note_refused, changes=False)
            raise

        def work() -> dict[str, Any]:
            was = versions.in_force()
            done = versions.publish(
                content.text,
                content.digest,
                content.source,
                by=who,
                file="HTTP",
                unless=Unless.SAME,
                if_version=if_version,
            )
            if if_version is not None and not done.is_new and done.number != if_version:
                found = "no version is" if done.number is None else f"version {done.number} is"
                detail = f"{found} in force, expected version {if_version}: nothing has changed"
                raise Problem(HTTPStatus.PRECONDITION_FAILED, detail)
            if done.is_new:
                self._note(request, "limits apply", about=f"version {done.number}")
            return {"version": done.number, "was": was and was.number, "known": done.known}

        return await self._do(work)

    def _letters(self, asked: Asked) -> tuple[Callable[[], tuple[Iterable[Sequence[DeadLetter]], str]], bool]:
        """What finds the dead letters that are meant, and says them in words; whether they are only counted."""
        wanted = dead_filter(asked)
        ids, limit, dry_run = _selection(asked, DEAD_FILTERS)
        letters = self._desk.dead_letters

        def find() -> tuple[Iterable[Sequence[DeadLetter]], str]:
            if ids is None:
                meant = wanted(letters)
                return first(letters.pages(meant), limit), letters_in_words(meant, limit)
            found, known = letters_of(letters, ids)
            return [found], ids_in_words(known)

        return find, dry_run

    def _in_pages(  # noqa: PLR0913, PLR0917 - what is done, and how it is told
        self,
        request: Request,
        what: str,
        done_word: str,
        pages: Iterable[Sequence[T]],
        act: Callable[[Sequence[T]], int] | None,
        about: str,
    ) -> dict[str, Any]:
        """Act on page after page, as long as there is time; without ``act`` they are only counted."""
        ends_s = time.monotonic() + WORK_S
        matched = done = 0
        is_more = False
        try:
            for page in pages:
                if time.monotonic() > ends_s:
                    is_more = True
                    break
                matched += len(page)
                done += 0 if act is None or not page else act(page)
        except GateUnavailable as error:
            if not done:
                raise
            raise GateUnavailable(f"{error}; {done} {'was' if done == 1 else 'were'} {done_word}") from error.__cause__
        finally:
            if done:
                self._note(request, what, about=about, count=done)
        return {"matched": matched, done_word: done, "dry_run": act is None, "more": is_more}

    def _note(self, request: Request, what: str, *, about: str = "", why: str = "", count: int | None = None) -> None:
        is_of_page = getattr(request.state, "is_of_page", False)
        whence: Literal["page", "http"] = "page" if is_of_page else "http"
        self._desk.audit.note(Action(caller_of(request).name, whence, what, about, why, count))

    async def _work(self, work: Callable[[], T], *, changes: bool = True) -> T:
        def checked() -> T:
            self._desk.check()
            try:
                return work()
            except GateUnavailable as error:
                if not (changes and is_answer_missing(error)):
                    raise
                raise GateUnavailable(f"{error}; what was asked for may have been done") from error.__cause__

        return await self._threads.run(checked)

    async def _do(self, work: Callable[[], dict[str, Any] | None]) -> Response:
        answer = await self._work(work)
        return Response(status_code=HTTPStatus.NO_CONTENT) if answer is None else JSONResponse(answer)


def wanted_of(asked: Asked, who: str, start_us: int | None) -> Wanted:
    """The silence that is asked for; raises ``Problem`` with all faults."""
    matchers = _matchers(asked)
    for_us, why = _how_long_and_why(asked)
    idle_us = _length_us(asked, "end_if_idle")
    until_resolved, no_report = asked.flag("until_resolved"), asked.flag("no_report")
    if matchers is not None and matchers.matches_everything:
        asked.fault("matchers", MATCHES_EVERYTHING)
    asked.done()
    if matchers is None or for_us is None or why is None:
        raise TypeError("what is missing is a fault")
    wanted = Wanted(
        matchers,
        for_us,
        who,
        why,
        start_us,
        idle_us,
        until_resolved=until_resolved,
        reports=not no_report,
    )
    _stored(lambda: check_wanted(wanted))
    return wanted


def _parked_of(events: ParkedEvents, ids: Sequence[str]) -> tuple[Iterator[Sequence[ParkedEvent]], str]:
    """Those of the ids that are parked, read a page at a time, and in words which they are."""
    told = [each for each in events.explain_each([*dict.fromkeys(ids)]) if each.state is State.PARKED]
    pages = (told[begin : begin + PAGE] for begin in range(0, len(told), PAGE))
    return (events.by_ids([each.job_id for each in page]) for page in pages), ids_in_words([each.id for each in told])


def _stored(begin: Callable[[], T]) -> T:
    try:
        return begin()
    except TooManySilences as error:
        raise Problem(HTTPStatus.CONFLICT, str(error)) from error
    except ValueError as error:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error


def _matchers(asked: Asked) -> Matchers | None:
    """The matchers, a list of texts or one text in which blanks part them; None where there is a fault."""

    def read(value: object) -> Matchers | None:
        if not isinstance(value, str | list) or not all(isinstance(each, str) for each in value):
            raise TypeError
        try:
            return parse_matchers(value)
        except ValueError as error:
            asked.fault("matchers", str(error))
            return None

    given = asked.has("matchers")
    found = asked.take("matchers", read, 'a list such as ["host=db1", "severity!=critical"]')
    if not given:
        asked.fault("matchers", 'matchers is missing, expected a list such as ["host=db1", "severity!=critical"]')
    return found


def _how_long_and_why(asked: Asked) -> tuple[int | None, str | None]:
    """``for`` and ``why``; None where there is a fault."""
    for_us, why = _length_us(asked, "for"), asked.text("why")
    asked.require("for", "a span such as 2h")
    asked.require("why", "a reason in a few words")
    return for_us, why


def _length_us(asked: Asked, name: str) -> int | None:
    def read(value: object) -> int:
        if not isinstance(value, str):
            raise TypeError
        return length_us(value)

    return asked.take(name, read, "a span such as 2h")


def _instant_us(value: object) -> int:
    """ISO 8601 text with a zone, or seconds since 1970."""
    if isinstance(value, str):
        named = datetime.fromisoformat(value)
        if named.tzinfo is None:
            raise ValueError
        return round(named.timestamp() * US)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError
    return round(value * US)


def _selection(asked: Asked, filters: Sequence[str]) -> tuple[list[str] | None, int | None, bool]:
    """The ids that are meant, or None for those of the filters or all; how many at most; whether only to count."""
    has_filter = asked.has(*filters)
    ids = asked.take("ids", _ids, f"a list of at most {MOST_IDS} ids")
    everything = asked.flag("all")
    limit = asked.count("limit", _MOST, 0) or None
    dry_run = asked.flag("dry_run")
    if [ids is not None, everything, has_filter].count(True) != 1 and not asked.has_faults:
        asked.fault("ids", f"which ones are meant: give ids, or some of {', '.join(filters)}, or all as true")
    if ids is not None and limit is not None:
        asked.fault("limit", "limit is given with ids, expected it only with filters or all")
    asked.done()
    return ids, limit, dry_run


def _ids(value: object) -> list[str]:
    if not isinstance(value, list) or len(value) > MOST_IDS or not all(isinstance(each, str) for each in value):
        raise ValueError
    return value


def _channel(value: object) -> str:
    if not isinstance(value, str) or not CHANNEL_NAME.fullmatch(value.removeprefix("#")):
        raise ValueError
    return normal_channel(value)


def _category(request: Request) -> str | None:
    category: str | None = request.path_params.get("category")
    if category is not None and CATEGORY.fullmatch(category) is None:
        detail = f"{category!r} is no category, expected {CATEGORY_WORDS}"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
    return category


def _limits(body: bytes) -> LoadedLimits:
    try:
        limits = read_limits(body.decode("utf-8-sig"), _BODY)
    except UnicodeDecodeError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body is not UTF-8 at byte {error.start + 1}") from None
    except ConfigError as error:
        errors = [_fault(problem) for problem in error.problems]
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the limits have faults", errors=errors) from error
    return LoadedLimits(limits.policy, Path("HTTP"), limits.warnings, limits.content, is_empty=limits.is_empty)


def _limits_to_apply(body: bytes) -> LoadedLimits:
    limits = _limits(body)
    if limits.is_empty:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the body is empty, expected a limits file; {} has the defaults")
    return limits


def _fault(problem: str) -> dict[str, object]:
    """A sentence such as ``body:12:5: WORDS`` in its parts."""
    name, line, column, *rest = (*problem.split(":", 3), "", "", "")
    if name == _BODY and line.isdecimal() and column.isdecimal():
        return {"line": int(line), "column": int(column), "detail": rest[0].strip()}
    return {"detail": problem}

"""The routes that only look: the objects of the commands' ``--json``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.app.documents.acted import letter_of
from dispatcher.app.documents.events import (
    decisions_document,
    explained_document,
    letter_document,
    letters_document,
    parked_events_document,
    payload_document,
)
from dispatcher.app.documents.facts import COUNTS, SUPPRESSED, read_status
from dispatcher.app.documents.silences import silences_document
from dispatcher.app.documents.status import limits_document, status_document, use_document
from dispatcher.app.operating import Desk
from dispatcher.core.explain import State
from dispatcher.core.limits import ENDING
from dispatcher.core.states import DEADLY, WAITING
from dispatcher.core.typed_instants import TIME, When, read_when, span_between
from dispatcher.core.units import US, seconds_of
from dispatcher.store.audit import KEPT
from dispatcher.store.counts import OUTCOMES
from dispatcher.store.dead_letters import DeadLetters, Filter
from dispatcher.store.decisions import DecisionFilter, Decisions, Position
from dispatcher.store.parked_events import ParkedEvents, ParkedFilter
from dispatcher.store.parked_events import Place as Parked
from dispatcher.web.asked import Asked
from dispatcher.web.problems import JSONAnswer, Problem
from dispatcher.web.searching import search_on
from dispatcher.web.threads import Threads

T = TypeVar("T")

MOST_SHOWN: Final = 1_000
SHOWN: Final = 50
_IN_DECISIONS: Final = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,16}){3}")
_IN_LETTERS: Final = re.compile(r"[0-9]{1,16}-[0-9]{1,16}")
_IN_PARKED: Final = re.compile(r"([0-9]{1,16})-(.+)", re.DOTALL)
_NEXT: Final = "the next of an answer of this list"

DEAD_FILTERS: Final = ("category", "reason", "code", "since", "before", "text")
"""What ``dead_filter`` takes."""

PARKED_FILTERS: Final = ("category", "reason", "channel", "older_than", "text")
"""What ``parked_filter`` takes."""


class Reading:
    """What is there, as JSON."""

    def __init__(self, desk: Desk, threads: Threads) -> None:
        self._desk = desk
        self._threads = threads

    async def event(self, request: Request, _body: bytes) -> Response:
        """``GET /v1/events/{id}``: what happened to an event; 404 where nothing is known of it."""
        Asked.in_query(request).done()
        id_ = request.path_params["name"]
        told = await self._threads.run(lambda: self._desk.explanations.explain(id_))
        if told.state is State.UNKNOWN:
            raise Problem(HTTPStatus.NOT_FOUND, told.sentence)
        return JSONAnswer(explained_document(told))

    async def events(self, request: Request, _body: bytes) -> Response:
        """``GET /v1/events``: what became of the newest events, the newest first, as far back as they are kept."""
        asked = Asked.in_query(request)
        wanted, after = decision_filter(asked), asked.take("after", _place, _NEXT) or Position()
        limit = asked.count("limit", MOST_SHOWN, SHOWN)
        asked.done()

        def look() -> Mapping[str, Any]:
            decisions = self._desk.decisions
            found, place = search_on(decisions.behind(after), limit, wanted(decisions).matches)
            following = {} if place is None else {"next": ".".join(map(str, place))}
            return decisions_document(found.rows, decisions.kept_since_us(), more=found.more) | following

        return await self._look(look)

    async def status(self, request: Request, _body: bytes) -> Response:
        """``GET /v1/status``: ``category`` is a pattern of names, ``sort`` a count."""
        asked = Asked.in_query(request)
        pattern = asked.text("category")
        sort = asked.choice("sort", (*COUNTS, SUPPRESSED))
        asked.done()

        def look() -> Mapping[str, Any]:
            limits = self._desk.limits()
            facts = read_status(self._desk, limits.policy).of(pattern, sort)
            return {"limits": limits_document(self._desk.settings, limits), **status_document(facts)}

        return await self._look(look)

    async def limits(self, request: Request, _body: bytes) -> Response:
        """``GET /v1/limits``: the limits in force, and how much of each is used."""
        Asked.in_query(request).done()

        def look() -> Mapping[str, Any]:
            limits = self._desk.limits()
            status = read_status(self._desk, limits.policy)
            return {**limits_document(self._desk.settings, limits), **use_document(status, limits.policy)}

        return await self._look(look)

    async def parked(self, request: Request, _body: bytes) -> Response:
        """``GET /v1/parked``: what waits; the one that expires first comes first."""
        asked = Asked.in_query(request)
        wanted, after = parked_filter(asked), asked.take("after", _parked, _NEXT)
        limit = asked.count("limit", MOST_SHOWN, SHOWN)
        asked.done()

        def look() -> Mapping[str, Any]:
            events = self._desk.parked(self._desk.limits().policy)
            found, place = search_on(events.behind(wanted(events), after), limit, lambda each: each is not None)
            shown = [each for each in found.rows if each is not None]
            following = {} if place is None else {"next": f"{place.deadline_us:.0f}-{place.id}"}
            return {**parked_events_document(shown, events.count(), more=found.more), **following}

        return await self._look(look)

    async def dead(self, request: Request, _body: bytes) -> Response:
        """``GET /v1/dead``: the dead letters, the newest first."""
        asked = Asked.in_query(request)
        wanted, after = dead_filter(asked), asked.take("after", _entry, _NEXT)
        limit = asked.count("limit", MOST_SHOWN, SHOWN)
        asked.done()

        def look() -> Mapping[str, Any]:
            letters = self._desk.dead_letters
            found, entry = search_on(letters.behind(after), limit, wanted(letters).matches)
            following = {} if entry is None else {"next": entry}
            return letters_document(found.rows, letters.count(), more=found.more) | following

        return await self._look(look)

    async def dead_letter(self, request: Request, _body: bytes) -> Response:
        """``GET /v1/dead/{id}``: everything about one dead letter."""
        Asked.in_query(request).done()
        id_ = request.path_params["id"]
        letter = await self._checked(lambda: letter_of(self._desk.dead_letters, id_))
        if letter is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no dead letter of the id {id_!r}")
        return JSONAnswer({**letter_document(letter), **payload_document(letter)})

    async def silences(self, request: Request, _body: bytes) -> Response:
        """``GET /v1/silences``: those in force or still to begin, the one that ends first comes first."""
        Asked.in_query(request).done()
        return await self._look(lambda: silences_document(self._desk.silencing.all()))

    async def audit(self, request: Request, _body: bytes) -> Response:
        """``GET /v1/audit``: what operators did, the newest first."""
        asked = Asked.in_query(request)
        limit = asked.count("limit", KEPT, SHOWN)
        asked.done()

        def look() -> Mapping[str, Any]:
            trail = self._desk.audit.newest(limit + 1)
            return {"audit": trail[:limit], "more": len(trail) > limit}

        return await self._look(look)

    async def _look(self, look: Callable[[], Mapping[str, Any]]) -> Response:
        return JSONAnswer(await self._checked(look))

    async def _checked(self, look: Callable[[], T]) -> T:
        def checked() -> T:
            self._desk.check()
            return look()

        return await self._threads.run(checked)


def decision_filter(asked: Asked) -> Callable[[Decisions], DecisionFilter]:
    """Which ended events are meant; ages count from the server's now."""
    category = asked.text("category")
    outcome = asked.choice("outcome", OUTCOMES)
    reason = asked.choice("reason", [each.value for each in ENDING])
    since, before = (asked.take(name, _when, TIME) for name in ("since", "before"))
    words = asked.words("text")

    def wanted(decisions: Decisions) -> DecisionFilter:
        return DecisionFilter(outcome, reason, category, *span_between(since, before, decisions.now_us), words)

    return wanted


def dead_filter(asked: Asked) -> Callable[[DeadLetters], Filter]:
    """Which dead letters are meant; ages count from the server's now."""
    category, code = asked.text("category"), asked.text("code")
    reason = asked.choice("reason", [each.value for each in DEADLY])
    since, before = (asked.take(name, _when, TIME) for name in ("since", "before"))
    words = asked.words("text")

    def wanted(letters: DeadLetters) -> Filter:
        return Filter(category, reason, code, *span_between(since, before, letters.now_us), words)

    return wanted


def parked_filter(asked: Asked) -> Callable[[ParkedEvents], ParkedFilter]:
    """Which parked events are meant."""
    category = asked.text("category")
    reason = asked.choice("reason", [each.value for each in WAITING])
    channel = asked.text("channel")
    older_s = asked.take("older_than", seconds_of, "a span such as 2h")
    words = asked.words("text")

    def wanted(events: ParkedEvents) -> ParkedFilter:
        before_us = None if older_s is None else events.now_us() - round(older_s * US)
        return ParkedFilter(category, reason, channel, before_us, words)

    return wanted


def _place(value: object) -> Position:
    if not _IN_DECISIONS.fullmatch(str(value)):
        raise ValueError
    return Position(*map(int, str(value).split(".")))


def _parked(value: object) -> Parked:
    found = _IN_PARKED.fullmatch(str(value))
    if found is None:
        raise ValueError
    return Parked(int(found[1]), found[2])


def _entry(value: object) -> str:
    if not _IN_LETTERS.fullmatch(str(value)):
        raise ValueError
    return str(value)


def _when(value: object) -> When:
    return read_when(str(value))

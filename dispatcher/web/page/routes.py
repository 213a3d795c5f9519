"""The routes of the page: what is read for a view, how it is answered, and the forms that change something."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from dispatcher.app.documents.acted import letter_of
from dispatcher.app.documents.events import explained_document, parked_document
from dispatcher.app.documents.recent import is_suppressed
from dispatcher.app.operating import Desk
from dispatcher.core.explain import Decision, clock_of, ended
from dispatcher.core.limits import ENDING
from dispatcher.core.matchers import MAX_MATCHERS
from dispatcher.core.rendering import text_of
from dispatcher.core.silences import MOST_BYTES
from dispatcher.core.states import DEADLY, WAITING
from dispatcher.core.typed_instants import read_start, read_when
from dispatcher.core.units import US
from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.store.counts import OUTCOMES
from dispatcher.store.dead_letters import DeadLetter
from dispatcher.store.silences import Wanted
from dispatcher.web.asked import Asked
from dispatcher.web.auth import Guard, Scope, caller_of
from dispatcher.web.bounds import bounded
from dispatcher.web.metrics import ROUTE
from dispatcher.web.operating import Operating, wanted_of
from dispatcher.web.page import silences, views
from dispatcher.web.page.looks import Looks
from dispatcher.web.page.rendering import asset, compile_templates, render, version_of, whole
from dispatcher.web.problems import HEADERS, Problem, unavailable_by
from dispatcher.web.reading import DEAD_FILTERS, dead_filter, decision_filter, parked_filter
from dispatcher.web.searching import search, search_both
from dispatcher.web.threads import Threads

SHOWN: Final = 50
"""Rows of a list."""

MOST_ID: Final = 400
MOST_MATCHERS: Final = MOST_BYTES + MAX_MATCHERS
"""Characters: what a silence may have, and a blank behind each matcher."""

LIVE: Final = "x-live"
"""A request with this header asks only for the part of the page that changes."""

_ASSETS: Final = {"style.css": "text/css", "page.js": "text/javascript", "favicon.svg": "image/svg+xml"}
_HTML_HEADERS: Final = {
    **HEADERS,
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",  # without any, a browser would send the Origin null with a form
    "Vary": "X-Live",
}
_CHALLENGE: Final = 'Basic realm="dispatcher", charset="UTF-8"'
"""Only at this challenge does a browser ask a person for a token."""

_NO_QUESTION: Final = 'Bearer realm="dispatcher"'
"""What a script is answered instead: it loads the page again."""

_ENDING: Final = [each.value for each in ENDING]
_FIRST_US: Final = 10**9 * US
"""The first instant that ``read_when`` takes in seconds."""

Facts: TypeAlias = dict[str, Any]
View: TypeAlias = Callable[[Request], Facts]
"""What a view shows; blocking."""


@dataclass(frozen=True, slots=True)
class Act:
    """Something that is done to dead letters, behind a question that names how many they are."""

    name: str
    verb: str
    done: str
    run: Callable[[Request, Asked], Awaitable[dict[str, Any]]]


class Page:
    """The page for operators."""

    def __init__(self, guard: Guard, desk: Desk, operating: Operating, threads: Threads) -> None:
        self._guard = guard
        self._desk = desk
        self._threads = threads
        self._looks = Looks(desk)
        self._operating = operating
        compile_templates()
        self._acts = (
            Act("replay", "Replay", "replayed", operating.replay_letters),
            Act("purge", "Remove for good", "purged", operating.purge_letters),
        )

    def routes(self) -> list[Route]:
        """All of them."""
        read: Mapping[str, View] = {
            "now": self._now,
            "suppressed": self._suppressed,
            "explain": self._explain,
            "waiting": self._waiting,
            "dead": self._dead,
            "silences": self._silences,
            "limits": self._limits,
            "audit": self._audit,
        }
        return [
            *(self._at(views.VIEWS[name][0], name, self._shows(name, view)) for name, view in read.items()),
            *(self._at(f"/dead/{act.name}", "dead", self._asks(act), "POST", Scope.OPERATE) for act in self._acts),
            self._at("/silences/preview", "silences", self._preview_silence, "POST", Scope.OPERATE),
            self._at("/silences/add", "silences", self._add_silence, "POST", Scope.OPERATE),
            self._at("/silences/expire", "silences", self._expire_silence, "POST", Scope.OPERATE),
            self._at("/dead/{id:path}", "dead", self._shows("letter", self._letter, of="dead")),
            *(Route(f"/page/{name}", self._asset(name)) for name in _ASSETS),
            Route("/favicon.ico", self._asset("favicon.svg")),
        ]

    def _at(
        self, path: str, of: str, answer: Callable[[Request, bytes], Awaitable[Response]], method: str = "GET",
        scope: Scope = Scope.READ,
    ) -> Route:  # fmt: skip
        way = self._guard.opens(scope)(bounded(answer))

        async def endpoint(request: Request) -> Response:
            request.scope[ROUTE] = path
            request.state.is_of_page = True
            try:
                response = await way(request)
            except Problem as problem:
                response = _told(problem, request, of)
            except (ConfigError, GateUnavailable) as error:
                response = _told(unavailable_by(error), request, of)
            response.headers.update(_HTML_HEADERS)
            return response

        return Route(path, endpoint, methods=[method])

    def _shows(self, name: str, view: View, of: str | None = None) -> Callable[[Request, bytes], Awaitable[Response]]:
        """The page of a view, or its part that changes; 304 where the viewer has that already."""

        async def answer(request: Request, _body: bytes) -> Response:
            may_operate = Scope.OPERATE in caller_of(request).scopes
            facts = _frame(of or name, may_operate=may_operate, needs_tokens=not self._guard.has_tokens)

            def read() -> tuple[str, bool]:
                shown = {**facts, **view(request)}
                books = views.books(self._looks.snapshot())
                return render(name, {**shown, "books": books}), bool(shown.get("faults"))

            live, is_refused = await self._threads.run(read)
            if is_refused:  # the form, with what is wrong with it: it stays as it is
                return HTMLResponse(whole(live, facts | {"is_live": False}), HTTPStatus.UNPROCESSABLE_ENTITY)
            if LIVE not in request.headers:
                return HTMLResponse(whole(live, facts))
            tag = f'"{blake2b(live.encode(), digest_size=12).hexdigest()}"'
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
            return HTMLResponse(live, headers={"ETag": tag})

        return answer

    def _asks(self, act: Act) -> Callable[[Request, bytes], Awaitable[Response]]:
        """Counts first, and asks; what is done is told on the list of dead letters."""

        async def answer(request: Request, body: bytes) -> Response:
            asked = Asked.in_form(body)
            confirmed = asked.flag("confirmed")
            given = fields = asked.given()
            if not confirmed:
                fields = _as_of(given, await self._threads.run(self._desk.dead_letters.now_us))
            done = await act.run(request, Asked({**fields, "dry_run": not confirmed}))
            if confirmed:
                said = {act.done: done[act.done]}
                if done["more"]:  # the list has the filter then: its buttons go on
                    said |= {"more": "true"} | {name: fields[name] for name in DEAD_FILTERS if name in fields}
                return RedirectResponse(f"/dead?{urlencode(said)}", HTTPStatus.SEE_OTHER)
            shown = {"act": act, "asked": given, "fields": fields, "matched": done["matched"], "more": done["more"]}
            return await self._answers("confirm", lambda: shown, of="dead")

        return answer

    def _asset(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        """A file that pages name; it needs no token."""
        content, kind = asset(name), _ASSETS[name]

        async def endpoint(request: Request) -> Response:
            request.scope[ROUTE] = "/page"
            self._guard.check_origin(request)
            is_this = request.query_params.get("v") == version_of(name)  # a newer program may have named another
            kept = "public, max-age=31536000, immutable" if is_this else "no-cache"
            return Response(content, media_type=kind, headers={**HEADERS, "Cache-Control": kept})

        return endpoint

    async def _answers(
        self, name: str, shown: Callable[[], Facts], of: str, status: HTTPStatus = HTTPStatus.OK
    ) -> Response:
        """What a form is answered with: a page that stays as it is."""
        facts = _frame(of, may_operate=True, needs_tokens=False)

        def read() -> str:
            books = views.books(self._looks.snapshot())
            return render(name, {**facts, **shown(), "books": books})

        return HTMLResponse(whole(await self._threads.run(read), facts | {"is_live": False}), status)

    async def _preview_silence(self, request: Request, body: bytes) -> Response:
        """What a silence would match of the newest events; the page asks whether that is meant."""
        asked = Asked.in_form(body)
        fields = asked.given()
        try:
            wanted = await self._wanted(request, asked)
        except Problem as problem:
            return await self._refused(problem, fields)
        seen = await self._operating.preview_of(wanted.matchers)
        start = {} if wanted.from_us is None else {"start": f"{wanted.from_us / US:.6f}"}  # as it is shown
        sure = {name: value for name, value in fields.items() if name != "start"} | start
        shown = {"wanted": wanted, "seen": seen, "fields": fields, "sure": sure}
        return await self._answers("silence", lambda: shown, of="silences")

    async def _add_silence(self, request: Request, body: bytes) -> Response:
        asked = Asked.in_form(body)
        fields = asked.given()
        try:
            begun = await self._operating.begin_silence(request, await self._wanted(request, asked))
        except Problem as problem:
            return await self._refused(problem, fields)
        return RedirectResponse(f"/silences?{urlencode({'added': begun.id})}", HTTPStatus.SEE_OTHER)

    async def _expire_silence(self, request: Request, body: bytes) -> Response:
        asked = Asked.in_form(body)
        id_ = asked.text("id")
        asked.done()
        await self._operating.end_silence(request, id_ or "")
        return RedirectResponse(f"/silences?{urlencode({'expired': id_ or ''})}", HTTPStatus.SEE_OTHER)

    async def _wanted(self, request: Request, asked: Asked) -> Wanted:
        start = asked.take("start", read_start, "a time such as 30m (from now) or 2026-11-21T22:00")
        now_us = 0 if start is None else await self._threads.run(self._desk.decisions.now_us)
        start_us = None if start is None else start(now_us)
        is_later = start_us is not None and start_us > now_us  # else it begins now
        return wanted_of(asked, caller_of(request).name, start_us if is_later else None)

    async def _refused(self, problem: Problem, fields: Mapping[str, Any]) -> Response:
        """The form again, with what was typed and what is wrong with it."""
        found = problem.members.get("errors")
        faults = [str(each["detail"]) for each in found] if isinstance(found, list) else [problem.detail]
        return await self._answers(
            "silences", lambda: {**self._silences_of(fields), "faults": faults}, of="silences", status=problem.status
        )

    def _now(self, request: Request) -> Facts:
        Asked.in_query(request).done()
        look = self._looks.look()
        return views.now(look, self._looks.history(look.status.snapshot.now_us))

    def _suppressed(self, request: Request) -> Facts:
        asked = Asked.in_search(request)
        given, category = asked.given(), asked.text("category")
        if faults := asked.faults():
            return {"asked": given, "faults": faults}

        def matches(each: Decision) -> bool:
            return is_suppressed(each.reason) and category in {None, each.category}

        causes, newest, is_all = views.causes(self._desk.decisions.suppressed(), SHOWN, matches)
        status = self._looks.look().status
        begin_us = status.snapshot.now_us - views.PAUSE_US
        of_now = [each for each in causes if each.newest.at_us >= begin_us]
        if not is_all:
            views.by_books(of_now, status.recent, status.snapshot.now_us)
        return {
            "asked": given,
            "faults": (),
            "causes": {
                "Now": of_now,
                "Earlier": [each for each in causes if each.newest.at_us < begin_us],
            },
            "newest": newest,
            "is_all": is_all,
            "category": category,
            "kept_since_us": self._desk.decisions.kept_since_us(),
        }

    def _explain(self, request: Request) -> Facts:
        asked = Asked.in_search(request)
        given = asked.given()
        shown = {"asked": given, "faults": (), "told": None, "rows": None, "outcomes": OUTCOMES, "reasons": _ENDING}
        if "id" in given:
            return {**shown, **self._of_one(asked)}
        if not given:
            return shown
        wanted = decision_filter(asked)
        if faults := asked.faults():
            return {**shown, "faults": faults}
        parked = parked_filter(Asked({name: given[name] for name in ("category", "text") if name in given}))
        events = self._desk.parked(self._looks.look().limits.policy)
        has_ended = not given.keys().isdisjoint({"outcome", "reason", "since", "before"})
        decisions = self._desk.decisions
        pages = () if has_ended else events.pages(parked(events))
        waits, found = search_both(pages, decisions.pages(wanted(decisions)), SHOWN)
        return {
            **shown,
            "rows": found.rows,
            "waits": [parked_document(each) for each in waits.rows],
            "more": found.more or waits.more,
            "kept_since_us": decisions.kept_since_us(),
        }

    def _of_one(self, asked: Asked) -> Facts:
        id_ = asked.text("id", MOST_ID)
        if faults := asked.faults():
            return {"faults": faults}
        told = explained_document(self._desk.explanations.explain_beginning(id_ or ""))
        return {"told": told, "facts": views.facts_of(told), "instants": views.instants_of(told)}

    def _waiting(self, request: Request) -> Facts:
        asked = Asked.in_search(request)
        given, wanted = asked.given(), parked_filter(asked)
        look, faults = self._looks.look(), asked.faults()
        events = self._desk.parked(look.limits.policy)
        found = search(() if faults else events.pages(wanted(events)), SHOWN)
        rows = [{**parked_document(each), "expires_us": each.deadline_us} for each in found.rows]
        rows.sort(key=_expected)
        return {
            **views.waiting(look.status.snapshot),
            "faults": faults,
            "rows": rows,
            "more": found.more,
            "reasons": [each.value for each in WAITING],
            "asked": given,
            "us": US,
        }

    def _dead(self, request: Request) -> Facts:
        asked = Asked.in_search(request)
        wanted = dead_filter(asked)
        done = {act.done: asked.count(act.done, 10**9, 0, least=0) for act in self._acts if asked.has(act.done)}
        is_more = asked.flag("more")
        faults = asked.faults()
        letters = self._desk.dead_letters
        pages = iter(()) if faults else letters.pages(wanted(letters), newest_first=True)
        groups, newest, counted, is_all = views.groups(pages, SHOWN)
        return {
            "faults": faults,
            "reasons": [each.value for each in DEADLY],
            "groups": groups,
            "letters": newest,
            "counted": counted,
            "is_all": is_all,
            "kept": letters.count(),
            "asked": {
                name: request.query_params[name] for name in DEAD_FILTERS if request.query_params.get(name, "").strip()
            },
            "done": done,
            "done_more": is_more,
            "text_of": _text_of,
        }

    def _letter(self, request: Request) -> Facts:
        Asked.in_query(request).done()
        id_ = request.path_params["id"]
        letter = letter_of(self._desk.dead_letters, id_)
        if letter is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no dead letter of the id {id_!r}")
        sentence = ended(letter.decision(), clock_of(self._looks.snapshot().now_us))
        payload = letter.content().decode("utf-8", "backslashreplace")
        return {"letter": letter, "sentence": sentence, "said": _text_of(letter), "payload": payload}

    def _silences(self, request: Request) -> Facts:
        asked = Asked.in_search(request)
        fields = {name: said for name in silences.FIELDS if (said := asked.text(name, MOST_MATCHERS)) is not None}
        done = {name: asked.text(name) for name in ("added", "expired")}
        return {**self._silences_of(fields), "done": done, "faults": asked.faults()}

    def _silences_of(self, fields: Mapping[str, Any]) -> Facts:
        self._desk.check()
        kept = self._desk.silencing.all()
        now_us = self._desk.decisions.now_us()  # a look may be from before the newest one
        ended = silences.ended(self._desk.audit.newest(), kept)
        return {**silences.listed(kept, now_us), "ended": ended, "asked": fields, "faults": (), "done": {}, "us": US}

    def _limits(self, request: Request) -> Facts:
        asked = Asked.in_search(request)
        number = asked.count("version", 10**15, 0)
        category = asked.text("category")
        kept = [] if category else self._desk.versions.kept()  # beside the rules of a category no versions are shown
        shown = views.limits(self._looks.look(), kept, number or None, category)
        return {**shown, "faults": asked.faults()}

    def _audit(self, request: Request) -> Facts:
        Asked.in_query(request).done()
        return {"entries": self._desk.audit.newest(), "us": US}


def _text_of(letter: DeadLetter) -> str:
    """What its event says; '' where there is none."""
    event = letter.event()
    return "" if event is None else text_of(event)


def _as_of(given: dict[str, Any], now_us: int) -> dict[str, Any]:
    """The fields with their instants as they are now: what dies later is not meant.

    Fields that name ids stay as they are, and so do those that will be refused.
    """
    is_all = given.get("all") == "true"
    if "ids" in given or given.keys().isdisjoint(DEAD_FILTERS) != is_all:
        return given
    fields = {name: value for name, value in given.items() if name != "all"}
    try:
        instants = {name: read_when(given[name])(now_us) for name in ("since", "before") if name in given}
    except (ValueError, OverflowError):
        return given
    for name, at_us in ({"before": now_us} | instants).items():
        fields[name] = f"{max(_FIRST_US, min(at_us, now_us)) / US:.6f}"
    return fields


def _frame(name: str, *, may_operate: bool, needs_tokens: bool) -> Facts:
    """What every page has around its view."""
    return {
        "views": views.VIEWS,
        "current": name,
        "title": views.VIEWS[name][1] if name in views.VIEWS else name,
        "may_operate": may_operate,
        "needs_tokens": needs_tokens,
        "is_live": True,
        "url_of": lambda id_: quote(id_, safe=""),
    }


def _expected(parked: Mapping[str, Any]) -> tuple[float, str, int]:
    """What goes first comes first; where that is not known, what has waited longest of its category."""
    expected_at = parked.get("expected_at") or parked.get("next_at") or math.inf
    return expected_at, parked.get("category") or "", parked["expires_us"]


def _told(problem: Problem, request: Request, of: str) -> Response:
    """A problem as a page of a view. It is asked for again only where the server is away."""
    facts = _frame(of, may_operate=False, needs_tokens=False)
    facts["is_live"] = request.method == "GET" and problem.status == HTTPStatus.SERVICE_UNAVAILABLE
    shown = {**facts, "status": int(problem.status), "phrase": HTTPStatus(problem.status).phrase}
    live = render("problem", {**shown, "detail": problem.detail, "books": None})
    headers = dict(problem.headers or {})
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = _NO_QUESTION if LIVE in request.headers else _CHALLENGE
    return HTMLResponse(whole(live, facts), problem.status, headers)

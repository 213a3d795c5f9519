"""The routes: what is asked for under which path, by whom, and within which bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dispatcher.app.serving import Readiness
from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.logs.event_log import EventLog
from dispatcher.web import alertmanager
from dispatcher.web.asked import Asked
from dispatcher.web.auth import Guard, Scope, WholeAddresses
from dispatcher.web.bounds import MOST_BODY, Endpoint, Handler, bounded
from dispatcher.web.hooks import Hooks
from dispatcher.web.ingest import Ingest
from dispatcher.web.metrics import ROUTE, Counted, Metrics
from dispatcher.web.openapi import description
from dispatcher.web.operating import LARGER_LIMITS, MOST_LIMITS, Operating
from dispatcher.web.page.routes import Page
from dispatcher.web.problems import HEADERS, Problem, ProblemResponse, unavailable, unavailable_by
from dispatcher.web.reading import Reading

READY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class App:
    """What the routes need; ``build`` makes the ASGI application of it."""

    guard: Guard
    ingest: Ingest
    reading: Reading
    operating: Operating
    metrics: Metrics
    page: Page
    hooks: Hooks
    readiness: Readiness
    log: EventLog

    def build(self) -> Starlette:
        """The application."""
        ingest, reading, operating = self.ingest, self.reading, self.operating
        counted = self.metrics.traffic.of_events
        alerts = alertmanager.Alerts(ingest)
        routes = [
            _at("/v1/events", GET=self._reads(reading.events), POST=self._ingests(ingest.post_events)),
            _at("/v1/events/{name:path}", GET=self._reads(reading.event), POST=self._ingests(ingest.post_text)),
            _at("/v1/alertmanager", POST=self._ingests(alerts.post, alertmanager.MOST_BODY)),
            _at(
                "/v1/hooks/{name}", POST=self.guard.opens_by_secret(counted(self.hooks.knows(bounded(self.hooks.post))))
            ),
            _at("/v1/status", GET=self._reads(reading.status)),
            _at("/v1/limits", GET=self._reads(reading.limits)),
            _at("/v1/limits/check", POST=self.guard.opens(Scope.READ)(_of_limits(operating.check_limits))),
            _at("/v1/limits/apply", POST=self.guard.opens(Scope.OPERATE)(_of_limits(operating.apply_limits))),
            _at("/v1/parked", GET=self._reads(reading.parked)),
            _at("/v1/parked/cancel", POST=self._operates(operating.cancel)),
            _at("/v1/dead", GET=self._reads(reading.dead)),
            _at("/v1/dead/replay", POST=self._operates(operating.replay)),
            _at("/v1/dead/purge", POST=self._operates(operating.purge)),
            _at("/v1/dead/{id:path}", GET=self._reads(reading.dead_letter)),
            *(
                _at(path, PUT=self._operates(operating.pause), DELETE=self._operates(operating.resume))
                for path in ("/v1/pause", "/v1/pause/{category}")
            ),
            _at(
                "/v1/mutes/{category}",
                PUT=self._operates(operating.mute),
                DELETE=self._operates(operating.unmute),
            ),
            _at("/v1/silences", GET=self._reads(reading.silences), POST=self._operates(operating.silence)),
            _at("/v1/silences/preview", POST=self._operates(operating.preview_silence)),
            _at("/v1/silences/{id}", DELETE=self._operates(operating.expire_silence)),
            _at("/v1/audit", GET=self._reads(reading.audit)),
            _at("/metrics", GET=self.guard.opens(Scope.METRICS)(bounded(self.metrics.get))),
            _at("/-/healthy", GET=bounded(_healthy, 0)),
            _at("/-/ready", GET=bounded(self._ready, 0)),
            _at("/openapi.json", GET=bounded(self._described, 0)),
            *self.page.routes(),
        ]
        app = Starlette(
            routes=routes,
            middleware=[Middleware(WholeAddresses), Middleware(Counted, self.metrics.traffic)],
            exception_handlers={
                Problem: _told,
                ConfigError: _told_by_redis,
                HTTPException: self._told_by_starlette,
                Exception: self._failed,
            },
        )
        app.router.redirect_slashes = False
        return app

    def _ingests(self, handler: Handler, most: int = MOST_BODY) -> Endpoint:
        return self.guard.opens(Scope.INGEST)(self.metrics.traffic.of_events(bounded(handler, most)))

    def _reads(self, handler: Handler) -> Endpoint:
        return self.guard.opens(Scope.READ)(bounded(handler))

    def _operates(self, handler: Handler) -> Endpoint:
        async def without_query(request: Request, body: bytes) -> Response:
            Asked.in_query(request).done()
            return await handler(request, body)

        return self.guard.opens(Scope.OPERATE)(bounded(without_query))

    async def _ready(self, _request: Request, _body: bytes) -> Response:
        try:
            async with asyncio.timeout(READY_S):
                reason = await self.readiness.why_not()
        except (GateUnavailable, ConfigError) as error:
            reason = str(error)
        except TimeoutError:
            reason = f"Redis did not answer within {READY_S:g} s"
        if reason is not None:
            raise unavailable(reason)
        return JSONResponse({"status": "ready"})

    async def _described(self, request: Request, _body: bytes) -> Response:
        self.guard.check_origin(request)
        return JSONResponse(description())

    async def _told_by_starlette(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - what Starlette looks up by its class
        try:
            self.guard.check_origin(request)
        except Problem as problem:
            return problem.response()
        headers: Mapping[str, str] = error.headers or {}
        detail = _WORDS.get(HTTPStatus(error.status_code), error.detail)
        return ProblemResponse(error.status_code, detail, dict(headers))

    async def _failed(self, _request: Request, error: Exception) -> Response:
        self.log.failed(error, "serve.failed")
        detail = "a defect of the dispatcher; its log tells more"
        return ProblemResponse(HTTPStatus.INTERNAL_SERVER_ERROR, detail, {"Connection": "close"})  # as uvicorn does


def _at(path: str, **by_method: Endpoint) -> Route:
    """A path with the endpoint of each of its methods; others are answered with 405 and these."""

    async def endpoint(request: Request) -> Response:
        request.scope[ROUTE] = path
        response = await by_method["GET" if request.method == "HEAD" else request.method](request)
        response.headers.update(HEADERS)
        return response

    return Route(path, endpoint, methods=list(by_method))


def _of_limits(handler: Handler) -> Endpoint:
    return bounded(handler, MOST_LIMITS, LARGER_LIMITS)


async def _healthy(_request: Request, _body: bytes) -> Response:
    return JSONResponse({"status": "alive"})


async def _told(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)  # noqa: S101 - what Starlette looks up by its class
    return problem.response()


async def _told_by_redis(_request: Request, error: Exception) -> Response:
    """Redis answers and will not have it, or the limits in force cannot be read: mended, the same request does."""
    return unavailable_by(error).response()


_WORDS: Final = {
    HTTPStatus.NOT_FOUND: "there is nothing at this path; GET /openapi.json lists what there is",
    HTTPStatus.METHOD_NOT_ALLOWED: "this path has other methods: see the header Allow",
}

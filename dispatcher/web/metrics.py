"""``GET /metrics``: the namespace's figures, the same from every process, and a few of this process alone."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.app.metrics import Facts, read_facts
from dispatcher.app.operating import Desk
from dispatcher.errors import ConfigError
from dispatcher.web.auth import caller_of
from dispatcher.web.bounds import Endpoint
from dispatcher.web.exposition import PREFIX, counter, families
from dispatcher.web.problems import AWAY_RETRY_S, Problem
from dispatcher.web.threads import Threads

KEPT_S: Final = 1.0
"""So old may the figures be that a scrape gets: one look a second serves all."""

LOOK_S: Final = 2.0
"""How long a scrape waits for a look, of which there is one at a time; the rest of its time is for the answer."""

NOWHERE: Final = "none"
"""The route of a request that has none."""


class Traffic:
    """Counts requests and events of this process, in its event loop."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._events: Counter[tuple[str, ...]] = Counter()

    def note(self, route: str, code: int) -> None:
        """One request and its answer."""
        self._requests[route, str(code)] += 1

    def families(self) -> Iterator[Metric]:
        """What was counted."""
        yield counter("http_requests", "Requests, by route and answer.", ["route", "code"], self._requests)
        yield counter("http_events", "Events in requests, by token and result.", ["source", "result"], self._events)

    def of_events(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint, whose answers say how many events were enqueued and how many were duplicates."""

        async def counted(request: Request) -> Response:
            try:
                response = await endpoint(request)
            except Exception as error:
                self._count(request, {"refused": 1, **(error.members if isinstance(error, Problem) else {})})
                raise
            self._count(request, json.loads(bytes(response.body)))
            return response

        return counted

    def _count(self, request: Request, told: Mapping[str, Any]) -> None:
        for result in ("enqueued", "duplicate", "ignored", "refused"):
            if result in told:
                self._events[caller_of(request).name, result] += told[result]


ROUTE: Final = "dispatcher.route"
"""Where the path of a request's route stands in its scope."""


class Counted:
    """An application whose requests are counted."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        has_answer = False

        async def noted(message: Message) -> None:
            nonlocal has_answer
            if message["type"] == "http.response.start":
                has_answer = True
                self._traffic.note(scope.get(ROUTE, NOWHERE), message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:  # Starlette answers a defect outside of this
            if not has_answer:
                self._traffic.note(scope.get(ROUTE, NOWHERE), HTTPStatus.INTERNAL_SERVER_ERROR)
            raise


class Look:
    """What the last look found; one look serves all who ask within a second. Threads may share it."""

    def __init__(self, read: Callable[[], list[Metric]], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._found: list[Metric] = []
        self._until = 0.0

    def families(self) -> list[Metric]:
        """The families. Raises ``GateUnavailable`` and ``ConfigError``; the next who asks looks again then."""
        with self._lock:
            if self._clock() >= self._until:
                self._found = self._read()
                self._until = self._clock() + KEPT_S
            return self._found


class Metrics:
    """The route; ``traffic`` is what this process counts itself."""

    def __init__(self, desk: Desk, threads: Threads) -> None:
        self.traffic = Traffic()
        self._look = Look(lambda: list(families(read_facts(desk))))
        self._threads = threads

    async def get(self, request: Request, _body: bytes) -> Response:
        """``GET /metrics``: OpenMetrics where the client asks for it, else Prometheus' text.

        503 where Redis is away, refuses or is too slow, with what is known of this process.
        """
        encode, kind = _encoder(request.headers.get("accept", ""))
        begun = time.monotonic()
        found: list[Metric] = []
        status, headers = HTTPStatus.OK, {}
        try:
            async with asyncio.timeout(LOOK_S):
                found = await self._threads.run(self._look.families)
        except (Problem, ConfigError, TimeoutError):
            status, headers = HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": str(AWAY_RETRY_S)}
        took = GaugeMetricFamily(f"{PREFIX}scrape_seconds", "How long this scrape took.", time.monotonic() - begun)
        content = encode(_Found([*found, *self.traffic.families(), took, _up(is_up=status == HTTPStatus.OK)]))
        return Response(content, status, headers, media_type=kind)


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """The format that a client asks for, and its content type; Prometheus' text where the header cannot be read."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        return choose_encoder("")


def _up(*, is_up: bool) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}redis_up", "Whether Redis answered this scrape.", int(is_up))


class _Found(CollectorRegistry):
    """Families as prometheus_client writes them."""

    def __init__(self, found: Iterable[Metric]) -> None:
        super().__init__()
        self._found = found

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self._found


def text(facts: Facts) -> str:
    """The namespace's figures as Prometheus' text, and that Redis has answered."""
    return generate_latest(_Found([*families(facts), _up(is_up=True)])).decode()

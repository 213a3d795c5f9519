"""What is answered as JSON: what was asked for, or instead an error in the form of RFC 9457."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import JSONResponse

from dispatcher.server.connection import is_full

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer of a route; ``BoundedProtocol`` answers without them what does not come to a route."""

FULL_RETRY_S: Final = 5
"""When to come again where the queue or the server is full."""

AWAY_RETRY_S: Final = 2
"""When to come again where Redis is away, or where too much is going on here."""


class Problem(Exception):
    """Ends a request with ``status`` and a sentence; ``members`` are further facts for programs."""

    def __init__(
        self, status: HTTPStatus, detail: str, *, headers: dict[str, str] | None = None, **members: object
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.members = members

    def response(self) -> ProblemResponse:
        """The answer."""
        return ProblemResponse(self.status, self.detail, self.headers, self.members)


class JSONAnswer(JSONResponse):
    """An answer as JSON; half of a character, which UTF-8 lacks, is written as JSON escapes it."""

    def render(self, content: object) -> bytes:
        """See Starlette."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


class ProblemResponse(JSONAnswer):
    """An answer of ``application/problem+json``."""

    media_type = "application/problem+json"

    def __init__(
        self, status: int, detail: str, headers: dict[str, str] | None = None, members: dict[str, object] | None = None
    ) -> None:
        super().__init__(document(status, detail, members or {}), status, {**HEADERS, **(headers or {})})


def document(status: int, detail: str, members: dict[str, object]) -> dict[str, Any]:
    """The JSON object of a problem."""
    title = HTTPStatus(status).phrase
    return {"type": "about:blank", "title": title, "status": int(status), "detail": detail, **members}


def unavailable(detail: str, retry_s: int = AWAY_RETRY_S, **members: object) -> Problem:
    """503: the same request may do at another time. There is no 429: who sends webhooks gives up at one."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": str(retry_s)}, **members)


def unavailable_by(error: Exception, **members: object) -> Problem:
    """503 for a server that is away, or full: then it takes longer until there is room."""
    return unavailable(str(error), FULL_RETRY_S if is_full(error) else AWAY_RETRY_S, **members)

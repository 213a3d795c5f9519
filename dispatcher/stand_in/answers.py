"""A call of Slack's API, and what goes back; no HTTP in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

WEBHOOK: Final = "webhook"

_WEBHOOK_STATUS: Final = {
    "invalid_token": 403,
    "team_disabled": 403,
    "action_prohibited": 403,
    "posting_to_general_channel_denied": 403,
    "no_service": 404,
    "no_service_id": 404,
    "no_active_hooks": 404,
    "no_team": 404,
    "channel_not_found": 404,
    "channel_is_archived": 410,
    "rate_limited": 429,
    "rollup_error": 500,
}  # any other code: 400


@dataclass(frozen=True, slots=True)
class Call:
    """One request: a Web API method with its arguments and token, or ``WEBHOOK``."""

    method: str
    arguments: Mapping[str, Any]
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back: JSON for the Web API, plain text for a webhook."""

    body: dict[str, Any] | str
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """Ends a method with an error code of Slack's; ``more`` is what Slack adds to it."""

    def __init__(self, code: str, **more: object) -> None:
        super().__init__(code)
        self.code = code
        self.more = more


def refused(method: str, code: str, **more: object) -> Answer:
    """Slack's refusal of a call, in the form of its API."""
    if method == WEBHOOK:
        code = "channel_is_archived" if code == "is_archived" else code
        return Answer(code, _WEBHOOK_STATUS.get(code, 400))
    return Answer({"ok": False, "error": code, **more})


def rate_limited(method: str, retry_after: str | None) -> Answer:
    """Slack's 429."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    body: dict[str, Any] | str = "rate_limited" if method == WEBHOOK else {"ok": False, "error": "ratelimited"}
    return Answer(body, HTTPStatus.TOO_MANY_REQUESTS, headers)

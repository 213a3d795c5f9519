"""The stand-in's Slack workspace: tokens, channels, methods and the ledger. No HTTP in here.

A Web API method is one entry of ``Workspace._methods``: from a call to an answer, and the scope it needs.
"""

from __future__ import annotations

import hmac
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final

from dispatcher.slack.stand_in.ledger import Ledger, Posted
from dispatcher.slack.stand_in.rates import Buckets, Rate
from dispatcher.slack.stand_in.sizes import MAX_TEXT, content_problem

TOKEN: Final = "xoxb-local-stand-in"  # noqa: S105 - no secret: it opens nothing but the local stand-in
WEBHOOK: Final = "webhook"
WEBHOOK_PATH: Final = "/services/T0STANDIN/B0STANDIN/localStandInWebhookKey00"
POSTING: Final = frozenset({"chat.postMessage", WEBHOOK})
_TEAM: Final = "T0STANDIN"
_ID: Final = re.compile(r"[CDGU][A-Z0-9]{8,}")

_WEBHOOK_STATUS: Final = {
    "invalid_token": 403,
    "team_disabled": 403,
    "action_prohibited": 403,
    "posting_to_general_channel_denied": 403,
    "no_service": 404,
    "no_active_hooks": 404,
    "no_team": 404,
    "channel_not_found": 404,
    "channel_is_archived": 410,
    "rate_limited": 429,
    "rollup_error": 500,
}  # any other code: 400


@dataclass(frozen=True, slots=True)
class Setup:
    """What the workspace is like. ``channels`` of ``None``: a channel exists as soon as it is posted to.

    ``rate`` of ``None``: no channel is ever too fast. ``clock`` gives seconds since 1970.
    """

    token: str = TOKEN
    scopes: tuple[str, ...] = ("chat:write", "chat:write.public", "channels:history", "groups:history")
    webhook_channel: str = "#webhook"
    channels: frozenset[str] | None = None
    archived: frozenset[str] = frozenset()
    rate: Rate | None = None
    clock: Callable[[], float] = time.time


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
    """Ends a method with an error code of Slack's."""

    def __init__(self, code: str, **more: object) -> None:
        super().__init__(code)
        self.code = code
        self.more = more


class Workspace:
    """Answers calls one at a time, whoever makes them; state lasts until ``reset``."""

    def __init__(self, setup: Setup) -> None:
        self._lock = threading.RLock()
        self.setup = setup
        self.ledger = Ledger()
        self._methods: dict[str, tuple[Callable[[Call], Answer], str | None]] = {
            "auth.test": (self._auth_test, None),
            "chat.postMessage": (self._post_message, "chat:write"),
        }
        self.reset()

    def reset(self) -> None:
        """As at the start: nothing posted, nobody limited, the token accepted."""
        with self._lock:
            self.ledger.clear()
            self.posts = 0
            self.rate_limited = 0
            self._buckets = Buckets(self.setup.rate) if self.setup.rate else None
            self._token_error: str | None = None
            self._last_ts_us = 0
            self._names = {channel_id(name): name for name in self.setup.channels or ()}

    @property
    def inside_retry_after(self) -> int:
        """Calls made before an earlier answer's Retry-After was over."""
        return self._buckets.inside_retry_after if self._buckets else 0

    def revoke_token(self, code: str = "invalid_auth") -> None:
        """Refuse the token from now on, with this code."""
        self._token_error = code

    def restore_token(self) -> None:
        """Accept the token again."""
        self._token_error = None

    def answer(self, call: Call) -> Answer:
        """Carry the call out as Slack would."""
        with self._lock:
            try:
                return self._carry_out(call)
            except Refused as refusal:
                return refused(call.method, refusal.code, **refusal.more)

    def _carry_out(self, call: Call) -> Answer:
        if call.method == WEBHOOK:
            return self._webhook(call)
        if call.method not in self._methods:
            raise Refused("unknown_method")
        run, scope = self._methods[call.method]
        self._authorize(call.token, scope)
        return run(call)

    def _authorize(self, token: str | None, scope: str | None) -> None:
        if token is None:
            raise Refused("not_authed")
        if not hmac.compare_digest(token.encode(), self.setup.token.encode()):
            raise Refused("invalid_auth")
        if self._token_error is not None:
            raise Refused(self._token_error)
        if scope is not None and scope not in self.setup.scopes:
            raise Refused("missing_scope", needed=scope, provided=",".join(self.setup.scopes))

    def _auth_test(self, _call: Call) -> Answer:
        body = {"ok": True, "team": "Stand-in", "team_id": _TEAM, "user": "dispatcher", "user_id": "U0STANDIN"}
        return Answer(body, headers={"x-oauth-scopes": ",".join(self.setup.scopes)})

    def _post_message(self, call: Call) -> Answer:
        self.posts += 1
        channel = self._channel(call.arguments.get("channel"))
        if (limited := self._limit(channel, call.method)) is not None:
            return limited
        posted, warnings = self._land(channel, call.arguments, "api")
        message: dict[str, Any] = {"type": "message", "user": "U0STANDIN", "text": posted.text, "ts": posted.ts}
        if posted.blocks:
            message["blocks"] = list(posted.blocks)
        body: dict[str, Any] = {"ok": True, "channel": posted.channel_id, "ts": posted.ts, "message": message}
        if warnings:
            body |= {"warning": ",".join(warnings), "response_metadata": {"warnings": warnings}}
        return Answer(body)

    def _webhook(self, call: Call) -> Answer:
        self.posts += 1
        if call.arguments.get("path") != WEBHOOK_PATH:
            raise Refused("no_service")
        if not isinstance(payload := call.arguments.get("payload"), dict):
            raise Refused("invalid_payload")
        channel = self._channel(self.setup.webhook_channel)
        if (limited := self._limit(channel, call.method)) is not None:
            return limited
        self._land(channel, payload, "webhook")
        return Answer("ok")

    def _channel(self, reference: object) -> str:
        """The name of a channel given as ``#name``, ``name`` or id; an id never seen is its own name."""
        if not isinstance(reference, str) or not reference.strip("#"):
            raise Refused("channel_not_found")
        name = self._names.get(reference)
        if name is None:
            name = reference if _ID.fullmatch(reference) else f"#{reference.lstrip('#')}"
        if self.setup.channels is not None and name not in self.setup.channels:
            raise Refused("channel_not_found")
        if name in self.setup.archived:
            raise Refused("is_archived")
        self._names[channel_id(name)] = name
        return name

    def _limit(self, channel: str, method: str) -> Answer | None:
        retry_after = self._buckets.take(channel, self.setup.clock()) if self._buckets else None
        if retry_after is None:
            return None
        self.rate_limited += 1
        return rate_limited(method, str(retry_after))

    def _land(self, channel: str, arguments: Mapping[str, Any], via: str) -> tuple[Posted, list[str]]:
        text = arguments.get("text") or ""
        blocks, metadata = _decoded(arguments.get("blocks")), _decoded(arguments.get("metadata"))
        if not isinstance(text, str):
            raise Refused("invalid_arguments")
        if (problem := content_problem(text, blocks, metadata)) is not None:
            code, messages = problem
            raise Refused(code, response_metadata={"messages": messages})
        now = self.setup.clock()
        posted = Posted(
            channel=channel,
            channel_id=channel_id(channel),
            ts=self._next_ts(now),
            text=text[:MAX_TEXT],
            blocks=tuple(blocks or ()),
            thread_ts=arguments.get("thread_ts"),
            metadata=metadata,
            via=via,
            arrived_at=now,
        )
        self.ledger.add(posted)
        return posted, ["message_truncated"] if len(text) > MAX_TEXT else []

    def _next_ts(self, now: float) -> str:
        self._last_ts_us = max(round(now * 1_000_000), self._last_ts_us + 1)
        return f"{self._last_ts_us // 1_000_000}.{self._last_ts_us % 1_000_000:06d}"


def channel_id(name: str) -> str:
    """The id of a channel, the same in every run; an id is its own."""
    if not name.startswith("#"):
        return name
    return "C" + blake2b(name.encode(), digest_size=5).hexdigest().upper()


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


def _decoded(value: object) -> Any:  # noqa: ANN401 - decoded JSON
    """A form sends structures as JSON text; what is no JSON stays text, and is refused as the wrong type."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value

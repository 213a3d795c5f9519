"""The stand-in's Slack workspace: tokens, channels, methods and the ledger. No HTTP in here.

A Web API method is one entry of ``Workspace._methods``: from a call to an answer, and the scope it needs.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from dispatcher.core.units import US
from dispatcher.stand_in.answers import WEBHOOK, Answer, Call, Refused, rate_limited, refused
from dispatcher.stand_in.asked import USUAL_ITEMS, as_ts, is_true
from dispatcher.stand_in.channels import Channels, channel_id, missing
from dispatcher.stand_in.contents import Content
from dispatcher.stand_in.history import USUAL_REPLIES, Span, history, message_json, replies
from dispatcher.stand_in.ledger import Ledger, Posted
from dispatcher.stand_in.setup import WEBHOOK_PATH, Setup
from dispatcher.stand_in.sizes import MAX_EDITED_TEXT
from dispatcher.stand_in.traffic import Traffic

POSTING: Final = frozenset({"chat.postMessage", WEBHOOK})
_TEAM: Final = "T0STANDIN"
_CUSTOMIZE: Final = "chat:write.customize"


class Workspace:
    """Answers calls one at a time, whoever makes them; state lasts until ``reset``."""

    def __init__(self, setup: Setup) -> None:
        self._lock = threading.RLock()
        self.setup = setup
        self.ledger = Ledger()
        self._methods: dict[str, tuple[Callable[[Call], Answer], str | None]] = {
            "auth.test": (self._auth_test, None),
            "chat.postMessage": (self._post_message, "chat:write"),
            "chat.update": (self._update, "chat:write"),
            "conversations.history": (self._history, None),
            "conversations.list": (self._list, None),
            "conversations.replies": (self._replies, None),
        }
        self.reset()

    def reset(self) -> None:
        """As at the start: nothing posted, nobody limited, the token accepted."""
        with self._lock:
            self.ledger.clear()
            self.traffic = Traffic(self.setup)
            self._began_at = self.setup.clock()
            self._token_error: str | None = None
            self._last_ts_us = 0
            self._channels = Channels(self.setup)

    @property
    def posts(self) -> int:
        """Posts that arrived, whatever became of them."""
        return sum(self.traffic.calls[method] for method in POSTING)

    @property
    def rate_limited(self) -> int:
        """Calls that were told to wait."""
        return self.traffic.waits.total()

    @property
    def inside_retry_after(self) -> int:
        """Calls made before an earlier answer's Retry-After was over."""
        return self.traffic.ignored.total()

    def revoke_token(self, code: str = "invalid_auth") -> None:
        """Refuse the token from now on, with this code."""
        self._token_error = code

    def restore_token(self) -> None:
        """Accept the token again."""
        self._token_error = None

    def is_down(self, *, refusing: bool) -> bool:
        """Whether an outage lasts that refuses connections, or one that answers 503."""
        after_s = self.setup.clock() - self._began_at
        return any(each.refuses is refusing and each.covers(after_s) for each in self.setup.outages)

    def arrived(self, call: Call) -> None:
        """Count a call, before its fate is known."""
        with self._lock:
            if call.method == "chat.postMessage":
                self._channels.named(call.arguments.get("channel"))
            self.traffic.arrived(call.method, self._posted_to(call), self.setup.clock())

    def told_to_wait(self, call: Call, retry_after_s: int) -> None:
        """A fault has told the caller to come back later."""
        with self._lock:
            self.traffic.told(self._posted_to(call) or call.method, retry_after_s, self.setup.clock())

    def _posted_to(self, call: Call) -> str | None:
        """The channel of a post, as far as it says; ``None`` for any other call."""
        if call.method not in POSTING:
            return None
        return self._channels.name_of(
            self.setup.webhook_channel if call.method == WEBHOOK else call.arguments.get("channel")
        )

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
        if call.method not in POSTING and (retry_after := self.traffic.admit(call.method, self.setup.clock())):
            return rate_limited(call.method, str(retry_after))
        return run(call)

    def _authorize(self, token: str | None, scope: str | None) -> None:
        if token is None:
            raise Refused("not_authed")
        if not hmac.compare_digest(token.encode(), self.setup.token.encode()):
            raise Refused("invalid_auth")
        if self._token_error is not None:
            raise Refused(self._token_error)
        if scope is not None and scope not in self.setup.scopes:
            raise missing(scope, self.setup)

    def _auth_test(self, _call: Call) -> Answer:
        body = {"ok": True, "team": "Stand-in", "team_id": _TEAM, "user": "dispatcher", "user_id": "U0STANDIN"}
        return Answer(body, headers={"x-oauth-scopes": ",".join(self.setup.scopes)})

    def _post_message(self, call: Call) -> Answer:
        channel = self._channels.to_post(call.arguments.get("channel"))
        if (limited := self._limit(channel, call.method)) is not None:
            return limited
        posted, warnings = self._land(channel, call.arguments, "api")
        body: dict[str, Any] = {"ok": True, "channel": posted.channel_id, "ts": posted.ts}
        body["message"] = message_json(posted, with_metadata=True)
        if warnings:
            body |= {"warning": ",".join(warnings), "response_metadata": {"warnings": warnings}}
        return Answer(body)

    def _webhook(self, call: Call) -> Answer:
        if call.arguments.get("path") != WEBHOOK_PATH:
            raise Refused("no_service")
        if not isinstance(payload := call.arguments.get("payload"), dict):
            raise Refused("invalid_payload")
        channel = self._channels.to_post(self.setup.webhook_channel)
        if (limited := self._limit(channel, call.method)) is not None:
            return limited
        self._land(channel, payload, "webhook")
        return Answer("ok")

    def _limit(self, channel: str, method: str) -> Answer | None:
        retry_after = self.traffic.admit_post(channel, self.setup.clock())
        return None if retry_after is None else rate_limited(method, str(retry_after))

    def _history(self, call: Call) -> Answer:
        channel = self._channels.to_read(call.arguments.get("channel"))
        return Answer(history(self._readable(channel), self._span(call, USUAL_ITEMS)))

    def _replies(self, call: Call) -> Answer:
        channel = self._channels.to_read(call.arguments.get("channel"))
        return Answer(replies(self._readable(channel), call.arguments.get("ts"), self._span(call, USUAL_REPLIES)))

    def _list(self, call: Call) -> Answer:
        return Answer(self._channels.listed(call.arguments))

    def _span(self, call: Call, usual_items: int) -> Span:
        return Span.asked_for(call.arguments, usual_items, self.setup.history_items)

    def _readable(self, channel: str) -> list[Posted]:
        """What the history shows by now of a channel."""
        landed_by = self.setup.clock() - self.setup.history_lag_s
        return [each for each in self.ledger.posted() if each.channel == channel and each.arrived_at <= landed_by]

    def _update(self, call: Call) -> Answer:
        """A text takes the place of blocks unless new ones come with it; metadata stays unless it is named."""
        arguments = call.arguments
        posted = self.ledger.find(self._channels.to_edit(arguments.get("channel")), arguments.get("ts"))
        if posted is None:
            raise Refused("message_not_found")
        if posted.via == "webhook":
            raise Refused("cant_update_message")
        content = Content.read(*self._changed(posted, arguments))
        if len(content.text) > MAX_EDITED_TEXT:
            raise Refused("msg_too_long")
        edited = self.ledger.edit(posted, content, self.setup.clock())
        return Answer({"ok": True, "channel": edited.channel_id, "ts": edited.ts, "text": edited.text})

    @staticmethod
    def _changed(posted: Posted, arguments: Mapping[str, Any]) -> tuple[object, object, object]:
        metadata = arguments.get("metadata", posted.metadata)
        if "text" in arguments or "blocks" in arguments:
            return arguments.get("text"), arguments.get("blocks"), metadata
        return posted.text, list(posted.blocks), metadata

    def _land(self, channel: str, arguments: Mapping[str, Any], via: str) -> tuple[Posted, list[str]]:
        content = Content.read(*(arguments.get(key) for key in ("text", "blocks", "metadata")))
        now = self.setup.clock()
        username, icon = self._author(arguments) if via == "api" else (None, None)
        thread = self._thread(channel, thread_ts := arguments.get("thread_ts"))
        posted = Posted(
            channel=channel,
            channel_id=channel_id(channel),
            ts=self._next_ts(now),
            text=content.text,
            blocks=content.blocks,
            thread_ts=thread_ts,
            metadata=content.metadata,
            via=via,
            arrived_at=now,
            thread=thread,
            is_broadcast=thread is not None and is_true(arguments.get("reply_broadcast")),
            username=username,
            icon=icon,
        )
        self.ledger.add(posted)
        return posted, ["message_truncated"] if content.was_cut else []

    def _author(self, arguments: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """The name and the icon that the caller chose; an emoji goes before a picture."""
        username, emoji, url = (arguments.get(key) or None for key in ("username", "icon_emoji", "icon_url"))
        if (username or emoji or url) and _CUSTOMIZE not in self.setup.scopes:
            raise missing(_CUSTOMIZE, self.setup)
        if not all(isinstance(value, str | None) for value in (username, emoji, url)):
            raise Refused("invalid_arguments")
        return username, emoji or url

    def _thread(self, channel: str, thread_ts: object) -> str | None:
        """The head of the thread that ``thread_ts`` names, also by one of its replies; none where there is none."""
        named = self.ledger.find(channel, thread_ts)
        return None if named is None else named.thread or named.ts

    def _next_ts(self, now: float) -> str:
        self._last_ts_us = max(round(now * US), self._last_ts_us + 1)
        return as_ts(self._last_ts_us)

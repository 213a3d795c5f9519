"""What ``conversations.history`` and ``conversations.replies`` return, from the messages of one channel. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from dispatcher.core.units import US
from dispatcher.stand_in.answers import Refused
from dispatcher.stand_in.asked import as_cursor, as_ts, cursor, instant, is_true, items, ts_us
from dispatcher.stand_in.ledger import Posted

USUAL_REPLIES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Span:
    """What a caller asks for: messages between two instants (in microseconds), so many, from a cursor on."""

    oldest_us: int | None
    latest_us: int | None
    inclusive: bool
    items: int
    cursor_us: int | None
    with_metadata: bool

    @classmethod
    def asked_for(cls, arguments: Mapping[str, Any], usual_items: int, most_items: int | None) -> Self:
        """The span in a call's arguments; ``most_items`` is the setup's. Raises ``Refused`` for what is none."""
        return cls(
            instant(arguments.get("oldest"), "invalid_ts_oldest"),
            instant(arguments.get("latest"), "invalid_ts_latest"),
            is_true(arguments.get("inclusive")),
            items(arguments.get("limit"), usual_items, most_items),
            cursor(arguments.get("cursor")),
            is_true(arguments.get("include_all_metadata")),
        )

    def holds(self, posted: Posted) -> bool:
        """Whether a message lies in it."""
        at = ts_us(posted.ts)
        margin = 0 if self.inclusive else 1
        after = self.oldest_us is None or at >= self.oldest_us + margin
        return after and (self.latest_us is None or at <= self.latest_us - margin)


def history(messages: Sequence[Posted], span: Span) -> dict[str, Any]:
    """The newest first; replies stand in their threads only, but for those that were broadcast."""
    threads: dict[str, list[Posted]] = defaultdict(list)
    for message in messages:
        if message.thread:
            threads[message.thread].append(message)
    within = [message for message in reversed(messages) if span.holds(message)]
    shown = [message for message in within if not message.thread or message.is_broadcast]
    if span.cursor_us is not None:
        shown = [message for message in shown if ts_us(message.ts) <= span.cursor_us]
    return _page(shown, span, threads)


def replies(messages: Sequence[Posted], ts: object, span: Span) -> dict[str, Any]:
    """A message and the replies to it, the oldest first; the message itself leads the first page.

    The ``ts`` of a reply gets that reply alone. Raises ``Refused``.
    """
    head = next((message for message in messages if message.ts == ts), None)
    if head is None:
        raise Refused("thread_not_found")
    thread = [message for message in messages if message.thread == ts]
    shown = [message for message in thread if span.holds(message)]
    if span.cursor_us is None:
        shown.insert(0, head)
    else:
        shown = [message for message in shown if ts_us(message.ts) >= span.cursor_us]
    return _page(shown, span, {head.ts: thread})


def message_json(message: Posted, thread: Sequence[Posted] = (), *, with_metadata: bool = False) -> dict[str, Any]:
    """A message as Slack's history shows it; ``thread`` are the replies to it, ``with_metadata`` shows all of it."""
    shown: dict[str, Any] = {"type": "message", "user": "U0STANDIN", "bot_id": "B0STANDIN", "text": message.text}
    shown["ts"] = message.ts
    if message.via == "webhook" or message.username or message.icon:
        shown["subtype"] = "bot_message"
    if message.username:
        shown["username"] = message.username
    if message.icon:
        shown["icons"] = {"emoji" if message.icon.startswith(":") else "image_48": message.icon}
    if message.is_broadcast:
        shown["subtype"] = "thread_broadcast"
    if message.blocks:
        shown["blocks"] = list(message.blocks)
    if message.thread:
        shown["thread_ts"] = message.thread
    elif thread:
        shown |= {"thread_ts": message.ts, "reply_count": len(thread), "latest_reply": thread[-1].ts}
    if message.earlier and not message.blocks:  # Slack marks no edit of what its blocks show
        shown["edited"] = {"user": "U0STANDIN", "ts": as_ts(round(message.earlier[-1].edited_at * US))}
    if message.metadata:
        shown["metadata"] = dict(message.metadata) if with_metadata else {"event_type": message.metadata["event_type"]}
    return shown


def _page(shown: list[Posted], span: Span, threads: Mapping[str, Sequence[Posted]]) -> dict[str, Any]:
    page, rest = shown[: span.items], shown[span.items :]
    body: dict[str, Any] = {
        "ok": True,
        "messages": [message_json(each, threads.get(each.ts, ()), with_metadata=span.with_metadata) for each in page],
        "has_more": bool(rest),
    }
    if rest:
        body["response_metadata"] = {"next_cursor": as_cursor(ts_us(rest[0].ts))}
    return body

"""Reads what was posted to a channel, to find posts of unknown fate by their marks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from dispatcher.model import US, Ambiguous, Paused, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.reading import Absent, Reading, ReadLater, Rest, Search, Unreadable
from dispatcher.slack.marks import event_mark, mark_of
from dispatcher.slack.replies import read_api_problem
from dispatcher.slack.taxonomy import Problem
from dispatcher.slack.transport import ExchangeFailed

Answer: TypeAlias = tuple[int, Mapping[str, str], object]
Call: TypeAlias = Callable[[str, Mapping[str, Any]], Answer]
"""One call of a Web API method with form arguments: status, headers and decoded body."""

PAGE: Final = 200
SHORT_PAGE: Final = 15
"""So many messages at a time are all that Slack shows to apps that are sold and not on its marketplace."""

_MOST_PAGES: Final = 50
_CHANNEL_ID: Final = re.compile(r"[CDG][A-Z0-9]{5,}")
_LIST_PAGE: Final = 1000
_UNREADABLE: Final = frozenset({"missing_scope", "unknown_method", "method_deprecated", "not_allowed_token_type"})


class History:
    """Looks for posts in what Slack shows of a channel or thread. May be used by several threads at once."""

    def __init__(self, call: Call, timeout_s: float) -> None:
        self._call = call
        self._timeout_s = timeout_s
        self._ids: dict[str, str] = {}

    def note(self, channel: str, channel_id: str) -> None:
        """Remember Slack's id of a channel, which every answer to a post tells: histories are asked for by id."""
        if channel != channel_id and _CHANNEL_ID.fullmatch(channel_id):
            self._ids[channel] = channel_id

    def look(self, search: Search) -> Reading:
        """One reading, newest first, as far as is needed and time allows; a page after the deadline is not asked for.

        Raises ``ExchangeFailed``.
        """
        wanted = {event_mark(event_id): event_id for event_id in search.event_ids}
        found: dict[str, Receipt] = {}
        ends_at = time.monotonic() + self._timeout_s
        try:
            channel = self._id_of(search.channel, ends_at)
            if isinstance(channel, ReadLater | Unreadable):
                return Reading(found, channel)
            return Reading(found, self._read(channel, search, wanted, found, ends_at))
        except ExchangeFailed as failure:
            return Reading(found, ReadLater(failure.code, failure.detail))

    def _read(
        self, channel: str, search: Search, wanted: Mapping[str, str], found: dict[str, Receipt], ends_at: float
    ) -> Rest:
        arguments: dict[str, Any] = {
            "channel": channel,
            "oldest": f"{max(search.since_us, 0) // US}.000000",
            "inclusive": "true",
            "include_all_metadata": "true",
            "limit": PAGE,
        }
        method = "conversations.history"
        if search.thread_ts is not None:
            method = "conversations.replies"
            arguments["ts"] = search.thread_ts
        for _ in range(_MOST_PAGES):
            if time.monotonic() >= ends_at:
                break
            status, headers, data = self._call(method, arguments)
            match data:
                case {"ok": True, "messages": list(messages)}:
                    pass
                case _:
                    return _obstacle(read_api_problem(status, headers, data), method)
            for message in messages:
                mark = mark_of(message)
                if mark in wanted:
                    found[wanted[mark]] = Receipt(channel, _text(message.get("ts")))
            if len(found) == len(wanted) or not data.get("has_more"):
                return Absent()
            cursor = _cursor(data)
            if not cursor or len(messages) <= SHORT_PAGE:
                return Unreadable("history_cut_short", f"Slack shows this app {len(messages)} messages at a time")
            arguments["cursor"] = cursor
        return ReadLater("reading_timeout", f"the history could not be read within {self._timeout_s:g} s", reached=True)

    def _id_of(self, channel: str, ends_at: float) -> str | ReadLater | Unreadable:
        """Slack's id of a channel; by the list of channels where no post has told it yet."""
        if _CHANNEL_ID.fullmatch(channel):
            return channel
        if channel in self._ids:
            return self._ids[channel]
        name = channel.removeprefix("#")
        arguments: dict[str, Any] = {"types": "public_channel,private_channel", "limit": _LIST_PAGE}
        while time.monotonic() < ends_at:
            status, headers, data = self._call("conversations.list", arguments)
            match data:
                case {"ok": True, "channels": list(channels)}:
                    pass
                case _:
                    problem = _obstacle(read_api_problem(status, headers, data), "conversations.list")
                    # What cannot be listed may still be read by its name, where somebody else than Slack answers.
                    return channel if isinstance(problem, Unreadable) else problem
            for each in channels:
                if isinstance(each, dict) and each.get("name") == name and isinstance(each.get("id"), str):
                    self.note(channel, each["id"])
                    return str(each["id"])
            cursor = _cursor(data)
            if not cursor:
                return channel
            arguments["cursor"] = cursor
        return ReadLater("reading_timeout", f"channels could not be listed within {self._timeout_s:g} s", reached=True)


def _obstacle(problem: Problem, method: str) -> ReadLater | Unreadable:
    match problem:
        case RateLimitedBySlack(retry_after_us, code):
            return ReadLater(code, f"Slack limits {method}", retry_after_us, reached=True)
        case Retryable(code, detail) | Ambiguous(code, detail):
            return ReadLater(code, detail)
        case Paused(code, detail) if code not in _UNREADABLE:
            return ReadLater(code, detail, reached=True, pause=problem)
        case Paused(code, detail) | Rejected(code, detail):
            return Unreadable(code, f"{method}: {detail}")


def _cursor(data: Mapping[Any, Any]) -> str:
    more = data.get("response_metadata")
    cursor = more.get("next_cursor") if isinstance(more, dict) else None
    return cursor if isinstance(cursor, str) else ""


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.isprintable() else None

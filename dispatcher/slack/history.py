"""Reads what was posted to a channel, to find posts with an unknown delivery status by their marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from dispatcher.core.posts import Ambiguous, Paused, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.states import MARGIN_US, Absent, Rest, ScanLater, ScanResult, Search, Unreadable
from dispatcher.core.units import CONVERSATION_ID, US
from dispatcher.slack.replies import date_us, event_mark, mark_of, read_api_problem
from dispatcher.slack.taxonomy import Problem, problem
from dispatcher.slack.transport import TOO_LARGE, ExchangeFailed

Answer: TypeAlias = tuple[int, Mapping[str, str], object]
Call: TypeAlias = Callable[[str, Mapping[str, Any]], Answer]
"""One call of a Web API method with form arguments: status, headers and decoded body."""

PAGE: Final = 200
"""Messages of one answer. If the answer is too large, a quarter of them is asked for, and so on."""

SHORT_PAGE: Final = 15
"""So many messages a page, and one page a minute, are all that Slack shows to apps that are sold outside of its
marketplace."""

_MOST_PAGES: Final = 50
_PERSON: Final = re.compile(r"@.*|[UW][A-Z0-9]{5,}")
_LIST_PAGE: Final = 999
"""The most that Slack allows: each call counts, and there are about 20 a minute."""
_TRANSIT_US: Final = 5 * US
"""An answer takes so long at most, and its Date leaves out the fraction of a second."""
_UNREADABLE: Final = frozenset(
    {
        "missing_scope",
        "not_allowed_token_type",
        "unknown_method",
        "method_deprecated",
        "deprecated_endpoint",
        "upgrade_required",
        "enterprise_is_restricted",
    }
)
"""What would pause all posting if a post met it: of a history scan it says nothing about posts."""


class _Clocks:
    """How far the clock that searches are written by is ahead of Slack's, by the Date of every answer.

    Where it is further ahead than the margin of a search, a message may stand before ``since_us`` that was posted after
    it.
    """

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self.ahead_us = 0

    def note(self, headers: Mapping[str, str]) -> None:
        date = date_us(headers)
        if date is not None:
            self.ahead_us = max(self.ahead_us, self._now_us - date)

    @property
    def rest(self) -> Rest:
        """What a complete history scan says of what it did not find."""
        if self.ahead_us <= MARGIN_US - _TRANSIT_US:
            return Absent()
        return ScanLater(
            "clock_skew",
            f"the Redis server's clock is {self.ahead_us / US:.0f} s ahead of Slack's, so a message that is not found "
            "may have arrived: set the clocks right (NTP)",
            reached=True,
        )


class History:
    """Looks for posts in what Slack shows of a channel or thread. May be used by several threads at once."""

    def __init__(self, call: Call, namespace: str) -> None:
        self._call = call
        self._namespace = namespace
        self.ids: dict[str, str] = {}
        """Slack's ids of channels, as far as they are known."""
        self.newest: dict[str, str | None] = {}
        """The ``ts`` of the newest post to each channel, by Slack's id, that Slack has confirmed here."""
        self._is_cut_short = False
        """Whether the last that was seen is that this app gets no page after the first."""

    def note(self, channel: str, channel_id: str) -> None:
        """Keep Slack's id of a channel, which every answer to a post tells: histories are asked for by id."""
        if channel != channel_id and CONVERSATION_ID.fullmatch(channel_id):
            self.ids[channel] = channel_id

    def scan(self, search: Search) -> ScanResult:
        """One scan, newest first, as far as is needed; the caller bounds its time. Raises nothing of the network."""
        wanted = {event_mark(event_id, self._namespace): event_id for event_id in search.event_ids}
        found: dict[str, Receipt] = {}
        clocks = _Clocks(search.now_us)
        try:
            channel = self._id_of(search.channel, clocks)
            if not isinstance(channel, str):
                return ScanResult(found, channel)
            rest = self._read(channel, search, wanted, found, clocks)
            if search.thread_ts is not None and isinstance(rest, Unreadable) and rest.code == "thread_not_found":
                # A reply to a message that is not there may stand in the channel, or where nobody can look.
                beside = self._read(channel, replace(search, thread_ts=None), wanted, found, clocks)
                rest = rest if isinstance(beside, Absent) and len(found) < len(wanted) else beside
            return ScanResult(found, rest)
        except ExchangeFailed as failure:
            return ScanResult(found, ScanLater(failure.code, failure.detail))

    def _read(
        self, channel: str, search: Search, wanted: Mapping[str, str], found: dict[str, Receipt], clocks: _Clocks
    ) -> Rest:
        method = "conversations.history" if search.thread_ts is None else "conversations.replies"
        thread_ts = search.thread_ts
        back_us, page, count = clocks.ahead_us, 0, 0
        cursor = ""
        cursors: set[str] = set()
        for _ in range(_MOST_PAGES):
            data = self._page(method, _arguments(channel, search, thread_ts, back_us, cursor), clocks, rows="messages")
            if not isinstance(data, dict):
                self._is_cut_short |= (
                    page == SHORT_PAGE and isinstance(data, ScanLater) and data.retry_after_us is not None
                )
                return data
            messages = data["messages"]
            page = len(messages)
            count += page
            self._is_cut_short &= page <= SHORT_PAGE
            if not self._note_found(channel, messages, wanted, found):
                return Unreadable("no_metadata", "it shows a post of this worker without the metadata")
            if len(found) == len(wanted):
                return Absent()
            head = _text(messages[0].get("thread_ts")) if messages and thread_ts is not None and not cursor else None
            if head is not None and head != thread_ts:  # a reply was named: Slack shows it alone
                thread_ts = head
                continue
            cursor = _cursor(data)
            if clocks.ahead_us - back_us > MARGIN_US // 2:
                back_us, cursor, cursors = clocks.ahead_us, "", set()  # once more, from further back
            elif not cursor and not data.get("has_more"):
                return clocks.rest
            elif not cursor or cursor in cursors or (self._is_cut_short and page == SHORT_PAGE):
                again = "the cursor of its next page was followed before"
                few = f"Slack shows this app {page} messages at a time"
                return Unreadable("history_cut_short", again if cursor in cursors else few)
            cursors.add(cursor)
        return Unreadable("history_too_long", f"more follows after {count} messages in {_MOST_PAGES} pages")

    def _note_found(
        self,
        channel: str,
        messages: Sequence[Mapping[Any, Any]],
        wanted: Mapping[str, str],
        found: dict[str, Receipt],
    ) -> bool:
        """Add what is wanted to ``found``. Returns False if our newest post stands there without its mark."""
        has_marks = True
        for message in messages:
            mark, ts = mark_of(message), _text(message.get("ts"))
            if mark is not None and mark in wanted:
                found[wanted[mark]] = Receipt(channel, ts)
            is_deleted = message.get("subtype") == "tombstone"  # stands there for as long as it has replies
            has_marks &= mark is not None or is_deleted or ts is None or ts != self.newest.get(channel)
        return has_marks

    def _id_of(self, channel: str, clocks: _Clocks) -> str | Rest:
        """Slack's id of a channel; by the list of channels where no post has told it yet.

        A channel that the list does not show cannot be read: it may have been renamed since, or be hidden from the app.
        """
        if CONVERSATION_ID.fullmatch(channel):
            return channel
        if channel not in self.ids and _PERSON.fullmatch(channel):
            return Unreadable("no_channel_id", f"{channel} is a person: the id of that conversation is not known")
        for types in ("public_channel,private_channel", "public_channel"):
            if channel not in self.ids:
                answer = self._list(channel, types, clocks)
                if isinstance(answer, ScanLater):
                    return answer
                if isinstance(answer, Absent) and "private" in types:
                    return Unreadable("channel_not_listed", "conversations.list does not show it: name it by its id")
        return self.ids.get(channel, channel)  # by its name it may be read where not Slack itself answers

    def _list(self, channel: str, types: str, clocks: _Clocks) -> Rest | None:
        """Note the ids of channels until this one is found; ``Absent`` where no channel has its name."""
        arguments: dict[str, Any] = {"types": types, "limit": _LIST_PAGE}
        cursors: set[str] = set()
        while True:
            data = self._page("conversations.list", arguments, clocks, rows="channels")
            if not isinstance(data, dict):
                return data
            for each in data["channels"]:
                self.note(f"#{each.get('name')}", str(each.get("id")))
                self.note(str(each.get("name")), str(each.get("id")))
            if channel in self.ids:
                return None
            cursor = _cursor(data)
            if not cursor or cursor in cursors:
                return Absent()
            cursors.add(cursor)
            arguments["cursor"] = cursor

    def _page(
        self, method: str, arguments: dict[str, Any], clocks: _Clocks, *, rows: str
    ) -> dict[str, Any] | ScanLater | Unreadable:
        """The answer, in which ``rows`` names a list of objects; or why there is none."""
        status, headers, data = self._answer(method, arguments)
        clocks.note(headers)
        if isinstance(data, dict) and data.get("ok") is True:
            shown = data.get(rows)
            if isinstance(shown, list) and all(isinstance(each, dict) for each in shown):
                return data
            return _obstacle(problem("unreadable_reply", f"{rows} is no list of objects"), method)
        return _obstacle(read_api_problem(status, headers, data), method)

    def _answer(self, method: str, arguments: dict[str, Any]) -> Answer:
        """The answer; where one would be too large, ``arguments`` ask for fewer rows from now on.

        The pages of a history each begin with ``PAGE``: their number is bounded, and few messages may be large.
        """
        while True:
            try:
                return self._call(method, arguments)
            except ExchangeFailed as failure:
                if failure.code != TOO_LARGE or arguments["limit"] == 1:
                    raise
                arguments["limit"] = max(1, arguments["limit"] // 4)


def _arguments(channel: str, search: Search, thread_ts: str | None, back_us: int, cursor: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "channel": channel,
        "oldest": f"{max(search.since_us - back_us, 0) // US}.000000",
        "inclusive": "true",
        "include_all_metadata": "true",
        "limit": PAGE,
    }
    if thread_ts is not None:
        arguments["ts"] = thread_ts
    if cursor:
        arguments["cursor"] = cursor
    return arguments


def _obstacle(problem: Problem, method: str) -> ScanLater | Unreadable:
    match problem:
        case RateLimitedBySlack(retry_after_us, code):
            return ScanLater(code, f"Slack limits {method}", retry_after_us, reached=True)
        case Retryable(code, detail):
            return ScanLater(code, detail, reached=True)
        case Ambiguous(code, detail):
            return ScanLater(code, detail)
        case Paused(code, detail) if code not in _UNREADABLE:
            return ScanLater(code, detail, reached=True, pause=problem)
        case Paused(code, detail) | Rejected(code, detail):
            return Unreadable(code, f"{method}: {detail}")


def _cursor(data: Mapping[Any, Any]) -> str:
    more = data.get("response_metadata")
    cursor = more.get("next_cursor") if isinstance(more, dict) else None
    return cursor if isinstance(cursor, str) else ""


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.isprintable() else None

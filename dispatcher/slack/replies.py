"""What Slack's answers mean: receipt or problem, whose message, how long a cool-down, what each request came to."""

from __future__ import annotations

import math
import re
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final, TypeAlias, TypeGuard

from dispatcher.core.posts import Ambiguous, RateLimitedBySlack, Receipt
from dispatcher.core.rendering import one_line
from dispatcher.core.units import HIDDEN, US
from dispatcher.slack.taxonomy import Meaning, Problem, problem, row_for

MAX_COOL_DOWN_US: Final = 3_600 * US
"""The longest cool-down that one answer can cause; more is taken for somebody's mistake."""

MAX_SAID: Final = 150
"""Characters of what Slack or the network added to a code."""

BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of the times that requests took, as they are counted."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Who the token posts as, by auth.test; ``scopes`` is empty where Slack names none.

    ``date_us`` is when Slack answered, by its own clock, in whole seconds; None where the answer does not say.
    """

    team: str
    user: str
    scopes: tuple[str, ...]
    date_us: int | None = None


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Nothing can be learnt without posting: an incoming webhook has no call but the post."""


CheckResult: TypeAlias = Workspace | Unchecked | Problem

_LOOKS_SECRET: Final = re.compile(r"\b(?:xox[a-z]|xapp)-[\w-]{8,}|/services/T\w+/B\w+/\w+")
_PARTS_OF_SECRETS: Final = ("xox", "xapp", "/services/")
_REFUSALS: Final = range(400, 500)
_CODE: Final = re.compile(r"[a-z][a-z0-9_]{1,79}")
_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def read_api_reply(status: int, headers: Mapping[str, str], data: object, channel: str) -> Receipt | Problem:
    """What the Web API's answer to a post means.

    ``headers`` has lower-case names, ``data`` is the decoded body. A post is taken for made only at status 200
    with an object whose ``ok`` is exactly true.
    """
    fields = data if isinstance(data, dict) else {}
    if status == HTTPStatus.OK and fields.get("ok") is True:
        ts, posted_to = fields.get("ts"), fields.get("channel")
        return Receipt(posted_to if _is_plain(posted_to) else channel, ts if _is_plain(ts) else None)
    return read_api_problem(status, headers, data)


def read_api_problem(status: int, headers: Mapping[str, str], data: object) -> Problem:
    """What the Web API's answer means when it is not the one hoped for; for any method."""
    fields = data if isinstance(data, dict) else {}
    error = fields.get("error")
    code = error if fields.get("ok") is False and _is_code(error) else None
    said = _said(fields) if code else error
    return _problem(status, headers, code, said, is_refusal=code is not None and status == HTTPStatus.OK)


def read_auth_reply(status: int, headers: Mapping[str, str], data: object) -> Workspace | Problem:
    """What the answer to auth.test means."""
    if status != HTTPStatus.OK or not isinstance(data, dict) or data.get("ok") is not True:
        return read_api_problem(status, headers, data)
    scopes = (scope.strip() for scope in headers.get("x-oauth-scopes", "").split(","))
    team, user = (one_line(str(data.get(key, ""))) for key in ("team", "user"))
    return Workspace(team, user, tuple(scope for scope in scopes if scope), date_us(headers))


def _is_plain(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.isprintable()


def read_webhook_reply(status: int, headers: Mapping[str, str], body: str, channel: str) -> Receipt | Problem:
    """What an incoming webhook's answer means; success names no ``ts``.

    Success is status 200 with the one word ``ok``. A proxy may put a new line after it; any other text under 200 is no
    answer of Slack's.
    """
    word = body.strip()
    if status == HTTPStatus.OK:
        return Receipt(channel, None) if word == "ok" else problem("unreadable_reply", one_line(body, MAX_SAID))
    code = word if _is_code(word) else None
    return _problem(status, headers, code, "" if code else body)


def retry_after_us(headers: Mapping[str, str], now: datetime | None = None) -> int | None:
    """The cool-down in a Retry-After header, 1 s to ``MAX_COOL_DOWN_US``; ``None`` where there is none to read.

    Slack sends whole seconds. A fraction is taken too, and a date (which proxies send) is measured from the
    answer's own Date, so that our clock (``now``) matters only without one. No text in either header raises.
    """
    value = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        seconds = float(value)
    else:
        until = _instant(value)
        if until is None:
            return None
        since = _instant(headers.get("date", "")) or now or datetime.now(UTC)
        seconds = (until - since).total_seconds()
    return math.ceil(min(max(seconds * US, US), MAX_COOL_DOWN_US))


def date_us(headers: Mapping[str, str]) -> int | None:
    """When the answer was written, by the Date it carries: microseconds since 1970, in whole seconds."""
    date = _instant(headers.get("date", ""))
    return None if date is None else round(date.timestamp()) * US


def _instant(text: str) -> datetime | None:
    """The instant of an HTTP date; None for what is none, and for one that says no time zone."""
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError, IndexError):  # the last three: odd texts, by version of Python
        return None
    return instant if instant.tzinfo is not None else None


def _problem(
    status: int, headers: Mapping[str, str], code: str | None, said: object, *, is_refusal: bool = False
) -> Problem:
    shown = one_line(said, MAX_SAID) if isinstance(said, str) else ""
    wish = retry_after_us(headers)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        is_known = code is not None and row_for(code).meaning is Meaning.COOL_DOWN
        return problem(code if code is not None and is_known else "http_429", shown, wish)
    is_definite = status == HTTPStatus.OK or status in _REFUSALS
    if code is not None and is_definite:
        return problem(code, shown, wish, is_refusal=is_refusal)
    if status == HTTPStatus.OK:
        return problem("unreadable_reply", shown)
    return problem(f"http_{status}", code or shown)


def _said(fields: Mapping[object, object]) -> str:
    """What Slack adds to an error code: the scopes of ``missing_scope``, the messages of ``invalid_blocks``."""
    parts = [f"{key}: {fields[key]}" for key in ("needed", "provided") if isinstance(fields.get(key), str)]
    more = fields.get("response_metadata")
    messages = more.get("messages") if isinstance(more, dict) else None
    if isinstance(messages, list):
        parts += [message for message in messages if isinstance(message, str)]
    return "; ".join(parts)


def _is_code(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _CODE.fullmatch(value) is not None


class Result(StrEnum):
    """What a request came to."""

    OK = "ok"
    RATE_LIMITED = "rate_limited"
    REFUSED = "refused"
    """Slack has answered, and not done it."""
    FAILED = "failed"
    """An error of Slack's own, or an answer that cannot be read: perhaps it was done."""
    NO_ANSWER = "no_answer"


class Requests:
    """Counts by field of the hash ``metrics`` (lua/include/accounting.lua). May be used by several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def note(self, method: str, result: Result, seconds: float) -> None:
        """One request, by the method of Slack's Web API, or ``webhook``."""
        with self._lock:
            self._counts[f"slack {method} {result}"] += 1
            self._counts[f"seconds {method} {bisect_left(BUCKETS_S, seconds) + 1}"] += 1
            self._counts[f"seconds {method} us"] += round(seconds * 1e6)

    def take(self) -> dict[str, int]:
        """What was counted since the last time."""
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
        return counts

    def put_back(self, counts: Mapping[str, int]) -> None:
        """What was taken and could not be reported."""
        with self._lock:
            self._counts.update(counts)


def result_of(status: int, headers: Mapping[str, str], answer: object) -> Result:
    """What an answer counts as, by what it means for a message: that of a webhook is text, of the Web API an object."""
    if isinstance(answer, str):
        came_to = read_webhook_reply(status, headers, answer, "")
    else:
        came_to = read_api_reply(status, headers, answer, "")
    match came_to:
        case Receipt():
            return Result.OK
        case RateLimitedBySlack():
            return Result.RATE_LIMITED
        case Ambiguous():
            return Result.FAILED
        case _:
            return Result.REFUSED


METADATA_TYPE: Final = "dispatcher_event"


def masked(text: str, secrets: tuple[str, ...]) -> str:
    """Without the secrets, and without what looks like another one: a proxy's page may quote what we do not know."""
    for each in secrets:
        text = text.replace(each, HIDDEN)
    if any(part in text for part in _PARTS_OF_SECRETS):  # many times faster than the pattern
        text = _LOOKS_SECRET.sub(HIDDEN, text)
    return text


def event_mark(event_id: str, namespace: str) -> str:
    """A digest of the id, because a workspace can read the metadata.

    Two namespaces that post to one channel may both know an id.
    """
    return blake2b(f"{namespace} {event_id}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def metadata_of(mark: str) -> dict[str, Any]:
    """The metadata of a post."""
    return {"event_type": METADATA_TYPE, "event_payload": {"id": mark}}


def mark_of(message: object) -> str | None:
    """The mark that a message of the history carries; None of any other message."""
    match message:
        case {"metadata": {"event_type": str(kind), "event_payload": {"id": str(mark)}}} if kind == METADATA_TYPE:
            return mark
        case _:
            return None

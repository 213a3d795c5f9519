"""How many requests to Slack were made, what they came to, and how long they took; until a worker reports them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Result(StrEnum):
    """What a request came to."""

    OK = "ok"
    RATE_LIMITED = "rate_limited"
    REFUSED = "refused"
    """Slack has answered, and not done it."""
    FAILED = "failed"
    """An error of Slack's own, or an answer that cannot be read."""
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


def result_of(status: int, answer: Any) -> Result:  # noqa: ANN401 - what the body holds; a webhook's is no object
    """What an answer means: its status, and of the Web API what its object says."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Result.RATE_LIMITED
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Result.FAILED
    is_done = status == HTTPStatus.OK and (not isinstance(answer, dict) or answer.get("ok") is True)
    return Result.OK if is_done else Result.REFUSED

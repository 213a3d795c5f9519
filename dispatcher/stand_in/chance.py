"""Faults by chance: a share of all calls goes wrong, the same ones for the same seed.

``EVERY_ROW`` has each row of the error table that an answer can stand for, ``TRANSIENT`` those that pass by themselves.
What no answer can stand for (a name that is not resolved, a refused connection) is a matter of ``Outage``.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from dispatcher.slack.taxonomy import TABLE, Meaning, Row
from dispatcher.stand_in.faults import (
    POST,
    Close,
    CutBody,
    Drip,
    Fault,
    Hang,
    Page,
    Reset,
    SlackError,
    Slow,
    Text,
    TooManyRequests,
    landed,
    not_landed,
)

CHANCY: Final = (POST, "conversations.history", "conversations.replies", "chat.update")
"""The kinds of calls that chance plays with, unless others are named."""

_NO_ANSWER: Final = frozenset(
    {
        "dns_failed",
        "connection_refused",
        "connect_timeout",
        "connect_failed",
        "connection_closed",
        "console_closed",
        "console_failed",
        "proxy_failed",
        "tls_failed",
        "too_late",
        "answer_too_large",
        "internal",
    }
)
"""Causes below any answer, or beyond it."""

_PLAYED: Final = {
    "http_429": (not_landed(TooManyRequests("1")),),
    "ratelimited": (not_landed(TooManyRequests("2")),),
    "http_3*": (landed(Page(302)), not_landed(Page(302))),
    "http_4*": (not_landed(Page(403)),),
    "http_5*": (landed(Page(500)), not_landed(Page(502)), landed(Page(503)), not_landed(Page(503))),
    "unreadable_reply": (landed(Text("")), not_landed(Text("")), landed(Text("{nope")), landed(CutBody())),
    "reply_timeout": (landed(Hang()), not_landed(Hang()), landed(Drip(interval_s=1.0))),
    "connection_lost": (landed(Reset()), not_landed(Reset()), landed(Close()), not_landed(Close())),
}
"""The rows that are no code of Slack's own."""

_EXAMPLES: Final = {
    "restricted_action*": "restricted_action_read_only_channel",
    "slack_connect_*_blocked": "slack_connect_file_link_sharing_blocked",
    "slack_connect_blocked_*": "slack_connect_blocked_file_type",
    "*_thread_locked": "restricted_action_thread_locked",
    "duplicate_*_not_found": "duplicate_message_not_found",
    "draft_*": "draft_not_found",
    "too_many_*": "too_many_attachments",
    "invalid_blocks*": "invalid_blocks_format",
    "invalid_metadata_*": "invalid_metadata_format",
}
"""A code for each pattern of the table."""

_PASSING: Final = frozenset({Meaning.COOL_DOWN, Meaning.LATER, Meaning.AGAIN, Meaning.MAYBE})
_SLOW: Final = (landed(Slow(0.2)), landed(Drip(interval_s=0.002)))
"""Answers that arrive, in time but late."""


def faults_of(row: Row) -> list[Fault]:
    """The faults in which a row of the error table shows: what may have been posted, once posted and once not."""
    faults: list[Fault] = []
    for code in row.codes:
        if code in _PLAYED:
            faults += _PLAYED[code]
        elif code not in _NO_ANSWER:
            reply = SlackError(_EXAMPLES[code] if "*" in code else code)
            faults.append(not_landed(reply))
            if row.meaning is Meaning.MAYBE:
                faults.append(landed(reply))
    return faults


def _faults(rows: Iterable[Row]) -> tuple[Fault, ...]:
    return (*_SLOW, *(fault for row in rows for fault in faults_of(row)))


EVERY_ROW: Final = _faults(TABLE)
TRANSIENT: Final = _faults(row for row in TABLE if row.meaning in _PASSING)


class Chance:
    """Which calls go wrong, and how: decided by the seed and by a call's number among those of its kind.

    ``share`` is between 0 and 1; ``faults`` is what to choose from, ``kinds`` the calls it may befall (``POST``, or a
    method). Raises ``ValueError``. Who calls from several threads decides the order, and so who is befallen.
    """

    def __init__(
        self,
        seed: int,
        share: float,
        faults: Sequence[Fault] = TRANSIENT,
        kinds: Iterable[str] = CHANCY,
    ) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"the share of faults is {share:g}, expected 0 to 1")
        if not faults:
            raise ValueError("there are no faults to choose from")
        self._seed = seed
        self._share = share
        self._faults = tuple(faults)
        self._kinds = frozenset(kinds)
        self._lock = threading.Lock()
        self._dice: dict[str, random.Random] = {}
        self.reset()

    def reset(self) -> None:
        """Begin anew with the first call."""
        with self._lock:
            self._dice = {kind: random.Random(f"{self._seed}:{kind}") for kind in self._kinds}  # noqa: S311 - no secret

    def draw(self, kind: str) -> Fault | None:
        """The fate of the next call of a kind; ``None``: it goes well."""
        if kind not in self._kinds:
            return None
        with self._lock:
            dice = self._dice[kind]
            # Drawn each time, so that a larger share befalls the same calls, and more.
            fault = dice.choice(self._faults)
            return fault if dice.random() < self._share else None

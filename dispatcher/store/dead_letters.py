"""Dead letters in an operator's hands: look, replay, purge."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain
from typing import Any, Final

from dispatcher.core.event import Event
from dispatcher.core.explain import Decision
from dispatcher.core.limits import NO_CATEGORY, Bounds, Reason
from dispatcher.core.rendering import has_words
from dispatcher.core.units import Lane
from dispatcher.errors import InvalidEvent
from dispatcher.server.connection import Client, JsonScript, server_us, translate_outages
from dispatcher.server.keys import Keys
from dispatcher.store.intake import open_envelope, rq_now, seal
from dispatcher.store.rq_keys import QueueKeys

MAX_PAYLOAD: Final = 1024 * 1024
"""Bytes that are kept of a payload which is too large to be an event."""

_PAGE: Final = 50
_MOST_PAGES: Final = 20  # of what is beyond the bounds, that are removed at once
_LANES: Final = tuple(Lane)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. ``payload`` is the job's data as the producer wrote it (up to 1 MiB), empty where none was left.

    ``fits_at_us`` is the instant at which a limit would have let it pass, or the silence ends that suppressed it.
    ``posts`` were really started, ``copies`` of these had no clear answer and may stand in Slack. ``since_us`` is since
    when an expired one has waited. ``header`` is what was stored of it, where that cannot be read.
    """

    entry: str
    id: str
    at_us: int
    payload: bytes
    category: str
    reason: str
    detail: str
    code: str | None
    scope: str | None
    limit: str | None
    fits_at_us: int | None
    attempts: int
    replays: int
    seen_us: int | None
    posts: int = 0
    copies: int = 0
    since_us: int | None = None
    header: str | None = None
    repeats: int = 0
    """Of an event with ``once`` and ``then: edit``: its repeats, which no message counts."""
    channel: str | None = None
    """The channel that it was for, or its fallback. Of an edit: the channel of the message, as Slack names it. None if
    unknown."""
    refused_by: str | None = None
    """As of a ``Decision``."""

    @property
    def name(self) -> str:
        """The id the producer knows."""
        event = self.event()
        return (event.id if event else None) or self.id

    @property
    def refused_in(self) -> str | None:
        """The channel, if Slack refused a post to it."""
        return self.channel if self.reason == Reason.REJECTED and self.posts else None

    def event(self) -> Event | None:
        """The event in it; None where the payload is none."""
        try:
            return open_envelope(self.id, self.payload)
        except InvalidEvent:
            return None

    def decision(self) -> Decision:
        """What became of the event, as the decision record has it."""
        return Decision(
            self.name,
            self.at_us,
            "dead",
            self.reason,
            None if self.category == NO_CATEGORY else self.category,
            self.scope,
            self.limit,
            self.fits_at_us,
            self.code,
            self.detail,
            self.channel,
            copies=self.copies,
            since_us=self.since_us,
            repeats=self.repeats,
            refused_by=self.refused_by,
        )

    def content(self) -> bytes:
        """The payload, inflated where stock RQ compressed it; at most ``MAX_PAYLOAD`` bytes."""
        try:
            return zlib.decompressobj().decompress(self.payload, MAX_PAYLOAD) or self.payload
        except zlib.error:
            return self.payload


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters are meant; a field left out matches all.

    They died at ``since_us`` or later, and before ``before_us``. All ``words``, case-folded, stand in the event's text.
    """

    category: str | None = None
    reason: str | None = None
    code: str | None = None
    since_us: int | None = None
    before_us: int | None = None
    words: tuple[str, ...] = ()

    def matches(self, letter: DeadLetter) -> bool:
        """Whether the letter is meant."""
        return (
            (self.category is None or letter.category == self.category)
            and (self.reason is None or letter.reason == self.reason)
            and (self.code is None or letter.code == self.code)
            and (self.since_us is None or letter.at_us >= self.since_us)
            and (self.before_us is None or letter.at_us < self.before_us)
            and (not self.words or has_words(letter.event(), self.words))
        )


class Replayed(IntEnum):
    """What became of one letter that was to be replayed. ``NO_EVENT``: none that can go to the channel asked for."""

    NO_EVENT = -3
    EMPTY = -2
    WAITING = -1
    GONE = 0
    DONE = 1


class DeadLetters:
    """The dead letters of a namespace. Every method raises ``GateUnavailable`` when the server is away."""

    def __init__(self, client: Client, keys: Keys, queue: QueueKeys, *, clock: Callable[[], int] | None = None) -> None:
        self._client = client
        self._clock = clock
        self._keys = keys
        self._queue = queue
        self._replay = JsonScript(client, "replay", clock)
        self._purge = JsonScript(client, "purge", clock)
        self._letters = JsonScript(client, "letters")

    def find(self, wanted: Filter, *, newest_first: bool = False) -> Iterator[DeadLetter]:
        """Every letter that is meant, the oldest first unless ``newest_first``, read in pages.

        Only those that are there when the first is asked for: what is replayed meanwhile and buried again is not met.
        """
        return chain.from_iterable(self.pages(wanted, newest_first=newest_first))

    def behind(self, entry: str | None) -> Iterator[tuple[DeadLetter, str]]:
        """Every letter that is older than an entry, or all, the newest first; each with its own entry."""
        pages = self.pages(Filter(), newest_first=True, behind=entry)
        return ((letter, letter.entry) for letter in chain.from_iterable(pages))

    def pages(
        self, wanted: Filter, *, newest_first: bool = False, behind: str | None = None
    ) -> Iterator[list[DeadLetter]]:
        """As ``find``, but what each page that was read holds of them: a search may end behind each.

        With the newest first it may begin behind an entry.
        """
        with translate_outages():
            newest: Any = self._client.xrevrange(self._keys.dead, count=1)
        if not newest:
            return
        call = {"from": "-", "to": newest[0][0].decode(), "most": _PAGE}
        if newest_first:
            call |= {"from": call["to"] if behind is None else f"({behind}", "to": "-", "newest_first": True}
        while rows := self._letters([self._keys.dead], call):
            letters = (read_letter(entry, dict(zip(fields[::2], fields[1::2], strict=True))) for entry, fields in rows)
            yield list(filter(wanted.matches, letters))
            call["from"] = f"({rows[-1][0].decode()}"

    def count(self) -> int:
        """How many letters there are."""
        with translate_outages():
            return int(self._client.xlen(self._keys.dead))

    def now_us(self) -> int:
        """The present instant by the server's clock."""
        return server_us(self._client) if self._clock is None else self._clock()

    def get(self, event_id: str) -> DeadLetter | None:
        """The letter of one event, by its id on the queue."""
        with translate_outages():
            entry: Any = self._client.hget(self._keys.dead_ids, event_id)
            rows: Any = [] if entry is None else self._client.xrange(self._keys.dead, min=entry, max=entry)
        return read_letter(*rows[0]) if rows else None

    def get_each(self, event_ids: Sequence[str]) -> dict[str, DeadLetter]:
        """As ``get`` of each id on the queue, with two questions for a page of them; without those that have none."""
        found: dict[str, DeadLetter] = {}
        for begin in range(0, len(event_ids), _PAGE):
            page = event_ids[begin : begin + _PAGE]
            with translate_outages():
                entries: Any = self._client.hmget(self._keys.dead_ids, page)
                kept = [(id_, entry) for id_, entry in zip(page, entries, strict=True) if entry is not None]
                with self._client.pipeline(transaction=False) as pipe:
                    for _, entry in kept:
                        pipe.xrange(self._keys.dead, min=entry, max=entry)
                    answers: list[Any] = pipe.execute()
            found |= {id_: read_letter(*rows[0]) for (id_, _), rows in zip(kept, answers, strict=True) if rows}
        return found

    def replay(self, letters: Iterable[DeadLetter], to: str | None = None) -> list[Replayed]:
        """Put the letters back on their lanes, each in one step, each counted as replayed.

        Where a channel ``to`` is named, their events go there. Stays a dead letter: one without payload, one whose id
        waits on a lane or is being run by a stock worker, and one that holds no event where ``to`` is named.
        """
        left = list(letters)
        keys, queue = self._keys, self._queue
        names = [keys.dead, keys.dead_ids, keys.dead_bytes, keys.totals, *queue.lanes, queue.queues, keys.metrics]
        at = rq_now()
        results: list[Replayed] = []
        while left:
            page = left[:_PAGE]
            rows = [_replay_row(letter, to) for letter in page]
            jobs = [queue.job(letter.id) for letter in page]
            done = self._replay([*names, *jobs], {"at": at, "letters": rows})
            results += map(Replayed, done)
            left = left[len(done) :]
        return results

    def purge(self, letters: Iterable[DeadLetter]) -> int:
        """Remove the letters for good; returns how many were still there."""
        left, removed = [letter.entry for letter in letters], 0
        while left:
            gone, done, _ = self._purge(self._purged, {"letters": left})
            removed, left = removed + gone, left[done:]
        return removed

    def trim(self, bounds: Bounds) -> int:
        """Remove what is beyond the bounds, 10,000 at most; returns how many."""
        removed = 0
        for _ in range(_MOST_PAGES):
            gone, _, has_more = self._purge(self._purged, {"bounds": bounds.of_letters()})
            removed += gone
            if not has_more:
                break
        return removed

    @property
    def _purged(self) -> list[str]:
        return [self._keys.dead, self._keys.dead_ids, self._keys.dead_bytes, self._keys.metrics]


def _replay_row(letter: DeadLetter, to: str | None) -> list[str | int | bool]:
    """One of replay.lua's letters."""
    event = letter.event()
    lane = _LANES.index(event.priority if event else Lane.NORMAL) + 1
    row: list[str | int | bool] = [letter.entry, letter.id, lane, f"replayed {letter.category}"]
    return row if to is None else [*row, _sealed_for(event, to)]


def can_go_to(letter: DeadLetter, channel: str) -> bool:
    """Whether the letter holds an event that can be replayed to the channel."""
    return bool(_sealed_for(letter.event(), channel))


def _sealed_for(event: Event | None, channel: str) -> str | bool:
    """The job's data of the event in another channel; False where there is none.

    It leaves the thread of the message that it was to go under: that message stands in its old channel.
    """
    try:
        return event is not None and seal(replace(event, channel=channel, thread_ts=None))
    except InvalidEvent:
        return False


def read_letter(entry: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
    """A letter as the stream holds it."""

    def text(name: bytes) -> str | None:
        value = fields.get(name)
        return None if value is None else value.decode("utf-8", "replace")

    def number(name: bytes) -> int | None:
        value = fields.get(name)
        return None if value is None else int(value)

    at_us = number(b"at") or 0
    retry_after_us = number(b"retry_after_us")
    return DeadLetter(
        entry=entry.decode(),
        id=text(b"id") or "",
        at_us=at_us,
        payload=fields.get(b"payload", b""),
        category=text(b"category") or NO_CATEGORY,
        reason=text(b"reason") or "",
        detail=text(b"detail") or "",
        code=text(b"code"),
        scope=text(b"scope"),
        limit=text(b"limit"),
        fits_at_us=number(b"fits_at") if retry_after_us is None else at_us + retry_after_us,
        attempts=number(b"attempts") or 0,
        replays=number(b"replays") or 0,
        seen_us=number(b"seen"),
        posts=number(b"posts") or 0,
        copies=number(b"copies") or 0,
        since_us=number(b"since"),
        header=text(b"header"),
        repeats=number(b"repeats") or 0,
        channel=text(b"channel"),
        refused_by=text(b"refused_by"),
    )

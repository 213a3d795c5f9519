"""Parked events in an operator's hands: look, cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain
from typing import Any, Final, NamedTuple

from dispatcher.core.event import Event, is_remembered
from dispatcher.core.explain import Explanation, State
from dispatcher.core.limits import Reason
from dispatcher.core.policy import Policy
from dispatcher.core.rendering import has_words
from dispatcher.core.states import Dropped, Leased, Settlement, is_digest_message
from dispatcher.core.units import normal_channel
from dispatcher.server.connection import Client, JsonScript, server_us, translate_outages
from dispatcher.server.keys import Keys
from dispatcher.server.scripts import script_keys
from dispatcher.store.counts import Counts
from dispatcher.store.explanations import Explanations, Found
from dispatcher.store.intake import shown_of
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.script_rows import read, why_of

PAGE: Final = 64
"""Events that are read or cancelled in one step: each may hold 256 KiB."""


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """One event that waits, at the instant of the findings. ``event`` is None where its payload cannot be read."""

    explanation: Explanation
    deadline_us: int
    seen_us: int
    event: Event | None
    leased: Leased | None

    @property
    def id(self) -> str:
        """The id on the queue."""
        return self.explanation.job_id


@dataclass(frozen=True, slots=True)
class ParkedFilter:
    """Which parked events are meant; a field left out matches all. ``seen_before_us`` is an instant.

    A ``channel`` may be named without its #, as an event may name it. All ``words``, case-folded, stand in the text.
    """

    category: str | None = None
    reason: str | None = None
    channel: str | None = None
    seen_before_us: int | None = None
    words: tuple[str, ...] = ()

    def matches(self, parked: ParkedEvent) -> bool:
        """Whether the event is meant."""
        told = parked.explanation
        return (
            self.category in {None, told.category}
            and self.reason in {None, told.reason}
            and (self.channel is None or told.channel in {self.channel, normal_channel(self.channel)})
            and (self.seen_before_us is None or parked.seen_us <= self.seen_before_us)
            and has_words(parked.event, self.words)
        )


class Place(NamedTuple):
    """How far the parked events were read, in the order in which they expire: up to this one."""

    deadline_us: float
    id: str


class Cancelled(IntEnum):
    """What became of one event that was to be cancelled."""

    IN_HANDS = -1
    GONE = 0
    DONE = 1


class ParkedEvents:
    """The parked events of a namespace. Every method raises ``GateUnavailable`` when the server is away.

    The policy says where an event would be posted, and how much of it the record keeps: it should be the workers'.
    """

    def __init__(  # noqa: PLR0913 - collaborators first, figures by name
        self,
        client: Client,
        keys: Keys,
        queue: QueueKeys,
        policy: Policy,
        *,
        remember_us: int,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._policy = policy
        self._remember_us = remember_us
        self._clock = clock
        self._explanations = Explanations(client, keys, queue, policy=policy, clock=clock)
        self._cancel = JsonScript(client, "cancel", clock)
        self._of_category = JsonScript(client, "of_category")

    def count(self) -> int:
        """How many there are, without the dispatcher's own messages."""
        with translate_outages():
            totals: Any = self._client.hgetall(self._keys.totals)
        counts = Counts({name.decode(): int(number) for name, number in totals.items()})
        return sum(number for category, number in counts.by_category("parked").items() if category)

    def now_us(self) -> int:
        """The present instant by the server's clock."""
        return server_us(self._client) if self._clock is None else self._clock()

    def find(self, wanted: ParkedFilter) -> Iterator[ParkedEvent]:
        """Every event that is meant and waits all the while; the one that expires first comes first. Read in pages."""
        return chain.from_iterable(self.pages(wanted))

    def pages(self, wanted: ParkedFilter) -> Iterator[list[ParkedEvent]]:
        """As ``find``, but what each page that was read holds of them: a search may end behind each."""
        return (page for page, _ in self._pages(wanted, None))

    def behind(self, wanted: ParkedFilter, place: Place | None) -> Iterator[tuple[ParkedEvent | None, Place]]:
        """Every event that is meant behind a place, or all, as ``find``; each with its own place.

        Each page ends with None and the place of its last row, meant or not: a search that ends there goes on from it.
        """
        for page, places in self._pages(wanted, place):
            yield from ((each, places[each.id]) for each in page)
            yield None, [*places.values()][-1]

    def _pages(self, wanted: ParkedFilter, place: Place | None) -> Iterator[tuple[list[ParkedEvent], dict[str, Place]]]:
        """As ``pages``, each with the places of all that were read for it."""
        rank = 0 if place is None else self._rank_behind(place)
        while True:
            places, rank = self._places_behind(place, rank)
            if not places:
                return
            ids = [each.id for each in places]
            likely = ids if wanted.category is None else self._likely(ids, wanted.category)
            yield list(filter(wanted.matches, self.by_ids(likely))), dict(zip(ids, places, strict=True))
            place = places[-1]

    def _places_behind(self, place: Place | None, rank: int) -> tuple[list[Place], int]:
        """A page of the places behind one, and the rank behind the page.

        ``rank`` is where the page began when that was last known. Events may have come or gone since. So the rows
        before it are read too. If these do not prove that no row is left out, the rank is searched for.
        """
        while True:
            begin = max(0, rank - PAGE)
            with translate_outages():
                rows: Any = self._client.zrange(self._keys.parked, begin, rank + PAGE - 1, withscores=True)
            found = [Place(score, id_.decode()) for id_, score in rows]
            behind = [each for each in found if place is None or each > place]
            is_end = len(found) < rank + PAGE - begin
            if place is None or ((begin == 0 or len(behind) < len(found)) and (behind or is_end)):
                page = behind[:PAGE]
                return page, begin + len(found) - len(behind) + len(page)
            rank = self._rank_behind(place)

    def _rank_behind(self, place: Place) -> int:
        """How many parked events are not behind a place. Any number of them may expire in the same microsecond."""
        with translate_outages():
            low = int(self._client.zcount(self._keys.parked, "-inf", f"({place.deadline_us}"))
            high = int(self._client.zcount(self._keys.parked, "-inf", place.deadline_us))
            while low < high:
                middle = (low + high) // 2
                rows: Any = self._client.zrange(self._keys.parked, middle, middle, withscores=True)
                if rows and Place(rows[0][1], rows[0][0].decode()) <= place:
                    low = middle + 1
                else:
                    high = middle
        return low

    def _likely(self, ids: Sequence[str], category: str) -> list[str]:
        """Those that may be of the category: to look at all of them takes ten times as long."""
        return [id_.decode() for id_ in self._of_category([self._keys.events], {"ids": ids, "category": category})]

    def by_ids(self, ids: Sequence[str]) -> list[ParkedEvent]:
        """Those of the ids on the queue that are parked."""
        if not ids:
            return []
        findings = self._explanations.find([id_ for id_ in ids if not is_digest_message(id_)], payloads=True)
        told = [(found, findings.explain(found)) for found in findings.found]
        return [self._parked(found, each) for found, each in told if each.state is State.PARKED]

    def explain(self, event_id: str) -> Explanation:
        """Where an event is that was asked for by an id, parked or not."""
        return self._explanations.explain(event_id)

    def explain_each(self, event_ids: Sequence[str]) -> list[Explanation]:
        """Where each of these distinct ids is, parked or not; without texts and labels."""
        return self._explanations.explain_each(event_ids)

    def cancel(self, parked: Iterable[ParkedEvent], who: str) -> list[tuple[Cancelled, Settlement]]:
        """End the events, each in one step, all in one call: dropped, ``cancelled``, by whoever it is.

        The settlement is to be told of where it is done. What has no readable payload stays: its deadline ends it.
        """
        keys = self._keys
        settlements: list[Settlement] = []
        rows: list[dict[str, Any]] = []
        for leased in (each.leased for each in parked if each.leased is not None):
            terms = self._policy.terms(leased)
            settlement = Settlement(leased, terms, Dropped(None, Reason.CANCELLED, f"by {who}"))
            row: dict[str, Any] = {
                "id": leased.id,
                "seq": leased.seq,
                "why": why_of(settlement),
                "shown": shown_of(leased.event, self._policy.dead_letters.text),
            }
            if is_remembered(leased.event, leased.id):
                row["remember"] = True
            settlements.append(settlement)
            rows.append(row)
        call = {
            "remember_us": self._remember_us,
            "most_decisions": self._policy.dead_letters.decisions,
            "events": rows,
        }
        results = self._cancel([keys.named(name) for name in script_keys("cancel")], call)
        return [(Cancelled(result), each) for result, each in zip(results, settlements, strict=True)]

    def _parked(self, found: Found, explanation: Explanation) -> ParkedEvent:
        header = found.header or {}
        leased = read(found.id, found.facts["header"].encode() + b"\n" + found.payload)
        event = leased.event if isinstance(leased, Leased) else None
        if not header.get("channel") and event is not None:
            explanation = replace(explanation, channel=self._policy.channel(event))
        return ParkedEvent(
            explanation,
            deadline_us=int(header.get("deadline", 0)),
            seen_us=int(header.get("seen", 0)),
            event=event,
            leased=leased if isinstance(leased, Leased) else None,
        )

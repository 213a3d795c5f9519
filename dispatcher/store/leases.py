"""The events under one worker's lease: take, line up, start, settle, renew, give back. Each step is one script."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dispatcher.core.limits import DEFAULT_BOUNDS, Bounds, Opening, Reason
from dispatcher.core.policy import limit_reason
from dispatcher.core.ports import Unreported
from dispatcher.core.silences import NOTHING_SILENCED, Silences, read_silences
from dispatcher.core.states import (
    GRACE_US,
    Awaited,
    Candidate,
    Deferral,
    FailureKnown,
    Leased,
    Lost,
    NotParked,
    Over,
    PauseChange,
    Posted,
    Prefiltered,
    Recovered,
    Recovery,
    Repeat,
    Settled,
    Settlement,
    Started,
    Undecodable,
    Uneditable,
    Unposted,
    Waiting,
    boottime_s,
)
from dispatcher.core.units import US
from dispatcher.errors import GateUnavailable, StaleLimits
from dispatcher.jsonio import decode_answer
from dispatcher.server.connection import Client, JsonScript
from dispatcher.server.keys import Keys
from dispatcher.server.scripts import script_keys
from dispatcher.store.admission import Prefilter, PrefilterCall
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.script_rows import Table, deferral_row, read, read_new, recovery_row, settlement_row, stood_by_row
from dispatcher.store.stock_jobs import StockJobs

T = TypeVar("T")

THREADS_US: Final = 24 * 3_600 * US
"""How long a thread is kept after its last message, unless ids are remembered longer."""
AHEAD: Final = 2
"""How many batches may be prefetched while one is decided."""


class Outbox:
    """One owner's view of a namespace.

    ``line_up`` and ``start`` raise ``StaleLimits``, and change nothing, when the owner follows another version of the
    limits than the one in force.

    Every method raises ``GateUnavailable`` when the server is away. Then it is unknown whether the script ran. After
    that call ``keep_only``: it gives back the events that the worker does not keep, and continues under a new name, so
    that a call under the old name which arrives late changes nothing.
    """

    def __init__(  # noqa: PLR0913 - collaborators first, figures by name
        self,
        client: Client,
        keys: Keys,
        queue: QueueKeys,
        *,
        owner: str,
        lease_us: int,
        remember_us: int,
        bounds: Bounds = DEFAULT_BOUNDS,
        grace_us: int = GRACE_US,
        prefilter: Prefilter | None = None,
        requests: Unreported | None = None,
        clock: Callable[[], int] | None = None,
        own_clock: Callable[[], float] | None = None,
    ) -> None:
        """``clock`` stands for the server's (for tests), ``own_clock`` for this machine's, which is never stepped."""
        self.owner = owner
        self._requests = requests
        self._name = owner
        self._owners = 1
        self._keys = keys
        self._queue = queue
        self._lease_us = lease_us
        self._remember_us = remember_us
        self._bounds = bounds
        self._grace_us = grace_us
        self._version: dict[str, str] = {}
        self._opened: dict[str, list[Any]] = {}
        self._prefilter = prefilter
        self._stock_jobs = StockJobs(client, queue)
        self._is_new = True
        self._fingerprint: str | None = None
        self._names_by_script: dict[str, list[str]] = {}
        self._silences = NOTHING_SILENCED
        self._reader: Reader[Taken] | None = None
        self._promised: deque[int] = deque()
        self._nth = 0
        self._goes_on = True
        self._can_go_on = False
        self._own_clock = own_clock or (boottime_s if clock is None else lambda: clock() / US)
        self._called_s: float | None = None
        self.is_decided = False
        """Whether the server knows that all is decided that was taken. If not, the next ``take`` tells it."""
        self._broken: GateUnavailable | None = None
        """The error of a prefetched batch that did not arrive. The next ``take`` raises it."""
        self._take, self._resolve, self._line_up, self._pace, self._settle, self._renew = (
            JsonScript(client, name, clock) for name in ("take", "resolve", "line_up", "pace", "settle", "renew")
        )

    @property
    def ahead(self) -> int:
        """How many batches are prefetched and not taken yet."""
        return len(self._promised)

    def follow(self, version: str, bounds: Bounds) -> None:
        """Follow this version of the limits; while another is in force, nothing is lined up or started."""
        self._version, self._bounds = {"version": version}, bounds
        self._opened = {}

    def take(self, new: int, due: int) -> Taken:
        """Take up to ``due`` waiting events whose time has come, and up to ``new`` requeued and new events.

        Waiting events use up places of ``new``, three quarters of them at most.

        The call also tells the server that everything taken before is decided. After ``prefetch`` it returns the first
        prefetched batch and, if that is small, the others that have arrived.
        """
        self.is_decided = self._can_go_on = False
        if self._broken is not None:
            raise self._forget_broken()
        repeats: list[str] = []
        if self.ahead:
            taken = self._arrived()
            while self._reader is not None and self.ahead and 2 * len(taken.batch) < new and self._reader.has_result():
                taken = self._with_next(taken)
            if taken.batch or taken.prefiltered or self.ahead or self._broken:
                return taken
            repeats = taken.duplicates
        call: dict[str, Any] = {"new": new, "due": due}
        if self._opened:
            call["opened"], self._opened = self._opened, {}
        if self._is_new:
            call["starts"] = True
        if self._fingerprint is not None:
            call["fingerprint"] = self._fingerprint
        self._nth, self._goes_on = 0, True
        taken = self._noted(self._ask(call)())
        if self._prefilter is not None:
            self._prefilter.tell_time(taken.now_us)
        self._is_new, self._fingerprint = False, None
        self._can_go_on = taken.undecided is not None
        return replace(taken, duplicates=[*repeats, *taken.duplicates]) if repeats else taken

    def prefetch(self, taken: Taken, new: int, due: int) -> None:
        """Let the server take another batch while this one is decided, if there is more and ``taken`` allows it.

        A prefetched batch holds new events, and admitted ones that are due. Up to ``AHEAD`` batches are prefetched at
        once: the worker reads one while the server takes the next. If ``undecided`` of a batch is None, no more are
        prefetched until all batches are decided.
        """
        most = 1 if self._stock_jobs.are_coming else AHEAD  # which jobs follow is known after the take before
        has_room = len(self._promised) < most and self._goes_on
        if has_room and taken.more and not taken.suspended and taken.undecided is not None:
            due = max(0, due - taken.old - sum(self._promised))
            self._reader = self._reader or Reader()
            self._reader.ask(self._ask({"new": new, "due": due, "undecided": taken.undecided._asdict()}))
            self._promised.append(due)

    def adopt(self, job_id: str, payload: str) -> Taken:
        """Enter one event that a stock RQ worker runs, as if it had been taken from its lane."""
        return self._ask({"new": 0, "due": 0, "adopt": {"id": job_id, "payload": payload}})()

    def introduce(self, fingerprint: str) -> None:
        """With the next ``take``, tell which credential this worker posts with from now on."""
        self._fingerprint = fingerprint

    def expect(self, openings: Sequence[Opening]) -> None:
        """See ``ports.Outbox.expect``."""
        self._opened |= {each.scope: [str(each.at_us), each.room] for each in openings}

    def recover(
        self, recoveries: Sequence[Recovery], tell: Callable[[Sequence[Recovered]], None]
    ) -> list[FailureKnown]:
        """See ``ports.Outbox.recover``."""
        call = {
            "owner": self.owner,
            "remember_us": self._remember_us,
            "most_decisions": self._bounds.decisions,
        }
        rows: list[Any] = [recovery_row(each) for each in recoveries]
        findings: list[FailureKnown] = []
        while len(findings) < len(rows):
            asked = call | {"events": rows[len(findings) :]}
            answer = decode_answer(self._resolve(self._names_of("resolve"), asked))
            findings += [found(row) for row in answer["events"] if row != "again"]
            tell([Recovered(name, category, int(seen)) for name, category, seen in answer["cancelled"]])
        return findings

    def line_up(self, deferrals: Sequence[Deferral]) -> list[Waiting | NotParked | Repeat | Over]:
        """See ``ports.Outbox.line_up``."""
        table = Table(self._keys, self._names_of("line_up"))
        call = {
            "owner": self.owner,
            **self._version,
            "events": [deferral_row(each, table, self._bounds.text, self._opened) for each in deferrals],
        }
        answer = self._current(decode_answer(self._line_up(table.keys, call)))
        return [lined_up(each, row) for each, row in zip(deferrals, answer["events"], strict=True)]

    def start(
        self, candidates: Sequence[Candidate], free: int, *, is_last: bool = False, stood_by: bool = False
    ) -> list[Started | Waiting | None]:
        """See ``ports.Outbox.start``. If this decides all that the owner took, it tells the server so."""
        table = Table(self._keys, self._names_of("pace"))
        events = [
            {
                **table.subject(each.leased, each.terms),
                "attempt": each.leased.attempt + 1,
                "deadline": str(each.terms.deadline_us),
                **({"shadow": each.leased.shadowed} if each.leased.shadowed else {}),
                **({"stood_by": stood_by_row(each.terms, table)} if stood_by else {}),
            }
            for each in candidates
        ]
        call = {"owner": self.owner, "free": free, **self._version, "channels": table.channels, "events": events}
        is_decided = is_last and self._can_go_on and not (self.ahead or self._opened or self._fingerprint)
        if is_decided:
            call["decided"] = True
        answer = self._current(decode_answer(self._pace(table.keys, call | self._threads(table))))
        self.is_decided = is_decided
        return [started(each, row) for each, row in zip(candidates, answer["events"], strict=True)]

    def settle(self, settlements: Sequence[Settlement]) -> Settled:
        """See ``ports.Outbox.settle``."""
        table = Table(self._keys, self._names_of("settle"))
        call = {
            "remember_us": self._remember_us,
            "dead": self._bounds.of_letters(),
            "most_decisions": self._bounds.decisions,
            **self._version,
            "events": [settlement_row(each, table, self._bounds.text) for each in settlements],
            "channels": table.channels,
            **self._threads(table),
        }
        answer = decode_answer(self._settled(table.keys, call))
        return Settled(
            [row == 1 for row in answer["settled"]],
            answer["trimmed"],
            [_pause_change(row) for row in answer["pause_changes"]],
        )

    def _settled(self, names: Sequence[str], call: dict[str, Any]) -> bytes:
        """Settle, and store with it what was counted of requests. Where the server is away, that goes again."""
        if self._requests is None:
            answer: bytes = self._settle(names, call)
            return answer
        counts = self._requests.take()
        try:
            answer = self._settle(names, call | {"counted": counts} if counts else call)
        except GateUnavailable:
            self._requests.put_back(counts)
            raise
        return answer

    def renew(self) -> int:
        """Prolong the lease. Returns in how many microseconds the owner must take although nothing has rung.

        Then the lease of another owner may have ended, or a job of RQ's registries may be due. It is 0 if something is
        overdue.
        """
        return self._renewed({"lease_us": self._lease_us})[1]

    def wake_another(self) -> None:
        """Leave a token for another worker, and prolong the lease. A full server takes it too."""
        self._renewed({"lease_us": self._lease_us, "ring": True})

    def arrivals(self) -> Iterator[Taken]:
        """The prefetched batches, as they arrive. The caller does not decide them; ``keep_only`` gives them back."""
        while self.ahead:
            yield self._arrived()

    def keep_only(self, ids: Iterable[str]) -> int:
        """Renew the lease under a new name for ``ids``, give back all other events; returns how many were given back.

        Prefetched batches must have arrived before: see ``arrivals``. The same holds for ``give_back``.
        """
        self._opened, self._broken = {}, None
        self._owners += 1
        self.owner = f"{self._name}/{self._owners}"
        self._names_by_script = {}
        return self._renewed({"lease_us": self._lease_us, "keep": list(ids), "name": self._name})[0]

    def give_back(self, keep: Iterable[str] = ()) -> int:
        """End the lease. The events that are not in ``keep`` are requeued, in order; returns how many."""
        return self._renewed({"lease_us": 0, "keep": list(keep), "name": self._name})[0]

    def leased_key(self) -> str:
        """The key of the events that this worker holds, under its current name."""
        return self._keys.leased(self.owner)

    def _current(self, answer: Any) -> Any:  # noqa: ANN401 - the answer of a script
        if "stale" in answer:
            raise StaleLimits(self._version["version"], answer["stale"])
        return answer

    def _arrived(self) -> Taken:
        if self._reader is None:
            raise RuntimeError("nothing was asked for ahead")
        self._promised.popleft()
        taken = self._noted(self._reader.result())
        self._nth += 1
        self._goes_on = self._goes_on and taken.undecided is not None
        if taken.nth > self._nth and self.ahead:  # a later call, on another connection, ran before
            try:
                return self._arrived().and_then(taken)
            except GateUnavailable as error:
                self._broken = error
                return replace(taken, batch=[])  # they may not overtake the others: they are given back
        return taken

    def _with_next(self, taken: Taken) -> Taken:
        """Join the next batch to one. If it does not arrive, the next ``take`` raises."""
        try:
            return taken.and_then(self._arrived())
        except GateUnavailable as error:
            self._broken = error
            return taken

    def _forget_broken(self) -> GateUnavailable:
        error, self._broken = self._broken, None
        return error or GateUnavailable("what was asked for ahead did not arrive")

    def _threads(self, table: Table) -> dict[str, Any]:
        if table.threads is None:
            return {}
        return {"threads": {**table.threads, "keep_us": max(THREADS_US, self._remember_us)}}

    def _names_of(self, script: str) -> list[str]:
        """The keys of a script, in the order in which it declares them."""
        if script not in self._names_by_script:
            ours = {"leased": self.leased_key(), "suspended": self._queue.suspended}
            ours |= dict(zip(("lane_high", "lane_normal", "lane_low"), self._queue.lanes, strict=True))
            ours |= dict(zip(("later_high", "later_normal", "later_low"), self._queue.scheduled, strict=True))
            names = [ours.get(name) or self._keys.named(name) for name in script_keys(script)]
            self._names_by_script[script] = names
        return self._names_by_script[script]

    def _ask(self, call: dict[str, Any]) -> Callable[[], Taken]:
        names = self._names_of("take")
        prefiltering = None if self._prefilter is None else self._prefilter.call()
        began_s = self._own_clock()
        call |= {
            **self._since(began_s),
            "grace_us": self._grace_us,
            "owner": self.owner,
            "lease_us": self._lease_us,
            "most_decisions": self._bounds.decisions,
            "remember_us": self._remember_us,
            **self._version,
        }
        if not self._bounds.text:
            call["wordless"] = True
        known = self._silences
        if known.version is not None:
            call["silences"] = known.version
        if prefiltering is None:
            if self._stock_jobs.are_coming:
                self._stock_jobs.forget()
            answer = self._take.ask(names, call)
        else:
            marks = self._stock_jobs.marks(call["new"])
            read_next = self._stock_jobs.receive()
            answer = self._take.ask(names, call, prefiltering.text, *marks)
            read_next()

        def read_answer() -> Taken:
            taken = read_taken(answer(), prefiltering, known)
            self._silences = taken.silences
            self._has_called(began_s)
            return taken

        return read_answer

    def _since(self, began_s: float) -> dict[str, int]:
        """How long ago this worker called before. Where the server says longer, its clock was stepped forward."""
        return {} if self._called_s is None else {"since_us": round((began_s - self._called_s) * US)}

    def _has_called(self, began_s: float) -> None:
        """A call that began then was answered; what was prefetched may be read after later calls."""
        self._called_s = max(began_s, self._called_s or began_s)

    def _noted(self, taken: Taken) -> Taken:
        """The batch, after what it tells of later ones is noted."""
        if self._prefilter is not None:
            self._prefilter.note(taken.prefiltered)
        if taken.has_unmarked or self._stock_jobs.are_coming:
            ended = [*taken.duplicates, *(name for group in taken.prefiltered for name in group.names)]
            self._stock_jobs.taken(ended, [each.id for each in taken.batch], has_unmarked=taken.has_unmarked)
        return taken

    def _renewed(self, call: dict[str, Any]) -> tuple[int, int]:
        facts = {"owner": self.owner, "grace_us": self._grace_us}
        returned = 0
        while True:
            began_s = self._own_clock()
            number, is_more, take_in_us = self._renew(self._names_of("renew"), facts | call | self._since(began_s))
            self._has_called(began_s)
            returned += int(number)
            if not is_more:
                return returned, int(take_in_us)


def _pause_change(row: dict[str, str]) -> PauseChange:
    if "began" in row:
        return PauseChange(row["began"], began=True, code=row["code"], detail=row["detail"])
    return PauseChange(row["ended"], began=False)


class Reader(Generic[T]):
    """A thread that receives and reads a batch, while the one that asked for it waits for the server anyway."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Callable[[], T]] = SimpleQueue()
        self._brought: SimpleQueue[T | BaseException] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="reader").start()

    def ask(self, receive: Callable[[], T]) -> None:
        """Let it receive a batch; to be followed by ``result``."""
        self._asked.put(receive)

    def result(self) -> T:
        """The batch, or what receiving it raised."""
        brought = self._brought.get()
        if isinstance(brought, BaseException):
            raise brought
        return brought

    def has_result(self) -> bool:
        """Whether ``result`` would not wait."""
        return not self._brought.empty()

    def _run(self) -> None:
        while True:
            try:
                self._brought.put(self._asked.get()())
            except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
                self._brought.put(error)


class Undecided(NamedTuple):
    """From which event on an owner has not decided what it took. ``prefetch`` passes it on."""

    seq: int
    """No undecided event, and no event that is first taken later, has a lower seq."""
    freed: int
    """The number of the last slot that had become free by then; see lua/include/deferred.lua."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one ``take`` brought.

    ``next_us`` is the next instant at which there may be an event to take. ``next_busy_us`` is the same for a worker
    that can post nothing. At ``lease_us`` the first lease ends: then there may be events of a worker that is gone.
    ``posts_wait``: whether parked events wait that a free sender could post now.
    """

    batch: list[Leased | Undecodable]
    now_us: int
    next_us: int | None
    next_busy_us: int | None
    lease_us: int
    posts_wait: bool
    more: bool
    suspended: bool
    duplicates: list[str]
    prefiltered: list[Prefiltered] = field(default_factory=list)
    """New events that the admission pre-check has dropped."""
    silences: Silences = NOTHING_SILENCED
    """Of what these match only events that were admitted before are posted."""
    undecided: Undecided | None = None
    """None if the owner must decide before it takes more: it holds events that were taken before, or others are due
    that a prefetch does not bring."""
    nth: int = 0
    """The number of this take in an unbroken row of prefetches; 0 if it was not prefetched."""
    old: int = 0
    """How many events of the batch were taken before."""
    version: str | None = None
    """The version of the limits that is in force."""
    has_unmarked: bool = False
    """Whether the pre-check looked at events that bear no mark."""

    def again_us(self, *, can_post: bool = True) -> int:
        """The next instant at which another take may bring something."""
        next_us = self.next_us if can_post else self.next_busy_us
        return self.lease_us if next_us is None else min(next_us, self.lease_us)

    @property
    def has_brought(self) -> bool:
        """Whether there was anything to take."""
        return bool(self.batch or self.prefiltered or self.duplicates)

    def and_then(self, later: Taken) -> Taken:
        """The two as one."""
        can_go_on = self.undecided is not None and later.undecided is not None
        return replace(
            later,
            batch=[*self.batch, *later.batch],
            duplicates=[*self.duplicates, *later.duplicates],
            prefiltered=[*self.prefiltered, *later.prefiltered],
            undecided=self.undecided if can_go_on else None,
            old=self.old + later.old,
        )


def read_taken(
    answer: Any,  # noqa: ANN401 - what take.lua returns
    prefiltering: PrefilterCall | None = None,
    silences: Silences = NOTHING_SILENCED,
) -> Taken:
    """Read the answer of take.lua.

    ``prefiltering`` is what the call told the pre-check, ``silences`` those whose version it named.
    """
    facts = decode_answer(answer[0])
    if "silences" in facts:
        silences = read_silences(facts["silences"]["rows"], facts["silences"].get("version"))
    refused = facts["refused"]
    return Taken(
        batch=parted(facts, answer[1]) if facts["sizes"] else [],
        now_us=int(facts["now"]),
        next_us=int(facts["next"]) if facts["next"] else None,
        next_busy_us=int(facts["next_busy"]) if facts["next_busy"] else None,
        lease_us=int(facts["lease"]),
        posts_wait=facts["posts_wait"],
        more=facts["more"],
        suspended=facts["suspended"],
        duplicates=facts["duplicates"] or [],
        prefiltered=prefiltering.read(refused, int(facts["now"])) if prefiltering is not None and refused else [],
        silences=silences,
        undecided=Undecided(int(facts["from"]), facts["freed"]) if facts["from"] else None,
        nth=facts["nth"],
        old=facts["seqs"].count(0) if facts["seqs"] else 0,
        version=facts["version"],
        has_unmarked=facts["unmarked"],
    )


def parted(facts: dict[str, Any], records: bytes) -> list[Leased | Undecodable]:
    """The events in the answer of take.lua, whose records come as one string."""
    batch: list[Leased | Undecodable] = []
    start, now_us = 0, int(facts["now"])
    for id_, size, seq in zip(facts["ids"].split(" "), facts["sizes"], facts["seqs"], strict=True):
        end = start + size
        batch.append(read_new(id_, records[start:end], seq, now_us) if seq else read(id_, records[start:end]))
        start = end
    return batch


def found(row: Any) -> FailureKnown:  # noqa: ANN401 - a row of resolve.lua
    """What is known of a failure."""
    match row:
        case "lost":
            return Lost()
        case "unposted":
            return Unposted()
        case "told":
            return Unposted("an earlier recovery tells it")
        case "post":
            return Uneditable()
        case ["wait", wait_us]:
            return Awaited(wait_us)
        case ["edit", fields]:
            return Posted(
                name=fields.get("name", ""),
                since_us=int(fields["posted"].partition(" ")[0]),
                channel=fields["channel"],
                ts=fields["ts"],
                text=fields.get("text", ""),
                times=1 + int(fields.get("count", 0)),
            )
        case _:
            raise TypeError(f"{row!r}, expected an answer of resolve.lua")


def lined_up(deferral: Deferral, row: Any) -> Waiting | NotParked | Repeat | Over:  # noqa: ANN401 - a row of line_up.lua
    """What happened to a deferral."""
    if isinstance(row, str):
        return NotParked(row)
    if row[0] == "over":
        return Over(row[1])
    if row[0] == "repeat":
        _, of, since_us, wait_us = row
        return Repeat(of, since_us, wait_us)
    _, scope, wait_us = row
    return Waiting(deferral.candidate, limit_reason(scope), None if wait_us is None else int(wait_us), scope)


def started(candidate: Candidate, row: Any) -> Started | Waiting | None:  # noqa: ANN401 - a row of pace.lua
    """The candidate as started, or as waiting; None if its lease was lost."""
    if row == "go":
        return Started(candidate, candidate.leased.attempt + 1)
    if row == "lost":
        return None
    if row[0] == "go":
        return Started(candidate, candidate.leased.attempt + 1, row[1])
    reason, wait_us = row
    return Waiting(candidate, Reason(reason), wait_us)

"""THE CORE: the way of a batch of events, step by step.

Two steps are never mixed. The *budget* (limits of global, category and label) decides whether an event is posted. The
*pace* (channel, cool-down, pause) only delays what the budget admitted. An outcome is durable before the log tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol, assert_never

from dispatcher.core import reconciliation, recovery, transitions
from dispatcher.core.digests import DigestMessages
from dispatcher.core.limits import Admitted, Denied, FirstOf, Opening, Reason, Scope, all_scopes, is_repeat
from dispatcher.core.policy import Backoff, Policy, is_quiet_line, limit_reason
from dispatcher.core.ports import Admitting, Asking, Gate, Observer, Outbox, Overtaken, Sink, Standby
from dispatcher.core.posts import Message, PostResult, Retryable
from dispatcher.core.rendering import message_for
from dispatcher.core.silence_reports import SilenceReports
from dispatcher.core.silences import NOTHING_SILENCED, ROOM, SILENCE_PREFIX, Silence, Silences
from dispatcher.core.states import (
    Awaited,
    Candidate,
    Deferral,
    HistoryScan,
    Leased,
    Lost,
    NotParked,
    Over,
    Posted,
    Repeat,
    ScanResult,
    Sent,
    Settlement,
    Started,
    Terms,
    Undecodable,
    Uneditable,
    Unposted,
    Waiting,
    boottime_s,
)
from dispatcher.core.tally import Suppressed, Telling
from dispatcher.errors import StaleLimits

POST_S: Final = 10.0
"""How long a post may take, unless the settings say otherwise."""

LATE: Final = Retryable("too_late", "its time had passed before it began", uses_attempt=False, reached=None)

MEANT_FOR_ANOTHER: Final = Retryable(
    "credential_changed", "it was to be posted with another credential", uses_attempt=False, reached=None
)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch between two steps: the events that go on, and those that ended but are not durable yet.

    ``candidates`` have not asked the gate; ``admitted`` and ``refused`` have. ``has_asked``: the gate was asked.
    """

    candidates: Sequence[Candidate] = ()
    ended: Sequence[Settlement] = ()
    admitted: Sequence[Candidate] = ()
    refused: Sequence[Deferral] = ()
    has_asked: bool = False

    @property
    def undecided(self) -> list[Leased | Undecodable]:
        """The whole batch, for other limits to decide. What has asked may own slots, and counts as taken once more.

        Those limits do not drop what was admitted.
        """
        if not self.has_asked:
            going = [*self.candidates, *self.admitted, *(each.candidate for each in self.refused)]
            return [*(each.leased for each in going), *(each.subject for each in self.ended)]
        subjects = [*(each.candidate.leased for each in self.refused), *(each.subject for each in self.ended)]
        return [
            *(transitions.admitted_before(each) for each in self.admitted),
            *(transitions.taken_again(each) if isinstance(each, Leased) else each for each in subjects),
        ]


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many posts can start: ``free`` now, and further admitted events may stand by.

    ``begin`` gets each post as soon as it is marked: no log line is written between a mark and its post. Without it the
    caller makes the posts that ``dispatch`` returns: a job of a stock RQ worker, and the simulation.
    """

    free: int
    begin: Callable[[Started], None] = lambda _: None
    standby: Standby | None = None

    def parted(self, admitted: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """The events that start now or are parked, and those that may stand by."""
        going: list[Candidate] = []
        staying: list[Candidate] = []
        room = self.standby.room if self.standby is not None else 0
        for each in admitted:
            may_stay = len(going) >= self.free and len(staying) < room and transitions.may_stand_by(each)
            (staying if may_stay else going).append(each)
        return going, staying


class StartedPosts(NamedTuple):
    """The posts that may be made now. ``is_held_up``: of the others some wait for a pause or a cool-down to end."""

    posts: list[Started]
    is_held_up: bool


class _LinedUp(NamedTuple):
    """The ids of events that need not wait, and the ends of events that found no place in their line."""

    going: set[str]
    ended: list[Settlement]


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """One worker's collaborators, and the steps in order.

    A post may take ``post_s`` seconds. They count from the instant before its mark ``sending`` is asked for, since a
    worker that finds the mark of a dead one counts from the mark. ``clock`` gives that instant, in seconds.
    """

    policy: Policy
    gate: Gate
    outbox: Outbox
    sink: Sink
    observer: Observer
    backoff: Backoff
    grace_us: int
    post_s: float
    clock: Callable[[], float] = boottime_s
    _events: Handler = field(init=False)
    _digests: Handler = field(init=False)
    _reports: Handler = field(init=False)

    def __post_init__(self) -> None:
        events = ProducerEvents(self.policy, self.sink, self.backoff, self.grace_us)
        object.__setattr__(self, "_events", events)
        object.__setattr__(self, "_digests", DigestMessages(self.policy, self.sink, self.backoff, self.grace_us))
        object.__setattr__(self, "_reports", SilenceReports(self.policy, self.sink, self.backoff, self.grace_us))

    def dispatch(
        self,
        batch: Sequence[Leased | Undecodable],
        now_us: int,
        capacity: Capacity,
        silences: Silences = NOTHING_SILENCED,
    ) -> list[Started]:
        """Take a batch as far as its posts: decide, settle what ends here, mark what may be posted now.

        Returns the posts, which ``capacity`` has been given. Admitted events that find no free sender stand by, or wait
        in their lines for any worker. Of what ``silences`` match only events that were admitted before are posted.
        Events to be reconciled are left to ``scans``.

        Raises ``GateUnavailable``: what was not settled stays leased. Raises ``Overtaken`` when the policy is no longer
        in force. Posts of earlier parts may have begun: ``capacity`` has them. The part that raises has posted nothing.
        """
        started: list[Started] = []
        parts = _parts_of(batch)
        for place, part in enumerate(parts):
            try:
                is_last = place == len(parts) - 1
                left = replace(capacity, free=capacity.free - len(started))
                started += self._dispatch(part, now_us, left, silences, is_last=is_last)
            except Overtaken as error:
                rest = [each for later in parts[place + 1 :] for each in later]
                raise Overtaken([*error.undecided, *rest], error.version) from error
        return started

    def _dispatch(
        self,
        batch: Sequence[Leased | Undecodable],
        now_us: int,
        capacity: Capacity,
        silences: Silences,
        *,
        is_last: bool,
    ) -> list[Started]:
        """As ``dispatch``; no two of the events are the failure and the recovery of one thing."""
        found = self._arrive(batch, now_us)
        try:
            found = self._recover(found)
            found = self._hold_silenced(found, silences, now_us)
            found = self._hold_quiet(found, now_us)
            found = self._line_up_newcomers(found)
            found = self._ask_gate(found)
            found = self._line_up_refused(found)
            found = self._settle_ended(found)
            going, staying = capacity.parted(found.admitted)
            started = self._start(going, capacity, is_last=is_last).posts
        except StaleLimits as error:
            raise Overtaken(found.undecided, error.in_force) from error
        if capacity.standby is not None:
            capacity.standby.put(staying)
        return started

    def start(self, standing_by: Sequence[Candidate], capacity: Capacity) -> StartedPosts:
        """Mark events that stood by as posts that may be made now, and park the others.

        Everything that the worker took before must be decided. ``capacity`` gets the posts. Raises as ``dispatch``.
        """
        try:
            return self._start(standing_by, capacity, is_last=True, stood_by=True)
        except StaleLimits as error:
            raise Overtaken(Batch(admitted=standing_by, has_asked=True).undecided, error.in_force) from error

    def deliver(self, started: Started) -> Settlement:
        """Post one message and return what follows. Any thread may call it, since it does not use the store.

        A post that would leave too late is not made: another worker may have posted the event meanwhile. Nor is one to
        the channel of a webhook when there is a token now, or the other way round.
        """
        if started.leaves_by_s is not None and self.clock() >= started.leaves_by_s:
            return self.not_made(started)
        if not self.policy.can_post_to(started.candidate.terms.channel):
            return self.conclude(started, MEANT_FOR_ANOTHER)
        return self._handler_of(started.candidate.leased).deliver(started)

    def not_made(self, started: Started) -> Settlement:
        """What follows from a post that was never begun; nothing is learnt about Slack."""
        return self.conclude(started, LATE)

    def conclude(self, started: Started, result: PostResult) -> Settlement:
        """What follows from a post that came to ``result``."""
        return self._handler_of(started.candidate.leased).after_post(started, result)

    def scans(self, batch: Sequence[Leased | Undecodable], now_us: int) -> list[HistoryScan]:
        """The history scans for the events of a batch whose delivery status is unknown: these are reconciled first.

        Raises ``GateUnavailable`` as ``dispatch`` does.
        """
        unconfirmed = [each for each in batch if isinstance(each, Leased) and each.unconfirmed is not None]
        found, ended = reconciliation.scans(unconfirmed, self.policy, now_us)
        self.settle(ended)
        return found

    def scan(self, scan: HistoryScan) -> list[Settlement]:
        """Read the history and return what follows for each event. Any thread may call it; it uses no store."""
        return self.conclude_scan(scan, self.sink.scan(scan.search))

    def conclude_scan(self, scan: HistoryScan, result: ScanResult) -> list[Settlement]:
        """What follows from a scan's result."""
        found = reconciliation.after_scan(scan, result, self.policy, self.backoff, self.grace_us)
        pairs = zip(scan.candidates, found, strict=True)
        return [self._handler_of(candidate.leased).after_scan(settlement) for candidate, settlement in pairs]

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Make outcomes durable, then tell the observer."""
        if not settlements:
            return
        done = self.outbox.settle([transitions.at_pace(each, self.policy) for each in settlements])
        pairs = list(zip(settlements, done.applied, strict=True))
        self.observer.settled([each for each, is_applied in pairs if is_applied])
        self.observer.lost([each.subject for each, is_applied in pairs if not is_applied])
        self.observer.pause_changed(done.pause_changes)
        if done.trimmed:
            self.observer.trimmed(done.trimmed)

    def _handler_of(self, leased: Leased) -> Handler:
        if leased.report is not None:
            return self._reports
        return self._digests if leased.is_digest_message else self._events

    def _arrive(self, batch: Sequence[Leased | Undecodable], now_us: int) -> Batch:
        """Find the terms of each event. An event that cannot be read or handled, or is too old, ends."""
        ended: list[Settlement] = []
        candidates: list[Candidate] = []
        for item in batch:
            if isinstance(item, Undecodable):
                ended.append(transitions.undecodable(item))
                continue
            if item.unconfirmed is not None:
                continue
            try:
                arrived = self._handler_of(item).on_arrival(item, now_us)
            except Exception as error:  # noqa: BLE001 - see transitions.unhandled
                arrived = transitions.unhandled(item, error)
            match arrived:
                case Candidate() as candidate:
                    candidates.append(candidate)
                case Settlement() as settlement:
                    ended.append(settlement)
        return Batch(candidates, ended)

    def _recover(self, batch: Batch) -> Batch:
        """Find out what recoveries do: edit the message about the failure, be one of their own, or end."""
        asking = [each for each in batch.candidates if each.leased.event.is_resolved and recovery.asks(each.leased)]
        if not asking:
            return batch
        going: dict[str, Candidate] = {}
        ended: list[Settlement] = []
        waiting: list[Waiting] = []
        edits: list[Candidate] = []
        lost: list[Leased] = []
        findings = self.outbox.recover(
            [recovery.recovery_of(each, self.policy, can_edit=self.sink.can_update) for each in asking],
            self.observer.recovered,
        )
        for candidate, finding in zip(asking, findings, strict=True):
            match finding:
                case Posted():
                    edits.append(recovery.as_edit(candidate, finding))
                case Unposted(detail):
                    ended.append(recovery.unposted(candidate, detail))
                case Awaited(wait_us):
                    waiting.append(Waiting(candidate, Reason.RESOLVED, wait_us))
                case Lost():
                    lost.append(candidate.leased)
                case Uneditable():
                    match recovery.as_message(candidate, self.policy):
                        case Candidate() as message:
                            going[candidate.leased.id] = message
                        case Settlement() as settlement:
                            ended.append(settlement)
                case _:
                    assert_never(finding)
        self.observer.waiting(waiting)
        self.observer.lost(lost)
        asked = {each.leased.id for each in asking}
        others = [
            going.get(each.leased.id, each)
            for each in batch.candidates
            if each.leased.id not in asked or each.leased.id in going
        ]
        return replace(batch, candidates=others, ended=[*batch.ended, *ended], admitted=edits)

    def _hold_silenced(self, batch: Batch, silences: Silences, now_us: int) -> Batch:
        """An event that a silence suppresses ends, or waits in line until the silence ends."""
        came = {
            each.leased.line.split(":")[1]
            for each in batch.candidates
            if each.leased.line is not None and each.leased.has_left_silence
        }
        if came:
            self.outbox.expect([_opening(silences.get(each), each, now_us) for each in sorted(came)])
        if not silences.each:
            return batch
        return self._hold(
            batch, [self._handler_of(each.leased).silenced(each, silences, now_us) for each in batch.candidates]
        )

    def _hold_quiet(self, batch: Batch, now_us: int) -> Batch:
        """An event for which quiet hours hold ends, or waits in a line of its own until they end."""
        if not self.policy.quiet:
            return batch
        held = [self._handler_of(each.leased).quiet(each, now_us) for each in batch.candidates]
        opens = {each.until.scope: each.until.wait_us for each in held if isinstance(each, Deferral) and each.until}
        self.outbox.expect([Opening(scope, now_us + left_us, 0) for scope, left_us in opens.items()])
        if any(is_quiet_line(each.leased.line) for each in batch.candidates):
            self.outbox.expect([Opening(scope, now_us, ROOM) for scope in self.policy.hours.over(now_us)])
        return self._hold(batch, held)

    def _hold(self, batch: Batch, held: Sequence[Settlement | Deferral | None]) -> Batch:
        """The batch without the events that end or wait. ``held`` has an item for each of them, None if it goes on."""
        left = [each for each, what in zip(batch.candidates, held, strict=True) if what is None]
        ended = [each for each in held if isinstance(each, Settlement)]
        waiting = [each for each in held if isinstance(each, Deferral)]
        return replace(batch, candidates=left, ended=[*batch.ended, *ended, *self._line_up(waiting).ended])

    def _line_up_newcomers(self, batch: Batch) -> Batch:
        """New events of a category that defers go behind those that wait already."""
        newcomers = {
            each.leased.id: deferral
            for each in batch.candidates
            if (deferral := self._handler_of(each.leased).newcomer(each)) is not None
        }
        if not newcomers:
            return batch
        may_go, ended = self._line_up(list(newcomers.values()))
        going = [each for each in batch.candidates if each.leased.id not in newcomers or each.leased.id in may_go]
        return replace(batch, candidates=going, ended=[*batch.ended, *ended])

    def _ask_gate(self, batch: Batch) -> Batch:
        """Ask the budget: events are admitted, or refused and wait, or refused and end (in ``ended``)."""
        asking = [self._handler_of(each.leased).asking(each) for each in batch.candidates]
        answer = self.gate.admit(asking, ahead=self._ahead(asking))
        self.outbox.expect(answer.openings)
        for place, shadowed in answer.shadowed.items():
            leased, terms = asking[place].candidate
            asking[place] = asking[place]._replace(candidate=Candidate(leased._replace(shadowed=shadowed), terms))
        admitted: list[Candidate] = [*batch.admitted]
        refused: list[Deferral] = []
        ended: list[Settlement] = []
        suppressed: dict[int, tuple[Asking, Denied]] = {}
        over: list[tuple[Asking, Settlement]] = []
        for place, (each, verdict) in enumerate(zip(asking, answer.verdicts, strict=True)):
            if place in answer.lost:
                continue
            if place in answer.over:
                over.append((each, transitions.over(each.candidate, None)))
                continue
            match verdict:
                case Admitted():
                    admitted.append(each.candidate)
                case Denied() if each.ends_with(verdict):
                    suppressed[place] = (each, verdict)
                case Denied():
                    match self._handler_of(each.candidate.leased).denied(each.candidate, verdict):
                        case Deferral() as deferral:
                            refused.append(deferral)
                        case Settlement() as settlement:
                            ended.append(settlement)
                case _:
                    assert_never(verdict)
        self.observer.lost([asking[place].candidate.leased for place in sorted(answer.lost)])
        self._tell_of(suppressed, answer)
        self.observer.settled([settlement for each, settlement in over if each.repeats])
        ended += [settlement for each, settlement in over if not each.repeats]
        return Batch((), [*batch.ended, *ended], admitted, refused, has_asked=True)

    def _ahead(self, asking: Sequence[Asking]) -> list[Scope]:
        """The scopes whose next room lines wait for: those that their heads ask for, and alternatives for newcomers."""
        heads = [each.candidate.terms for each in asking if each.candidate.leased.line]
        found = {scope.name: scope for terms in heads for scope in all_scopes(terms.scopes)}
        if self.policy.guaranteed:
            waiting = [each.candidate.terms for each in asking if not each.drops]
            choices = {demand for terms in waiting for demand in terms.scopes if isinstance(demand, FirstOf)}
            found |= {scope.name: scope for choice in choices for scope in choice.scopes}
        return list(found.values())

    def _tell_of(self, suppressed: dict[int, tuple[Asking, Denied]], answer: Admitting) -> None:
        """Tell which events a limit has dropped or digested, or which wait as buffered singles."""
        waiting: list[Waiting] = []
        dropped: list[tuple[Leased, Denied]] = []
        digested = list(answer.joined)
        known: dict[tuple[int, str], Denied] = {}
        for place, (each, verdict) in suppressed.items():
            leased, counting = each.candidate.leased, each.counting
            if is_repeat(verdict) and each.repeating is not None and place not in answer.uncounted:
                digested.append(Suppressed(leased.name, leased.event.category, verdict, leased.seen_us))
                continue
            if counting is None or is_repeat(verdict):
                dropped.append((leased, verdict))
                continue
            denied = known.get((id(verdict), counting.id))
            if denied is None:
                denied = known[id(verdict), counting.id] = counting.known(verdict)
            if place in answer.buffered:
                reason = limit_reason(denied.scope)
                waiting.append(Waiting(each.candidate, reason, answer.buffered[place], denied.scope))
            elif counting.telling is Telling.DIGEST:
                digested.append(Suppressed(leased.name, leased.event.category, denied, leased.seen_us))
            else:
                dropped.append((leased, denied))
        self.observer.dropped(dropped)
        self.observer.digested(digested)
        self.observer.waiting(waiting)

    def _line_up_refused(self, batch: Batch) -> Batch:
        """The events that were refused and wait go into their lines."""
        ended = self._line_up(batch.refused).ended
        return replace(batch, refused=(), ended=[*batch.ended, *ended])

    def _line_up(self, deferrals: Sequence[Deferral]) -> _LinedUp:
        """Put events into their lines, except those that need not wait. Where there is no place, an event overflows."""
        going: set[str] = set()
        ended: list[Settlement] = []
        waiting: list[Waiting] = []
        lost: list[Leased] = []
        answers = self.outbox.line_up(deferrals) if deferrals else []
        for deferral, answer in zip(deferrals, answers, strict=True):
            match answer:
                case Waiting():
                    waiting.append(answer)
                case NotParked.GO:
                    going.add(deferral.candidate.leased.id)
                case NotParked.FULL:
                    ended.append(transitions.overflow(deferral))
                case Repeat():
                    ended.append(transitions.repeated(deferral, answer))
                case Over(since_us):
                    ended.append(transitions.over(deferral.candidate, since_us))
                case NotParked.LOST:
                    lost.append(deferral.candidate.leased)
                case _:
                    assert_never(answer)
        self.observer.waiting(waiting)
        self.observer.lost(lost)
        return _LinedUp(going, ended)

    def _settle_ended(self, batch: Batch) -> Batch:
        """Make what has ended durable, and tell it."""
        self.settle(batch.ended)
        return replace(batch, ended=())

    def _start(
        self, admitted: Sequence[Candidate], capacity: Capacity, *, is_last: bool = False, stood_by: bool = False
    ) -> StartedPosts:
        if not admitted:
            return StartedPosts([], is_held_up=False)
        by_s = self.clock() + self.post_s
        answers = self.outbox.start(admitted, capacity.free, is_last=is_last, stood_by=stood_by)
        started = [replace(answer, leaves_by_s=by_s) for answer in answers if isinstance(answer, Started)]
        for each in started:
            capacity.begin(each)
        waiting = [answer for answer in answers if isinstance(answer, Waiting)]
        self.observer.waiting(waiting)
        self.observer.lost([each.leased for each, answer in zip(admitted, answers, strict=True) if answer is None])
        return StartedPosts(started, is_held_up=any(each.reason is not Reason.PACE for each in waiting))


def _parts_of(batch: Sequence[Leased | Undecodable]) -> list[Sequence[Leased | Undecodable]]:
    """The batch in parts, in order: what one event says about a thing is decided before a later one takes it back."""
    parts: list[list[Leased | Undecodable]] = [[]]
    known: dict[str, bool] = {}
    for each in batch:
        event = each.event if isinstance(each, Leased) else None
        if event is not None and event.dedup_key is not None:
            name = recovery.subject_name(event)
            if known.get(name, event.is_resolved) != event.is_resolved:
                parts.append([])
                known = {}
            known[name] = event.is_resolved
        parts[-1].append(each)
    return list(parts)


def _opening(silence: Silence | None, silence_id: str, now_us: int) -> Opening:
    """When more events may ask that wait for the end of this silence; some have come to ask now."""
    if silence is not None and silence.is_in_force(now_us):
        return Opening(silence.scope, silence.until_us, 0)
    return Opening(SILENCE_PREFIX + silence_id, now_us, ROOM)


class Handler(Protocol):
    """The seam between events of producers and the dispatcher's own messages: what happens to one at each step.

    The steps ask the event's handler wherever the two differ. Only ``deliver`` does I/O.
    """

    def on_arrival(self, leased: Leased, now_us: int) -> Candidate | Settlement:
        """The event with its terms, or what happens to it before the gate is asked. If it raises, the event ends."""
        ...

    def silenced(self, candidate: Candidate, silences: Silences, now_us: int) -> Settlement | Deferral | None:
        """What happens to the event while there are silences; None if it goes on."""
        ...

    def quiet(self, candidate: Candidate, now_us: int) -> Settlement | Deferral | None:
        """What happens to the event while quiet hours hold for it; None if it goes on."""
        ...

    def newcomer(self, candidate: Candidate) -> Deferral | None:
        """The event as one that waits behind earlier ones, if its category defers and it is new; else None."""
        ...

    def asking(self, candidate: Candidate) -> Asking:
        """How the event asks the gate."""
        ...

    def denied(self, candidate: Candidate, verdict: Denied) -> Settlement | Deferral:
        """What happens to the event after a denial."""
        ...

    def deliver(self, started: Started) -> Settlement:
        """Post the event, and return what follows."""
        ...

    def after_post(self, started: Started, result: PostResult) -> Settlement:
        """What follows from a post that came to ``result``."""
        ...

    def after_scan(self, settlement: Settlement) -> Settlement:
        """What a history scan means for an event of this handler; ``settlement`` is what it means for any event."""
        ...


@dataclass(frozen=True, slots=True)
class ProducerEvents:
    """Events that producers sent."""

    policy: Policy
    sink: Sink
    backoff: Backoff
    grace_us: int

    def on_arrival(self, leased: Leased, now_us: int) -> Candidate | Settlement:
        """The event ends if it is too old, was tried too often, or its category is rejected."""
        return transitions.on_arrival(leased, self.policy, now_us)

    def silenced(self, candidate: Candidate, silences: Silences, now_us: int) -> Settlement | Deferral | None:
        """If one matches the event, the category's ``on_limit`` decides."""
        found = silences.matching(candidate.leased.event, now_us)
        return transitions.silenced(candidate, found, self.policy, now_us) if found else None

    def quiet(self, candidate: Candidate, now_us: int) -> Settlement | Deferral | None:
        """The quiet hours' own ``then`` decides."""
        return transitions.quiet(candidate, self.policy, now_us)

    def newcomer(self, candidate: Candidate) -> Deferral | None:
        """The event waits if ``on_limit`` is ``defer``."""
        return transitions.newcomer(candidate, self.policy)

    def asking(self, candidate: Candidate) -> Asking:
        """A refusal may end the event."""
        drops, counting = transitions.drops(candidate, self.policy)
        once = self.policy.rule(candidate.leased.event.category).once
        repeating = None
        if once is not None and once.is_counting and self.sink.can_update:
            repeating = recovery.repeats_counted(candidate, once)
        return Asking(candidate, drops, counting, transitions.repeats(candidate), repeating)

    def denied(self, candidate: Candidate, verdict: Denied) -> Settlement | Deferral:
        """The category's ``on_limit`` decides."""
        return transitions.denied(candidate, verdict, self.policy)

    def deliver(self, started: Started) -> Settlement:
        """Render the event by its category's template, and post it; or edit the message about the failure."""
        leased, terms = started.candidate
        if leased.edits is not None:
            edit = recovery.message_of(started)
            result = self.sink.update(edit.channel, leased.edits.ts, edit, by_s=started.leaves_by_s)
            return self.after_post(started, result)
        message = self._message(leased, terms.channel, started.thread_ts)
        settlement = self.after_post(started, self.sink.post(message, by_s=started.leaves_by_s))
        return self._with_text(settlement, message.text)._replace(template_fault=message.template_fault)

    def after_post(self, started: Started, result: PostResult) -> Settlement:
        """The event was sent, becomes a dead letter, gets another attempt, or goes to its fallback."""
        leased, terms = started.candidate
        if leased.edits is not None:
            return recovery.after_edit(started, result, self.backoff, self.grace_us)
        fallback = self.policy.fallback(leased, terms.channel)
        return transitions.after_post(started, result, self.backoff, self.grace_us, fallback)

    def after_scan(self, settlement: Settlement) -> Settlement:
        """The same as for any event; a message that was found may be edited later."""
        match settlement:
            case Settlement(Leased() as leased, Terms() as terms, Sent()):
                return self._with_text(settlement, self._message(leased, terms.channel, None).text)
            case _:
                return settlement

    def _with_text(self, settlement: Settlement, text: str) -> Settlement:
        """The settlement with what is kept of a message that was posted: its text, if it may be edited later."""
        leased = settlement.subject
        if not isinstance(leased, Leased) or not isinstance(settlement.outcome, Sent):
            return settlement
        counts_repeats = self.policy.rule(leased.event.category).counts_repeats
        is_kept = counts_repeats or leased.may_be_edited
        return settlement._replace(text=text if is_kept else None, counts_repeats=counts_repeats)

    def _message(self, leased: Leased, channel: str, thread_ts: str | None) -> Message:
        style = self.policy.rule(leased.event.category).style
        return message_for(
            leased.event,
            leased.name,
            channel,
            style,
            thread_ts=thread_ts,
            seen_us=leased.seen_us,
            gone=leased.gone,
        )

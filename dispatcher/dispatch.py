"""THE CORE: the way of a batch of events, step by step.

Two steps, never mixed: the *budget* (global, category) is decided at once for every event and sets the policy; the
*pace* (channel, cool-down, pause) only delays what the budget admitted. An outcome is durable before it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, assert_never

from dispatcher import consequences as rules
from dispatcher import own, reconcile
from dispatcher.boottime import boottime_s
from dispatcher.content import message_for
from dispatcher.errors import StaleLimits
from dispatcher.leased import Candidate, Leased, Spoiled, Started, Waiting
from dispatcher.model import Admitted, Denied, Opening, PostResult, Retryable, all_scopes
from dispatcher.mutes import MUTED_SCOPE, Mute
from dispatcher.outcome import Deferral, Lookup, Settlement, Turn
from dispatcher.policy import Backoff, Policy, limit_reason
from dispatcher.ports import Admitting, Asking, Gate, Observer, Outbox, Overtaken, Sink
from dispatcher.reading import GRACE_US, Reading
from dispatcher.tally import Suppressed, Telling

NOTHING_MUTED: Final[Mapping[str, Mute]] = MappingProxyType({})
POST_S: Final = 10.0
"""How long a post may take, unless the settings say otherwise."""

LATE: Final = Retryable("too_late", "its time had passed before it began", uses_attempt=False, reached=None)


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """One worker's collaborators, and the steps in order.

    A post may take ``post_s``, which counts from the instant before its mark is asked for: whoever finds the mark of a
    worker that is gone counts from the mark. ``clock`` gives that instant.
    """

    policy: Policy
    gate: Gate
    outbox: Outbox
    sink: Sink
    observer: Observer
    backoff: Backoff
    grace_us: int = GRACE_US
    post_s: float = POST_S
    clock: Callable[[], float] = boottime_s

    def dispatch(
        self,
        batch: Sequence[Leased | Spoiled],
        now_us: int,
        free: int,
        muted: Mapping[str, Mute] = NOTHING_MUTED,
        begin: Callable[[Started], None] = lambda _: None,
    ) -> list[Started]:
        """Take a batch as far as its posts: decide, settle what ends here, mark what may be posted now.

        ``free`` is how many posts can start; more admitted ones wait in their lines for any worker. ``muted`` are the
        categories of which nothing is posted that was not admitted before. ``begin`` gets each post as soon as it is
        marked, before anything is told: no log line stands between a mark and its post. Raises ``GateUnavailable`` with
        nothing posted: what was not settled stays leased. Raises ``Overtaken`` when the policy is no longer in force,
        also with nothing posted. What is to be looked up is left to ``lookups``.
        """
        undecided: Sequence[Leased | Spoiled] = batch
        try:
            ended, candidates = self._triage(batch, now_us)
            if muted:
                candidates = self._but_muted(candidates, ended, muted, now_us)
                undecided = [*(each.leased for each in candidates), *(each.subject for each in ended)]
            going = self._behind_others(candidates, ended)
            undecided = [*(each.leased for each in going), *(each.subject for each in ended)]
            admitted, refused = self._ask(going, ended)
            undecided = rules.again([*admitted, *(each.candidate for each in refused)], ended)
            self._line_up(refused, ended)
            self.settle(ended)
            undecided = rules.again(admitted)
            return self._start(admitted, free, begin)
        except StaleLimits as error:
            raise Overtaken(undecided, error.in_force) from error

    def deliver(self, started: Started) -> Settlement:
        """Post one message and say what follows; touches no store, so any thread may do it.

        What comes too late to be posted is not: another worker may have posted it meanwhile.
        """
        leased, terms, by_s = started.candidate.leased, started.candidate.terms, started.leaves_by_s
        if by_s is not None and self.clock() >= by_s:
            return self.not_made(started)
        if leased.tally is not None:
            words = own.words_of(leased, terms.channel, self.policy, can_edit=self.sink.can_update)
            if words.edits:
                return self.conclude(started, self.sink.update(*words.edits, words.message, by_s=by_s))
            return self.conclude(started, self.sink.post(words.message, by_s=by_s))
        style = self.policy.rule(leased.event.category).style
        message = message_for(
            leased.event, leased.name, terms.channel, style, thread_ts=started.thread_ts, seen_us=leased.seen_us
        )
        settlement = self.conclude(started, self.sink.post(message, by_s=by_s))
        return settlement if (fault := message.template_fault) is None else settlement._replace(template_fault=fault)

    def not_made(self, started: Started) -> Settlement:
        """What follows from a post that was never begun; it says nothing of Slack."""
        return self.conclude(started, LATE)

    def conclude(self, started: Started, result: PostResult) -> Settlement:
        """What follows from a post that came to ``result``."""
        if started.candidate.leased.tally is not None:
            follows = own.after_post(started, result, self.policy, self.backoff, can_edit=self.sink.can_update)
            return follows or rules.after_post(started, result, self.backoff, self.grace_us)
        return rules.after_post(started, result, self.backoff, self.grace_us)

    def lookups(self, batch: Sequence[Leased | Spoiled], now_us: int) -> list[Lookup]:
        """What has to be looked up before anything else becomes of the events of a batch whose posts had no answer.

        Raises ``GateUnavailable`` as ``dispatch`` does.
        """
        doubtful = [each for each in batch if isinstance(each, Leased) and each.doubt is not None]
        found, ended = reconcile.lookups(doubtful, self.policy, now_us)
        self.settle(ended)
        return found

    def look(self, lookup: Lookup) -> list[Settlement]:
        """Read what was posted and say what follows for each event; touches no store, so any thread may do it."""
        return self.conclude_look(lookup, self.sink.look(lookup.search))

    def conclude_look(self, lookup: Lookup, reading: Reading) -> list[Settlement]:
        """What follows from a reading."""
        found = reconcile.after_look(lookup, reading, self.policy, self.backoff, self.grace_us)
        return [own.after_look(each, self.policy, can_edit=self.sink.can_update) for each in found]

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Make outcomes durable, then tell of them."""
        if not settlements:
            return
        applied = self.outbox.settle([rules.at_pace(each, self.policy) for each in settlements])
        self.observer.settled([each for each, done in zip(settlements, applied, strict=True) if done])
        self.observer.lost([each.subject for each, done in zip(settlements, applied, strict=True) if not done])

    def _triage(self, batch: Sequence[Leased | Spoiled], now_us: int) -> tuple[list[Settlement], list[Candidate]]:
        ended: list[Settlement] = []
        candidates: list[Candidate] = []
        for item in batch:
            if isinstance(item, Spoiled):
                ended.append(rules.spoiled(item))
                continue
            if item.doubt is not None:
                continue
            match self._on_arrival(item, now_us):
                case Candidate() as candidate:
                    candidates.append(candidate)
                case Settlement() as settlement:
                    ended.append(settlement)
        return ended, candidates

    def _but_muted(
        self, candidates: Sequence[Candidate], ended: list[Settlement], muted: Mapping[str, Mute], now_us: int
    ) -> list[Candidate]:
        """Who may go on; what a mute suppresses ends, or stands in line until it is over."""
        left: list[Candidate] = []
        waiting: list[Deferral] = []
        for candidate in candidates:
            mute = muted.get(candidate.leased.event.category)
            match mute and rules.muted(candidate, mute, self.policy, now_us):
                case Settlement() as settlement:
                    ended.append(settlement)
                case Deferral() as deferral:
                    waiting.append(deferral)
                case None:
                    left.append(candidate)
        self.outbox.expect(
            [Opening(f"{MUTED_SCOPE}{category}", mute.until_us, 0) for category, mute in muted.items() if waiting]
        )
        self._line_up(waiting, ended)
        return left

    def _on_arrival(self, leased: Leased, now_us: int) -> Candidate | Settlement:
        if leased.tally is None:
            return rules.on_arrival(leased, self.policy, now_us)
        return own.on_arrival(leased, self.policy, can_edit=self.sink.can_update)

    def _behind_others(self, candidates: Sequence[Candidate], ended: list[Settlement]) -> Sequence[Candidate]:
        """Who may ask the gate; newcomers of a category that defers stand behind those who wait already."""
        newcomers = {
            each.leased.id: deferral
            for each in candidates
            if (deferral := rules.newcomer(each, self.policy)) is not None
        }
        if not newcomers:
            return candidates
        going = self._line_up(list(newcomers.values()), ended)
        return [each for each in candidates if each.leased.id not in newcomers or each.leased.id in going]

    def _ask(self, candidates: Sequence[Candidate], ended: list[Settlement]) -> tuple[list[Candidate], list[Deferral]]:
        """The budget: who was admitted, and who was refused and waits; other ends of a refusal are in ``ended``."""
        heads = [each for each in candidates if each.leased.line]
        ahead = {scope.name: scope for each in heads for scope in all_scopes(each.terms.scopes)}
        asking = [Asking(each, *rules.drops(each, self.policy)) for each in candidates]
        answer = self.gate.admit(asking, ahead=list(ahead.values()))
        self.outbox.expect(answer.openings)
        admitted: list[Candidate] = []
        refused: list[Deferral] = []
        for place, shadowed in answer.shadowed.items():
            leased, terms = asking[place].candidate
            asking[place] = asking[place]._replace(candidate=Candidate(leased._replace(shadowed=shadowed), terms))
        suppressed: dict[int, tuple[Asking, Denied]] = {}
        for place, (each, verdict) in enumerate(zip(asking, answer.verdicts, strict=True)):
            if place in answer.lost:
                continue
            match verdict:
                case Admitted():
                    admitted.append(each.candidate)
                case Denied() if each.drops:
                    suppressed[place] = (each, verdict)
                case Denied() if each.candidate.leased.tally is not None:
                    ended.append(own.denied(each.candidate, verdict))
                case Denied():
                    match rules.denied(each.candidate, verdict, self.policy):
                        case Deferral() as deferral:
                            refused.append(deferral)
                        case Settlement() as settlement:
                            ended.append(settlement)
                case _:
                    assert_never(verdict)
        self.observer.lost([asking[place].candidate.leased for place in sorted(answer.lost)])
        self._tell_of(suppressed, answer)
        return admitted, refused

    def _tell_of(self, suppressed: dict[int, tuple[Asking, Denied]], answer: Admitting) -> None:
        """Lines for those that a limit has dropped or digested, or set aside."""
        waiting: list[Waiting] = []
        dropped: list[tuple[Leased, Denied]] = []
        digested = list(answer.joined)
        known: dict[tuple[int, str], Denied] = {}
        for place, (each, verdict) in suppressed.items():
            leased, counting = each.candidate.leased, each.counting
            if counting is None:
                dropped.append((leased, verdict))
                continue
            denied = known.get((id(verdict), counting.id))
            if denied is None:
                denied = known[id(verdict), counting.id] = counting.known(verdict)
            if place in answer.lone:
                reason = limit_reason(denied.scope)
                waiting.append(Waiting(each.candidate, reason, answer.lone[place], denied.scope))
            elif counting.telling is Telling.DIGEST:
                digested.append(Suppressed(leased.name, leased.event.category, denied))
            else:
                dropped.append((leased, denied))
        self.observer.dropped(dropped)
        self.observer.digested(digested)
        self.observer.waiting(waiting)

    def _line_up(self, deferrals: Sequence[Deferral], ended: list[Settlement]) -> set[str]:
        """Let them stand in line; returns the ids that need not. Where as many wait as may is the end: an overflow."""
        if not deferrals:
            return set()
        going: set[str] = set()
        waiting: list[Waiting] = []
        lost: list[Leased] = []
        for deferral, answer in zip(deferrals, self.outbox.line_up(deferrals), strict=True):
            match answer:
                case Waiting():
                    waiting.append(answer)
                case Turn.GO:
                    going.add(deferral.candidate.leased.id)
                case Turn.FULL:
                    ended.append(rules.overflow(deferral))
                case Turn.LOST:
                    lost.append(deferral.candidate.leased)
                case _:
                    assert_never(answer)
        self.observer.waiting(waiting)
        self.observer.lost(lost)
        return going

    def _start(self, admitted: Sequence[Candidate], free: int, begin: Callable[[Started], None]) -> list[Started]:
        if not admitted:
            return []
        by_s = self.clock() + self.post_s
        answers = self.outbox.start(admitted, free)
        started = [replace(answer, leaves_by_s=by_s) for answer in answers if isinstance(answer, Started)]
        for each in started:
            begin(each)
        self.observer.waiting([answer for answer in answers if isinstance(answer, Waiting)])
        self.observer.lost([each.leased for each, answer in zip(admitted, answers, strict=True) if answer is None])
        return started

"""THE CORE: the way of a batch of events, step by step.

Two steps, never mixed: the *budget* (global, category) is decided at once for every event and sets the policy; the
*pace* (channel, cool-down, pause) only delays what the budget admitted. An outcome is durable before it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, assert_never

from dispatcher import policy as rules
from dispatcher.content import message_for
from dispatcher.model import Admitted, Demand, Denied, Message, PostResult, Verdict
from dispatcher.outcome import Candidate, Leased, Settlement, Spoiled, Started, Waiting
from dispatcher.policy import Backoff, Policy

Request: TypeAlias = tuple[str, tuple[Demand, ...]]
"""The id that is to own the slots, and the scopes to charge."""


class Gate(Protocol):
    """The budget: one shared limiter."""

    def try_acquire_many(self, requests: Sequence[Request]) -> list[Verdict]:
        """A verdict for each request, as if they were asked one after another."""
        ...


class Outbox(Protocol):
    """The events under this worker's lease."""

    def start(self, candidates: Sequence[Candidate], free: int) -> list[Started | Waiting | None]:
        """Mark up to ``free`` of them as sending; park the others in their channel's line. None: lease lost."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Make outcomes durable in one step; False where the lease was lost and nothing was changed."""
        ...


class Sink(Protocol):
    """Where messages go."""

    def post(self, message: Message) -> PostResult:
        """Post once, within a deadline; never raises for what the other side does."""
        ...


class Observer(Protocol):
    """Told of what is durable; may fail, never breaks the way of an event."""

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """One line for each event at its end, or where it is parked."""
        ...

    def waiting(self, events: Sequence[Waiting]) -> None:
        """Admitted events that wait for their channel."""
        ...

    def lost(self, events: Sequence[Leased | Spoiled]) -> None:
        """Events another worker has taken over."""
        ...


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """One worker's collaborators, and the steps in order."""

    policy: Policy
    gate: Gate
    outbox: Outbox
    sink: Sink
    observer: Observer
    backoff: Backoff

    def dispatch(self, batch: Sequence[Leased | Spoiled], now_us: int, free: int) -> list[Started]:
        """Take a batch as far as its posts: decide, settle what ends here, mark what may be posted now.

        ``free`` is how many posts can start; more admitted ones wait in their lines for any worker. Raises
        ``GateUnavailable`` with nothing posted: what was not settled stays leased.
        """
        ended, candidates = self._triage(batch, now_us)
        verdicts = self.gate.try_acquire_many([(each.leased.slot, each.terms.scopes) for each in candidates])
        admitted = []
        for candidate, verdict in zip(candidates, verdicts, strict=True):
            match verdict:
                case Admitted():
                    admitted.append(candidate)
                case Denied():
                    ended.append(rules.denied(candidate, verdict, self.policy))
                case _:
                    assert_never(verdict)
        self.settle(ended)
        return self._start(admitted, free)

    def deliver(self, started: Started) -> Settlement:
        """Post one message and say what follows; touches no store, so any thread may do it."""
        leased, terms = started.candidate.leased, started.candidate.terms
        message = message_for(leased.event, leased.name, terms.channel)
        return rules.after_post(started, self.sink.post(message), self.backoff)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Make outcomes durable, then tell of them."""
        if not settlements:
            return
        applied = self.outbox.settle(settlements)
        self.observer.settled([each for each, done in zip(settlements, applied, strict=True) if done])
        self.observer.lost([each.subject for each, done in zip(settlements, applied, strict=True) if not done])

    def _triage(self, batch: Sequence[Leased | Spoiled], now_us: int) -> tuple[list[Settlement], list[Candidate]]:
        ended: list[Settlement] = []
        candidates: list[Candidate] = []
        for item in batch:
            if isinstance(item, Spoiled):
                ended.append(rules.spoiled(item))
                continue
            candidate = Candidate(item, self.policy.terms(item))
            refusal = rules.refused_unseen(candidate, self.policy, now_us)
            if refusal is None:
                candidates.append(candidate)
            else:
                ended.append(refusal)
        return ended, candidates

    def _start(self, admitted: Sequence[Candidate], free: int) -> list[Started]:
        if not admitted:
            return []
        answers = self.outbox.start(admitted, free)
        self.observer.waiting([answer for answer in answers if isinstance(answer, Waiting)])
        self.observer.lost([each.leased for each, answer in zip(admitted, answers, strict=True) if answer is None])
        return [answer for answer in answers if isinstance(answer, Started)]

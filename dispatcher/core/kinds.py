"""The two kinds of events, and what each does where they differ: those of producers, and the dispatcher's own messages.

Each step of the core asks the kind of an event and nothing else about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dispatcher.core import digests, transitions
from dispatcher.core.leased_event import Candidate, Leased, Started
from dispatcher.core.limits import Denied, PostResult
from dispatcher.core.mutes import Mute
from dispatcher.core.outcomes import Deferral, Settlement
from dispatcher.core.policy import Backoff, Policy
from dispatcher.core.ports import Asking, Sink
from dispatcher.core.rendering import message_for


class Kind(Protocol):
    """What becomes of an event at each step. Only ``deliver`` does I/O."""

    def on_arrival(self, leased: Leased, now_us: int) -> Candidate | Settlement:
        """The event with its terms, or what becomes of it before the gate is asked. Raises nothing."""
        ...

    def muted(self, candidate: Candidate, mute: Mute, now_us: int) -> Settlement | Deferral | None:
        """What becomes of it while its category is muted; None where it goes on."""
        ...

    def newcomer(self, candidate: Candidate) -> Deferral | None:
        """It waits behind those before it, where its category defers and it comes for the first time."""
        ...

    def asking(self, candidate: Candidate) -> Asking:
        """How it asks the gate."""
        ...

    def denied(self, candidate: Candidate, verdict: Denied) -> Settlement | Deferral:
        """What a denial means."""
        ...

    def deliver(self, started: Started) -> Settlement:
        """Post it, and say what follows."""
        ...

    def after_post(self, started: Started, result: PostResult) -> Settlement:
        """What follows from a post that came to ``result``."""
        ...

    def after_scan(self, settlement: Settlement) -> Settlement:
        """What a history scan, of which the settlement says what it means for any event, means for this kind."""
        ...


@dataclass(frozen=True, slots=True)
class ProducerEvents:
    """Events that producers sent."""

    policy: Policy
    sink: Sink
    backoff: Backoff
    grace_us: int

    def on_arrival(self, leased: Leased, now_us: int) -> Candidate | Settlement:
        """Its end, where it is too old, was tried too often, or its category is rejected."""
        return transitions.on_arrival(leased, self.policy, now_us)

    def muted(self, candidate: Candidate, mute: Mute, now_us: int) -> Settlement | Deferral | None:
        """As the category's ``on_limit`` says."""
        return transitions.muted(candidate, mute, self.policy, now_us)

    def newcomer(self, candidate: Candidate) -> Deferral | None:
        """Where ``on_limit`` is defer."""
        return transitions.newcomer(candidate, self.policy)

    def asking(self, candidate: Candidate) -> Asking:
        """A refusal may be its end."""
        return Asking(candidate, *transitions.drops(candidate, self.policy))

    def denied(self, candidate: Candidate, verdict: Denied) -> Settlement | Deferral:
        """As the category's ``on_limit`` says."""
        return transitions.denied(candidate, verdict, self.policy)

    def deliver(self, started: Started) -> Settlement:
        """Render it by its category's template, and post it."""
        leased, terms = started.candidate
        style = self.policy.rule(leased.event.category).style
        message = message_for(
            leased.event, leased.name, terms.channel, style, thread_ts=started.thread_ts, seen_us=leased.seen_us
        )
        settlement = self.after_post(started, self.sink.post(message, by_s=started.leaves_by_s))
        return settlement if (fault := message.template_fault) is None else settlement._replace(template_fault=fault)

    def after_post(self, started: Started, result: PostResult) -> Settlement:
        """Sent, a dead letter, or another attempt."""
        return transitions.after_post(started, result, self.backoff, self.grace_us)

    def after_scan(self, settlement: Settlement) -> Settlement:
        """What it means for any event."""
        return settlement


@dataclass(frozen=True, slots=True)
class DigestMessages:
    """Digests and notices: the dispatcher's own word on what a category's limits suppressed."""

    policy: Policy
    sink: Sink
    backoff: Backoff
    grace_us: int

    def on_arrival(self, leased: Leased, now_us: int) -> Candidate | Settlement:
        """Nothing ends it by its age; it may have nothing to say yet."""
        del now_us
        return digests.on_arrival(leased, self.policy, can_edit=self.sink.can_update)

    def muted(self, candidate: Candidate, mute: Mute, now_us: int) -> Settlement | None:
        """It waits."""
        return digests.muted(candidate, mute, now_us)

    def newcomer(self, candidate: Candidate) -> None:
        """It stands in no line."""
        del candidate

    def asking(self, candidate: Candidate) -> Asking:
        """Nothing is its end."""
        return Asking(candidate, drops=False)

    def denied(self, candidate: Candidate, verdict: Denied) -> Settlement:
        """It waits."""
        return digests.denied(candidate, verdict)

    def deliver(self, started: Started) -> Settlement:
        """Post the message, or edit the one that stands."""
        leased, terms = started.candidate
        words = digests.words_of(leased, terms.channel, self.policy, can_edit=self.sink.can_update)
        by_s = started.leaves_by_s
        if words.edits:
            return self.after_post(started, self.sink.update(*words.edits, words.message, by_s=by_s))
        return self.after_post(started, self.sink.post(words.message, by_s=by_s))

    def after_post(self, started: Started, result: PostResult) -> Settlement:
        """It is never a dead letter."""
        follows = digests.after_post(started, result, self.policy, self.backoff, can_edit=self.sink.can_update)
        return follows or transitions.after_post(started, result, self.backoff, self.grace_us)

    def after_scan(self, settlement: Settlement) -> Settlement:
        """What was found is told of from then on."""
        return digests.after_scan(settlement, self.policy, can_edit=self.sink.can_update)

"""The two kinds of events, and how they differ at each step: events of producers, and the dispatcher's own messages.

A step of the core asks the event's kind wherever the two differ.
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
    """What happens to an event at each step. Only ``deliver`` does I/O."""

    def on_arrival(self, leased: Leased, now_us: int) -> Candidate | Settlement:
        """The event with its terms, or what happens to it before the gate is asked. Raises nothing."""
        ...

    def muted(self, candidate: Candidate, mute: Mute, now_us: int) -> Settlement | Deferral | None:
        """What happens to the event while its category is muted; None if it goes on."""
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
        """What a history scan means for this kind; ``settlement`` is what it means for any event."""
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

    def muted(self, candidate: Candidate, mute: Mute, now_us: int) -> Settlement | Deferral | None:
        """The category's ``on_limit`` decides."""
        return transitions.muted(candidate, mute, self.policy, now_us)

    def newcomer(self, candidate: Candidate) -> Deferral | None:
        """The event waits if ``on_limit`` is ``defer``."""
        return transitions.newcomer(candidate, self.policy)

    def asking(self, candidate: Candidate) -> Asking:
        """A refusal may end the event."""
        return Asking(candidate, *transitions.drops(candidate, self.policy))

    def denied(self, candidate: Candidate, verdict: Denied) -> Settlement | Deferral:
        """The category's ``on_limit`` decides."""
        return transitions.denied(candidate, verdict, self.policy)

    def deliver(self, started: Started) -> Settlement:
        """Render the event by its category's template, and post it."""
        leased, terms = started.candidate
        style = self.policy.rule(leased.event.category).style
        message = message_for(
            leased.event,
            leased.name,
            terms.channel,
            style,
            thread_ts=started.thread_ts,
            seen_us=leased.seen_us,
            gone=leased.gone,
        )
        settlement = self.after_post(started, self.sink.post(message, by_s=started.leaves_by_s))
        return settlement if (fault := message.template_fault) is None else settlement._replace(template_fault=fault)

    def after_post(self, started: Started, result: PostResult) -> Settlement:
        """The event was sent, becomes a dead letter, gets another attempt, or goes to its fallback."""
        leased, terms = started.candidate
        fallback = self.policy.fallback(leased, terms.channel)
        return transitions.after_post(started, result, self.backoff, self.grace_us, fallback)

    def after_scan(self, settlement: Settlement) -> Settlement:
        """The same as for any event."""
        return settlement


@dataclass(frozen=True, slots=True)
class DigestMessages:
    """Digests and notices: the dispatcher's own messages about the events that a category's limits suppressed."""

    policy: Policy
    sink: Sink
    backoff: Backoff
    grace_us: int

    def on_arrival(self, leased: Leased, now_us: int) -> Candidate | Settlement:
        """Its age never ends a digest message; it may have nothing to tell yet."""
        del now_us
        return digests.on_arrival(leased, self.policy, can_edit=self.sink.can_update)

    def muted(self, candidate: Candidate, mute: Mute, now_us: int) -> Settlement | None:
        """A digest message waits."""
        return digests.muted(candidate, mute, now_us)

    def newcomer(self, candidate: Candidate) -> None:
        """A digest message never waits in a category's line."""
        del candidate

    def asking(self, candidate: Candidate) -> Asking:
        """No refusal ends a digest message."""
        return Asking(candidate, drops=False)

    def denied(self, candidate: Candidate, verdict: Denied) -> Settlement:
        """A digest message waits."""
        return digests.denied(candidate, verdict)

    def deliver(self, started: Started) -> Settlement:
        """Post the message, or edit the one that was posted before."""
        leased, terms = started.candidate
        words = digests.words_of(leased, terms.channel, self.policy, can_edit=self.sink.can_update)
        by_s = started.leaves_by_s
        if words.edits:
            return self.after_post(started, self.sink.update(*words.edits, words.message, by_s=by_s))
        return self.after_post(started, self.sink.post(words.message, by_s=by_s))

    def after_post(self, started: Started, result: PostResult) -> Settlement:
        """A digest message never becomes a dead letter."""
        leased, terms = started.candidate
        fallback = self.policy.fallback(leased, terms.channel)
        follows = digests.after_post(
            started, result, self.policy, self.backoff, can_edit=self.sink.can_update, has_fallback=fallback is not None
        )
        return follows or transitions.after_post(started, result, self.backoff, self.grace_us, fallback)

    def after_scan(self, settlement: Settlement) -> Settlement:
        """A message that was found was posted or edited; one that ends as a dead letter failed, and is tried again."""
        return digests.after_scan(settlement, self.policy, can_edit=self.sink.can_update)

"""Reports of silences: one line at the end of a silence, about what it has suppressed. Only ``deliver`` does I/O.

A report is a message of the dispatcher's own. It asks for room in the global limits alone, and keeps its channel's
pace. If the channel is gone, it goes to the fallback of ``defaults``. It is never a dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dispatcher.core import digests, transitions
from dispatcher.core.limits import Denied
from dispatcher.core.policy import Backoff, Policy
from dispatcher.core.ports import Asking, Sink
from dispatcher.core.posts import Message, PostResult, Receipt, Rejected, Retryable
from dispatcher.core.rendering import cut, escape, under_gone_line, without_controls
from dispatcher.core.silences import GIVE_UP_US, EndedSilence, Silences
from dispatcher.core.states import Candidate, DeadLettered, Leased, Reported, Sent, Settlement, Slots, Started
from dispatcher.core.units import US

AGAIN_US: Final = 3_600 * US
"""After so long a report is tried again that could not be posted."""


def report_text(report: EndedSilence) -> str:
    """``Silence by anna ended: 14 suppressed, 4 of them deferred, 2 still firing (host=db1)``, in Slack's markup."""
    least = "at least " if report.is_least else ""
    firing = "" if report.firing is None else f", {least}{report.firing} still firing"
    deferred = f", {report.deferred} of them deferred" if report.deferred else ""
    said = escape(without_controls(f"({report.matchers})"))
    return cut(f"Silence by {escape(report.who)} ended: {report.suppressed} suppressed{deferred}{firing} {said}")


@dataclass(frozen=True, slots=True)
class SilenceReports:
    """The reports of silences, as the steps know them."""

    policy: Policy
    sink: Sink
    backoff: Backoff
    grace_us: int

    def on_arrival(self, leased: Leased, now_us: int) -> Candidate | Settlement:
        """The report asks for room; one that has nothing to tell ends."""
        del now_us
        report, terms = _of(leased), self.policy.report_terms(leased)
        if report.suppressed:
            return Candidate(leased, terms)
        return Settlement(leased, terms, Reported(), leased.slots_if_unadmitted)

    def silenced(self, candidate: Candidate, silences: Silences, now_us: int) -> None:
        """No silence keeps it off."""
        del candidate, silences, now_us

    def quiet(self, candidate: Candidate, now_us: int) -> None:
        """No quiet hours keep it off."""
        del candidate, now_us

    def newcomer(self, candidate: Candidate) -> None:
        """It never waits in a category's line."""
        del candidate

    def asking(self, candidate: Candidate) -> Asking:
        """No refusal ends it."""
        return Asking(candidate, drops=False)

    def denied(self, candidate: Candidate, verdict: Denied) -> Settlement:
        """It waits until there is room."""
        return digests.denied(candidate, verdict)

    def deliver(self, started: Started) -> Settlement:
        """Post it."""
        leased, terms = started.candidate
        text = under_gone_line(report_text(_of(leased)), leased.gone)
        message = Message(leased.name, terms.channel, text)
        return self.after_post(started, self.sink.post(message, by_s=started.leaves_by_s))

    def after_post(self, started: Started, result: PostResult) -> Settlement:
        """It was posted, tries again or goes to the fallback; if Slack takes none, after a day nobody is told."""
        leased, terms = started.candidate
        fallback = self.policy.fallback(leased, terms.channel)
        match result:
            case Receipt():
                told = Reported(result)
                return Settlement(
                    leased, terms, told, Slots.KEEP, replied=True, arrived=True, resume=True, reached=True
                )
            case Rejected(code) if code in transitions.GONE and fallback is not None:
                return transitions.after_post(started, result, self.backoff, self.grace_us, fallback)
            case Rejected(code, detail):
                told = _failed(_of(leased), code, detail)
                return Settlement(leased, terms, told, Slots.RELEASE, replied=True, arrived=True, reached=True)
            case Retryable(code, detail, True, reached) if started.attempt >= transitions.MAX_ATTEMPTS:
                told = _failed(_of(leased), code, detail)
                return Settlement(leased, terms, told, Slots.RELEASE, reached=reached)
            case _:
                return transitions.after_post(started, result, self.backoff, self.grace_us)

    def after_scan(self, settlement: Settlement) -> Settlement:
        """One that was found was posted; of one that cannot be found nobody knows more."""
        match settlement.outcome:
            case Sent(receipt):
                return settlement._replace(outcome=Reported(receipt))
            case DeadLettered(_, detail, code):
                return settlement._replace(outcome=Reported(code=code or "ambiguous", detail=detail))
            case _:
                return settlement


def _of(leased: Leased) -> EndedSilence:
    if leased.report is None:
        raise TypeError(f"{leased.id} is no report of a silence")
    return leased.report


def _failed(report: EndedSilence, code: str, detail: str) -> Reported:
    return Reported(wait_us=AGAIN_US if report.age_us < GIVE_UP_US else None, code=code, detail=detail)

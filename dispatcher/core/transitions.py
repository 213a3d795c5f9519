"""What follows for an event from its arrival, a refusal of the budget, or a post. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, assert_never

from dispatcher.core.limits import HOLDING_US, Denied, Kind, Reason, all_scopes, is_once, is_repeat, refused_by
from dispatcher.core.policy import EDITS, Backoff, OnLimit, Policy, is_quiet_line, limit_reason, quiet_line
from dispatcher.core.posts import Ambiguous, Paused, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.quiet import QuietThen
from dispatcher.core.silences import Silence
from dispatcher.core.states import (
    Candidate,
    DeadLettered,
    Deferral,
    Dropped,
    Fallback,
    Hushed,
    Leased,
    Parked,
    Place,
    Repeat,
    Sent,
    Settlement,
    Slots,
    Started,
    Terms,
    Undecodable,
    Until,
)
from dispatcher.core.tally import Counting, Telling
from dispatcher.core.units import format_duration

MAX_DEATHS: Final = 3
"""Workers that may die holding an event: after two it is taken alone, after three it is a dead letter ``exhausted``."""

GONE: Final = frozenset({"channel_not_found", "is_archived"})
"""Slack's answers where a channel is gone or archived: the event goes to its category's fallback."""

NO_REPLIES: Final = frozenset(
    {
        "cannot_reply_to_message",
        "external_channel_thread_locked",
        "restricted_action_non_threadable_channel",
        "restricted_action_thread_locked",
        "thread_not_found",
    }
)
"""Slack's answers where a message takes no replies: an event that only names a thread begins it anew."""

UNKNOWN_CATEGORY: Final = "unknown_category"
"""The code of a dead letter whose category the limits do not accept."""

MAX_ATTEMPTS: Final = 8
"""Posts tried for one event before it becomes a dead letter ``exhausted`` (or ``ambiguous``)."""


def on_arrival(leased: Leased, policy: Policy, now_us: int) -> Candidate | Settlement:
    """The event with its terms, or its end before the gate is asked."""
    candidate = Candidate(leased, policy.terms(leased))
    return refused_unseen(candidate, policy, now_us) or _scheduled(candidate, now_us) or candidate


def unhandled(leased: Leased, error: Exception) -> Settlement:
    """The end of an event that shows a defect of ours, which must not stop the events beside it.

    The dead letter keeps the payload.
    """
    detail = f"cannot be handled: {type(error).__name__}: {str(error)[:200]}"
    return undecodable(Undecodable(leased.id, Reason.INVALID, detail, leased.replays, leased.event.category))


def undecodable(subject: Undecodable) -> Settlement:
    """A job that cannot be read becomes a dead letter at once."""
    return Settlement(subject, None, DeadLettered(subject.reason, subject.detail))


def refused_unseen(candidate: Candidate, policy: Policy, now_us: int) -> Settlement | None:
    """The end of an event before the gate: it waited too long, was tried too often, is rejected. None: it goes on."""
    leased, terms = candidate.leased, candidate.terms
    posted = not leased.held and (leased.unknown or leased.attempt)  # perhaps posted: then its slot stays charged
    slots = Slots.KEEP if posted else Slots.RELEASE
    if now_us >= terms.deadline_us:
        detail = f"waited longer than its max_age, {_waited_for(leased, terms)}"
        letter = DeadLettered(Reason.EXPIRED, detail, since_us=leased.begins_us)
        if leased.unknown:
            detail = f"perhaps posted, and {detail}"
            letter = DeadLettered(Reason.AMBIGUOUS, detail, leased.code, since_us=leased.begins_us)
        return Settlement(leased, terms, letter, slots, attempt=leased.attempt, unknown=leased.unknown)
    if leased.deaths >= MAX_DEATHS:
        detail = f"{leased.deaths} workers died while they held it"
        return Settlement(leased, terms, DeadLettered(Reason.EXHAUSTED, detail), slots, attempt=leased.attempt)
    if leased.attempt >= MAX_ATTEMPTS:
        return Settlement(leased, terms, _tried_out(leased), slots, attempt=leased.attempt, unknown=leased.unknown)
    if policy.reject_unknown and not terms.configured and not leased.was_admitted:
        detail = f"category {leased.event.category} is not in the limits file, and unknown_categories is reject"
        return Settlement(leased, terms, DeadLettered(Reason.REJECTED, detail, UNKNOWN_CATEGORY), slots)
    return None


def _scheduled(candidate: Candidate, now_us: int) -> Settlement | None:
    """An event that is to be posted later waits before it asks for room. None: its time has come.

    If it has asked for room before, the clock was stepped back since. That alone makes no event wait.
    """
    leased, terms = candidate.leased, candidate.terms
    if leased.begins_us <= max(now_us, leased.seen_us) or leased.was_admitted:
        return None
    slots = Slots.RELEASE if leased.takes > 1 else Slots.KEEP
    return Settlement(leased, terms, Parked(Place.SCHEDULED, Reason.SCHEDULED, leased.begins_us - now_us), slots)


def _waited_for(leased: Leased, terms: Terms) -> str:  # noqa: PLR0911 - one return for each place
    """What the event waited for last, in words."""
    if leased.line is not None:
        awaited = "the end of a silence" if leased.has_left_silence else "room in a limit"
        if is_quiet_line(leased.line):
            awaited = "the end of quiet hours, or room in a limit after it"
        return f"for {awaited} (in the line {leased.line})"
    reason, code = leased.why or (None, None)
    awaited = "to edit the message" if EDITS in {terms.channel, leased.channel} else f"for its channel {terms.channel}"
    match reason:
        case None:
            return "on the queue" if not leased.held else awaited
        case Reason.PACE | Reason.COOLDOWN:
            return f"{awaited} ({reason})"
        case Reason.RESOLVED:
            return "for a post about the failure, or to edit its message"
        case Reason.PAUSED:
            return f"for the end of a pause ({code})" if code else "for the end of a pause"
        case Reason.RETRY | Reason.RECONCILE:
            return f"for another attempt after {code or 'a lost worker'}"
        case _:
            return "since its not_before" if reason == Reason.SCHEDULED else f"for room ({reason})"


def _tried_out(leased: Leased) -> DeadLettered:
    """The end of an event that has used up its attempts: ``rejected`` if Slack refused it and took others."""
    waited_for = leased.why[0] if leased.why is not None else None
    reason = Reason.REJECTED if waited_for == Reason.PAUSED and leased.code else Reason.EXHAUSTED
    perhaps = f"; {leased.unknown} of these posts may have arrived" if leased.unknown else ""
    return DeadLettered(reason, f"used its {MAX_ATTEMPTS} attempts, posted {leased.posts} times{perhaps}", leased.code)


def newcomer(candidate: Candidate, policy: Policy) -> Deferral | None:
    """The event as one that waits behind earlier ones, if its category defers and the event is new; else None."""
    leased = candidate.leased
    rule = policy.rule(leased.event.category)
    stands = leased.line is not None and not leased.has_left_silence
    if rule.on_limit is not OnLimit.DEFER or stands or leased.was_admitted:
        return None
    counting = policy.counting(leased.event.category)
    return Deferral(candidate, policy.line(leased.event), rule.max_parked, counting=counting)


def overflow(deferral: Deferral) -> Settlement:
    """The end of an event that finds ``max_parked`` events waiting."""
    leased, terms = deferral.candidate.leased, deferral.candidate.terms
    detail = f"{deferral.most} of category {leased.event.category} wait already (max_parked)"
    slots = leased.slots_if_unadmitted
    letter = DeadLettered(Reason.OVERFLOW, detail, denied=deferral.denied, counting=deferral.counting)
    return Settlement(leased, terms, letter, slots, silenced=deferral.silenced)


def silenced(
    candidate: Candidate, silences: Sequence[Silence], policy: Policy, now_us: int
) -> Settlement | Deferral | None:
    """What happens to an event that silences match, which takes no slot; None if it was admitted before.

    The first of them suppresses it, the one that ends last. As with a denial, the category's ``on_limit`` decides. A
    deferred event waits until the silence ends. With ``digest`` it is dropped: nobody is to be told of it. A dead
    letter that was replayed is one again.
    """
    leased, terms = candidate.leased, candidate.terms
    if leased.was_admitted:
        return None
    slots = leased.slots_if_unadmitted
    last, matched = silences[0], tuple(each.id for each in silences)
    category = leased.event.category
    rule = policy.rule(category)
    on_limit = OnLimit.DEAD_LETTER if leased.replays else rule.on_limit
    match on_limit:
        case OnLimit.DROP | OnLimit.DIGEST:
            dropped = Dropped(None, Reason.SILENCED, last.detail, last.end_after(now_us), since_us=last.from_us)
            return Settlement(leased, terms, dropped, slots, silenced=matched)
        case OnLimit.DEFER:
            until = Until(last.scope, max(0, last.until_us - now_us))
            return Deferral(candidate, last.line(category), rule.max_parked, until=until, silenced=matched)
        case OnLimit.DEAD_LETTER:
            letter = DeadLettered(Reason.SILENCED, last.detail, until_us=last.end_after(now_us), since_us=last.from_us)
            return Settlement(leased, terms, letter, slots, silenced=matched)
        case _:
            assert_never(on_limit)


def quiet(candidate: Candidate, policy: Policy, now_us: int) -> Settlement | Deferral | None:
    """What happens to an event in quiet hours, which takes no slot; None if none hold, or it was admitted before.

    A deferred event waits until their end, in a line of its own. So does one that has waited in such a line before,
    whatever is done with others: no hours drop what earlier ones have held. A replayed one is a dead letter again, or
    waits too.
    """
    leased, terms = candidate
    event = leased.event
    hush = None if leased.was_admitted else policy.hours.hush(event.category, now_us, (event.priority, event.labels))
    if hush is None:
        return None
    slots = leased.slots_if_unadmitted
    if hush.then is QuietThen.DEFER or is_quiet_line(leased.line):
        stands = None if leased.has_left_silence else leased.line
        line = quiet_line(stands or policy.line(event))
        most = policy.rule(event.category).max_parked
        return Deferral(candidate, line, most, until=Until(hush.scope, hush.until_us - now_us))
    if leased.replays:
        letter = DeadLettered(Reason.QUIET, hush.name, until_us=hush.until_us, since_us=hush.since_us)
        return Settlement(leased, terms, letter, slots)
    counting = policy.counting_as(event.category, Telling.QUIET) if hush.then is QuietThen.DIGEST else None
    return Settlement(leased, terms, Hushed(hush, counting), slots)


def drops(candidate: Candidate, policy: Policy) -> tuple[bool, Counting | None]:
    """Whether the gate ends the event with a refusal, since it was never admitted; and the tally that counts it."""
    leased = candidate.leased
    if leased.replays or is_quiet_line(leased.line):
        return False, None
    match policy.rule(leased.event.category).on_limit:
        case OnLimit.DROP | OnLimit.DIGEST if not leased.was_admitted:
            return True, policy.counting(leased.event.category)
        case _:
            return False, None


def taken_again(leased: Leased) -> Leased:
    """The event as one that may own slots: the gate was asked for it before."""
    return leased._replace(takes=leased.takes + 1)


def admitted_before(candidate: Candidate) -> Leased:
    """The event for other limits than those that have admitted it: these may let it wait, and do not drop it.

    One that asked for no slot of a limit, as an edit or where there was no limit, is decided as before: a slot for what
    it is about says nothing of this.
    """
    leased = taken_again(candidate.leased)
    has_slots = any(not is_once(scope) for scope in all_scopes(candidate.terms.scopes))
    return leased._replace(held=True) if has_slots else leased


def may_stand_by(candidate: Candidate) -> bool:
    """Whether an admitted event may wait for a sender without being parked.

    Not for a paced channel: the next post there may be another worker's. Not in a thread: the message that begins it is
    known when it was settled, and the next posts start before that. When the post starts, the slots of the event
    must still be in their windows, since they move to that instant. So not with a short window, or one that ends by the
    clock.
    """
    leased, terms = candidate
    return (
        terms.pace is None
        and leased.event.thread is None
        and all(
            limit.window_us >= HOLDING_US and limit.kind is not Kind.FIXED
            for scope in all_scopes(terms.scopes)
            for limit in scope.limits
        )
    )


def at_pace(settlement: Settlement, policy: Policy) -> Settlement:
    """The settlement with its channel's current pace: the post may have been started under older limits."""
    terms, outcome = settlement.terms, settlement.outcome
    if isinstance(outcome, Parked) and (onto := outcome.fallback) is not None:
        outcome = replace(outcome, fallback=replace(onto, pace=policy.pace(onto.channel)))
        settlement = settlement._replace(outcome=outcome)
    if terms is None or (pace := policy.pace(terms.channel)) == terms.pace:
        return settlement
    return settlement._replace(terms=replace(terms, pace=pace))


def denied(candidate: Candidate, verdict: Denied, policy: Policy) -> Settlement | Deferral:
    """What happens to a denied event: if it was admitted before, it only waits; else ``on_limit`` decides.

    A replayed event is never dropped or digested: it becomes a dead letter again or, where its category defers, waits.
    One that has waited for the end of quiet hours goes on waiting, whatever ``on_limit`` says: else the end of a night
    would drop what it has held.
    """
    leased, terms = candidate.leased, candidate.terms
    reason = limit_reason(verdict.scope)
    if leased.was_admitted:
        return Settlement(
            leased,
            terms,
            # A held slot of another event may block it until that deadline; once that is posted, for one window.
            Parked(Place.TIMER, reason, min(verdict.retry_after_us, verdict.limit.window_us), denied=verdict),
            Slots.HOLD,
            attempt=leased.attempt,
            unknown=leased.unknown,
            resent=leased.resent,
        )
    slots = leased.slots_if_unadmitted
    if is_repeat(verdict):
        return _repeated(candidate, verdict, slots)
    rule = policy.rule(leased.event.category)
    counting = policy.counting(leased.event.category)
    gives_notice = counting is not None and counting.telling is Telling.NOTICE
    known = verdict if counting is None else counting.known(verdict)
    if leased.line is not None and is_quiet_line(leased.line):
        told = counting if gives_notice else None
        return Deferral(candidate, leased.line, rule.max_parked, verdict, counting=told)
    on_limit = OnLimit.DEAD_LETTER if leased.replays and rule.on_limit is OnLimit.DROP else rule.on_limit
    match on_limit:
        case OnLimit.DROP:
            return Settlement(leased, terms, Dropped(known, reason, counting=counting), slots)
        case OnLimit.DEFER:
            return Deferral(candidate, policy.line(leased.event), rule.max_parked, verdict, counting=counting)
        case OnLimit.DEAD_LETTER | OnLimit.DIGEST:  # with digest, only a replayed event comes here
            kept = "" if refused_by(known) is None else ", less what is kept for its notice or digest"
            detail = f"{known.scope} had used its {known.limit}{kept}"
            letter = DeadLettered(reason, detail, denied=known, counting=counting if gives_notice else None)
            return Settlement(leased, terms, letter, slots)
        case _:
            assert_never(on_limit)


def repeated(deferral: Deferral, repeat: Repeat) -> Settlement:
    """The end of an event that was to stand in line, as a repeat."""
    (once, *_) = all_scopes(deferral.candidate.terms.scopes)
    denied = Denied(once.name, once.limits[0], repeat.wait_us)
    return _repeated(deferral.candidate, denied, Slots.KEEP, repeat)


def _repeated(candidate: Candidate, verdict: Denied, slots: Slots, repeat: Repeat | None = None) -> Settlement:
    """The end of an event about the same thing as an earlier one, whatever ``on_limit`` says."""
    leased, terms = candidate.leased, candidate.terms
    if leased.replays:
        first = "another event about the same thing" if repeat is None else repeat.of
        detail = f"a repeat of {first}; one is posted in any {format_duration(verdict.limit.window_us)}"
        return Settlement(leased, terms, DeadLettered(Reason.REPEAT, detail, denied=verdict), slots)
    of, since_us = (None, None) if repeat is None else (repeat.of, repeat.since_us)
    return Settlement(leased, terms, Dropped(verdict, Reason.REPEAT, of, since_us=since_us), slots)


def over(candidate: Candidate, since_us: int | None) -> Settlement:
    """The end of an event about a failure that was over before; a dead letter that was replayed is one again."""
    leased, terms = candidate.leased, candidate.terms
    slots = leased.slots_if_unadmitted
    if leased.replays:
        letter = DeadLettered(Reason.RESOLVED, "what it is about was over before", since_us=since_us)
        return Settlement(leased, terms, letter, slots)
    return Settlement(leased, terms, Dropped(None, Reason.RESOLVED, since_us=since_us), slots)


def repeats(candidate: Candidate) -> bool:
    """Whether the gate ends the event with its refusal as a repeat: it was never admitted, and no dead letter."""
    leased = candidate.leased
    return not (leased.was_admitted or leased.replays)


def after_post(  # noqa: PLR0911 - one return for each result of a post
    started: Started,
    result: PostResult,
    backoff: Backoff,
    grace_us: int,
    fallback: Fallback | None = None,
) -> Settlement:
    """What happens to an event after a post.

    The event keeps its slots if it is or may be posted. It holds them while it waits for another attempt. It gives them
    back when it will never be posted. An attempt is used up only by a cause that another attempt can meet again. An
    event that may have been posted is reconciled ``grace_us`` microseconds after its post was marked. Where the channel
    is gone, the event waits for its ``fallback``, with all of its attempts. Where the first message of its thread takes
    no replies, the event is to begin the thread anew; it uses an attempt, since others may do so before it.
    """
    leased, terms = started.candidate.leased, started.candidate.terms
    tried, spared = started.attempt, started.attempt - 1

    def settlement(outcome: Sent | DeadLettered | Parked, slots: Slots, **effects: object) -> Settlement:
        facts: dict[str, object] = {"attempt": tried, "unknown": leased.unknown, "resent": leased.resent, **effects}
        return Settlement(leased, terms, outcome, slots, **facts)  # type: ignore[arg-type]  # fields by name

    match result:
        case Receipt():
            return settlement(Sent(result), Slots.KEEP, replied=True, arrived=True, resume=True, reached=True)
        case RateLimitedBySlack(retry_after_us, code, detail):
            waits = Parked(Place.LINE, Reason.COOLDOWN, retry_after_us, code, detail=detail)
            return settlement(waits, Slots.HOLD, attempt=spared, cooldown_us=retry_after_us, reached=True)
        case Retryable(code, detail, uses_attempt, reached):
            if uses_attempt and tried >= MAX_ATTEMPTS:
                return settlement(DeadLettered(Reason.EXHAUSTED, detail, code), Slots.RELEASE, reached=reached)
            waits = Parked(Place.TIMER, Reason.RETRY, backoff(tried), code, detail=detail)
            return settlement(waits, Slots.HOLD, attempt=tried if uses_attempt else spared, reached=reached)
        case Rejected() if (elsewhere := _elsewhere(started, result, fallback)) is not None:
            used = tried if elsewhere.fallback is None else 0
            return settlement(elsewhere, Slots.HOLD, attempt=used, replied=True, arrived=True, reached=True)
        case Rejected(code, detail):
            letter = DeadLettered(Reason.REJECTED, f"{detail}{_as_fallback(leased)}", code)
            return settlement(letter, Slots.RELEASE, replied=True, arrived=True, reached=True)
        case Ambiguous(code, detail):
            waits = Parked(Place.SCAN, Reason.RECONCILE, grace_us, code, detail=detail)
            return settlement(waits, Slots.KEEP, failed_scans=0, arrived=True, reached=False)
        case Paused(code, detail):
            # The store knows whether only this channel is concerned: only then an attempt is used.
            waits = Parked(Place.TIMER, Reason.PAUSED, backoff(tried), code, detail=detail)
            return settlement(waits, Slots.HOLD, pause=result)
        case _:
            assert_never(result)


def _elsewhere(started: Started, refused: Rejected, fallback: Fallback | None) -> Parked | None:
    """How an event waits that can be posted at another place than the one that was refused; None if there is none."""
    if refused.code in GONE and fallback is not None:
        return Parked(Place.LINE, Reason.RETRY, 0, refused.code, detail=refused.detail, fallback=fallback)
    if refused.code in NO_REPLIES and started.thread_ts is not None:
        return Parked(Place.LINE, Reason.RETRY, 0, refused.code, detail=refused.detail, begins_thread=True)
    return None


def _as_fallback(leased: Leased) -> str:
    """That the channel of an event stood in for another one, for the words of its end."""
    return "" if leased.gone is None else f"; this was the fallback of {leased.gone.channel} ({leased.gone.code})"

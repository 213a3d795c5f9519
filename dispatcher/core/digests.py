"""Digest messages and notices: what they do and what they say. No clock; only ``DigestMessages.deliver`` does I/O.

Such a message goes the way of any event and does something else there: it looks at its tally, posts or edits, waits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple, assert_never

from dispatcher.core import transitions
from dispatcher.core.explain import scope_words
from dispatcher.core.limits import Demand, Denied, Reason
from dispatcher.core.policy import EDITS, EDITS_PACE, Backoff, Policy, limit_reason
from dispatcher.core.ports import Asking, Sink
from dispatcher.core.posts import Ambiguous, Message, Paused, PostResult, Receipt, Rejected, Retryable
from dispatcher.core.quiet import QUIET_PREFIX
from dispatcher.core.rendering import MAX_TEXT, cut, escape, under_gone_line, without_controls
from dispatcher.core.silences import Silences
from dispatcher.core.states import (
    Candidate,
    DeadLettered,
    Leased,
    Parked,
    Place,
    Sent,
    Settlement,
    Slots,
    Started,
    Step,
    Told,
)
from dispatcher.core.tally import ASK_ANEW_US, Counting, Tally, Telling, repeats_of
from dispatcher.core.units import US

_BEING: Final = {
    "dropped": "are being dropped",
    "dead": "are being kept as dead letters",
    "deferred": "are being delayed",
}
_DONE: Final = {"dropped": "dropped", "dead": "kept as dead letters", "deferred": "delayed"}
_ELSE: Final = "suppressed"

_NAMES_DATES_US: Final = 12 * 3_600 * US
"""A message about what began so long ago names the date of each time."""


class Act(StrEnum):
    """What a digest message does next."""

    WAIT = "wait"
    POST = "post"
    EDIT = "edit"
    END = "end"


class Plan(NamedTuple):
    """The next act; ``wait_us`` until a look after it, ``ends`` says that it is the last word on this tally."""

    act: Act
    wait_us: int = 0
    ends: bool = False


def plan_of(tally: Tally, counting: Counting, *, can_edit: bool) -> Plan:
    """What the tally's digest message does now; where the tally is gone, nothing any more."""
    if not tally.count:
        return Plan(Act.END, ends=True)
    if tally.telling is Telling.QUIET:
        return Plan(Act.POST, ends=True)
    if tally.telling is Telling.REPEAT:
        return _repeats(tally, can_edit=can_edit)
    if tally.telling is Telling.NOTICE:
        return _notice(tally, counting)
    return _digest(tally, counting, can_edit=can_edit)


def _digest(tally: Tally, counting: Counting, *, can_edit: bool) -> Plan:
    if tally.shown is None:
        if can_edit:
            return Plan(Act.POST)
        calm_us = min(tally.last_us + counting.delay_us, tally.first_us + counting.window_us) - tally.now_us
        return Plan(Act.WAIT, calm_us) if calm_us > 0 else Plan(Act.POST, ends=True)
    if not can_edit:
        return Plan(Act.END, ends=True)
    left_us = tally.next_us - tally.now_us
    if tally.count > tally.shown or left_us <= 0:
        return Plan(Act.EDIT, ends=left_us <= 0)
    return Plan(Act.WAIT, left_us)


def _repeats(tally: Tally, *, can_edit: bool) -> Plan:
    """The message is edited when there are more, and a last time when its window has passed."""
    if tally.ts is None:  # it is not posted yet; if it is, its tally is told at once
        return Plan(Act.WAIT, ASK_ANEW_US)
    left_us = tally.next_us - tally.now_us
    if can_edit and tally.count > (tally.shown or 0):
        return Plan(Act.EDIT, ends=left_us <= 0)
    return Plan(Act.WAIT, left_us) if left_us > 0 else Plan(Act.END, ends=True)


def _is_left(tally: Tally, policy: Policy) -> bool:
    """Whether the event whose repeats it counts has ended without a message: what is stored of it could not be read."""
    age_us = tally.now_us - tally.last_us
    return tally.telling is Telling.REPEAT and tally.ts is None and age_us > policy.rule(tally.category).max_age_us


def _notice(tally: Tally, counting: Counting) -> Plan:
    calm_us = tally.last_us + counting.delay_us - tally.now_us
    if calm_us <= 0:
        return Plan(Act.POST, ends=True)
    if tally.shown is None:
        return Plan(Act.POST, calm_us)
    return Plan(Act.WAIT, calm_us)


def denied(candidate: Candidate, verdict: Denied) -> Settlement:
    """Whatever refuses it, a digest message waits until there is room."""
    leased, terms = candidate
    wait_us = min(verdict.retry_after_us, verdict.limit.window_us)
    slots = Slots.HOLD if leased.was_admitted else leased.slots_if_unadmitted
    parked = Parked(Place.TIMER, limit_reason(verdict.scope), wait_us, denied=verdict)
    return Settlement(leased, terms, parked, slots, attempt=leased.attempt, unknown=leased.unknown)


def _failed(tally: Tally, counting: Counting, plan: Plan, code: str, detail: str) -> Told:
    """An edit that Slack refuses leaves its message as it is. Another message tells of what came later.

    Repeats have no other message: where the last edit is refused, nothing tells of the newest ones.
    """
    is_edit = plan.act is Act.EDIT
    shown = _last_shown(tally, plan) if is_edit else None
    return Told(
        Step.FAILED, counting, counting.window_us, shown, ends=is_edit, code=code, detail=detail, ts=_ts_of(tally)
    )


def _last_shown(tally: Tally, plan: Plan) -> int:
    """How many events the message tells of. At the end of repeats it counts for all: no other message tells of them."""
    is_over = plan.ends and tally.telling is Telling.REPEAT
    return tally.count if is_over else tally.shown or 0


def _ts_of(tally: Tally) -> str | None:
    """Of which message this tells, where repeats are counted in it."""
    return tally.ts if tally.telling is Telling.REPEAT else None


def _facts(leased: Leased, policy: Policy) -> tuple[Tally, Counting]:
    tally = leased.tally
    if tally is None:
        raise TypeError(f"{leased.id} is no digest message")
    if tally.telling is Telling.REPEAT:
        return tally, repeats_of(tally.id, tally.category, tally.next_us - tally.first_us, tally.scope)
    counting = policy.counting(tally.category)
    if counting is None or counting.id != tally.id:  # the limits file says otherwise now: what was suppressed is told
        counting = policy.counting_as(tally.category, tally.telling)
    return tally, counting


def _demands(tally: Tally, plan: Plan, policy: Policy) -> tuple[Demand, ...]:
    """The first message takes the slot that is kept for it; the end of a notice asks like any event."""
    if plan.act is Act.EDIT:
        return ()
    return policy.scopes(tally.category, tells=tally.shown is None and tally.telling is not Telling.QUIET)


def tally_text(tally: Tally, *, ends: bool) -> str:
    """The message about a tally, in Slack's markup; it shows the tally's count."""
    match tally.telling:
        case Telling.DIGEST:
            return cut(_digest_text(tally, ends=ends))
        case Telling.NOTICE:
            return cut(_notice_text(tally, ends=ends))
        case Telling.QUIET:
            return cut(_quiet_text(tally))
        case Telling.REPEAT:
            counted = f"\n_x{tally.count + 1}, last {_first_and_last(tally)[1]}_"
            return cut(tally.text, MAX_TEXT - len(counted)) + counted
        case _:
            assert_never(tally.telling)


def _digest_text(tally: Tally, *, ends: bool) -> str:
    name, (first, last) = f"*{escape(tally.category)}*", _first_and_last(tally)
    if ends:
        span = f"from {first} to {last}"
        heading = f"{tally.count} more {name} suppressed {span} ({_limit(tally)}), closed"
    else:
        heading = f"{tally.count} more {name} suppressed since {first}, the last at {last} ({_limit(tally)})"
    return "\n".join([heading, *(f"• {escape(without_controls(sample))}" for sample in tally.samples)])


def _quiet_text(tally: Tally) -> str:
    hours = f"in quiet hours ({escape(tally.scope.removeprefix(QUIET_PREFIX))})"
    span = "from {} to {}".format(*_first_and_last(tally))
    over = f", {tally.resolved} resolved meanwhile" if tally.resolved else ""
    heading = f"{tally.count} *{escape(tally.category)}* {hours} {span}{over}"
    return "\n".join([heading, *(f"• {escape(without_controls(sample))}" for sample in tally.samples)])


def _notice_text(tally: Tally, *, ends: bool) -> str:
    name, (first, last) = f"*{escape(tally.category)}*", _first_and_last(tally)
    if not ends:
        being = _BEING.get(tally.outcome, "are being suppressed")
        return f"{name}: over {_amount(tally)}, events {being} from {first} on"
    done = "kept as a dead letter" if (tally.outcome, tally.count) == ("dead", 1) else _DONE.get(tally.outcome, _ELSE)
    return f"{name}: over {_amount(tally)} from {first}, ended {last}: {tally.count} {done}"


def _limit(tally: Tally) -> str:
    return f"limit {_amount(tally)}" if tally.limit else _amount(tally)


def _amount(tally: Tally) -> str:
    """The limit, and whose it is where that is not the category's."""
    if not tally.limit:
        return "several limits"
    if tally.scope == f"category:{tally.category}":
        return escape(tally.limit)
    of = scope_words(tally.scope).removesuffix(f" of category {tally.category}")
    return f"{escape(tally.limit)} for {escape(without_controls(of))}"


def _first_and_last(tally: Tally) -> tuple[str, str]:
    """When the first and the last event came that it counts; of a message that stands for long with the dates."""
    has_date = tally.now_us - tally.first_us >= _NAMES_DATES_US
    return slack_time_of(tally.first_us, has_date=has_date), slack_time_of(tally.last_us, has_date=has_date)


def slack_time_of(instant_us: int, *, has_date: bool = False) -> str:
    """A time of day that Slack shows in each reader's own zone; elsewhere it is UTC."""
    moment = datetime.fromtimestamp(instant_us // US, UTC)
    shown, plain = (
        ("{date_short_pretty} {time}", f"{moment:%Y-%m-%d %H:%M}") if has_date else ("{time}", f"{moment:%H:%M}")
    )
    return f"<!date^{instant_us // US}^{shown}|{plain} UTC>"


@dataclass(frozen=True, slots=True)
class DigestMessages:
    """Digests and notices: the dispatcher's own messages about the events that a category's limits suppressed."""

    policy: Policy
    sink: Sink
    backoff: Backoff
    grace_us: int

    def on_arrival(self, leased: Leased, now_us: int) -> Candidate | Settlement:
        """One that asks for its slots (an edit needs none), or what it waits for. Its age never ends it."""
        del now_us
        tally, counting, plan = self._read(leased)
        if _is_left(tally, self.policy):
            told = Told(Step.WAITED, counting, 0, tally.count, ends=True)
            return Settlement(leased, self.policy.terms(leased), told, Slots.KEEP)
        if plan.act in {Act.POST, Act.EDIT}:
            terms = self.policy.digest_terms(leased, _demands(tally, plan, self.policy))
            if plan.act is Act.EDIT:
                terms = replace(terms, channel=EDITS, pace=EDITS_PACE)
            return Candidate(leased, terms)
        can_edit = plan.act is Act.WAIT and tally.is_editing and self.sink.can_update
        shown = _last_shown(tally, plan) if plan.ends or can_edit else tally.shown
        told = Told(Step.WAITED, counting, plan.wait_us, shown, can_edit=can_edit, ends=plan.ends, ts=_ts_of(tally))
        slots = Slots.RELEASE if leased.held else Slots.KEEP  # it was admitted to say what need not be said now
        return Settlement(leased, self.policy.terms(leased), told, slots)

    def silenced(self, candidate: Candidate, silences: Silences, now_us: int) -> Settlement | None:
        """It waits while its whole category is silenced, since it has no labels of its own, unless it was admitted."""
        leased, terms = candidate
        found = silences.of_whole_category(leased.event.category, now_us)
        if not found or leased.was_admitted or terms.channel == EDITS:
            return None
        waits = Parked(Place.TIMER, Reason.SILENCED, max(0, found[0].until_us - now_us), detail=found[0].detail)
        return Settlement(leased, terms, waits, leased.slots_if_unadmitted)

    def quiet(self, candidate: Candidate, now_us: int) -> Settlement | None:
        """It waits until quiet hours of its category end. One that was admitted before, and an edit, do not."""
        leased, terms = candidate
        is_edit = leased.tally is not None and leased.tally.is_editing
        hush = None if leased.was_admitted or is_edit else self.policy.hours.hush(leased.event.category, now_us)
        if hush is None:
            return None
        waits = Parked(Place.TIMER, Reason.QUIET, hush.until_us - now_us, detail=hush.name)
        return Settlement(leased, terms, waits, leased.slots_if_unadmitted)

    def newcomer(self, candidate: Candidate) -> None:
        """A digest message never waits in a category's line."""
        del candidate

    def asking(self, candidate: Candidate) -> Asking:
        """No refusal ends a digest message."""
        return Asking(candidate, drops=False)

    def denied(self, candidate: Candidate, verdict: Denied) -> Settlement:
        """It waits until there is room."""
        return denied(candidate, verdict)

    def deliver(self, started: Started) -> Settlement:
        """Post the message, or edit the one that was posted before."""
        leased, terms = started.candidate
        tally, _, plan = self._read(leased)
        text = under_gone_line(tally_text(tally, ends=plan.ends), leased.gone)
        identity = self.policy.rule(tally.category).style.identity
        message, by_s = Message(leased.name, terms.channel, text, identity=identity), started.leaves_by_s
        if plan.act is Act.EDIT:
            edited = self.sink.update(tally.channel or terms.channel, tally.ts or "", message, by_s=by_s)
            return self.after_post(started, edited)
        return self.after_post(started, self.sink.post(message, by_s=by_s))

    def after_post(  # noqa: PLR0911 - one return for each result of a post
        self, started: Started, result: PostResult
    ) -> Settlement:
        """It is never a dead letter: what cannot be posted is tried a window later. The rest is as for any event."""
        leased, terms = started.candidate
        tally, counting, plan = self._read(leased)
        fallback = self.policy.fallback(leased, terms.channel)
        is_edit, is_last = plan.act is Act.EDIT, started.attempt >= transitions.MAX_ATTEMPTS
        match result:
            case Receipt():
                told = self._told(tally, counting, plan, result)
                return Settlement(
                    leased, terms, told, Slots.KEEP, replied=True, arrived=True, resume=True, reached=True
                )
            case Rejected(code, detail) if code not in transitions.GONE or fallback is None or is_edit:
                told = _failed(tally, counting, plan, code, detail)
                return Settlement(leased, terms, told, Slots.RELEASE, replied=True, arrived=True, reached=True)
            case Paused("unknown_method" as code, detail) if is_edit:  # a Web API of somebody else's that can only post
                return Settlement(leased, terms, _failed(tally, counting, plan, code, detail), Slots.KEEP, reached=True)
            case Retryable(code, detail, True, reached) if is_last:
                told = _failed(tally, counting, plan, code, detail)
                return Settlement(leased, terms, told, Slots.RELEASE, reached=reached)
            case Ambiguous(code, detail) if is_edit and is_last:
                told = _failed(tally, counting, plan, code, detail)
                return Settlement(leased, terms, told, Slots.KEEP, arrived=True, reached=False)
            case Ambiguous(code, detail) if is_edit:  # the same edit twice is one edit
                parked = Parked(Place.TIMER, Reason.RETRY, self.backoff(started.attempt), code, detail=detail)
                settled = Settlement(leased, terms, parked, Slots.KEEP, attempt=started.attempt, unknown=leased.unknown)
                return settled._replace(arrived=True, reached=False)
            case _:
                return transitions.after_post(started, result, self.backoff, self.grace_us, fallback)

    def after_scan(self, settlement: Settlement) -> Settlement:
        """A message that was found was posted or edited; one that ends as a dead letter failed, and is tried again."""
        leased = settlement.subject
        if not isinstance(leased, Leased):
            return settlement
        tally, counting, plan = self._read(leased)
        match settlement.outcome:
            case Sent(receipt):
                return settlement._replace(outcome=self._told(tally, counting, plan, receipt))
            case DeadLettered(_, detail, code):
                return settlement._replace(outcome=_failed(tally, counting, plan, code or "ambiguous", detail))
            case _:
                return settlement

    def _read(self, leased: Leased) -> tuple[Tally, Counting, Plan]:
        tally, counting = _facts(leased, self.policy)
        return tally, counting, plan_of(tally, counting, can_edit=self.sink.can_update)

    def _told(self, tally: Tally, counting: Counting, plan: Plan, receipt: Receipt) -> Told:
        is_edit = plan.act is Act.EDIT
        return Told(
            Step.EDITED if is_edit else Step.POSTED,
            counting,
            plan.wait_us,
            tally.count,
            receipt=None if is_edit else receipt,
            can_edit=self.sink.can_update and tally.telling is not Telling.NOTICE,
            ends=plan.ends,
            ts=_ts_of(tally),
        )

"""Where an event is or what became of it, by its id: what is found, and what follows from it in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, TypeAlias

from dispatcher.core import explain
from dispatcher.core.event import MAX_ID, Event, job_id_for
from dispatcher.core.explain import Clock, Decision, Explanation, Room, State, clock_of
from dispatcher.core.limits import EVERYTHING, Reason, quoted
from dispatcher.core.policy import EDITS, WEBHOOK, Policy, limit_reason
from dispatcher.core.quiet import QUIET_PREFIX
from dispatcher.core.rendering import text_of
from dispatcher.core.silences import SILENCE_PREFIX, Silence, Silences, read_silences
from dispatcher.core.states import is_digest_message
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US, Lane, is_utf8
from dispatcher.errors import InvalidEvent
from dispatcher.jsonio import answer_text, decode, decode_answer
from dispatcher.server.connection import Client, JsonScript
from dispatcher.server.keys import LAYOUT_VERSION, Keys
from dispatcher.store.dead_letters import DeadLetter, read_letter
from dispatcher.store.decisions import latest, read_row
from dispatcher.store.forecast import SCRIPT, Forecast, InLine
from dispatcher.store.id_search import NAMED, ids_beginning_with
from dispatcher.store.intake import open_envelope, wrong_layout
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Pause, PausedByHand, read_by_hand, read_pause
from dispatcher.store.versions import content_of

_LANES: Final = tuple(Lane)
_AT_ONCE: Final = 250
"""Ids that one question is about; each may be two names on the queue."""


FEWEST: Final = 4
"""So many characters of an id are needed to find it by its beginning."""

ReadLimits: TypeAlias = Callable[[str], Policy | None]
"""Reads the text of a limits file; None if this program cannot."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of one id on the queue. ``header`` is its record's; ``payload`` is empty where it was left out."""

    id: str
    header: dict[str, Any] | None
    facts: Mapping[str, Any]
    payload: bytes

    def event(self) -> Event | None:
        """The event, where its payload is known and is one."""
        if self.payload:
            with suppress(InvalidEvent):
                return open_envelope(self.id, self.payload)
        return None

    @property
    def waits_for_room(self) -> bool:
        """Whether it waits in a category's line."""
        header = self.header or {}
        is_elsewhere = "malformed" in self.facts or header.get("timer") or header.get("scheduled")
        return header.get("state") == "waiting" and bool(header.get("line")) and not is_elsewhere

    @property
    def before(self) -> int:
        """How many go before it: of its own line, and of others that wait for the same scope."""
        return int(self.facts.get("before", 0)) + int(self.facts.get("elsewhere", 0))

    @property
    def next_us(self) -> int | None:
        """When the next of its line may pass; None while that is decided."""
        instant = self.facts.get("next")
        return None if instant in {None, "inf"} else int(instant)


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found at one instant, by the server's clock, with the pauses and the silences that were in force.

    ``limits`` is the content of the limits in force, where it was asked for, and ``policy`` what they mean. ``rooms``
    says of events that wait for room what a ``Forecast`` has found.
    """

    now_us: int
    pause: Pause | None
    by_hand: Mapping[str, PausedByHand]
    silences: Silences
    found: Sequence[Found]
    limits: str | None = None
    rooms: Mapping[str, Room] = field(default_factory=dict)
    policy: Policy | None = None

    def forecast(self, keys: Keys, policy: Policy | None) -> Forecast | None:
        """What is to be asked of the events that wait for room; None if there are none, or the policy is not known."""
        if policy is None:
            return None
        waiters = []
        for found in self.found:
            event = found.event() if found.waits_for_room else None
            if event is not None and not found.facts["scope"].startswith(QUIET_PREFIX):
                demands = policy.scopes(event.category, event.labels)
                own = int(found.facts.get("before", 0)) + 1
                waiters.append(InLine(found.id, demands, found.facts["scope"], found.before + 1, own, found.next_us))
        return Forecast(keys, waiters, self.now_us) if waiters else None

    def with_rooms(self, rooms: Mapping[str, Room]) -> Findings:
        """The same, with what the forecast has found."""
        return replace(self, rooms=rooms)

    def explain(self, found: Found, asked: str | None = None) -> Explanation:
        """What happened to the event, which was asked for by that id."""
        return _Telling(self, found, asked).explanation()


class ExplainCalls:
    """What goes to explain.lua and what comes back; pure, for callers that block and that do not."""

    def __init__(self, keys: Keys, queue: QueueKeys) -> None:
        self._queue = queue
        self._namespace = keys.namespace
        self._names = [
            keys.events, keys.leases, keys.lines, keys.timers, keys.cooldowns, keys.pause, keys.dead,
            keys.dead_ids, keys.awaited, keys.seen, *queue.lanes, *keys.decisions,
            keys.silences, keys.paused, keys.failures, keys.scheduled, keys.limits_version, keys.limits_versions[0],
            keys.removed, *keys.decision_logs, keys.endings, keys.layout,
        ]  # fmt: skip

    def call(self, ids: Sequence[str], *, payloads: bool, limits: bool = False) -> tuple[list[str], dict[str, Any]]:
        """Keys and the call, for ids on the queue; with ``limits``, for the content of those in force where needed."""
        call: dict[str, Any] = {"ids": list(ids), "layout": LAYOUT_VERSION}
        if payloads:
            call["payloads"] = True
        if limits:
            call["limits"] = True
        return [*self._names, *(self._queue.job(id_) for id_ in ids)], call

    def read(self, answer: Sequence[bytes]) -> Findings:
        """The answer. Raises ``ConfigError`` when the namespace has another layout."""
        if answer_text(answer[0]) == "layout":
            raise wrong_layout(answer_text(answer[1]), self._namespace)
        facts = decode_answer(answer[0])
        found = [
            Found(each["id"], decode(each["header"]) if "header" in each else None, each, payload)
            for each, payload in zip(facts["found"], answer[1:], strict=True)
        ]
        now_us = int(facts["now"])
        by_hand = {name: read_by_hand(row) for name, row in facts.get("paused", {}).items()}
        limits = content_of(facts["version"], facts["limits"]) if "limits" in facts else None
        pause, ends = read_pause(facts.get("pause")), {id_: int(at) for id_, at in facts["endings"].items()}
        silences = read_silences(facts.get("silences", {}), endings=ends)
        return Findings(now_us, pause, by_hand, silences, found, limits)


class Explanations:
    """Explains events. Raises ``GateUnavailable`` when the server is away, ``ConfigError`` where it refuses.

    When an event finds room follows from the limits: the ``policy``, or else what ``read_limits`` makes of those in
    force.
    """

    def __init__(  # noqa: PLR0913 - collaborators first, the rest by name
        self,
        client: Client,
        keys: Keys,
        queue: QueueKeys,
        *,
        policy: Policy | None = None,
        read_limits: ReadLimits | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._queue = queue
        self._policy = policy
        self._read_limits = read_limits
        self._calls = ExplainCalls(keys, queue)
        self._script = JsonScript(client, "explain", clock)
        self._forecast = JsonScript(client, SCRIPT, clock)

    def explain(self, event_id: str) -> Explanation:
        """What happened to the event of an id: the producer's, or the one on the queue."""
        return the_one(self.find(ids_of(event_id), payloads=True), event_id)

    def explain_each(self, event_ids: Sequence[str]) -> list[Explanation]:
        """As ``explain`` of each id, with one question for a page of them; without texts and labels."""
        told: list[Explanation] = []
        for begin in range(0, len(event_ids), _AT_ONCE):
            names = {id_: ids_of(id_) for id_ in event_ids[begin : begin + _AT_ONCE]}
            findings = self.find([*dict.fromkeys(chain.from_iterable(names.values()))])
            found = {each.id: each for each in findings.found}
            told += [the_one(replace(findings, found=[found[each] for each in names[id_]]), id_) for id_ in names]
        return told

    def explain_beginning(self, text: str) -> Explanation:
        """As ``explain``, or else of the only id on the queue that begins with the text, from 4 characters on."""
        told = self.explain(text)
        if told.state is not State.UNKNOWN or not is_utf8(text):
            return told
        if len(text) < FEWEST:
            return replace(told, sentence=f"{told.sentence} {explain.too_short(FEWEST)}")
        found = ids_beginning_with(self._client, self._keys, self._queue, text)
        if len(found) == 1:
            return self.explain(found[0])
        return replace(told, sentence=explain.ambiguous(text, found[:NAMED], len(found))) if found else told

    def find(self, ids: Sequence[str], *, payloads: bool = False) -> Findings:
        """What is known of ids on the queue, at most 500 of them; of large events by several looks."""
        findings = self._find(ids, payloads=payloads)
        while len(findings.found) < len(ids):
            more = self._find(ids[len(findings.found) :], payloads=payloads)
            rooms = {**findings.rooms, **more.rooms}
            findings = replace(findings, found=[*findings.found, *more.found], rooms=rooms)
        return findings

    def _find(self, ids: Sequence[str], *, payloads: bool) -> Findings:
        limits = self._read_limits is not None
        findings = self._calls.read(self._script(*self._calls.call(ids, payloads=payloads, limits=limits)))
        policy = self._policy
        if policy is None and self._read_limits is not None and findings.limits is not None:
            policy = self._read_limits(findings.limits)
        findings = replace(findings, policy=policy)
        forecast = findings.forecast(self._keys, policy)
        if forecast is None:
            return findings
        return findings.with_rooms(forecast.read(self._forecast(forecast.keys, forecast.call)))


def ids_of(event_id: str) -> list[str]:
    """What an event may be called on the queue that somebody knows by this id."""
    names = dict.fromkeys((job_id_for(event_id), event_id))
    return [name for name in names if is_utf8(name)]


def the_one(findings: Findings, event_id: str) -> Explanation:
    """Of the names that ``ids_of`` gives, the one that something is known of."""
    told = [findings.explain(each, event_id) for each in findings.found]
    return next((each for each in told if each.state is not State.UNKNOWN), told[0])


class _Telling:
    """Facts in words, at the instant of the findings."""

    def __init__(self, findings: Findings, found: Found, asked: str | None) -> None:
        self._findings = findings
        self._found = found
        self._facts = found.facts
        self._header = found.header or {}
        event = found.event()
        self._event = event
        self._at: Clock = clock_of(findings.now_us)
        category = event.category if event else self._header.get("category")
        line = self._header.get("channel")
        self._edits = line == EDITS
        channel = (None if self._edits else line) or (event and event.channel)
        shown = asked or (event.id if event else None) or found.id
        self._base = Explanation(shown, found.id, State.UNKNOWN, "", category=category, channel=channel or None)
        if event is not None:
            self._base = replace(self._base, text=text_of(event), labels=dict(event.labels))

    def explanation(self) -> Explanation:
        seen_us = int(self._facts.get("seen") or 0)
        remembered = seen_us if seen_us > self._findings.now_us else None
        job = self._facts.get("job")
        if self._found.header is not None:
            return self._held(self._header)
        if job and (remembered is None or job.get("replayed")):
            return self._queued(job)
        if "letter" in self._facts:
            letter = self._buried()
            ended = self._settled(letter.decision(), kept=True)
            seen = _seconds(letter.seen_us)
            return replace(ended, attempts=letter.attempts, replays=letter.replays, first_seen=seen)
        decision = latest([read_row(self._found.id, row) for row in self._facts.get("decisions", ())])
        if decision is not None:
            return self._settled(decision, kept=False)
        if "removed" in self._facts:
            missed_us = int(self._facts["removed"])
            return replace(self._base, state=State.REMOVED, sentence=explain.removed(missed_us, self._at))
        return replace(self._base, sentence=explain.unknown(_named(self._base.id), remembered, self._at))

    def _queued(self, job: Mapping[str, Any]) -> Explanation:
        lane = _LANES[job["lane"] - 1].value
        sentence = explain.on_lane(lane, job.get("before"), job["status"], is_replayed=job.get("replayed", False))
        return replace(self._base, state=State.WAITING, sentence=sentence, before=job.get("before"))

    def _held(self, header: Mapping[str, Any]) -> Explanation:
        attempts = header.get("attempt", 0)
        base = replace(
            self._base,
            attempts=attempts,
            replays=header.get("replays", 0),
            first_seen=int(header["seen"]) / US if "seen" in header else None,
        )
        state = header.get("state")
        if is_digest_message(self._found.id):
            where = State.PARKED if state == "waiting" else State.IN_FLIGHT
            return replace(self._base, state=where, category=None, sentence=explain.OWN)
        if self._facts.get("malformed"):
            where = State.PARKED if state == "waiting" else State.IN_FLIGHT
            return replace(base, state=where, sentence=explain.MALFORMED)
        if state != "waiting":
            owner = self._facts.get("owner")
            searches = "unconfirmed" in header and base.channel != WEBHOOK
            is_sending = state == "sending"
            sentence = explain.in_hands(owner, attempts, MAX_ATTEMPTS, is_sending=is_sending, searches=searches)
            return replace(base, state=State.IN_FLIGHT, sentence=sentence, worker=owner)
        base = replace(base, state=State.PARKED, outcome="parked")
        if header.get("scheduled"):
            return self._scheduled(base)
        if header.get("timer"):
            found = Reason.RETRY if header.get("unconfirmed") is None else Reason.RECONCILE
            return self._on_timer(base, header.get("why") or (found.value, None), is_buffered="buffered" in header)
        return self._deferred(base) if header.get("line") else self._for_channel(base)

    def _on_timer(self, base: Explanation, why: Sequence[str | None], *, is_buffered: bool) -> Explanation:
        reason, code = why
        next_us = int(self._facts.get("timer") or self._findings.now_us)
        words = ": ".join(filter(None, (reason, code)))
        stopped, is_due = self._stopped(), next_us <= self._findings.now_us
        by_hand = self._all_paused_by_hand() if reason == Reason.RECONCILE else self._paused_by_hand()
        held_up = by_hand or (stopped if is_due else None)
        until, has_history = self._at(next_us), base.channel != WEBHOOK
        sentence = explain.on_timer(words, base.attempts or 0, MAX_ATTEMPTS, until, held_up, has_history=has_history)
        if is_buffered and words.startswith("limit:"):
            sentence = explain.alone(words, self._at(next_us), held_up)
        if reason == Reason.PAUSED and stopped is not None:
            sentence = explain.after_pause(stopped, None if held_up else self._at(next_us))
        return replace(base, reason=reason, code=code, next_at=None if held_up else next_us / US, sentence=sentence)

    def _scheduled(self, base: Explanation) -> Explanation:
        next_us = int(self._facts.get("timer") or self._findings.now_us)
        sentence = explain.scheduled(next_us, self._at)
        return replace(base, reason=Reason.SCHEDULED.value, next_at=next_us / US, sentence=sentence)

    def _deferred(self, base: Explanation) -> Explanation:
        found, findings = self._found, self._findings
        scope, before, next_us = self._facts["scope"], found.before, self._next_us()
        base = replace(base, reason=limit_reason(scope).value, scope=scope, before=before, place=before + 1)
        silence, room = self._silence(scope), findings.rooms.get(found.id)
        if silence is not None:
            sentence = explain.silenced(silence, before, self._at)
            is_its_line = scope == silence.scope  # whose instant may be another one than that of the end
            next_us = silence.ends_us if is_its_line else max(silence.ends_us, next_us or 0)
            next_at = _seconds(None if before else next_us)
            return replace(base, reason=Reason.SILENCED.value, next_at=next_at, sentence=sentence)
        if (quiet := self._quiet_words(scope)) is not None:
            return replace(base, next_at=_seconds(None if before else next_us), sentence=explain.quiet(quiet, before))
        if room is None:
            is_due = next_us is None or next_us <= findings.now_us
            hindrance = self._hindrance()
            sentence = explain.deferred(scope, before, None if is_due else next_us, self._at, hindrance)
            is_known = not before and not (is_due and hindrance)
            return replace(base, next_at=_seconds(next_us if is_known else None), sentence=sentence)
        hindrance = self._hindrance()
        place, now_us, deadline = before + 1, findings.now_us, self._header.get("deadline")
        expires = None
        if hindrance is None and deadline is not None:
            expires = explain.expires_in_line(room, place, now_us, int(deadline), self._at)
        if hindrance is None and expires is None:
            hindrance = self._quiet_at(max(room.at_us or now_us, now_us))
        expected_at = None if hindrance else _seconds(room.at_us)
        return replace(
            base,
            reason=limit_reason(room.scope).value,
            scope=room.scope,
            limit=str(room.limit),
            used=room.used,
            max=room.limit.max,
            window_s=room.limit.window_us / US,
            expected_at=expected_at,
            next_at=None if before else expected_at,
            sentence=expires or explain.waits_for_room(room, place, now_us, hindrance, self._at),
        )

    def _silence(self, scope: str) -> Silence | None:
        """The silence whose end the event waits for, or will at its turn."""
        silences, now_us = self._findings.silences, self._findings.now_us
        waited_for = silences.get(scope.removeprefix(SILENCE_PREFIX)) if scope.startswith(SILENCE_PREFIX) else None
        if waited_for is not None and waited_for.is_in_force(now_us):
            return waited_for
        if self._event is None:
            return next(iter(silences.of_whole_category(str(self._base.category), now_us)), None)
        return next(iter(silences.matching(self._event, now_us)), None)

    def _quiet_words(self, scope: str) -> str | None:
        """The quiet hours for whose end it waits, if they are known and hold."""
        policy = self._findings.policy
        if policy is None or not scope.startswith(QUIET_PREFIX):
            return None
        hush = policy.hours.named(scope.removeprefix(QUIET_PREFIX), self._findings.now_us)
        return None if hush is None else explain.quiet_words(hush.name, hush.since_us, hush.until_us, self._at)

    def _quiet_at(self, at_us: int) -> str | None:
        """The quiet hours that hold at the instant at which the event asks for room; none hold what is admitted."""
        policy, event = self._findings.policy, self._event
        if policy is None or event is None or self._header.get("attempt"):
            return None
        hush = policy.hours.hush(event.category, at_us, (event.priority, event.labels))
        return None if hush is None else explain.quiet_words(hush.name, hush.since_us, hush.until_us, self._at)

    def _hindrance(self) -> str | None:
        """What keeps it from going, whatever the limits say."""
        return self._paused_by_hand() or self._stopped()

    def _paused_by_hand(self) -> str | None:
        """What an operator has paused: its category, or all."""
        category = str(self._base.category)
        of_category = self._findings.by_hand.get(category)
        if of_category is not None:
            return explain.paused_category(category, of_category.since_us, _by(of_category), self._at)
        return self._all_paused_by_hand()

    def _all_paused_by_hand(self) -> str | None:
        of_all = self._findings.by_hand.get(EVERYTHING)
        return None if of_all is None else explain.paused(of_all.since_us, _by(of_all), self._at)

    def _stopped(self) -> str | None:
        """What keeps everything from going: an operator, or what Slack or the network said."""
        pause = self._findings.pause
        by_pause = None if pause is None else explain.paused(pause.since_us, _said(pause), self._at)
        return self._all_paused_by_hand() or by_pause

    def _for_channel(self, base: Explanation) -> Explanation:
        before, next_us, now_us = self._facts.get("before", 0), self._next_us(), self._findings.now_us
        cooldown_us = int(self._facts.get("cooldown") or 0)
        pause, by_hand = self._findings.pause, self._paused_by_hand()
        failures, edits = int(self._facts.get("failures") or 0), self._edits
        if by_hand is not None:
            reason, next_us, hindrance = Reason.PAUSED, None, by_hand
        elif pause is not None:
            reason = Reason.COOLDOWN if pause.kind == "cooldown" else Reason.PAUSED
            next_us = pause.probe_us if pause.probe_us > now_us else None
            hindrance = explain.paused(pause.since_us, _said(pause), self._at)
        elif cooldown_us > now_us and failures:
            reason, hindrance = Reason.COOLDOWN, explain.failing(failures, cooldown_us, self._at, edits=edits)
        elif cooldown_us > now_us:
            reason, hindrance = Reason.COOLDOWN, explain.cooling(cooldown_us, self._at, edits=edits)
        else:
            reason, hindrance = Reason.PACE, explain.paced(next_us, now_us, self._at, edits=edits)
        said = explain.for_edit(before, hindrance) if edits else None
        return replace(
            base,
            reason=reason.value,
            before=before,
            next_at=_seconds(None if before else next_us),
            sentence=said or explain.for_channel(str(base.channel), before, hindrance),
        )

    def _next_us(self) -> int | None:
        instant = self._found.next_us
        return None if instant is None else max(instant, self._findings.now_us)

    def _buried(self) -> DeadLetter:
        pairs = iter(self._facts["letter"])
        fields = {name.encode(): value.encode() for name, value in zip(pairs, pairs, strict=True)}
        return read_letter(b"", fields)

    def _settled(self, decision: Decision, *, kept: bool) -> Explanation:
        is_gone = decision.outcome == "dead" and not kept
        return replace(
            self._base,
            state=State.SETTLED,
            sentence=f"{explain.ended(decision, self._at)}{explain.NO_LETTER if is_gone else ''}",
            at=decision.at_us / US,
            category=self._base.category or decision.category,
            channel=decision.channel or self._base.channel,
            fits_at=_seconds(decision.fits_at_us),
            dead_letter=kept,
            text=decision.text if self._base.text is None else self._base.text,
            labels=dict(decision.labels) if self._base.labels is None and decision.priority else self._base.labels,
            **{name: getattr(decision, name) for name in _SAME},
        )


_SAME: Final = ("outcome", "reason", "scope", "limit", "code", "detail", "ts")
"""What an explanation has of a decision as it is."""


def _by(stopped: PausedByHand) -> str:
    return f"by {stopped.by}" + (f": {stopped.why}" if stopped.why else "")


def _said(pause: Pause) -> str:
    return ": ".join(filter(None, (pause.code, pause.detail)))


def _named(id_: str) -> str:
    return repr(id_) if len(id_) <= MAX_ID else quoted(id_)


def _seconds(at_us: int | None) -> float | None:
    return None if at_us is None else at_us / US

"""The log: structlog on stderr, one line per event at its end, for people or for machines, secrets removed."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol, TextIO, assert_never

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from dispatcher.core import explain
from dispatcher.core.event import TRACEPARENT, Event
from dispatcher.core.explain import Clock, clock_of, sentence_of
from dispatcher.core.limits import Denied, Reason
from dispatcher.core.policy import EDITS, limit_reason
from dispatcher.core.posts import LeftOut, Part
from dispatcher.core.rendering import one_line, text_of
from dispatcher.core.silences import EndedSilence
from dispatcher.core.states import (
    DeadLettered,
    Digested,
    Dropped,
    Hushed,
    Leased,
    Parked,
    PauseChange,
    Prefiltered,
    Recovered,
    Reported,
    Sent,
    Settlement,
    Step,
    Terms,
    Told,
    Undecodable,
    Waiting,
)
from dispatcher.core.tally import Suppressed, Tally, Telling
from dispatcher.core.units import HIDDEN, US, can_be_shown
from dispatcher.jsonio import encode
from dispatcher.logs.line_buffer import LineBuffer
from dispatcher.logs.terminal_line import TerminalLine

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
LAST_LINES_S: Final = 0.5
"""How long a process that ends waits for the reader of its log."""
_MOST_TOLD: Final = 1_000
_WARNINGS: Final = {
    *(f"{telling}.failed" for telling in Telling),
    "hook.refused",
    "jobs.removed",
    "redis.lost",
    "silence.failed",
    "slack.paused",
    "slack.scope_missing",
    "template.failed",
    "tokens.refused",
    "dead_letters.trimmed",
    "credential.refused",
    "limits.refused",
    "limits.superseded",
    "log.lines_left_out",
    "setting.warning",
    "server.warning",
    "serve.crashed",
    "serve.given_up",
    "worker.crashed",
    "worker.given_up",
    "worker.suspended",
    "workers.killed",
    "server.failed",
}


def _now_us() -> int:
    return time.time_ns() // 1_000


def build_event_log(  # noqa: PLR0913 - figures and sinks by name
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    style: Literal["auto", "console", "json"] = "auto",
    text: int = 0,
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
    lines: Lines | None = None,
    clock: Callable[[], int] = _now_us,
) -> EventLog:
    """What a process tells on ``stream`` (stderr) from ``level`` on; ``auto`` is console on a terminal, else JSON.

    ``lines`` takes what is written in the stream's place. Nothing is ever written with one of ``secrets`` in it. Lines
    about an event have up to ``text`` characters of what it says; those of JSON are written by the batch. RQ's own
    loggers are silenced: what ends a worker is told by ``failed``.
    """
    out = stream or sys.stderr
    known, lines = Secrets(secrets), lines or StreamLines(out)
    is_for_people = style == "console" or (style == "auto" and out.isatty())
    render: Processor = (
        TerminalLine(out, in_colour=out.isatty() and not os.environ.get("NO_COLOR"))
        if is_for_people
        else structlog.processors.JSONRenderer(serializer=_json)
    )
    _quiet_rq()
    logger: FilteringBoundLogger = structlog.wrap_logger(
        _Written(lines),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp" if is_for_people else "time"),
            structlog.processors.format_exc_info,
            _printable,
            redactor(known),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=True,
    )
    batch = None if is_for_people or LEVELS[level] > LEVELS["info"] else LineBatch(lines, secrets=known)
    return EventLog(logger, batch, clock, secrets=known, text=text)


@contextmanager
def process_log(
    level: Literal["debug", "info", "warning", "error"],
    style: Literal["auto", "console", "json"],
    secrets: Iterable[str],
    *,
    text: int = 0,
) -> Iterator[tuple[EventLog, LineBuffer]]:
    """The log of a process whose work must not wait for a reader, on stderr, and what stands between the two.

    At the end of the context the reader gets ``LAST_LINES_S`` for what is left.
    """
    lines = LineBuffer(sys.stderr)
    log = build_event_log(level=level, style=style, text=text, secrets=secrets, lines=lines)
    lines.tell = lambda count: log.say("log.lines_left_out", count=count, pid=os.getpid())
    try:
        yield log, lines
    finally:
        lines.drain(LAST_LINES_S)
        lines.close()


class _Written:
    """The end of structlog's way: hands each line on."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def msg(self, line: str) -> None:
        self._lines.put(f"{line}\n".encode(errors="backslashreplace"))

    debug = info = warning = error = msg


class Secrets:
    """What stands in no line. Another one may become known while lines are written."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: tuple[str, ...] = ()
        self.encoded: tuple[bytes, ...] = ()
        self.add(texts)

    def add(self, texts: Iterable[str]) -> None:
        """From now on these stand in no line either."""
        self.texts = tuple(sorted({*self.texts, *filter(None, texts)}, key=len, reverse=True))
        self.encoded = tuple(text.encode() for text in self.texts)


def redactor(secrets: Secrets) -> Processor:
    """A step that replaces every one of ``secrets`` in every value."""

    def redact(value: object) -> object:
        if isinstance(value, str):
            for secret in secrets.texts:
                value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, dict):
            return {redact(key): redact(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [redact(each) for each in value]
        return value

    def step(logger: WrappedLogger, name: str, entry: EventDict) -> EventDict:
        del logger, name
        return {str(key): redact(value) for key, value in entry.items()} if secrets.texts else entry

    return step


class EventLog:
    """What the core and the worker's loop tell, as log lines. A line that cannot be written is no reason to stop."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        batch: LineBatch | None,
        clock: Callable[[], int],
        *,
        secrets: Secrets,
        text: int,
    ) -> None:
        """``secrets`` are those that ``log`` and ``batch`` keep out of their lines."""
        self._log = log
        self._batch = batch
        self._secrets = secrets
        self._told: set[str] = set()
        """What is said once: what is wrong with a template or a token is wrong for every event."""
        self._clock = clock
        self._most_text = text

    def of(self, worker: str) -> EventLog:
        """The same log, in which each line names the worker."""
        batch = None if self._batch is None else self._batch.of(worker)
        return EventLog(self._log.bind(worker=worker), batch, self._clock, secrets=self._secrets, text=self._most_text)

    def hide(self, secrets: Iterable[str]) -> None:
        """From now on these stand in no line either."""
        self._secrets.add(secrets)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """``event.settled``, or ``event.parked`` for what waits."""
        if not settlements:
            return
        now_us, at = self._now()
        told: list[dict[str, object]] = []
        parked: list[dict[str, object]] = []
        for settlement in settlements:
            if isinstance(settlement.subject, Leased) and settlement.subject.is_digest_message:
                if (line := own_line(settlement.subject, settlement)) is not None:
                    self.say(line[0], **line[1])
                continue
            entry = {**subject_facts(settlement.subject), **facts_of(settlement)}
            if isinstance(settlement.subject, Leased):
                self._add_own(entry, settlement.subject.event)
            if isinstance(settlement.outcome, Parked):
                parked.append(entry)
            else:
                seen = _seen(settlement.subject.seen_us) if isinstance(settlement.subject, Leased) else {}
                denied = settlement.outcome.denied if isinstance(settlement.outcome, Dropped | DeadLettered) else None
                told.append({**entry, **seen, "sentence": sentence_of(entry, now_us, at, denied)})
        self._write_all("event.settled", told)
        self._write_all("event.parked", parked)
        self._tell_of_parts(settlements)

    def _tell_of_parts(self, settlements: Sequence[Settlement]) -> None:
        """Tell what of messages could not be made or posted."""
        for settlement in settlements:
            if settlement.template_fault is not None and isinstance(settlement.subject, Leased):
                category = settlement.subject.event.category
                self._tell("template.failed", category, {"category": category, "detail": settlement.template_fault})
            for part in settlement.outcome.receipt.left_out if isinstance(settlement.outcome, Sent) else ():
                if part.part is Part.IDENTITY:
                    self._tell("slack.scope_missing", "", {"code": part.code, "detail": part.detail})

    def _tell(self, event: str, about: str, facts: Mapping[str, object]) -> None:
        key = f"{event} {about}"
        if key not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(key)
            self.say(event, **facts)

    def dropped(self, events: Sequence[tuple[Leased, Denied]]) -> None:
        """``event.settled`` for events that a limit has dropped: by the hundred, for a few reasons."""
        if not events:
            return
        entries = self._suppressed(
            "dropped", ((each.name, each.event.category, denied, each.seen_us, None) for each, denied in events)
        )
        for entry, (leased, _) in zip(entries, events, strict=True):
            self._add_own(entry, leased.event)
        self._write_all("event.settled", entries)

    def prefiltered(self, groups: Sequence[Prefiltered]) -> None:
        """``event.settled`` for events that were dropped as they were taken: by the hundred, of a few categories."""
        now = self._now()
        told = [
            (names, {"category": name, **_denial_facts(denied, "dropped", now), **_seen(seen_us)})
            for name, denied, names, seen_us in groups
        ]
        try:
            if self._batch is not None and self._batch.write_groups(told):
                return
        except (OSError, ValueError):
            return  # see _write
        self._write_all("event.settled", [{"event_id": name, **facts} for names, facts in told for name in names])

    def digested(self, events: Sequence[Suppressed]) -> None:
        """``event.settled`` for events that have ended in a digest."""
        if not events:
            return
        self._write_all("event.settled", self._suppressed("digested", events))

    def recovered(self, events: Sequence[Recovered]) -> None:
        """``event.settled`` for events whose failure was over before they were posted."""
        facts: dict[str, object] = {"outcome": "dropped", "reason": Reason.RESOLVED.value}
        facts["sentence"] = sentence_of(facts, *self._now())
        self._write_all(
            "event.settled",
            [{"event_id": name, "category": category, **facts, **_seen(seen_us)} for name, category, seen_us in events],
        )

    def waiting(self, events: Sequence[Waiting]) -> None:
        """``event.parked`` for what waits in a line: for its channel, or for room in a limit."""
        if not events:
            return
        own = [each for each in events if each.candidate.leased.is_digest_message]
        others = [each for each in events if not each.candidate.leased.is_digest_message]
        entries = [waiting_facts(each) for each in others]
        for entry, each in zip(entries, others, strict=True):
            self._add_own(entry, each.candidate.leased.event)
        self._write_all("event.parked", entries)
        for each in own:
            leased, reason = each.candidate.leased, each.reason.value
            if leased.report is not None:
                self.say("silence.parked", silence=leased.report.id, reason=reason)
            else:
                self.say(f"{leased.id.partition(':')[0]}.parked", category=leased.event.category, reason=reason)

    def lost(self, events: Sequence[Leased | Undecodable]) -> None:
        """``lease.lost``: this worker holds the event no more."""
        for each in events:
            self._write(self._log.warning, "lease.lost", subject_facts(each))

    def pause_changed(self, changes: Sequence[PauseChange]) -> None:
        """``slack.paused`` and ``slack.resumed``."""
        for each in changes:
            if each.began:
                self.say("slack.paused", kind=each.kind, code=each.code, detail=each.detail)
            else:
                self.say("slack.resumed", kind=each.kind)

    def trimmed(self, count: int) -> None:
        """``dead_letters.trimmed``."""
        self.say("dead_letters.trimmed", count=count)

    def duplicates(self, ids: list[str]) -> None:
        """``event.settled`` for repeated ids."""
        facts: dict[str, object] = {"outcome": "duplicate", "reason": Reason.DUPLICATE.value}
        facts["sentence"] = sentence_of(facts, *self._now())
        self._write_all("event.settled", [{"event_id": each, **facts} for each in ids])

    def say(self, event: str, **facts: object) -> None:
        """One line of the worker's own life."""
        self._write(self._log.warning if event in _WARNINGS else self._log.info, event, facts)

    def failed(self, error: Exception, event: Literal["worker.failed", "serve.failed"]) -> None:
        """``worker.failed`` or ``serve.failed``: a defect of ours, with its traceback."""
        self._log.error(event, exc_info=error)

    def _add_own(self, entry: dict[str, object], event: Event) -> None:
        """Add what the event itself says: its trace, and its text where that is asked for."""
        if TRACEPARENT in event.labels:
            entry[TRACEPARENT] = event.labels[TRACEPARENT]
        if self._most_text:
            entry["text"] = self._text(event)

    def _text(self, event: Event) -> str:
        """The beginning of what an event says. Secrets go first: a cut could leave a part of one."""
        text = text_of(event)
        for secret in self._secrets.texts:
            text = text.replace(secret, HIDDEN)
        return one_line(text, self._most_text)

    def _suppressed(
        self, outcome: str, events: Iterable[tuple[str, str, Denied, int, int | None]]
    ) -> list[dict[str, object]]:
        """The facts of events that a limit has suppressed, each as ``Suppressed``: many of one denial, in a row."""
        now = self._now()
        known: dict[int, dict[str, object]] = {}
        entries = []
        for name, category, denied, seen_us, refused_us in events:
            facts = known.get(id(denied))
            if facts is None:
                facts = known[id(denied)] = _denial_facts(denied, outcome, now, refused_us)
            entries.append({"event_id": name, "category": category, **facts, **_seen(seen_us)})
        return entries

    def _now(self) -> tuple[int, Clock]:
        now_us = self._clock()
        return now_us, clock_of(now_us)

    def _write_all(self, event: str, entries: Sequence[Mapping[str, object]]) -> None:
        try:
            left = entries if self._batch is None else self._batch.write(event, entries)
        except (OSError, ValueError):
            return  # see below
        except TypeError:  # one of them is no JSON; the slower way knows what to do
            left = entries
        for entry in left:
            self._write(self._log.info, event, entry)

    def _write(self, method: Callable[..., Any], event: str, facts: Mapping[str, object]) -> None:
        try:
            method(event, **facts)
        except (OSError, ValueError):
            return  # the log's reader is gone; the event's outcome is durable already


def _seen(seen_us: int) -> dict[str, object]:
    """When the event was first taken, in seconds since 1970."""
    return {"seen": seen_us / US}


def _denial_facts(
    denied: Denied, outcome: str, now: tuple[int, Clock], refused_us: int | None = None
) -> dict[str, object]:
    """``refused_us`` is when the limit refused it, None: now. The wait that is told counts from now in any case."""
    now_us, at = now
    at_us = now_us if refused_us is None else refused_us
    left_us = max(0, at_us + denied.retry_after_us - now_us)
    facts = dropped_facts(replace(denied, retry_after_us=left_us), limit_reason(denied.scope), outcome)
    facts["sentence"] = explain.dropped(denied, at_us, at, outcome)
    return facts


def _printable(logger: WrappedLogger, name: str, entry: EventDict) -> EventDict:
    """Characters from events and from Slack that control a terminal, or reorder its line, do nothing there."""
    del logger, name
    for key, value in entry.items():
        if isinstance(value, str) and not value.isprintable():
            kept = "\n" if key == "exception" else ""
            entry[key] = "".join(
                char if char in kept or can_be_shown(value, place) else "\N{REPLACEMENT CHARACTER}"
                for place, char in enumerate(value)
            )
    return entry


def _json(entry: object, **_options: object) -> str:
    try:
        return encode(entry).decode()
    except TypeError:  # half of a surrogate pair, a number of very many digits
        return json.dumps(entry, default=repr, separators=(",", ":"))


def _quiet_rq() -> None:
    rq = logging.getLogger("rq")
    rq.propagate = False
    if not rq.handlers:
        rq.addHandler(logging.NullHandler())


def subject_facts(subject: Leased | Undecodable) -> dict[str, object]:
    """Which event it is."""
    if isinstance(subject, Undecodable):
        shown = {} if subject.category is None else {"category": subject.category}
        return {"event_id": subject.id, **shown}
    return {"event_id": subject.name, "category": subject.event.category}


def waiting_facts(waiting: Waiting) -> dict[str, object]:
    """An event that waits in a line, and for what."""
    facts: dict[str, object] = {"outcome": "parked", "reason": waiting.reason.value}
    if waiting.scope is not None:
        facts["scope"] = waiting.scope
    if waiting.wait_us is not None and waiting.reason is not Reason.PAUSED:  # the pause says when it goes on
        facts["retry_after_s"] = waiting.wait_us / US
    return {**subject_facts(waiting.candidate.leased), **facts, **_place_of(*waiting.candidate)}


def facts_of(settlement: Settlement) -> dict[str, object]:
    """What became of an event, and why; ``perhaps_copies`` messages of it may stand in Slack."""
    facts = _facts_of(settlement)
    if settlement.perhaps_posted and not isinstance(settlement.outcome, Parked | Told | Reported):
        facts["perhaps_copies"] = settlement.perhaps_posted
    return facts


def _sent_facts(sent: Sent, channel: Mapping[str, object]) -> dict[str, object]:
    receipt = sent.receipt
    facts: dict[str, object] = {"outcome": "sent", "reason": Reason.OK.value, **channel}
    if receipt.channel not in channel.values():
        facts["channel_id"] = receipt.channel
    if sent.found:
        facts["found"] = True
    if receipt.ts is not None:
        facts["ts"] = receipt.ts
    return {**facts, **_left_out(receipt.left_out)}


def _facts_of(settlement: Settlement) -> dict[str, object]:
    channel = _channel_of(settlement)
    match settlement.outcome:
        case Sent() as sent:
            return _sent_facts(sent, channel)
        case Hushed() | Digested() | Dropped() as suppressed:
            return _suppressed_facts(suppressed)
        case DeadLettered(reason, detail, code, denied, until_us, _, since_us):
            where = channel if denied is None and until_us is None else {}
            facts: dict[str, object] = {"outcome": "dead", "reason": reason.value, **_denial(denied), **where}
            facts |= _by_hand(detail, until_us)
            if since_us is not None:
                facts["since"] = since_us / US
            return facts if code is None else {**facts, "code": code}
        case Parked(_, reason, wait_us, code, denied, detail, fallback):
            wait = {} if reason is Reason.PAUSED else {"retry_after_s": wait_us / US}  # the pause says when it goes on
            facts = {"outcome": "parked", "reason": reason.value, **_denial(denied), **wait, **channel}
            said = {"code": code, "detail": detail, "fallback": fallback and fallback.channel}
            return {**facts, **{name: words for name, words in said.items() if words}}
        case Told(step):
            return {"outcome": step.value}
        case Reported():
            return {}
        case _:
            assert_never(settlement.outcome)


def _channel_of(settlement: Settlement) -> dict[str, str]:
    """The channel, and the one for which it stands in, if there is one."""
    subject, terms = settlement.subject, settlement.terms
    if terms is None:
        return {}
    if not isinstance(subject, Leased):
        return {"channel": terms.channel}
    return {**_place_of(subject, terms), **({} if subject.gone is None else {"instead_of": subject.gone.channel})}


def _place_of(leased: Leased, terms: Terms) -> dict[str, str]:
    """The channel; of an edit that of the message, as Slack names it, where it is known."""
    channel: str | None = terms.channel
    if channel == EDITS:
        message = leased.edits or leased.tally
        channel = None if message is None else message.channel
    return {} if channel is None else {"channel": channel}


def _suppressed_facts(outcome: Hushed | Digested | Dropped) -> dict[str, object]:
    match outcome:
        case Hushed(hush):
            told = {"detail": hush.name, "since": hush.since_us / US, "until": hush.until_us / US}
            return {"outcome": outcome.outcome, "reason": Reason.QUIET.value, **told}
        case Digested(reason, of):
            return {"outcome": "digested", "reason": reason.value, **({} if of is None else {"detail": of})}
        case Dropped(denied, reason, detail, until_us, _, since_us):
            since = {"since": since_us / US} if reason is Reason.SILENCED and since_us is not None else {}
            return {**dropped_facts(denied, reason), **_by_hand(detail, until_us), **since}
        case _:
            assert_never(outcome)


def _left_out(parts: tuple[LeftOut, ...]) -> dict[str, object]:
    """What a message was posted without, and what Slack said to the last of it."""
    if not parts:
        return {}
    return {"left_out": ",".join(each.part for each in parts), "code": parts[-1].code, "detail": parts[-1].detail}


def dropped_facts(denied: Denied | None, reason: Reason, outcome: str = "dropped") -> dict[str, object]:
    """An event that was dropped, or digested."""
    return {"outcome": outcome, "reason": reason.value, **_denial(denied)}


def own_line(leased: Leased, settlement: Settlement) -> tuple[str, dict[str, object]] | None:
    """The line about what a message of the dispatcher's own has done, or None."""
    if leased.report is not None:
        return report_line(leased.report, settlement)
    return None if leased.tally is None else digest_line(leased, leased.tally, settlement)


def report_line(report: EndedSilence, settlement: Settlement) -> tuple[str, dict[str, object]] | None:
    """The line about what the report of a silence has done, or None of one that had nothing to tell."""
    facts: dict[str, object] = {"silence": report.id, "matchers": report.matchers, "count": report.suppressed}
    if settlement.terms is not None:
        facts["channel"] = settlement.terms.channel
    match settlement.outcome:
        case Reported(receipt, _, code, detail) if code is not None:
            return "silence.failed", {**facts, "code": code, "detail": detail}
        case Reported(receipt) if receipt is not None:
            return "silence.reported", facts
        case Parked(_, reason, wait_us):
            return "silence.parked", {**facts, "reason": reason.value, "retry_after_s": wait_us / US}
        case _:
            return None


def digest_line(leased: Leased, tally: Tally, settlement: Settlement) -> tuple[str, dict[str, object]] | None:
    """The line about what a digest message has done, or None. That it cannot be posted is told once."""
    facts: dict[str, object] = {"category": tally.category, "count": tally.count}
    if settlement.terms is not None:
        facts |= _place_of(leased, settlement.terms)
    match settlement.outcome:
        case Told(Step.FAILED, code=code, detail=detail) if not tally.failed:
            return f"{tally.telling}.failed", {**facts, "code": code, "detail": detail}
        case Told(Step.POSTED | Step.EDITED as step, ends=ends):
            return f"{tally.telling}.{step}", {**facts, "ends": ends}
        case Parked(_, reason, wait_us):
            return f"{tally.telling}.parked", {**facts, "reason": reason.value, "retry_after_s": wait_us / US}
        case _:
            return None


def _by_hand(detail: str | None, until_us: int | None) -> dict[str, object]:
    facts = {"detail": detail, "until": None if until_us is None else until_us / US}
    return {name: value for name, value in facts.items() if value is not None}


def _denial(denied: Denied | None) -> dict[str, object]:
    if denied is None:
        return {}
    return {"scope": denied.scope, "limit": str(denied.limit), "retry_after_s": denied.retry_after_us / US}


class Lines(Protocol):
    """Where lines go once they are rendered."""

    def put(self, lines: bytes) -> None:
        """Take whole lines, as UTF-8."""
        ...


class StreamLines:
    """Writes lines to a stream at once, and waits for its reader."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def put(self, lines: bytes) -> None:
        """Write these; raises ``OSError`` or ``ValueError`` where the stream cannot be written."""
        self._stream.write(lines.decode())
        self._stream.flush()


class LineBatch:
    """Renders lines of JSON about events by the batch, as ``EventLog`` would one by one, of the level ``info``.

    It takes on plain lines only. One that holds what has to be taken out (a secret, characters that are not printable
    ASCII) is left to the caller.
    """

    def __init__(self, lines: Lines, *, secrets: Secrets, worker: str | None = None) -> None:
        self._lines = lines
        self._secrets = secrets
        self._bound = {} if worker is None else {"worker": worker}

    def of(self, worker: str) -> LineBatch:
        """The same, whose lines name the worker."""
        return LineBatch(self._lines, secrets=self._secrets, worker=worker)

    def write(self, event: str, entries: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
        """Write a line for each entry; returns those that are not plain, which were not written."""
        if not entries:
            return ()
        rest = self._rest(event)
        lines = [b"%b,%b\n" % (encode(entry)[:-1], rest) for entry in entries]
        left: Sequence[Mapping[str, object]] = ()
        if not self._is_plain(b"".join(lines)):
            left = [entry for entry, line in zip(entries, lines, strict=True) if not self._is_plain(line)]
            lines = [line for line in lines if self._is_plain(line)]
        self._lines.put(b"".join(lines))
        return left

    def write_groups(self, groups: Iterable[tuple[Sequence[str], Mapping[str, object]]]) -> bool:
        """Write ``event.settled`` for each name of an event, with what its group has in common.

        False where not all of them are plain: then none was written.
        """
        rest = self._rest("event.settled").decode()
        lines: list[str] = []
        for names, common in groups:
            if '"' in "".join(names):
                return False
            end = f'",{encode(common)[1:-1].decode()},{rest}\n'
            lines += [f'{{"event_id":"{name}{end}' for name in names]
        text = "".join(lines).encode()
        if not self._is_plain(text):
            return False
        self._lines.put(text)
        return True

    def _rest(self, event: str) -> bytes:
        """The end of each line."""
        time = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return encode({**self._bound, "event": event, "level": "info", "time": time})[1:]

    def _is_plain(self, line: bytes) -> bool:
        if not line.isascii() or b"\\" in line or b"\x7f" in line:
            return False
        return not any(secret in line for secret in self._secrets.encoded)

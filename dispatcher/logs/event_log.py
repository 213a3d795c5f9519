"""The log: structlog on stderr, one line per event at its end, for people or for machines, secrets removed."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from dispatcher.core import explain
from dispatcher.core.explain import Clock, clock_of, sentence_of
from dispatcher.core.leased_event import Leased, Undecodable, Waiting
from dispatcher.core.limits import Denied, Part, Reason
from dispatcher.core.outcomes import Parked, Prefiltered, Sent, Settlement, Turned
from dispatcher.core.policy import limit_reason
from dispatcher.core.tally import Suppressed
from dispatcher.jsonio import encode
from dispatcher.logs.batch_writer import LineBatch, Lines, StreamLines
from dispatcher.logs.facts import digest_line, dropped_facts, facts_of, subject_facts, waiting_facts
from dispatcher.logs.line_buffer import LineBuffer
from dispatcher.logs.terminal_line import TerminalLine

HIDDEN: Final = "***"
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
LAST_LINES_S: Final = 0.5
"""How long a process that ends waits for the reader of its log."""
_MOST_TOLD: Final = 1_000
_WARNINGS: Final = {
    "digest.failed",
    "notice.failed",
    "redis.lost",
    "slack.paused",
    "slack.scope_missing",
    "template.failed",
    "dead_letters.trimmed",
    "limits.refused",
    "limits.superseded",
    "log.lines_left_out",
    "setting.warning",
    "server.warning",
    "worker.crashed",
    "worker.given_up",
    "workers.killed",
    "server.failed",
}


def build_log(
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    style: Literal["auto", "console", "json"] = "auto",
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
    lines: Lines | None = None,
) -> FilteringBoundLogger:
    """A logger that writes to ``stream`` (stderr) from ``level`` on; ``auto`` is console on a terminal, else JSON.

    ``lines`` takes what is written in the stream's place. No value it is given is ever written with one of ``secrets``
    in it. RQ's own loggers are silenced: what ends a worker is told by ``failed``.
    """
    out = stream or sys.stderr
    console = _is_for_people(style, out)
    render: Processor = (
        TerminalLine(out, in_colour=out.isatty() and not _no_color())
        if console
        else structlog.processors.JSONRenderer(serializer=_json)
    )
    _quiet_rq()
    logger: FilteringBoundLogger = structlog.wrap_logger(
        _Written(lines or StreamLines(out)),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time" if not console else "timestamp"),
            structlog.processors.format_exc_info,
            _printable,
            redactor(secrets),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=True,
    )
    return logger


def build_event_log(
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    style: Literal["auto", "console", "json"] = "auto",
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
    lines: Lines | None = None,
) -> EventLog:
    """What a worker tells, on a logger of ``build_log``; lines of JSON about events are written by the batch."""
    known, out = tuple(secrets), stream or sys.stderr
    lines = lines or StreamLines(out)
    log = build_log(level=level, style=style, secrets=known, stream=out, lines=lines)
    if _is_for_people(style, out) or LEVELS[level] > LEVELS["info"]:
        return EventLog(log)
    return EventLog(log, LineBatch(lines, secrets=known))


@contextmanager
def process_log(
    level: Literal["debug", "info", "warning", "error"],
    style: Literal["auto", "console", "json"],
    secrets: Iterable[str],
) -> Iterator[tuple[EventLog, LineBuffer]]:
    """The log of a process whose work must not wait for a reader, on stderr, and what stands between the two.

    At the end of the context the reader gets ``LAST_LINES_S`` for what is left.
    """
    lines = LineBuffer(sys.stderr)
    log = build_event_log(level=level, style=style, secrets=secrets, lines=lines)
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


def redactor(secrets: Iterable[str]) -> Processor:
    """A step that replaces every one of ``secrets`` in every value."""
    known = sorted({secret for secret in secrets if secret}, key=len, reverse=True)

    def redact(value: object) -> object:
        if isinstance(value, str):
            for secret in known:
                value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, dict):
            return {redact(key): redact(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [redact(each) for each in value]
        return value

    def step(logger: WrappedLogger, name: str, entry: EventDict) -> EventDict:
        del logger, name
        return {str(key): redact(value) for key, value in entry.items()} if known else entry

    return step


def _now_us() -> int:
    return time.time_ns() // 1_000


class EventLog:
    """What the core and the worker's loop tell, as log lines. A line that cannot be written is no reason to stop."""

    def __init__(
        self, log: FilteringBoundLogger, batch: LineBatch | None = None, clock: Callable[[], int] = _now_us
    ) -> None:
        self._log = log
        self._batch = batch
        self._told: set[str] = set()
        """What is said once: what is wrong with a template or a token is wrong for every event."""
        self._clock = clock

    def of(self, worker: str) -> EventLog:
        """The same log, in which each line names the worker."""
        batch = None if self._batch is None else self._batch.of(worker)
        return EventLog(self._log.bind(worker=worker), batch, self._clock)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """``event.settled``, or ``event.parked`` for what waits."""
        now_us, at = self._now()
        told: list[dict[str, object]] = []
        parked: list[dict[str, object]] = []
        for settlement in settlements:
            if isinstance(settlement.subject, Leased) and settlement.subject.tally is not None:
                if (line := digest_line(settlement.subject.tally, settlement)) is not None:
                    self.say(line[0], **line[1])
                continue
            entry = {**subject_facts(settlement.subject), **facts_of(settlement)}
            if isinstance(settlement.outcome, Parked):
                parked.append(entry)
            else:
                told.append({**entry, "sentence": sentence_of(entry, now_us, at)})
        self._write_all("event.settled", told)
        self._write_all("event.parked", parked)
        for settlement in settlements:
            if settlement.template_fault is not None and isinstance(settlement.subject, Leased):
                category = settlement.subject.event.category
                self._tell("template.failed", category, {"category": category, "detail": settlement.template_fault})
            for part in settlement.outcome.receipt.left_out if isinstance(settlement.outcome, Sent) else ():
                if part.part is Part.LOOK:
                    self._tell("slack.scope_missing", "", {"code": part.code, "detail": part.detail})

    def _tell(self, event: str, about: str, facts: Mapping[str, object]) -> None:
        key = f"{event} {about}"
        if key not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(key)
            self.say(event, **facts)

    def dropped(self, events: Sequence[tuple[Leased, Denied]]) -> None:
        """``event.settled`` for events that a limit has dropped: by the hundred, for a few reasons."""
        self._suppressed("dropped", ((leased.name, leased.event.category, denied) for leased, denied in events))

    def prefiltered(self, groups: Sequence[Prefiltered]) -> None:
        """``event.settled`` for events that were dropped as they were taken: by the hundred, of a few categories."""
        now = self._now()
        told = [(names, {"category": name, **_denial_facts(denied, "dropped", now)}) for name, denied, names in groups]
        try:
            if self._batch is not None and self._batch.write_groups("event.settled", "info", "event_id", told):
                return
        except (OSError, ValueError):
            return  # see _write
        self._write_all("event.settled", [{"event_id": name, **facts} for names, facts in told for name in names])

    def digested(self, events: Sequence[Suppressed]) -> None:
        """``event.settled`` for events that have ended in a digest."""
        self._suppressed("digested", events)

    def waiting(self, events: Sequence[Waiting]) -> None:
        """``event.parked`` for what waits in a line: for its channel, or for room in a limit."""
        own = [each for each in events if each.candidate.leased.is_digest_message]
        self._write_all("event.parked", [waiting_facts(each) for each in events if each not in own])
        for each in own:
            telling = each.candidate.leased.id.partition(":")[0]
            self.say(f"{telling}.parked", category=each.candidate.leased.event.category, reason=each.reason.value)

    def lost(self, events: Sequence[Leased | Undecodable]) -> None:
        """``lease.lost``: another worker has the event, nothing was changed here."""
        for each in events:
            self._write(self._log.warning, "lease.lost", subject_facts(each))

    def turned(self, pauses: Sequence[Turned]) -> None:
        """``slack.paused`` and ``slack.resumed``."""
        for each in pauses:
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

    def failed(self, error: Exception) -> None:
        """A defect of ours, with its traceback."""
        self._log.error("worker.failed", exc_info=error)

    def _suppressed(self, outcome: str, events: Iterable[tuple[str, str, Denied]]) -> None:
        """``event.settled`` for events that a limit has suppressed: many of one denial, one after another."""
        now = self._now()
        known: dict[int, dict[str, object]] = {}
        entries = []
        for name, category, denied in events:
            facts = known.get(id(denied))
            if facts is None:
                facts = known[id(denied)] = _denial_facts(denied, outcome, now)
            entries.append({"event_id": name, "category": category, **facts})
        self._write_all("event.settled", entries)

    def _now(self) -> tuple[int, Clock]:
        now_us = self._clock()
        return now_us, clock_of(now_us)

    def _write_all(self, event: str, entries: Sequence[Mapping[str, object]]) -> None:
        try:
            left = entries if self._batch is None else self._batch.write(event, "info", entries)
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


def _denial_facts(denied: Denied, outcome: str, now: tuple[int, Clock]) -> dict[str, object]:
    facts = dropped_facts(denied, limit_reason(denied.scope), outcome)
    facts["sentence"] = explain.dropped(denied, *now, outcome)
    return facts


def _printable(logger: WrappedLogger, name: str, entry: EventDict) -> EventDict:
    """Characters from events and from Slack that control a terminal, or reorder its line, do nothing there."""
    del logger, name
    for key, value in entry.items():
        if isinstance(value, str) and not value.isprintable():
            kept = "\n" if key == "exception" else ""
            entry[key] = "".join(
                char if char.isprintable() or char in kept else "\N{REPLACEMENT CHARACTER}" for char in value
            )
    return entry


def _json(entry: object, **_options: object) -> str:
    try:
        return encode(entry).decode()
    except TypeError:  # half of a surrogate pair, a number of very many digits
        return json.dumps(entry, default=repr, separators=(",", ":"))


def _is_for_people(style: str, out: TextIO) -> bool:
    return style == "console" or (style == "auto" and out.isatty())


def _no_color() -> bool:
    return bool(os.environ.get("NO_COLOR"))


def _quiet_rq() -> None:
    rq = logging.getLogger("rq")
    rq.propagate = False
    if not rq.handlers:
        rq.addHandler(logging.NullHandler())

"""How long each script blocks the server where very much waits, and what others on it feel of that."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.backlog import LIMITS, LINES, PARKED, REFUSED, TIMED, WIDER, Size, build, environment, label_of, name_of
from benchmarks.effort import Effort
from benchmarks.figures import Cell, Goal, Proofs, Report, Spread, Table
from benchmarks.latency import percentile
from benchmarks.ours import COMMAND, KEYS, QUEUE, settled
from benchmarks.pings import Pings, pinged
from benchmarks.processes import Process, prefer
from benchmarks.slowlog import Blocked, tail, watched, worst
from benchmarks.stage import stage
from dispatcher.cli.exits import UNREACHABLE
from dispatcher.store.snapshot import Books
from tests.support.servers import Database, RedisServer

WORKERS: Final = 4
LONGEST_MS: Final = 20.0
PING_MS: Final = 25.0
"""Goals: the longest script, and what 99.9 % of the PINGs of others take while workers drain."""

QUICK: Final = 0.001
"""The scale of a look at whether everything works."""

SOME: Final = 1_000
"""Events or letters that one command replays, removes or cancels."""

PATIENCE_S: Final = 600.0
"""How long a command may take, and how long a script may block."""

_COMMAND: Final = (sys.executable, "-m", "dispatcher")


@dataclass(frozen=True, slots=True)
class Command:
    """What an operator said, and what blocked the server meanwhile; ``gave_up``: it did not get an answer."""

    said: str
    gave_up: bool
    seconds: float
    blocked: Blocked


@dataclass(frozen=True, slots=True)
class Course:
    """What blocked the server while workers started and while they drained, and what PINGs took while they drained."""

    starting: Blocked
    draining: Blocked
    ours: Pings
    idle: Pings
    drained: int


class Operator:
    """Runs the command line, under the limits that the backlog was built with."""

    def __init__(self, client: Database, url: str, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.limits = folder / "limits.yaml"
        self.limits.write_text(LIMITS, encoding="utf-8")
        self.wider = folder / "wider.yaml"
        self.wider.write_text(WIDER, encoding="utf-8")
        self.environment = environment(url, self.limits)

    def watch(self, *words: str) -> Command:
        """Say a command and watch the server."""
        with watched(self.client) as blocked:
            begun = time.monotonic()
            gave_up = self.say(*words)
            took_s = time.monotonic() - begun
        return Command(" ".join(words), gave_up, took_s, blocked)

    def say(self, *words: str) -> bool:
        """Say a command; it has to do its work, or to give up since a script blocked the server for too long."""
        with Process(*_COMMAND, *words, folder=self.folder, **self.environment) as process:
            return process.finish(PATIENCE_S, codes=(0, UNREACHABLE)) == UNREACHABLE


def run(effort: Effort) -> Report:
    """Built once; each command said once."""
    size = Size().times(effort.of(effort.scale, quick=QUICK))
    proofs = Proofs()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as made,
        stage(effort.cores) as (server, _),
        server.client(socket_timeout=PATIENCE_S) as client,
        RedisServer() as idle,
    ):
        prefer(server.pid, idle.pid)
        client.config_set("lua-time-limit", 0)  # while a script runs everybody waits, and is refused nothing
        build(client, server.url, Path(made), size)
        _prove_backlog(client, size, proofs)
        operator = Operator(client, server.url, Path(made))
        commands = [_said(operator, words, proofs) for words in _commands(size, effort)]
        course = _drain(operator, server.url, idle.url, effort, proofs)
        commands += [_said(operator, words, proofs) for words in _last_commands(size)]
        proofs.add("equations of the books that do not hold after all", _imbalances(client), 0)
        least = size.lines_of_labels // 10
        proofs.add("drained, at least", min(course.drained, least), least)
    return Report(tuple(_tables(size, commands, course)), tuple(_goals(commands, course)), proofs.collected(), _NOTES)


_NOTES: Final = (
    "Times of scripts are the server's own, from its slow log. A command of the server may stand inside a script.",
    "The share of 99.9 % is of the calls that took 0.1 ms and more: that of all calls is no longer.",
    "Run as root, the servers and the PINGs go before everything else on the machine.",
    "What a PING of an idle server beside takes shows what the machine itself adds.",
)


def _prove_backlog(client: Database, size: Size, proofs: Proofs) -> None:
    look = Books(client, KEYS, QUEUE).snapshot()
    proofs.add("equations of the books that do not hold before all", len(look.imbalances()), 0)
    proofs.add("parked", look.parked, size.parked + len(PARKED))
    lines = sum(1 for _ in client.scan_iter(match=KEYS.line("*"), count=10_000))
    proofs.add("lines", lines, size.lines + len(LINES))
    proofs.add(
        "scopes of labels",
        client.exists(*(KEYS.scope(f"label:reports:host={label_of(n)}") for n in range(size.lines_of_labels))),
        size.lines_of_labels,
    )
    proofs.add("dead letters", look.dead_letters, size.letters + 1)


def _imbalances(client: Database) -> int:
    return len(Books(client, KEYS, QUEUE).snapshot().imbalances())


def _commands(size: Size, effort: Effort) -> Iterator[tuple[str, ...]]:
    """Everything that reads or changes what is there, but for what lets it go."""
    some = str(min(SOME, size.letters // 4))
    yield from (("status",), ("status", "--json"), ("status", "--check"), ("limits", "show", "--json"))
    for category in effort.of((*PARKED, REFUSED), quick=(REFUSED,)):
        yield "explain", name_of(category, 1)
    yield from (("dead", "list"), ("dead", "list", "--category", "alerts"), ("dead", "show", name_of(REFUSED, 1)))
    yield "dead", "purge", "--all", "--limit", some, "--yes"
    yield from (("parked", "list"), ("parked", "list", "--category", TIMED), ("parked", "show", name_of("alerts", 1)))
    for category in effort.of(PARKED, quick=PARKED[:1]):
        yield "parked", "cancel", "--category", category, "--limit", some, "--yes"
    yield from (("mute", "audits", "--for", "1h", "--why", "a benchmark"), ("unmute", "audits"))
    yield from (("pause", "alerts"), ("resume", "alerts"), ("pause",), ("resume",))


def _last_commands(size: Size) -> Iterator[tuple[str, ...]]:
    """What puts events on the queue: workers that start are to find nothing that may go."""
    yield "dead", "replay", "--all", "--limit", str(min(SOME, size.letters // 4))
    yield "send", "alerts", "one more"


def _said(operator: Operator, words: tuple[str, ...], proofs: Proofs) -> Command:
    """Say a command; what it replays, removes, cancels or sends is counted, unless it had no answer."""
    before = _counts(operator.client)
    command = operator.watch(*words)
    if not command.gave_up and words[:2] in _CHANGES:
        some = int(words[words.index("--limit") + 1]) if "--limit" in words else 1
        changed = [now - then for now, then in zip(_counts(operator.client), before, strict=True)]
        for what, number, sign in zip(
            ("on the queue", "parked", "dead letters"), changed, _CHANGES[words[:2]], strict=True
        ):
            proofs.add(f"{' '.join(words[:2])}: {what}, more or less", number, sign * some)
    return command


_CHANGES: Final[dict[tuple[str, ...], tuple[int, int, int]]] = {
    ("dead", "replay"): (1, 0, -1),
    ("dead", "purge"): (0, 0, -1),
    ("parked", "cancel"): (0, -1, 0),
    ("send", "alerts"): (1, 0, 0),
}
"""By how many times its limit a command changes what is on the queue, what is parked, and the dead letters."""


def _counts(client: Database) -> tuple[int, int, int]:
    look = Books(client, KEYS, QUEUE).snapshot()
    return look.waiting, look.parked, look.dead_letters


def _drain(operator: Operator, url: str, idle_url: str, effort: Effort, proofs: Proofs) -> Course:
    """Workers start and find that nothing may go; then wider limits let all of it go at once."""
    client, command = operator.client, (*COMMAND, f"--processes={WORKERS}")
    proofs.add("on the queue when workers start", _counts(client)[0], 0)
    ended = settled(client)
    with Process(*command, folder=operator.folder, **operator.environment) as workers:
        with watched(client) as starting:
            workers.until(lambda: workers.log.read_bytes().count(b'"worker.started"') == WORKERS, "all workers")
            time.sleep(effort.of(5.0, quick=0.5))
        before = settled(client)
        proofs.add("settled while workers start", before - ended, 0)
        with watched(client) as draining, pinged(url, idle_url, folder=operator.folder) as (ours, idle):
            begun = time.monotonic()
            operator.say("limits", "apply", str(operator.wider))
            operator.say("status", "--check")
            time.sleep(max(0.0, effort.of(20.0, quick=1.0) - (time.monotonic() - begun)))
        return Course(starting, draining, ours, idle, settled(client) - before)


def _tables(size: Size, commands: Sequence[Command], course: Course) -> Iterator[Table]:
    yield Table(
        f"what an operator says: {size.parked:,} parked in {size.lines:,} lines, {size.letters:,} dead letters",
        ("", "seconds", "longest script", "ms", "longest command of the server", "ms of it"),
        tuple(_row(each) for each in commands),
    )
    for title, blocked in (
        (f"{WORKERS} workers start", course.starting),
        (f"'limits apply': {WORKERS} workers drain, {course.drained:,} events by then", course.draining),
    ):
        columns = ("script", "calls of 0.1 ms and more", "99.9 %, ms", "longest, ms")
        yield Table(title, columns, tuple(_scripts(blocked)))
    yield Table(
        f"{WORKERS} workers drain: what others feel",
        ("a PING of theirs", "PINGs", "median, ms", "99.9 %, ms", "longest, ms"),
        tuple(
            (name, len(took), percentile(took, 50), tail(took), max(took))
            for name, took in (("on the same server", course.ours.took), ("on an idle one beside", course.idle.took))
        ),
    )


def _row(command: Command) -> tuple[Cell, ...]:
    script, script_ms = worst(command.blocked.scripts.items())
    name, name_ms = worst(command.blocked.commands.items())
    said = f"{command.said}: gave up" if command.gave_up else command.said
    return said, command.seconds, script, script_ms, name, name_ms


def _scripts(blocked: Blocked) -> Iterator[tuple[Cell, ...]]:
    for name, took in sorted(blocked.scripts.items(), key=lambda row: -max(row[1])):
        yield name, len(took), tail(took), max(took)


def _goals(commands: Sequence[Command], course: Course) -> Iterator[Goal]:
    for said, blocked in (
        *((each.said, each.blocked) for each in commands),
        (f"{WORKERS} workers start", course.starting),
        (f"{WORKERS} workers drain", course.draining),
    ):
        _, longest_ms = worst([*blocked.scripts.items(), *blocked.commands.items()])
        yield Goal(f"{said}: the longest script or command, ms", Spread.of([longest_ms]), at_most=LONGEST_MS)
    reached = Spread.of([tail(course.ours.took)])
    yield Goal(f"a PING of others while {WORKERS} workers drain, 99.9 %, ms", reached, at_most=PING_MS)

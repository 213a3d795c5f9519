"""What is to be said of what lies in a namespace: layout, queue, books, workers, what waits and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.app.checks import NamespaceFacts
from dispatcher.app.documents.instants import span
from dispatcher.app.documents.pause_words import pause_in_words
from dispatcher.app.limits import OwnFile
from dispatcher.cli.context import near, origin
from dispatcher.cli.doctor.finding import START, Finding, error, ok, warning
from dispatcher.cli.doctor.server import MAX_USE
from dispatcher.cli.status import balance
from dispatcher.core.limits import EVERYTHING
from dispatcher.core.policy import EDITS
from dispatcher.core.rendering import one_line
from dispatcher.core.units import US
from dispatcher.server.keys import LAYOUT_VERSION
from dispatcher.settings.environment import Settings
from dispatcher.store.snapshot import Snapshot
from dispatcher.store.versions import Version


def namespace_findings(facts: NamespaceFacts, settings: Settings) -> Iterator[Finding]:
    """Everything about the namespace and its queue; of one that another version wrote only that."""
    snapshot = facts.snapshot
    yield _layout(facts, settings)
    yield _binding(facts, settings)
    if snapshot is None:
        return
    if facts.limits is not None:
        yield _limits(facts.limits, facts.own_file)
    yield _books(snapshot)
    yield _queue(facts, snapshot, settings)
    yield from _workers(facts, snapshot)
    yield from _leases(facts, snapshot)
    yield from _posting(snapshot)
    yield from _silences(snapshot)
    yield _dead_letters(snapshot)


def _layout(facts: NamespaceFacts, settings: Settings) -> Finding:
    if facts.layout is None:
        return ok("namespace", f"{settings.namespace} is new: no worker has run in it")
    if facts.snapshot is None:
        return error(
            "namespace",
            f"{settings.namespace} holds key layout {one_line(facts.layout)}, this version reads {LAYOUT_VERSION}",
            "let workers of the version that wrote it drain it, or set DISPATCHER_NAMESPACE to a new one",
        )
    return ok("namespace", f"{settings.namespace} has key layout {facts.layout}, which this version reads")


def _binding(facts: NamespaceFacts, settings: Settings) -> Finding:
    if facts.bound_to is None:
        return ok("queue", f"{settings.queue} belongs to nobody yet, the first worker takes it")
    if facts.bound_to != settings.namespace:
        return error(
            "queue",
            f"{settings.queue} belongs to namespace {one_line(facts.bound_to)}, not to {settings.namespace}",
            "set DISPATCHER_NAMESPACE to it, or DISPATCHER_QUEUE to another queue",
        )
    return ok("queue", f"{settings.queue} belongs to {settings.namespace}")


def _limits(version: Version, own: OwnFile | None) -> Finding:
    """Of a file with faults no more is said here: they are findings of their own."""
    if own is None or own.is_same is None:
        return ok("limits", f"version {version.number} is in force, {origin(version)}")
    file = near(own.path)
    if own.is_same:
        return ok("limits", f"version {version.number} is in force, as {file} says")
    return warning(
        "limits",
        f"version {version.number} is in force, NOT what {file} says",
        f"'dispatcher limits apply {file}' publishes it; 'dispatcher limits diff {file}' shows what would change",
    )


def _books(snapshot: Snapshot) -> Finding:
    imbalances = snapshot.imbalances()
    if imbalances:
        remedy = (
            "something else has written in the namespace, or this is a defect: keep a copy of the data and report it"
        )
        return error("books", f"they do not balance: {'; '.join(imbalances)}", remedy)
    return ok("books", f"they {balance(snapshot).removeprefix('the books ')}")


def _queue(facts: NamespaceFacts, snapshot: Snapshot, settings: Settings) -> Finding:
    said = f"{snapshot.waiting} waiting, {snapshot.in_flight} in flight, {snapshot.parked} parked"
    if facts.suspended:
        return warning("waiting", f"{said}; taking is suspended for all RQ workers of the database", "rq resume")
    if snapshot.pending >= MAX_USE * settings.max_waiting:
        said = f"{said}; from {settings.max_waiting} in all on producers are refused"
        remedy = "start more workers, or raise DISPATCHER_MAX_WAITING"
        if 2 * snapshot.parked > snapshot.pending:  # no worker is what these wait for
            remedy = "see what they wait for: 'dispatcher parked list'; cancel what is out of date, or widen its limit"
        return warning("waiting", said, remedy)
    return ok("waiting", said)


def _workers(facts: NamespaceFacts, snapshot: Snapshot) -> Iterator[Finding]:
    silent = [each for each in facts.workers if not each.alive]
    alive = [each for each in facts.workers if each.alive]
    for each in silent:
        said = (
            f"{one_line(each.name)} has been silent for {_ago(snapshot, each.last_heartbeat)}: it was killed, or hangs"
        )
        remedy = "nothing is lost: another worker takes over what it had; its entry goes away automatically"
        yield warning("workers", said, remedy)
    if not alive:
        pending = "1 event is" if snapshot.pending == 1 else f"{snapshot.pending} events are"
        waits = f", and {pending} to be dealt with" if snapshot.pending else ""
        yield warning("workers", f"none is running{waits}", f"start some with {START}")
        return
    latest = max(each.last_heartbeat for each in alive)
    count = "1 is" if len(alive) == 1 else f"{len(alive)} are"
    yield ok("workers", f"{count} running, the last heartbeat was {_ago(snapshot, latest)} ago")


def _leases(facts: NamespaceFacts, snapshot: Snapshot) -> Iterator[Finding]:
    for each in facts.overdue:
        late = span((snapshot.now_us - each.ended_us) / US)
        said = f"the lease of {one_line(each.owner)} ended {late} ago with {each.events} events in hand"
        yield warning("leases", said, f"any worker that runs takes them over: {START}")
    if not facts.overdue:
        yield ok(
            "leases", f"{len(snapshot.leases)} held, none overdue" if snapshot.leases else "none held, none overdue"
        )


def _posting(snapshot: Snapshot) -> Iterator[Finding]:
    for name, by_hand in sorted(snapshot.paused.items()):
        what, command = ("", "resume") if name == EVERYTHING else (f"{name} is ", f"resume {name}")
        since = span(max(0.0, (snapshot.now_us - by_hand.since_us) / US))
        yield warning("posting", one_line(f"{what}paused for {since} by {by_hand.by}"), f"go on: dispatcher {command}")
    pause = snapshot.pause
    if pause is not None:
        said, remedy = pause_in_words(pause, snapshot)
        yield (error if pause.kind == "operator" else warning)("posting", said, remedy)
    for channel, until_us in sorted(snapshot.cooldowns.items()):
        if until_us > snapshot.now_us:
            name, left = one_line(channel), span((until_us - snapshot.now_us) / US)
            if snapshot.failures.get(channel):
                what = "edits of messages get" if channel == EDITS else f"{name} gives"
                tries = "edit" if channel == EDITS else "post to it"
                said = f"{what} no clear answers, the next {tries} tries in {left}"
                remedy = (
                    "it is tried again automatically; if that does not help, look at Slack's status page and the proxy"
                )
            elif channel == EDITS:
                said = f"Slack asked for a pause in edits of messages, another {left}"
                remedy = "nothing: posts go on, and edits resume automatically"
            else:
                said = f"Slack asked for a pause in {name}, another {left}"
                remedy = "posting resumes automatically; if it happens often, lower the channel's pace"
            yield warning("posting", said, remedy)
    if snapshot.next_scan_us is not None:
        left = span(max(0.0, (snapshot.next_scan_us - snapshot.now_us) / US))
        said = f"Slack limits history scans, the next one is made in {left}"
        yield warning("history scans", said, "nothing: posts go on, and what is to be searched for waits")


def _silences(snapshot: Snapshot) -> Iterator[Finding]:
    for each in reversed(snapshot.silences_in_force):
        left, suppressed = span((each.ends_us - snapshot.now_us) / US), snapshot.suppressed.get(each.id, 0)
        said = f"{each.matchers} for another {left} {each.detail}, {suppressed} suppressed"
        yield warning(
            "silences", one_line(said, 300), f"it ends automatically, or: dispatcher silence expire {each.id}"
        )


def _dead_letters(snapshot: Snapshot) -> Finding:
    if not snapshot.dead_letters:
        return ok("dead letters", "none")
    kept = "1 is" if snapshot.dead_letters == 1 else f"{snapshot.dead_letters} are"
    remedy = "'dispatcher dead list' says why; when that is mended, 'dispatcher dead replay' sends them again"
    return warning("dead letters", f"{kept} kept for somebody to look at", remedy)


def _ago(snapshot: Snapshot, at: float) -> str:
    return span(max(0.0, snapshot.now_us / US - at))

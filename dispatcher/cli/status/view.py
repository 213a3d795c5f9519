"""The status as tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from dispatcher.app.documents.facts import COUNTS, SILENCE, Status, untold
from dispatcher.app.documents.instants import clock, span, zone
from dispatcher.app.documents.recent import Recent
from dispatcher.app.fleet import WorkerEntry
from dispatcher.cli.drawing import Fitting, Part, Table, Text, cut, joined
from dispatcher.cli.status.use_view import ALWAYS, STYLES, categories, most, say_how_many_more
from dispatcher.core.limits import EVERYTHING
from dispatcher.core.policy import EDITS
from dispatcher.core.quiet import QUIET_PREFIX, Quiet, Span
from dispatcher.core.rendering import one_line
from dispatcher.core.units import US
from dispatcher.store.snapshot import Pause, PausedByHand, Snapshot

_CHANNEL: Final = "channel:"
_PAUSED: Final = "paused:"
_STATES: Final = {"started": "idle"}
"""RQ's words that say more of RQ than of the worker: one that has just started waits for work."""

_FEWEST: Final = ("Server", "To do", "Queue", "Events", "Posting", "Workers")
"""The facts that stay where there is too little room for all."""


class Rows(NamedTuple):
    """The most rows of each table; of those beyond, one says how many they are.

    ``tables`` is how many tables stand below that of the categories; of the others, a line says what they would hold.
    Above it stand facts: each in one line if they ``are_cut``; of the ``fewest`` only what comes in and whether it is
    posted.
    """

    categories: int
    others: int
    tables: int = sys.maxsize
    tallies: int = 5
    are_cut: bool = False
    fewest: bool = False


def tables(status: Status, rows: Rows | None = None) -> Iterator[Part]:
    """What there is to show, in order; a table without rows is left out.

    With ``rows``, those that say most are shown, in their usual order.
    """
    rows = rows or Rows(sys.maxsize, sys.maxsize)
    yield _summary(status, rows)
    yield Text("")
    yield categories(status, rows.categories)
    below = [(table, held) for build, held in _BELOW if (table := build(status, rows.others)) is not None]
    for table, _ in below[: rows.tables]:
        yield Text("")
        yield table
    if left_out := below[rows.tables :]:
        said = ", ".join(held(status) for _, held in left_out)
        yield Text("")
        yield Text(f"and {said} in 'dispatcher status'", style="dim")


def _summary(status: Status, rows: Rows) -> Table:
    grid = Table(is_grid=True)
    grid.add_column(style="bold")
    grid.add_column()
    left_out = 0
    for name, said in _facts(status, rows.tallies):
        if rows.fewest and name not in _FEWEST:
            left_out += 1
        else:
            grid.add_row(name, said._replace(breaks=not rows.are_cut))
    if left_out:
        grid.add_note(Text(f"and {left_out} more {'line' if left_out == 1 else 'lines'} in 'dispatcher status'", "dim"))
    return grid


def _facts(status: Status, tallies: int) -> Iterator[tuple[str, Text]]:
    snapshot, totals = status.snapshot, status.snapshot.overall()
    if status.refusal is not None:
        yield "Server", Text(f"can only be read: {status.refusal.said}", style="bold red")
        yield "To do", Text(status.refusal.remedy)
    yield "Queue", Text(f"{snapshot.waiting} waiting, {snapshot.in_flight} in flight, {snapshot.parked} parked")
    ended = [_counted(name, totals[name]) for name in (*ALWAYS[:3], *_others(totals))]
    yield "Events", joined(", ", [Text(f"{totals['enqueued']} enqueued"), *ended])
    if said := _rates(status.recent):
        yield "Rate", Text(said)
    for what, words in _kept(snapshot, tallies):
        yield what, Text(words)
    yield from _posting(snapshot)
    for name, paused in sorted(snapshot.paused.items()):
        if name != EVERYTHING:
            by = _by_hand(snapshot, paused, f"dispatcher resume {name}")
            yield "Paused", Text(f"{name} {by}", style="yellow")
    for each in reversed(snapshot.silences_in_force):
        until = f"until {clock(each.ends_us / US)} ({_in(each.ends_us - snapshot.now_us)})"
        until += "" if each.idle_end_us is None else f" if idle, {clock(each.until_us / US)} at the latest,"
        said = f"{each.muted or each.matchers} {until} {each.detail}, {snapshot.suppressed.get(each.id, 0)} suppressed"
        yield "Muted" if each.muted else "Silenced", Text(one_line(said, 200), style="yellow")
    for quiet, span_now in status.quiet:
        yield "Quiet", Text(one_line(_quiet(quiet, span_now, snapshot.now_us), 200))
    if not status.workers:
        yield "Workers", Text("none is running: 'dispatcher up' starts some", style="yellow")


def _quiet(quiet: Quiet, now: Span, now_us: int) -> str:
    whose = "all categories" if quiet.categories is None else ", ".join(quiet.categories)
    until = "" if now.until_us is None else f" until {clock(now.until_us / US)} ({_in(now.until_us - now_us)})"
    return f"{quiet.name}{until}, {quiet.then}: {whose}"


def _posting(snapshot: Snapshot) -> Iterator[tuple[str, Text]]:
    """Why nobody posts, and what to do about it."""
    by_hand = snapshot.paused.get(EVERYTHING)
    if by_hand is not None:
        yield "Posting", Text(_by_hand(snapshot, by_hand, "dispatcher resume"), style="bold red")
    elif snapshot.pause is not None:
        from dispatcher.app.documents.pause_words import pause_in_words

        said, remedy = pause_in_words(snapshot.pause, snapshot)
        yield "Posting", Text(said, style="bold red")
        yield "To do", Text(remedy)
        yield "Next try", Text(_next_try(snapshot, snapshot.pause))


def _kept(snapshot: Snapshot, tallies: int) -> Iterator[tuple[str, str]]:
    """What waits in no line and until when the first of it does, what was suppressed and not told of, dead letters."""
    if timers := snapshot.timers - snapshot.tallies_at("timer"):
        next_us = (snapshot.next_timer_us or snapshot.now_us) - snapshot.now_us
        yield "Timers", f"{timers} parked" if snapshot.is_stopped else f"{timers} parked, the next {_in(next_us)}"
    if snapshot.scheduled:
        next_us = (snapshot.next_scheduled_us or snapshot.now_us) - snapshot.now_us
        yield "Scheduled", f"{snapshot.scheduled} parked, the next {_in(next_us)}"
    if snapshot.next_scan_us is not None:
        yield "History scans", f"Slack limits them, the next {_in(snapshot.next_scan_us - snapshot.now_us)}"
    if said := _suppressed(snapshot, tallies):
        yield "Suppressed", said
    if snapshot.dead_letters:
        yield "Dead letters", f"{snapshot.dead_letters} kept"


def _rates(recent: Recent) -> str:
    """How many events come and end in a second; '' while none do."""
    rates = {("in" if name == "received" else name): rate for name, rate in recent.rates.items() if rate}
    said = ", ".join(f"{rate:.{_decimals(rate)}f}/s {name}" for name, rate in rates.items())
    return said and f"{said}, over {span(recent.over_s)}"


def _decimals(rate: float) -> int:
    return 0 if rate >= 10 else 1 if rate >= 1 else 2  # noqa: PLR2004 - two or three digits that say something


def _counted(name: str, count: int) -> Text:
    plural = {"notices": "notice", "duplicate": "duplicates"}
    what = plural.get(name, name) if (name == "notices") == (count == 1) else name
    return Text(f"{count} {what}", style=STYLES.get(name, "") if count else "")


def _others(totals: dict[str, int]) -> list[str]:
    return [name for name in (*COUNTS, "replayed", "notices") if name not in ALWAYS and totals.get(name)]


def _by_hand(snapshot: Snapshot, paused: PausedByHand, command: str) -> str:
    since = span(max(0.0, (snapshot.now_us - paused.since_us) / US))
    return one_line(
        f"paused for {since} by {paused.by}{': ' if paused.why else ''}{paused.why}; go on with '{command}'"
    )


def _suppressed(snapshot: Snapshot, most_tallies: int) -> str:
    """What was suppressed and not told of, the most first; '' where there is nothing."""
    from dispatcher.core.explain import clock_of

    at, found, said = clock_of(snapshot.now_us), untold(snapshot), []
    for each in found[:most_tallies]:
        since = f"{each.count} since {at(each.since_us)} {zone(each.since_us / US)}"
        is_silence = each.telling == SILENCE
        said.append(f"silence {each.name}: {since}" if is_silence else f"{each.name}: {since} ({each.telling})")
    more = len(found) - len(said)
    others = f"{more} more" if snapshot.has_all_tallies else "others that were not looked at"
    has_others = said and (more or not snapshot.has_all_tallies)
    return one_line(", ".join(said) + (f" and {others}" if has_others else ""), 1_000)


def _next_try(snapshot: Snapshot, pause: Pause) -> str:
    next_s = (pause.probe_us - snapshot.now_us) / US
    return f"in {span(next_s)}" if next_s > 0 else "with the next event"


def _deferred(status: Status, rows: int) -> Table | None:
    snapshot = status.snapshot
    lines = {name: line for name, line in sorted(snapshot.lines.items()) if line.scope is not None}
    if not lines and not snapshot.more_deferred:
        return None
    table = Table()
    table.add_column("Deferred")
    table.add_column("Waiting", is_right=True, breaks=False)
    table.add_column("Next", breaks=False)
    table.add_column("Waits for")
    chosen = most(list(lines), rows, lambda name: lines[name].waiting)
    for name in chosen:
        line = lines[name]
        following = "now" if line.next_us is None else _in(line.next_us - snapshot.now_us)
        if following == "now" and snapshot.is_stopped:
            following = "when posting goes on"
        held = " (quiet)" if name.startswith(QUIET_PREFIX) else ""
        line_of = name.removeprefix(QUIET_PREFIX).removeprefix("category:").removeprefix("label:")
        shown = f"{one_line(line_of)}{held}"
        table.add_row(cut(shown), str(line.waiting), following, cut(one_line(line.scope or "")))
    hidden = sum(lines[name].waiting for name in lines.keys() - set(chosen))
    _say_what_is_left_out(table, len(lines) - len(chosen), hidden, snapshot.more_deferred)
    return table


def _channels(status: Status, rows: int) -> Table | None:
    snapshot = status.snapshot
    lines = {name.removeprefix(_CHANNEL): line for name, line in snapshot.lines.items() if line.scope is None}
    channels = sorted(lines.keys() | snapshot.cooldowns.keys())
    if not channels and not snapshot.more_for_channels:
        return None
    table = Table()
    table.add_column("Channel")
    table.add_column("Waiting", is_right=True, breaks=False)
    for heading in ("Next post", "Cool-down"):
        table.add_column(heading, breaks=False)
    chosen = most(channels, rows, lambda channel: lines[channel].waiting if channel in lines else 0)
    for channel in chosen:
        line, until_us = lines.get(channel), snapshot.cooldowns.get(channel, 0)
        if line is None:
            following = ""
        elif channel.startswith(_PAUSED):
            following = "when it is resumed"
        elif snapshot.is_stopped:
            following = "when posting goes on"
        elif line.next_us is None:
            following = "after the one in flight"
        else:
            following = _in(line.next_us - snapshot.now_us)
        cooldown = span((until_us - snapshot.now_us) / US) if until_us > snapshot.now_us else ""
        shown = f"{channel.removeprefix(_PAUSED)} (paused)" if channel.startswith(_PAUSED) else channel
        shown = "(edits)" if channel == EDITS else shown
        table.add_row(cut(one_line(shown)), str(line.waiting if line else 0), following, Text(cooldown, "red"))
    hidden = sum(lines[name].waiting for name in lines.keys() - set(chosen))
    _say_what_is_left_out(table, len(channels) - len(chosen), hidden, snapshot.more_for_channels)
    if snapshot.more_cooldowns:
        table.add_note(Text(f"and {snapshot.more_cooldowns} more that cool down", style="dim"))
    return table


def _say_what_is_left_out(table: Table, rows: int, hidden: int, more: int) -> None:
    """How many rows are left out; where the look did not tell of all lines, how many events stand in the others."""
    if more > 0:
        count = hidden + more
        table.add_note(Text(f"and {count} {'event' if count == 1 else 'events'} in other lines", style="dim"))
    else:
        say_how_many_more(table, rows)


def _in(wait_us: int) -> str:
    return f"in {span(wait_us / US)}" if wait_us > 0 else "now"


def _workers(status: Status, rows: int) -> Fitting | None:
    """The name of a worker of ours holds its host and process id: they go where there is little room."""
    if not status.workers:
        return None
    return Fitting(lambda: _worker_table(status, rows, ("Host", "PID")), lambda: _worker_table(status, rows, ()))


def _worker_table(status: Status, rows: int, headings: tuple[str, ...]) -> Table:
    table = Table()
    table.add_column("Worker")
    for heading in (*headings, "State", "Heartbeat"):
        table.add_column(heading, breaks=False)
    chosen = most(list(status.workers), rows, lambda each: not each.alive)
    for each in chosen:
        ago = span(max(0.0, status.snapshot.now_us / US - each.last_heartbeat))
        facts = (Text(one_line(each.host)), str(each.pid)) if headings else ()
        heartbeat = Text(f"{ago} ago", style="" if each.alive else "red")
        table.add_row(cut(one_line(each.name)), *facts, _state(each), heartbeat)
    say_how_many_more(table, len(status.workers) - len(chosen))
    return table


def _state(worker: WorkerEntry) -> Text:
    if not worker.alive:
        return Text("silent", style="red")
    return Text(_STATES.get(worker.state, one_line(worker.state)))


def _deferred_held(status: Status) -> str:
    snapshot = status.snapshot
    waiting = sum(line.waiting for line in snapshot.lines.values() if line.scope is not None)
    return f"{waiting + max(0, snapshot.more_deferred)} deferred"


def _channels_held(status: Status) -> str:
    snapshot = status.snapshot
    waiting = sum(line.waiting for line in snapshot.lines.values() if line.scope is None)
    return f"{waiting + max(0, snapshot.more_for_channels)} for channels"


def _workers_held(status: Status) -> str:
    silent = sum(not each.alive for each in status.workers)
    said = f"{len(status.workers)} {'worker' if len(status.workers) == 1 else 'workers'}"
    return f"{said} ({silent} silent)" if silent else said


_BELOW: Final[tuple[tuple[Callable[[Status, int], Part | None], Callable[[Status], str]], ...]] = (
    (_deferred, _deferred_held),
    (_channels, _channels_held),
    (_workers, _workers_held),
)
"""The tables below that of the categories; and what each holds, in words for where it has no room."""

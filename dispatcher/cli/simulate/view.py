"""What ``dispatcher simulate`` shows: tables with bars, and what stands out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dispatcher.app.documents.instants import in_full, span
from dispatcher.cli.drawing import DOT, EMPTY, FULL, LIGHT, Bar, Fitting, Part, Table, Text, cut
from dispatcher.core.limits import Limit
from dispatcher.core.policy import GLOBAL_SCOPE
from dispatcher.core.units import US
from dispatcher.simulate.course import Course
from dispatcher.simulate.figures import EventCounts, Fullest
from dispatcher.simulate.simulation import Simulated

_ROWS: Final = 25
_REASONS: Final = 8
_BAR: Final = 30


def drawn(before: Simulated | None, after: Simulated) -> Iterator[Part]:
    """The whole page."""
    runs = [after] if before is None else [before, after]
    yield EMPTY
    yield _totals(runs)
    yield EMPTY
    yield Fitting(lambda: _categories(runs), lambda: _categories(runs, has_bars=False))
    yield EMPTY
    windows, channels = _windows(after), _channels(after)
    yield Fitting(lambda: windows, lambda: windows, lambda: _windows(after, has_instants=False))
    yield EMPTY
    yield Fitting(lambda: channels, lambda: channels, lambda: _channels(after, has_waits=False))
    yield EMPTY
    for sentence in _sentences(after):
        yield Text(sentence)


def _heads(runs: Sequence[Simulated]) -> tuple[str, ...]:
    return ("Events",) if len(runs) == 1 else ("Before", "After")


def _totals(runs: Sequence[Simulated]) -> Table:
    table = Table()
    table.add_column("")
    for head in _heads(runs):
        table.add_column(head, is_right=True)
    totals = [run.course.total for run in runs]

    def row(name: str, values: Sequence[int], style: str = "") -> None:
        table.add_row(Text(name, style), *(Text(f"{value:,}", style) for value in values))

    row("offered", [each.offered for each in totals])
    row("sent", [each.sent for each in totals], "green")
    if any(each.deferred for each in totals):
        row("deferred", [each.deferred for each in totals])
        for name, delay in (("p50", _half), ("p95", _most), ("longest", _longest)):
            table.add_row(f"  waited, {name}", *(span(delay(run.course)) for run in runs))
    for outcome, style in (("digested", "yellow"), ("dropped", "yellow"), ("dead", "red")):
        if any(getattr(each, outcome) for each in totals):
            row(outcome, [getattr(each, outcome) for each in totals], style)
            reasons = _reasons(runs, outcome)
            for why in reasons[:_REASONS]:
                row(f"  {why}", [run.course.reasons[outcome, why] for run in runs])
            _say_more(table, len(reasons) - _REASONS, indent="  ")
    for outcome in ("duplicate", "waiting"):
        if any(getattr(each, outcome) for each in totals):
            row(outcome, [getattr(each, outcome) for each in totals])
    return table


def _half(course: Course) -> float:
    return course.delays.percentile_s(50)


def _most(course: Course) -> float:
    return course.delays.percentile_s(95)


def _longest(course: Course) -> float:
    return course.delays.most_s


def _reasons(runs: Sequence[Simulated], outcome: str) -> list[str]:
    """By what it was suppressed, what suppressed the most first."""
    counts = {why: run.course.reasons[of, why] for run in runs for of, why in run.course.reasons if of == outcome}
    return sorted(counts, key=lambda why: -counts[why])


def _categories(runs: Sequence[Simulated], *, has_bars: bool = True) -> Table:
    after = runs[-1].course
    table = Table()
    table.add_column("Category")
    table.add_column("Offered", is_right=True)
    if has_bars:
        table.add_column("Sent █, not sent ░")
    for head in ("Sent",) if len(runs) == 1 else ("Sent before", "after"):
        table.add_column(head, is_right=True)
    table.add_column("%", is_right=True)
    chosen = sorted(after.categories, key=lambda name: (-after.categories[name].offered, name))[:_ROWS]
    most = max((after.categories[name].offered for name in chosen), default=1)
    for name in chosen:
        counts = after.categories[name]
        bars = (_bar(counts, most),) if has_bars else ()
        sent = (f"{run.course.categories.get(name, EventCounts()).sent:,}" for run in runs)
        table.add_row(cut(name), f"{counts.offered:,}", *bars, *sent, f"{100 * counts.share:.1f}")
    _say_more(table, len(after.categories) - len(chosen))
    return table


def _bar(counts: EventCounts, most: int) -> Bar:
    whole = max(1, round(_BAR * counts.offered / most))
    sent = min(whole, max(round(_BAR * counts.sent / most), 1 if counts.sent else 0))
    return Bar(((sent, FULL, "green"), (whole - sent, LIGHT, "yellow"), (_BAR - whole, DOT, "dim")))


def _windows(run: Simulated, *, has_instants: bool = True) -> Table:
    table = Table()
    for head in ("Limit", "Fullest window", "of", *(["At"] if has_instants else []), "Budget used %"):
        table.add_column(head, is_right=head not in {"Limit", "At"})
    by_use = sorted(run.course.windows.items(), key=lambda item: (item[0][0] != GLOBAL_SCOPE, -_use(item[1])))
    for (scope, limit), fullest in by_use[:_ROWS]:
        at = _instant(run, fullest.at_us) if fullest.most else ""
        used = f"{100 * _budget(run, scope, fullest.limit):.1f}"
        instant = (at,) if has_instants else ()
        table.add_row(f"{scope} {limit}", str(fullest.most), str(fullest.limit.max), *instant, used)
    _say_more(table, len(by_use) - _ROWS)
    return table


def _use(fullest: Fullest) -> float:
    return fullest.most / fullest.limit.max


def _budget(run: Simulated, scope: str, limit: Limit) -> float:
    """How much of what the limit allows in the length of the trace was used, by events.

    The last window may be cut short and full all the same: more than all of it is never used.
    """
    course = run.course
    counts = course.total if scope == GLOBAL_SCOPE else course.categories.get(scope.partition(":")[2], EventCounts())
    windows = max(1.0, course.bars.count * course.bars.width_us / limit.window_us)
    return min(1.0, counts.sent / (limit.max * windows))


def _channels(run: Simulated, *, has_waits: bool = True) -> Table:
    """Each channel; with ``has_waits`` also how full its pace was, and how long posts waited for it."""
    table = Table()
    waits = ("Fullest window", "Waited for it, p95", "longest") if has_waits else ()
    for head in ("Channel", "Posts", "Pace", *waits, "429"):
        table.add_column(head, is_right=head not in {"Channel", "Pace"}, breaks=head not in {"Pace", "Posts"})
    channels = run.course.channels
    chosen = sorted(channels, key=lambda name: -channels[name].posts)[:_ROWS]
    for name in chosen:
        each = channels[name]
        pace = "none" if each.pace is None else str(each.pace)
        full = "" if each.fullest is None else f"{each.fullest.most}"
        waited = (full, span(each.delays.percentile_s(95)), span(each.delays.most_s)) if has_waits else ()
        table.add_row(cut(name), f"{each.posts:,}", pace, *waited, f"{run.slack.refused[name]:,}")
    _say_more(table, len(channels) - len(chosen))
    return table


def _say_more(table: Table, number: int, *, indent: str = "") -> None:
    if number > 0:
        table.add_row(Text(f"{indent}and {number:,} more", "dim"))


def _sentences(run: Simulated) -> Iterator[str]:
    course = run.course
    served = {name: each for name, each in course.categories.items() if each.offered}
    if served:
        worst = min(served, key=lambda name: (served[name].share, name))
        counts = served[worst]
        yield f"Worst served: {worst}, of which {counts.sent:,} of {counts.offered:,} were sent ({counts.share:.1%})."
    refused = run.slack.refused.total()
    yield f"Slack would have told {refused:,} posts to wait (429), by the rates that people report."
    if waiting := course.total.waiting:
        held = f"{waiting:,} {'event waits' if waiting == 1 else 'events wait'}"
        yield f"At the end {held} for room in a limit, or for the end of quiet hours; what was admitted is posted."


def _instant(run: Simulated, at_us: int) -> str:
    at_s = (at_us - run.shift_us) / US
    if run.shift_us:
        return f"second {at_s:,.0f}"
    return in_full(at_s)

"""``dispatcher status``: everything at one instant, for people and as JSON, and whether the books balance."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.cli.context import limits_document, limits_named, server_to_look_at, some_settings_in_force
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE
from dispatcher.cli.terminal import Terminal
from dispatcher.core.mutes import EVERYTHING
from dispatcher.core.units import US

if TYPE_CHECKING:
    from dispatcher.app.limits import LimitsFile
    from dispatcher.app.readers import Readers
    from dispatcher.app.servers import Server
    from dispatcher.cli.status.facts import Shadowed, Status
    from dispatcher.limiter import Usage
    from dispatcher.settings.plain import AnySettings
    from dispatcher.store.snapshot import Snapshot


_SORTS: Final = ("suppressed", "sent", "dropped", "digested", "dead", "parked")
_CANNOT_REDRAW: Final = frozenset({"", "dumb", "unknown"})


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--check", is_flag=True, help="Only verify that every event is accounted for; exit 1 if not.")
@click.option("--watch", is_flag=True, help="Show it anew every second, until Ctrl-C.")
@click.option("--category", metavar="GLOB", help="Only the categories of such names: 'svc-*'.")
@click.option(
    "--sort",
    type=click.Choice(_SORTS),
    help="The categories with the most of these first; suppressed: in the last 30m.",
)
@click.pass_obj
def status(  # noqa: PLR0913 - click's signature: one for each option
    terminal: Terminal, *, as_json: bool, check: bool, watch: bool, category: str | None, sort: str | None
) -> int:
    """Show what waits, what was sent, and what limits are used.

    The categories of which something was suppressed last come first. With --check, say whether the books balance: every
    event taken from the queue has an outcome, or is held.
    """
    if watch:
        _refuse_unless_watchable(as_json=as_json, check=check)
    if check and (category or sort):
        raise click.UsageError("--check is about all categories together: leave out --category and --sort.")
    from dispatcher.app.readers import build_readers, open_versions

    settings = some_settings_in_force(terminal)
    with server_to_look_at(settings) as server:
        for warning in server.warnings:
            terminal.warn(warning)
        readers = build_readers(settings, server)
        if check:
            return _check(terminal, readers, f"namespace {settings.namespace} on {server.shown}", as_json=as_json)
        from dispatcher.app.limits import limits_to_look_at
        from dispatcher.cli.status.facts import read_status

        versions = open_versions(settings, server)
        limits = limits_to_look_at(settings, versions)
        for warning in limits.warnings:
            terminal.warn(warning)
        if watch:
            from dispatcher.cli.status.watch import watch_status

            def look() -> tuple[str, Status]:
                now = limits_to_look_at(settings, versions)  # others may be in force by now
                return _headline(settings, server, now), read_status(readers, now.policy).of(category, sort)

            watch_status(look)
            return DONE
        facts = read_status(readers, limits.policy).of(category, sort)
    if as_json:
        terminal.print_json({"limits": limits_document(settings, limits), **document(facts)})
    else:
        from dispatcher.cli.status.view import tables

        terminal.say(_headline(settings, server, limits))
        terminal.draw(*tables(facts))
    return DONE


def _headline(settings: AnySettings, server: Server, limits: LimitsFile) -> str:
    return f"namespace {settings.namespace} on {server.shown}, limits {limits_named(settings, limits)}"


def _refuse_unless_watchable(*, as_json: bool, check: bool) -> None:
    if as_json or check:
        raise click.UsageError("--watch draws a table again and again: leave out --json and --check.")
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in _CANNOT_REDRAW:
        raise click.UsageError(
            "--watch needs a terminal that can redraw, and stdout is none: leave it out to look once, "
            "or use --json for a program."
        )


def _check(terminal: Terminal, readers: Readers, headline: str, *, as_json: bool) -> int:
    if not as_json:
        terminal.say(headline)
    if (refusal := readers.refusal()) is not None:
        terminal.warn(f"the server can only be read: {refusal.said}; to do: {refusal.remedy}")
    snapshot = readers.books.snapshot()
    imbalances = snapshot.imbalances()
    if as_json:
        terminal.print_json({"balanced": not imbalances, "imbalances": imbalances})
    elif imbalances:
        for imbalance in imbalances:
            terminal.print(f"the books do not balance: {imbalance}")
    else:
        terminal.print(balance(snapshot))
    return DOES_NOT_HOLD if imbalances else DONE


def balance(snapshot: Snapshot) -> str:
    """The books of a look in one line, for one that balances; what is 0 is left out."""
    counts = {**snapshot.overall(), "parked": snapshot.parked, "in flight": snapshot.in_flight}
    names = ("sent", "dropped", "digested", "dead", "duplicate", "parked", "in flight")
    parts = [f"{counts[name]} {name}" for name in names if counts[name]]
    return f"the books balance: {snapshot.received} received = {' + '.join(parts) or '0 sent'}"


def _paused(snapshot: Snapshot) -> dict[str, Any] | None:
    """Why nobody posts: by hand, or by what Slack answered; by hand wins, for then nobody tries."""
    by_hand, pause = snapshot.paused.get(EVERYTHING), snapshot.pause
    if by_hand is not None:
        said = f"paused by {by_hand.by}" + (f": {by_hand.why}" if by_hand.why else "")
        facts = {"kind": "hand", "code": "paused_by_hand", "detail": said, "remedy": "dispatcher resume"}
        return {**facts, "since": by_hand.since_us / US, "next_try": None}
    if pause is None:
        return None
    from dispatcher.cli.pause_words import said_and_remedy

    facts = {"kind": pause.kind, "code": pause.code, "detail": pause.detail, "remedy": said_and_remedy(pause)[1]}
    return {**facts, "since": pause.since_us / US, "next_try": pause.probe_us / US}


def document(status: Status) -> dict[str, Any]:
    """The status as JSON has it; instants are seconds since 1970."""
    snapshot, counts = status.snapshot, status.counts()
    return {
        "now": snapshot.now_us / US,
        "writes_refused": None if status.refusal is None else status.refusal.said,
        "queue": {"waiting": snapshot.waiting, "in_flight": snapshot.in_flight, "parked": snapshot.parked},
        "dead_letters": snapshot.dead_letters,
        "totals": snapshot.overall(),
        "categories": {
            name: {
                **counts[name],
                "last_30m": status.recent.of(name).document(),
                "limits": category_documents(status, name),
            }
            for name in status.categories
        },
        "last_30m": status.recent.together().document(),
        "rates": {"over_s": status.recent.over_s, **status.recent.rates},
        "global": {"limits": global_documents(status)},
        "lines": [
            {
                "scope": name,
                "waiting": line.waiting,
                "next": None if line.next_us is None else line.next_us / US,
                **({} if line.scope is None else {"waits_for": line.scope}),
            }
            for name, line in sorted(snapshot.lines.items())
        ],
        "in_other_lines": {"deferred": snapshot.more_deferred, "for_channels": snapshot.more_for_channels},
        "suppressed": [
            {
                "category": id_.partition(":")[2],
                "told_by": id_.partition(":")[0],
                "count": tally.count,
                "since": tally.first_us / US,
            }
            for id_, tally in sorted(snapshot.tallies.items())
        ],
        "timers": {
            "waiting": snapshot.timers - snapshot.tallies_at("timer"),
            "next": None if snapshot.next_timer_us is None else snapshot.next_timer_us / US,
        },
        "scheduled": {
            "waiting": snapshot.scheduled,
            "next": None if snapshot.next_scheduled_us is None else snapshot.next_scheduled_us / US,
        },
        "cooldowns": [
            {"scope": f"channel:{channel}", "until": until / US}
            for channel, until in sorted(snapshot.cooldowns.items())
        ],
        "paused": _paused(snapshot),
        "paused_categories": [
            {"category": name, "by": by_hand.by, "why": by_hand.why, "since": by_hand.since_us / US}
            for name, by_hand in sorted(snapshot.paused.items())
            if name != EVERYTHING
        ],
        "muted": [
            {
                "category": mute.category,
                "until": mute.until_us / US,
                "why": mute.why,
                "who": mute.who,
                "since": mute.since_us / US,
            }
            for _, mute in sorted(snapshot.muted.items())
        ],
        "workers": [
            {
                "name": each.name,
                "host": each.host,
                "pid": each.pid,
                "last_heartbeat": each.last_heartbeat,
                "state": each.state,
                "alive": each.alive,
            }
            for each in status.workers
        ],
    }


def global_documents(status: Status) -> list[dict[str, Any]]:
    """The use of the limits of all events together, and of what the guarantees leave, as JSON has it."""
    from dispatcher.core.policy import GLOBAL_SCOPE

    used = [(GLOBAL_SCOPE, usage) for usage in status.together]
    used += [] if status.shared is None else [("shared", status.shared)]
    return [
        *(_limit_document(*each) for each in used),
        *_shadow_documents("global", status.shadows.get(GLOBAL_SCOPE, ())),
    ]


def category_documents(status: Status, name: str) -> list[dict[str, Any]]:
    """The use of a category's limits, and of what is kept for it, as JSON has it."""
    used = [(f"category:{name}", usage) for usage in status.categories[name]]
    used += [(f"guarantee:{name}", status.shares[name])] if name in status.shares else []
    scope = f"category:{name}"
    return [*(_limit_document(*each) for each in used), *_shadow_documents(scope, status.shadows.get(scope, ()))]


def _shadow_documents(scope: str, shadows: Sequence[Shadowed]) -> Iterator[dict[str, Any]]:
    for each in shadows:
        yield {**_limit_document(scope, each.usage), "shadow": True, "would_deny": each.would_deny}


def _limit_document(scope: str, usage: Usage) -> dict[str, Any]:
    limit = usage.limit
    window_s = limit.window_us / US
    return {
        "scope": scope,
        "max": limit.max,
        "window_s": int(window_s) if window_s.is_integer() else window_s,
        "kind": limit.kind.value,
        "used": usage.used,
        "next_free_s": usage.wait_us / US,
    }

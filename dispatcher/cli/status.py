"""``dispatcher status``: everything at one instant, for people and as JSON, and whether the books balance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli.exits import DOES_NOT_HOLD, DONE
from dispatcher.cli.not_yet import not_yet_option
from dispatcher.cli.terminal import Terminal
from dispatcher.errors import ConfigError
from dispatcher.model import US, Scope

if TYPE_CHECKING:
    from dispatcher.app import Readers, Server
    from dispatcher.limiter import Usage
    from dispatcher.policy import Policy
    from dispatcher.settings import Settings
    from dispatcher.store.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as RQ's registry has it; ``last_heartbeat`` is in seconds since 1970."""

    name: str
    host: str
    pid: int
    state: str
    last_heartbeat: float


@dataclass(frozen=True, slots=True)
class Status:
    """One look, and how much of each limit is used; ``categories`` are those of the limits file and of the books."""

    look: Snapshot
    categories: Mapping[str, Sequence[Usage]]
    together: Sequence[Usage]
    workers: Sequence[Worker]

    def counts(self, category: str) -> dict[str, int]:
        """What became of the events of a category, and how many wait."""
        return {name: self.look.by_category(name).get(category, 0) for name in COUNTS}


COUNTS = ("sent", "dropped", "digested", "dead", "duplicate", "parked")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--check", is_flag=True, help="Only verify that every event is accounted for; exit 1 if not.")
@not_yet_option("--watch")
@click.pass_obj
def status(terminal: Terminal, *, as_json: bool, check: bool) -> int:
    """Show what waits, what was sent, and what limits are used.

    With --check, say whether the books balance: every event taken from the queue has an outcome, or is held.
    """
    from dispatcher.app import build_readers, open_limits
    from dispatcher.settings import load_settings

    settings, doubts = load_settings()
    terminal.hide(settings.secrets())
    limits = None if check else open_limits(settings)
    for doubt in (*doubts, *(limits.warnings if limits else ())):
        terminal.doubt(doubt)
    with _server_to_look_at(settings) as server:
        for doubt in server.warnings:
            terminal.doubt(doubt)
        readers = build_readers(settings, server)
        if limits is None:
            if not as_json:
                terminal.say(f"namespace {settings.namespace} on {server.shown}")
            return _check(terminal, readers.books.snapshot(), as_json=as_json)
        facts = _read(readers, limits.policy)
        shown = server.shown
    if as_json:
        terminal.print_json(document(facts))
    else:
        from dispatcher.cli.status_view import tables

        terminal.say(f"namespace {settings.namespace} on {shown}, limits in {limits.path}")
        terminal.draw(*tables(facts))
    return DONE


@contextmanager
def _server_to_look_at(settings: Settings) -> Iterator[Server]:
    """The server, started for the look if it is the embedded one and has run before."""
    from dispatcher.app import open_server

    if settings.redis_url is None and not settings.data_dir.is_dir():
        raise ConfigError(
            f"nothing has run here: there is no data directory {settings.data_dir}; "
            "set DISPATCHER_DATA_DIR to the one in use, or DISPATCHER_REDIS_URL to the server, "
            "or begin with 'dispatcher worker'"
        )
    with open_server(settings, start=True) as server:
        yield server


def _check(terminal: Terminal, look: Snapshot, *, as_json: bool) -> int:
    imbalances = look.imbalances()
    if as_json:
        terminal.print_json({"balanced": not imbalances, "imbalances": imbalances})
    elif imbalances:
        for imbalance in imbalances:
            terminal.print(f"the books do not balance: {imbalance}")
    else:
        terminal.print(balance(look))
    return DOES_NOT_HOLD if imbalances else DONE


def balance(look: Snapshot) -> str:
    """The books of a look in one line, for one that balances; what is 0 is left out."""
    counts = {**look.overall(), "parked": look.parked, "in flight": look.in_flight}
    names = ("sent", "dropped", "digested", "dead", "duplicate", "parked", "in flight")
    parts = [f"{counts[name]} {name}" for name in names if counts[name]]
    return f"the books balance: {look.received} received = {' + '.join(parts) or '0 sent'}"


def _read(readers: Readers, policy: Policy) -> Status:
    from dispatcher.event import CATEGORY
    from dispatcher.policy import GLOBAL_SCOPE

    look = readers.books.snapshot()
    counted = {name for count in COUNTS for name in look.by_category(count)}
    names = [*policy.categories, *sorted(counted - policy.categories.keys())]
    scopes = {name: Scope(f"category:{name}", policy.rule(name).limits) for name in names if CATEGORY.fullmatch(name)}
    together, *used = readers.limiter.usage([Scope(GLOBAL_SCOPE, policy.global_limits), *scopes.values()])
    by_category = dict(zip(scopes, used, strict=True))
    return Status(
        look=look,
        categories={name: by_category.get(name, []) for name in names},
        together=together,
        workers=[_worker(entry) for entry in readers.workers()],
    )


def _worker(entry: Mapping[str, str]) -> Worker:
    return Worker(
        name=entry["name"],
        host=entry["host"],
        pid=int(entry["pid"] or 0),
        state=entry["state"],
        last_heartbeat=datetime.fromisoformat(entry["last_heartbeat"]).timestamp(),
    )


def document(status: Status) -> dict[str, Any]:
    """The status as JSON has it; instants are seconds since 1970."""
    look, pause = status.look, status.look.pause
    return {
        "queue": {"waiting": look.waiting, "in_flight": look.in_flight, "parked": look.parked},
        "dead_letters": look.dead_letters,
        "totals": look.overall(),
        "categories": {
            name: {**status.counts(name), "limits": [_limit(f"category:{name}", each) for each in used]}
            for name, used in status.categories.items()
        },
        "global": {"limits": [_limit("global", each) for each in status.together]},
        "cooldowns": [
            {"scope": f"channel:{channel}", "until": until / US} for channel, until in sorted(look.cooldowns.items())
        ],
        "paused": pause
        and {
            "code": pause.code,
            "detail": pause.detail,
            "since": pause.since_us / US,
            "next_try": pause.probe_us / US,
        },
        "workers": [
            {"name": each.name, "host": each.host, "pid": each.pid, "last_heartbeat": each.last_heartbeat}
            for each in status.workers
        ],
    }


def _limit(scope: str, usage: Usage) -> dict[str, Any]:
    limit = usage.limit
    window_s = limit.window_us / US
    return {
        "scope": scope,
        "max": limit.max,
        "window_s": int(window_s) if window_s.is_integer() else window_s,
        "used": usage.used,
        "next_free_s": usage.wait_us / US,
    }

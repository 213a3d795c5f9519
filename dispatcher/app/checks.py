"""What ``doctor`` asks the server, the namespace and Slack: facts, not yet judged. Nothing is written or posted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from dispatcher.app.building import build_sink
from dispatcher.app.fleet import WorkerEntry, fleet
from dispatcher.app.limits import OwnFile, compare_own_file
from dispatcher.app.operating import workers_of
from dispatcher.app.servers import Server, keys_of, reach
from dispatcher.core.units import US
from dispatcher.jsonio import answer_text
from dispatcher.server.clients import connect
from dispatcher.server.connection import Client, ping, server_us, translate_outages, translate_refusals
from dispatcher.server.keys import LAYOUT_VERSION, Keys
from dispatcher.server.writing import WriteRefusal, write_refusal
from dispatcher.settings.environment import Settings
from dispatcher.slack.replies import CheckResult
from dispatcher.slack.sink import SlackSink
from dispatcher.store.snapshot import Books, Snapshot
from dispatcher.store.versions import Version, Versions


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself.

    ``info`` is empty where it does not let us read INFO, ``appendfsync`` and ``snapshots`` are None where it does not
    let us read CONFIG. ``ahead_s`` is how far this machine's clock is ahead of the server's. ``refusal``: it takes no
    writes.
    """

    info: Mapping[str, Any]
    appendfsync: str | None
    snapshots: bool | None
    round_trip_s: float
    ahead_s: float
    refusal: WriteRefusal | None = None


@dataclass(frozen=True, slots=True)
class Overdue:
    """A lease that has ended with events in hand: nobody has taken them over yet."""

    owner: str
    events: int
    ended_us: int


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """What lies in a namespace; ``snapshot`` is None, and nothing else known, where another version wrote it.

    ``limits`` is the version in force, ``own_file`` the operator's limits file beside it.
    """

    layout: str | None
    bound_to: str | None
    suspended: bool
    snapshot: Snapshot | None
    workers: Sequence[WorkerEntry] = ()
    overdue: Sequence[Overdue] = ()
    limits: Version | None = None
    own_file: OwnFile | None = None


def reach_server(server: Server) -> Client:
    """A client of a server that answers; raises ``GateUnavailable``, or ``ConfigError`` when it refuses us."""
    client = connect(server.url)
    reach(client, server.shown)
    return client


def ask_server(client: Client, settings: Settings, clock: Callable[[], float] = time.time) -> ServerFacts:
    """The server's own account of itself; raises ``GateUnavailable``, ``ConfigError``."""
    with translate_refusals(client), translate_outages():
        ping(client)  # the connection is made by the first command
        began, asked_at = time.monotonic(), clock()
        now_us = server_us(client)
        round_trip_s = time.monotonic() - began
        try:
            info = client.info()
        except NoPermissionError:
            info = {}
        try:
            config = client.config_get("appendfsync", "save")
        except ResponseError:  # NOPERM, or a provider that has renamed CONFIG away
            config = {}
    return ServerFacts(
        info=info,
        appendfsync=config.get("appendfsync"),
        snapshots=bool(config["save"]) if "save" in config else None,
        round_trip_s=round_trip_s,
        ahead_s=asked_at + round_trip_s / 2 - now_us / US,
        refusal=write_refusal(client, keys_of(settings)[0].layout),
    )


def ask_namespace(client: Client, settings: Settings) -> NamespaceFacts:
    """What lies in the namespace of the settings; raises ``GateUnavailable``, ``ConfigError``."""
    keys, queue = keys_of(settings)
    with translate_refusals(client):
        with translate_outages():
            found = client.mget(keys.layout, queue.binding)
            layout, bound_to = (None if value is None else answer_text(value) for value in found)
            suspended = bool(client.exists(queue.suspended))
        if layout not in {None, LAYOUT_VERSION}:
            return NamespaceFacts(layout, bound_to, suspended, None)
        snapshot = Books(client, keys, queue).snapshot()
        workers = fleet(workers_of(client, queue), snapshot)
        overdue = _overdue(client, keys, snapshot)
        limits = Versions(client, keys).in_force()
        own_file = None if limits is None else compare_own_file(settings, limits)
        return NamespaceFacts(layout, bound_to, suspended, snapshot, workers, overdue, limits, own_file)


def ask_slack(settings: Settings) -> CheckResult | None:
    """What Slack says of the credential, without posting; None for the console sink.

    Raises ``ConfigError`` where there is no way to post.
    """
    sink = build_sink(settings)
    return sink.check() if isinstance(sink, SlackSink) else None


def _overdue(client: Client, keys: Keys, snapshot: Snapshot) -> list[Overdue]:
    ended = {owner: end for owner, end in snapshot.leases.items() if end < snapshot.now_us}
    with translate_outages():
        counts = {owner: int(client.scard(keys.leased(owner))) for owner in ended}
    return [Overdue(owner, counts[owner], end) for owner, end in ended.items() if counts[owner]]

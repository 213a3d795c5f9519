"""What a container or a monitor asks: whether a worker of this host lives, and whether posting can go on."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dispatcher.app.operating import check_layout
from dispatcher.app.servers import Server, keys_of, open_server, reach
from dispatcher.core.units import US
from dispatcher.errors import DispatcherError
from dispatcher.jsonio import answer_text
from dispatcher.server.clients import connect
from dispatcher.server.connection import Client, server_us, translate_outages, translate_refusals
from dispatcher.settings.plain import AnySettings


class Unhealthy(DispatcherError):
    """The answer is no; the message says why."""


def alive(settings: AnySettings) -> str:
    """How long the lease of a worker of this host lasts, in words; raises ``Unhealthy`` where none has a lease.

    A worker renews its lease at least three times before it ends. So the lease of a worker that hangs ends, by the
    server's clock. Raises ``GateUnavailable``, ``ConfigError``.
    """
    host = socket.gethostname()
    with _reached(settings) as (server, client), translate_outages():
        leases: Any = client.zrange(keys_of(settings)[0].leases, 0, -1, withscores=True)
        now_us = server_us(client)
    ours = re.compile(rf"{re.escape(host)}\.\d+\.[0-9a-f]+(?:/\d+)?")
    ends = [end for owner, end in leases if ours.fullmatch(answer_text(owner))]
    where = f"in namespace {settings.namespace} on {server.shown}"
    if not ends:
        raise Unhealthy(f"no worker of host {host} has a lease {where}")
    left_s = (max(ends) - now_us) / US
    if left_s <= 0:
        raise Unhealthy(f"the lease of the last worker of host {host} ended {-left_s:.0f} s ago {where}")
    return f"a worker of host {host} has a lease for another {left_s:.0f} s {where}"


def ready(settings: AnySettings) -> str:
    """Which server and limits posts go by, in words; raises ``Unhealthy`` where an operator has to act first.

    Raises ``GateUnavailable``, ``ConfigError``, also for limits that cannot be read.
    """
    from dispatcher.app.limits import limits_to_look_at
    from dispatcher.server.writing import FORBIDDEN, write_refusal
    from dispatcher.slack.taxonomy import row_for
    from dispatcher.store.snapshot import read_pause
    from dispatcher.store.versions import Versions

    keys, queue = keys_of(settings)
    with _reached(settings) as (server, client):
        check_layout(client, keys)
        with translate_outages():
            client.eval("return 1", 0)  # an ACL may refuse scripts alone
        if (refusal := write_refusal(client, keys.layout, FORBIDDEN)) is not None:
            raise Unhealthy(f"the server can only be read, {refusal.said}; to do: {refusal.remedy}")
        with translate_outages():
            bound_to, facts = client.get(queue.binding), client.hgetall(keys.pause)
        if bound_to is not None and (other := answer_text(bound_to)) != settings.namespace:
            raise Unhealthy(f"queue {settings.queue} belongs to namespace {other}, not to {settings.namespace}")
        limits = limits_to_look_at(settings, Versions(client, keys))
    pause = read_pause({answer_text(name): answer_text(value) for name, value in facts.items()})
    if pause is not None and pause.kind == "operator":
        row = row_for(pause.code)
        raise Unhealthy(f"posting is paused by {pause.code}, {row.told}; to do: {row.remedy}")
    version = f"limits version {limits.version.number}" if limits.version else f"limits in {limits.path}"
    return f"namespace {settings.namespace} on {server.shown}, {version}"


@contextmanager
def _reached(settings: AnySettings) -> Iterator[tuple[Server, Client]]:
    """The server, which is never started for the question, and a client of it."""
    with open_server(settings, start=False) as server, connect(server.url) as client, translate_refusals(client):
        reach(client, server.shown)
        yield server, client

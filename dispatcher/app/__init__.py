"""The composition root: the one place that builds adapters and puts them together.

May import: worker, producer, store, limiter, slack, settings, logs, core, server, errors, front_door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.front_door import front_door

if TYPE_CHECKING:
    from dispatcher.app.building import build_backoff, build_outbox, build_sink
    from dispatcher.app.limits import (
        InForce,
        LimitsFile,
        enter_limits,
        in_force,
        limits_in_force,
        limits_to_look_at,
        open_limits,
        publish,
        read_limits_file,
    )
    from dispatcher.app.readers import (
        Readers,
        build_producer,
        build_readers,
        is_served,
        open_dead_letters,
        open_explanations,
        open_muting,
        open_parked_events,
        open_pausing,
        open_versions,
        workers_of,
    )
    from dispatcher.app.running import dispatch_one, run_worker
    from dispatcher.app.servers import REACH_S, Server, has_run, keys_of, open_server, preflight, reach

__all__ = [
    "REACH_S",
    "InForce",
    "LimitsFile",
    "Readers",
    "Server",
    "build_backoff",
    "build_outbox",
    "build_producer",
    "build_readers",
    "build_sink",
    "dispatch_one",
    "enter_limits",
    "has_run",
    "in_force",
    "is_served",
    "keys_of",
    "limits_in_force",
    "limits_to_look_at",
    "open_dead_letters",
    "open_explanations",
    "open_limits",
    "open_muting",
    "open_parked_events",
    "open_pausing",
    "open_server",
    "open_versions",
    "preflight",
    "publish",
    "reach",
    "read_limits_file",
    "run_worker",
    "workers_of",
]

__getattr__ = front_door(
    __name__,
    {
        "InForce": "dispatcher.app.limits",
        "LimitsFile": "dispatcher.app.limits",
        "REACH_S": "dispatcher.app.servers",
        "Readers": "dispatcher.app.readers",
        "Server": "dispatcher.app.servers",
        "build_backoff": "dispatcher.app.building",
        "build_outbox": "dispatcher.app.building",
        "build_producer": "dispatcher.app.readers",
        "build_readers": "dispatcher.app.readers",
        "build_sink": "dispatcher.app.building",
        "dispatch_one": "dispatcher.app.running",
        "enter_limits": "dispatcher.app.limits",
        "has_run": "dispatcher.app.servers",
        "in_force": "dispatcher.app.limits",
        "is_served": "dispatcher.app.readers",
        "keys_of": "dispatcher.app.servers",
        "limits_in_force": "dispatcher.app.limits",
        "limits_to_look_at": "dispatcher.app.limits",
        "open_dead_letters": "dispatcher.app.readers",
        "open_explanations": "dispatcher.app.readers",
        "open_limits": "dispatcher.app.limits",
        "open_muting": "dispatcher.app.readers",
        "open_parked_events": "dispatcher.app.readers",
        "open_pausing": "dispatcher.app.readers",
        "open_server": "dispatcher.app.servers",
        "open_versions": "dispatcher.app.readers",
        "preflight": "dispatcher.app.servers",
        "publish": "dispatcher.app.limits",
        "reach": "dispatcher.app.servers",
        "read_limits_file": "dispatcher.app.limits",
        "run_worker": "dispatcher.app.running",
        "workers_of": "dispatcher.app.readers",
    },
)

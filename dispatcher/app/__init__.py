"""The composition root: the one place that builds adapters and puts them together.

May import: worker, producer, store, limiter, slack, settings, logs, core, server, errors.
"""

from dispatcher.app.building import (
    Readers,
    build_backoff,
    build_outbox,
    build_producer,
    build_readers,
    build_sink,
    open_dead_letters,
    open_explanations,
    open_muting,
    open_parked_events,
    open_pausing,
    open_versions,
    workers_of,
)
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

"""The composition root: the one place that builds adapters and puts them together."""

from dispatcher.app.building import (
    LimitsFile,
    Readers,
    build_backoff,
    build_outbox,
    build_producer,
    build_readers,
    build_sink,
    open_dead_letters,
    open_explanations,
    open_limits,
    open_parked_events,
    workers_of,
)
from dispatcher.app.running import dispatch_one, run_worker
from dispatcher.app.servers import REACH_S, Server, greet_server, has_run, keys_of, open_server, reach

__all__ = [
    "REACH_S",
    "LimitsFile",
    "Readers",
    "Server",
    "build_backoff",
    "build_outbox",
    "build_producer",
    "build_readers",
    "build_sink",
    "dispatch_one",
    "greet_server",
    "has_run",
    "keys_of",
    "open_dead_letters",
    "open_explanations",
    "open_limits",
    "open_parked_events",
    "open_server",
    "reach",
    "run_worker",
    "workers_of",
]

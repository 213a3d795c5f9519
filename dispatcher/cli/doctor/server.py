"""What is to be said of a server: version, role, eviction, persistence, memory, clock. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dispatcher.app.checks import ServerFacts
from dispatcher.app.documents.instants import span
from dispatcher.app.servers import OLDEST_SERVER
from dispatcher.cli.doctor.finding import Finding, error, ok, warning

MAX_AHEAD_S: Final = 2.0
"""Clocks further apart than this make heartbeats and ages look wrong; limits are counted by the server's alone."""

MAX_USE: Final = 0.8
"""Of the memory there is, from which on somebody should look."""

_IN_ITS_FILE: Final = "and in its configuration file"


def server_findings(facts: ServerFacts, shown: str) -> Iterator[Finding]:
    """Everything about the server."""
    if facts.refusal is not None:
        yield error("writes", f"the server can only be read: {facts.refusal.said}", facts.refusal.remedy)
    if not facts.info:
        yield warning(
            "server",
            f"{shown} answers and does not let us read INFO",
            "allow it (ACL SETUSER ... +info), or see to it that it is 7.0 or later, evicts nothing and writes an AOF",
        )
    else:
        yield _version(facts.info, shown, facts.round_trip_s)
        yield from _role(facts.info)
        yield _eviction(facts.info)
        yield from _persistence(facts)
        yield _memory(facts.info)
    yield _clock(facts.ahead_s, facts.round_trip_s)


def _version(info: Mapping[str, Any], shown: str, round_trip_s: float) -> Finding:
    flavour, version = (
        ("redis", info.get("redis_version")) if "valkey_version" not in info else ("valkey", info["valkey_version"])
    )
    name = f"{flavour} {version}: {shown}"
    if int(str(version or 0).split(".", maxsplit=1)[0]) < OLDEST_SERVER:
        return error("server", f"{name} is too old", "take Redis 7.0 or later, or Valkey")
    return ok("server", f"{name}, answers in {round_trip_s * 1000:.1f} ms")


def _role(info: Mapping[str, Any]) -> Iterator[Finding]:
    if info.get("role", "master") != "master":
        yield error("server", "this is a replica and takes no writes", "set DISPATCHER_REDIS_URL to its primary")
    if info.get("cluster_enabled", 0):
        yield error(
            "server",
            "this is a node of a cluster, which is not supported",
            "take a server that stands alone, or Sentinels",
        )


def _eviction(info: Mapping[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        return ok("eviction", "maxmemory-policy is noeviction: a full server refuses, and loses nothing")
    remedy = f"CONFIG SET maxmemory-policy noeviction, {_IN_ITS_FILE}"
    if info.get("maxmemory", 0):
        return error("eviction", f"maxmemory-policy is {policy}: a full server throws events away", remedy)
    return warning("eviction", f"maxmemory-policy is {policy}: harmless as long as there is no maxmemory", remedy)


def _persistence(facts: ServerFacts) -> Iterator[Finding]:
    info, about = facts.info, "persistence"
    disk = "look at the server's log and disk"
    if info.get("aof_last_write_status", "ok") != "ok":
        yield error(about, "the last write to the AOF failed: the server refuses writes", disk)
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield warning(about, "the last snapshot failed: the server may refuse writes", disk)
    if not info.get("aof_enabled", 0):
        lost = "what came after the last snapshot" if facts.snapshots else "everything that waits"
        said = f"appendonly is off: when the server ends, {lost} is lost"
        yield warning(about, said, f"CONFIG SET appendonly yes, {_IN_ITS_FILE}")
    elif facts.appendfsync == "no":
        said = "appendfsync is no: a crash of the machine loses up to half a minute of events"
        yield warning(about, said, f"CONFIG SET appendfsync everysec, {_IN_ITS_FILE}")
    elif facts.appendfsync == "always":
        yield ok(about, "AOF with appendfsync always: no crash loses anything")
    elif facts.appendfsync == "everysec":
        yield ok(about, "AOF with appendfsync everysec: a crash of the whole machine may lose the last second")
    else:
        yield ok(about, "AOF; how often it is flushed the server does not let us read")


def _memory(info: Mapping[str, Any]) -> Finding:
    used, most, machine = (int(info.get(key, 0)) for key in ("used_memory", "maxmemory", "total_system_memory"))
    if most:
        said, share = f"{_size(used)} of maxmemory {_size(most)} are used", used / most
        if share >= 1:
            return error(
                "memory", f"{said}: the server is full and refuses events", "raise maxmemory, or purge dead letters"
            )
        if share >= MAX_USE:
            return warning("memory", f"{said}: soon it refuses events", "raise maxmemory, or let workers catch up")
        return ok("memory", said)
    said = f"{_size(used)} of the machine's {_size(machine)} are used, there is no maxmemory"
    if machine and used / machine >= MAX_USE:
        return warning(
            "memory", f"{said}: when it is full, the server is killed", "set a maxmemory, take a larger machine"
        )
    return ok("memory", said)


def _clock(ahead_s: float, round_trip_s: float) -> Finding:
    if abs(ahead_s) < MAX_AHEAD_S + round_trip_s / 2:  # the server read its clock at some instant of the round trip
        return ok("clock", "this machine and the server agree on the time")
    which = "ahead of" if ahead_s > 0 else "behind"
    return warning(
        "clock",
        f"this machine's clock is {span(abs(ahead_s))} {which} the server's",
        "synchronise both (NTP); limits are counted by the server's clock, heartbeats and max_age look wrong",
    )


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1_000:  # noqa: PLR2004 - the next unit begins
            return f"{size:.0f} {unit}"
        size /= 1_000
    return f"{size:.1f} GB"

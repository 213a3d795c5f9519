"""Our decisions per second beside those of other limiter libraries on the same server, and what each cannot do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final

from redis import Redis

from benchmarks import abilities, libraries
from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report
from benchmarks.gate import BATCH, TYPES, in_batches, one_by_one
from benchmarks.libraries import Peer, take
from benchmarks.rounds import Contender, decisions_table, interleave, ratio
from benchmarks.stage import stage
from dispatcher.core.units import US
from dispatcher.limiter import Limit, Limiter, Scope

MINUTE_S: Final = 60
ONE: Final = "ours, one by one"
MANY: Final = f"ours, {BATCH} a call"
TWO_CALLS: Final = "two calls"


def run(effort: Effort) -> Report:
    """Four decisions at full speed, then the table of abilities."""
    calls = effort.of(BATCH * 10, quick=BATCH * 2)
    versions = libraries.find() if effort.peers else {}
    proofs = Proofs()
    with stage(effort.cores) as (redis, client):
        peers = [peer(redis, client) for peer in libraries.PEERS] if effort.peers else []
        tables, goals = [], []
        for title, contenders in (
            ("one scope, 100/60s: nearly all refused", _one_scope(client, peers, calls, (100, MINUTE_S))),
            ("one scope, 1,000,000/60s: all admitted", _one_scope(client, peers, calls, (1_000_000, MINUTE_S))),
            ("one scope, 100/60s and 1,000/1h at once", _two_windows(client, peers, calls)),
            ("two scopes, 100/60s in all and 10/60s for each of 20 types", _two_scopes(client, peers, calls)),
        ):
            laps = interleave(contenders, effort, client, proofs)
            tables.append(decisions_table(title, laps, ONE, ONE))
            goals += [
                Goal(f"{title}: {ONE} / {name}", ratio(laps, ONE, name), at_least=1.0)
                for name in laps
                if name not in {ONE, MANY}
            ]
        if effort.peers:
            tables.append(abilities.table(redis, client, peers, effort, proofs))
    return Report(tuple(tables), tuple(goals), proofs.collected(), _notes(versions))


def _notes(versions: dict[str, str]) -> tuple[str, ...]:
    if not versions:
        return ("Without the other libraries.",)
    return (
        ", ".join(f"{name} {version}" for name, version in versions.items())
        + "; each over redis-py on the same unix socket, with the window it calls moving or sliding.",
        "pyrate-limiter's keys have no lifetime of their own: a thread of the process trims them, while one runs.",
        f"'{TWO_CALLS}': the limit for all is asked first, which takes the fewest calls, and then the type's.",
    )


def _one_scope(client: Redis, peers: Sequence[Peer], calls: int, rate_: tuple[int, int]) -> list[Contender]:
    scope = (Scope("user:42", (_limit(rate_),)),)
    return [
        *_ours(client, [scope] * calls, min(calls, rate_[0])),
        *(_theirs(client, peer.name, peer.scope("user:42", rate_), calls, min(calls, rate_[0])) for peer in peers),
    ]


def _two_windows(client: Redis, peers: Sequence[Peer], calls: int) -> list[Contender]:
    rates = ((100, MINUTE_S), (1_000, 3_600))
    scope = (Scope("user:42", tuple(_limit(each) for each in rates)),)
    contenders = _ours(client, [scope] * calls, 100)
    for peer in peers:
        try:
            ask = peer.scope("user:42", *rates)
        except NotImplementedError:
            continue
        contenders.append(_theirs(client, peer.name, ask, calls, 100))
    return contenders


def _two_scopes(client: Redis, peers: Sequence[Peer], calls: int) -> list[Contender]:
    everything = Scope("global", (_limit((100, MINUTE_S)),))
    types = [(everything, Scope(f"type:{n}", (_limit((10, MINUTE_S)),))) for n in range(TYPES)]
    contenders = _ours(client, [types[n % TYPES] for n in range(calls)], 100)
    for peer in peers:
        ask = two_calls(peer)
        contenders.append(_theirs(client, f"{peer.name}, {TWO_CALLS}", ask, calls, 100))
    return contenders


def two_calls(peer: Peer) -> Callable[[], bool]:
    """The limit for all, then the type's: it takes fewer calls than the other way round. The types take turns."""
    everything = peer.scope("global", (100, MINUTE_S))
    each = [peer.scope(f"type:{n}", (10, MINUTE_S)) for n in range(TYPES)]
    turns = itertools.count()

    def ask() -> bool:
        return everything() and each[next(turns) % TYPES]()

    return ask


def _ours(client: Redis, requests: Sequence[tuple[Scope, ...]], admitted: int) -> list[Contender]:
    limiter = Limiter(client, namespace="bench")
    return [
        Contender(ONE, lambda: one_by_one(limiter, requests), len(requests), admitted, client.flushdb),
        Contender(MANY, lambda: in_batches(limiter, requests), len(requests), admitted, client.flushdb, passes=3),
    ]


def _theirs(client: Redis, name: str, ask: Callable[[], bool], calls: int, admitted: int) -> Contender:
    def prepare() -> None:
        client.flushdb()
        _leave_the_minutes_end()

    return Contender(name, lambda: take(ask, calls), calls, admitted, prepare)


def _leave_the_minutes_end() -> None:
    """A counter for each minute of the clock admits a few more where a minute ends within the pass."""
    left_s = MINUTE_S - time.time() % MINUTE_S
    if left_s < 2.0:  # noqa: PLR2004 - many times what a pass takes
        time.sleep(left_s)


def _limit(rate_: tuple[int, int]) -> Limit:
    return Limit(rate_[0], window_us=rate_[1] * US)

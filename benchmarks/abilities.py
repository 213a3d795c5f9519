"""What a limiter can do beside being fast: for each ability a small run on our library and on the others.

Where a run needs an instant, ours is told it and the others' clocks are replaced, each host's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from redis import Redis
from redis.exceptions import NoScriptError

from benchmarks.effort import Effort
from benchmarks.figures import Proofs, Table
from benchmarks.libraries import Peer, take
from benchmarks.rounds import script_calls
from benchmarks.waiting import together
from dispatcher.core.units import US
from dispatcher.limiter import Admitted, Denied, FirstOf, Limit, Limiter, Scope
from tests.support.servers import Database, RedisServer

MINUTE_S: Final = 60
AT_S: Final = 1_732_100_040.0
"""A full minute."""

SKEW_S: Final = 1.1
TYPES: Final = 20


Row: TypeAlias = tuple[str, ...]
"""Ours, and then each of the peers."""


def table(server: RedisServer, client: Redis, peers: Sequence[Peer], effort: Effort, proofs: Proofs) -> Table:
    """One row for each ability."""
    bench = _Bench(server, client, peers, effort, proofs, Limiter(client, namespace="bench"))
    rows = []
    for ability, shown in _ABILITIES:
        client.flushall()
        rows.append((ability, *shown(bench)))
    return Table("what each can do", ("", "ours", *(peer.name for peer in peers)), tuple(rows))


@dataclass(frozen=True, slots=True)
class _Bench:
    """What a run works with; the database is empty when it begins. ``limiter`` is ours."""

    server: RedisServer
    client: Redis
    peers: Sequence[Peer]
    effort: Effort
    proofs: Proofs
    limiter: Limiter


def _exact(bench: _Bench) -> Row:
    """100/60s: 100 at the end of one minute of the clock, then calls 59 s later."""
    scope, late_s, again_s = _scope("exact", (100, MINUTE_S)), AT_S + 59.9, AT_S + 118.8
    ours = sum(_ours_at(bench, scope, at, 100) for at in (late_s, again_s))
    bench.proofs.add("exact: admitted within 59 s", ours, 100)
    cells = [_share(ours, 100)]
    for peer in bench.peers:
        ask, admitted = peer.scope("exact", (100, MINUTE_S)), 0
        for at in (late_s, again_s):
            with peer.at(at):
                admitted += take(ask, 100)
        cells.append(_share(admitted, 100))
    return tuple(cells)


def _skewed(bench: _Bench) -> Row:
    """10/1s, two hosts at one instant; the clock of the second is 1.1 s ahead."""
    scope = _scope("skew", (10, 1))
    with bench.server.client() as client:
        hosts = (bench.limiter, Limiter(client, namespace="bench"))
        ours = sum(type(limiter.try_acquire(scope)) is Admitted for limiter in hosts for _ in range(10))
    bench.proofs.add("clocks apart: admitted", ours, 10)
    cells = [_share(ours, 10)]
    for peer in bench.peers:
        ask, admitted = peer.scope("skew", (10, 1)), 0
        for at in (AT_S + 0.9, AT_S + 0.9 + SKEW_S):
            with peer.at(at):
                admitted += take(ask, 10)
        cells.append(_share(admitted, 10))
    return tuple(cells)


def _all_or_nothing(bench: _Bench) -> Row:
    """100/60s in all, 10/60s for each of 20 types, half of the calls of one type: who is charged for what is refused.

    The others are asked in either order. The limit for all first: it is charged for what the loud type's own refuses.
    The type's first: it is charged for what the limit for all refuses.
    """
    everything = _scope("global", (100, MINUTE_S))
    types = [_scope(f"type:{n}", (10, MINUTE_S)) for n in range(TYPES)]
    asked = [0 if n % 2 else n // 2 % TYPES for n in range(20 * TYPES)]
    admitted = sum(type(bench.limiter.try_acquire((types[n], everything))) is Admitted for n in asked)
    charged = sum(bench.limiter.usage(each)[0].used for each in types)
    bench.proofs.add("all or nothing: charged", charged, 100)
    cells = [_wasted(charged - admitted)]
    for peer in bench.peers:
        wasted = []
        for is_all_first in (True, False):
            bench.client.flushall()
            all_ = peer.scope("global", (100, MINUTE_S))
            each_type = [peer.scope(f"type:{n}", (10, MINUTE_S)) for n in range(TYPES)]
            wasted.append(0)
            for n in asked:
                first, second = (all_, each_type[n]) if is_all_first else (each_type[n], all_)
                wasted[-1] += first() and not second()
        cells.append(f"no: {wasted[0]} slots charged for what was refused, or {wasted[1]} in the other order")
    return tuple(cells)


def _windows(bench: _Bench) -> Row:
    """5/1s and 100/60s on one scope."""
    cells = ["yes"]
    for peer in bench.peers:
        try:
            take(peer.scope("windows", (5, 1), (100, MINUTE_S)), 1)
        except NotImplementedError as error:
            cells.append(f"no: {error}")
        else:
            cells.append("yes")
    verdict = bench.limiter.try_acquire(_scope("windows", (5, 1), (100, MINUTE_S)))
    bench.proofs.add("two windows: admitted", int(type(verdict) is Admitted), 1)
    return tuple(cells)


def _round_trips(bench: _Bench) -> Row:
    """128 decisions over 20 scopes: how many calls to the server."""
    types = [_scope(f"type:{n}", (1_000, MINUTE_S)) for n in range(TYPES)]
    limiter, before = bench.limiter, script_calls(bench.client)
    limiter.try_acquire_many([types[n % TYPES] for n in range(128)])
    ours = script_calls(bench.client) - before
    bench.proofs.add("calls for 128 decisions", ours, 1)
    cells = [f"{ours} call"]
    for peer in bench.peers:
        asks = [peer.scope(f"type:{n}", (1_000, MINUTE_S)) for n in range(TYPES)]
        asks[0]()  # its script is loaded
        before = script_calls(bench.client)
        for n in range(128):
            asks[n % TYPES]()
        cells.append(f"{script_calls(bench.client) - before} calls")
    return tuple(cells)


def _retry_after(bench: _Bench) -> Row:
    """10/60s, ten slots a second apart, asked half a second after the last: one is free in 50.5 s.

    Begins half a minute after a full minute of the clock.
    """
    scope, rate, begin_s = _scope("retry", (10, MINUTE_S)), (10, MINUTE_S), AT_S + 30
    asked_s = begin_s + 9.5
    for n in range(10):
        _ours_at(bench, scope, begin_s + n, 1)
    denied = bench.limiter.try_acquire(scope, now_us=round(asked_s * US))
    told_us = denied.retry_after_us if isinstance(denied, Denied) else 0
    bench.proofs.add("retry_after, us", told_us, 50_500_000)
    free_us = round(asked_s * US) + told_us
    bench.proofs.add("retry_after: admitted 1 us before", _admitted(bench, scope, free_us - 1), 0)
    bench.proofs.add("retry_after: admitted then", _admitted(bench, scope, free_us), 1)
    cells = [_promise(told_us / US, "", kept=True)]
    for peer in bench.peers:
        ask = peer.scope("retry", rate)
        for n in range(10):
            with peer.at(begin_s + n):
                ask()
        with peer.at(asked_s):
            told_s = peer.retry_after_s("retry", rate)
        with peer.at(asked_s + told_s + 0.001):
            cells.append(_promise(told_s, peer.retry_after_by, kept=ask()))
    return tuple(cells)


def _repeated(bench: _Bench) -> Row:
    """The same event asked for twice, as after a lost answer: slots charged."""
    scope = _scope("repeat", (10, MINUTE_S))
    for _ in range(2):
        bench.limiter.try_acquire(scope, "event-7")
    bench.proofs.add("slots of an id asked for twice", bench.limiter.usage(scope)[0].used, 1)
    return ("1 slot", *(f"2 slots: no id in {peer.signature()}" for peer in bench.peers))


def _released(bench: _Bench) -> Row:
    """Give one slot back."""
    scope, limiter = _scope("release", (1, MINUTE_S)), bench.limiter
    limiter.try_acquire(scope, "event-7")
    bench.proofs.add("slots given back", int(limiter.release(scope, "event-7")), 1)
    bench.proofs.add("admitted after it", int(type(limiter.try_acquire(scope)) is Admitted), 1)
    return ("yes", *(f"no: only {peer.forgets}, which forgets the whole scope" for peer in bench.peers))


def _waited(bench: _Bench) -> Row:
    """More who wait than there is room for, each as if in a process of its own: calls to the server, and how long."""
    (maximum, waiters) = bench.effort.of((10, 40), quick=(2, 4))
    limit = (maximum, 1)
    scope = _scope("wait", limit)

    def ours() -> bool:
        with bench.server.client() as client:
            return Limiter(client, namespace="bench").acquire(scope).id is not None

    admitted, said = together([ours] * waiters, bench.client)
    bench.proofs.add("waited for a slot and got it", admitted, waiters)
    cells = [said]
    for peer in bench.peers:
        if peer.waiter("wait", limit) is None:
            cells.append("no: cannot wait")
            continue
        asks = [peer.waiter("wait", limit) for _ in range(waiters)]
        cells.append(together([ask for ask in asks if ask is not None], bench.client)[1])
    return tuple(cells)


def _reserved(bench: _Bench) -> Row:
    """A part of the limit for all that is kept for one of those who share it."""
    reserved, shared, limiter = _scope("reserved", (2, MINUTE_S)), _scope("shared", (8, MINUTE_S)), bench.limiter
    for _ in range(8):
        limiter.try_acquire(shared)
    kept = sum(type(limiter.try_acquire(FirstOf((reserved, shared)))) is Admitted for _ in range(3))
    bench.proofs.add("admitted in the reserved part", kept, 2)
    return ("yes: FirstOf", *(f"no: one key in {peer.signature()}" for peer in bench.peers))


def _lifetimes(bench: _Bench) -> Row:
    """One slot charged: keys that stay for ever."""
    bench.limiter.try_acquire(_scope("lifetime", (10, MINUTE_S)))
    ours = _immortal(bench.client)
    bench.proofs.add("keys without a lifetime", ours, 0)
    cells = ["yes"]
    for peer in bench.peers:
        bench.client.flushall()
        peer.scope("lifetime", (10, MINUTE_S))()
        left = _immortal(bench.client)
        cells.append(f"no: {left} key stays for ever" if left else "yes")
    return tuple(cells)


def _reloaded(bench: _Bench) -> Row:
    """The server has forgotten its scripts, as after a restart."""
    limiter, scope = bench.limiter, _scope("flush", (10, MINUTE_S))
    limiter.try_acquire(scope)
    bench.client.script_flush()
    bench.proofs.add("admitted after SCRIPT FLUSH", int(type(limiter.try_acquire(scope)) is Admitted), 1)
    cells = ["goes on"]
    for peer in bench.peers:
        ask = peer.scope("flush", (10, MINUTE_S))
        ask()
        bench.client.script_flush()
        try:
            ask()
        except NoScriptError:
            cells.append("fails: NOSCRIPT from then on")
        else:
            cells.append("goes on")
    return tuple(cells)


_ABILITIES: Final[tuple[tuple[str, Callable[[_Bench], Row]], ...]] = (
    ("100/60s: admitted within 59 s", _exact),
    (f"10/1s from two hosts, clocks {SKEW_S} s apart", _skewed),
    ("several scopes, all or nothing", _all_or_nothing),
    ("several windows on a scope, all or nothing", _windows),
    ("128 decisions over 20 scopes", _round_trips),
    ("10/60s full: when again (50.5 s is right)", _retry_after),
    ("one event asked for twice", _repeated),
    ("a slot given back", _released),
    ("more who wait than there is room for", _waited),
    ("a part kept for one of many", _reserved),
    ("every key has a lifetime", _lifetimes),
    ("after SCRIPT FLUSH", _reloaded),
)


def _scope(name: str, *rates: tuple[int, int]) -> Scope:
    return Scope(name, tuple(Limit(maximum, window_us=seconds * US) for maximum, seconds in rates))


def _ours_at(bench: _Bench, scope: Scope, at_s: float, times: int) -> int:
    """How many of so many calls at one instant were admitted."""
    return sum(_admitted(bench, scope, round(at_s * US)) for _ in range(times))


def _admitted(bench: _Bench, scope: Scope, now_us: int) -> int:
    return int(type(bench.limiter.try_acquire(scope, now_us=now_us)) is Admitted)


def _immortal(client: Database) -> int:
    return sum(client.pttl(name) == -1 for name in client.scan_iter())


def _share(admitted: int, allowed: int) -> str:
    return f"{admitted}" if admitted <= allowed else f"{admitted}: {admitted - allowed} too many"


def _wasted(slots: int) -> str:
    return f"no: {slots} slots charged for what was refused" if slots else "yes"


def _promise(told_s: float, by: str, *, kept: bool) -> str:
    said = f"{told_s:.6g} s{by}"
    return said if kept else f"{said}, and refused then"

"""The limiter for threads and plain code."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError

from dispatcher.core.limits import Admitted, Scope, Verdict, all_scopes
from dispatcher.errors import DispatcherError, GateUnavailable
from dispatcher.limiter.arguments import (
    Scopes,
    checked_cost,
    checked_id,
    checked_now,
    checked_requests,
    checked_scope,
    checked_scopes,
    checked_timeout,
    checked_version,
    given_id,
    new_version,
    releasable,
    slot_of,
)
from dispatcher.limiter.refusals import check_client, in_our_words, is_wrong_type, refusal, unauthorised, wrong_type
from dispatcher.limiter.wakeups import Waiter, bells_of
from dispatcher.limiter.wire import (
    BATCH,
    Call,
    Calls,
    Usage,
    WaitAnswer,
    WaitingRequest,
    limited,
    read_turns,
    read_usage,
    read_verdicts,
)
from dispatcher.server.connection import Client, ClusterScript, Script, script_of


class Limiter:
    """Decides whether something may happen now. All processes that use one namespace share the limits.

    For each rolling limit (N, W) no half-open window of length W ever holds more than N admitted ids. A slot belongs to
    an id: the same id again costs no second slot, its slot moves to now. Redis being away raises ``GateUnavailable``:
    whether a slot was charged is then unknown until the same id asks again by ``try_acquire`` (``acquire`` would wait
    for a second turn). ``GateRefused`` says that Redis answers and refuses, ``ValueError`` and ``TypeError`` that an
    argument cannot be; nothing is written then.

    ``scopes`` is one ``Scope`` or several, each a slot that has to be free; ``FirstOf`` asks for one of many. With a
    ``cost`` a request takes so many slots of each at once, all or none: at most 1,000, and at most the smallest ``max``
    of the limits, else ``ValueError``. An id with another cost owns other slots. Threads may share a limiter.
    """

    def __init__(self, client: Client, *, namespace: str = "limiter", clock: Callable[[], int] | None = None) -> None:
        """``clock`` gives microseconds instead of the server's clock: for tests and simulations."""
        check_client(client, (Redis, RedisCluster), "AsyncLimiter takes clients of redis.asyncio")
        self._client = client
        self._calls = Calls(namespace)
        self._clock = clock
        self._once = not isinstance(client, RedisCluster)  # a cluster's client may send a call twice by itself
        self._gate = script_of(client, "gate")
        self._usage = script_of(client, "usage")
        self._wait = script_of(client, "wait")
        self._release = script_of(client, "release")
        self._reset = script_of(client, "reset")

    def try_acquire(  # noqa: PLR0913 - what one call may be told, by name
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        cost: int = 1,
        with_left: bool = False,
        version: str | None = None,
        now_us: int | None = None,
    ) -> Verdict:
        """Charge ``cost`` slots everywhere, or none. ``now_us`` replaces the server's clock.

        ``with_left`` asks in the same call what each limit has left after that: see ``Admitted.left``. ``version`` is
        the version of the limits these scopes are from: ``StaleLimits`` when another one is in force.
        """
        id_, demands = checked_id(id), checked_scopes(scopes)
        slot, version = slot_of(id_, checked_cost(cost, demands)), checked_version(version)
        fresh = id is None and self._once
        call = self._calls.decide([slot], [demands], fresh=fresh, version=version, left=with_left, cost=cost)
        return read_verdicts(self._ask(self._gate, call, checked_now(now_us)), call, [id_])[0]

    def try_acquire_many(
        self,
        requests: Iterable[Scopes],
        ids: Iterable[str | None] | None = None,
        *,
        version: str | None = None,
        now_us: int | None = None,
    ) -> list[Verdict]:
        """Decide each of the requests in order, as if asked one after another at one instant.

        More than 128 go to the server in several calls, each at its own instant unless ``now_us`` is given; what cannot
        be asked is refused before the first of them. If one of them fails, those before it have charged.
        """
        fresh = ids is None and self._once
        demands, names = checked_requests(requests, ids)
        slots = names if ids is None else [slot_of(name) for name in names]
        version, now_us = checked_version(version), checked_now(now_us)
        verdicts: list[Verdict] = []
        for call in self._calls.decide_many(slots, demands, fresh=fresh, version=version):
            asked = names[len(verdicts) : len(verdicts) + BATCH]
            verdicts += read_verdicts(self._ask(self._gate, call, now_us), call, asked)
        return verdicts

    def peek(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        cost: int = 1,
        now_us: int | None = None,
    ) -> Verdict:
        """What ``try_acquire`` would answer; charges nothing."""
        id_, demands = checked_id(id), checked_scopes(scopes)
        call = self._calls.decide([slot_of(id_, checked_cost(cost, demands))], [demands], peek=True, cost=cost)
        return read_verdicts(self._ask(self._gate, call, checked_now(now_us)), call, None)[0]

    def acquire(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        cost: int = 1,
        timeout: float | None = None,
    ) -> Admitted:
        """Wait until there is room and charge; behind all who wait longer for the same scope.

        Sleeps until the instant at which its turn comes, and is woken when a slot is given back before; asks the server
        three or four times as a rule. Raises ``RateLimited`` after ``timeout`` seconds (0: at once; None: never).

        If a caller dies while it waits, the next one waits a second longer. If several next to each other die, the one
        behind them waits until the turn of the last of these. ``try_acquire`` does not wait behind those who wait.
        """
        id_, demands = checked_id(id), checked_scopes(scopes)
        request = (slot_of(id_, checked_cost(cost, demands)), demands)
        timeout = checked_timeout(timeout)
        ends = None if timeout is None else time.monotonic() + timeout
        asking = WaitingRequest(request, "-", "ask", cost=cost)
        turn = self._turn(asking)
        while turn.denied is not None and turn.wait_s == 0:  # very many who waited have died; each call removes some
            if timeout and ends is not None and time.monotonic() >= ends:
                break
            turn = self._turn(asking)
        if turn.denied is None:
            return Admitted(id_)
        if timeout == 0:
            raise limited(turn.denied)
        with self._heard(ends) as waiter:
            if waiter is not None:
                turn = self._wait_for_turn(WaitingRequest(request, waiter.token, "join", cost=cost), waiter, ends)
        if turn.denied is not None:
            raise limited(turn.denied)
        return Admitted(id_)

    @contextmanager
    def ensure(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        cost: int = 1,
        timeout: float | None = 0,
    ) -> Generator[Admitted, None, None]:
        """Run a block only when there is room: else raise ``RateLimited``, after ``timeout`` seconds as ``acquire``.

        The slot stays charged when the block fails: what it called has counted the call.
        """
        yield self.acquire(scopes, id, cost=cost, timeout=timeout)

    def release(self, scopes: Scopes, id: str, *, cost: int = 1) -> bool:  # noqa: A002 - the field's word
        """Give back the slots of an id, taken with that cost; whether a limit still counted any. Who waits is woken."""
        slot = slot_of(given_id(id), checked_cost(cost))
        call = self._calls.release(slot, releasable(checked_scopes(scopes)), cost)
        return bool(self._ask(self._release, call))

    def reset(self, scopes: Scopes) -> int:
        """Forget all that was charged in these scopes, of every id; in how many a limit still counted any of it.

        Who waits for them is woken. Not for scopes of the dispatcher's own namespace: its events hold slots there.
        """
        return int(self._ask(self._reset, self._calls.reset(list(all_scopes(checked_scopes(scopes))))))

    def usage(self, scope: Scope, *, now_us: int | None = None) -> list[Usage]:
        """For each limit of the scope how much of it is used; reads only."""
        return self.usage_many([scope], now_us=now_us)[0]

    def usage_many(self, scopes: Iterable[Scope], *, now_us: int | None = None) -> list[list[Usage]]:
        """``usage`` of several scopes at one instant; a scope without limits has none."""
        call = self._calls.usage([checked_scope(scope) for scope in scopes])
        return read_usage(self._ask(self._usage, call, checked_now(now_us)), call.scopes) if call.scopes else []

    def enforce(self, version: str) -> None:
        """From now on calls that name another version of the limits are refused with ``StaleLimits``."""
        version = new_version(version)
        with in_our_words():
            self._client.set(self._calls.keys.limits_version, version)

    def _ask(self, script: Script | ClusterScript, call: Call, now_us: int | None = None) -> bytes:
        if now_us is None and self._clock is not None:
            now_us = self._clock()
        try:
            answer: bytes = script(call.keys, call.arguments(now_us))
        except ResponseError as failure:
            if is_wrong_type(failure):
                with in_our_words():
                    kinds = {key: self._client.type(key) for key in call.keys}
                raise wrong_type(kinds) from failure
            raise refusal(failure) from failure
        except GateUnavailable as error:
            raise unauthorised(error) or error from error.__cause__
        return answer

    def _turn(self, waiting: WaitingRequest) -> WaitAnswer:
        call = self._calls.wait([waiting])
        return read_turns(self._ask(self._wait, call), call)[0]

    @contextmanager
    def _heard(self, ends: float | None) -> Generator[Waiter | None, None, None]:
        """A waiter whom others can wake; None where that cannot be before the end."""
        prefix = self._calls.keys.bells
        with ExitStack() as stack:
            with in_our_words():
                bells, pool = bells_of(self._client, prefix)
                waiter = stack.enter_context(bells.waiter(pool, prefix, ends))
            yield waiter

    def _wait_for_turn(self, waiting: WaitingRequest, waiter: Waiter, ends: float | None) -> WaitAnswer:
        """The last answer: admitted, or the denial at the end of the time."""
        try:
            while True:
                turn = self._turn(waiting)
                if turn.denied is None or waiting.step == "leave":
                    return turn
                waiting = waiting._replace(arrived=turn.arrived)
                waiter.wait(turn.wait_s if ends is None else min(turn.wait_s, ends - time.monotonic()))
                if ends is not None and time.monotonic() >= ends:
                    waiting = waiting._replace(step="leave")
        except BaseException:  # interrupted: nobody shall wait for this one; if that cannot be said, it lapses
            with suppress(DispatcherError):
                self._turn(waiting._replace(step="quit"))
            raise

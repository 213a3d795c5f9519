"""The gate by itself, for tests and benchmarks: whole batches, and slots that are named by whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dispatcher.core.limits import Admitted, Demand, Opening, Scope, Verdict
from dispatcher.jsonio import decode
from dispatcher.limiter.wire import Calls, Request, openings_of, read_verdicts
from dispatcher.server.connection import Client, script_of


class Gate:
    """Decides batches of requests ``(slot, scopes)``; the slot is stored as it is given, at best in 16 characters.

    Redis being away raises ``GateUnavailable``: whether a slot was charged is then unknown until the same slot is asked
    for again.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """``clock`` gives microseconds instead of the server's clock: for tests and simulations."""
        self._calls = Calls(namespace)
        self._gate = script_of(client, "gate")
        self._clock = clock

    def try_acquire_many(self, requests: Sequence[Request], *, now_us: int | None = None) -> list[Verdict]:
        """Decide each request in order, as if asked one after another at one instant. No scopes: admitted."""
        return self._decide(requests, now_us, peek=False)

    def decide(
        self, requests: Sequence[Request], *, fresh: bool = False, ahead: Sequence[Scope] = ()
    ) -> tuple[list[Verdict], list[Opening]]:
        """``try_acquire_many``, and from when on each scope of ``ahead`` has room for one more after it.

        ``fresh`` spares a look for slots the requests might own already: true only if none was ever asked for.
        """
        call = self._calls.decide(*_apart(requests), fresh=fresh, ahead=ahead)
        if not call.keys:
            return [Admitted()] * len(requests), []
        answer = self._gate(call.keys, call.arguments(self._clock() if self._clock else None))
        return read_verdicts(answer, call, None), openings_of(decode(answer), ahead) if ahead else []

    def peek(self, requests: Sequence[Request], *, now_us: int | None = None) -> list[Verdict]:
        """What each request alone would be answered; charges nothing."""
        return self._decide(requests, now_us, peek=True)

    def _decide(self, requests: Sequence[Request], now_us: int | None, *, peek: bool) -> list[Verdict]:
        call = self._calls.decide(*_apart(requests), peek=peek)
        if not call.keys:
            return [Admitted()] * len(requests)
        if now_us is None and self._clock is not None:
            now_us = self._clock()
        return read_verdicts(self._gate(call.keys, call.arguments(now_us)), call, None)


def _apart(requests: Sequence[Request]) -> tuple[list[str], list[tuple[Demand, ...]]]:
    return [slot for slot, _ in requests], [demands for _, demands in requests]

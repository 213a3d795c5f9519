"""A call that arrives when its worker has given it up and goes on under a new name changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from dispatcher.errors import GateUnavailable
from dispatcher.server.clients import connect
from tests.support.delay_proxy import DelayProxy
from tests.support.processes import until
from tests.support.servers import RedisServer
from tests.support.stage import UNPACED, Stage

TIMEOUT_S: Final = 1.0


class Network:
    """What is between a worker and its server; it may bring a call later than others that were sent after it."""

    def __init__(self, server: RedisServer, proxy: DelayProxy) -> None:
        self._server = server
        self._proxy = proxy

    @contextmanager
    def holding(self) -> Iterator[None]:
        """The next call of a script arrives at the end; nobody waits so long for its answer."""
        arrives, once = threading.Event(), threading.Lock()

        def hold(piece: bytes) -> None:
            if b"EVALSHA" in piece and once.acquire(blocking=False):
                arrives.wait(10 * TIMEOUT_S)

        self._proxy.on_call = hold
        yield
        before = self._calls()
        arrives.set()
        until(lambda: self._calls() > before, "the late call")

    def _calls(self) -> int:
        stats: Any = self._server.attendant.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


@pytest.fixture
def far(own_server: RedisServer) -> Iterator[tuple[Network, Stage]]:
    """A stage whose scripts the server knows, and whose calls wait for a second."""
    with DelayProxy(own_server.socket) as proxy, connect(proxy.url, timeout_s=TIMEOUT_S) as client:
        stage = Stage(client)
        zoe = stage.worker("zoe")
        zoe.take()
        zoe.give_back()
        yield Network(own_server, proxy), stage


def given_up(call: Callable[[], object]) -> None:
    with pytest.raises(GateUnavailable):
        call()


def test_a_name_that_comes_late_does_not_take_what_the_next_one_posts(far: tuple[Network, Stage]) -> None:
    network, stage = far
    ann, bob = stage.worker("ann"), stage.worker("bob")
    ann.take()
    stage.send("x", channel=UNPACED)
    with network.holding():
        given_up(ann.keep_only)
        ann.keep_only()
        started = ann.go()
    assert bob.taken() == []
    ann.deliver(started)
    bob.run()
    assert (ann.desk.posts, bob.desk.posts, stage.total("sent")) == (["x"], [], 1)
    assert stage.snapshot().leases.keys() == {"ann/3", "bob"}


def test_a_take_that_comes_late_leaves_the_events_to_those_who_live(far: tuple[Network, Stage]) -> None:
    network, stage = far
    ann = stage.worker("ann")
    ann.take()
    stage.send("x", channel=UNPACED)
    with network.holding():
        given_up(ann.take)
        ann.keep_only()
    assert ann.taken() == ["x"]


def test_a_heartbeat_that_comes_late_brings_no_name_back(far: tuple[Network, Stage]) -> None:
    network, stage = far
    ann = stage.worker("ann")
    ann.take()
    with network.holding():
        given_up(ann.renew)
        ann.keep_only()
    assert stage.snapshot().leases.keys() == {"ann/2"}

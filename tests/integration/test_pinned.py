"""Commands that were sent together to a server that hangs, and the last ones of who is about to end."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from redis.exceptions import TimeoutError as Unanswered

from dispatcher.connection import connect, hurry
from dispatcher.pinned import Pinned, pinned
from tests.support.servers import RedisServer


@pytest.fixture
def commands(own_server: RedisServer) -> Iterator[Pinned]:
    """Three open connections, each of which waits two seconds, to a server that hangs."""
    with connect(own_server.url, timeout_s=2) as client:
        found = pinned(client)
        for asked in [found.send("PING") for _ in range(3)]:
            assert asked.answer() == b"PONG"
        own_server.freeze()
        yield found
        own_server.cont()


def test_commands_that_were_sent_together_are_given_up_together(commands: Pinned) -> None:
    sent = [commands.send("PING") for _ in range(3)]
    begun = time.monotonic()
    for asked in sent:
        with pytest.raises(Unanswered):
            asked.answer()
    assert 1.5 < time.monotonic() - begun < 3.5


def test_an_answer_that_is_read_late_was_there_in_time(own_server: RedisServer) -> None:
    with connect(own_server.url, timeout_s=1) as client:
        commands = pinned(client)
        early, late = commands.send("BLPOP", "nothing", "1.6"), commands.send("PING")
        with pytest.raises(Unanswered):
            early.answer()
        assert late.answer() == b"PONG"


def test_who_is_in_a_hurry_waits_no_longer_than_that_on_connections_that_were_open(own_server: RedisServer) -> None:
    with connect(own_server.url, timeout_s=60) as client:
        commands = pinned(client)
        assert commands.execute("PING") == b"PONG"
        own_server.freeze()
        hurry(client, 0.3)
        begun = time.monotonic()
        for _ in range(2):
            with pytest.raises(Unanswered):
                commands.execute("PING")
        assert time.monotonic() - begun < 10
        own_server.cont()

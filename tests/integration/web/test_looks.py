"""What all viewers share, without a process that serves it."""

from __future__ import annotations

from typing import Final

from dispatcher.app.operating import Desk
from dispatcher.app.servers import Server
from dispatcher.settings.environment import Settings
from dispatcher.store.counts import MINUTE_US
from dispatcher.web.page.looks import HISTORY, Looks
from tests.support.dead_letters import KEYS
from tests.support.doubles import START_US
from tests.support.servers import Database

THIS_MINUTE: Final = START_US // MINUTE_US


def test_what_came_in_a_minute_after_somebody_looked_is_in_the_history_for_good(
    redis: Database, redis_url: str
) -> None:
    looks = Looks(Desk(Settings.isolated(), Server(redis_url, "there"), timeout_s=5))
    redis.hset(KEYS.minute(THIS_MINUTE), mapping={"received": 1})
    assert looks.history(START_US)[-1].received == 1
    redis.hset(KEYS.minute(THIS_MINUTE), mapping={"received": 10_000, "dropped": 9_000})
    for ago in (3, HISTORY - 1):
        minute = looks.history(START_US + ago * MINUTE_US)[-1 - ago]
        assert (minute.received, minute.ended["dropped"]) == (10_000, 9_000)

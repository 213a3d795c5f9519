"""What tests of the limiter share: scopes in short, looks at what is stored, an event loop for the async one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from redis.asyncio import Redis

from dispatcher.core.limits import Scope
from dispatcher.limiter import AsyncLimiter
from dispatcher.server.keys import Keys
from tests.support.servers import Database

KEYS: Final = Keys("shop")
PATIENCE_S: Final = 20

Run: TypeAlias = Callable[[Callable[[AsyncLimiter], Awaitable[None]]], None]


def scope(name: str, *limits: str, ids: bool = True) -> Scope:
    return Scope(name, limits, ids=ids)


def contents(redis: Database) -> dict[bytes, object]:
    return {key: redis.dump(key) for key in redis.scan_iter()}


def script_calls(redis: Database) -> int:
    return int(redis.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def bells(redis: Database) -> list[str]:
    """The connections that listen, by their ids."""
    return [each["id"] for each in redis.client_list(_type="pubsub")]


def redis_asyncio(url: str, **options: Any) -> Any:  # noqa: ANN401 - redis-py types it as everything it could be
    return Redis.from_url(url, **options)


def run_with(url: str, body: Callable[[AsyncLimiter], Awaitable[None]]) -> None:
    """Run a coroutine with a limiter in an event loop of its own, which no task outlives."""

    async def main() -> None:
        async with redis_asyncio(url) as client, asyncio.timeout(PATIENCE_S):
            await body(AsyncLimiter(client, namespace="shop"))
            await await_others()

    asyncio.run(main())


async def await_others() -> None:
    """Return when no task but the current one is left; one that does not end by itself is a failure."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        _, left = await asyncio.wait(others, timeout=PATIENCE_S)
        assert left == set()

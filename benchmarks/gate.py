"""The gate's decisions against the recipe's: one by one, in batches, and from concurrent tasks."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.effort import Cores, Effort
from benchmarks.figures import Goal, Proofs, Report
from benchmarks.recipe import RECIPE
from benchmarks.rounds import Contender, Lap, decisions_table, interleave, ratio
from benchmarks.stage import stage
from benchmarks.storms import WINDOW, WINDOW_US
from dispatcher.limiter import Admitted, AsyncLimiter, Limit, Limiter, Scope

TYPES: Final = 20
BATCH: Final = 128
TASKS: Final = 50


@dataclass(frozen=True, slots=True)
class Mix:
    """One set of limits, and the calls against them: the types take turns.

    ``batched`` and ``concurrent`` are goals: how many times as fast as the recipe a batch and 50 tasks have to be.
    """

    title: str
    everything: int
    each: int
    decisions: int
    batched: float
    concurrent: float

    @property
    def admitted(self) -> int:
        """How many of the decisions have room."""
        return min(self.decisions, self.everything, TYPES * self.each)


RECIPE_SYNC: Final = "the recipe, one by one"
RECIPE_ASYNC: Final = "the recipe, redis.asyncio, one by one"
RECIPE_TASKS: Final = f"the recipe, redis.asyncio, {TASKS} tasks"
ONE: Final = "try_acquire, one by one"
MANY: Final = f"try_acquire_many, {BATCH} a call"
CONCURRENT: Final = f"AsyncLimiter, {TASKS} tasks"
ON_ONE_CORE: Final = ", client and server on one core"


def run(effort: Effort) -> Report:
    """The source scenario, where nearly everything is refused, and its opposite; also with all on one core."""
    decisions = effort.of(BATCH * 20, quick=BATCH * 5)
    mixes = (
        Mix(f"source scenario: 100/{WINDOW} in all, 10/{WINDOW} for each of 20 types", 100, 10, decisions, 25.0, 8.0),
        Mix(f"everything admitted: limits of 1,000,000/{WINDOW}", 1_000_000, 1_000_000, decisions, 15.0, 5.0),
    )
    proofs, tables, goals = Proofs(), [], []
    for cores, where in _placements(effort.cores):
        with stage(cores) as (redis, client), asyncio.Runner() as loop:
            aio = AsyncRedis(unix_socket_path=str(redis.socket))
            for mix in mixes:
                laps = interleave(_contenders(mix, client, aio, loop, effort, where), effort, client, proofs)
                tables.append(decisions_table(mix.title + where, laps, RECIPE_SYNC, "the recipe"))
                goals += _goals(mix, laps, where)
            loop.run(aio.aclose())
    return Report(tuple(tables), tuple(goals), proofs.collected())


def _placements(asked: Cores) -> Iterator[tuple[Cores, str]]:
    """Where client and server run, and what is said of it."""
    yield asked, ""
    if asked is Cores.FREE and sys.platform == "linux":
        yield Cores.TOGETHER, ON_ONE_CORE


def _contenders(  # noqa: PLR0913, PLR0917 - two clients of one server, and how they are used
    mix: Mix, client: Redis, aio: AsyncRedis, loop: asyncio.Runner, effort: Effort, where: str
) -> Sequence[Contender]:
    everything = Scope("global", (Limit(mix.everything, window_us=WINDOW_US),))
    types = [(everything, Scope(f"type:{n}", (Limit(mix.each, window_us=WINDOW_US),))) for n in range(TYPES)]
    calls = [types[n % TYPES] for n in range(mix.decisions)]
    limiter, concurrent = Limiter(client, namespace="bench"), AsyncLimiter(aio, namespace="bench")
    asked = _RecipeCalls(mix)
    recipe, async_recipe = client.register_script(RECIPE), aio.register_script(RECIPE)

    def by_recipe() -> int:
        return sum(int(recipe(keys=keys, args=args)) for keys, args in asked)

    async def acquired(scopes: tuple[Scope, ...]) -> bool:
        return type(await concurrent.try_acquire(scopes)) is Admitted

    async def admitted(call: tuple[list[str], list[Any]]) -> bool:
        return bool(await async_recipe(keys=call[0], args=call[1]))

    def contender(name: str, decide: Callable[[], int], passes: int = 1) -> Contender:
        proof = f"admitted{where}, by" if where else "admitted by"
        return Contender(name, decide, mix.decisions, mix.admitted, client.flushdb, effort.of(passes, quick=1), proof)

    return (
        contender(RECIPE_SYNC, by_recipe),
        contender(ONE, lambda: one_by_one(limiter, calls)),
        contender(MANY, lambda: in_batches(limiter, calls), passes=4),
        contender(CONCURRENT, lambda: loop.run(_shared(acquired, calls, TASKS)), passes=2),
        contender(RECIPE_ASYNC, lambda: loop.run(_shared(admitted, asked, 1))),
        contender(RECIPE_TASKS, lambda: loop.run(_shared(admitted, asked, TASKS))),
    )


def one_by_one(limiter: Limiter, calls: Sequence[tuple[Scope, ...]]) -> int:
    """A call for each decision; how many were admitted."""
    return sum(type(limiter.try_acquire(scopes)) is Admitted for scopes in calls)


def in_batches(limiter: Limiter, calls: Sequence[tuple[Scope, ...]]) -> int:
    """``BATCH`` decisions a call; how many were admitted."""
    verdicts = itertools.chain.from_iterable(
        limiter.try_acquire_many(calls[at : at + BATCH]) for at in range(0, len(calls), BATCH)
    )
    return sum(type(verdict) is Admitted for verdict in verdicts)


class _RecipeCalls:
    """Keys and arguments of one pass of the recipe."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._keys = [["recipe:global", f"recipe:type:{n}"] for n in range(TYPES)]
        self._count = itertools.count()

    def __iter__(self) -> Iterator[tuple[list[str], list[Any]]]:
        mix = self._mix
        for n in range(mix.decisions):
            yield self._keys[n % TYPES], [WINDOW_US, mix.everything, mix.each, next(self._count)]


async def _shared(ask: Callable[[Any], Awaitable[bool]], calls: Sequence[Any] | _RecipeCalls, tasks: int) -> int:
    """So many tasks take the next call each until none is left; how many were admitted."""
    left = iter(calls)

    async def task() -> int:
        admitted = 0
        for call in left:
            admitted += await ask(call)
        return admitted

    return sum(await asyncio.gather(*(task() for _ in range(tasks))))


def _goals(mix: Mix, laps: dict[str, list[Lap]], where: str) -> list[Goal]:
    what = mix.title.partition(":")[0] + where
    return [
        Goal(f"{what}: {ours} / {theirs}", ratio(laps, ours, theirs), at_least=bound)
        for ours, theirs, bound in (
            (ONE, RECIPE_SYNC, 0.9),
            (MANY, RECIPE_SYNC, mix.batched),
            (CONCURRENT, RECIPE_SYNC, mix.concurrent),
            (CONCURRENT, RECIPE_ASYNC, mix.concurrent),
        )
    ]

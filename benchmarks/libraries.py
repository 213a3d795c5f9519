"""The other limiter libraries, each asked in its own words, with the settings its documentation gives for Redis.

They are untyped or typed for themselves alone, and need not be installed: whatever comes from them is Any.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol

from redis import Redis

from tests.support.servers import RedisServer

FOLDER: Final = Path(__file__).parents[1] / "build" / "bench"
"""Where ``make bench`` puts them; searched last, so that nothing of ours is replaced."""

_UNITS: Final = {1: "sec", 60: "min", 3_600: "hour"}


class Peer(Protocol):
    """One library over one server. A rate is (max, seconds)."""

    name: str
    package: str
    retry_after_by: str
    """How a refusal's instant is got at, where the answer does not hold it."""
    forgets: str
    """What it has in place of giving one slot back."""

    def signature(self) -> str:
        """The call that decides, with everything it takes."""
        ...

    def scope(self, name: str, *rates: tuple[int, int]) -> Callable[[], bool]:
        """A function that asks for one slot; raises ``NotImplementedError`` where several rates cannot be one scope."""
        ...

    def waiter(self, name: str, rate: tuple[int, int]) -> Callable[[], bool] | None:
        """A function that waits for a slot; None where the library cannot wait."""
        ...

    def retry_after_s(self, name: str, rate: tuple[int, int]) -> float:
        """What the library says about a full scope: seconds until a slot is free."""
        ...

    @contextmanager
    def at(self, instant_s: float) -> Iterator[None]:
        """The library sees ``instant_s`` on its host's clock."""
        ...


class Limits:
    """limits: its moving window, a list of instants."""

    name = "limits"
    package = "limits"
    retry_after_by = ", by a second call"
    forgets = "clear()"

    def __init__(self, server: RedisServer, client: Redis) -> None:
        del client
        self._module: Any = importlib.import_module("limits")
        self._redis: Any = importlib.import_module("limits.storage.redis")
        storage = importlib.import_module("limits.storage").storage_from_string(f"redis+unix://{server.socket}")
        self._window: Any = importlib.import_module("limits.strategies").MovingWindowRateLimiter(storage)

    def signature(self) -> str:
        """As ``Peer`` says."""
        return _signature(self._window.hit)

    def scope(self, name: str, *rates: tuple[int, int]) -> Callable[[], bool]:
        """As ``Peer`` says."""
        if len(rates) > 1:
            raise NotImplementedError("hit() takes one rate")
        item, hit = self._item(rates[0]), self._window.hit
        return lambda: bool(hit(item, name))

    def waiter(self, name: str, rate: tuple[int, int]) -> Callable[[], bool] | None:
        """It has none."""
        del name, rate
        return None

    def retry_after_s(self, name: str, rate: tuple[int, int]) -> float:
        """By a second call: a refusal itself is False and no more."""
        return float(self._window.get_window_stats(self._item(rate), name).reset_time - self._redis.time.time())

    @contextmanager
    def at(self, instant_s: float) -> Iterator[None]:
        """As ``Peer`` says."""
        with _replaced(self._redis, time=SimpleNamespace(time=lambda: instant_s)):
            yield

    def _item(self, rate: tuple[int, int]) -> Any:  # noqa: ANN401 - a RateLimitItem
        return self._module.parse(f"{rate[0]}/{rate[1]} second")


class Pyrate:
    """pyrate-limiter: its RedisBucket, a sorted set; without the thread that trims it every ten seconds."""

    name = "pyrate-limiter"
    package = "pyrate-limiter"
    retry_after_by = ", from the bucket below the limiter"
    forgets = "flush()"

    def __init__(self, server: RedisServer, client: Redis) -> None:
        del server
        self._module: Any = importlib.import_module("pyrate_limiter")
        self._client = client
        self._now_ms: int | None = None

    def signature(self) -> str:
        """As ``Peer`` says."""
        return _signature(self._module.Limiter.try_acquire)

    def scope(self, name: str, *rates: tuple[int, int]) -> Callable[[], bool]:
        """As ``Peer`` says."""
        acquire = self._limiter(name, *rates).try_acquire
        return lambda: bool(acquire(name, blocking=False))

    def waiter(self, name: str, rate: tuple[int, int]) -> Callable[[], bool] | None:
        """As ``Peer`` says."""
        acquire = self._limiter(name, rate).try_acquire
        return lambda: bool(acquire(name))

    def retry_after_s(self, name: str, rate: tuple[int, int]) -> float:
        """By the bucket below the limiter: ``try_acquire`` itself answers False and no more."""
        bucket = self._bucket(name, rate)
        item = self._module.RateItem(name, bucket.now())
        bucket.put(item)
        return float(bucket.waiting(item)) / 1_000

    @contextmanager
    def at(self, instant_s: float) -> Iterator[None]:
        """As ``Peer`` says."""
        self._now_ms = round(instant_s * 1_000)
        try:
            yield
        finally:
            self._now_ms = None

    def _limiter(self, name: str, *rates: tuple[int, int]) -> Any:  # noqa: ANN401 - its Limiter
        bucket = self._bucket(name, *rates)
        return self._module.Limiter(self._module.SingleBucketFactory(bucket, schedule_leak=False))

    def _bucket(self, name: str, *rates: tuple[int, int]) -> Any:  # noqa: ANN401 - its RedisBucket
        spelled = [self._module.Rate(maximum, 1_000 * seconds) for maximum, seconds in rates]
        bucket = self._module.RedisBucket.init(spelled, self._client, f"pyrate:{name}")
        clock = bucket.now
        bucket.now = lambda: clock() if self._now_ms is None else self._now_ms
        return bucket


class Throttled:
    """throttled-py: its sliding window, two counters."""

    name = "throttled-py"
    package = "throttled-py"
    retry_after_by = ""
    forgets = "deleting its keys"

    def __init__(self, server: RedisServer, client: Redis) -> None:
        del client
        self._module: Any = importlib.import_module("throttled")
        self._rates: Any = importlib.import_module("throttled.rate_limiter")
        self._clock: Any = importlib.import_module("throttled.utils")
        self._store = self._module.RedisStore(server=f"unix://{server.socket}")

    def signature(self) -> str:
        """As ``Peer`` says."""
        return _signature(self._module.Throttled.limit)

    def scope(self, name: str, *rates: tuple[int, int]) -> Callable[[], bool]:
        """As ``Peer`` says."""
        if len(rates) > 1:
            raise NotImplementedError("Throttled() takes one quota")
        limit = self._throttled(rates[0]).limit
        return lambda: not limit(name).limited

    def waiter(self, name: str, rate: tuple[int, int]) -> Callable[[], bool] | None:
        """As ``Peer`` says."""
        limit = self._throttled(rate).limit
        return lambda: not limit(name, timeout=60).limited

    def retry_after_s(self, name: str, rate: tuple[int, int]) -> float:
        """It stands in the answer."""
        return float(self._throttled(rate).limit(name).state.retry_after)

    @contextmanager
    def at(self, instant_s: float) -> Iterator[None]:
        """As ``Peer`` says."""
        with _replaced(self._clock, now_sec=lambda: int(instant_s), now_ms=lambda: int(instant_s * 1_000)):
            yield

    def _throttled(self, rate: tuple[int, int]) -> Any:  # noqa: ANN401 - its Throttled
        quota = getattr(self._rates, f"per_{_UNITS[rate[1]]}")(rate[0])
        return self._module.Throttled(using="sliding_window", quota=quota, store=self._store)


PEERS: Final[Sequence[Callable[[RedisServer, Redis], Peer]]] = (Limits, Pyrate, Throttled)
PACKAGES: Final = (Limits.package, Pyrate.package, Throttled.package)


def find(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The version of each that can be imported, from now on."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


@contextmanager
def _replaced(module: Any, **names: Any) -> Iterator[None]:  # noqa: ANN401 - what a module holds
    before = {name: getattr(module, name) for name in names}
    for name, value in names.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _signature(function: Any) -> str:  # noqa: ANN401 - a method of a library
    taken = [
        f"*{each.name}" if each.kind is each.VAR_POSITIONAL else each.name
        for each in inspect.signature(function).parameters.values()
        if each.name != "self"
    ]
    return f"{function.__name__}({', '.join(taken)})"


def take(ask: Callable[[], bool], times: int) -> int:
    """How many of so many calls were admitted."""
    return sum(ask() for _ in itertools.repeat(None, times))

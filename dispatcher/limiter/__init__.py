"""The gate as a library: exact limits over several scopes and windows, decided by one atomic script on Redis.

limiter = Limiter(redis.Redis(), namespace="shop")
verdict = limiter.try_acquire(Scope("user:42", (Limit.parse("100/1m"),)))

May import: core, server, errors, jsonio, front_door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.front_door import front_door

if TYPE_CHECKING:
    from dispatcher.core.limits import Admitted, Demand, Denied, FirstOf, Kind, Limit, Scope, Verdict
    from dispatcher.errors import GateRefused, GateUnavailable, RateLimited, StaleLimits
    from dispatcher.limiter.blocking import Limiter
    from dispatcher.limiter.concurrent import AsyncLimiter
    from dispatcher.limiter.wire import Usage

__all__ = [
    "Admitted",
    "AsyncLimiter",
    "Demand",
    "Denied",
    "FirstOf",
    "GateRefused",
    "GateUnavailable",
    "Kind",
    "Limit",
    "Limiter",
    "RateLimited",
    "Scope",
    "StaleLimits",
    "Usage",
    "Verdict",
]

__getattr__ = front_door(
    __name__,
    {
        "Admitted": "dispatcher.core.limits",
        "AsyncLimiter": "dispatcher.limiter.concurrent",
        "Demand": "dispatcher.core.limits",
        "Denied": "dispatcher.core.limits",
        "FirstOf": "dispatcher.core.limits",
        "GateRefused": "dispatcher.errors",
        "GateUnavailable": "dispatcher.errors",
        "Kind": "dispatcher.core.limits",
        "Limit": "dispatcher.core.limits",
        "Limiter": "dispatcher.limiter.blocking",
        "RateLimited": "dispatcher.errors",
        "Scope": "dispatcher.core.limits",
        "StaleLimits": "dispatcher.errors",
        "Usage": "dispatcher.limiter.wire",
        "Verdict": "dispatcher.core.limits",
    },
)

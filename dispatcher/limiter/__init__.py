"""The gate as a library: exact limits over several scopes and windows, decided by one atomic script on Redis.

limiter = Limiter(redis.Redis(), namespace="shop")
verdict = limiter.try_acquire(Scope("user:42", (Limit.parse("100/1m"),)))

May import: core, server, errors, jsonio.
"""

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

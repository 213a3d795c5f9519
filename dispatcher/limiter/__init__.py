"""The gate as a library: exact limits over several scopes and windows, decided by one atomic script on Redis.

limiter = Limiter(redis.Redis(), namespace="shop")
verdict = limiter.try_acquire(Scope("user:42", (Limit.parse("100/1m"),)))

May import: core, server, errors, jsonio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dispatcher.core.limits import Admitted, Demand, Denied, FirstOf, Kind, Left, Limit, Scope, Verdict
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
    "Left",
    "Limit",
    "Limiter",
    "RateLimited",
    "Scope",
    "StaleLimits",
    "Usage",
    "Verdict",
]

_HOMES: Final = {
    "Admitted": "dispatcher.core.limits",
    "AsyncLimiter": "dispatcher.limiter.concurrent",
    "Demand": "dispatcher.core.limits",
    "Denied": "dispatcher.core.limits",
    "FirstOf": "dispatcher.core.limits",
    "GateRefused": "dispatcher.errors",
    "GateUnavailable": "dispatcher.errors",
    "Kind": "dispatcher.core.limits",
    "Left": "dispatcher.core.limits",
    "Limit": "dispatcher.core.limits",
    "Limiter": "dispatcher.limiter.blocking",
    "RateLimited": "dispatcher.errors",
    "Scope": "dispatcher.core.limits",
    "StaleLimits": "dispatcher.errors",
    "Usage": "dispatcher.limiter.wire",
    "Verdict": "dispatcher.core.limits",
}


def __getattr__(name: str) -> object:
    """A public name, loaded from its module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found

"""For tests of programs that send or limit: a local Slack, and producers and limiters without a server.

from dispatcher.testing import FakeLimiter, FakeProducer, SlackStandIn, landed, Reset

``SlackStandIn`` answers as Slack does, over real HTTP on 127.0.0.1, and fails on demand; the pytest fixture
``slack_stand_in`` is one for each test and comes with the installation. ``FakeProducer`` and ``AsyncFakeProducer`` take
the place of ``Producer`` and ``AsyncProducer``, check like them, and keep what was sent. ``FakeLimiter`` and
``AsyncFakeLimiter`` decide as ``Limiter`` and ``AsyncLimiter`` do, by a clock that a test moves.

Loads nothing before it is used: pytest imports the fixture into every run.

May import: stand_in, producer, limiter, store, core, server, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dispatcher.stand_in import (
        EVERY_ROW,
        METHODS,
        REALISTIC,
        SCOPES,
        STRICT,
        TRANSIENT,
        WORKSPACE,
        Chance,
        Close,
        CutBody,
        Drip,
        Fault,
        Faults,
        Hang,
        Held,
        Hold,
        Ledger,
        Outage,
        Page,
        Posted,
        Rate,
        Reset,
        Setup,
        SlackError,
        Slow,
        Text,
        TooManyRequests,
        landed,
        not_landed,
    )
    from dispatcher.stand_in import StandIn as SlackStandIn
    from dispatcher.testing.limiters import AsyncFakeLimiter, FakeLimiter
    from dispatcher.testing.producers import AsyncFakeProducer, FakeProducer

__all__ = [
    "EVERY_ROW",
    "METHODS",
    "REALISTIC",
    "SCOPES",
    "STRICT",
    "TRANSIENT",
    "WORKSPACE",
    "AsyncFakeLimiter",
    "AsyncFakeProducer",
    "Chance",
    "Close",
    "CutBody",
    "Drip",
    "FakeLimiter",
    "FakeProducer",
    "Fault",
    "Faults",
    "Hang",
    "Held",
    "Hold",
    "Ledger",
    "Outage",
    "Page",
    "Posted",
    "Rate",
    "Reset",
    "Setup",
    "SlackError",
    "SlackStandIn",
    "Slow",
    "Text",
    "TooManyRequests",
    "landed",
    "not_landed",
]


_FAKES: Final = {
    "AsyncFakeLimiter": "dispatcher.testing.limiters",
    "AsyncFakeProducer": "dispatcher.testing.producers",
    "FakeLimiter": "dispatcher.testing.limiters",
    "FakeProducer": "dispatcher.testing.producers",
}


def __getattr__(name: str) -> object:
    """Loads these at their first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = _FAKES.get(name, "dispatcher.stand_in")
    found: object = getattr(import_module(home), "StandIn" if name == "SlackStandIn" else name)
    return found

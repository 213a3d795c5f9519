"""What the stand-in's workspace is like: who may call, which channels there are, how fast, how far one may read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from dispatcher.stand_in.outages import Outage
from dispatcher.stand_in.rates import METHODS, WORKSPACE, Rate

TOKEN: Final = "xoxb-local-stand-in"  # noqa: S105 - no secret: it opens nothing but the local stand-in
WEBHOOK_PATH: Final = "/services/T0STANDIN/B0STANDIN/localStandInWebhookKey00"

SCOPES: Final = (
    "chat:write",
    "chat:write.public",
    "chat:write.customize",
    "channels:history",
    "groups:history",
    "channels:read",
    "groups:read",
)


@dataclass(frozen=True, slots=True)
class Setup:
    """What the workspace is like. Channels are named as people do: ``#ops``.

    ``channels`` of ``None``: a channel exists as soon as a post names it, whatever becomes of the post. ``private`` are
    those that need the scopes of groups, ``uninvited`` those the app is no member of: it can post there with
    ``chat:write.public``, and never read.

    ``rate`` is that of each channel, ``workspace_rate`` that of all posts together, ``method_rates`` has those of other
    methods; without them nobody is ever too fast. ``history_lag_s`` is how long after it landed a message shows up in
    the history; ``history_items`` the most that one history call returns, and then there is one a minute, as Slack has
    it for apps distributed outside of its marketplace (15). ``outages`` are times in which it is down. ``clock`` gives
    seconds since 1970.
    """

    token: str = TOKEN
    scopes: tuple[str, ...] = SCOPES
    webhook_channel: str = "#webhook"
    channels: frozenset[str] | None = None
    archived: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()
    uninvited: frozenset[str] = frozenset()
    rate: Rate | None = None
    workspace_rate: Rate | None = None
    method_rates: Mapping[str, Rate] = field(default_factory=dict)
    history_lag_s: float = 0.0
    history_items: int | None = None
    outages: tuple[Outage, ...] = ()
    clock: Callable[[], float] = time.time

    @classmethod
    def paced(cls, rate: Rate, **more: Any) -> Self:  # noqa: ANN401 - the other fields
        """A workspace with all of Slack's rates; ``rate`` is that of each channel: ``STRICT`` or ``REALISTIC``."""
        return cls(rate=rate, workspace_rate=WORKSPACE, method_rates=METHODS, **more)

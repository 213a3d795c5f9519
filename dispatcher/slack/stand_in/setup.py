"""What the stand-in's workspace is like: who may call, which channels there are, how fast, how far one may read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dispatcher.slack.stand_in.rates import Rate

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

    ``channels`` of ``None``: a channel exists as soon as it is posted to. ``private`` are those that need the scopes of
    groups, ``uninvited`` those the app is no member of: it can post there with ``chat:write.public``, and never read.

    ``rate`` of ``None``: no channel is ever too fast. ``history_lag_s`` is how long after it landed a message shows up
    in readings; ``history_items`` the most that one reading returns, and then there is one reading a minute, as Slack
    has it for apps distributed outside of its marketplace (15). ``clock`` gives seconds since 1970.
    """

    token: str = TOKEN
    scopes: tuple[str, ...] = SCOPES
    webhook_channel: str = "#webhook"
    channels: frozenset[str] | None = None
    archived: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()
    uninvited: frozenset[str] = frozenset()
    rate: Rate | None = None
    history_lag_s: float = 0.0
    history_items: int | None = None
    clock: Callable[[], float] = time.time

"""Muting in an operator's hands."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.connection import Client, JsonScript
from dispatcher.keys import Keys
from dispatcher.scripts import script_keys


class Muting:
    """Mutes and unmutes categories of a namespace. Raises ``GateUnavailable`` when the server is away."""

    def __init__(self, client: Client, keys: Keys, *, clock: Callable[[], int] | None = None) -> None:
        self._names = [keys.named(name) for name in script_keys("mute")]
        self._waits = keys.waits_prefix
        self._script = JsonScript(client, "mute", clock)

    def mute(self, category: str, for_us: int, who: str, why: str) -> int:
        """Mute it from now on for so long, in place of a mute it has; returns the instant at which that ends."""
        until, _ = self._script(
            self._names, {"waits": self._waits, "category": category, "for_us": for_us, "who": who, "why": why}
        )
        return int(until)

    def unmute(self, category: str) -> bool:
        """End its mute, and let what waits for that go; whether it was muted."""
        _, was_muted = self._script(self._names, {"waits": self._waits, "category": category})
        return bool(was_muted)

"""Pausing in an operator's hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.server.connection import Client, JsonScript
from dispatcher.server.keys import Keys
from dispatcher.server.scripts import script_keys


class Pausing:
    """Stops posting and lets it go on, of everything or of one category.

    Raises ``GateUnavailable`` when the server is away.
    """

    def __init__(self, client: Client, keys: Keys, *, clock: Callable[[], int] | None = None) -> None:
        self._names = [keys.named(name) for name in script_keys("pause")]
        self._script = JsonScript(client, "pause", clock)

    def pause(self, what: str, by: str, why: str = "") -> bool:
        """From now on nothing of it is posted; posts in flight end. Whether it was not paused by hand before."""
        return not self._run(what, {"by": by, "why": why})

    def resume(self, what: str) -> bool:
        """What waits goes on; whether it was paused, by hand or, of everything, by what Slack answered."""
        return self._run(what, {})

    def _run(self, what: str, facts: dict[str, Any]) -> bool:
        return bool(self._script(self._names, {"what": what, **facts}))

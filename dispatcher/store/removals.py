"""Finds events that somebody else removed from the queue, such as a person with Delete or Empty in a dashboard for RQ.

Such a removal leaves no trace of its own. Our producers leave the ids that they enqueued last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dispatcher.server.connection import Client, JsonScript, translate_outages
from dispatcher.server.keys import Keys
from dispatcher.server.scripts import script_keys

_PAGE: Final = 500
"""Ids that one call looks at."""


class Removals:
    """Looks through the ids. Raises ``GateUnavailable`` when the server is away; what it found by then is kept."""

    def __init__(self, client: Client, keys: Keys, clock: Callable[[], int] | None = None) -> None:
        self._client = client
        self._keys = keys
        self._script = JsonScript(client, "removals", clock)

    def find(self, most_decisions: int) -> list[str]:
        """The ids that were removed since the last look; ``most_decisions`` are kept of what becomes of events."""
        with translate_outages():
            left: Any = self._client.llen(self._keys.enqueued)
        names = [self._keys.named(name) for name in script_keys("removals")]
        found: list[str] = []
        call: dict[str, Any] = {"most_decisions": most_decisions}
        while True:
            page = {"most": min(_PAGE, left)} if left > _PAGE else {"most": max(1, left), "ends": True}
            settled, *gone = self._script(names, {**call, **page})
            found += (id_.decode("utf-8", "replace") for id_ in gone)
            left -= _PAGE
            if "ends" in page:
                return found
            call["settled"] = int(settled)

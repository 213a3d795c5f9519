"""Who did what to a namespace by hand, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from redis.exceptions import RedisError

from dispatcher.server.connection import Client, translate_outages
from dispatcher.server.keys import Keys

KEPT: Final = 1_000
"""Entries that are kept, the newest."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action of an operator. ``whence`` is cli, http or page; ``count`` says how many events it was about."""

    who: str
    whence: Literal["cli", "http", "page"]
    what: str
    about: str = ""
    why: str = ""
    count: int | None = None


class Audit:
    """The trail of a namespace."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._key = keys.audit

    def note(self, action: Action) -> bool:
        """Keep an action that was done; whether it is kept. A refusal of the server undoes nothing."""
        fields: dict[Any, Any] = {"who": action.who, "whence": action.whence, "what": action.what}
        fields |= {name: text for name, text in (("about", action.about), ("why", action.why)) if text}
        if action.count is not None:
            fields["count"] = str(action.count)
        try:
            self._client.xadd(self._key, fields, maxlen=KEPT, approximate=False)
        except RedisError:
            return False
        return True

    def newest(self, count: int = KEPT) -> list[dict[str, Any]]:
        """So many at most, the newest first; ``at`` is in seconds since 1970. Raises ``GateUnavailable``."""
        with translate_outages():
            rows: Any = self._client.xrevrange(self._key, count=count)
        return [_document(id_, fields) for id_, fields in rows]


def _document(id_: bytes, fields: dict[bytes, bytes]) -> dict[str, Any]:
    said = {name.decode(): text.decode("utf-8", "replace") for name, text in fields.items()}
    count = said.pop("count", None)
    at_ms = int(id_.partition(b"-")[0])
    plain = {name: said.get(name, "") for name in ("who", "whence", "what", "about", "why")}
    return {"at": at_ms / 1_000, **plain, "count": count and int(count)}

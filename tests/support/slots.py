"""Holds and releases slots as the store's scripts do: through the very functions of lua/include/slots.lua."""

from __future__ import annotations

from typing import Final

from redis import Redis

from dispatcher.data_files import data_file

_PARTS: Final = "\n".join(
    data_file("lua", "include", f"{part}.lua").read_text(encoding="utf-8") for part in ("prelude", "plan", "slots")
)
_HOLD: Final = f"{_PARTS}\nslots.hold(KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]))\nplan.commit()"
_RELEASE: Final = f"{_PARTS}\nslots.release(KEYS[1], ARGV[1])\nplan.commit()"


class SlotScripts:
    """``hold`` marks a slot as held until an instant, ``release`` gives it back."""

    def __init__(self, client: Redis) -> None:
        self._hold = client.register_script(_HOLD)
        self._release = client.register_script(_RELEASE)

    def hold(self, key: str, id_: str, until_us: int, now_us: int) -> None:
        """Mark the slot of an id; one without a slot gets none."""
        self._hold(keys=[key], args=[id_, until_us, now_us])

    def release(self, key: str, id_: str) -> None:
        """Give the slot of an id back."""
        self._release(keys=[key], args=[id_])

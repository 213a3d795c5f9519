"""Tells of mutes as they come and go, as a worker sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dispatcher.model import US
from dispatcher.mutes import Mute


class MuteWatch:
    """Compares what each ``take`` says of mutes with what the one before said."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._say = say
        self._known: Mapping[str, Mute] = {}

    def tell(self, muted: Mapping[str, Mute]) -> None:
        """One line for each category that is muted now, or no longer."""
        before, self._known = self._known, muted
        if muted == before:
            return
        for category, mute in muted.items():
            if before.get(category) != mute:
                self._say("category.muted", category=category, until=mute.until_us / US, who=mute.who, detail=mute.why)
        for category in before.keys() - muted.keys():
            self._say("category.unmuted", category=category)

"""The stand-in's channels: their names and ids, and what the app may do in each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from dispatcher.stand_in.answers import Refused
from dispatcher.stand_in.asked import USUAL_ITEMS, as_cursor, cursor, is_true, items
from dispatcher.stand_in.setup import Setup

_ID: Final = re.compile(r"[CDGUW][A-Z0-9]{8,}")


def channel_id(name: str) -> str:
    """The id of a channel, the same in every run; an id is its own."""
    if not name.startswith("#"):
        return name
    return "C" + blake2b(name.encode(), digest_size=5).hexdigest().upper()


class Channels:
    """Every channel there is: those of the setup, else those that a post has named."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        named = (setup.channels or frozenset()) | setup.private | setup.uninvited
        self._names = {channel_id(name): name for name in named}

    def to_post(self, reference: object) -> str:
        """The name of a channel given as ``#name``, ``name`` or id; an id never seen is its own name.

        Raises ``Refused`` where there is none, or the app may not post.
        """
        if not isinstance(reference, str) or not reference.strip("#"):
            raise Refused("channel_not_found")
        name, setup = self.name_of(reference), self._setup
        if setup.channels is not None and name not in setup.channels:
            raise Refused("channel_not_found")
        if name in setup.uninvited:
            if self._is_hidden(name):
                raise Refused("channel_not_found")
            if "chat:write.public" not in setup.scopes:
                raise Refused("not_in_channel")
        if name in setup.archived:
            raise Refused("is_archived")
        self._names[channel_id(name)] = name
        return name

    def name_of(self, reference: object) -> str:
        """The name that ``to_post`` would find; looks at nothing else."""
        text = str(reference)
        name = self._names.get(text)
        return name or (text if _ID.fullmatch(text) else f"#{text.lstrip('#')}")

    def named(self, reference: object) -> None:
        """A post names a channel: unless the setup says which there are, it exists from now on."""
        if self._setup.channels is None and isinstance(reference, str) and reference.strip("#"):
            name = self.name_of(reference)
            self._names.setdefault(channel_id(name), name)

    def to_read(self, reference: object) -> str:
        """The name of a channel given as id: no method but a post takes a name. Raises ``Refused``."""
        name = self._names.get(reference) if isinstance(reference, str) else None
        if name is None or self._is_hidden(name):
            raise Refused("channel_not_found")
        scope = "groups:history" if name in self._setup.private else "channels:history"
        if scope not in self._setup.scopes:
            raise missing(scope, self._setup)
        if name in self._setup.uninvited:
            raise Refused("not_in_channel")
        return name

    def to_edit(self, reference: object) -> str:
        """The name of a channel given as id, in which a message is to be changed. Raises ``Refused``."""
        name = self._names.get(reference) if isinstance(reference, str) else None
        if name is None:
            raise Refused("channel_not_found")
        if name in self._setup.archived:
            raise Refused("is_inactive")
        return name

    def listed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What ``conversations.list`` returns: channels in order of name, public ones unless ``types`` says otherwise.

        Raises ``Refused``.
        """
        kinds = [kind.strip() for kind in str(arguments.get("types") or "public_channel").split(",")]
        scopes = {"public_channel": "channels:read", "private_channel": "groups:read"}
        for scope in (scopes.get(kind) for kind in kinds):
            if scope is None:
                raise Refused("invalid_types")
            if scope not in self._setup.scopes:
                raise missing(scope, self._setup)
        every = sorted(name for name in self._names.values() if not self._is_hidden(name))
        shown = [name for name in every if self._kind(name) in kinds]
        if is_true(arguments.get("exclude_archived")):
            shown = [name for name in shown if name not in self._setup.archived]
        begin, count = cursor(arguments.get("cursor")) or 0, items(arguments.get("limit"), USUAL_ITEMS)
        following = as_cursor(begin + count) if begin + count < len(shown) else ""
        page = [self._as_json(name) for name in shown[begin : begin + count]]
        return {"ok": True, "channels": page, "response_metadata": {"next_cursor": following}}

    def _as_json(self, name: str) -> dict[str, Any]:
        setup = self._setup
        return {
            "id": channel_id(name),
            "name": name.removeprefix("#"),
            "is_channel": True,
            "is_private": name in setup.private,
            "is_archived": name in setup.archived,
            "is_member": name not in setup.uninvited,
        }

    def _kind(self, name: str) -> str:
        return "private_channel" if name in self._setup.private else "public_channel"

    def _is_hidden(self, name: str) -> bool:
        """A private channel that the app is no member of is not there for it."""
        return name in self._setup.private and name in self._setup.uninvited


def missing(scope: str, setup: Setup) -> Refused:
    """The refusal for want of a scope."""
    return Refused("missing_scope", needed=scope, provided=",".join(setup.scopes))

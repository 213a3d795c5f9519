"""The versions of the limits: which one is in force for the fleet, what it says, how another takes its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from dispatcher.jsonio import decode
from dispatcher.server.connection import Client, JsonScript, translate_outages
from dispatcher.server.keys import Keys

_LOOKS: Final = 3


class Unless(StrEnum):
    """What keeps a content from being published: that it ever was a version, that any is in force, or nothing."""

    KNOWN = "known"
    ANY = "any"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the limits. ``name`` is unique, also where a server lost what was written last: number and digest.

    ``content`` is the text of a limits file; ``by`` says who published it at ``at_us``, ``file`` from where.
    """

    name: str
    number: int
    content: str
    at_us: int
    by: str
    file: str

    @property
    def digest(self) -> str:
        """The digest of the content."""
        return digest_of(self.name)


@dataclass(frozen=True, slots=True)
class Published:
    """The name of the version in force after the call, and whether this call published it.

    ``known`` is the number of the last version that had the content before.
    """

    version: str
    is_new: bool
    known: int | None


class Versions:
    """The versions of one namespace. Every method raises ``GateUnavailable`` when the server is away."""

    def __init__(self, client: Client, keys: Keys, clock: Callable[[], int] | None = None) -> None:
        self._client = client
        self._keys = keys
        self._publish = JsonScript(client, "publish", clock)

    def in_force(self) -> Version | None:
        """The version in force; None where nobody has published one, or the server has lost what it says."""
        for _ in range(_LOOKS):  # another one may be published between the two questions, and this one no longer kept
            with translate_outages():
                found = self._client.get(self._keys.limits_version)
                if found is None:
                    return None
                name = found.decode() if isinstance(found, bytes) else found
                row = self._client.hget(self._keys.limits_versions[0], number_of(name))
            facts = _facts_of(name, row)
            if facts is not None:
                at_us = int(facts["at"])
                return Version(name, facts["number"], facts["content"], at_us, facts["by"], facts["file"])
        return None

    def publish(self, content: str, digest: str, *, by: str, file: str, unless: Unless) -> Published:
        """Put limits in force as a new version, and let what waits ask anew; or leave things as they are, ``unless``.

        All in one step. Workers learn of it with their next call.
        """
        keys = self._keys
        names = [
            keys.limits_version, *keys.limits_versions, keys.lines, keys.timers, keys.reopening, keys.leases, keys.wake,
        ]  # fmt: skip
        call = {"digest": digest, "content": content, "by": by, "file": file, "unless": unless.value}
        answer = decode(self._publish(names, call))
        known = answer["known"]
        return Published(answer["version"], answer["published"], None if known is None else int(known))


def content_of(name: str, row: bytes | str) -> str | None:
    """The text of a version of this name; None if the row that was kept under its number is of another one."""
    facts = _facts_of(name, row)
    return None if facts is None else str(facts["content"])


def _facts_of(name: str, row: bytes | str | None) -> dict[str, Any] | None:
    facts: dict[str, Any] = {} if row is None else decode(row)
    return facts if facts.get("digest") == digest_of(name) else None


def number_of(name: str) -> str:
    """The number in the name of a version, as text."""
    return name.partition("-")[0]


def digest_of(name: str) -> str:
    """The digest in the name of a version."""
    return name.partition("-")[2]

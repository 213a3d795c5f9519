"""The versions of the limits: which one is in force for the fleet, what it says, how another takes its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from dispatcher.jsonio import answer_text, decode
from dispatcher.server.connection import Client, JsonScript, translate_outages
from dispatcher.server.keys import Keys

_LOOKS: Final = 3
_DIGITS: Final = re.compile("[0-9]{1,16}")


class Unless(StrEnum):
    """What keeps a content from being published: it is in force, it ever was a version, or any version is in force."""

    SAME = "same"
    KNOWN = "known"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the limits. ``name`` is unique, also where a server lost what was written last: number and digest.

    ``content`` is the text of a limits file; ``by`` says who published it at ``at_us``, ``file`` from where. ``source``
    tells the text that was read from others, '' where it is not known.
    """

    name: str
    number: int
    content: str
    at_us: int
    by: str
    file: str
    source: str = ""

    @property
    def digest(self) -> str:
        """The digest of the content."""
        return content_digest_of(self.name)


class Published(NamedTuple):
    """The name of the version in force after the call, '' for none, and whether this call published it.

    ``known`` is the number of the last version that had the content before.
    """

    version: str
    is_new: bool
    known: int | None

    @property
    def number(self) -> int | None:
        """The number of the version in force."""
        return int(number_of(self.version)) if self.version else None


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
                name = answer_text(found)
                row = self._client.hget(self._keys.limits_versions[0], number_of(name))
            version = None if row is None else _version(row)
            if version is not None and version.name == name:
                return version
        return None

    def note_refused(self) -> None:
        """Count that a limits file with faults was given to the fleet."""
        with translate_outages():
            self._client.hincrby(self._keys.metrics, "limits_refused", 1)

    def kept(self) -> list[Version]:
        """The versions whose contents are kept, the newest first."""
        with translate_outages():
            rows = self._client.hvals(self._keys.limits_versions[0])
        found = [version for row in rows if (version := _version(row)) is not None]
        return sorted(found, key=lambda version: version.number, reverse=True)

    def publish(  # noqa: PLR0913 - what a version says of itself, by name
        self,
        content: str,
        digest: str,
        source: str = "",
        *,
        by: str,
        file: str,
        unless: Unless,
        if_version: int | None = None,
    ) -> Published:
        """Put limits in force as a new version, and let what waits ask anew; or leave things as they are, ``unless``.

        With ``if_version`` they are also left when another version, or none, is in force. All in one step.
        Workers learn of it with their next call.
        """
        keys = self._keys
        names = [keys.limits_version, *keys.limits_versions, keys.reopening, keys.leases, keys.wake]
        call: dict[str, str | int] = {
            "digest": digest, "content": content, "source": source, "by": by, "file": file, "unless": unless.value,
        }  # fmt: skip
        if if_version is not None:
            call["if_version"] = if_version
        answer = decode(self._publish(names, call))
        known = answer["known"]
        return Published(answer["version"], answer["published"], None if known is None else int(known))


def content_of(name: str, row: bytes | str) -> str | None:
    """The text of a version of this name; None if the row that was kept under its number is of another one."""
    version = _version(row)
    return version.content if version is not None and version.name == name else None


def _version(row: bytes | str) -> Version | None:
    """A row as publish.lua writes it; None where somebody else wrote it. publish.lua takes the same rows for kept."""
    try:
        facts = decode(row)
        number, digest, at, by, file = (facts[name] for name in ("number", "digest", "at", "by", "file"))
        content = facts["content"]
        source = facts.get("source")
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    texts = (digest, content, at, by, file)
    if not isinstance(number, int) or not all(isinstance(each, str) for each in texts) or not _DIGITS.fullmatch(at):
        return None
    return Version(f"{number}-{digest}", number, content, int(at), by, file, source if isinstance(source, str) else "")


def number_of(name: str) -> str:
    """The number in the name of a version, as text."""
    return name.partition("-")[0]


def content_digest_of(name: str) -> str:
    """The digest in the name of a version."""
    return name.partition("-")[2]

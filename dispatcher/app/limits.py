"""The limits in force: those of the file, published to the fleet, or those that the fleet decides by already."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dispatcher.app.servers import Server, keys_of
from dispatcher.errors import ConfigError
from dispatcher.server.clients import connect
from dispatcher.server.connection import translate_refusals
from dispatcher.settings.plain import AnySettings
from dispatcher.store.versions import Unless, Version, Versions

if TYPE_CHECKING:
    from dispatcher.core.policy import Policy
    from dispatcher.settings.content import Content
    from dispatcher.settings.environment import Settings

_PUBLISH_TRIES: Final = 5

Say = Callable[..., None]
"""Writes a log line: its name, and facts by name."""


_MEANT: Final = "; if the built-in defaults are meant, write {} into it"


class LoadedLimits(NamedTuple):
    """What a limits file says, where it stands, and warnings about it."""

    policy: Policy
    path: Path
    warnings: tuple[str, ...]
    content: Content
    version: Version | None = None
    """As which it is in force, where it was read from there."""
    is_empty: bool = False

    def refuse_empty(self) -> None:
        """Raise ``ConfigError`` where it is empty: who writes it may not be done, and it would lift every limit."""
        if self.is_empty:
            raise ConfigError(f"{self.path}: the file is empty{_MEANT}")


class OwnFile(NamedTuple):
    """The operator's own limits file. ``is_same``: it says what is in force; None where it has faults."""

    path: Path
    is_same: bool | None


class InForce(NamedTuple):
    """A version of the limits, as values."""

    version: Version
    policy: Policy
    content: Content

    def as_file(self) -> LoadedLimits:
        """As the file it came from, whatever that says now."""
        return LoadedLimits(self.policy, Path(self.version.file), (), self.content, self.version)


def open_limits(settings: AnySettings) -> LoadedLimits:
    """The limits file of the settings; raises ``ConfigError`` with every fault."""
    from dispatcher.settings.limits_text import find_limits_file

    return read_limits_file(find_limits_file(settings, Path.cwd()))


def read_limits_file(path: Path) -> LoadedLimits:
    """A limits file; raises ``ConfigError`` with every fault."""
    from dispatcher.settings.limits_file import load_limits

    limits = load_limits(path)
    return LoadedLimits(limits.policy, path, limits.warnings, limits.content, is_empty=limits.is_empty)


def in_force(versions: Versions) -> InForce | None:
    """The version in force; None where nobody has published one.

    Raises ``GateUnavailable``, and ``ConfigError`` where this program cannot read it.
    """
    version = versions.in_force()
    return None if version is None else _checked(version)


def _checked(version: Version) -> InForce:
    """A version, after a look at each of its values: a newer program may have published it."""
    from dispatcher.settings.content import Content
    from dispatcher.settings.limits_file import policy_checked

    try:
        policy = policy_checked(version.content, f"limits version {version.number}")
    except ConfigError as error:
        raise ConfigError(
            f"limits version {version.number}, published by {version.by}, says what this program does not know: "
            "bring it to the version of that one, or publish limits that both know with 'dispatcher limits apply'",
            *error.problems,
        ) from error
    return InForce(version, policy, Content(version.content, version.digest, version.source))


def limits_in_force(versions: Versions) -> LoadedLimits | None:
    """``in_force``, as the file it came from."""
    found = in_force(versions)
    return None if found is None else found.as_file()


def limits_to_look_at(settings: AnySettings, versions: Versions) -> LoadedLimits:
    """What is in force; before anything is, what the limits file says. Raises as ``in_force`` does.

    A version was checked before it was published: who only looks does without the libraries that check.
    """
    from dispatcher.settings.content import Content, ContentNotRead, policy_in

    version = versions.in_force()
    if version is None:
        return open_limits(settings)
    try:
        found = InForce(version, policy_in(version.content), Content(version.content, version.digest, version.source))
    except ContentNotRead:
        found = _checked(version)
    return found.as_file()


def compare_own_file(settings: AnySettings, version: Version) -> OwnFile | None:
    """Whether the operator's own limits file says what this version says; None where there is no such file."""
    from dispatcher.settings.limits_text import LIMITS_FILE, own_limits_file, read_text, source_of

    try:
        path = own_limits_file(settings, Path.cwd())
    except ConfigError:
        return OwnFile(LIMITS_FILE, None)
    if path is None:
        return None
    try:
        if source_of(read_text(path)) == version.source:  # the usual case: what the text says need not be known
            return OwnFile(path, is_same=True)
        return OwnFile(path, read_limits_file(path).content.digest == version.digest)
    except ConfigError:
        return OwnFile(path, None)


def publish(versions: Versions, limits: LoadedLimits, by: str, unless: Unless, say: Say) -> InForce:
    """Publish what a file says, ``unless``, and tell; returns what is in force then. Raises as ``in_force`` does.

    Of a file that was a version once, and no longer is, it is told that the fleet does not follow it. An empty file is
    published only where no limits are in force.
    """
    content, file = limits.content, str(limits.path)
    follows = unless is Unless.KNOWN
    unless = Unless.ANY if limits.is_empty else unless
    for _ in range(_PUBLISH_TRIES):
        done = versions.publish(content.text, content.digest, content.source, by=by, file=file, unless=unless)
        found = in_force(versions)
        if found is not None:
            break
    else:
        raise ConfigError("the limits in force cannot be read, and others take their place all the time")
    number = found.version.number
    if done.is_new:
        say("limits.published", version=number, file=str(limits.path))
    elif follows and found.version.digest != limits.content.digest:
        detail = f"the file is empty, and version {number} stays in force{_MEANT}"
        if not limits.is_empty:
            detail = (
                f"the file says what version {done.known} did, and version {number} is in force since, published by "
                f"{found.version.by}; if the file is meant: dispatcher limits apply {limits.path}"
            )
        say("limits.superseded", version=number, file=str(limits.path), detail=detail)
    return found


def enter_limits(settings: Settings, limits: LoadedLimits, server: Server, say: Say) -> InForce:
    """What a start does, before there are several workers: publish the file if what it says was never a version.

    Raises as ``in_force`` does.
    """
    by = f"{socket.gethostname()}.{os.getpid()}"
    with connect(server.url) as client, translate_refusals(client):
        return publish(Versions(client, keys_of(settings)[0]), limits, by, Unless.KNOWN, say)

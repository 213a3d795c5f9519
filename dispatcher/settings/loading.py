"""Reads the settings from the environment and from ``.env``, with all faults and warnings at once."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dispatcher.core.units import HIDDEN, is_loopback
from dispatcher.errors import ConfigError
from dispatcher.settings.environment import PREFIX, Settings, Variable, variables
from dispatcher.settings.redaction import LONGEST_PATH, redacted
from dispatcher.settings.sources import ENV_FILE, Source, is_service_link, read_env_file, without_blanks

MAX_SECRET_BYTES: Final = 64 * 1024
_BOT_TOKENS: Final = ("xoxb-", "xoxe.xoxb-")
"""The second where tokens are rotated."""
_QUOTES: Final = ('"', "'")
_UNREAD: Final = {"slack_webhook_url": "https://unread.invalid/-"}
"""Stands for what cannot be read, where others must know that it is set: a webhook decides where events go."""


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    text: str = field(repr=False)
    source: Source

    def __str__(self) -> str:
        return f"{self.name}{self.source.suffix}"


class _UnreadableError(ConfigError):
    """The file of a secret cannot be read."""


def load_settings(
    env: Mapping[str, str] | None = None,
    env_file: Path | None = ENV_FILE,
    *,
    for_posts: bool = True,
    needed: Collection[str] = (),
    warns_of_names_only: bool = False,
) -> tuple[Settings, tuple[str, ...]]:
    """The settings and a sentence for each warning: a variable that is not known, a line not understood.

    The environment (``env``, else the process's own) goes before ``env_file``, and in each of them a
    ``DISPATCHER_`` name before the name another program uses. A missing ``env_file`` is no fault, ``None``
    reads none. Values in it are taken as they are: nothing is interpolated. Unless they are ``for_posts``, the file of
    a token or webhook that cannot be read is no fault. Where some settings are ``needed``, all others count as not set.
    ``warns_of_names_only``: of no line that is not understood, and of no token.

    Raises ``ConfigError`` with every fault at once, and behind them the warnings, one of which may be the cause; it
    names variables and never shows a secret.
    """
    from_file, unread, problems = read_env_file(env_file)
    sources = (Source(without_blanks(os.environ if env is None else env)), from_file)
    values: dict[str, str] = {}
    names: dict[str, str] = {}
    for variable in variables():
        if needed and variable.field not in needed:
            continue
        try:
            found = _find(variable, sources)
            if found is None:
                continue
            names[variable.field] = str(found)
            values[variable.field] = _value(variable, found)
        except _UnreadableError as error:
            if for_posts:
                problems += error.problems
            elif variable.field in _UNREAD:
                values[variable.field] = _UNREAD[variable.field]
        except ConfigError as error:
            problems += error.problems
    settings = None
    try:
        settings = Settings.checked(values, names)
    except ConfigError as error:
        problems += error.problems
    unknown = tuple(_unknown(sources))
    token = () if warns_of_names_only else (*_unlikely_token(settings, names), *_readable_token(settings, names))
    if problems or settings is None:
        raise ConfigError(*problems, warnings=(*unread, *unknown, *token))
    return settings, unknown if warns_of_names_only else (*unread, *unknown, *token)


def _find(variable: Variable, sources: tuple[Source, ...]) -> _Found | None:
    for source in sources:
        own = [_Found(name, source.variables[name], source) for name in variable.names if name in source.variables]
        if len(own) > 1:
            raise ConfigError(f"{own[0]} and {own[1]} are both set, expected one of them")
        if own:
            return own[0]
        if variable.also is not None and variable.also in source.variables:
            return _Found(variable.also, source.variables[variable.also], source)
    return None


def _value(variable: Variable, found: _Found) -> str:
    text = _content(found) if found.name == variable.file_name else found.text
    if not text.isprintable():
        raise ConfigError(f"{found} holds a control character, expected {variable.expected}")
    if text[:1] in _QUOTES and text[-1:] == text[:1]:
        raise ConfigError(f"{found} stands in quotes, which are taken as part of it; expected {variable.expected}")
    return text


def _content(found: _Found) -> str:
    """The value that lies in a file; the line's end behind it does not belong to it."""
    said = f"{found} is {redacted(found.text, LONGEST_PATH)}, which"
    try:
        with Path(found.text).expanduser().open("rb") as file:
            raw = file.read(MAX_SECRET_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # the last where ~ is a home folder that is not known
        reason = error.strerror if isinstance(error, OSError) else error
        raise _UnreadableError(f"{said} cannot be read: {reason}") from None
    if len(raw) > MAX_SECRET_BYTES:
        raise ConfigError(f"{said} is larger than {MAX_SECRET_BYTES} bytes")
    text = raw.decode("utf-8-sig", "replace").strip()
    if not text:
        raise ConfigError(f"{said} is empty; expected the value in it")
    return text


def _unlikely_token(settings: Settings | None, names: Mapping[str, str]) -> Iterator[str]:
    """What no bot token looks like may still be one of a proxy's: no fault."""
    token = settings.slack_token if settings else None
    if token is not None and not token.get_secret_value().startswith(_BOT_TOKENS):
        yield (
            f"{names['slack_token']} is {HIDDEN}, expected a bot token, which begins with xoxb-; "
            "copy it from OAuth & Permissions of the Slack app"
        )


def _readable_token(settings: Settings | None, names: Mapping[str, str]) -> Iterator[str]:
    """A proxy without TLS may be meant, where nobody else is on the network."""
    if settings is None or settings.slack_token is None or settings.slack_base_url is None:
        return
    parts = urlsplit(settings.slack_base_url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        yield (
            f"{names['slack_base_url']} begins with http://, so the network can read the token; "
            "use https:// for another machine"
        )


def _unknown(sources: tuple[Source, ...]) -> Iterator[str]:
    known = {name for variable in variables() for name in variable.names}
    for source in sources:
        for name, text in sorted(source.variables.items()):
            if name.upper().startswith(PREFIX) and name not in known and not is_service_link(name, text):
                yield f"{name}{source.suffix} is not a known variable and is ignored{_nearest(name, known)}"


def _nearest(name: str, known: set[str]) -> str:
    """The nearest name, compared behind the prefix that all of them share."""
    endings = sorted(other.removeprefix(PREFIX) for other in known)
    near = get_close_matches(name.upper().removeprefix(PREFIX), endings, n=1)
    return f"; did you mean {PREFIX}{near[0]}?" if near else ""

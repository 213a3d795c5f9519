"""The settings of who only sends or looks, read at once where they are plain.

A setting is plain when its form alone says that it is right, as nearly all are. Where all that are set are plain, the
few values that such a command needs are taken as they are; else all are read and judged by ``loading``, which says what
is wrong. So ``loading`` alone decides, and what takes the time, the library that checks, is loaded where it has
something to say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from dispatcher.settings.sources import ENV_FILE, is_service_link, read_env_file, without_blanks

if TYPE_CHECKING:
    from dispatcher.settings.environment import Settings

_PREFIX: Final = "DISPATCHER_"
_OTHER_NAMES: Final = {"REDIS_URL": "redis_url", "SLACK_BOT_TOKEN": "slack_token"}
_HOST: Final = r"[A-Za-z0-9][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,63})*\.?"
_PORT: Final = "(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}))?"
_WORD: Final = "(?:[A-Za-z0-9_.-]|%[0-9A-Fa-f]{2})+"
_LOGIN: Final = f"(?:(?:{_WORD})?:{_WORD}@)?"
_PATH: Final = "[A-Za-z0-9_./-]+"
_NAME: Final = "(?!.*:(?:high|low|intermediate|namespace)$)[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}"

_PLAIN: Final = {
    "redis_url": rf"rediss?://{_LOGIN}{_HOST}{_PORT}(?:/[0-9]{{0,3}})?"
    rf"|unix://{_LOGIN}/{_PATH}(?:\?db=[0-9]{{1,3}})?",
    "data_dir": _PATH,
    "namespace": _NAME,
    "queue": _NAME,
    "limits_file": _PATH,
    "max_waiting": "[1-9][0-9]{0,8}",
    "slack_token": "xoxb-[A-Za-z0-9-]+",
    "sink": "slack|console",
    "log_level": "debug|info|warning|error",
    "log_format": "auto|console|json",
    "log_text": "0|[1-9][0-9]?|1[0-9]{2}|200",
    "batch": "[1-9][0-9]{0,2}",
    "senders": "[1-9][0-9]?",
}
"""The form of a plain value of each setting; a setting that is not here is never plain."""

JUDGED: Final = frozenset((
    "slack_token_file", "slack_webhook_url", "slack_webhook_url_file", "slack_base_url", "slack_timeout", "lease",
    "reconcile_grace", "dedup_window", "serve_host", "serve_port", "serve_tokens_file", "serve_trusted_hosts",
    "metrics_categories",
))  # fmt: skip
"""What else is known: variables that are never plain, without the prefix."""

_OF_SERVER: Final = ("redis_url", "data_dir", "namespace", "queue", "limits_file")


@dataclass(frozen=True, slots=True)
class PlainSecret:
    """A text that no ``repr`` shows."""

    _text: str = field(repr=False)

    def get_secret_value(self) -> str:
        """The text, as of pydantic's ``SecretStr``."""
        return self._text


@dataclass(frozen=True, slots=True)
class PlainSettings:
    """What a producer and a reader need of ``Settings``, under the same names."""

    redis_url: PlainSecret | None
    data_dir: Path
    namespace: str
    queue: str
    limits_file: Path | None
    max_waiting: int
    slack_token: PlainSecret | None
    dedup_window: timedelta = timedelta(days=1)
    by_webhook: bool = False
    metrics_categories: int = 100
    """What is never plain has its default."""

    def secrets(self) -> frozenset[str]:
        """As of ``Settings``."""
        from dispatcher.settings.redaction import secret_spellings

        redis_url, token = (each.get_secret_value() if each else "" for each in (self.redis_url, self.slack_token))
        return secret_spellings(redis_url=redis_url, token=token)


AnySettings: TypeAlias = "PlainSettings | Settings"
"""For who needs no more than ``PlainSettings`` has."""


def load_some_settings() -> tuple[AnySettings, tuple[str, ...]]:
    """What ``load_settings`` returns to who does not post, or of plain settings a part of it; raises as that does."""
    plain = plain_settings(os.environ, ENV_FILE)
    if plain is not None:
        return plain, ()
    from dispatcher.settings.loading import load_settings

    return load_settings(for_posts=False)


def load_producer_settings() -> tuple[AnySettings, tuple[str, ...]]:
    """As ``load_some_settings``; warns of unknown variables alone: the rest of ``.env`` is its application's."""
    plain = plain_settings(os.environ, ENV_FILE)
    if plain is not None:
        return plain, ()
    from dispatcher.settings.loading import load_settings

    return load_settings(for_posts=False, warns_of_names_only=True)


def load_server_settings() -> tuple[AnySettings, tuple[str, ...]]:
    """Where the server, the namespace and the limits are, and warnings; of other settings only the names are looked at.

    Raises ``ConfigError``.
    """
    plain = plain_settings(os.environ, ENV_FILE, _OF_SERVER)
    if plain is not None:
        return plain, ()
    from dispatcher.settings.loading import load_settings

    return load_settings(for_posts=False, needed=_OF_SERVER)


def plain_settings(env: Mapping[str, str], env_file: Path | None, needed: Collection[str] = ()) -> PlainSettings | None:
    """The settings, where all that is set is plain, each under one name and in one place; else None.

    Where some are ``needed``, only the values of these are looked at.
    """
    from_file, warnings, faults = read_env_file(env_file)
    if warnings or faults:
        return None
    found: dict[str, str] = {}
    for place in (without_blanks(env), from_file.variables):
        for name, text in place.items():
            is_ours = name.upper().startswith(_PREFIX)
            setting = name.removeprefix(_PREFIX).lower() if is_ours else _OTHER_NAMES.get(name)
            if setting is None or (needed and setting not in needed and _is_known(name, setting)):
                continue
            if not _is_known(name, setting) and is_service_link(name, text):
                continue
            if not _is_known(name, setting) or setting in found or not re.fullmatch(_PLAIN.get(setting, "(?!)"), text):
                return None
            found[setting] = text
    return PlainSettings(
        redis_url=_secret(found.get("redis_url")),
        data_dir=Path(found.get("data_dir", ".dispatcher")),
        namespace=found.get("namespace", "dispatcher"),
        queue=found.get("queue", "notifications"),
        limits_file=Path(found["limits_file"]) if "limits_file" in found else None,
        max_waiting=int(found.get("max_waiting", 1_000_000)),
        slack_token=_secret(found.get("slack_token")),
    )


def _is_known(name: str, setting: str) -> bool:
    """Whether a variable of ours with this name is read, or it is another program's."""
    is_ours = name == f"{_PREFIX}{setting.upper()}"
    return name in _OTHER_NAMES or (is_ours and (setting in _PLAIN or setting in JUDGED))


def _secret(text: str | None) -> PlainSecret | None:
    return None if text is None else PlainSecret(text)

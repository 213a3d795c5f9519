"""The keys of the limits file that say what messages look like: how each is read, and its shape in the JSON Schema.

As in ``limits_values`` a reader returns the value in its final form, or raises a ``fault`` that continues
``KEY: VALUE``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import urlsplit

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from dispatcher.settings.limits_values import fault
from dispatcher.settings.redaction import looks_secret
from dispatcher.template import Template

MAX_TEMPLATE: Final = 4_000
MAX_USERNAME: Final = 80
MAX_ICON_URL: Final = 2_000

_EMOJI_NAME: Final = r"[^\sA-Z:<>&|]{1,100}"
_EMOJI: Final = re.compile(rf":{_EMOJI_NAME}:(?::skin-tone-[2-6]:)?")
_LOOSE_EMOJI: Final = re.compile(rf":?({_EMOJI_NAME}):?")
_URL: Final = re.compile(r"https://[!-~]+")


def read_username(value: object) -> str:
    """The name under which messages appear."""
    if isinstance(value, str) and value.isprintable() and 1 <= len(value) <= MAX_USERNAME and not value.isspace():
        return value
    raise fault(f", expected a name of 1 to {MAX_USERNAME} printable characters")


def read_icon_emoji(value: object) -> str:
    """An emoji by its name between colons."""
    if isinstance(value, str) and value.isprintable():
        if _EMOJI.fullmatch(value):
            return value
        loose = _LOOSE_EMOJI.fullmatch(value.strip().lower())
        if loose and not looks_secret(value):
            raise fault(f", expected an emoji such as :bell:; did you mean :{loose[1]}:?")
    raise fault(", expected an emoji such as :bell:")


def read_icon_url(value: object) -> str:
    """Where an image lies that anybody may fetch: Slack does."""
    if isinstance(value, str) and len(value) <= MAX_ICON_URL and _URL.fullmatch(value) and _has_host(value):
        return value
    raise fault(f", expected the https:// URL of an image, of at most {MAX_ICON_URL} characters")


def read_truth(value: object) -> bool:
    """``true`` or ``false``."""
    if isinstance(value, bool):
        return value
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(str(value).lower())
    raise fault(f", expected true or false{f'; did you mean {meant}?' if meant else ''}")


def read_template(value: object) -> Template:
    """What makes the text of messages."""
    if not isinstance(value, str) or not value.strip():
        raise fault(', expected a template such as "*{{ category }}* {{ text }}"')
    if len(value) > MAX_TEMPLATE:
        raise fault(f" of {len(value)} characters, expected at most {MAX_TEMPLATE}")
    from dispatcher.settings.templating import InvalidTemplate, compile_template  # noqa: PLC0415 - only who has one needs Jinja

    try:
        return compile_template(value)
    except InvalidTemplate as error:
        raise fault(f", {error}") from None


def _has_host(url: str) -> bool:
    """Whether it names a host, and no user or password: Slack would show them to everybody."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False


def _source(template: Template | None) -> str | None:
    return None if template is None else template.source


_TEMPLATE_SHAPE: Final[dict[str, Any]] = {
    "type": "string",
    "title": "template",
    "minLength": 1,
    "maxLength": MAX_TEMPLATE,
    "examples": [":red_circle: *{{ category }}* {{ text }}"],
}
_USERNAME_SHAPE: Final[dict[str, Any]] = {
    "type": "string",
    "title": "name",
    "minLength": 1,
    "maxLength": MAX_USERNAME,
    "examples": ["Deploys"],
}
_EMOJI_SHAPE: Final[dict[str, Any]] = {
    "type": "string",
    "title": "emoji",
    "pattern": f"^(?:{_EMOJI.pattern})$",
    "examples": [":bell:"],
}
_URL_SHAPE: Final[dict[str, Any]] = {
    "type": "string",
    "title": "URL of an image",
    "pattern": "^https://[!-~]+$",
    "maxLength": MAX_ICON_URL,
    "examples": ["https://example.com/bell.png"],
}

Truth: TypeAlias = Annotated[bool, PlainValidator(read_truth), WithJsonSchema({"type": "boolean"})]
TextTemplate: TypeAlias = Annotated[
    Template | None, PlainValidator(read_template), PlainSerializer(_source), WithJsonSchema(_TEMPLATE_SHAPE)
]
Username: TypeAlias = Annotated[str | None, PlainValidator(read_username), WithJsonSchema(_USERNAME_SHAPE)]
IconEmoji: TypeAlias = Annotated[str | None, PlainValidator(read_icon_emoji), WithJsonSchema(_EMOJI_SHAPE)]
IconUrl: TypeAlias = Annotated[str | None, PlainValidator(read_icon_url), WithJsonSchema(_URL_SHAPE)]

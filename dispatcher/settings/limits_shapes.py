"""How the single values of the limits file look, for its JSON Schema.

A shape refuses what a pattern can tell, and never what the readers in ``limits_values`` accept; the rest (windows over
a year, one window twice) only they see.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from dispatcher.core.limits import MAX_LIMIT
from dispatcher.core.matchers import MAX_MATCHERS
from dispatcher.core.once import BY_KEY, BY_TEXT
from dispatcher.core.quiet import WEEK
from dispatcher.core.units import CATEGORY
from dispatcher.settings.limits_values import (
    ACCEPT,
    CHANNEL,
    DEFAULT_CHANNEL_KEY,
    EMOJI_PATTERN,
    HEADER_PATTERN,
    MAX_BY,
    MAX_COUNT,
    MAX_ICON_URL,
    MAX_LABEL_NAME,
    MAX_PATH,
    MAX_TEMPLATE,
    MAX_TIMES,
    MAX_USERNAME,
    MAX_WINDOWS,
    NONE,
    REJECT,
    URL_PATTERN,
)

_SPAN: Final = r"(?!0+(?:\.0+)?[a-z])[0-9]{1,15}(?:\.[0-9]{1,6})?(?:ms|s|m|h|d)"
_LIMIT: Final = rf"0{{0,14}}(?:[1-9][0-9]{{0,6}}|10000000)/{_SPAN}"


def _text(pattern: str, title: str, *examples: str) -> dict[str, Any]:
    return {"type": "string", "title": title, "pattern": f"^(?:{pattern})$", "examples": list(examples)}


def words(kind: type[StrEnum]) -> dict[str, Any]:
    """One of a few words."""
    return {"type": "string", "enum": [word.value for word in kind]}


LIMIT: Final = _text(f"{_LIMIT}(?: fixed)?", "MAX/WINDOW or MAX/WINDOW fixed", "100/30m", "5/1s", "1000/1d fixed")
LIMIT_MAPPING: Final[dict[str, Any]] = {
    "type": "object",
    "title": "A limit by its parts",
    "properties": {
        "max": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "description": "At most so many."},
        "window": {
            **_text(f"{_SPAN}(?: fixed)?", "Window", "5m", "1d fixed"),
            "description": "In any window of this length, or in each that is aligned to the clock.",
        },
        "shadow": {"type": "boolean", "description": "Counted, and not enforced."},
    },
    "required": ["max", "window"],
    "additionalProperties": False,
    "examples": [{"max": 20, "window": "5m", "shadow": True}],
}
WINDOWS: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"anyOf": [LIMIT, LIMIT_MAPPING]},
    "maxItems": MAX_WINDOWS,
    "uniqueItems": True,
    "examples": [["5/1s", "100/30m"], []],
}
PACE: Final = _text(f"none|{_LIMIT}", "MAX/WINDOW or none", "10/10s", "none")
SPAN: Final = _text(_SPAN, "Span of time", "24h", "90s")
CHANNEL_NAME: Final = _text(CHANNEL.pattern, "Channel", "#errors", "C0123ABCD")
FALLBACK: Final = _text(f"{NONE}|{CHANNEL.pattern}", "Channel, or none", "#ops", "none")
CHANNEL_KEY: Final = _text(f"{DEFAULT_CHANNEL_KEY}|{CHANNEL.pattern}", "Channel, or default", "default", "#ops")
CATEGORY_NAME: Final = _text(CATEGORY.pattern, "Category", "errors")
LABEL_NAME: Final[dict[str, Any]] = {
    "title": "name of a label",
    "examples": ["host"],
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_LABEL_NAME,
    "pattern": "^[^ :=]*$",
}
_MATCHER: Final = _text(
    r"[^=]*[^=!]!?=[^=~\"'].*|[^=]*[^=!]!?=", "NAME=VALUE or NAME!=VALUE", "host=db*", "team=db|web"
)
MATCH: Final[dict[str, Any]] = {
    "title": "Matchers",
    "anyOf": [
        {
            **_MATCHER,
            "title": "NAME=VALUE or NAME!=VALUE, separated by blanks",
            "examples": ["severity=critical host=db*"],
        },
        {"type": "array", "items": _MATCHER, "minItems": 1, "maxItems": MAX_MATCHERS, "examples": [["host=db*"]]},
    ],
}
_TIME: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
TIMES: Final[dict[str, Any]] = {
    "type": "array",
    "items": _text(f"{_TIME}-(?:{_TIME}|24:00)", "Times of day", "22:00-07:00"),
    "minItems": 1,
    "maxItems": MAX_TIMES,
}
_DAY: Final = f"(?:{'|'.join(WEEK)})"
DAYS: Final[dict[str, Any]] = {
    "type": "array",
    "items": _text(f"{_DAY}(?:-{_DAY})?", "Days", "mon-fri", "sun"),
    "minItems": 1,
}
ZONE: Final = _text(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,2}", "Time zone", "Europe/Berlin", "UTC")
QUIET_NAME: Final = _text(CATEGORY.pattern, "Name of quiet hours", "nights")
QUIET_CATEGORIES: Final[dict[str, Any]] = {"type": "array", "items": CATEGORY_NAME, "minItems": 1}
UNLESS: Final[dict[str, Any]] = {
    "type": "object",
    "propertyNames": {"minLength": 1},
    "additionalProperties": {"type": "string", "title": "Values", "pattern": "^(?!!)", "examples": ["critical|page"]},
    "examples": [{"priority": "high", "severity": "critical"}],
}
GUARANTEE: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "examples": [5]}
HOOK_NAME: Final = _text(CATEGORY.pattern, "Name of a hook", "github")
UNKNOWN_CATEGORIES: Final[dict[str, Any]] = {"type": "string", "enum": [ACCEPT, REJECT]}
BY: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string", "enum": [BY_KEY, BY_TEXT]},
        {"type": "array", "items": LABEL_NAME, "minItems": 1, "maxItems": MAX_BY, "uniqueItems": True},
    ],
    "examples": [BY_KEY, ["alertname", "instance"]],
}
SIZE: Final = _text(r"0{0,14}[1-9][0-9]{0,12}(?:KB|MB|GB)", "Size", "256MB", "1GB")
SHOWN_TEXT: Final[dict[str, Any]] = {"type": "integer", "enum": [80, 0]}
COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT, "examples": [100_000]}
TEMPLATE: Final[dict[str, Any]] = {
    "type": "string",
    "title": "template, or none",
    "minLength": 1,
    "maxLength": MAX_TEMPLATE,
    "examples": [":red_circle: *{{ category }}* {{ text }}", "none"],
}
HOOK_TEMPLATE: Final[dict[str, Any]] = {
    **TEMPLATE,
    "title": "template",
    "examples": ["{{ body.pusher.name }} pushed {{ body.ref }}", "{{ headers['x-request-id'] }}"],
}
USERNAME: Final[dict[str, Any]] = {
    "type": "string",
    "title": "name, or none",
    "minLength": 1,
    "maxLength": MAX_USERNAME,
    "examples": ["Deploys", "none"],
}
EMOJI: Final = _text(f"{NONE}|{EMOJI_PATTERN}", "emoji, or none", ":bell:", "none")
ICON_URL: Final[dict[str, Any]] = {
    "type": "string",
    "title": "URL of an image, or none",
    "pattern": f"^(?:{NONE}|{URL_PATTERN})$",
    "maxLength": MAX_ICON_URL,
    "examples": ["https://example.com/bell.png"],
}
PATH: Final[dict[str, Any]] = {
    "type": "string",
    "title": "path",
    "minLength": 1,
    "maxLength": MAX_PATH,
    "examples": ["/run/secrets/github"],
}
HEADER: Final = _text(HEADER_PATTERN, "header", "X-Signature")
TRUTH: Final[dict[str, Any]] = {"type": "boolean"}

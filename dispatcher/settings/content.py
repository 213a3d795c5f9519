"""The content of a limits file, and the ``Policy`` in it: the only place that knows what each key means to the core.

A content is what ``canonical`` makes of a file without faults. So nothing here looks for faults, and a command that
only looks can read the limits in force without the libraries that check a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from dispatcher.core.limits import DEFAULT_BOUNDS, Bounds, Limit
from dispatcher.core.policy import (
    DEFAULT_DIGEST_DELAY_US,
    DEFAULT_MAX_PARKED,
    CategoryRule,
    OnAmbiguous,
    OnLimit,
    OnResolved,
    Policy,
    Route,
    Style,
    Template,
    WhileWaiting,
)
from dispatcher.core.quiet import Quiet, QuietThen
from dispatcher.core.units import format_duration
from dispatcher.settings import limits_values as read
from dispatcher.settings.hook_presets import PRESETS

if TYPE_CHECKING:
    from dispatcher.core.hooks import Hook
    from dispatcher.core.once import Once
    from dispatcher.core.posts import Identity

ICONS: Final = frozenset({"icon_emoji", "icon_url"})
"""Slack shows one of them: a category that has one of its own inherits none."""

_BUILT_IN: Final[Mapping[str, Any]] = {
    "limits": ["10/30m"],
    "channel": "#notifications",
    "on_limit": "drop",
    "max_age": "24h",
    "guarantee": 0,
    "per_label": {},
    "max_parked": DEFAULT_MAX_PARKED,
    "on_ambiguous": "resend",
    "username": read.NONE,
    "icon_emoji": read.NONE,
    "icon_url": read.NONE,
    "allow_mentions": False,
    "template": None,
    "digest_delay": format_duration(DEFAULT_DIGEST_DELAY_US),
    "notice": False,
    "once": read.NONE,
    "resolved": "post",
    "resolved_while_waiting": "drop",
    "routes": [],
    "fallback": read.NONE,
}
"""Every key of a category, with what holds where neither it nor ``defaults`` says otherwise."""

_GLOBAL_LIMIT: Final = "100/30m"
_PACE: Final = "10/10s"

_SECTIONS: Final = frozenset(
    {
        "global",
        "channels",
        "defaults",
        "categories",
        "hooks",
        "quiet",
        "unknown_categories",
        "dead_letters",
        "decisions",
    }
)
_ESCAPE: Final = re.compile(r"\\(?:U([0-9a-f]{8})|.)")


@dataclass(frozen=True, slots=True)
class Content:
    """What a limits file says; ``text`` is a limits file too, with the categories in the order of the first.

    ``digest`` is 16 hexadecimal digits, the same for two files that differ in spelling or order alone. ``source`` is
    that of the very text that was read (``limits_text.source_of``), '' where it is not known.
    """

    text: str
    digest: str
    source: str = field(default="", compare=False)


class ContentNotRead(Exception):
    """The content says what this program does not know: a newer one wrote it."""


@lru_cache(maxsize=2)
def policy_in(text: str) -> Policy:
    """The policy in the text of a content; raises ``ContentNotRead``.

    The last two are remembered, since ``dispatcher serve`` asks for the one in force with each request.
    """
    try:
        return _policy_of(json_in(text))
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ContentNotRead(str(error)) from error


def json_in(text: str) -> Any:  # noqa: ANN401  a newer program's may be anything
    """The text of a content as plain data; raises ``ContentNotRead``."""
    try:
        return json.loads(_ESCAPE.sub(_in_json, text))
    except ValueError as error:
        raise ContentNotRead(str(error)) from error


def policy_if_readable(text: str | None) -> Policy | None:
    """As ``policy_in``; None where there is no content, or a newer program wrote it."""
    try:
        return None if text is None else policy_in(text)
    except ContentNotRead:
        return None


def _in_json(escape: re.Match[str]) -> str:
    """JSON has no escape of eight digits; YAML has no other one that holds every character."""
    return escape[0] if escape[1] is None else chr(int(escape[1], 16))


def _policy_of(tree: Mapping[str, Any]) -> Policy:
    _refuse_others(tree, _SECTIONS)
    global_limits = _limits(_section(tree, "global", "limits").get("limits", [_GLOBAL_LIMIT]))
    channels = {read.DEFAULT_CHANNEL_KEY: {"pace": _PACE}, **tree.get("channels", {})}
    paces = {name: _pace(keys) for name, keys in channels.items()}
    defaults = tree.get("defaults", {})
    return Policy(
        global_limits=read.enforced(global_limits),
        global_shadows=read.shadows(global_limits),
        defaults=_rule({**_BUILT_IN, **defaults}),
        categories={name: _rule(_inherited(own, defaults)) for name, own in tree.get("categories", {}).items()},
        quiet=tuple(_quiet(name, keys) for name, keys in tree.get("quiet", {}).items()),
        hooks={name: _hook(keys) for name, keys in tree.get("hooks", {}).items()},
        default_pace=paces.pop(read.DEFAULT_CHANNEL_KEY),
        channels=paces,
        reject_unknown=read.read_unknown_categories(tree.get("unknown_categories", read.ACCEPT)) == read.REJECT,
        dead_letters=_bounds(
            _section(tree, "dead_letters", "max", "max_age", "max_bytes"), _section(tree, "decisions", "max", "text")
        ),
    )


def _quiet(name: str, keys: Mapping[str, Any]) -> Quiet:
    from dispatcher.settings.zones import zone_of  # only who has quiet hours needs the zones

    _refuse_others(keys, {"times", "days", "zone", "categories", "unless", "then"})
    return Quiet(
        name=name,
        times=read.read_times(keys["times"]),
        zone=keys["zone"],
        clock=zone_of(keys["zone"]),
        then=QuietThen(keys["then"]),
        days=read.read_days(keys["days"]) if "days" in keys else frozenset(range(7)),
        categories=read.read_quiet_categories(keys["categories"]) if "categories" in keys else None,
        unless=read.read_unless(keys.get("unless", {})),
    )


def _hook(keys: Mapping[str, Any]) -> Hook:
    from dispatcher.core.hooks import Hook, Verify  # few files have one

    preset = keys.get("preset")
    known: Mapping[str, Any] = {} if preset is None else PRESETS[preset]
    said = {name: value for name, value in {**known, **keys}.items() if name != "preset"}
    return Hook(**{**said, "verify": Verify(said["verify"])})


def _pace(keys: Mapping[str, Any]) -> Limit | None:
    _refuse_others(keys, {"pace"})
    return read.read_pace(keys["pace"])


def _section(tree: Mapping[str, Any], name: str, *keys: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = tree.get(name, {})
    _refuse_others(found, keys)
    return found


def _refuse_others(found: Mapping[str, Any], known: Collection[str]) -> None:
    if others := found.keys() - known:
        raise ValueError(f"keys that are not known: {', '.join(sorted(others))}")


def _inherited(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    left_out = ICONS if own.keys() & ICONS else ()
    return {**_BUILT_IN, **{key: value for key, value in defaults.items() if key not in left_out}, **own}


def _rule(keys: Mapping[str, Any]) -> CategoryRule:
    _refuse_others(keys, _BUILT_IN.keys())
    limits = _limits(keys["limits"])
    per_label = {label: _limits(entries) for label, entries in keys["per_label"].items()}
    return CategoryRule(
        limits=read.enforced(limits),
        shadows=read.shadows(limits),
        channel=keys["channel"],
        on_limit=OnLimit(keys["on_limit"]),
        max_age_us=read.read_span_us(keys["max_age"]),
        guarantee=keys["guarantee"],
        per_label={label: read.enforced(each) for label, each in per_label.items() if read.enforced(each) or not each},
        label_shadows={label: read.shadows(each) for label, each in per_label.items() if read.shadows(each)},
        max_parked=keys["max_parked"],
        on_ambiguous=OnAmbiguous(keys["on_ambiguous"]),
        style=_style(keys),
        digest_delay_us=read.read_span_us(keys["digest_delay"]),
        notice=keys["notice"],
        once=_once(keys["once"]),
        resolved=OnResolved(keys["resolved"]),
        resolved_while_waiting=WhileWaiting(keys["resolved_while_waiting"]),
        routes=tuple(map(_route, keys["routes"])),
        fallback=read.read_fallback(keys["fallback"]),
    )


def _once(keys: Mapping[str, Any] | str) -> Once | None:
    if isinstance(keys, str):
        return None
    _refuse_others(keys, ("by", "per", "then"))
    from dispatcher.core.once import BY_KEY, Once, Then  # few files have `once`

    by, then = read.read_by(keys.get("by", BY_KEY)), Then(keys.get("then", Then.DROP))
    return Once(by, read.read_span_us(keys["per"]), then)


def _route(keys: Mapping[str, Any]) -> Route:
    _refuse_others(keys, {"match", "channel"})
    return Route(read.read_match(keys["match"]), keys["channel"])


def _limits(entries: list[Any]) -> list[Limit | read.Shadow]:
    return [read.read_limit(each) for each in entries]


def _style(keys: Mapping[str, Any]) -> Style:
    username, icon_emoji, icon_url = (keys["username"], keys["icon_emoji"], keys["icon_url"])
    names = (read.read_username(username), read.read_icon_emoji(icon_emoji), read.read_icon_url(icon_url))
    return Style(_identity(*names) if any(names) else None, keys["allow_mentions"], _template(keys["template"]))


def _identity(username: str | None, icon_emoji: str | None, icon_url: str | None) -> Identity:
    from dispatcher.core.posts import Identity

    return Identity(username, icon_emoji, icon_url)


def _template(source: str | None) -> Template | None:
    if source in {None, read.NONE}:
        return None
    from dispatcher.settings.templating import compile_template  # only who has one needs Jinja

    return compile_template(source)


def _bounds(letters: Mapping[str, Any], decisions: Mapping[str, Any]) -> Bounds:
    built_in = DEFAULT_BOUNDS
    return Bounds(
        max=letters.get("max", built_in.max),
        max_age_us=read.read_span_us(letters["max_age"]) if "max_age" in letters else built_in.max_age_us,
        decisions=decisions.get("max", built_in.decisions),
        max_bytes=read.read_size(letters["max_bytes"]) if "max_bytes" in letters else built_in.max_bytes,
        text=decisions.get("text", built_in.text),
    )


BUILT_IN: Final = _policy_of({})
"""What holds where a file says nothing."""

"""Reads the single values of the limits file: limits, paces, spans, channels, words, templates.

Each reader returns the value in its final form or raises a ``fault``, whose text continues the sentence
``KEY: VALUE``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from dispatcher.core.limits import MAX_LIMIT, MAX_WINDOW_US, Kind, Limit
from dispatcher.core.policy import Template
from dispatcher.core.quiet import MINUTES_OF_DAY, WEEK, Times
from dispatcher.core.units import CATEGORY, CATEGORY_WORDS, CHANNEL_ID, CHANNEL_NAME, format_duration, parse_duration
from dispatcher.settings.redaction import did_you_mean, looks_secret, redacted

if TYPE_CHECKING:
    from pydantic_core import PydanticCustomError

    from dispatcher.core.matchers import Matcher, Matchers
    from dispatcher.core.once import By

Word = TypeVar("Word", bound=StrEnum)
Key = TypeVar("Key", int, str)
Value = TypeVar("Value")

DEFAULT_CHANNEL_KEY: Final = "default"
MAX_WINDOWS: Final = 16
"""Limits in one list: each costs the gate a look at the log of the scope."""
MAX_LABEL_NAME: Final = 64
MAX_BY: Final = 8
"""Labels that say together what an event is about."""
MAX_ROUTES: Final = 100
MAX_CATEGORIES: Final = 10_000
MAX_TIMES: Final = 16
MAX_COUNT: Final = 10_000_000
MAX_TEMPLATE: Final = 4_000
MAX_USERNAME: Final = 80
MAX_ICON_URL: Final = 2_000
MAX_PATH: Final = 1_000
SIZE_UNITS: Final = {"KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
MIN_LETTERS_BYTES: Final = 2_000_000
"""So the newest dead letter, which may hold a payload of 1 MiB, is always kept."""

MAX_LETTERS_BYTES: Final = 1_000_000_000_000
SHOWN_TEXT: Final = (80, 0)
NONE: Final = "none"
"""In place of a value: not what ``defaults`` says, and no other one."""

ROUTE_EXAMPLE: Final = '{match: severity=critical, channel: "#oncall"}'
QUIET_EXAMPLE: Final = '{times: ["22:00-07:00"], zone: Europe/Berlin, then: digest}'
ACCEPT: Final = "accept"
REJECT: Final = "reject"
CHANNEL: Final = re.compile(f"#{CHANNEL_NAME.pattern}|{CHANNEL_ID.pattern}")

# What is not compiled here is for few files, or for messages about mistakes, and each start would pay for it.
HEADER_PATTERN: Final = r"[A-Za-z0-9-]{1,100}"
EMOJI_PATTERN: Final = r":[^\sA-Z:<>&|]{1,100}:(?::skin-tone-[2-6]:)?"
URL_PATTERN: Final = r"https://[!-~]+"
_OFFSET: Final = r"(?i:utc|gmt|z)?[ ]*[+-]?[0-9]{1,2}(?::?[0-9]{2})?"
_LONGEST_ABBREVIATION: Final = 4
"""Of a zone: one such as CEST lies near to another that means another time."""

_LOOSE_EMOJI: Final = r":?([a-z0-9_+-]*[a-z0-9][a-z0-9_+-]*):?"
_BARE_CHANNEL: Final = r"\w[\w-]{0,79}"
"""What can be a channel in Slack once it has its #: no address, and no pattern."""

_LIMIT_EXPECTED: Final = "expected MAX/WINDOW, for example 100/30m"
_MAPPING_EXPECTED: Final = "expected MAX/WINDOW or a mapping such as {max: 20, window: 5m, shadow: true}"
_WINDOW_EXPECTED: Final = "expected a window such as 5m or 1d fixed"
_PACE_EXPECTED: Final = "expected MAX/WINDOW, for example 10/10s, or none"
_RANGE_EXPECTED: Final = (
    f"expected MAX from 1 to {MAX_LIMIT} and WINDOW from 0.001ms to {format_duration(MAX_WINDOW_US)}, "
    "with at most 6 decimals"
)
_CHANNEL_EXPECTED: Final = 'expected a channel such as "#errors", in quotes, or its id'
_OR_NONE: Final = ", or none"
_TIMES: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-(?:([01][0-9]|2[0-3]):([0-5][0-9])|24:00)")
_TIME_EXPECTED: Final = "expected two times of day such as 22:00-07:00"
_TIMES_EXPECTED: Final = 'expected a list of times of day such as ["22:00-07:00"]'
_DAY_EXPECTED: Final = "expected mon, tue, wed, thu, fri, sat or sun, or a span of them such as mon-fri"
_DAYS_EXPECTED: Final = "expected a list of days such as [mon-fri, sun]"
_ZONE_EXPECTED: Final = "expected a time zone such as Europe/Berlin or UTC"
_UNLESS_EXPECTED: Final = "expected a mapping such as {priority: high, severity: critical}"
_MATCHER_EXPECTED: Final = "expected matchers such as severity=critical, or a list of them"
_SPAN_EXPECTED: Final = "expected a span such as 24h or 1.5h (a number and ms, s, m, h or d), up to 366d"
_SPAN_RANGE_EXPECTED: Final = "expected a span from 0.001ms to 366d, with at most 6 decimals"

_SIZE_EXPECTED: Final = "expected a whole number and a unit of KB, MB or GB, from 2MB to 1000GB, for example 256MB"

_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_SPAN: Final = rf"{_NUMBER}(?:ms|s|m|h|d)"
_LIMIT: Final = re.compile(rf"[0-9]+/{_SPAN}(?: fixed)?")
_LOOSE_LIMIT: Final = (
    r"([0-9]+)\s*(?:/|per|in|:|x)\s*([0-9]*)\s*"
    r"(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?:\s*(f[a-z]+))?"
)
_FIXED: Final = "fixed"
_LOOSE_COUNT: Final = r"([0-9]{1,8}(?:[_,.' ][0-9]{3}){0,2})\s?(k|m|)"
_SIZE: Final = re.compile(r"([0-9]{1,15})(KB|MB|GB)")
_LOOSE_SIZE: Final = r"([0-9]{1,15})\s*([kmg])(?:i?b)?"
_NO_PACE: Final = ("no", "off", "false", "null", "none", "unlimited", "0")
_BY_EXPECTED: Final = "expected dedup_key, text, or a list of labels such as [alertname, instance]"
_MEANS_ACCEPT: Final = ("yes", "on", "true", "allow")
_MEANS_REJECT: Final = ("no", "off", "false", "deny", "drop")


def fault(text: str, **where: Any) -> PydanticCustomError:  # noqa: ANN401  of pydantic's own
    """A fault of one value, in the words after ``KEY: VALUE``.

    ``item`` places it at an entry of the value; ``also`` are further ones of it, each a ``text`` and an ``item``.
    """
    from pydantic_core import PydanticCustomError  # who reads what was checked needs no pydantic

    return PydanticCustomError("fault", "{text}", {"text": text, **where})


def read_each(read: Callable[[Key, Any], Value], entries: Iterable[tuple[Key, Any]]) -> list[Value]:
    """What ``read`` makes of each entry of a value and its place; one fault names all entries that are wrong."""
    found: list[Value] = []
    wrong: list[Mapping[str, Any]] = []
    for item, entry in entries:
        try:
            found.append(read(item, entry))
        except ValueError as error:
            wrong.append(cast("PydanticCustomError", error).context or {})
    if wrong:
        raise fault(**wrong[0], also=wrong[1:])
    return found


@dataclass(frozen=True, slots=True)
class Shadow:
    """A limit that is counted and not enforced."""

    limit: Limit


def read_limit(value: object) -> Limit | Shadow:
    """A limit such as ``100/30m`` or ``1000/1d fixed``, or ``{max: 20, window: 5m, shadow: true}``."""
    if not isinstance(value, dict):
        return _limit(value, _LIMIT_EXPECTED)
    given = {"shadow": False, **value}
    for key in ("max", "window"):
        if key not in given:
            raise fault(f" without {key}, {_MAPPING_EXPECTED}")
    if odd := [key for key in given if key not in {"max", "window", "shadow"}]:
        raise fault(f" with {redacted(odd[0])}, {_MAPPING_EXPECTED}")
    parts = dict(zip(given, read_each(_part_of_limit, given.items()), strict=True))
    limit = Limit.parse(f"{parts['max']}/{parts['window']}")
    return Shadow(limit) if parts["shadow"] else limit


def _part_of_limit(key: str, value: object) -> object:
    match key:
        case "max":
            if type(value) is not int or not 1 <= value <= MAX_LIMIT:
                raise fault(f", expected a whole number from 1 to {MAX_LIMIT}{_nearest_count(value)}", item=key)
        case "shadow":
            if type(value) is not bool:
                raise fault(", expected true or false", item=key)
        case _:
            _limit(f"1/{value}", _WINDOW_EXPECTED, item=key)
    return value


def written_limit(limit: Limit | Shadow) -> str | dict[str, object]:
    """A limit as ``read_limit`` reads it."""
    if isinstance(limit, Limit):
        return str(limit)
    most, _, window = str(limit.limit).partition("/")
    return {"max": int(most), "window": window, "shadow": True}


def enforced(limits: Iterable[Limit | Shadow]) -> tuple[Limit, ...]:
    """Those that can refuse something."""
    return tuple(limit for limit in limits if isinstance(limit, Limit))


def shadows(limits: Iterable[Limit | Shadow]) -> tuple[Limit, ...]:
    """Those that only count."""
    return tuple(shadow.limit for shadow in limits if isinstance(shadow, Shadow))


def read_pace(value: object) -> Limit | None:
    """A limit, or ``none`` for no pace."""
    if value == "none":
        return None
    if not value or str(value).lower() in _NO_PACE:
        raise fault(f", {_PACE_EXPECTED}; did you mean none?")
    pace = _limit(value, _PACE_EXPECTED)
    if pace.kind is not Kind.ROLLING:
        raise fault(f", a pace counts from each answer and cannot be fixed, {_PACE_EXPECTED}")
    return pace


def written_pace(pace: Limit | None) -> str:
    """A pace as ``read_pace`` reads it."""
    return "none" if pace is None else str(pace)


def read_span_us(value: object) -> int:
    """Microseconds of a span such as ``24h``."""
    try:
        span_us = parse_duration(value) if isinstance(value, str) else 0
    except (ValueError, OverflowError):
        span_us = 0
    if 1 <= span_us <= MAX_WINDOW_US:
        return span_us
    if re.fullmatch(_SPAN, str(value)):
        raise fault(f", {_SPAN_RANGE_EXPECTED}")
    missing = ", the unit is missing" if re.fullmatch(_NUMBER, str(value)) else ""
    raise fault(f"{missing}, {_SPAN_EXPECTED}")


def read_channel(value: object, beside: str = "") -> str:
    """A channel by its name with ``#``, or by its id; ``beside`` is what else may stand there."""
    if isinstance(value, str) and value.isprintable():
        if CHANNEL.fullmatch(value):
            return value
        if re.fullmatch(_BARE_CHANNEL, value) and not looks_secret(value):
            raise fault(f', {_CHANNEL_EXPECTED}{beside}; did you mean "#{value}"?')
    raise fault(f", {_CHANNEL_EXPECTED}{beside}")


def read_fallback(value: object) -> str | None:
    """A channel, or ``none``."""
    if value == NONE:
        return None
    if value is not None and str(value).lower() in _NO_PACE:
        raise fault(f", {_CHANNEL_EXPECTED}{_OR_NONE}; did you mean none?")
    return read_channel(value, _OR_NONE)


def written_or_none(value: str | None) -> str:
    """A value that may be ``none`` as its reader reads it."""
    return NONE if value is None else value


def read_match(value: object) -> Matchers:
    """Matchers as one text, separated by blanks, or as a list with one in each."""
    from dispatcher.core.matchers import InvalidMatcher, parse_matchers  # few files have routes

    if isinstance(value, list) and value:
        read_each(_matcher, enumerate(value))
    elif not isinstance(value, str):
        raise fault(f", {_MATCHER_EXPECTED}")
    try:
        return parse_matchers(value)
    except InvalidMatcher as error:
        raise fault(
            error.problem if error.matcher == value else f": {redacted(error.matcher)}{error.problem}"
        ) from None
    except ValueError as error:
        raise fault(f": {error}") from None


def _matcher(item: int, text: object) -> Matcher:
    from dispatcher.core.matchers import InvalidMatcher, parse_matcher

    if not isinstance(text, str):
        raise fault(f", {_MATCHER_EXPECTED}", item=item)
    try:
        return parse_matcher(text)
    except InvalidMatcher as error:
        raise fault(error.problem, item=item) from None


def written_match(matchers: Matchers) -> str | list[str]:
    """Matchers as ``read_match`` reads them: one text, if no value has a blank."""
    texts = list(matchers.texts)
    return texts if any(" " in text for text in texts) else " ".join(texts)


def read_channel_key(value: str) -> str:
    """A channel, or ``default`` for every other one."""
    return value if value == DEFAULT_CHANNEL_KEY else read_channel(value)


def read_category(value: object, **where: Any) -> str:  # noqa: ANN401  as fault
    """A category's name."""
    if not isinstance(value, str) or not CATEGORY.fullmatch(value):
        raise fault(f", expected {CATEGORY_WORDS}", **where)
    return value


def read_word(value: object, words: type[Word]) -> Word:
    """One of the words."""
    known = [word.value for word in words]
    if value not in known:
        expected = f"{', '.join(known[:-1])} or {known[-1]}"
        raise fault(f", expected {expected}{did_you_mean(value, known)}")
    return words(value)


def read_by(value: object) -> By:
    """What says that two events are about the same thing."""
    from dispatcher.core.once import BY_KEY, BY_TEXT  # few files have `once`

    if value in (BY_KEY, BY_TEXT):
        return str(value)
    if not isinstance(value, list):
        raise fault(f", {_BY_EXPECTED}{_near_by(value) if isinstance(value, str) else ''}")
    if not 1 <= len(value) <= MAX_BY or len(set(map(str, value))) < len(value):
        raise fault(f", expected 1 to {MAX_BY} labels, each once")
    return tuple(read_each(_label, enumerate(value)))


def _near_by(value: str) -> str:
    """The word, or the label, that is probably meant."""
    from dispatcher.core.once import BY_KEY, BY_TEXT

    if meant := did_you_mean(value, (BY_KEY, BY_TEXT)):
        return meant
    return f"; did you mean [{value}]?" if _is_label(value) and not looks_secret(value) else ""


def _label(item: int, label: object) -> str:
    if not isinstance(label, str):
        raise fault(", expected the name of a label", item=item)
    return read_label(label, item=item)


def written_by(by: By) -> str | list[str]:
    """The same as ``read_by`` reads it."""
    return by if isinstance(by, str) else list(by)


def read_unknown_categories(value: object) -> str:
    """``accept`` or ``reject``."""
    if value in (ACCEPT, REJECT):
        return str(value)
    word = str(value).lower() if isinstance(value, str | bool) else ""
    meant = ACCEPT if word in _MEANS_ACCEPT else REJECT if word in _MEANS_REJECT else ""
    hint = f"; did you mean {meant}?" if meant else did_you_mean(word, (ACCEPT, REJECT))
    raise fault(f", expected accept or reject{hint}")


def read_count(value: object) -> int:
    """How many of something are kept."""
    if type(value) is int and 1 <= value <= MAX_COUNT:
        return value
    raise fault(f", expected a whole number from 1 to {MAX_COUNT}{_nearest_count(value)}")


def read_size(value: object) -> int:
    """Bytes of a size such as ``256MB``; a KB is 1,000 bytes."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    size = int(match[1]) * SIZE_UNITS[match[2]] if match else 0
    if not MIN_LETTERS_BYTES <= size <= MAX_LETTERS_BYTES:
        raise fault(f", {_SIZE_EXPECTED}{_nearest_size(value)}")
    return size


def read_shown_text(value: object) -> int:
    """80 or 0, of the characters of a text in the decision record."""
    if type(value) is not int or value not in SHOWN_TEXT:
        raise fault(", expected 80, or 0 to keep no text")
    return value


def written_size(size: int) -> str:
    """A size as ``read_size`` reads it."""
    unit = next(unit for unit in ("GB", "MB", "KB") if size % SIZE_UNITS[unit] == 0)
    return f"{size // SIZE_UNITS[unit]}{unit}"


def read_guarantee(value: object) -> int:
    """How many of the longest global window are kept for a category."""
    if type(value) is int and 1 <= value <= MAX_LIMIT:
        return value
    meant = _nearest_count(value)
    raise fault(f", expected a whole number from 1 to {MAX_LIMIT}, a part of the longest global window{meant}")


def read_label(value: str, **where: int) -> str:
    """A label's name; ``where`` goes to ``fault``."""
    if not _is_label(value):
        raise fault(
            f", expected the name of a label, 1 to {MAX_LABEL_NAME} printable characters without blank, : and =",
            **where,
        )
    return value


def _is_label(text: str) -> bool:
    return 1 <= len(text) <= MAX_LABEL_NAME and text.isprintable() and not set(text) & set(" :=")


def read_routes(value: object) -> list[object]:
    """The list itself; its entries are read one by one."""
    if not isinstance(value, list):
        raise fault(f", expected a list of routes such as [{ROUTE_EXAMPLE}]")
    if len(value) > MAX_ROUTES:
        raise fault(f" of {len(value)} routes, expected at most {MAX_ROUTES}")
    return value


def read_times(value: object) -> tuple[Times, ...]:
    """Spans of the wall clock such as ``22:00-07:00``, in order and each once."""
    if not isinstance(value, list) or not value:
        raise fault(f", {_TIMES_EXPECTED}")
    if len(value) > MAX_TIMES:
        raise fault(f" of {len(value)} spans, expected at most {MAX_TIMES}")
    return tuple(sorted(set(read_each(_times, enumerate(value)))))


def _times(item: int, text: object) -> Times:
    match = _TIMES.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise fault(f", {_TIME_EXPECTED}", item=item)
    first, _, last = match[0].partition("-")
    if first == last:
        raise fault(", expected two times of day; a whole day is 00:00-24:00", item=item)
    begins = int(match[1]) * 60 + int(match[2])
    ends = int(match[3] or 0) * 60 + int(match[4] or 0) or MINUTES_OF_DAY
    return Times(begins, ends)


def read_days(value: object) -> frozenset[int]:
    """Days of the week, 0 for Monday, of a list of days and spans of them such as ``mon-fri``."""
    if not isinstance(value, list) or not value:
        raise fault(f", {_DAYS_EXPECTED}")
    return frozenset(day for days in read_each(_days, enumerate(value)) for day in days)


def _days(item: int, text: object) -> list[int]:
    first, dash, last = text.partition("-") if isinstance(text, str) else ("", "", "")
    if first not in WEEK or (dash and last not in WEEK):
        hint = did_you_mean(first[:3], WEEK) if first not in WEEK else ""
        raise fault(f", {_DAY_EXPECTED}{hint}", item=item)
    begins, ends = WEEK.index(first), WEEK.index(last or first)
    return [day % len(WEEK) for day in range(begins, ends + 1 if ends >= begins else ends + 1 + len(WEEK))]


def written_days(days: frozenset[int]) -> list[str]:
    """Days as ``read_days`` reads them."""
    return [WEEK[day] for day in sorted(days)]


def read_zone(value: object) -> str:
    """The name of a time zone."""
    from dispatcher.settings.zones import zone_names, zone_of  # only who has quiet hours needs the zones

    try:
        return zone_of(value if isinstance(value, str) else "").key
    except ValueError:
        raise fault(f", {_ZONE_EXPECTED}{_near_zone(value, zone_names())}") from None


def _near_zone(value: object, known: Iterable[str]) -> str:
    """The zone that ``berlin``, ``europe/berlin`` or ``Europe/Berln`` probably means."""
    if not isinstance(value, str):
        return ""
    if re.fullmatch(_OFFSET, value.strip()):
        return "; write a place instead of an offset"
    spelling = value.lower().replace(" ", "_")
    by_spelling = {key: name for name in known for key in (name.rpartition("/")[2].lower(), name.lower())}
    from difflib import get_close_matches

    is_short = len(spelling) <= _LONGEST_ABBREVIATION
    near = get_close_matches(spelling, by_spelling, n=1, cutoff=1 if is_short else 0.75)
    return f"; did you mean {by_spelling[near[0]]}?" if near else ""


def read_quiet_categories(value: object) -> tuple[str, ...]:
    """Names of categories, in order and each once."""
    if not isinstance(value, list) or not value:
        raise fault(", expected a list of categories such as [deploys, chatter]")
    return tuple(sorted(set(read_each(lambda item, name: read_category(name, item=item), enumerate(value)))))


def read_unless(value: object) -> tuple[Matcher, ...]:
    """Matchers as a mapping of names to values, in order."""
    if not isinstance(value, dict):
        raise fault(f", {_UNLESS_EXPECTED}")
    return tuple(sorted(read_each(_unless, value.items()), key=str))


def _unless(name: str, text: object) -> Matcher:
    from dispatcher.core.matchers import InvalidMatcher, parse_matcher  # few files have quiet hours

    if not isinstance(text, str):
        raise fault(", expected a value as text; write numbers in quotes", item=name)
    if text.startswith("!"):
        raise fault(
            ", expected the values of the events that are posted, such as critical|page; ! negates none", item=name
        )
    try:
        matcher = parse_matcher(f"{name}={text}")
    except InvalidMatcher as error:
        raise fault(error.problem, item=name) from None
    if matcher.name != name:
        raise fault(", expected a name without = and !", item=name)
    return matcher


def written_unless(unless: tuple[Matcher, ...]) -> dict[str, str]:
    """Matchers as ``read_unless`` reads them."""
    return {matcher.name: "|".join(matcher.patterns) for matcher in unless}


def read_windows(value: object) -> list[object]:
    """The list itself; its entries are read one by one, so that each fault has its place."""
    if isinstance(value, list):
        if len(value) > MAX_WINDOWS:
            raise fault(f" of {len(value)} limits, expected at most {MAX_WINDOWS}")
        return value
    example = value if isinstance(value, str) and _LIMIT.fullmatch(value) else "100/30m"
    raise fault(f", expected a list of limits such as [{example}], or [] for unlimited")


def distinct_windows(limits: tuple[Limit | Shadow, ...]) -> tuple[Limit | Shadow, ...]:
    """Each window once, and once as a shadow: of two limits with one window the larger could never bind."""
    first_of: dict[tuple[int, Kind, bool], Limit] = {}
    for item, each in enumerate(limits):
        limit = each if isinstance(each, Limit) else each.limit
        first = first_of.setdefault((limit.window_us, limit.kind, limit is each), limit)
        if first is not limit:
            raise fault(f" has the same window as {first}, expected each window once", item=item)
    return limits


def read_username(value: object) -> str | None:
    """The name under which messages appear, or ``none`` for the app's own."""
    if value == NONE:
        return None
    if isinstance(value, str) and value.isprintable() and 1 <= len(value) <= MAX_USERNAME and not value.isspace():
        return value
    raise fault(f", expected a name of 1 to {MAX_USERNAME} printable characters")


def read_icon_emoji(value: object) -> str | None:
    """An emoji by its name between colons, or ``none``."""
    if value == NONE:
        return None
    if isinstance(value, str) and value.isprintable():
        if re.fullmatch(EMOJI_PATTERN, value):
            return value
        loose = re.fullmatch(_LOOSE_EMOJI, value.strip().lower())
        if loose and not looks_secret(value):
            raise fault(f", expected an emoji such as :bell:; did you mean :{loose[1]}:?")
    raise fault(", expected an emoji such as :bell:")


def read_icon_url(value: object) -> str | None:
    """Where an image lies that anybody may fetch, since Slack does; or ``none``."""
    if value == NONE:
        return None
    if isinstance(value, str) and len(value) <= MAX_ICON_URL and re.fullmatch(URL_PATTERN, value) and _has_host(value):
        return value
    raise fault(f", expected the https:// URL of an image, of at most {MAX_ICON_URL} characters")


def read_truth(value: object) -> bool:
    """``true`` or ``false``."""
    if isinstance(value, bool):
        return value
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(str(value).lower())
    raise fault(f", expected true or false{f'; did you mean {meant}?' if meant else ''}")


def read_template(value: object) -> Template | None:
    """What makes the text of messages, or ``none`` for their own text."""
    if value == NONE:
        return None
    source = _source_in(value, "*{{ category }}* {{ text }}")
    from dispatcher.settings.templating import InvalidTemplate, compile_template  # only who has one needs Jinja

    try:
        return compile_template(source)
    except InvalidTemplate as error:
        raise fault(f", {error}") from None


def written_template(template: Template | None) -> str:
    """A template as ``read_template`` reads it."""
    return NONE if template is None else template.source


def read_hook_template(value: object) -> str:
    """What makes a field of an event of a webhook; kept as it is written."""
    source = _source_in(value, "{{ body.repository.name }}")
    from dispatcher.settings.templating import InvalidTemplate, compile_mapping  # as above

    try:
        return compile_mapping(source).source
    except InvalidTemplate as error:
        raise fault(f", {error}") from None


def read_secret_file(value: object) -> str:
    """The path of a file."""
    if isinstance(value, str) and value.isprintable() and 1 <= len(value) <= MAX_PATH and not value.isspace():
        return value
    raise fault(", expected the path of a file such as /run/secrets/github")


def read_header(value: object) -> str:
    """The name of a header."""
    if isinstance(value, str) and re.fullmatch(HEADER_PATTERN, value):
        return value
    raise fault(", expected the name of a header such as X-Signature")


def _source_in(value: object, example: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise fault(f', expected a template such as "{example}"')
    if len(value) > MAX_TEMPLATE:
        raise fault(f" of {len(value)} characters, expected at most {MAX_TEMPLATE}")
    return value


def _has_host(url: str) -> bool:
    """Whether it names a host, and no user or password: Slack would show them to everybody."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False


def _limit(value: object, expected: str, **where: str) -> Limit:
    text = value if isinstance(value, str) else ""
    match = _LIMIT.fullmatch(text)
    if match is None:
        hint = "" if where else _suggestion(text, may_be_fixed=expected is _LIMIT_EXPECTED)
        raise fault(f", {expected}{hint}", **where)
    try:
        return Limit.parse(text)
    except (ValueError, OverflowError):
        raise fault(f", {_RANGE_EXPECTED}", **where) from None


def _nearest_count(value: object) -> str:
    """The number that ``100_000``, ``"100000"``, ``100k`` or ``1e5`` probably means."""
    if isinstance(value, float) and value.is_integer():
        value = str(int(value))
    loose = re.fullmatch(_LOOSE_COUNT, value.strip().lower()) if isinstance(value, str) else None
    if loose is None:
        return ""
    meant = int(re.sub("[^0-9]", "", loose[1])) * {"k": 1_000, "m": 1_000_000}.get(loose[2], 1)
    return f"; did you mean {meant}?" if 1 <= meant <= MAX_COUNT else ""


def _nearest_size(value: object) -> str:
    """The size that ``256 mb``, ``256M`` or ``256MiB`` probably means."""
    loose = re.fullmatch(_LOOSE_SIZE, value.strip().lower()) if isinstance(value, str) else None
    if loose is None:
        return ""
    meant = f"{int(loose[1])}{loose[2].upper()}B"
    is_one = MIN_LETTERS_BYTES <= int(loose[1]) * SIZE_UNITS[meant[-2:]] <= MAX_LETTERS_BYTES
    return f"; did you mean {meant}?" if is_one and meant != value else ""


def _suggestion(text: str, *, may_be_fixed: bool) -> str:
    """The limit that ``10 per minute``, ``10/30min`` or ``10/1d fxied`` probably means."""
    loose = re.fullmatch(_LOOSE_LIMIT, text.strip().lower())
    if loose is None:
        return ""
    kind = f" {_FIXED}" if loose[4] else ""
    from difflib import get_close_matches

    if kind and not (may_be_fixed and get_close_matches(loose[4], [_FIXED])):
        return ""
    unit = "ms" if loose[3] == "ms" or loose[3].startswith("milli") else loose[3][0]
    meant = f"{loose[1]}/{loose[2] or 1}{unit}{kind}"
    try:
        Limit.parse(meant)
    except (ValueError, OverflowError):
        return ""
    return f"; did you mean {meant}?"

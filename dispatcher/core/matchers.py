"""Matchers: which events something is meant for, by category, priority and labels. Pure.

A matcher is written ``NAME=VALUE`` or ``NAME!=VALUE``, where NAME is ``category``, ``priority`` or a label. VALUE may
be several values, separated by ``|``, and ``*`` stands for any text in it. There are no regular expressions: a text is
looked through once for each value, whatever the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dispatcher.core.units import CATEGORY, CATEGORY_WORDS, Lane

CATEGORY_NAME: Final = "category"
PRIORITY_NAME: Final = "priority"

MAX_VALUE_BYTES: Final = 256
MAX_VALUES: Final = 32
MAX_MATCHERS: Final = 32

_WILDCARD: Final = "*"
_WILDCARDS: Final = re.compile(r"\*+")
_PLAIN: Final = re.compile(r"[^\s,\"]+")
_LANES: Final = frozenset(map(str, Lane))
_CATEGORY_PATTERN: Final = re.compile(r"[A-Za-z0-9*][A-Za-z0-9_.:*-]*")
_MAX_CATEGORY: Final = 64
_FORM: Final = "expected NAME=VALUE or NAME!=VALUE, for example host=db1"


class InvalidMatcher(ValueError):
    """A text that is no ``matcher``; ``problem`` says in the words behind it what was expected."""

    def __init__(self, matcher: str, problem: str) -> None:
        from dispatcher.core.event import in_words  # needed for this alone

        super().__init__(f"{in_words(matcher)}{problem}")
        self.matcher = matcher
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Matcher:
    """One matcher: the value of ``name`` is one of ``patterns``, or none of them where it is ``negated``.

    A label that an event does not have is the empty text.
    """

    name: str
    patterns: tuple[str, ...]
    negated: bool = False
    _exact: frozenset[str] = field(init=False, repr=False, compare=False)
    _parted: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        exact = frozenset(pattern for pattern in self.patterns if _WILDCARD not in pattern)
        parted = tuple(tuple(pattern.split(_WILDCARD)) for pattern in self.patterns if _WILDCARD in pattern)
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_parted", parted)

    def __str__(self) -> str:
        """The matcher as it is written."""
        return f"{self.name}{'!=' if self.negated else '='}{'|'.join(self.patterns)}"

    def accepts(self, value: str) -> bool:
        """Whether an event of this value matches."""
        return (value in self._exact or any(_fits(parts, value) for parts in self._parted)) is not self.negated

    @property
    def accepts_everything(self) -> bool:
        """Whether no value of an event is refused."""
        return not self.negated and _WILDCARD in self.patterns

    @property
    def exact(self) -> frozenset[str] | None:
        """The only values that match; None where they cannot be listed."""
        return None if self.negated or self._parted else self._exact

    @property
    def in_words(self) -> str:
        """``host is db1``, ``severity is not critical``, ``host matches db*``."""
        if self.accepts_everything:
            return f"{self.name} is anything"
        exact = [_value_in_words(pattern) for pattern in self.patterns if _WILDCARD not in pattern]
        wild = [_value_in_words(pattern) for pattern in self.patterns if _WILDCARD in pattern]
        if self.negated:
            said = [_none_of("is not", "is none of", exact), _none_of("does not match", "matches none of", wild)]
        else:
            said = [f"is {_either(exact)}" if exact else "", f"matches {_either(wild)}" if wild else ""]
        return f"{self.name} {(' and ' if self.negated else ' or ').join(filter(None, said))}"


@dataclass(frozen=True, slots=True)
class Matchers:
    """Matchers that an event must match all, in the one order in which equal ones are equal."""

    each: tuple[Matcher, ...]

    def __str__(self) -> str:
        """All of them in one line, separated by blanks. A value may have blanks too: ``texts`` is what is read back."""
        return " ".join(self.texts)

    @property
    def texts(self) -> tuple[str, ...]:
        """The canonical text of each; ``parse_matchers`` reads them back."""
        return tuple(map(str, self.each))

    def matches(self, category: str, priority: str, labels: Mapping[str, str]) -> bool:
        """Whether an event of this category, priority and labels is meant."""
        for matcher in self.each:
            name = matcher.name
            value = category if name == CATEGORY_NAME else priority if name == PRIORITY_NAME else labels.get(name, "")
            if not matcher.accepts(value):
                return False
        return True

    @property
    def matches_everything(self) -> bool:
        """Whether no event is refused."""
        return all(
            matcher.accepts_everything or (matcher.name == PRIORITY_NAME and all(map(matcher.accepts, _LANES)))
            for matcher in self.each
        )

    @property
    def matches_nothing(self) -> bool:
        """Whether it can be seen that no event is meant, because two matchers contradict each other."""
        return any(_contradict(name, of_name) for name, of_name in self._by_name().items())

    def covers(self, other: Matchers) -> bool:
        """Whether it can be seen that each event that matches ``other`` matches these too."""
        others = other._by_name()
        return other.matches_nothing or all(
            _implied(name, matchers, others.get(name, ())) for name, matchers in self._by_name().items()
        )

    def only_of(self, categories: Sequence[str], *, negated: bool = False) -> Matchers:
        """These matchers where only events of the categories are asked about; ``negated``: of any other category."""
        return _in_order((*self.each, Matcher(CATEGORY_NAME, tuple(sorted(categories)), negated)))

    @property
    def in_words(self) -> str:
        """``category is alerts, and host matches db*``."""
        return ", and ".join(matcher.in_words for matcher in self.each)

    def _by_name(self) -> dict[str, tuple[Matcher, ...]]:
        found: dict[str, tuple[Matcher, ...]] = {}
        for matcher in self.each:
            found[matcher.name] = (*found.get(matcher.name, ()), matcher)
        return found


def parse_matchers(given: str | Sequence[str]) -> Matchers:
    """The matchers of a text, in which blanks part them, or of a list with one in each, whose value may have blanks.

    Raises ``InvalidMatcher``, or ``ValueError`` that says what was expected.
    """
    texts = given.split() if isinstance(given, str) else given
    if not texts:
        raise ValueError(f"no matcher, {_FORM}")
    if len(texts) > MAX_MATCHERS:
        raise ValueError(f"{len(texts)} matchers, expected at most {MAX_MATCHERS}")
    return _in_order(tuple(map(parse_matcher, texts)))


def parse_matcher(text: str) -> Matcher:
    """One matcher, such as ``host=db1``, ``severity!=critical``, ``team=db|web`` or ``host=db*``.

    Raises ``InvalidMatcher``.
    """
    name, equals, written = text.partition("=")
    if not equals:
        raise InvalidMatcher(text, f", {_FORM}")
    if negated := name.endswith("!"):
        name = name[:-1]
    if not name:
        raise InvalidMatcher(text, ", expected category, priority or the name of a label before the =")
    if name != name.strip() or written != written.strip():
        raise InvalidMatcher(text, ", expected no blanks around the =")
    if not text.isprintable():
        raise InvalidMatcher(text, ", expected printable characters; * stands for any other")
    if len(name.encode()) > MAX_VALUE_BYTES:
        raise InvalidMatcher(text, f", expected a name of at most {MAX_VALUE_BYTES} bytes")
    if written.startswith(("~", "=", '"', "'")):
        raise InvalidMatcher(text, f", {_spelt_otherwise(written)}")
    return Matcher(name, _patterns(name, written, text), negated)


def _spelt_otherwise(written: str) -> str:
    if written[0] == "~":
        return "expected a value in which * is the only wildcard, such as host=db*: there are no regular expressions"
    if written[0] == "=":
        return "expected a single ="
    return "expected a value without quotes, such as host=db1"


def _patterns(name: str, written: str, text: str) -> tuple[str, ...]:
    patterns = {_squeezed(value) for value in written.split("|")}
    if len(patterns) > MAX_VALUES:
        raise InvalidMatcher(text, f" has {len(patterns)} values, expected at most {MAX_VALUES}")
    for pattern in patterns:
        if (size := len(pattern.encode())) > MAX_VALUE_BYTES:
            raise InvalidMatcher(text, f" has a value of {size} bytes, expected at most {MAX_VALUE_BYTES}")
        if pattern != pattern.strip():
            raise InvalidMatcher(text, ", expected no blanks around the |")
        if name == PRIORITY_NAME and not any(_matches(pattern, lane) for lane in _LANES):
            raise InvalidMatcher(text, ", expected high, normal or low")
        if name == CATEGORY_NAME and not _may_be_category(pattern):
            raise InvalidMatcher(text, f", expected a category: {CATEGORY_WORDS}")
    return (_WILDCARD,) if _WILDCARD in patterns else tuple(sorted(patterns))


def _may_be_category(pattern: str) -> bool:
    if _WILDCARD not in pattern:
        return CATEGORY.fullmatch(pattern) is not None
    characters = len(pattern.replace(_WILDCARD, ""))
    return characters <= _MAX_CATEGORY and _CATEGORY_PATTERN.fullmatch(pattern) is not None


def _squeezed(pattern: str) -> str:
    """The pattern with one wildcard where several follow each other: they match the same texts."""
    return _WILDCARDS.sub(_WILDCARD, pattern)


def _in_order(matchers: tuple[Matcher, ...]) -> Matchers:
    return Matchers(tuple(sorted(set(matchers), key=str)))


def _fits(parts: Sequence[str], text: str) -> bool:
    """Whether the text is these parts with anything between them; there are two or more.

    Each part is looked for behind the one before it, at its first place: a later place leaves less to the parts that
    follow, so none is ever tried again.
    """
    first, last = parts[0], parts[-1]
    at, end = len(first), len(text) - len(last)
    if end < at or not text.startswith(first) or not text.endswith(last):
        return False
    for part in parts[1:-1]:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _matches(pattern: str, text: str) -> bool:
    return _fits(pattern.split(_WILDCARD), text) if _WILDCARD in pattern else pattern == text


def _covers(wide: str, narrow: str) -> bool:
    """Whether all that ``narrow`` matches, ``wide`` matches too.

    Only a wildcard of ``wide`` can stand for one of ``narrow``, as for a character that no pattern names.
    """
    return _matches(wide, narrow)


def _overlap(one: str, other: str) -> bool:
    """Whether some text matches both patterns."""
    if _WILDCARD not in one:
        return _matches(other, one)
    if _WILDCARD not in other:
        return _matches(one, other)
    (begin, *_, end), (other_begin, *_, other_end) = one.split(_WILDCARD), other.split(_WILDCARD)
    begins = begin.startswith(other_begin) or other_begin.startswith(begin)
    return begins and (end.endswith(other_end) or other_end.endswith(end))


def _values_of(name: str, matchers: Sequence[Matcher]) -> frozenset[str] | None:
    """The only values of ``name`` that all these matchers accept; None where they cannot be listed."""
    listed = [matcher.exact for matcher in matchers if matcher.exact is not None]
    values = _LANES if name == PRIORITY_NAME else listed[0] if listed else None
    return None if values is None else frozenset(value for value in values if _all_accept(matchers, value))


def _all_accept(matchers: Sequence[Matcher], value: str) -> bool:
    return all(matcher.accepts(value) for matcher in matchers)


def _contradict(name: str, matchers: Sequence[Matcher]) -> bool:
    if (values := _values_of(name, matchers)) is not None:
        return not values
    return any(_never_both(one, other) for one in matchers for other in matchers)


def _never_both(one: Matcher, other: Matcher) -> bool:
    """Whether it can be seen that no value is accepted by both."""
    if not other.negated:
        return not one.negated and not any(_overlap(mine, its) for mine in one.patterns for its in other.patterns)
    if one.negated:
        return _WILDCARD in one.patterns
    return all(any(_covers(its, mine) for its in other.patterns) for mine in one.patterns)


def _implied(name: str, wanted: Sequence[Matcher], known: Sequence[Matcher]) -> bool:
    """Whether it can be seen that a value which all of ``known`` accept is accepted by all that are ``wanted``."""
    if (values := _values_of(name, known)) is not None:
        return all(_all_accept(wanted, value) for value in values)
    return all(matcher.accepts_everything or any(_implies(each, matcher) for each in known) for matcher in wanted)


def _implies(known: Matcher, wanted: Matcher) -> bool:
    if known.negated:
        return wanted.negated and all(any(_covers(its, mine) for its in known.patterns) for mine in wanted.patterns)
    if wanted.negated:
        return not any(_overlap(its, mine) for its in known.patterns for mine in wanted.patterns)
    return all(any(_covers(mine, its) for mine in wanted.patterns) for its in known.patterns)


def _value_in_words(pattern: str) -> str:
    return "empty" if not pattern else pattern if _PLAIN.fullmatch(pattern) else f'"{pattern}"'


def _none_of(single: str, several: str, values: Sequence[str]) -> str:
    if not values:
        return ""
    return f"{single} {values[0]}" if len(values) == 1 else f"{several} {', '.join(values)}"


def _either(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"

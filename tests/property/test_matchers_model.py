"""Matchers against a model that tries every way in which a pattern could match a text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.matchers import parse_matchers

PATTERNS = st.text("ab*", max_size=6)
VALUES = st.text("ab", max_size=7)
SHORT = st.text("ab*", max_size=3)
SHORT_VALUES = ["".join(letters) for size in range(7) for letters in product("abc", repeat=size)]
"""With a letter that no pattern names, and long enough for what two patterns both match."""
NAMES = st.sampled_from(["host", "team", "priority"])
LANES = ("high", "normal", "low")


@st.composite
def texts(draw: st.DrawFn) -> str:
    name = draw(NAMES)
    each = st.sampled_from([*LANES, "h*", "*o*", "*"]) if name == "priority" else PATTERNS
    return f"{name}{draw(st.sampled_from(['=', '!=']))}{'|'.join(draw(st.lists(each, min_size=1, max_size=3)))}"


WRITTEN = st.lists(texts(), min_size=1, max_size=4)
EVENTS = st.tuples(st.sampled_from(LANES), st.dictionaries(st.sampled_from(["host", "team"]), VALUES))


def fits(pattern: str, text: str) -> bool:
    """By the definition: a wildcard is nothing, or one character and the wildcard again."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return fits(pattern[1:], text) or (bool(text) and fits(pattern, text[1:]))
    return bool(text) and pattern[0] == text[0] and fits(pattern[1:], text[1:])


def does_match(written: list[str], priority: str, labels: Mapping[str, str]) -> bool:
    for text in written:
        name, _, patterns = text.partition("=")
        value = priority if name.rstrip("!") == "priority" else labels.get(name.rstrip("!"), "")
        if any(fits(pattern, value) for pattern in patterns.split("|")) is name.endswith("!"):
            return False
    return True


@given(WRITTEN, EVENTS)
def test_matchers_match_what_they_match_by_definition(written: list[str], event: tuple[str, Mapping[str, str]]) -> None:
    matchers = parse_matchers(written)
    priority, labels = event

    assert matchers.matches("errors", priority, labels) is does_match(written, priority, labels)
    assert parse_matchers(matchers.texts) == matchers
    assert parse_matchers(matchers.texts).matches("errors", priority, labels) is does_match(written, priority, labels)


@given(WRITTEN, WRITTEN, EVENTS)
def test_what_is_seen_of_matchers_holds_for_each_event(
    written: list[str], others: list[str], event: tuple[str, Mapping[str, str]]
) -> None:
    matchers, other = parse_matchers(written), parse_matchers(others)
    priority, labels = event
    matches, others_match = (each.matches("errors", priority, labels) for each in (matchers, other))

    assert matches or not matchers.matches_everything
    assert not (matches and matchers.matches_nothing)
    assert not others_match or matches or not matchers.covers(other)


@given(SHORT, SHORT)
def test_of_two_patterns_everything_is_seen(one: str, other: str) -> None:
    mine, its = parse_matchers([f"host={one}"]), parse_matchers([f"host={other}"])
    matched = [{text for text in SHORT_VALUES if fits(pattern, text)} for pattern in (one, other)]

    assert parse_matchers([f"host={one}", f"host={other}"]).matches_nothing is matched[0].isdisjoint(matched[1])
    assert mine.covers(its) is (matched[0] >= matched[1])

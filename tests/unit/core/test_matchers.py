"""Matchers as people write them: what they are, what they say in words, and what is refused."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest

from dispatcher.core.matchers import parse_matcher, parse_matchers

DB1 = {"host": "db1", "severity": "critical", "team": "db"}
A_CATEGORY = "a category: 1 to 64 of A-Z a-z 0-9 _ . : - beginning with a letter or digit"
NO_EXPRESSION = "a value in which * is the only wildcard, such as host=db*: there are no regular expressions"


@pytest.mark.parametrize(
    ("given", "does"),
    [
        ("host=db1", True),
        ("host=db", False),
        ("severity!=critical", False),
        ("team=db|web", True),
        ("team!=db|web", False),
        ("host=db*", True),
        ("host=*1", True),
        ("host=d*b*1", True),
        ("host=db*1*1", False),
        ("host=db1*1", False),
        ("host=DB1", False),
        ("host=*db*b1*", False),
        ("host=*d*b*1*", True),
        ("rack=", True),
        ("rack!=", False),
        ("rack!=r7", True),
        ("rack=*", True),
        ("category=alerts", True),
        ("category=al*s", True),
        ("category!=alerts", False),
        ("category=alert", False),
        (f"category=*{'x' * 64}", False),
        (f"host={'|'.join(map(str, range(31)))}|db1", True),
        (" ".join(["host=db1"] * 32), True),
        ("priority=high", True),
        ("priority=normal|low", False),
        ("host=db* severity=critical", True),
        ("host=db* severity!=critical", False),
        ("host=db* host!=db2", True),
        (["host=db1", "summary=*"], True),
    ],
)
def test_an_event_matches_if_it_matches_each_one(given: str | list[str], does: bool) -> None:  # noqa: FBT001 - a table
    assert parse_matchers(given).matches("alerts", "high", DB1) is does


def test_in_a_list_a_value_may_have_blanks() -> None:
    assert parse_matchers(["summary=disk full"]).matches("alerts", "normal", {"summary": "disk full"})


@pytest.mark.parametrize(
    ("given", "texts", "words"),
    [
        ("host=db1", ["host=db1"], "host is db1"),
        ("b!=x a=1", ["a=1", "b!=x"], "a is 1, and b is not x"),
        ("a=1 a=1", ["a=1"], "a is 1"),
        ("host=web|db|db", ["host=db|web"], "host is db or web"),
        ("host=c|b|a*|d**e", ["host=a*|b|c|d*e"], "host is b or c or matches a* or d*e"),
        ("host!=c|b|a*|d*", ["host!=a*|b|c|d*"], "host is none of b, c and matches none of a*, d*"),
        ("host!=a*", ["host!=a*"], "host does not match a*"),
        ("host=|db1", ["host=|db1"], "host is empty or db1"),
        ("host=db1|*|db2", ["host=*"], "host is anything"),
        (["summary=disk full", "a=b=c"], ["a=b=c", "summary=disk full"], 'a is b=c, and summary is "disk full"'),
    ],
)
def test_matchers_have_one_canonical_text_and_one_sentence(
    given: str | list[str], texts: Sequence[str], words: str
) -> None:
    matchers = parse_matchers(given)

    assert (list(matchers.texts), matchers.in_words) == (texts, words)
    assert parse_matchers(matchers.texts) == matchers


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "no matcher, expected NAME=VALUE or NAME!=VALUE, for example host=db1"),
        ("errors", "'errors', expected NAME=VALUE or NAME!=VALUE, for example host=db1"),
        ("host = db1", "'host', expected NAME=VALUE or NAME!=VALUE, for example host=db1"),
        ("=db1", "'=db1', expected category, priority or the name of a label before the ="),
        ("!=db1", "'!=db1', expected category, priority or the name of a label before the ="),
        (["host= db1"], "'host= db1', expected no blanks around the ="),
        (["host=a | b"], "'host=a | b', expected no blanks around the |"),
        (["host=a\tb"], "'host=a\\tb', expected printable characters; * stands for any other"),
        ("host=~db.*", f"'host=~db.*', expected {NO_EXPRESSION}"),
        ("host==db1", "'host==db1', expected a single ="),
        ('host="db1"', "'host=\"db1\"', expected a value without quotes, such as host=db1"),
        ("priority=urgent", "'priority=urgent', expected high, normal or low"),
        ("category=er/rors", f"'category=er/rors', expected {A_CATEGORY}"),
        ("category!=", f"'category!=', expected {A_CATEGORY}"),
        (f"category={'x' * 65}*", f"'category={'x' * 65}*' (75 characters), expected {A_CATEGORY}"),
        (" ".join(f"l{n}=1" for n in range(33)), "33 matchers, expected at most 32"),
        (
            f"h={'|'.join('abcdefghijklmnopqrstuvwxyz0123456')}",
            f"'h={'|'.join('abcdefghijklmnopqrstuvwxyz0123456')}' (67 characters) has 33 values, expected at most 32",
        ),
    ],
)
def test_what_is_no_matcher_is_refused_with_what_was_expected(given: str | list[str], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        parse_matchers(given)


@pytest.mark.parametrize("value", ["x" * 256, "ä" * 128, f"{'x' * 256}|{'y' * 256}"])
def test_a_value_may_have_256_bytes(value: str) -> None:
    assert parse_matcher(f"host={value}").accepts(value.partition("|")[0])


@pytest.mark.parametrize("value", ["x" * 257, "ä" * 128 + "x"])
def test_a_longer_value_is_refused_with_its_size(value: str) -> None:
    with pytest.raises(ValueError, match="has a value of 257 bytes, expected at most 256"):
        parse_matcher(f"host={value}")


@pytest.mark.parametrize(
    ("given", "does"),
    [
        ("category=*", True),
        ("host=*", True),
        ("category=* host=*", True),
        ("priority=high|normal|low", True),
        ("priority!=low", False),
        ("category=a*", False),
        ("category!=errors", False),
        ("category=* host=db1", False),
        ("host=a*|b*", False),
    ],
)
def test_matchers_that_refuse_no_event_are_known(given: str, does: bool) -> None:  # noqa: FBT001 - a table
    assert parse_matchers(given).matches_everything is does


@pytest.mark.parametrize(
    ("given", "does"),
    [
        ("host=db1 host=db2", True),
        ("host=db* host=web*", True),
        ("host=*1 host=*2", True),
        ("host=db* host!=db*", True),
        ("host=db1|db2 host!=db*", True),
        ("host!=*", True),
        ("priority=high priority!=high", True),
        ("priority!=high priority!=normal|low", True),
        ("host=db* host=*1", False),
        ("host=db* host!=db1", False),
        ("host=db1 rack=db2", False),
    ],
)
def test_matchers_that_contradict_each_other_are_seen(given: str, does: bool) -> None:  # noqa: FBT001 - a table
    assert parse_matchers(given).matches_nothing is does


@pytest.mark.parametrize(
    ("wide", "narrow", "does"),
    [
        ("host=db*", "host=db1", True),
        ("host=db*", "host=db1*", True),
        ("host=*b*", "host=db*", True),
        ("host=db*|web*", "host=web1|db1", True),
        ("host!=web1", "host=db*", True),
        ("host!=db1", "host!=db*", True),
        ("host=db*", "host=db* severity=critical", True),
        ("priority!=low", "priority=high|normal", True),
        ("priority=high|normal", "priority!=low", True),
        ("rack=*", "host=db1", True),
        ("host=db1", "host=db1|db2 host!=db2", True),
        ("host=db1", "host=db*", False),
        ("host=db1 severity=critical", "host=db1", False),
        ("host!=db1", "host=db*", False),
        ("host!=db*", "host!=db1", False),
        ("rack=r1", "host=db1", False),
    ],
)
def test_matchers_that_leave_nothing_to_others_are_seen(wide: str, narrow: str, does: bool) -> None:  # noqa: FBT001 - a table
    assert parse_matchers(wide).covers(parse_matchers(narrow)) is does


def test_what_is_asked_of_some_categories_only_counts_for_these() -> None:
    matchers = parse_matchers("category=deploys|chatter")

    assert matchers.only_of(["errors", "alerts"]).matches_nothing
    assert not matchers.only_of(["errors", "chatter"]).matches_nothing
    assert matchers.only_of(["deploys", "chatter"], negated=True).matches_nothing


def test_a_long_text_is_looked_through_once_whatever_the_pattern() -> None:
    matcher = parse_matcher("text=" + "*a" * 100 + "*b")
    began = time.process_time()

    assert not matcher.accepts("a" * 250_000)
    assert time.process_time() - began < 1

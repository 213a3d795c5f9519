"""Routes and fallbacks of the limits file: where an event goes, what they say in words, and what is wrong with them."""

from __future__ import annotations

import pytest

from dispatcher.core.event import Event
from dispatcher.core.states import Leased
from dispatcher.core.units import Lane
from dispatcher.errors import ConfigError
from dispatcher.settings.describe import sentences
from dispatcher.settings.limits_file import read_limits

TEXT = """\
defaults: {routes: [{match: team=db, channel: "#db"}]}
categories:
  alerts:
    channel: "#alerts"
    routes:
      - {match: severity=critical|page, channel: "#oncall"}
      - {match: [team=db, "summary=disk *"], channel: C0123DISK}
      - {match: priority=high, channel: "#urgent"}
  plain: {channel: "#plain"}
  fixed: {channel: "#fixed", routes: []}
"""
POLICY = read_limits(TEXT, "limits.yaml").policy


def channel_of(category: str, priority: Lane = Lane.NORMAL, channel: str | None = None, **labels: str) -> str:
    event = Event(category, "x", channel=channel, priority=priority, labels=labels)
    channel = POLICY.terms(Leased("e1", event, 1, seen_us=1)).channel
    assert channel == POLICY.channel(event)
    return channel


@pytest.mark.parametrize(
    ("event", "channel"),
    [
        ({"category": "alerts"}, "#alerts"),
        ({"category": "alerts", "severity": "critical"}, "#oncall"),
        ({"category": "alerts", "severity": "low", "team": "db", "summary": "disk full"}, "C0123DISK"),
        ({"category": "alerts", "severity": "page", "team": "db", "summary": "disk full"}, "#oncall"),
        ({"category": "alerts", "team": "db"}, "#alerts"),
        ({"category": "alerts", "priority": Lane.HIGH}, "#urgent"),
        ({"category": "alerts", "severity": "critical", "channel": "#mine"}, "#mine"),
        ({"category": "plain"}, "#plain"),
        ({"category": "plain", "team": "db"}, "#db"),
        ({"category": "fixed", "team": "db"}, "#fixed"),
        ({"category": "others", "team": "db"}, "#db"),
    ],
)
def test_the_first_route_that_matches_says_where_an_event_goes(event: dict[str, str], channel: str) -> None:
    assert channel_of(**event) == channel  # type: ignore[arg-type]  # by name


def test_events_that_differ_only_in_a_label_are_not_taken_for_one_another() -> None:
    assert [channel_of("alerts", severity=severity) for severity in ("low", "page", "low")] == [
        "#alerts",
        "#oncall",
        "#alerts",
    ]


def test_an_event_that_has_waited_for_a_channel_stays_with_it() -> None:
    event = Event("alerts", "x", labels={"severity": "critical"})
    assert POLICY.terms(Leased("e1", event, 1, seen_us=1, channel="#before")).channel == "#before"


def test_each_route_is_a_sentence() -> None:
    assert sentences(POLICY)[1:5] == [
        (
            "alerts: at most 10 in any 30 minutes, posted to #alerts unless a route matches; beyond that the event is "
            "dropped with a log line; waits at most 24 hours."
        ),
        "alerts, route 1: an event that names no channel is posted to #oncall if severity is critical or page.",
        (
            "alerts, route 2: else an event that names no channel is posted to C0123DISK if "
            'summary matches "disk *", and team is db.'
        ),
        "alerts, route 3: else an event that names no channel is posted to #urgent if priority is high.",
    ]
    said = "route 1: an event that names no channel is posted to #db if team is db."
    assert [sentence for sentence in sentences(POLICY) if said in sentence] == [
        f"plain, {said}",
        f"Any other category, {said}",
    ]


def test_a_fallback_is_the_category_s_or_the_default_s_and_is_said() -> None:
    text = "defaults: {fallback: '#ops'}\ncategories: {a: {fallback: C0123OPS}, b: {fallback: none}}"
    policy = read_limits(text, "limits.yaml").policy
    assert {name: policy.rule(name).fallback for name in "abc"} == {"a": "C0123OPS", "b": None, "c": "#ops"}
    said = "; if its channel is gone or archived, it is posted to "
    assert [sentence.partition(said)[2].partition(";")[0] for sentence in sentences(policy)[1:4]] == [
        "C0123OPS",
        "",
        "#ops",
    ]


def routes(text: str, more: str = "") -> str:
    return f"{more}categories:\n  a:\n    routes: [{text}]\n"


A = "channel: '#a'"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        pytest.param(
            routes(f"{{match: x=1, {A}}}, {{match: x=1 y=2, {A}}}"),
            "3:51: categories.a.routes[1].match: 'x=1 y=2' can never match, since routes[0] matches all of its events",
            id="shadowed",
        ),
        pytest.param(
            routes(f"{{match: category=a, {A}}}, {{match: y=2, {A}}}"),
            "3:58: categories.a.routes[1].match: 'y=2' can never match, since routes[0] matches all of its events",
            id="shadowed by the category",
        ),
        pytest.param(
            routes(f"{{match: x=1 x=2, {A}}}"),
            "3:22: categories.a.routes[0].match: 'x=1 x=2' can never match, since its matchers contradict each other",
            id="contradiction",
        ),
        pytest.param(
            routes(f"{{match: x!=*, {A}}}"),
            "3:22: categories.a.routes[0].match: 'x!=*' can never match, since 'x!=*' refuses every value",
            id="a matcher that refuses all",
        ),
        pytest.param(
            routes(f"{{match: category=b, {A}}}"),
            "3:22: categories.a.routes[0].match: 'category=b' can never match, "
            "since it names other categories than those whose events ask it",
            id="another category",
        ),
        pytest.param(
            f"defaults: {{routes: [{{match: category=a, {A}}}]}}\ncategories: {{a: {{routes: []}}, b: {{}}}}\n",
            "1:29: defaults.routes[0].match: 'category=a' can never match, "
            "since it names other categories than those whose events ask it",
            id="a category with routes of its own, in the defaults",
        ),
        pytest.param(
            f"unknown_categories: reject\ndefaults: {{routes: [{{match: category=c, {A}}}]}}\ncategories: {{b: }}\n",
            "2:29: defaults.routes[0].match: 'category=c' can never match, "
            "since it names other categories than those whose events ask it",
            id="a category that is not accepted",
        ),
    ],
)
def test_a_route_that_can_never_match_gets_a_warning(text: str, warning: str) -> None:
    assert read_limits(text, "limits.yaml").warnings == (f"limits.yaml:{warning}",)


@pytest.mark.parametrize(
    "text",
    [
        routes(f"{{match: x=1 y=2, {A}}}, {{match: x=1, {A}}}, {{match: category=*, {A}}}"),
        f"defaults: {{routes: [{{match: category=a, {A}}}]}}\ncategories: {{a: {{}}}}\n",
        f"unknown_categories: reject\ndefaults: {{routes: [{{match: category=b, {A}}}]}}\ncategories: {{b: {{}}}}\n",
    ],
)
def test_a_route_that_can_match_gets_none(text: str) -> None:
    assert read_limits(text, "limits.yaml").warnings == ()


ROUTE = '{match: severity=critical, channel: "#oncall"}'
CHANNEL = 'expected a channel such as "#errors", in quotes, or its id'
MATCHERS = "expected matchers such as severity=critical, or a list of them"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{{match: team, {A}}}", "match: 'team', expected NAME=VALUE or NAME!=VALUE, for example host=db1"),
        (f"{{match: a=b c, {A}}}", "match: 'a=b c': 'c', expected NAME=VALUE or NAME!=VALUE, for example host=db1"),
        (f"{{match: [a=b, c==d], {A}}}", "match[1]: 'c==d', expected a single ="),
        (f"{{match: {{a: b}}, {A}}}", f"match: a mapping, {MATCHERS}"),
        (f"{{match: [], {A}}}", f"match: an empty list, {MATCHERS}"),
        (f"{{match: [3], {A}}}", f"match[0]: 3, {MATCHERS}"),
        ("{match: a=b}", f"channel: the key is missing, {CHANNEL}"),
        (f"{{{A}}}", f"match: the key is missing, {MATCHERS}"),
        (f"{{match: a=b, to: x, {A}}}", "to: the key is not known, expected one of match, channel"),
        ("{match: a=b, channel: oncall}", f"channel: 'oncall', {CHANNEL}; did you mean \"#oncall\"?"),
    ],
)
def test_a_mistake_in_a_route_is_told(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_limits(routes(text), "limits.yaml")
    (said,) = caught.value.problems
    assert said.partition(": ")[2] == f"categories.a.routes[0].{problem}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "defaults: {routes: {match: a=b}}",
            f"defaults.routes: a mapping, expected a list of routes such as [{ROUTE}]",
        ),
        (
            "defaults: {routes: [3]}",
            f"defaults.routes[0]: 3, expected a mapping such as {ROUTE}",
        ),
        (
            f"defaults: {{routes: [{', '.join([f'{{match: a=b, {A}}}'] * 101)}]}}",
            "defaults.routes: a list of 101 routes, expected at most 100",
        ),
    ],
)
def test_what_is_no_list_of_routes_is_told(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_limits(text, "limits.yaml")
    assert [said.partition(": ")[2] for said in caught.value.problems] == [problem]


def test_a_token_in_the_wrong_place_is_not_shown() -> None:
    token = "xoxb-" + "1234567890-abcdefghij"
    with pytest.raises(ConfigError) as caught:
        read_limits(routes(f"{{match: a=b {token}, {A}}}"), "limits.yaml")
    assert token not in str(caught.value)

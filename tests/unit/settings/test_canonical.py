"""The content of a limits file: the same for all files that say the same, and a limits file itself."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.limits import MAX_WINDOW_US
from dispatcher.core.posts import Identity
from dispatcher.core.units import format_duration, parse_duration
from dispatcher.data_files import data_file
from dispatcher.errors import ConfigError
from dispatcher.settings.content import policy_in
from dispatcher.settings.limits_file import policy_checked, read_limits

FULL = """
# every key
global: {limits: [5/1s, 100/30m, 1000/1d fixed]}
channels:
  default: {pace: none}
  "#ops": {pace: 1/1s}
  "#größe-😀": {pace: 3/1.5s}
  "#unpaced": {}
defaults: {limits: [10/30m], channel: "#all", on_limit: defer, max_age: 1.234567s, per_label: {host: [3/10m]}}
categories:
  errors: {limits: [10/30m], channel: "#größe-😀", guarantee: 5, per_label: {}}
  deploys: {limits: [3/1m, 30/1h], on_limit: dead-letter, max_parked: 7}
  audit: {limits: [{max: 3, window: 1d fixed, shadow: true}], per_label: {host: [{max: 3, window: 1m}]}}
  news: {on_ambiguous: dead-letter, username: "Nëws", icon_emoji: ":x:", allow_mentions: true}
  rare: {digest_delay: 90s, notice: true}
  safe: {fallback: C0123ABCD}
  routed: {routes: [{match: host=db* a=ö|b, channel: "#db"}, {match: ["text=disk full", x!=y], channel: C0123ABCD}]}
  paths: {template: '{{ text }} C:\\U0001f600'}
  fires: {template: "*{{ category }}*\\n {{ text }} 🔥", icon_url: "https://x.example/a.png"}
  other:
quiet:
  nights: {times: ["22:00-07:00"], days: [mon-fri], zone: Europe/Berlin, categories: [rare, news], then: digest,
           unless: {priority: high, severity: "crit*|ö"}}
  noon: {times: ["13:00-14:00", "12:00-12:30"], zone: UTC, then: drop}
unknown_categories: reject
dead_letters: {max: 5, max_age: 1d, max_bytes: 1500MB}
decisions: {max: 9, text: 0}
"""


STYLED = """
defaults:
  username: Größe
  icon_url: "https://example.com/a.png"
  template: |
    *{{ category }}* {{ "😀" }}
    {{ text }}
  on_ambiguous: dead-letter
categories:
  errors: {icon_emoji: ":bell:", allow_mentions: true, on_ambiguous: resend}
  deploys: {template: "{{ text }}", username: "no"}
"""

ICONS = """
defaults: {icon_emoji: ":x:", icon_url: "https://x.example/a.png"}
categories:
  a: {icon_url: "https://x.example/a.png"}
  b: {icon_emoji: ":y:"}
  c: {icon_emoji: ":x:", icon_url: "https://x.example/b.png"}
"""
TAKEN_BACK = """\
defaults: {once: {per: 4h}, username: Bob, icon_url: "https://x.example/a.png", fallback: "#ops",
           template: "{{ text }}!"}
categories:
  a: {once: none, username: none, icon_url: none, fallback: none, template: none}
  b: {icon_emoji: none}
"""


def test_a_category_takes_back_what_the_defaults_say() -> None:
    policy = read_limits(TAKEN_BACK, "limits.yaml").policy
    a, b = policy.rule("a"), policy.rule("b")
    assert (a.once, a.style.identity, a.style.template, a.fallback) == (None, None, None, None)
    assert (b.once, b.style.identity) == (policy.defaults.once, Identity("Bob"))


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        STYLED,
        ICONS,
        TAKEN_BACK,
        "",
        "global: {limits: []}",
        data_file("config", "limits.yaml").read_text("utf-8"),
    ],
)
def test_a_content_read_again_is_the_same_policy_and_the_same_content(text: str) -> None:
    limits = read_limits(text, "limits.yaml")
    again = read_limits(limits.content.text, "again")
    assert again.policy == limits.policy
    assert list(again.policy.categories) == list(limits.policy.categories)
    assert again.content == limits.content


def test_of_two_icons_only_the_category_s_own_is_in_its_content() -> None:
    limits = read_limits(STYLED, "limits.yaml")
    assert "null" not in limits.content.text
    assert limits.policy.rule("errors").style.identity == Identity("Größe", ":bell:")


def test_another_template_is_another_content() -> None:
    texts = ("defaults: {template: '{{ text }}'}", "defaults: {template: '{{ text }} '}", "")
    assert len({read_limits(text, "x").content.digest for text in texts}) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("global: {limits: [100/30m]}", "# a comment\nglobal:\n  limits:\n    - 100/30m\n"),
        ("", "defaults: {limits: [10/30m], on_limit: drop}"),
        ("", "defaults: {template: none}"),
        ("", 'channels: {default: {pace: 10/10s}, "#ops": {}}'),
        ("categories: {a: {}, b: {}}", "categories: {b: , a: {limits: [10/30m]}}"),
        (
            "defaults: {limits: [3/1m]}\ncategories: {a: }",
            "defaults: {limits: [3/60s]}\ncategories: {a: {limits: [3/1m]}}",
        ),
        ("global: {limits: [60/1h]}", "global: {limits: [60/60m]}"),
        (
            "defaults: {routes: [{match: [a=b, x=d|c], channel: '#a'}]}",
            "defaults: {routes: [{channel: '#a', match: x=c|d a=b}]}",
        ),
        (
            "quiet: {n: {times: ['12:00-00:00', '01:00-02:00'], days: [fri-mon, tue-thu], zone: UTC, then: drop}}",
            "quiet: {n: {then: drop, zone: UTC, times: ['01:00-02:00', '12:00-24:00'], unless: {}}}",
        ),
        (r'{"defaults": {"template": "\ud83d\ude00 {{ text }}"}}', "defaults: {template: '😀 {{ text }}'}"),
    ],
    ids=["spelling", "defaults", "no template", "paces", "order", "inherited", "units", "matchers", "quiet", "JSON"],
)  # fmt: skip
def test_files_that_say_the_same_have_the_same_digest(one: str, other: str) -> None:
    assert read_limits(one, "x").content.digest == read_limits(other, "x").content.digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("", "categories: {errors: {}}"),
        ("defaults: {limits: [3/1m]}", "categories: {a: {limits: [3/1m]}}"),
        ("categories: {a: {max_age: 1h}}", "categories: {a: {max_age: 60.001m}}"),
        ("global: {limits: [5/1s, 100/30m]}", "global: {limits: [100/30m]}"),
        ('channels: {"#a": {pace: none}}', 'channels: {"#a": {pace: 10/10s}}'),
        ("", "unknown_categories: reject"),
        ("", "dead_letters: {max: 7}"),
        ("", "quiet: {n: {times: ['01:00-02:00'], zone: UTC, then: drop}}"),
        (
            "quiet: {n: {times: ['01:00-02:00'], zone: UTC, then: drop}}",
            "quiet: {n: {times: ['01:00-02:00'], zone: Europe/London, then: drop}}",
        ),
        ("", "defaults: {routes: [{match: a=b, channel: '#a'}]}"),
        (
            "defaults: {routes: [{match: a=b, channel: '#a'}, {match: x=y, channel: '#b'}]}",
            "defaults: {routes: [{match: x=y, channel: '#b'}, {match: a=b, channel: '#a'}]}",
        ),
        ("", "dead_letters: {max_bytes: 2GB}"),
        ("", "decisions: {max: 7}"),
        (
            "defaults: {fallback: '#a'}\ncategories: {b: }",
            "defaults: {fallback: '#a'}\ncategories: {b: {fallback: none}}",
        ),
        ("", "decisions: {text: 0}"),
    ],
)
def test_files_that_say_something_else_have_another_digest(one: str, other: str) -> None:
    assert read_limits(one, "x").content.digest != read_limits(other, "x").content.digest


def test_the_policy_of_a_content_is_checked_without_the_yaml_parser() -> None:
    limits = read_limits(FULL, "x")
    called: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            called.add(str(frame.f_globals.get("__name__")))

    sys.setprofile(note)
    try:
        policy = policy_checked(limits.content.text, "again")
    finally:
        sys.setprofile(None)
    assert policy == limits.policy
    assert [name for name in called if name.startswith("ruamel")] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"categories": {"a": {"limits": ["10/30"]}}}', "again:1:34: categories.a.limits[0]: '10/30', expected "),
        ('{"categories": {"a": {"guarantee": 101}}}', "again:1:36: categories.a.guarantee: 101 "),
        ('{"brand_new": 1}', "again:1:2: brand_new: the key is not known, expected "),
        ("[]", "again:1:1: an empty list, expected a mapping "),
        ("global: {limits: [1/30]}", "again:1:19: global.limits[0]: '1/30', expected "),
    ],
)
def test_a_content_with_a_fault_is_told_where_it_is(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy_checked(text, "again")
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(fault)


def test_a_content_in_other_words_than_json_is_read_all_the_same() -> None:
    text = "categories: {errors: {limits: [3/1m]}}"
    assert policy_checked(text, "x") == read_limits(text, "x").policy


def test_the_policy_of_the_content_in_force_is_made_once() -> None:
    text = read_limits(FULL, "x").content.text
    assert policy_in(text) is policy_in(str(text.encode(), "ascii"))


def test_a_content_is_plain_ascii() -> None:
    assert read_limits(FULL, "x").content.text.isascii()


@given(st.integers(min_value=1, max_value=MAX_WINDOW_US))
def test_a_span_is_written_so_that_it_is_read_back(span_us: int) -> None:
    assert parse_duration(format_duration(span_us)) == span_us

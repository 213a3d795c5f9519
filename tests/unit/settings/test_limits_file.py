"""The limits file: what it may say, what each mistake is told, and how it reads as sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.event import Event
from dispatcher.core.limits import Bounds, Limit
from dispatcher.core.policy import CategoryRule, OnAmbiguous, OnLimit, Policy
from dispatcher.core.posts import Identity
from dispatcher.core.units import US
from dispatcher.data_files import data_file
from dispatcher.errors import ConfigError
from dispatcher.settings.describe import sentences
from dispatcher.settings.environment import Settings
from dispatcher.settings.limits_file import load_limits, read_limits
from dispatcher.settings.limits_text import MAX_BYTES, find_limits_file
from dispatcher.settings.warnings import implies
from dispatcher.settings.yaml_reader import read_yaml

HOUR_US = 3_600 * US
SAMPLE = data_file("config", "limits.yaml").read_text(encoding="utf-8")
BUILT_IN = Policy(
    global_limits=(Limit.parse("100/30m"),),
    defaults=CategoryRule((Limit.parse("10/30m"),), "#notifications", OnLimit.DROP, 24 * HOUR_US),
    categories={},
    default_pace=Limit.parse("10/10s"),
)

LIMIT = "expected MAX/WINDOW, for example 100/30m"
RANGE = "expected MAX from 1 to 10000000 and WINDOW from 0.001ms to 366d, with at most 6 decimals"
PARTS = "MAX/WINDOW or a mapping such as {max: 20, window: 5m, shadow: true}"
MAX = "a whole number from 1 to 10000000"
WINDOW = "a window such as 5m or 1d fixed"
PACE = "expected MAX/WINDOW, for example 10/10s, or none"
CHANNEL = 'expected a channel such as "#errors", in quotes, or its id'
SPAN = "expected a span such as 24h or 1.5h (a number and ms, s, m, h or d), up to 366d"
SPAN_RANGE = "expected a span from 0.001ms to 366d, with at most 6 decimals"
NO_UNIT = f"the unit is missing, {SPAN}"
COUNT = "expected a whole number from 1 to 10000000"
SIZE = "expected a whole number and a unit of KB, MB or GB, from 2MB to 1000GB, for example 256MB"
CATEGORY = "expected 1 to 64 of A-Z a-z 0-9 _ . : - beginning with a letter or digit"
LABEL = "expected the name of a label, 1 to 64 printable characters without blank, : and ="
GUARANTEE = "expected a whole number from 1 to 10000000, a part of the longest global window"
RULE_KEYS = (
    "limits, channel, routes, fallback, on_limit, max_age, max_parked, on_ambiguous, username, icon_emoji, icon_url, "
    "allow_mentions, template, per_label, digest_delay, notice, once, resolved, "
    "resolved_while_waiting"
)
TEMPLATE = 'expected a template such as "*{{ category }}* {{ text }}"'
BY = "expected dedup_key, text, or a list of labels such as [alertname, instance]"
USERNAME = "expected a name of 1 to 80 printable characters"
EMOJI = "expected an emoji such as :bell:"
ICON_URL = "expected the https:// URL of an image, of at most 2000 characters"


def policy(text: str) -> Policy:
    """The policy of a file without warnings."""
    limits = read_limits(text, "limits.yaml")
    assert limits.warnings == ()
    return limits.policy


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_limits(text, "limits.yaml")
    assert caught.value.__context__ is None
    return [problem.removeprefix("limits.yaml:") for problem in caught.value.problems]


def test_the_examples_in_the_sample_work_when_their_hash_is_taken_away() -> None:
    text = SAMPLE.replace('  # "#ops"', '  "#ops"')
    for key in ("errors:", "  limits: [3/1m", '  channel: "#errors"', "  on_limit: dead-letter"):
        text = text.replace(f"  # {key}", f"  {key}")
    found = policy(text)
    assert found.channels == {"#ops": Limit.parse("1/1s")}
    assert found.categories == {
        "errors": CategoryRule(
            (Limit.parse("3/1m"), Limit.parse("10/30m")), "#errors", OnLimit.DEAD_LETTER, 24 * HOUR_US
        )
    }


@pytest.mark.parametrize("channel", ["C12345", "U0123ABCD", "#größer"])
def test_a_channel_that_an_event_may_name_may_stand_in_the_file(channel: str) -> None:
    assert Event("errors", "disk full", channel=channel).channel == channel
    assert policy(f'defaults: {{channel: "{channel}"}}').defaults.channel == channel


def test_every_key_is_read() -> None:
    assert policy("""
        global:
          limits: [5/1s, 100/30m]
        channels:
          default: {pace: 2/1s}
          "#ops": {pace: none}
          C0123ABCD: {pace: 1/500ms}
          "#plain":
        defaults:
          limits: []
          channel: C0123ABCD
          on_limit: dead-letter
          max_age: 1.5h
        categories:
          errors: {limits: [3/1m, 30/1h], channel: '#errors', on_limit: drop, max_age: 7d}
          deploys:
        unknown_categories: reject
        dead_letters: {max: 7, max_age: 12h, max_bytes: 3MB}
        """) == Policy(
        global_limits=(Limit(5, window_us=US), Limit(100, window_us=1800 * US)),
        defaults=CategoryRule((), "C0123ABCD", OnLimit.DEAD_LETTER, 3 * HOUR_US // 2),
        categories={
            "errors": CategoryRule(
                (Limit(3, window_us=60 * US), Limit(30, window_us=HOUR_US)), "#errors", OnLimit.DROP, 168 * HOUR_US
            ),
            "deploys": CategoryRule((), "C0123ABCD", OnLimit.DEAD_LETTER, 3 * HOUR_US // 2),
        },
        default_pace=Limit(2, window_us=US),
        channels={"#ops": None, "C0123ABCD": Limit(1, window_us=US // 2)},
        reject_unknown=True,
        dead_letters=Bounds(7, 12 * HOUR_US, max_bytes=3_000_000),
    )


def test_a_category_inherits_each_key_it_leaves_out() -> None:
    found = policy("""
        defaults: {limits: [4/1m], channel: "#all", max_age: 1h}
        categories:
          a: {channel: "#a"}
          b: {limits: [], on_limit: dead-letter}
        """)
    assert found.categories == {
        "a": CategoryRule((Limit.parse("4/1m"),), "#a", OnLimit.DROP, HOUR_US),
        "b": CategoryRule((), "#all", OnLimit.DEAD_LETTER, HOUR_US),
    }


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "global:\nchannels:\ndefaults:\ncategories:\ndead_letters:\n", id="sections whose entries are commented out"
        ),
        pytest.param("{}", id="empty mapping"),
        pytest.param("\ufeff%YAML 1.2\n---\nunknown_categories: accept\n...\n", id="marks of a YAML 1.2 document"),
        pytest.param("global:\r\n  limits: [100/30m]\r\n", id="line ends of Windows"),
        pytest.param('"global": {"limits": ["100/30m"]}', id="JSON"),
    ],
)
def test_a_file_without_values_gives_the_built_in_defaults(text: str) -> None:
    assert policy(text) == BUILT_IN


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        # The text as YAML
        pytest.param(
            "global: {limits: [",
            "1:19: not valid YAML: expected the node content, but found '<stream end>'",
            id="cut off",
        ),
        pytest.param("global:\n\tlimits: []\n", "2:1: a tab, expected spaces", id="tab in the indentation"),
        pytest.param("global:\tx", "1:8: a tab, expected spaces", id="tab between key and value"),
        pytest.param(
            "channels: {default: {pace: @x}}", "1:28: text begins with @, expected it in quotes", id="at sign"
        ),
        pytest.param(
            "unknown_categories: accept: x",
            "1:27: not valid YAML: mapping values are not allowed here",
            id="two colons in a line",
        ),
        pytest.param(
            "channels: {#ops: {pace: 1/1s}}",
            '1:12: # begins a comment, write "#ops" in quotes; '
            "if the comment is meant, line 1: not valid YAML: expected the node content, but found '<stream end>'",
            id="unquoted #ops in braces",
        ),
        pytest.param(
            "global: {}\ndefaults: {limits: [1/1m], channel: #ops}\n",
            '2:37: # begins a comment, write "#ops" in quotes; '
            "if the comment is meant, line 3: not valid YAML: expected the node content, but found '<stream end>'",
            id="unquoted #ops in braces as a value, and the file ends below",
        ),
        pytest.param(
            "categories: {a: {channel: #a}, b: {}}\ndefaults: {}\n",
            '1:27: # begins a comment, write "#a" in quotes; '
            "if the comment is meant, line 2: not valid YAML: expected ',' or '}', but got ':'",
            id="unquoted #a in braces, and more below",
        ),
        pytest.param(
            "global: {limits: [\n# see: #ops\n",
            "3:1: not valid YAML: expected the node content, but found '<stream end>'",
            id="a comment that is one",
        ),
        pytest.param(
            "global: {}\nglobal: {}",
            "2:1: global: stands twice, first in line 1; expected each key once",
            id="repeated section",
        ),
        pytest.param(
            "categories:\n  a: {}\n  b: {}\n  a: {limits: [[[1]]]}",
            "4:3: categories.a: stands twice, first in line 2; expected each key once",
            id="repeated category",
        ),
        pytest.param("defaults: &d {}", "1:11: defaults: the anchor &d, expected none", id="anchor"),
        pytest.param("defaults: *d", "1:11: defaults: the alias *d, expected the value itself", id="alias"),
        pytest.param(
            "categories: {*a : {}}", "1:14: categories: a key that is no text, expected a name", id="alias as key"
        ),
        pytest.param(
            "defaults: {channel: !!str '#a'}",
            "1:21: defaults.channel: the tag 'tag:yaml.org,2002:str', expected none",
            id="tag",
        ),
        pytest.param("? [a]\n: b", "1:3: a key that is no text, expected a name", id="list as key"),
        pytest.param("global: {}\n---\nglobal: {}", "2:1: a second document, expected one", id="two documents"),
        pytest.param("%YAML 1.1\n---\n{}", "1:1: a directive, expected none but %YAML 1.2", id="YAML 1.1"),
        pytest.param("%TAG ! x\n---\n{}", "1:1: a directive, expected none but %YAML 1.2", id="tag directive"),
        pytest.param("a: {}\nb: \x07", "2:4: a control character, expected text", id="control character"),
        pytest.param(
            "a: {}\n\ufeffb: {}", "2:1: the character U+FEFF, expected plain text and line breaks", id="BOM inside"
        ),
        pytest.param(
            'a: "\\UFFFFFFFF"',
            "1:1: not valid YAML here or below: an escape such as \\U stands for no character",
            id="impossible character",
        ),
        pytest.param(
            'categories: {"\\ud800": {}}',
            "1:14: categories.'\\ud800': half of a surrogate pair, expected whole characters",
            id="half of a surrogate pair as a key",
        ),
        pytest.param(
            'defaults: {template: "x\\ud800 {{ text }}"}',
            "1:22: defaults.template: half of a surrogate pair, expected whole characters",
            id="half of a surrogate pair in a value",
        ),
        pytest.param(
            "global: " + "[" * 99,
            "1:9: global: a list, expected a mapping such as {limits: [100/30m]}\n"
            f"1:25: global{'[0]' * 16}: nested more than 16 deep",
            id="deep nesting",
        ),
        pytest.param(
            "defaults: {}\n? " + "[" * 99,
            "2:3: a key that is no text, expected a name\n2:19: nested more than 16 deep",
            id="deep nesting in a key",
        ),
        pytest.param(
            "defaults:\n  channel: '#a'\n  on_limit: drop\n   max_age: 24h",
            "3:13: defaults.on_limit: 'drop max_age' goes on in the next line, expected one line; "
            "is that line indented too far?\n"
            "4:11: not valid YAML: mapping values are not allowed here",
            id="line indented too far",
        ),
        # Shapes and keys
        pytest.param(
            "- a", "1:1: a list, expected a mapping with keys such as global, defaults and categories", id="list"
        ),
        pytest.param(
            "no", "1:1: 'no', expected a mapping with keys such as global, defaults and categories", id="text"
        ),
        pytest.param(
            "global: 100/30m",
            "1:9: global: '100/30m', expected a mapping such as {limits: [100/30m]}",
            id="global is no mapping",
        ),
        pytest.param(
            "channels: [a]",
            '1:11: channels: a list, expected a mapping such as {"#ops": {pace: 1/1s}}',
            id="channels is no mapping",
        ),
        pytest.param(
            'channels: {"#a": 1/1s}',
            "1:18: channels.#a: '1/1s', expected a mapping such as {pace: 1/1s}",
            id="channel is no mapping",
        ),
        pytest.param(
            "defaults: drop",
            "1:11: defaults: 'drop', expected a mapping such as {limits: [10/30m]}",
            id="defaults is no mapping",
        ),
        pytest.param(
            "categories: 3",
            "1:13: categories: 3, expected a mapping such as {errors: {limits: [10/30m]}}",
            id="categories is no mapping",
        ),
        pytest.param(
            "categories: {a: true}",
            "1:17: categories.a: true, expected a mapping such as {limits: [10/30m]}",
            id="category is no mapping",
        ),
        pytest.param("default: {}", "1:1: default: the key is not known; did you mean defaults?", id="unknown section"),
        pytest.param(
            "rules: {}",
            "1:1: rules: the key is not known, expected one of "
            "global, channels, defaults, categories, quiet, hooks, unknown_categories, dead_letters, decisions",
            id="unknown section unlike any",
        ),
        pytest.param(
            "global: {max_age: 1h}",
            "1:10: global.max_age: the key is not known, expected one of limits",
            id="key in the wrong section",
        ),
        pytest.param(
            "categories:\n  a:\n    on-limit: drop",
            "3:5: categories.a.on-limit: the key is not known; did you mean on_limit?",
            id="hyphen for underscore",
        ),
        pytest.param(
            "defaults: {x: 1}", f"1:12: defaults.x: the key is not known, expected one of {RULE_KEYS}", id="unknown key"
        ),
        pytest.param(
            "defaults: {<<: 1}",
            f"1:12: defaults.'<<': the key is not known, expected one of {RULE_KEYS}",
            id="merge key",
        ),
        # Names
        pytest.param(
            "categories:\n  404: {}",
            '2:3: categories: the key 404, expected a name; write "404" in quotes',
            id="number as category",
        ),
        pytest.param(
            "categories: {true: {}}",
            '1:14: categories: the key true, expected a name; write "true" in quotes',
            id="true as category",
        ),
        pytest.param("categories: {~: {}}", "1:14: categories: the key null, expected a name", id="null as category"),
        pytest.param("categories: {a b: {}}", f"1:14: categories.'a b': 'a b', {CATEGORY}", id="blank in a category"),
        pytest.param(
            'categories: {"[key]": {}}', f"1:14: categories.'[key]': '[key]', {CATEGORY}", id="category called [key]"
        ),
        pytest.param(
            "channels: {ops: {pace: 1/1s}}",
            f"1:12: channels.ops: 'ops', {CHANNEL}; did you mean \"#ops\"?",
            id="channel without #",
        ),
        pytest.param(
            "defaults: {channel: no}",
            f"1:21: defaults.channel: 'no', {CHANNEL}; did you mean \"#no\"?",
            id="no as channel",
        ),
        pytest.param(
            "defaults: {channel: '#a b'}", f"1:21: defaults.channel: '#a b', {CHANNEL}", id="blank in a channel"
        ),
        pytest.param(
            "defaults: {channel: 'https://example.com'}",
            f"1:21: defaults.channel: 'https://example.com', {CHANNEL}",
            id="address as channel",
        ),
        pytest.param("defaults: {channel: '*'}", f"1:21: defaults.channel: '*', {CHANNEL}", id="pattern as channel"),
        pytest.param("defaults: {channel: 12}", f"1:21: defaults.channel: 12, {CHANNEL}", id="number as channel"),
        pytest.param(
            "categories:\n  errors:\n    channel: #errors\n    max_age: 1h",
            f'3:5: categories.errors.channel: null, {CHANNEL}; # begins a comment, write "#errors" in quotes',
            id="unquoted #errors",
        ),
        pytest.param(
            "defaults:\n  channel: # where to\n", f"2:3: defaults.channel: null, {CHANNEL}", id="a real comment"
        ),
        # Limits
        pytest.param("global: {limits: [10/30]}", f"1:19: global.limits[0]: '10/30', {LIMIT}", id="no unit"),
        pytest.param(
            "global: {limits: [10/30min]}",
            f"1:19: global.limits[0]: '10/30min', {LIMIT}; did you mean 10/30m?",
            id="minutes spelt out",
        ),
        pytest.param(
            "global: {limits: [10 per second]}",
            f"1:19: global.limits[0]: '10 per second', {LIMIT}; did you mean 10/1s?",
            id="words",
        ),
        pytest.param(
            "global: {limits: [100/1d fxied]}",
            f"1:19: global.limits[0]: '100/1d fxied', {LIMIT}; did you mean 100/1d fixed?",
            id="fixed misspelt",
        ),
        pytest.param(
            "channels: {default: {pace: 1/1s fxied}}",
            f"1:28: channels.default.pace: '1/1s fxied', {PACE}",
            id="a pace that cannot be fixed",
        ),
        pytest.param(
            "global: {limits: [5/20 ms]}",
            f"1:19: global.limits[0]: '5/20 ms', {LIMIT}; did you mean 5/20ms?",
            id="blank before the unit",
        ),
        pytest.param(
            "global: {limits: [0 per minute]}",
            f"1:19: global.limits[0]: '0 per minute', {LIMIT}",
            id="limit that cannot be, spelt out",
        ),
        pytest.param("global: {limits: [10]}", f"1:19: global.limits[0]: 10, {LIMIT}", id="number"),
        pytest.param("global: {limits: [-1/1s]}", f"1:19: global.limits[0]: '-1/1s', {LIMIT}", id="negative"),
        pytest.param("global: {limits: [0/1s]}", f"1:19: global.limits[0]: '0/1s', {RANGE}", id="max 0"),
        pytest.param("global: {limits: [1/0s]}", f"1:19: global.limits[0]: '1/0s', {RANGE}", id="window 0"),
        pytest.param(
            "global: {limits: [1/367d]}", f"1:19: global.limits[0]: '1/367d', {RANGE}", id="window over a year"
        ),
        pytest.param(
            "global: {limits: [10000001/1s]}", f"1:19: global.limits[0]: '10000001/1s', {RANGE}", id="max too large"
        ),
        pytest.param(
            f"global: {{limits: [1/{'9' * 400}d]}}",
            f"1:19: global.limits[0]: '1/{'9' * 74}..., {RANGE}",
            id="window beyond numbers",
        ),
        pytest.param(
            "global: {limits: [\N{ARABIC-INDIC DIGIT ONE}/1s]}",
            f"1:19: global.limits[0]: '\N{ARABIC-INDIC DIGIT ONE}/1s', {LIMIT}",
            id="digit of another script",
        ),
        pytest.param(
            "global: {limits: 10/30m}",
            "1:18: global.limits: '10/30m', expected a list of limits such as [10/30m], or [] for unlimited",
            id="no list",
        ),
        pytest.param(
            "global: {limits: }",
            "1:10: global.limits: null, expected a list of limits such as [100/30m], or [] for unlimited",
            id="nothing",
        ),
        pytest.param(
            "global: {limits: [1/1s, [2/1m]]}", f"1:25: global.limits[1]: a list, {LIMIT}", id="list in the list"
        ),
        pytest.param(
            "global:\n  limits:\n    - 1/1s\n    - #x\n",
            f'4:6: global.limits[1]: null, {LIMIT}; # begins a comment, write "#x" in quotes',
            id="comment in the list",
        ),
        pytest.param(
            "global: {limits: [1/1m, 9/1h, 2/60s]}",
            "1:31: global.limits[2]: '2/60s' has the same window as 1/1m, expected each window once",
            id="repeated window",
        ),
        pytest.param(
            f"global: {{limits: [{', '.join(f'{n}/{n}s' for n in range(1, 18))}]}}",
            "1:18: global.limits: a list of 17 limits, expected at most 16",
            id="too many windows",
        ),
        # Other values
        pytest.param(
            "channels: {default: {pace: no}}",
            f"1:28: channels.default.pace: 'no', {PACE}; did you mean none?",
            id="no pace",
        ),
        pytest.param(
            "channels: {default: {pace: false}}",
            f"1:28: channels.default.pace: false, {PACE}; did you mean none?",
            id="false pace",
        ),
        pytest.param(
            "channels: {default: {pace: ~}}",
            f"1:22: channels.default.pace: null, {PACE}; did you mean none?",
            id="null pace",
        ),
        pytest.param(
            "channels: {default: {pace: 10}}", f"1:28: channels.default.pace: 10, {PACE}", id="pace without a window"
        ),
        pytest.param(
            "channels: {default: {pace: [1/1s]}}", f"1:28: channels.default.pace: a list, {PACE}", id="list of paces"
        ),
        pytest.param("defaults: {max_age: 24}", f"1:21: defaults.max_age: 24, {NO_UNIT}", id="max_age without a unit"),
        pytest.param(
            "defaults: {max_age: 400d}", f"1:21: defaults.max_age: '400d', {SPAN_RANGE}", id="max_age too long"
        ),
        pytest.param(
            f"defaults: {{max_age: {'9' * 400}d}}",
            f"1:21: defaults.max_age: '{'9' * 76}..., {SPAN_RANGE}",
            id="max_age beyond numbers",
        ),
        pytest.param(
            "defaults: {on_limit: dead_letter}",
            "1:22: defaults.on_limit: 'dead_letter', expected drop, dead-letter, defer or digest; "
            "did you mean dead-letter?",
            id="underscore for hyphen",
        ),
        pytest.param(
            "categories: {a: {on_ambiguous: [resend]}}",
            "1:32: categories.a.on_ambiguous: a list, expected resend or dead-letter",
            id="on_ambiguous is a list",
        ),
        pytest.param(
            'defaults: {username: ""}', f"1:22: defaults.username: '', {USERNAME}", id="username of no characters"
        ),
        pytest.param(
            f"defaults: {{username: {'a' * 81}}}",
            f"1:22: defaults.username: '{'a' * 76}..., {USERNAME}",
            id="username too long",
        ),
        pytest.param('defaults: {username: "a\\nb"}', f"1:22: defaults.username: 'a\\nb', {USERNAME}", id="two lines"),
        pytest.param(
            "categories:\n  a:\n    username: #ops",
            f'3:5: categories.a.username: null, {USERNAME}; # begins a comment, write "#ops" in quotes',
            id="username is a comment",
        ),
        pytest.param(
            "defaults: {icon_emoji: Bell}",
            f"1:24: defaults.icon_emoji: 'Bell', {EMOJI}; did you mean :bell:?",
            id="emoji without colons",
        ),
        pytest.param("defaults: {icon_emoji: 😀}", f"1:24: defaults.icon_emoji: '😀', {EMOJI}", id="emoji as such"),
        pytest.param("defaults: {icon_emoji: ':a b:'}", f"1:24: defaults.icon_emoji: ':a b:', {EMOJI}", id="no emoji"),
        pytest.param(
            "defaults: {icon_url: http://example.com/a.png}",
            f"1:22: defaults.icon_url: 'http://example.com/a.png', {ICON_URL}",
            id="image without TLS",
        ),
        pytest.param(
            "defaults: {icon_url: 'https://bob:hunter2@example.com/a.png'}",
            f"1:22: defaults.icon_url: 'https://bob:***@example.com/a.png', {ICON_URL}",
            id="image with a password",
        ),
        pytest.param(
            "defaults: {icon_url: 'https://example.com/a b.png'}",
            f"1:22: defaults.icon_url: 'https://example.com/a b.png', {ICON_URL}",
            id="image with a blank",
        ),
        pytest.param(
            "defaults: {icon_url: 'https:///a'}", f"1:22: defaults.icon_url: 'https:///a', {ICON_URL}", id="no host"
        ),
        pytest.param(
            "defaults: {allow_mentions: yes}",
            "1:28: defaults.allow_mentions: 'yes', expected true or false; did you mean true?",
            id="allow_mentions in the words of YAML 1.1",
        ),
        pytest.param(
            "defaults: {allow_mentions: 1}",
            "1:28: defaults.allow_mentions: 1, expected true or false",
            id="not a truth",
        ),
        pytest.param(
            "defaults: {template: '{{ txt }}'}",
            "1:22: defaults.template: '{{ txt }}', txt is no variable here; did you mean text?",
            id="variable of a template",
        ),
        pytest.param(
            "categories:\n  a:\n    template: |\n      *{{ category }}*\n      {{ text | uper }\n",
            "3:15: categories.a.template: '*{{ category }}*\\n{{ text | uper }\\n', in line 2 of it: unexpected '}'",
            id="template of two lines",
        ),
        pytest.param("defaults: {template: ''}", f"1:22: defaults.template: '', {TEMPLATE}", id="empty template"),
        pytest.param(
            "defaults: {template: [a]}", f"1:22: defaults.template: a list, {TEMPLATE}", id="list of templates"
        ),
        pytest.param(
            f"defaults: {{template: {'a' * 4_001}}}",
            f"1:22: defaults.template: '{'a' * 76}... of 4001 characters, expected at most 4000",
            id="template too long",
        ),
        pytest.param(
            "defaults: {on_limit: {}}",
            "1:22: defaults.on_limit: a mapping, expected drop, dead-letter, defer or digest",
            id="on_limit is a mapping",
        ),
        pytest.param(
            "unknown_categories: no",
            "1:21: unknown_categories: 'no', expected accept or reject; did you mean reject?",
            id="no unknown categories",
        ),
        pytest.param(
            "unknown_categories: true",
            "1:21: unknown_categories: true, expected accept or reject; did you mean accept?",
            id="true unknown categories",
        ),
        pytest.param(
            "unknown_categories: [accept]",
            "1:21: unknown_categories: a list, expected accept or reject",
            id="list of words",
        ),
        pytest.param(
            "defaults: {channel: xoxb-1-s3cr3t}",
            f"1:21: defaults.channel: *** (looks like a secret), {CHANNEL}",
            id="secret in the file",
        ),
        pytest.param(
            "defaults: {icon_emoji: xoxb-1-s3cr3t}",
            f"1:24: defaults.icon_emoji: *** (looks like a secret), {EMOJI}",
            id="secret that could be an emoji",
        ),
        # Dead letters
        pytest.param("dead_letters: {max: 0}", f"1:21: dead_letters.max: 0, {COUNT}", id="none kept"),
        pytest.param("dead_letters: {max: 10000001}", f"1:21: dead_letters.max: 10000001, {COUNT}", id="too many kept"),
        pytest.param("dead_letters: {max: true}", f"1:21: dead_letters.max: true, {COUNT}", id="count a truth"),
        pytest.param(
            "dead_letters: {max: 1e3}",
            f"1:21: dead_letters.max: 1000.0, {COUNT}; did you mean 1000?",
            id="count with an exponent",
        ),
        pytest.param(
            "categories: {a: {guarantee: 1e1}}",
            f"1:29: categories.a.guarantee: 10.0, {GUARANTEE}; did you mean 10?",
            id="guarantee with an exponent",
        ),
        pytest.param(
            "global: {limits: [10/0.3333333h]}", f"1:19: global.limits[0]: '10/0.3333333h', {RANGE}", id="7 decimals"
        ),
        pytest.param(
            "defaults: {max_age: .5h}", f"1:21: defaults.max_age: '.5h', {SPAN}", id="no digit before the point"
        ),
        pytest.param(
            "defaults: {fallback: None}",
            f"1:22: defaults.fallback: 'None', {CHANNEL}, or none; did you mean none?",
            id="fallback None",
        ),
        pytest.param(
            "defaults: {fallback: ~}", f"1:12: defaults.fallback: null, {CHANNEL}, or none", id="fallback null"
        ),
        pytest.param(
            "categories:\n  a:\n    once:\n",
            f"3:5: categories.a.once.per: the key is missing, {SPAN}",
            id="empty once, at its key",
        ),
        pytest.param(
            "categories: {a: {once: no}}",
            "1:24: categories.a.once: 'no', expected a mapping such as {per: 4h} or none",
            id="once is no",
        ),
        pytest.param(
            "hooks: {x: {verify: token, secret_file: s, category: c, text: t, timestamp_header: X-At}}",
            "1:84: hooks.x.timestamp_header: 'X-At', expected verify with a signature beside it, since a token signs "
            "no instant",
            id="an instant beside a token",
        ),
        pytest.param("dead_letters: {max: }", f"1:16: dead_letters.max: null, {COUNT}", id="no count"),
        pytest.param("dead_letters: {max: many}", f"1:21: dead_letters.max: 'many', {COUNT}", id="count a word"),
        *(
            pytest.param(
                f"dead_letters: {{max: {text}}}",
                f"1:21: dead_letters.max: '{text.strip(chr(34))}', {COUNT}; did you mean 100000?",
                id=f"count {text}",
            )
            for text in ("100_000", '"100000"', '"100,000"', "100k", "100 000", "100 K")
        ),
        pytest.param(
            "dead_letters: {max_age: 30}", f"1:25: dead_letters.max_age: 30, {NO_UNIT}", id="kept without unit"
        ),
        *(
            pytest.param(
                f"dead_letters: {{max_bytes: {text}}}",
                f"1:27: dead_letters.max_bytes: {said}, {SIZE}{hint}",
                id=f"size {text}",
            )
            for text, said, hint in (
                ("256", "256", ""),
                ("1MB", "'1MB'", ""),
                ("1001GB", "'1001GB'", ""),
                ("1.5GB", "'1.5GB'", ""),
                ("much", "'much'", ""),
                ("256 MB", "'256 MB'", "; did you mean 256MB?"),
                ("256mb", "'256mb'", "; did you mean 256MB?"),
                ("1g", "'1g'", "; did you mean 1GB?"),
                ("256MiB", "'256MiB'", "; did you mean 256MB?"),
                ("1 mb", "'1 mb'", ""),
            )
        ),
        pytest.param(
            "dead_letters: 1000",
            "1:15: dead_letters: 1000, expected a mapping such as {max: 100000, max_age: 30d}",
            id="dead_letters no mapping",
        ),
        # Limits by their parts
        *(
            pytest.param(
                f"global: {{limits: [{{{parts}}}]}}",
                f"1:{column}: global.limits[0]{problem}, expected {expected}",
                id=parts,
            )
            for parts, column, problem, expected in (
                ("max: 20", 19, ": a mapping without window", PARTS),
                ("window: 5m", 19, ": a mapping without max", PARTS),
                ("max: 20, window: 5m, shadows: true", 19, ": a mapping with 'shadows'", PARTS),
                ("max: 20, window: 5m, shadow: yes", 49, ".shadow: 'yes'", "true or false"),
                ("max: '20', window: 5m", 25, ".max: '20'", f"{MAX}; did you mean 20?"),
                ("max: true, window: 5m", 25, ".max: true", MAX),
                ("max: 0, window: 5m, shadow: true", 25, ".max: 0", MAX),
                ("max: 20, window: [5m]", 37, ".window: a list", WINDOW),
                ("max: 20, window: 5min", 37, ".window: '5min'", WINDOW),
            )
        ),
        pytest.param(
            "global: {limits: [{max: 2, window: 5m, shadow: true}, {max: 3, window: 300s, shadow: true}]}",
            "1:55: global.limits[1]: a mapping has the same window as 2/5m, expected each window once",
            id="one shadow twice",
        ),
        # Not available yet
        pytest.param(
            "channels: {default: {pace: 1/1s fixed}}",
            "1:28: channels.default.pace: '1/1s fixed', a pace counts from each answer and cannot be fixed, " + PACE,
            id="fixed pace",
        ),
        # Guarantees
        pytest.param(
            "categories: {a: {guarantee: 0}}",
            "1:29: categories.a.guarantee: 0, expected a whole number from 1 to 10000000, a part of the longest global "
            "window",
            id="no guarantee",
        ),
        pytest.param(
            "defaults: {guarantee: 1}",
            f"1:12: defaults.guarantee: the key is not known, expected one of {RULE_KEYS}",
            id="guarantee for all",
        ),
        pytest.param(
            "global: {limits: []}\ncategories: {a: {guarantee: 1}}",
            "2:29: categories.a.guarantee: 1, a guarantee is a part of the longest global window, and global.limits is "
            "[]",
            id="guarantee of nothing",
        ),
        pytest.param(
            "global: {limits: [{max: 9, window: 1h, shadow: true}]}\ncategories: {a: {guarantee: 1}}",
            "2:29: categories.a.guarantee: 1, a guarantee is a part of the longest global window, and global.limits "
            "has shadow limits alone",
            id="guarantee of what is not enforced",
        ),
        pytest.param(
            "defaults: {once: {by: [], per: 4h}}",
            "1:23: defaults.once.by: an empty list, expected 1 to 8 labels, each once",
            id="once by no label",
        ),
        pytest.param(
            "defaults: {once: {by: host, per: 4h}}",
            f"1:23: defaults.once.by: 'host', {BY}; did you mean [host]?",
            id="once by a label that is no list",
        ),
        pytest.param(
            "defaults: {once: {by: xoxb-1-s3cr3t, per: 4h}}",
            f"1:23: defaults.once.by: *** (looks like a secret), {BY}",
            id="once by a secret",
        ),
        pytest.param(
            f"defaults: {{once: {{by: {'a' * 65}, per: 4h}}}}",
            f"1:23: defaults.once.by: '{'a' * 65}', {BY}",
            id="once by what is too long for a label",
        ),
        pytest.param(
            "defaults: {once: {by: [host, 'a b'], per: 4h}}",
            "1:30: defaults.once.by[1]: 'a b', expected the name of a label, 1 to 64 printable characters without "
            "blank, : and =",
            id="once by what is no label",
        ),
        pytest.param(
            "categories:\n  a: {guarantee: 60}\n  b: {guarantee: 41}",
            "3:18: categories.b.guarantee: 41 makes 101 guaranteed in all, expected at most the 100/30m of "
            "global.limits",
            id="too many guarantees",
        ),
        pytest.param(
            "categories:\n  a: {guarantee: 100, limits: []}\n  b: {}\nunknown_categories: reject",
            "2:3: categories: all 100 of the 100/30m of global.limits are guaranteed, which leaves nothing for b",
            id="nothing left for b",
        ),
        pytest.param(
            "categories:\n  a: {guarantee: 100, limits: []}",
            "2:3: categories: all 100 of the 100/30m of global.limits are guaranteed, which leaves nothing for "
            "categories that are not named; leave some, or set unknown_categories: reject",
            id="nothing left for others",
        ),
        pytest.param(
            "categories: {a: {per_label: {host: 3/10m}}}",
            "1:36: categories.a.per_label.host: '3/10m', expected a list of limits such as [3/10m], or [] for "
            "unlimited",
            id="limit for a label without a list",
        ),
        *(
            pytest.param(
                f"categories: {{a: {{per_label: {{'{name}': [3/10m]}}}}, 'a:b': {{per_label: {{c: [5/10m]}}}}}}",
                f"1:30: categories.a.per_label.{shown}: '{name}', {LABEL}",
                id=f"label named {name!r}",
            )
            for name, shown in (
                ("b:c", "b:c"),
                ("h=a", "'h=a'"),
                ("b c", "'b c'"),
                ("", "''"),
                ("x" * 65, f"'{'x' * 65}'"),
            )
        ),
        pytest.param(
            "categories: {a: {max_parked: 0}}",
            f"1:30: categories.a.max_parked: 0, {COUNT}",
            id="max_parked",
        ),
        pytest.param(
            "decisions: {text: 40}", "1:19: decisions.text: 40, expected 80, or 0 to keep no text", id="decisions text"
        ),
        pytest.param(
            "categories: {a: {on_limit: digest, limits: [5/1m, 1/30m]}}",
            "1:28: categories.a.on_limit: a digest takes one message of the longest window, and 1/30m leaves none for "
            "events; expected a limit of at least 2",
            id="digest with a limit of 1",
        ),
        pytest.param(
            "defaults: {notice: true}\ncategories: {a: {limits: [1/1m]}}",
            "2:26: categories.a.limits: a notice takes one message of the longest window, and 1/1m leaves none for "
            "events; expected a limit of at least 2",
            id="notice with a limit of 1",
        ),
        pytest.param(
            "defaults: {notice: true, limits: [1/1m]}\ncategories: {a: {}}",
            "1:20: defaults.notice: a notice takes one message of the longest window, and 1/1m leaves none for "
            "events; expected a limit of at least 2",
            id="notice by default with a limit of 1",
        ),
        pytest.param(
            "defaults: {notice: true, on_limit: digest}",
            "1:20: defaults.notice: true, but a digest tells of what is suppressed already; expected one of the two",
            id="notice and digest",
        ),
        pytest.param(
            "categories:\n  a: {guarantee: 1, on_limit: digest}\n  b: {guarantee: 99}",
            "2:3: categories: all 100 of the 100/30m of global.limits are guaranteed, which leaves nothing for a",
            id="a guarantee of 1 that is the digest's, and nothing else",
        ),
    ],
)
def test_a_mistake_is_told_with_line_column_key_value_and_expectation(text: str, problem: str) -> None:
    assert "\n".join(problems_of(text)) == problem


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    assert problems_of("""\
global: {limits: [10/30]}
defaults: &d
  on_limit: digests
  channel: #ops
categories:
  errors: {limits: [1/1s, oops], guarantee: -5}
  errors: {}
  deploys: *d
unknown_categories: maybe: not
""") == [
        f"1:19: global.limits[0]: '10/30', {LIMIT}",
        "2:11: defaults: the anchor &d, expected none",
        "3:13: defaults.on_limit: 'digests', expected drop, dead-letter, defer or digest; did you mean digest?",
        f'4:3: defaults.channel: null, {CHANNEL}; # begins a comment, write "#ops" in quotes',
        f"6:27: categories.errors.limits[1]: 'oops', {LIMIT}",
        f"6:45: categories.errors.guarantee: -5, {GUARANTEE}",
        "7:3: categories.errors: stands twice, first in line 6; expected each key once",
        "8:12: categories.deploys: the alias *d, expected the value itself",
        "9:21: unknown_categories: 'maybe', expected accept or reject",
        "9:26: not valid YAML: mapping values are not allowed here",
    ]


def test_all_mistakes_within_one_value_are_told_at_once() -> None:
    found = problems_of("""\
global: {limits: [{max: 0, window: 5x, shadow: yes}]}
defaults: {once: {by: [1, "a b", c], per: 1h}, routes: [{match: [team=a, 5, "x"], channel: "#a"}]}
quiet:
  n: {times: [1, "22:00-07:00", 5-6], days: [monday, 1], zone: UTC, then: drop,
      unless: {priority: x, a: 5}, categories: ["", 2]}
""")
    assert [problem.split(", expected")[0].split(": ", 1)[1] for problem in found] == [
        "global.limits[0].max: 0",
        "global.limits[0].window: '5x'",
        "global.limits[0].shadow: 'yes'",
        "defaults.once.by[0]: 1",
        "defaults.once.by[1]: 'a b'",
        "defaults.routes[0].match[1]: 5",
        "defaults.routes[0].match[2]: 'x'",
        "quiet.n.times[0]: 1",
        "quiet.n.times[2]: '5-6'",
        "quiet.n.days[0]: 'monday'",
        "quiet.n.days[1]: 1",
        "quiet.n.unless.priority: 'x'",
        "quiet.n.unless.a: 5",
        "quiet.n.categories[0]: ''",
        "quiet.n.categories[1]: 2",
    ]


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        pytest.param("", ["1:1: the file is empty, the built-in defaults hold"], id="empty file"),
        pytest.param("# nothing\n", ["1:1: the file is empty, the built-in defaults hold"], id="only comments"),
        pytest.param(
            'categories:\n  no: {}\n  "yes": {}\n  On:\n',
            [
                '2:3: categories.no: read as the category named "no"; if that is meant, write it in quotes',
                '4:3: categories.On: read as the category named "On"; if that is meant, write it in quotes',
            ],
            id="no as a category",
        ),
        pytest.param(
            "channels:\n  #ops: {pace: 1/1s}\n  # ops: a remark\n  #default: {pace: 1/1s}\ndefaults:\n  #x: 1\n",
            ['2:3: channels: #ops is a comment here and sets nothing; if meant, write "#ops" in quotes'],
            id="unquoted #ops as a key",
        ),
        pytest.param(
            "categories:\n  a: {limits: [5/1m, 200/30m]}",
            ["2:22: categories.a.limits[1]: 200/30m can never bind, since global.limits allows no more than 100/30m"],
            id="more than the global limit",
        ),
        pytest.param(
            "global: {limits: [50/30m, 100/1h]}",
            ["1:27: global.limits[1]: 100/1h can never bind, since global.limits allows no more than 50/30m"],
            id="longer window that the shorter one implies",
        ),
        pytest.param(
            "defaults: {limits: [70/1s, 9/1m]}",
            ["1:21: defaults.limits[0]: 70/1s can never bind, since defaults.limits allows no more than 9/1m"],
            id="shorter window with more room",
        ),
        pytest.param("global: {limits: [50/30m, 99/1h]}", [], id="longer window that is tighter"),
        pytest.param("global: {limits: [5/1s, 9000/30m]}", [], id="a second's window does not see what waits"),
        pytest.param("global: {limits: []}\ndefaults: {limits: [999/30m]}", [], id="no global limit"),
        pytest.param(
            "defaults: {icon_url: 'https://a.b/c'}\ncategories: {a: {icon_url: 'https://a.b/d', icon_emoji: ':x:'}}",
            ["2:28: categories.a.icon_url: the image is not shown, since icon_emoji stands beside it"],
            id="two icons",
        ),
        pytest.param("global: {limits: [5/30m]}", [], id="only what stands in the file is warned"),
        pytest.param(
            "categories: {a: {limits: [10/30m], per_label: {host: [10/30m]}}}",
            [
                (
                    "1:55: categories.a.per_label.host[0]: 10/30m can never bind, since categories.a.limits "
                    "allows no more than 10/30m"
                )
            ],
            id="a label with as much as its category",
        ),
        pytest.param(
            "categories: {a: {limits: [], per_label: {host: [10/1m, 5/1h]}}}",
            [
                (
                    "1:49: categories.a.per_label.host[0]: 10/1m can never bind, since "
                    "categories.a.per_label.host allows no more than 5/1h"
                )
            ],
            id="one window of a label beside another",
        ),
        pytest.param(
            "defaults: {per_label: {host: [10/30m]}}\ncategories: {a: {limits: []}}",
            [],
            id="a label of the defaults that binds in a category without limits",
        ),
        pytest.param(
            "defaults: {limits: [9/30m], per_label: {host: [9/30m]}}\ncategories: {a: {}}",
            ["1:48: defaults.per_label.host[0]: 9/30m can never bind, since defaults.limits allows no more than 9/30m"],
            id="a label of the defaults that binds nowhere",
        ),
        pytest.param(
            "global: {limits: [6/1h, 1000/1d fixed]}\ncategories: {a: {guarantee: 3}}",
            [
                "1:25: global.limits[1]: 1000/1d fixed can never bind, since global.limits allows no more than 6/1h",
                (
                    "2:29: categories.a.guarantee: 3 has no effect: 997 of 1000/1d fixed are left for all, and 6/1h "
                    "allows no more"
                ),
            ],
            id="a guarantee of a window that never binds",
        ),
        pytest.param(
            "global: {limits: [6/1h, 140/1d fixed]}\ncategories: {a: {guarantee: 30}}",
            [],
            id="a guarantee that leaves less than the shorter window",
        ),
        pytest.param(
            "defaults: {max_age: 1h}\ncategories: {a: {on_limit: digest, digest_delay: 1h}, b: {digest_delay: 2h}}",
            [
                (
                    "2:50: categories.a.digest_delay: a single suppressed event waits for the digest_delay of 1h; "
                    "its max_age of 1h ends it before"
                ),
            ],
            id="digest_delay as long as max_age",
        ),
        pytest.param(
            "defaults: {once: {by: [dedup_key], per: 4h}}\ncategories: {a: {once: {by: [host, priority], per: 4h}}}",
            [
                "1:24: defaults.once.by[0]: names a label, not the dedup_key of the event; did you mean by: dedup_key?",
                "2:36: categories.a.once.by[1]: names a label, not the priority of the event",
            ],
            id="labels with the names of fields",
        ),
    ],
)
def test_a_warning_has_its_place(text: str, warnings: list[str]) -> None:
    found = read_limits(text, "limits.yaml").warnings
    assert [warning.removeprefix("limits.yaml:") for warning in found] == warnings


@pytest.mark.parametrize("number", [300 * "9", f"0x{298 * 'f'}", f"0o{298 * '7'}", f"1.{298 * '0'}"])
def test_a_number_of_more_than_300_characters_is_text(number: str) -> None:
    longer = f"{number}0"
    assert isinstance(read_yaml(f"a: {number}").data["a"], int | float)
    assert read_yaml(f"a: {longer}").data == {"a": longer}


@given(
    first=st.builds(Limit, st.integers(1, 4), window_us=st.integers(1, 5)),
    second=st.builds(Limit, st.integers(1, 12), window_us=st.integers(1, 12)),
    gaps=st.lists(st.integers(0, 3), min_size=20, max_size=60),
)
def test_a_limit_that_is_implied_never_denies_what_the_other_admits(
    first: Limit, second: Limit, gaps: list[int]
) -> None:
    if not implies(first, second):
        return
    admitted: list[int] = []
    now = 0
    for gap in gaps:
        now += gap
        if sum(at > now - first.window_us for at in admitted) < first.max:
            assert sum(at > now - second.window_us for at in admitted) < second.max
            admitted.append(now)


def test_the_limits_file_that_is_set_is_used_even_if_it_is_missing(tmp_path: Path) -> None:
    assert find_limits_file(Settings.isolated(limits_file="my.yaml"), tmp_path) == tmp_path / "my.yaml"
    assert find_limits_file(Settings.isolated(limits_file="/etc/l.yaml"), tmp_path) == Path("/etc/l.yaml")


def test_the_limits_file_beside_is_used_before_the_packaged_one(tmp_path: Path) -> None:
    assert find_limits_file(Settings.isolated(), tmp_path) == data_file("config", "limits.yaml")
    beside = tmp_path / "config" / "limits.yaml"
    beside.parent.mkdir()
    beside.write_text("")
    assert find_limits_file(Settings.isolated(), tmp_path) == beside


def test_a_folder_that_cannot_be_searched_for_the_limits_file_is_named(tmp_path: Path) -> None:
    nowhere = tmp_path / ("d" * 300)
    with pytest.raises(ConfigError, match=r"d/config/limits.yaml: cannot be looked for: File name too long; set DISP"):
        find_limits_file(Settings.isolated(), nowhere)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(None, ": cannot be read: No such file or directory; expected a limits file", id="missing"),
        pytest.param(b"x" * (MAX_BYTES + 1), f": larger than {MAX_BYTES} bytes, expected a limits file", id="large"),
        pytest.param("a: 1".encode("utf-16"), ":1:1: the file is UTF-16, expected UTF-8", id="utf-16"),
        pytest.param(
            "\ufeffé: {}\nb: é".encode() + b"\xff",
            ":2:5: the byte 0xff is not UTF-8, expected a file in UTF-8",
            id="not utf-8",
        ),
        pytest.param(b"\xff: 1", ":1:1: the byte 0xff is not UTF-8, expected a file in UTF-8", id="latin-1"),
        pytest.param(b"no: 1", ":1:1: no: the key is not known, expected one of global, ", id="key"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_limits(path)
    (found,) = caught.value.problems
    assert found.startswith(f"{path}{problem}")


def test_a_folder_is_no_limits_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory; expected a limits file"):
        load_limits(tmp_path)


def test_the_sample_states_the_built_in_defaults_also_behind_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SAMPLE.encode())
    assert (load_limits(path).policy, load_limits(path).warnings) == (BUILT_IN, ())


def test_the_sample_reads_as_sentences() -> None:
    assert sentences(policy(SAMPLE)) == [
        "All events together: at most 100 in any 30 minutes.",
        (
            "Any category, each separately: at most 10 in any 30 minutes, posted to #notifications; "
            "beyond that the event is dropped with a log line; waits at most 24 hours."
        ),
        "Every channel: at most 10 in any 10 seconds; more wait their turn, none is dropped for it.",
        "Dead letters: at most 100000 are kept, at most 256MB in all, each for at most 30 days; the oldest go first.",
        (
            "Decision record: at most 100000 events that were suppressed, dropped or duplicates, and as many others; "
            "the oldest go first."
        ),
    ]


def test_every_rule_reads_as_a_sentence() -> None:
    found = policy("""
        global: {limits: [5/1s, 60/1m, 100/30m]}
        channels:
          "#ops": {pace: 1/1s}
          "#free": {pace: none}
        categories:
          errors: {limits: [10/90m], channel: "#errors", on_limit: dead-letter, max_age: 1h}
          chatter: {limits: [], max_age: 30d}
        unknown_categories: reject
        dead_letters: {max: 500, max_age: 90m}
        """)
    assert sentences(found) == [
        "All events together: at most 5 in any second, 60 in any minute and 100 in any 30 minutes.",
        (
            "errors: at most 10 in any 90 minutes, posted to #errors; beyond that the event is kept as a dead "
            "letter; waits at most 1 hour."
        ),
        (
            "chatter: no limit of its own, posted to #notifications; beyond the limit of all events together the "
            "event is dropped with a log line; waits at most 30 days."
        ),
        "Any other category: not accepted, its events become dead letters.",
        "Channel #ops: at most 1 in any second; more wait their turn, none is dropped for it.",
        "Channel #free: no pace, messages are posted as they come.",
        "Every other channel: at most 10 in any 10 seconds; more wait their turn, none is dropped for it.",
        "Dead letters: at most 500 are kept, at most 256MB in all, each for at most 90 minutes; the oldest go first.",
        (
            "Decision record: at most 100000 events that were suppressed, dropped or duplicates, and as many others; "
            "the oldest go first."
        ),
    ]


def test_on_ambiguous_of_a_category_wins_over_the_default() -> None:
    found = policy("defaults: {on_ambiguous: dead-letter}\ncategories: {a: {on_ambiguous: resend}, b: {}}")
    assert BUILT_IN.defaults.on_ambiguous is OnAmbiguous.RESEND
    assert {name: found.rule(name).on_ambiguous for name in ("a", "b", "c")} == {
        "a": OnAmbiguous.RESEND, "b": OnAmbiguous.DEAD_LETTER, "c": OnAmbiguous.DEAD_LETTER,
    }  # fmt: skip
    said = [rule.endswith("; one that was perhaps posted is kept as a dead letter.") for rule in sentences(found)[1:4]]
    assert said == [False, True, True]


def test_a_category_inherits_name_and_icon_unless_it_has_an_icon_of_its_own() -> None:
    found = policy("""
        defaults: {username: Bot, icon_url: "https://example.com/a.png"}
        categories:
          a: {username: "Errors & more"}
          b: {icon_emoji: ":woman-running::skin-tone-3:"}
          c: {icon_url: "https://example.com/c.png", username: C}
        """)
    url = "https://example.com/a.png"
    assert {name: found.rule(name).style.identity for name in "abcd"} == {
        "a": Identity("Errors & more", icon_url=url),
        "b": Identity("Bot", ":woman-running::skin-tone-3:"),
        "c": Identity("C", icon_url="https://example.com/c.png"),
        "d": Identity("Bot", icon_url=url),
    }
    assert found.has_identities
    assert (
        'dropped with a log line; shown as "Errors & more" with https://example.com/a.png; waits' in sentences(found)[1]
    )
    assert 'shown as "Bot" with :woman-running::skin-tone-3:;' in sentences(found)[2]
    assert BUILT_IN.defaults.style.identity is None
    assert not BUILT_IN.has_identities
    assert policy("categories: {a: {icon_emoji: ':+1:'}}").has_identities


def test_mentions_are_allowed_where_the_file_says_so() -> None:
    found = policy("defaults: {allow_mentions: true}\ncategories: {a: {allow_mentions: false}, b: {}}")
    assert {name: found.rule(name).style.allow_mentions for name in "abc"} == {"a": False, "b": True, "c": True}
    said = ["; mentions in its events' own markup notify people;" in sentence for sentence in sentences(found)[1:4]]
    assert said == [False, True, True]
    assert not BUILT_IN.defaults.style.allow_mentions


def test_a_template_is_the_category_s_or_the_default_s() -> None:
    found = policy("""
        defaults: {template: "{{ category }}: {{ text }}"}
        categories:
          a: {template: "{{ text }}"}
          b: {}
        """)
    sources = {
        name: rule.style.template and rule.style.template.source for name in "abc" for rule in [found.rule(name)]
    }
    assert sources == {"a": "{{ text }}", "b": "{{ category }}: {{ text }}", "c": "{{ category }}: {{ text }}"}
    assert found == policy(
        "defaults: {template: '{{ category }}: {{ text }}'}\ncategories: {a: {template: '{{ text }}'}, b: {}}"
    )
    assert "; its text is made by a template; waits" in sentences(found)[1]
    assert BUILT_IN.defaults.style.template is None


def test_a_policy_without_limits_says_so() -> None:
    found = policy("global: {limits: []}\ndefaults: {limits: [], max_age: 250ms}\ncategories: {a: {}}")
    assert sentences(found)[:3] == [
        "All events together: no limit.",
        "a: no limit of its own, posted to #notifications; waits at most 250 milliseconds.",
        (
            "Any other category, each separately: no limit of its own, posted to #notifications; "
            "waits at most 250 milliseconds."
        ),
    ]


SIGNS = (
    "\n,  ,    ,- ,: ,:,[,],{,},#, #ops,&a ,*a,!!int ,|\n,>-\n,',\",\\,?,%,@,\t,\r,---\n,...\n,%YAML 1.3\n,"
    "\\x,\\U,\x00,\ufeff,\u2028,é,\x85"
)
WORDS = (
    "~ null no << 0x1f .inf 1e999 global limits channels default pace defaults channel on_limit max_age categories "
    "unknown_categories dead_letters max 100_000 5k guarantee errors 10/30m 200/1h drop digest 24h accept"
)
PIECES = st.sampled_from([*SIGNS.split(","), ", ", *WORDS.split()])


def explained(problems: tuple[str, ...], name: str) -> bool:
    return bool(problems) and all(problem.startswith(f"{name}:") for problem in problems)


def reads_or_explains(text: str) -> None:
    try:
        found = read_limits(text, "limits.yaml").policy
    except ConfigError as error:
        problems = error.problems
    else:
        assert sentences(found)
        return
    assert explained(problems, "limits.yaml")


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_any_text_is_read_or_explained(text: str) -> None:
    reads_or_explains(text)


SLIPS = st.tuples(st.integers(0, len(SAMPLE)), st.integers(0, 12), st.lists(PIECES, max_size=4).map("".join)).map(
    lambda slip: SAMPLE[: slip[0]] + slip[2] + SAMPLE[slip[0] + slip[1] :]
)


@given(SLIPS)
def test_any_slip_of_the_hand_in_the_sample_is_read_or_explained(text: str) -> None:
    reads_or_explains(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_explained(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "limits.yaml"
    path.write_bytes(raw)
    try:
        load_limits(path)
    except ConfigError as error:
        problems = error.problems
    else:
        return
    assert explained(problems, str(path))


# Shadow limits


def test_shadow_limits_stand_beside_those_that_are_enforced() -> None:
    text = (
        "global: {limits: [{max: 50, window: 30m, shadow: true}, 100/30m]}\n"
        "defaults: {limits: [{max: 7, window: 1h}]}\n"
        "categories:\n"
        "  a: {limits: [{max: 20, window: 1d fixed, shadow: true}]}\n"
        "  b: {per_label: {host: [{max: 3, window: 5m, shadow: true}], team: [4/1m], room: []}}\n"
    )
    limits = read_limits(text, "limits.yaml")
    assert limits.warnings == ()
    policy = limits.policy
    assert (policy.global_limits, policy.global_shadows) == ((Limit.parse("100/30m"),), (Limit.parse("50/30m"),))
    assert policy.defaults.limits == (Limit.parse("7/1h"),)
    a, b = policy.rule("a"), policy.rule("b")
    assert (a.limits, a.shadows) == ((), (Limit.parse("20/1d fixed"),))
    assert b.per_label == {"team": (Limit.parse("4/1m"),), "room": ()}
    assert b.label_shadows == {"host": (Limit.parse("3/5m"),)}
    assert [str(scope.name) for scope in policy.shadows("b", {"host": "x"})] == [
        "shadow:global",
        "shadow:label:b:host=x",
    ]
    assert policy.shadows("c") == policy.shadows("b")
    assert policy.has_shadows
    assert not BUILT_IN.has_shadows


def test_a_shadow_limit_neither_binds_nor_makes_another_idle() -> None:
    text = "global: {limits: [{max: 5, window: 1h, shadow: true}, 900/1h]}\ndefaults: {limits: [9/1h]}\n"
    assert read_limits(text, "limits.yaml").warnings == ()
    text = "global: {limits: [5/1m, {max: 900, window: 1h, shadow: true}]}\n"
    assert read_limits(text, "limits.yaml").warnings == ()


def test_a_file_names_ten_thousand_categories_at_most() -> None:
    text = "categories:\n" + "".join(f"  c{n}:\n" for n in range(10_000))
    assert len(policy(text).categories) == 10_000
    with pytest.raises(ConfigError) as caught:
        policy(f"{text}  one-more:\n")
    said = "limits.yaml:2:3: categories: a mapping of 10001 categories, expected at most 10000"
    assert caught.value.problems == (said,)

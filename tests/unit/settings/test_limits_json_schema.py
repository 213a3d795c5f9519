"""The JSON Schema of the limits file: says no to what it can tell is wrong, and never to what is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # ships no types

from dispatcher.data_files import data_file
from dispatcher.errors import ConfigError
from dispatcher.settings.limits_file import read_limits
from dispatcher.settings.limits_json_schema import limits_json_schema
from dispatcher.settings.limits_schema import (
    CategorySection,
    ChannelSection,
    DeadLettersSection,
    DecisionsSection,
    GlobalSection,
    HookSection,
    LimitsFile,
    OnceSection,
    QuietSection,
    RouteSection,
    RuleSection,
    Section,
)
from dispatcher.settings.yaml_reader import read_yaml

SCHEMA = limits_json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
SAMPLE = data_file("config", "limits.yaml").read_text(encoding="utf-8")


def conforms(text: str) -> bool:
    return bool(VALIDATOR.is_valid(read_yaml(text).data))


def is_read(text: str) -> bool:
    try:
        read_limits(text, "limits.yaml")
    except ConfigError:
        return False
    return True


def parts(schema: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a piece of JSON
    """Every object within a schema."""
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from parts(part)


def test_the_schema_is_valid_for_draft_2020_12() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(SCHEMA)


def test_the_sample_conforms_with_and_without_the_hash_before_its_examples() -> None:
    assert conforms(SAMPLE)
    text = SAMPLE.replace('  # "#ops"', '  "#ops"')
    for key in ("errors:", "  limits: [3/1m", '  channel: "#errors"', "  on_limit: dead-letter"):
        text = text.replace(f"  # {key}", f"  {key}")
    assert "errors" in read_yaml(text).data["categories"]
    assert conforms(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("global:\nchannels:\n  '#a':\ndefaults:\ncategories:\n  a:\ndead_letters:\n", id="nothing in it"),
        pytest.param("global: {limits: []}", id="unlimited"),
        pytest.param("global: {limits: [{max: 20, window: 5m, shadow: true}, 100/1h]}", id="shadow"),
        pytest.param("defaults: {limits: [{max: 20, window: 1.5h fixed}]}", id="by its parts"),
        pytest.param("global: {limits: [10000000/366d, 1/0.5s, 007/1ms]}", id="edges of limits"),
        pytest.param("channels: {default: {pace: none}, C0123ABCD: {pace: 1/1s}}", id="channels"),
        pytest.param("categories: {no: {}, 'a.b:c_-': {max_age: 1.5h}}", id="names of categories"),
        pytest.param("defaults: {on_ambiguous: dead-letter}", id="on_ambiguous"),
        pytest.param("defaults: {username: Bob, icon_emoji: ':+1::skin-tone-2:'}", id="name and emoji"),
        pytest.param("defaults: {icon_url: 'https://example.com/a.png?b=c'}", id="image"),
        pytest.param("defaults: {allow_mentions: true}", id="mentions"),
        pytest.param(
            "defaults: {template: '*{{ category }}* {{ text }}'}\ncategories: {a: {template: none}}", id="template"
        ),
        pytest.param("dead_letters: {max: 10000000, max_age: 366d, max_bytes: 1000GB}", id="bounds"),
        pytest.param("defaults: {on_limit: digest, digest_delay: 5m}", id="digest"),
        pytest.param("quiet: {n: {times: ['22:00-07:00', 12:00-24:00], zone: UTC, then: drop}}", id="quiet hours"),
        pytest.param(
            "quiet: {n: {times: [00:00-01:00], days: [mon-fri, sun], zone: Europe/Berlin, categories: [a, b], "
            "unless: {priority: high, a: b*|c}, then: defer}}",
            id="quiet hours with all keys",
        ),
        pytest.param("defaults: {fallback: '#ops'}\ncategories: {a: {fallback: none}}", id="fallback"),
        pytest.param("defaults: {routes: [{match: a=b host!= team=db|web x=*, channel: '#a'}]}", id="route"),
        pytest.param("defaults: {routes: [{match: ['a=b c', x!=y*], channel: C0123ABCD}]}", id="route with a list"),
        pytest.param("defaults: {notice: true}\ncategories: {a: {notice: false}}", id="notice"),
        pytest.param("defaults: {once: {per: 4h}}\ncategories: {a: {once: {by: [x, y], per: 1h}}}", id="once"),
        pytest.param(
            "categories: {a: {once: none, username: none, icon_emoji: none}, b: {icon_url: none}}", id="none of these"
        ),
        pytest.param("defaults: {resolved: ignore, resolved_while_waiting: post}", id="resolved"),
    ],
)
def test_valid_limits_conform_to_the_schema(text: str) -> None:
    assert is_read(text)
    assert conforms(text)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "rules: {}",
        "global: 100/30m",
        "global: {limit: [100/30m]}",
        "global: {limits: 100/30m}",
        "global: {limits: [100]}",
        "global: {limits: [10 per minute]}",
        "global: {limits: [10/30]}",
        "global: {limits: [10/30min]}",
        "global: {limits: [0/30m]}",
        "global: {limits: [10000001/30m]}",
        "global: {limits: [10/0m]}",
        "global: {limits: [10/0.0s]}",
        "global: {limits: [-1/1m]}",
        "global: {limits: [1.5/1m]}",
        "global: {limits: ['1/1m ']}",
        "global: {limits: [1/1m, 1/1m]}",
        f"global: {{limits: [{', '.join(f'1/{n}s' for n in range(1, 18))}]}}",
        "global: {limits: [{max: 20, window: 5m, shadow: on}]}",
        "global: {limits: [{max: 0, window: 5m}]}",
        "global: {limits: [{max: 20, window: 5min}]}",
        "global: {limits: [{max: 20, shadow: true}]}",
        "global: {limits: [{max: 20, window: 5m, fixed: true}]}",
        "channels: {'#ops': {pace: {max: 1, window: 1s}}}",
        "global: {limits: [100/1h aligned]}",
        "channels: {'#ops': {pace: 1/1s fixed}}",
        "channels: {ops: {pace: 1/1s}}",
        "channels: {'#ops': {pace: off}}",
        "channels: {'#ops': {pace: [1/1s]}}",
        "channels: {'#ops': {limits: [1/1s]}}",
        "defaults: {channel: ops}",
        "defaults: {channel: '#a b'}",
        "defaults: {channel: no}",
        "defaults: {max_parked: 0}",
        "defaults: {template: 7}",
        "defaults: {template: ''}",
        f"defaults: {{template: {'a' * 4_001}}}",
        "defaults: {allow_mentions: yes}",
        "defaults: {username: ''}",
        "defaults: {username: }",
        "defaults: {icon_emoji: bell}",
        "defaults: {icon_url: 'http://example.com/a.png'}",
        "defaults: {on_ambiguous: drop}",
        "defaults: {on_limit: digests}",
        "defaults: {digest_delay: 60}",
        "quiet: {n: {zone: UTC, then: drop}}",
        "quiet: {n: {times: [], zone: UTC, then: drop}}",
        "quiet: {n: {times: [22-07], zone: UTC, then: drop}}",
        "quiet: {n: {times: ['24:00-07:00'], zone: UTC, then: drop}}",
        "quiet: {n: {times: ['22:00-07:00'], zone: 'Europe Berlin', then: drop}}",
        "quiet: {n: {times: ['22:00-07:00'], zone: UTC, then: wait}}",
        "quiet: {n: {times: ['22:00-07:00'], zone: UTC, then: drop, days: [weekdays]}}",
        "quiet: {n: {times: ['22:00-07:00'], zone: UTC, then: drop, categories: []}}",
        "quiet: {n: {times: ['22:00-07:00'], zone: UTC, then: drop, unless: [high]}}",
        "quiet: {n: {times: ['22:00-07:00'], zone: UTC, then: drop, unless: {a: 1}}}",
        "quiet: {n: {times: ['22:00-07:00'], zone: UTC, then: drop, unless: {a: '!=b'}}}",
        "quiet: {n: {times: ['22:00-07:00'], zone: UTC, then: drop, until: x}}",
        "defaults: {once: no}",
        "defaults: {once: }",
        "defaults: {routes: [null]}",
        "quiet: {n: }",
        "hooks: {n: }",
        "quiet: {'a b': {times: ['22:00-07:00'], zone: UTC, then: drop}}",
        "defaults: {fallback: ops}",
        "defaults: {fallback: }",
        "defaults: {routes: {match: a=b, channel: '#a'}}",
        "defaults: {routes: [{match: a=b}]}",
        "defaults: {routes: [{match: a, channel: '#a'}]}",
        "defaults: {routes: [{match: =a, channel: '#a'}]}",
        "defaults: {routes: [{match: a=~b, channel: '#a'}]}",
        "defaults: {routes: [{match: [], channel: '#a'}]}",
        "defaults: {routes: [{match: {a: b}, channel: '#a'}]}",
        "defaults: {routes: [{match: a=b, channel: '#a', to: '#b'}]}",
        "defaults: {on_limit: Drop}",
        "defaults: {max_age: 24}",
        "defaults: {max_age: 0s}",
        "defaults: {max_age: a day}",
        "defaults: {notice: yes}",
        "categories: [errors]",
        "categories: {'a b': {}}",
        f"categories: {{{', '.join(f'c{n}: ' for n in range(10_001))}}}",
        "categories: {-a: {}}",
        f"categories: {{{'a' * 65}: {{}}}}",
        "categories: {errors: {guarantee: 0}}",
        "defaults: {guarantee: 5}",
        "categories: {errors: {per_label: {host: 3/10m}}}",
        "categories: {errors: {per_label: [host]}}",
        "categories: {errors: {limitz: []}}",
        "unknown_categories: yes",
        "unknown_categories:",
        "dead_letters: 1000",
        "dead_letters: {max: 0}",
        "dead_letters: {max: 100_000}",
        "dead_letters: {max: true}",
        "dead_letters: {max: 1.5}",
        "dead_letters: {max_age: forever}",
        "dead_letters: {age: 1d}",
        "dead_letters: {max_bytes: 256}",
        "dead_letters: {max_bytes: 256mb}",
        "decisions: {max: 0}",
        "decisions: {text: 40}",
        "decisions: {max_age: 1d}",
    ],
)
def test_refused_limits_do_not_conform_to_the_schema(text: str) -> None:
    assert not is_read(text)
    assert not conforms(text)


@pytest.mark.parametrize(
    "text",
    [
        "global: {limits: [1/367d]}",
        "global: {limits: [1/1m, 2/60s]}",
        "defaults: {template: '{{ a }}'}",
        'defaults: {channel: "#a\\u200b"}',
        "quiet: {n: {times: ['22:00-22:00'], zone: UTC, then: drop}}",
        "quiet: {n: {times: ['22:00-07:00'], zone: Europe/Atlantis, then: drop}}",
        "quiet: {n: {times: ['00:00-24:00'], zone: UTC, then: drop}}",
        "defaults: {routes: [{match: priority=urgent, channel: '#a'}]}",
        "defaults: {routes: [{match: a=b c=, channel: '#a'}, {match: a=b c, channel: '#a'}]}",
    ],
)
def test_faults_that_a_schema_cannot_express_are_refused_only_by_the_reader(text: str) -> None:
    assert not is_read(text)
    assert conforms(text)


@given(
    st.one_of(
        st.from_regex(r"[0-9]{1,9}(?:\.[0-9])?/[0-9]{1,3}(?:\.[0-9]{1,2})?(?:ms|s|m|h|d)", fullmatch=True),
        st.text("0159./ smhdfixe", max_size=12),
    )
)
@example("0/1s")
@example("00000000000001/1s")
def test_the_shape_of_a_limit_is_never_stricter_than_its_reader(limit: str) -> None:
    text = f'{{"global": {{"limits": ["{limit}"]}}}}'
    assert not is_read(text) or conforms(text)


def test_every_key_that_may_stand_there_is_described_and_no_other() -> None:
    """Keys that the limits file may not have are not in it: an editor would offer them."""
    classes: dict[str, type[Section]] = {
        each.__name__: each
        for each in (
            GlobalSection,
            ChannelSection,
            OnceSection,
            RouteSection,
            RuleSection,
            CategorySection,
            DeadLettersSection,
            DecisionsSection,
            QuietSection,
            HookSection,
        )
    }
    assert list(SCHEMA["properties"]) == LimitsFile.key_names()
    assert SCHEMA["$defs"].keys() == classes.keys()
    for name, section in classes.items():
        assert list(SCHEMA["$defs"][name]["properties"]) == section.key_names()
    for described in (part["properties"] for part in parts(SCHEMA) if "properties" in part):
        assert all(key["description"] for key in described.values())
    assert all(part["title"] and part["examples"] for part in parts(SCHEMA) if "pattern" in part)

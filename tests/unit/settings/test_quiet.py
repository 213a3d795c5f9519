"""Quiet hours of the limits file: what they say in words, when they come next, and what is wrong with them."""

from __future__ import annotations

from datetime import datetime
from importlib.resources import files
from pathlib import Path

import pytest

from dispatcher.core.matchers import parse_matcher
from dispatcher.core.quiet import Quiet, QuietThen, Times
from dispatcher.core.units import US
from dispatcher.errors import ConfigError
from dispatcher.settings import zones
from dispatcher.settings.describe import next_quiet_sentences, sentences
from dispatcher.settings.limits_file import read_limits
from dispatcher.settings.zones import zone_names, zone_of

TEXT = """\
categories: {deploys: , chatter: }
quiet:
  nights: {times: ["22:00-07:00"], days: [mon-fri], zone: Europe/Berlin, categories: [deploys, chatter],
           unless: {severity: critical|page, priority: high}, then: digest}
  lunch: {times: ["12:00-13:00", "12:30-00:00"], days: [sat-mon, wed], zone: UTC, then: defer}
  dawn: {times: ["05:00-06:00"], zone: Asia/Kolkata, then: drop}
"""


def test_every_key_is_read() -> None:
    nights, lunch, dawn = read_limits(TEXT, "limits.yaml").policy.quiet
    assert nights == Quiet(
        "nights",
        (Times(1_320, 420),),
        "Europe/Berlin",
        zone_of("Europe/Berlin"),
        QuietThen.DIGEST,
        frozenset(range(5)),
        ("chatter", "deploys"),
        (parse_matcher("priority=high"), parse_matcher("severity=critical|page")),
    )
    assert (lunch.times, lunch.days) == ((Times(720, 780), Times(750, 1_440)), frozenset({5, 6, 0, 2}))
    assert (dawn.days, dawn.categories, dawn.unless) == (frozenset(range(7)), None, ())


def test_quiet_hours_read_as_sentences() -> None:
    found = [each for each in sentences(read_limits(TEXT, "limits.yaml").policy) if each.startswith("Quiet")]
    assert found == [
        (
            "Quiet hours nights: from 22:00 to 07:00 on Monday to Friday, by the clock of Europe/Berlin, for chatter "
            "and deploys, unless priority is high or severity is critical or page; events are counted, and one message "
            "in each category's channel tells of them at the end."
        ),
        (
            "Quiet hours lunch: from 12:00 to 13:00 and from 12:30 to 24:00 on Monday, Wednesday and Saturday to "
            "Sunday, by the clock of UTC, for all categories; events wait for the end, and then go as there is room, "
            "whatever happens to others over a limit."
        ),
        (
            "Quiet hours dawn: from 05:00 to 06:00 on every day, by the clock of Asia/Kolkata, for all categories; "
            "events are dropped with a log line."
        ),
    ]


def test_it_is_said_when_they_come_next_by_the_clock_of_their_zone() -> None:
    policy = read_limits(TEXT, "limits.yaml").policy
    friday_us = round(datetime.fromisoformat("2026-10-23T20:30:00+00:00").timestamp()) * US
    assert next_quiet_sentences(policy, friday_us) == [
        "Quiet hours nights: now, since 2026-10-23 22:00, until 2026-10-24 07:00 (Europe/Berlin).",
        "Quiet hours lunch: next from 2026-10-24 12:00 until 2026-10-25 00:00 (UTC).",
        "Quiet hours dawn: next from 2026-10-24 05:00 until 2026-10-24 06:00 (Asia/Kolkata).",
    ]


def hours(**keys: str) -> str:
    said = {"times": '["22:00-07:00"]', "zone": "UTC", "then": "drop"} | keys
    return f"quiet:\n  n: {{{', '.join(f'{key}: {value}' for key, value in said.items())}}}\n"


THEN = "expected digest, defer or drop"
TIMES = "expected two times of day such as 22:00-07:00"
DAY = "expected mon, tue, wed, thu, fri, sat or sun, or a span of them such as mon-fri"
ZONE = "expected a time zone such as Europe/Berlin or UTC"
A_PLACE = "write a place instead of an offset"
OFFSETS = ("GMT+1", "UTC+2", "utc +05:30", "+02:00", "-3")
HOURS = '{times: ["22:00-07:00"], zone: Europe/Berlin, then: digest}'
KEYS = "times, days, zone, categories, unless, then"
LISTED = "expected a list of categories such as [deploys, chatter]"
LIST = 'expected a list of times of day such as ["22:00-07:00"]'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (hours(times='["22:00-7:00"]'), f"n.times[0]: '22:00-7:00', {TIMES}"),
        (hours(times='["01:00-02:00", 7]'), f"n.times[1]: 7, {TIMES}"),
        (hours(times='["25:00-07:00"]'), f"n.times[0]: '25:00-07:00', {TIMES}"),
        (
            hours(times='["00:00-24:00", "07:00-07:00"]'),
            "n.times[1]: '07:00-07:00', expected two times of day; a whole day is 00:00-24:00",
        ),
        (
            hours(times='["00:00-00:00"]'),
            "n.times[0]: '00:00-00:00', expected two times of day; a whole day is 00:00-24:00",
        ),
        (hours(times='"22:00-07:00"'), f"n.times: '22:00-07:00', {LIST}"),
        (hours(times="[]"), f"n.times: an empty list, {LIST}"),
        (hours(days="[monday]"), f"n.days[0]: 'monday', {DAY}; did you mean mon?"),
        (hours(days="[mon-fry]"), f"n.days[0]: 'mon-fry', {DAY}"),
        (hours(days="mon-fri"), "n.days: 'mon-fri', expected a list of days such as [mon-fri, sun]"),
        (hours(zone="berlin"), f"n.zone: 'berlin', {ZONE}; did you mean Europe/Berlin?"),
        (hours(zone="europe/berlin"), f"n.zone: 'europe/berlin', {ZONE}; did you mean Europe/Berlin?"),
        (hours(zone="../../etc/passwd"), f"n.zone: '../../etc/passwd', {ZONE}"),
        (hours(zone="2"), f"n.zone: 2, {ZONE}"),
        *((hours(zone=f"'{offset}'"), f"n.zone: '{offset}', {ZONE}; {A_PLACE}") for offset in OFFSETS),
        (hours(zone="CEST"), f"n.zone: 'CEST', {ZONE}"),
        (hours(zone="utc"), f"n.zone: 'utc', {ZONE}; did you mean UTC?"),
        (hours(zone="Europe"), f"n.zone: 'Europe', {ZONE}"),
        (hours(then="defers"), "n.then: 'defers', expected digest, defer or drop; did you mean defer?"),
        (hours(categories="deploys"), f"n.categories: 'deploys', {LISTED}"),
        (
            hours(categories="[a b]"),
            "n.categories[0]: 'a b', expected 1 to 64 of A-Z a-z 0-9 _ . : - beginning with a letter or digit",
        ),
        (hours(unless="{priority: urgent}"), "n.unless.priority: 'urgent', expected high, normal or low"),
        (hours(unless="{level: 3}"), "n.unless.level: 3, expected a value as text; write numbers in quotes"),
        (
            hours(unless='{severity: "!=info"}'),
            ("n.unless.severity: '!=info', expected the values of the events that are posted, such as critical|page; "
            "! negates none"),
        ),
        (hours(unless="{a=b: c}"), "n.unless.'a=b': 'c', expected a name without = and !"),
        (hours(unless="[high]"), "n.unless: a list, expected a mapping such as {priority: high, severity: critical}"),
        (hours(until="x"), f"n.until: the key is not known, expected one of {KEYS}"),
        (
            "quiet: {n: 22:00-07:00}",
            f"n: '22:00-07:00', expected a mapping such as {HOURS}",
        ),
        ("quiet: {n: {times: ['22:00-07:00'], zone: UTC}}", f"n.then: the key is missing, {THEN}"),
        (hours(times='["00:00-24:00"]'), "n.times: never end, expected a time of the week that is not quiet"),
        (
            hours(times='["07:00-22:00", "22:00-07:00"]'),
            "n.times: never end, expected a time of the week that is not quiet",
        ),
        (
            hours(times='["00:00-12:00"]', then="digest")
            + '  o: {times: ["12:00-24:00"], zone: UTC, categories: [a], then: digest}\n',
            "o.times: never end together with n, expected a time of the week that is not quiet",
        ),
        (
            hours(times='["00:00-12:00"]', then="defer", unless="{priority: high}")
            + '  o: {times: ["12:00-24:00"], zone: UTC, unless: {priority: low}, then: defer}\n',
            "o.times: never end together with n, expected a time of the week that is not quiet",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_told(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_limits(text, "limits.yaml")
    (said,) = caught.value.problems
    assert said.partition(": ")[2] == f"quiet.{problem}"


@pytest.mark.parametrize(
    ("text", "of"),
    [
        pytest.param(
            "categories: {a: {max_age: 9h}}\n" + hours(then="defer", categories="[a]"),
            "a for up to 9h without a break, and its max_age is 9h",
            id="as long as the night",
        ),
        pytest.param(
            "categories: {a: {max_age: 10h}}\n" + hours(then="defer", categories="[a]", zone="Europe/Berlin"),
            "a for up to 10h without a break, and its max_age is 10h",
            id="the night in which the clocks are set back",
        ),
        pytest.param(
            "defaults: {max_age: 5h}\ncategories: {a: {max_age: 1d}}\n" + hours(then="defer"),
            "any other category for up to 9h without a break, and its max_age is 5h",
            id="the defaults",
        ),
        pytest.param(
            "defaults: {max_age: 30h}\n"
            "quiet:\n"
            "  nights: {times: ['22:00-07:00'], zone: UTC, then: defer}\n"
            "  sundays: {times: ['00:00-24:00'], days: [sun], zone: UTC, then: defer}\n",
            "any other category for up to 33h without a break, and its max_age is 30h",
            id="two together",
        ),
        pytest.param(
            "quiet:\n"
            "  nights: {times: ['22:00-07:00'], days: [mon-fri], zone: UTC, then: defer}\n"
            "  weekends: {times: ['00:00-24:00'], days: [sat, sun], zone: UTC, then: drop}\n",
            "any other category for up to 50h without a break, and its max_age is 1d",
            id="the hours that follow drop others",
        ),
        pytest.param(
            "defaults: {max_age: 4h}\n"
            "quiet:\n"
            "  noon: {times: ['12:00-14:00', '14:00-16:00'], zone: UTC, then: defer}\n"
            "  work: {times: ['09:00-17:00'], zone: UTC, unless: {priority: high}, then: drop}\n",
            "any other category for up to 4h without a break, and its max_age is 4h",
            id="what longer hours exempt",
        ),
    ],
)
def test_what_would_wait_for_longer_than_it_may_is_refused(text: str, of: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_limits(text, "limits.yaml")
    (said,) = caught.value.problems
    assert said.endswith(f".times: hold events of {of}; expected a longer max_age, or shorter hours")


@pytest.mark.parametrize(
    "text",
    [
        "categories: {a: {max_age: 10h}}\n" + hours(then="defer", categories="[a]"),
        "categories: {a: {max_age: 1h}}\n" + hours(then="drop"),
        "categories: {a: {max_age: 1h}}\n" + hours(then="digest", categories="[a]"),
        "defaults: {max_age: 1h}\ncategories: {a: {max_age: 1d}}\n" + hours(then="defer", categories="[a]"),
        hours(times='["12:00-13:00"]', then="defer")
        + "  o: {times: ['00:00-24:00'], days: [sun], zone: UTC, then: drop}",
        "defaults: {max_age: 4h}\n"
        + hours(times='["12:00-13:00"]', then="defer")
        + "  o: {times: ['12:00-18:00'], days: [fri], zone: UTC, then: digest}",
        "unknown_categories: reject\ndefaults: {max_age: 1h}\ncategories: {a: {max_age: 1d}}\n" + hours(then="defer"),
    ],
)
def test_what_waits_for_less_is_not(text: str) -> None:
    assert read_limits(text, "limits.yaml").policy.quiet


def test_hours_with_another_unless_count_by_themselves() -> None:
    """There may be no event for which both hold."""
    text = hours(times='["08:00-20:00"]', unless="{severity: critical|error}", then="drop")
    text += '  o: {times: ["20:00-08:00"], zone: UTC, categories: [a], unless: {severity: critical}, then: defer}\n'
    read_limits(text, "limits.yaml")
    with pytest.raises(ConfigError):
        read_limits(text.replace("critical|error", "critical"), "limits.yaml")


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "categories: {chatter: }\n" + hours(categories="[chattr]"),
            "quiet.n.categories: 'chattr' is not among the categories; did you mean chatter?",
        ),
        (
            "unknown_categories: reject\ncategories: {chatter: }\n" + hours(categories="[deploys]"),
            "quiet.n.categories: 'deploys' is not among the categories",
        ),
        (hours(unless='{priority: "*"}'), "quiet.n.unless: exempts every event, so these hours hold for none"),
    ],
)
def test_hours_for_nobody_get_a_warning(text: str, warning: str) -> None:
    (said,) = read_limits(text, "limits.yaml").warnings
    assert said.partition(": ")[2] == warning


def test_hours_for_a_category_that_is_not_named_get_none() -> None:
    assert read_limits("categories: {errors: }\n" + hours(categories="[deploys]"), "limits.yaml").warnings == ()


def test_the_rules_of_zones_are_those_that_come_with_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONTZPATH", "/nowhere")
    assert len(zone_names()) > 500
    assert zone_of("Europe/Berlin") is zone_of("Europe/Berlin")
    with pytest.raises(ValueError, match="tzdata knows no zone 'Europe/Atlantis'"):
        zone_of("Europe/Atlantis")


def test_a_disk_that_knows_no_case_makes_no_other_names_of_zones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The version of the limits would be read by workers on other disks."""
    packaged = files("tzdata")
    berlin = tmp_path / "zoneinfo" / "europe" / "berlin"
    berlin.parent.mkdir(parents=True)
    berlin.write_bytes(packaged.joinpath("zoneinfo", "Europe", "Berlin").read_bytes())
    (tmp_path / "zones").write_bytes(packaged.joinpath("zones").read_bytes())
    monkeypatch.setattr(zones, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match="tzdata knows no zone 'europe/berlin'"):
        zone_of("europe/berlin")

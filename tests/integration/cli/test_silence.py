"""``dispatcher silence``: what it asks for, what it says, and what ``status`` and ``doctor`` show of it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from dispatcher.core.matchers import parse_matchers
from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.store.audit import Audit
from dispatcher.store.silences import Silencing, Wanted
from tests.support.commands import run
from tests.support.dead_letters import KEYS
from tests.support.in_process import InProcess
from tests.support.servers import Database

ADD = ("silence", "add", "severity!=critical", "host=db1", "--for", "2h", "--why", "db1 moves")
MATCHERS = ["host=db1", "severity!=critical"]


@pytest.fixture
def inside(inside: InProcess, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    monkeypatch.setenv("TZ", "UTC")
    return inside


def listed(inside: InProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = inside.json("silence", "list")["silences"]
    return found


@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_list_of_silences_fits_and_breaks_between_words(
    inside: InProcess, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    inside(
        "silence", "add", "host=db1", "team=storage", "--for", "2h", "--why", "the disks of db1 move to the other host"
    )
    said = inside("silence", "list").out
    assert max(map(len, said.splitlines())) <= width
    assert {"host=db1", "team=storage", "disks", "db1", "move", "other"} <= set(said.split())


def test_a_silence_is_added_listed_shown_and_expired(redis: Database, inside: InProcess) -> None:
    added = inside(*ADD)
    assert (added.code, added.out.rpartition(" until ")[0]) == (
        0, "silence 1: host is db1, and severity is not critical;",
    )  # fmt: skip
    (row,) = listed(inside)
    assert (set(row), row["until"] - row["from"]) == (
        {"id", "matchers", "why", "who", "from", "until", "ends", "suppressed"}, 7_200,
    )  # fmt: skip
    assert (row["id"], row["matchers"], row["why"], row["suppressed"]) == ("1", MATCHERS, "db1 moves", 0)
    assert row["who"].startswith("ops@")
    shown = inside("silence", "show", "1").out
    assert "Silenced is what matches: host is db1, and severity is not critical.\n" in shown
    assert shown.endswith("0 suppressed.\n")
    heading, _, silence = inside("silence", "list").out.splitlines()
    assert re.match(r"Id +Silenced is what matches +From \(.+\) +Until \(.+\) +Suppressed +By +Why$", heading)
    assert re.match(r"1 +host=db1 severity!=critical +[0-9: -]+  0 +ops@\S+ +db1 moves$", silence)
    assert inside("silence", "expire", "1").out == "silence 1 has ended\n"
    again = inside("silence", "expire", "1")
    assert (again.code, again.out, "there is no silence '1'" in again.err) == (1, "", True)
    assert inside("silence", "show", "1").code == 1
    assert (listed(inside), inside("silence", "list").out) == ([], "")
    trail = Audit(redis, KEYS).newest()
    assert [(each["what"], each["about"], each["why"], each["whence"]) for each in reversed(trail)] == [
        ("silence add", "1: host=db1 severity!=critical", "db1 moves", "cli"),
        ("silence expire", "1", "", "cli"),
    ]


def test_all_that_a_silence_may_be_is_stored_and_told(inside: InProcess) -> None:
    facts = ("--start", "30m", "--until-resolved", "--end-if-idle", "1h", "--no-report")
    added = inside.json(*ADD, *facts)
    assert added["from"] == pytest.approx(time.time() + 1_800, abs=60)
    shown = inside.json("silence", "show", "1")
    assert (shown["until_resolved"], shown["end_if_idle_s"], shown["reports"], shown["firing"]) == (
        True, 3_600, False, None,
    )  # fmt: skip
    assert (shown["ends"], added["ends"]) == (shown["from"] + 3_600, added["from"] + 3_600)
    said = inside("silence", "show", "1").out
    assert "it ends earlier when nothing matched for 1h or when nothing of it is firing any more; at " in said
    assert re.search(r"; at \S+ \S+ UTC if nothing more matches\.\n", said)
    heading, _, row = inside("silence", "list").out.splitlines()
    assert re.search(r"\d, if idle [0-9: -]+  0 ", row), (heading, row)
    assert said.endswith("No report is posted at its end.\n")
    later = inside.json(*ADD, "--start", "2099-11-21T22:00")
    assert later["from"] == 4_098_981_600


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "host=db1", "--why", "x"), "A silence without an end: say --for how long"),
        (("add", "host=db1", "--for", "2h"), "A silence without a reason: say --why"),
        (("add", "--for", "2h", "--why", "x"), "expected matchers such as host=db1 severity!=critical"),
        (("add", "category=*", "host=*", "--for", "2h", "--why", "x"), "it would match everything"),
        (("add", "host~db1", "--for", "2h", "--why", "x"), "expected NAME=VALUE or NAME!=VALUE"),
        (("add", "host=~db.*", "--for", "2h", "--why", "x"), "there are no regular expressions"),
        (("add", "host=db1", "--for", "0", "--why", "x"), "'--for': '0', expected a span longer than zero"),
        (
            ("add", "host=db1", "--for", "1h", "--why", "x", "--end-if-idle", "0"),
            "'0', expected a span longer than zero",
        ),
        (("add", "host=db1", "--for", "4000d", "--why", "x"), "it would last too long, expected at most 3650d"),
        (("add", "host=db1", "--for", "1h", "--why", "x", "--start", "2101-01-01"), "it would begin too late"),
        (("add", "host=db1", "--for", "2h", "--why", "x", "--start", "yesterday"), "expected a time such as 30m"),
        (("preview",), "expected matchers such as host=db1 severity!=critical"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_silence_that_is_not_complete_is_refused(inside: InProcess, arguments: tuple[str, ...], said: str) -> None:
    result = inside("silence", *arguments)
    assert (result.code, result.out) == (2, "")
    assert said in " ".join(result.err.replace("│", "").split())
    assert listed(inside) == []


@pytest.mark.parametrize(
    ("matchers", "said"),
    [
        (
            ("category=erorrs|errors", "host=db1"),
            "no event of category erorrs was counted so far, and the limits do not name it; did you mean errors?",
        ),
        (("host=db1", "host!=db*"), "host!=db* host=db1 can never match, since its matchers contradict each other"),
    ],
    ids=["a category that nobody knows", "a contradiction"],
)
def test_a_silence_that_seems_to_match_nothing_is_added_with_a_warning(
    inside: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matchers: tuple[str, ...], said: str
) -> None:
    (tmp_path / "limits.yaml").write_text("categories: {errors: {}}\n", encoding="utf-8")
    monkeypatch.setenv("DISPATCHER_LIMITS_FILE", str(tmp_path / "limits.yaml"))
    result = inside("silence", "add", *matchers, "--for", "2h", "--why", "x")
    assert result.code == 0
    assert [line for line in result.err.splitlines() if "warning" in line] == [f"dispatcher: warning: {said}"]


def test_more_than_200_are_refused(redis: Database, inside: InProcess) -> None:
    silencing = Silencing(redis, KEYS)
    for n in range(200):
        silencing.begin(Wanted(parse_matchers(f"host=db{n}"), 3_600 * US, "anna", "x"))
    for command in (ADD, ("mute", "errors", "--for", "1h", "--why", "x")):
        result = inside(*command)
        assert (result.code, "there are 200 silences already" in result.err) == (1, True)


def test_status_and_doctor_say_what_is_silenced_and_unmute_ends_a_silence_of_the_category(inside: InProcess) -> None:
    inside(*ADD)
    inside("silence", "add", "category=chatter", "--for", "1h", "--why", "noise")
    status = inside.json("status")
    assert [each["matchers"] for each in status["silences"]] == [["category=chatter"], MATCHERS]
    assert [each["category"] for each in status["muted"]] == ["chatter"]
    assert [each["until"] - each["ends"] for each in (*status["silences"], *status["muted"])] == [0, 0, 0]
    lines = [line for line in inside("status").out.splitlines() if line.startswith(("Muted", "Silenced"))]
    assert ["chatter until" in lines[0], "host=db1 severity!=critical until" in lines[1]] == [True, True]
    assert lines[1].endswith("db1 moves (silence 1), 0 suppressed")
    inside("silence", "add", "host=db2", "--for", "3h", "--why", "moves", "--end-if-idle", "5m")
    shorter = inside.json("status")["silences"][0]
    assert (shorter["matchers"], shorter["until"] - shorter["ends"]) == (["host=db2"], 3 * 3_600 - 300)
    assert re.search(r"host=db2 until .* \(in [45]m", inside("status").out)
    assert re.search("host=db2 for another [45]m", inside("doctor").out)
    assert inside("silence", "expire", shorter["id"]).code == 0
    assert inside("unmute", "chatter").code == 0
    assert [each["id"] for each in listed(inside)] == ["1"]


def test_workers_suppress_what_matches_and_a_preview_finds_it(redis: Database, redis_url: str) -> None:
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SINK": "console", "DISPATCHER_LOG_FORMAT": "json"}
    assert run(*ADD, **env).code == 0
    producer = Producer(redis)
    producer.send("errors", "one", id="a", labels={"host": "db1"})
    producer.send("errors", "two", id="b", labels={"host": "db1", "severity": "critical"}, priority="high")
    assert run("worker", "--burst", **env).code == 0
    explained = run("explain", "a", **env).out
    assert explained.startswith("Dropped at ")
    assert explained.rstrip().endswith(": db1 moves (silence 1).")
    previewed = run("silence", "preview", "host=db*", **env).out
    assert previewed.startswith("host matches db*: 2 of 2 events since ")
    assert previewed.endswith(" (1 high, 1 normal)\n")
    assert '"matched": 1, "of": 2, "since": ' in run("silence", "preview", "priority=high", "--json", **env).out
    assert '"suppressed": 1' in run("silence", "list", "--json", **env).out

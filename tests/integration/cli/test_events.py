"""``dispatcher events``: what became of the newest events of all hosts."""

from __future__ import annotations

import json
import os
import re
import signal
from datetime import UTC, datetime
from typing import Final

import pytest

from dispatcher.core.event import Event
from dispatcher.core.policy import OnLimit
from tests.support.commands import Streams, ended, started, started_on
from tests.support.in_process import InProcess
from tests.support.processes import until
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, policy_of

LONG: Final = "payments.failed.by-provider-with-a-long-name"
GENERATED: Final = "0b7f9a52-6d0e-4a5c-9f0e-3f1d2c4b5a69"


@pytest.fixture
def inside(redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InProcess:
    monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_url)
    monkeypatch.setenv("DISPATCHER_NAMESPACE", "stage")
    monkeypatch.setenv("DISPATCHER_QUEUE", "q")
    return InProcess(monkeypatch, capsys)


@pytest.fixture
def stage(redis: Database) -> Stage:
    """One of each category is sent; then two are refused."""
    stage = Stage(redis, policy_of("", "1/30m", on_limit=OnLimit.DROP))
    ann = stage.worker("ann")
    for id_, category, text in (
        ("a", "errors", "disk full on db1"),
        ("b", "errors", "Disk full on\tdb2"),
        ("c", "news", "x"),
    ):
        stage.intake.enqueue([(id_, Event(category, text, id=id_, labels={"n": id_}, channel=UNPACED))])
        ann.run()
        stage.clock.forward(1)
    return stage


@pytest.mark.parametrize(("reason", "code"), [("cancelled", 0), ("pace", 2)])
@pytest.mark.usefixtures("stage")
def test_a_reason_for_which_no_event_ends_is_refused(inside: InProcess, reason: str, code: int) -> None:
    assert inside("events", "--reason", reason).code == code


@pytest.mark.usefixtures("stage")
def test_the_newest_come_first_with_text_and_labels(inside: InProcess) -> None:
    found = inside.json("events")
    assert [(each["id"], each["outcome"]) for each in found["events"]] == [
        ("c", "sent"),
        ("b", "dropped"),
        ("a", "sent"),
    ]
    assert (found["events"][1]["text"], found["events"][1]["labels"]) == ("Disk full on db2", {"n": "b"})
    assert (found["events"][1]["reason"], found["events"][1]["limit"]) == ("limit:category", "1/30m")
    assert (found["more"], found["kept_since"]) == (False, found["events"][2]["at"])
    assert inside.json("events", "--limit", "1")["more"] is True


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (["--text", "FULL disk"], "ba"),
        (["--text", "full db2"], "b"),
        (["--outcome", "sent"], "ca"),
        (["--reason", "limit:category"], "b"),
        (["--category", "news"], "c"),
        (["--text", "nothing"], ""),
    ],
)
@pytest.mark.usefixtures("stage")
def test_a_filter_leaves_only_what_it_names(inside: InProcess, filters: list[str], ids: str) -> None:
    assert [each["id"] for each in inside.json("events", *filters)["events"]] == list(ids)


@pytest.mark.usefixtures("stage")
def test_a_span_of_time_has_its_beginning_and_not_its_end(inside: InProcess) -> None:
    at = {each["id"]: each["at"] for each in inside.json("events")["events"]}
    since, until = (datetime.fromtimestamp(at[id_], UTC).isoformat() for id_ in "bc")
    assert [each["id"] for each in inside.json("events", "--since", since, "--until", until)["events"]] == ["b"]


@pytest.mark.usefixtures("stage")
def test_a_terminal_shows_a_table_with_shortened_texts(inside: InProcess) -> None:
    said = inside("events", "--category", "errors")
    assert said.code == 0
    heading, _, *rows = said.out.splitlines()
    assert heading.split()[-4:] == ["Id", "Category", "Outcome", "Text"]
    assert [row.split()[2:] for row in rows] == [
        ["b", "errors", "dropped", "limit:category", "Disk", "full", "on", "db2"],
        ["a", "errors", "sent", "disk", "full", "on", "db1"],
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_where_there_is_little_room_time_and_id_are_whole_and_the_rest_stands_below(
    stage: Stage, inside: InProcess, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    stage.intake.enqueue([(GENERATED, Event(LONG, "card refused " * 6, channel=UNPACED))])
    stage.worker("bob").run()
    monkeypatch.setenv("COLUMNS", str(width))
    lines = inside("events").out.splitlines()
    assert max(map(len, lines)) <= width
    assert re.fullmatch(rf"[\d-]+ [\d:]+  {GENERATED}", lines[2])
    told = " ".join(" ".join(lines[3:]).split())
    assert told.replace(" ", "").startswith(f"{LONG}sentcardrefused")
    assert " b errors dropped limit:category Disk full on db2 " in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_follow_prints_each_event_as_it_ends_until_it_is_told_to_stop(
    stage: Stage, redis_url: str, number: signal.Signals
) -> None:
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_NAMESPACE": "stage", "DISPATCHER_QUEUE": "q"}
    with started("events", "--follow", "--json", "--text", "late", **env) as follow:
        until(lambda: stage.redis.info("clients")["blocked_clients"] > 0, "a wait for what comes")
        for id_, text in (("d", "too late"), ("e", "other"), ("f", "late again")):
            stage.intake.enqueue([(id_, Event(id_, text, id=id_, channel=UNPACED))])
            stage.worker("bob").run()
        assert follow.stdout is not None
        lines = [json.loads(follow.stdout.readline()) for _ in range(2)]
        follow.send_signal(number)
        said = ended(follow)
    assert [(each["id"], each["outcome"], each["text"]) for each in lines] == [
        ("d", "sent", "too late"), ("f", "sent", "late again"),
    ]  # fmt: skip
    assert (said.code, said.err) == (0, "")


def test_follow_ends_when_nobody_reads_what_it_prints_any_more(stage: Stage, redis_url: str) -> None:
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_NAMESPACE": "stage", "DISPATCHER_QUEUE": "q"}
    reads, writes = os.pipe()
    with started_on(Streams(stdout=writes), "events", "--follow", "--json", **env) as follow:
        os.close(writes)
        until(lambda: stage.redis.info("clients")["blocked_clients"] > 0, "a wait for what comes")
        os.close(reads)
        stage.intake.enqueue([("d", Event("d", "too late", id="d", channel=UNPACED))])
        stage.worker("bob").run()
        said = ended(follow)
    assert (said.code, said.err) == (0, "")

"""``dispatcher parked``: what it shows, what it asks, and what it cancels."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from dispatcher.cli.parked import light
from dispatcher.core.event import job_id_for
from dispatcher.settings.limits_file import read_limits
from dispatcher.store.audit import Audit
from dispatcher.store.parked_events import ParkedFilter
from tests.support.commands import ended, run, run_typing, started
from tests.support.delay_proxy import DelayProxy
from tests.support.in_process import InProcess
from tests.support.processes import until
from tests.support.secrecy import PASSWORD
from tests.support.servers import Database, RedisServer
from tests.support.stage import Stage

LIMITS: Final = """
defaults: {limits: [1/1d], on_limit: defer, channel: "#all"}
channels: {default: {pace: none}}
categories:
  deploys: {limits: [1/1d], on_limit: defer, channel: "#deploys"}
"""
MANY: Final = 900


@pytest.fixture
def stage(redis: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A namespace that commands find by the environment, with limits they read from a file."""
    (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    variables = {"REDIS_URL": redis_url, "NAMESPACE": "stage", "QUEUE": "q", "LIMITS_FILE": "limits.yaml"}
    for name, value in variables.items():
        monkeypatch.setenv(f"DISPATCHER_{name}", value)
    monkeypatch.setenv("DISPATCHER_LOG_FORMAT", "json")
    stage = Stage(redis, read_limits(LIMITS, "limits.yaml").policy)
    stage.clock.now_us = time.time_ns() // 1_000
    return stage


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InProcess:
    monkeypatch.delenv("COLUMNS", raising=False)
    return InProcess(monkeypatch, capsys)


@pytest.fixture
def waiting(stage: Stage) -> list[str]:
    """Three events that wait; ``deploy 2`` has been on its way for an hour and a half."""
    ann = stage.worker("ann")
    stage.clock.now_us -= 5_400 * 1_000_000
    stage.send("deploy 1", "deploy 2", category="deploys")
    ann.run()
    stage.clock.now_us += 5_400 * 1_000_000
    stage.send("report-1", "report-2", "report-3", category="reports", channel="#ops")
    ann.run()
    ids = ["deploy 2", "report-2", "report-3"]
    stage.redis.delete(stage.keys.leases)
    return ids


def variables() -> dict[str, str]:
    """What a command in another process has to be told."""
    return {name: value for name, value in os.environ.items() if name.startswith("DISPATCHER_")}


def parked(stage: Stage) -> set[str]:
    return {id_.decode() for id_ in stage.redis.zrange(stage.keys.parked, 0, -1)}


def settled(err: str) -> list[dict[str, object]]:
    """The log lines of events that ended."""
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "event.settled"]


# Looking


FILTERS: Final = [
    pytest.param((), {"deploy 2", "report-2", "report-3"}, id="all"),
    pytest.param(("--category", "reports"), {"report-2", "report-3"}, id="category"),
    pytest.param(("--reason", "limit:category"), {"deploy 2", "report-2", "report-3"}, id="reason"),
    pytest.param(("--reason", "pace"), set[str](), id="another reason"),
    pytest.param(("--reason", "resolved"), set[str](), id="that of a recovery"),
    pytest.param(("--channel", "#deploys"), {"deploy 2"}, id="the channel of its category"),
    pytest.param(("--channel", "#ops"), {"report-2", "report-3"}, id="its own channel"),
    pytest.param(("--channel", "ops"), {"report-2", "report-3"}, id="its own channel without #"),
    pytest.param(("--older-than", "1h"), {"deploy 2"}, id="age"),
    pytest.param(("--older-than", "2h"), set[str](), id="too young"),
    pytest.param(("--text", "REPORT-3 text"), {"report-3"}, id="all words in any case and order"),
    pytest.param(("--text", "deploy report"), set[str](), id="no event has both words"),
]


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize(("filters", "expected"), FILTERS)
def test_a_list_shows_what_matches(inside: InProcess, filters: tuple[str, ...], expected: set[str]) -> None:
    found = inside.json("parked", "list", *filters)
    assert {each["id"] for each in found["parked"]} == expected
    assert (found["more"], found["total"]) == (False, 3)


@pytest.mark.usefixtures("waiting")
def test_a_list_says_of_each_what_it_waits_for(inside: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "320")
    said = inside("parked", "list")
    lines = {id_: line for line in said.out.splitlines() for id_ in ("deploy 2", "report-2", "report-3") if id_ in line}
    assert list(lines) == ["deploy 2", "report-2", "report-3"]
    assert "Waits for room: category reports has used 1 of 1 in 1 d; number 2 in line" in lines["report-3"]
    assert (" ~" in lines["report-2"], " ~" in lines["report-3"]) == (False, True)
    assert "#ops" in lines["report-3"]
    assert "text of report-3" in lines["report-3"]
    short = inside("parked", "list", "--limit", "1")
    assert "there are more than these 1: --limit N shows N, 3 are parked in all" in short.err


@pytest.mark.usefixtures("stage")
@pytest.mark.parametrize("width", [80, 120])
def test_a_long_text_is_cut_to_the_width_and_does_nothing_to_a_terminal(
    stage: Stage, inside: InProcess, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    stage.send("first", category="deploys")
    stage.send_unnamed("deploys", "\x1b[31m[red]text " + "x" * 300)
    stage.worker("ann").run()
    monkeypatch.setenv("COLUMNS", str(width))
    out = inside("parked", "list").out
    (line,) = (line for line in out.splitlines() if "[red]" in line)
    assert re.fullmatch(r" +\\x1b\[31m\[red\]text x+…", line)
    assert max(map(len, out.splitlines())) <= width
    (found,) = inside.json("parked", "list")["parked"]
    assert (found["text"][:5], len(found["text"]), found["labels"]) == ("\x1b[31m", 315, {})


@pytest.mark.usefixtures("stage")
def test_an_empty_list_says_so(inside: InProcess) -> None:
    assert "nothing is parked" in inside("parked", "list").err
    assert inside.json("parked", "list") == {"parked": [], "more": False, "total": 0}


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("asked", ["deploy 2", job_id_for("deploy 2")])
def test_everything_is_shown_of_one(inside: InProcess, asked: str) -> None:
    shown = inside.json("parked", "show", asked)
    assert (shown["job_id"], shown["state"], shown["reason"]) == (job_id_for("deploy 2"), "parked", "limit:category")
    assert shown["event"] == {"v": 1, "category": "deploys", "text": "text of deploy 2", "id": "deploy 2"}
    assert shown["expires_at"] == pytest.approx(shown["first_seen"] + 86_400)
    out = inside("parked", "show", asked).out
    for said in (
        "Waits for",
        "category:deploys",
        "1/1d, 1 of 1 used",
        "Expected",
        "Expires",
        "it will expire at ",
        '"text": "text of deploy 2"',
    ):
        assert said in out


@pytest.mark.usefixtures("waiting")
def test_showing_an_event_that_is_not_parked_exits_with_1_and_says_where_it_is(inside: InProcess) -> None:
    for id_, said in (("report-1", "Sent to #ops at "), ("nobody", "There is nothing about 'nobody'")):
        result = inside("parked", "show", id_)
        assert (result.code, result.out) == (1, "")
        assert f"error: {id_!r} is not parked: {said}" in result.err


# Cancelling


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        *((case.values[0] or ("--all",), case.values[1]) for case in FILTERS),
        (("report-3", "report-3"), {"report-3"}),
        (("--all", "--limit", "1"), {"deploy 2"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_only_the_chosen_events_are_cancelled(
    stage: Stage, inside: InProcess, waiting: list[str], choice: tuple[str, ...], expected: set[str]
) -> None:
    result = inside("parked", "cancel", *choice, "--yes")
    assert (result.code, result.out) == (0, f"{len(expected)} cancelled\n")
    assert parked(stage) == {job_id_for(id_) for id_ in waiting if id_ not in expected}
    assert stage.snapshot().totals.get("dropped", 0) == len(expected)
    lines = settled(result.err)
    assert {line["event_id"] for line in lines} == expected
    assert {(line["outcome"], line["reason"]) for line in lines} <= {("dropped", "cancelled")}
    assert all(str(line["sentence"]).startswith("Cancelled at ") for line in lines)
    stage.check()


@pytest.mark.usefixtures("waiting")
def test_a_cancelled_event_is_explained(inside: InProcess) -> None:
    inside("parked", "cancel", "report-2", "--yes")
    told = inside.json("explain", "report-2")
    assert (told["state"], told["outcome"], told["reason"]) == ("settled", "dropped", "cancelled")
    assert told["detail"].startswith("by ")
    assert "@" in told["detail"]


@pytest.mark.usefixtures("waiting")
def test_an_id_that_is_not_parked_exits_with_1_and_the_others_are_cancelled(stage: Stage, inside: InProcess) -> None:
    result = inside("parked", "cancel", "nobody", "report-2", "report-1", "--yes")
    assert (result.code, result.out) == (1, "1 cancelled\n")
    assert "'nobody' is not parked" in result.err
    assert "'report-1' is not parked: Sent to" in result.err
    assert inside.json("parked", "cancel", "nobody", "report-3", "--yes", code=1) == {
        "cancelled": 1,
        "no_longer_parked": 0,
        "not_parked": ["nobody"],
    }
    assert len(parked(stage)) == 1


@pytest.mark.usefixtures("waiting")
def test_nothing_is_chosen_by_saying_nothing(stage: Stage, inside: InProcess) -> None:
    for choice, said in (((), "Which parked events?"), (("report-2", "--all"), "not several of these")):
        result = inside("parked", "cancel", *choice, "--yes")
        assert (result.code, said in result.err) == (2, True)
    assert len(parked(stage)) == 3


@pytest.mark.usefixtures("waiting")
def test_without_a_terminal_nothing_is_cancelled_but_with_yes(stage: Stage, inside: InProcess) -> None:
    for more in ((), ("--json",)):
        result = inside("parked", "cancel", "--all", *more)
        assert (result.code, result.out) == (2, "")
        assert "3 parked events would be cancelled; with --yes it is done" in result.err
    assert len(parked(stage)) == 3


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize(("answer", "left", "code"), [("y", 0, 0), ("n", 3, 1)])
def test_on_a_terminal_it_asks(stage: Stage, answer: str, left: int, code: int) -> None:
    done, said = run_typing(answer, "parked", "cancel", "--all", env=variables())
    assert (done.code, len(parked(stage))) == (code, left)
    assert "Cancel 3 parked events? [y/N]:" in said
    assert ("error: nothing was cancelled" in said) == (answer == "n")
    assert "deploys   limit:category" in done.out


@pytest.mark.usefixtures("waiting")
def test_on_a_terminal_it_does_not_ask_where_it_prints_json_or_nobody_would_read_the_question(stage: Stage) -> None:
    json_, shown = run_typing("y", "parked", "cancel", "--all", "--json", env=variables())
    piped, _ = run_typing("y", "parked", "cancel", "--all", stderr=subprocess.PIPE, env=variables())
    assert (json_.code, piped.code, len(parked(stage))) == (2, 2, 3)
    for said in (shown, piped.err):
        assert "3 parked events would be cancelled" in said


@pytest.fixture
def many(stage: Stage) -> None:
    ann = stage.worker("ann")
    for first in range(0, MANY, 300):
        stage.send(*(f"e{n}" for n in range(first, first + 300)), category="reports")
        ann.run()
    stage.redis.delete(stage.keys.leases)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGINT])
def test_a_cancel_that_is_cut_off_leaves_the_rest_parked(stage: Stage, number: signal.Signals) -> None:
    with started("parked", "cancel", "--all", "--yes", **variables()) as process:
        until(lambda: stage.redis.hget(stage.keys.totals, "dropped"), "the first page")
        process.send_signal(number)
        result = ended(process)
    left = parked(stage)
    assert 0 < len(left) < MANY - 1
    assert stage.total("dropped") == MANY - 1 - len(left)
    stage.check()
    if number == signal.SIGINT:
        assert result.code == 130
        assert f"interrupted: {MANY - 1 - len(left)} cancelled; what is not cancelled stays parked" in result.err
        assert len(settled(result.err)) == MANY - 1 - len(left)
        (entry,) = Audit(stage.redis, stage.keys).newest()
        assert (entry["what"], entry["count"]) == ("parked cancel", MANY - 1 - len(left))
    again = run("parked", "cancel", "--all", "--yes", **variables())
    assert again.out == f"{len(left)} cancelled\n"


@pytest.mark.usefixtures("waiting")
def test_a_cancel_whose_answer_is_lost_does_not_send_the_operator_on_to_others(
    stage: Stage, shared_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(_piece: bytes) -> None:
        if stage.redis.hget(stage.keys.totals, "dropped"):
            raise ConnectionResetError

    with DelayProxy(shared_server.socket) as proxy:
        proxy.on_reply = lose
        monkeypatch.setenv("DISPATCHER_REDIS_URL", f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{proxy.port}/0")
        result = run("parked", "cancel", "--all", "--limit", "1", "--yes", **variables())
    assert (result.code, stage.total("dropped"), len(parked(stage))) == (69, 1, 2)
    said = "0 cancelled; whether the next ones were is not known: 'dispatcher parked list' shows what still waits\n"
    assert result.err.endswith(said)


def test_until_all_are_cancelled_only_what_the_question_names_is_kept_of_each(stage: Stage, waiting: list[str]) -> None:
    found = list(stage.parked_events.find(ParkedFilter()))
    assert sorted(each.id for each in found) == sorted(map(job_id_for, waiting))
    for each in found:
        kept = light(each)
        assert (kept.id, kept.explanation.category, kept.explanation.reason) == (
            each.id, each.explanation.category, each.explanation.reason,
        )  # fmt: skip
        assert len(repr(kept)) < 1_000
        assert each.explanation.text is not None
        assert each.explanation.text not in repr(kept)

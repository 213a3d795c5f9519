"""``dispatcher mute`` and ``unmute``: what they ask for, what they say, and what workers and ``status`` show of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from dispatcher.producer.blocking import Producer
from dispatcher.store.snapshot import Books
from tests.support.commands import run
from tests.support.dead_letters import KEYS, QUEUE, balanced
from tests.support.in_process import InProcess
from tests.support.servers import Database

MUTE: Final = ("mute", "errors", "--for", "2h", "--why", "maintenance of db1")


def muted(redis: Database) -> dict[str, tuple[int, str, str]]:
    """For how long from now on, by whom, why."""
    snapshot = Books(redis, KEYS, QUEUE).snapshot()
    return {
        str(mute.muted): (round((mute.until_us - snapshot.now_us) / 1e6), mute.who.split("@")[0], mute.why)
        for mute in snapshot.silences_in_force
    }


def test_a_category_is_muted_for_a_time_with_who_and_why(redis: Database, inside: InProcess) -> None:
    said = inside(*MUTE)
    assert said.code == 0
    assert said.out.startswith("errors is muted until ")
    assert muted(redis) == {"errors": (7_200, "ops", "maintenance of db1")}
    said = inside("mute", "errors", "--for", "1000d", "--why", "later")
    assert re.fullmatch(r"errors is muted until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+\n", said.out)
    told = inside.json("mute", "deploys", "--for", "10m", "--why", "again")
    assert (told["category"], told["why"]) == ("deploys", "again")
    assert told["until"] > 1_700_000_000
    assert told["who"].startswith("ops@")
    assert set(muted(redis)) == {"errors", "deploys"}


@pytest.mark.parametrize(
    "command",
    [
        ("mute", "error", "--for", "2h", "--why", "x"),
        ("pause", "error"),
        ("parked", "list", "--category", "error"),
        ("parked", "cancel", "--category", "error", "--yes"),
        ("dead", "list", "--category", "error"),
        ("dead", "replay", "--category", "error"),
        ("dead", "purge", "--category", "error", "--yes"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_category_that_nobody_has_heard_of_is_told_and_what_is_asked_is_done(
    inside: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    (tmp_path / "limits.yaml").write_text("categories: {errors: {limits: [1/1m]}}\n", encoding="utf-8")
    monkeypatch.setenv("DISPATCHER_LIMITS_FILE", str(tmp_path / "limits.yaml"))
    words = (
        "warning: no event of category error was counted so far, and the limits do not name it; did you mean errors?"
    )
    said = inside(*command)
    assert (said.code, words in said.err) == (0, True)
    known = inside(*(word if word != "error" else "errors" for word in command))
    assert (known.code, "warning" in known.err) == (0, False)


def test_a_category_that_was_counted_is_known_though_the_limits_do_not_name_it(
    redis: Database, inside: InProcess
) -> None:
    redis.hset(KEYS.totals, "sent chatter", 1)
    assert "warning" not in inside("pause", "chatter").err
    assert "did you mean" not in inside("pause", "nothing-like-it").err


def test_a_mute_is_ended_once(redis: Database, inside: InProcess) -> None:
    inside(*MUTE)
    assert (inside("unmute", "errors").out, muted(redis)) == ("errors is no longer muted\n", {})
    again = inside("unmute", "errors")
    assert (again.code, again.out, "errors is not muted" in again.err) == (1, "", True)
    assert inside.json("unmute", "errors", code=1) == {"category": "errors", "was_muted": False}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mute", "errors", "--why", "x"), "A mute without an end: say --for how long"),
        (("mute", "errors", "--for", "2h"), "A mute without a reason: say --why"),
        (("mute", "errors", "--for", "2h", "--why", " "), "expected 1 to 200 printable characters"),
        (("mute", "errors", "--for", "2h", "--why", "a\x1b[31m"), "expected 1 to 200 printable characters"),
        (("mute", "errors", "--for", "two hours", "--why", "x"), "expected a number and a unit"),
        (("mute", "errors", "--for", "0s", "--why", "x"), "expected a span longer than zero"),
        (("mute", "errors", "--for", "0", "--why", "x"), "'--for': '0', expected a span longer than zero"),
        (("mute", "no category", "--for", "2h", "--why", "x"), "'no category' is no category"),
        (("unmute", "#ops"), "'#ops' is no category"),
        (("mute", "--for", "2h", "--why", "x"), "Missing argument 'CATEGORY'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mute_that_is_not_complete_is_refused(
    redis: Database, inside: InProcess, arguments: tuple[str, ...], said: str
) -> None:
    result = inside(*arguments)
    assert (result.code, result.out) == (2, "")
    assert said in " ".join(result.err.split())
    assert muted(redis) == {}


def test_status_shows_what_is_muted(redis: Database, inside: InProcess) -> None:
    assert inside.json("status")["muted"] == []
    inside(*MUTE)
    (shown,) = inside.json("status")["muted"]
    assert (shown["category"], shown["why"], shown["who"].split("@")[0]) == ("errors", "maintenance of db1", "ops")
    assert shown["until"] == pytest.approx(shown["since"] + 7_200)
    assert redis.hkeys(KEYS.silences) == [b"1"]
    (line,) = [line for line in inside("status").out.splitlines() if line.startswith("Muted")]
    assert "errors until " in line
    assert ": maintenance of db1" in line


def test_workers_suppress_what_is_muted_and_log_that_it_is(redis: Database, redis_url: str, tmp_path: Path) -> None:
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SINK": "console", "DISPATCHER_LOG_FORMAT": "json"}
    limits = tmp_path / "limits.yaml"
    limits.write_text("categories: {later: {on_limit: defer}, kept: {on_limit: dead-letter}}\n", encoding="utf-8")
    env["DISPATCHER_LIMITS_FILE"] = str(limits)
    for category in ("errors", "later", "kept"):
        assert run("mute", category, "--for", "2h", "--why", "x", **env).code == 0
    producer = Producer(redis)
    for category in ("errors", "later", "kept", "other"):
        producer.send(category, "text", id=category)
    worker = run("worker", "--burst", **env)
    assert worker.code == 0
    lines = [json.loads(line) for line in worker.err.splitlines()]
    assert {line["matchers"] for line in lines if line["event"] == "silence.began"} == {
        f"category={category}" for category in ("errors", "later", "kept")
    }
    ends = {line["event_id"]: line for line in lines if line["event"] in {"event.settled", "event.parked"}}
    assert {id_: (line["outcome"], line["reason"]) for id_, line in ends.items()} == {
        "errors": ("dropped", "silenced"),
        "later": ("parked", "silenced"),
        "kept": ("dead", "silenced"),
        "other": ("sent", "ok"),
    }
    assert ends["errors"]["sentence"].endswith(": x (silence 1).")
    assert ends["errors"]["until"] > 1_700_000_000
    totals = balanced(redis)
    assert (totals["sent"], totals["dropped"], totals["dead"]) == (1, 1, 1)
    assert run("unmute", "later", **env).code == 0
    again = run("worker", "--burst", **env)
    assert [json.loads(line)["event_id"] for line in again.err.splitlines() if "event.settled" in line] == ["later"]

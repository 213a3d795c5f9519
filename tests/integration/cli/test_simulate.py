"""``dispatcher simulate``: its files, its options, and what it exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatcher.server.keys import Keys
from tests.support.commands import run
from tests.support.in_process import InProcess
from tests.support.servers import Database

TRACE = "".join(f'{{"time": {n}, "category": "{category}"}}\n' for n, category in enumerate(["errors"] * 3 + ["news"]))
NEW = "global: {limits: [3/1h]}\ncategories: {errors: {limits: [2/30m]}}\n"
OLD = "categories: {errors: {limits: [1/30m]}}\n"


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> InProcess:
    for name, text in (("trace.jsonl", TRACE), ("new.yaml", NEW), ("old.yaml", OLD)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return InProcess(monkeypatch, capsys)


def counts(**other: int) -> dict[str, int]:
    names = ("offered", "sent", "deferred", "digested", "dropped", "dead", "expired", "duplicate", "waiting")
    return dict.fromkeys(names, 0) | other


def test_as_json_it_says_what_was_and_what_would_be(inside: InProcess) -> None:
    news = counts(offered=1, sent=1)
    assert inside.json("simulate", "trace.jsonl", "--limits", "new.yaml", "--against", "old.yaml") == {
        "before": {
            **counts(offered=4, sent=2, dropped=2),
            "categories": {"errors": counts(offered=3, sent=1, dropped=2), "news": news},
        },
        "after": {
            **counts(offered=4, sent=3, dropped=1),
            "categories": {"errors": counts(offered=3, sent=2, dropped=1), "news": news},
        },
        "suggestion": None,
    }


def test_people_are_shown_both_and_what_stands_out(inside: InProcess) -> None:
    said = inside("simulate", "trace.jsonl", "--limits", "new.yaml", "--against", "old.yaml")
    assert (said.code, said.err) == (0, "dispatcher: 4 events by new.yaml, against old.yaml\n")
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    for line in (
        "Before After",
        "sent 2 3",
        "category:errors 2/30m 0 1",
        "Worst served: errors, of which 2 of 3 were sent (66.7%).",
        "Slack would have told 0 posts to wait (429), by the rates that people report.",
    ):
        assert line in lines
    assert any(line.startswith("global 3/1h 3 3 second 3 ") for line in lines)


def test_what_is_not_sent_is_not_said_to_be_suppressed_and_may_wait_for_quiet_hours(
    inside: InProcess, tmp_path: Path
) -> None:
    quiet = 'quiet: {day: {times: ["00:00-23:00"], zone: UTC, then: defer}}\n'
    (tmp_path / "quiet.yaml").write_text(NEW + quiet, encoding="utf-8")
    out = inside("simulate", "trace.jsonl", "--limits", "quiet.yaml").out
    assert "Sent █, not sent ░" in out
    assert "At the end 4 events wait for room in a limit, or for the end of quiet hours; what was" in " ".join(
        out.split()
    )


@pytest.mark.parametrize("width", [80, 60, 40])
def test_on_a_narrow_terminal_channels_keep_their_pace(inside: InProcess, width: int) -> None:
    inside.monkeypatch.setenv("COLUMNS", str(width))
    out = inside("simulate", "trace.jsonl", "--limits", "new.yaml").out
    assert max(map(len, out.splitlines())) <= width
    (row,) = [line.split() for line in out.splitlines() if line.startswith("#not")]
    assert row[1:3] == ["3", "10/10s"]


def test_limits_that_dropped_too_little_to_be_shown_are_counted(inside: InProcess, tmp_path: Path) -> None:
    trace = "".join(f'{{"time": {n}, "category": "c{n % 20}"}}\n' for n in range(40))
    (tmp_path / "many.jsonl").write_text(trace, encoding="utf-8")
    (tmp_path / "one.yaml").write_text("defaults: {limits: [1/30m]}\n", encoding="utf-8")
    out = inside("simulate", "many.jsonl", "--limits", "one.yaml").out
    dropped = out.partition("\ndropped")[2].partition("\n\n")[0].splitlines()
    assert dropped[0].split() == ["20"]
    assert [line.split()[1:] for line in dropped[1:-1]] == [["1/30m", "1"]] * 8
    assert dropped[-1] == "  and 12 more"


def test_no_limit_is_shown_as_used_beyond_all_of_it(inside: InProcess, tmp_path: Path) -> None:
    """The last window is cut short, and full."""
    trace = "".join(f'{{"time": {n * 300}, "category": "errors"}}\n' for n in range(14))
    (tmp_path / "hour.jsonl").write_text(trace, encoding="utf-8")
    out = inside("simulate", "hour.jsonl", "--limits", "new.yaml").out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("category:errors")]
    assert row[-1] == "100.0"


def test_each_event_is_written_with_its_end(inside: InProcess, tmp_path: Path) -> None:
    assert inside("simulate", "trace.jsonl", "--limits", "new.yaml", "--events", "ends.jsonl").code == 0
    assert [json.loads(line) for line in (tmp_path / "ends.jsonl").read_text().splitlines()] == [
        {"line": 1, "outcome": "sent", "reason": "ok"},
        {"line": 2, "outcome": "sent", "reason": "ok"},
        {"line": 3, "outcome": "dropped", "reason": "limit:category"},
        {"line": 4, "outcome": "sent", "reason": "ok"},
    ]


def test_repeats_by_text_are_told_by_the_texts_of_the_trace_and_missing_texts_are_warned_of(
    inside: InProcess, tmp_path: Path
) -> None:
    (tmp_path / "once.yaml").write_text("defaults: {limits: [], once: {by: text, per: 4h}}\n", encoding="utf-8")
    texts = ["disk 90 % full", "disk 91 % full", "no route to db1"]
    rows = [{"time": n, "category": "errors", "text": text} for n, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    (tmp_path / "texts.csv").write_text("time,category,text\n" + "".join(f"0,errors,{text}\n" for text in texts))
    for trace in ("texts.jsonl", "texts.csv"):
        after = inside.json("simulate", trace, "--limits", "old.yaml", "--against", "once.yaml")["before"]
        assert (after["sent"], after["dropped"]) == (2, 1)
    note = "dispatcher: warning: the trace has no text of {} of {}: no repeats by text are seen among them\n"
    said = note.format("3 events", "errors") + note.format("1 event", "news")
    assert inside.json("simulate", "trace.jsonl", "--limits", "once.yaml", said=said)["after"]["sent"] == 4


def test_a_case_that_does_not_hold_fails_the_command(inside: InProcess, tmp_path: Path) -> None:
    cases = tmp_path / "cases.yaml"
    cases.write_text("- {category: errors, outcome: sent, min: 2}\n", encoding="utf-8")
    command = ("simulate", "trace.jsonl", "--limits", "new.yaml", "--expect", "cases.yaml")
    assert inside(*command).code == 0
    cases.write_text("- {category: errors, outcome: sent, min: 3}\n", encoding="utf-8")
    said = inside(*command)
    assert said.code == 1
    assert "error: cases.yaml: line 1: 2 of errors are sent, expected at least 3\n" in said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bad.jsonl",), "error: bad.jsonl: line 2, column 2: time is true, expected seconds since 1970"),
        (("trace.jsonl", "--expect", "new.yaml"), "error: new.yaml: line 1, column 1: expected a list of cases"),
        ((), "Expected RECORDING or --from-redis, and not both."),
        (
            ("trace.jsonl", "--suggest", "lose 1%", "--against", "old.yaml"),
            "With --suggest, --against shows something only beside --json or --svg.",
        ),
        (("trace.jsonl", "--from-redis", "1h"), "Expected RECORDING or --from-redis, and not both."),
        (("--from-redis", "3d"), "'--from-redis': '3d': the books keep 2d, expected no more"),
        (("--from-redis", "99999999999d"), "'99999999999d': the books keep 2d, expected no more"),
        (("trace.jsonl", "--suggest", "win 1%"), "'win 1%', expected 'lose X%', for example 'lose 1%'"),
    ],
)
def test_what_was_given_wrongly_ends_with_2_and_nothing_is_written(
    inside: InProcess, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"time": 1, "category": "a"}\n{"time": true, "category": "a"}\n')
    told = inside("simulate", *arguments, "--events", "ends.jsonl")
    assert (told.code, told.out) == (2, "")
    assert said in told.err
    assert not (tmp_path / "ends.jsonl").exists()


def test_a_trace_may_come_from_stdin_and_limits_have_their_usual_place() -> None:
    said = run("simulate", "-", "--json", stdin="time,category\n2026-01-31T12:00:00Z,errors\n")
    assert said.code == 0, said.err
    assert json.loads(said.out)["after"]["sent"] == 1


def test_faulty_limits_are_told_as_elsewhere(inside: InProcess, tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text("global: {limits: [0/1h]}\n", encoding="utf-8")
    said = inside("simulate", "trace.jsonl", "--limits", "new.yaml")
    assert said.code == 78
    assert "new.yaml:1:" in said.err


def test_what_the_books_counted_is_a_trace_and_limits_in_force_can_be_compared(
    redis: Database, redis_url: str, inside: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_url)
    assert inside("limits", "apply", "old.yaml").code == 0
    minute = int(redis.time()[0]) // 60 - 2
    for number, fields in (
        (minute, {"sent errors": 1, "dropped errors limit:category": 1, "received": 3, "duplicate": 1}),
        (minute - 5, {"held errors": 2, "parked news": 1, "dead - undecodable": 1}),
        (minute - 70, {"sent errors": 100}),
    ):
        redis.hset(Keys("dispatcher").minute(number), mapping=fields)
    before = {key: redis.dump(key) for key in redis.scan_iter()}
    note = "dispatcher: the books count by the minute: the events of a minute are spread evenly over it\n"
    told = inside.json("simulate", "--from-redis", "1h", "--limits", "new.yaml", "--against", "live", said=note)
    assert told["before"]["categories"] == {"errors": counts(offered=4, sent=1, dropped=3)}
    assert told["after"] == {
        **counts(offered=5, sent=2, dropped=2, duplicate=1),
        "categories": {"errors": counts(offered=4, sent=2, dropped=2)},
    }
    assert {key: redis.dump(key) for key in redis.scan_iter()} == before
    said = inside("simulate", "--from-redis", "1h", "--limits", "new.yaml", "--against", "live")
    assert "the events of a minute are spread evenly over it\n" in said.err
    assert said.err.endswith("dispatcher: 5 events by new.yaml, against version 1 in force\n")


def test_books_that_counted_nothing_are_no_trace(
    redis_url: str, inside: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_url)
    said = inside("simulate", "--from-redis", "1h")
    assert (said.code, said.out) == (2, "")
    assert said.err.endswith("error: no event came to namespace dispatcher in the last 1h\n")


def test_a_suggestion_is_a_limits_file_and_nothing_else_is_printed(inside: InProcess, tmp_path: Path) -> None:
    said = inside("simulate", "trace.jsonl", "--limits", "new.yaml", "--suggest", "lose 1%")
    assert (said.code, said.err) == (0, "")
    (tmp_path / "suggested.yaml").write_text(said.out, encoding="utf-8")
    after = inside.json("simulate", "trace.jsonl", "--limits", "suggested.yaml", "--suggest", "lose 1%")
    assert after["after"]["sent"] == 4
    assert after["suggestion"].startswith("# Suggested from 4 events ")


def test_a_picture_is_drawn_of_both(inside: InProcess, tmp_path: Path) -> None:
    command = ("simulate", "trace.jsonl", "--limits", "new.yaml", "--against", "old.yaml", "--svg", "out.svg")
    assert inside(*command).code == 0
    svg = (tmp_path / "out.svg").read_text(encoding="utf-8")
    assert "4 events by new.yaml, before by old.yaml" in svg
    assert "all events, before" in svg


def test_ids_are_remembered_as_long_as_the_settings_say(inside: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("same.jsonl").write_text(
        "".join(f'{{"time": {at_s}, "category": "news", "id": "one"}}\n' for at_s in (0, 5, 100)), encoding="utf-8"
    )
    asked = ("simulate", "same.jsonl", "--limits", "new.yaml")
    assert inside.json(*asked)["after"]["duplicate"] == 2
    monkeypatch.setenv("DISPATCHER_DEDUP_WINDOW", "1m")
    assert inside.json(*asked)["after"]["duplicate"] == 1


def test_with_a_webhook_all_is_posted_to_its_one_channel(inside: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("many.jsonl").write_text(
        "".join(f'{{"time": {n % 2}, "category": "news", "channel": "#c{n}"}}\n' for n in range(30)), encoding="utf-8"
    )
    Path("free.yaml").write_text("global: {limits: []}\ndefaults: {limits: []}\n", encoding="utf-8")
    asked = ("simulate", "many.jsonl", "--limits", "free.yaml")
    assert "#c0" in inside(*asked).out
    monkeypatch.setenv("DISPATCHER_SLACK_WEBHOOK_URL", "https://hooks.slack.com/services/T1/B1/x")
    said = inside(*asked).out
    assert "#c0" not in said
    assert [line.split()[1] for line in said.splitlines() if line.strip().startswith("(webhook)")] == ["30"]

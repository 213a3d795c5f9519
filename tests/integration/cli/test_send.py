"""``dispatcher send``: one event, or a stream of them."""

from __future__ import annotations

import json
import signal
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dispatcher.core.units import Lane
from dispatcher.settings.redaction import redacted_url
from dispatcher.store.rq_keys import QueueKeys
from tests.support.commands import Streams, ended, run, run_on, started, terminal
from tests.support.processes import PATIENCE_S, until
from tests.support.servers import Database, RedisServer

QUEUE = QueueKeys("notifications")
HIGH, NORMAL, _ = QUEUE.lanes


def serve(redis: Database) -> None:
    """As if a worker served the queue."""
    redis.sadd(QUEUE.workers(Lane.NORMAL), "rq:worker:w")
    redis.hset("rq:worker:w", mapping={"last_heartbeat": "2026-01-01T00:00:00Z"})


@pytest.fixture
def served(redis: Database) -> None:
    serve(redis)


def event(redis: Database, job_id: str) -> dict[str, Any]:
    """What stands on the queue under an id."""
    data = redis.hget(QUEUE.job(job_id), "data")
    assert data is not None
    found: dict[str, Any] = json.loads(data)[2][0]
    return found


def lines(*events: object) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in events)


def test_an_event_goes_to_its_lane_with_all_its_fields_and_its_id_is_printed(redis: Database, redis_url: str) -> None:
    where = (
        "--channel",
        "#ops",
        "--id",
        "e-1",
        "--priority",
        "high",
        "--thread-ts",
        "1732100000.123456",
        "--thread",
        "db1",
    )
    how = ("--label", "host=db1", "--label", "role=a=b", "--mrkdwn", "--max-age", "30m")
    result = run("send", "errors", "disk *full*", *where, *how, DISPATCHER_REDIS_URL=redis_url)
    assert (result.code, result.out) == (0, "e-1\n")
    assert redis.lrange(HIGH, 0, -1) == [b"e-1"]
    assert event(redis, "e-1") == {
        "v": 1,
        "category": "errors",
        "text": "disk *full*",
        "id": "e-1",
        "channel": "#ops",
        "priority": "high",
        "labels": {"host": "db1", "role": "a=b"},
        "mrkdwn": True,
        "max_age": 1800.0,
        "thread_ts": "1732100000.123456",
        "thread": "db1",
    }


@pytest.mark.usefixtures("served")
def test_an_instant_without_a_zone_is_one_of_the_machine_and_a_delay_counts_from_now(
    redis: Database, redis_url: str
) -> None:
    here = {"DISPATCHER_REDIS_URL": redis_url, "TZ": "Asia/Tokyo"}
    run("send", "reports", "x", "--id", "local", "--not-before", "2026-11-24T08:00", **here)
    run("send", "reports", "x", "--id", "zoned", "--not-before", "2026-11-24 08:00:00Z", **here)
    before = time.time()
    run("send", "reports", "x", "--id", "delayed", "--delay", "2h", **here)
    assert event(redis, "local")["not_before"] == 1795474800.0
    assert event(redis, "zoned")["not_before"] == 1795507200.0
    assert before + 7200 <= event(redis, "delayed")["not_before"] <= time.time() + 7200
    wrong = run("send", "reports", "x", "--not-before", "noon", **here)
    assert (wrong.code, "expected an instant such as 2026-11-24T08:00" in wrong.err) == (2, True)


@pytest.mark.usefixtures("served")
def test_an_instant_that_the_clocks_skip_is_the_one_that_a_silence_begins_at(redis: Database, redis_url: str) -> None:
    here = {"DISPATCHER_REDIS_URL": redis_url, "TZ": "CET-1CEST,M3.5.0,M10.5.0/3"}
    skipped, meant = "2027-03-28T02:30", datetime(2027, 3, 28, 1, 30, tzinfo=UTC).timestamp()
    run("send", "reports", "x", "--id", "skipped", "--not-before", skipped, **here)
    begun = run("silence", "add", "host=db1", "--for", "1h", "--why", "x", "--start", skipped, "--json", **here)
    assert (event(redis, "skipped")["not_before"], json.loads(begun.out)["from"]) == (meant, meant)


@pytest.mark.usefixtures("served")
def test_a_generated_id_is_printed_and_a_repeated_one_is_counted_as_duplicate(redis_url: str) -> None:
    result = run("send", "errors", "one", DISPATCHER_REDIS_URL=redis_url)
    assert result.code == 0
    assert str(UUID(result.out.strip())) == result.out.strip()
    assert result.err == f"dispatcher: queue notifications on {redacted_url(redis_url)}\n"
    first, second = (run("send", "errors", "x", "--id", "same", "--json", DISPATCHER_REDIS_URL=redis_url) for _ in "12")
    assert (first.out, first.err) == ('{"enqueued": 1, "duplicate": 0, "invalid": 0}\n', "")
    assert (second.code, second.out) == (0, '{"enqueued": 0, "duplicate": 1, "invalid": 0}\n')


@pytest.mark.usefixtures("served")
def test_a_bad_line_is_reported_with_its_number_and_the_others_are_sent(redis: Database, redis_url: str) -> None:
    good = [{"category": "errors", "text": f"t{n}", "id": f"e{n}"} for n in range(3)]
    stdin = b"".join(
        [
            lines(good[0]).encode(),
            b"\n",
            b"{not json}\n",
            lines({"category": "", "text": "x"}).encode(),
            b'{"category": "errors", "text": "\xff"}\n',
            b'{"category": "errors", "blocks": [{"a": NaN}]}\n',
            b"[" * 100_000 + b"\n",
            lines({"category": "errors", "text": "\x1b[2J", "colour": "red"}).encode(),
            b" " * 3_000_000 + b"\n",
            lines({"category": "errors", "text": "x" * 300_000}).encode(),
            lines(good[1], good[0]).encode(),
            lines(good[2]).encode().rstrip(),
        ]
    )
    result = run("send", "--stdin", stdin=stdin, DISPATCHER_REDIS_URL=redis_url)
    assert result.code == 1
    assert result.out.split() == ["e0", "e1", "e0", "e2"]
    assert redis.lrange(NORMAL, 0, -1) == [b"e0", b"e1", b"e2"]
    said = dict(line.removeprefix("dispatcher: ").split(": ", 1) for line in result.err.splitlines()[1:])
    assert list(said) == [f"line {number}" for number in range(3, 11)]
    assert said["line 3"].startswith("not JSON at character 2")
    assert said["line 5"].startswith("not UTF-8 at byte 33")
    assert said["line 6"] == "not JSON (NaN is no number), expected a JSON object"
    assert said["line 7"] == "nested too deeply"
    assert said["line 8"].startswith("'colour' is not a key of an event")
    assert said["line 9"] == "longer than 1048576 bytes, expected an event of at most 262144"
    assert said["line 10"].endswith("expected at most 262144")


@pytest.mark.parametrize("stdin", ["", "\n \n"], ids=["empty", "blank lines"])
def test_nothing_to_read_is_said_and_no_fault(redis_url: str, stdin: str) -> None:
    said = "dispatcher: nothing read from standard input; expected an event on each line\n"
    result = run("send", "--stdin", "--json", stdin=stdin, DISPATCHER_REDIS_URL=redis_url)
    assert (result.code, result.out) == (0, '{"enqueued": 0, "duplicate": 0, "invalid": 0}\n')
    assert result.err == said


@pytest.mark.parametrize(("channel", "kept"), [("#größer", "#größer"), ("U0123ABCD", "U0123ABCD"), ("ops", "#ops")])
def test_a_channel_is_a_name_with_or_without_its_sign_or_an_id(
    redis: Database, redis_url: str, channel: str, kept: str
) -> None:
    result = run("send", "errors", "x", "--id", "e", "--channel", channel, DISPATCHER_REDIS_URL=redis_url)
    assert (result.code, event(redis, "e")["channel"]) == (0, kept)


@pytest.mark.parametrize("arguments", [("errors", "-"), ("errors",)], ids=["a dash", "no text"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"], ids=repr)
def test_the_text_may_come_from_standard_input(
    redis: Database, redis_url: str, arguments: tuple[str, ...], end: str
) -> None:
    text = "disk full\n  größer\n\nlast"
    result = run("send", *arguments, "--id", "e", stdin=f"{text}{end}", DISPATCHER_REDIS_URL=redis_url)
    assert (result.code, result.out) == (0, "e\n")
    assert event(redis, "e")["text"] == text


def test_a_text_from_standard_input_is_sent_though_some_of_its_bytes_are_no_utf_8(
    redis: Database, redis_url: str
) -> None:
    result = run("send", "errors", "-", "--id", "e", stdin=b"disk gr\xf6\xdfer", DISPATCHER_REDIS_URL=redis_url)
    assert (result.code, result.out) == (0, "e\n")
    assert event(redis, "e")["text"] == "disk gr\ufffd\ufffder"


@pytest.mark.parametrize(
    ("stdin", "said"),
    [
        (b"", "stdin is empty"),
        (b" \n", "stdin is empty"),
        (b"x" * 262_145, "more than 262144 bytes"),
    ],
    ids=["nothing", "blank", "too long"],
)
def test_standard_input_that_is_no_valid_text_is_refused(
    redis: Database, redis_url: str, stdin: bytes, said: str
) -> None:
    result = run("send", "errors", "-", stdin=stdin, DISPATCHER_REDIS_URL=redis_url)
    assert (result.code, result.out, redis.keys("rq:*")) == (2, "", [])
    assert said in result.err


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [(("errors", "x"), ""), (("--stdin",), '{"category": "errors", "text": "x"}\n' * 3)],
    ids=["one", "lines"],
)
def test_a_queue_that_nobody_serves_is_told_of_once(
    redis: Database, redis_url: str, arguments: tuple[str, ...], stdin: str
) -> None:
    result = run("send", *arguments, stdin=stdin, DISPATCHER_REDIS_URL=redis_url)
    assert result.code == 0
    assert result.err.count("warning: no worker serves the queue notifications now") == 1
    serve(redis)
    assert "no worker serves" not in run("send", *arguments, stdin=stdin, DISPATCHER_REDIS_URL=redis_url).err


@pytest.mark.parametrize("channel", ["@ops", "#my ops", "", "#"])
def test_an_invalid_channel_is_wrong_usage_and_nothing_is_sent(redis: Database, redis_url: str, channel: str) -> None:
    result = run("send", "errors", "x", "--channel", channel, DISPATCHER_REDIS_URL=redis_url)
    assert (result.code, result.out, redis.keys("rq:*")) == (2, "", [])
    assert f"{channel!r}, expected a name such as ops or '#ops', or an id such as C0123ABCD" in result.err


def test_a_queue_of_another_namespace_takes_nothing(redis: Database, redis_url: str) -> None:
    redis.set(QUEUE.binding, "shop")
    for arguments, stdin in ((("errors", "x"), ""), (("--stdin",), lines({"category": "errors", "text": "x"}))):
        result = run("send", *arguments, stdin=stdin, DISPATCHER_REDIS_URL=redis_url)
        assert (result.code, result.out, redis.llen(NORMAL)) == (78, "", 0)
        assert "queue 'notifications' belongs to namespace 'shop', not to 'dispatcher'" in result.err


@pytest.mark.usefixtures("served")
def test_counts_are_one_json_object(redis_url: str) -> None:
    stdin = lines(*[{"category": "errors", "text": "x", "id": f"e{n % 1100}"} for n in range(1200)], 7)
    result = run("send", "--stdin", "--json", stdin=stdin, DISPATCHER_REDIS_URL=redis_url)
    assert (result.code, result.out) == (1, '{"enqueued": 1100, "duplicate": 100, "invalid": 1}\n')
    assert result.err == "dispatcher: line 1201: event is 7, expected a JSON object\n"


def test_a_full_queue_says_where_it_stopped_and_leaves_the_counts_as_json(redis: Database, redis_url: str) -> None:
    stdin = lines({"bad": 1}, *[{"category": "errors", "text": "x", "id": f"e{n}"} for n in range(9)])
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_MAX_WAITING": "5"}
    result = run("send", "--stdin", stdin=stdin, **env)
    assert result.code == 75
    assert result.out.split() == ["e0", "e1", "e2", "e3", "e4"]
    assert result.err.splitlines()[-1] == (
        "dispatcher: error: the queue is full: at least 5 events wait, are in flight or parked, "
        "and DISPATCHER_MAX_WAITING is 5: "
        "5 enqueued, 0 duplicate, 1 invalid; lines from 7 on were not sent"
    )
    assert redis.llen(NORMAL) == 5
    assert run("send", "errors", "x", **env).code == 75
    again = run("send", "--stdin", "--json", stdin=stdin, **env)
    assert (again.code, again.out) == (75, '{"enqueued": 0, "duplicate": 5, "invalid": 1}\n')
    assert "error: the queue is full" in again.err


def test_a_server_that_goes_away_leaves_the_counts_as_json() -> None:
    with (
        RedisServer() as server,
        server.client() as redis,
        started("send", "--stdin", "--json", DISPATCHER_REDIS_URL=server.url) as process,
    ):
        assert process.stdin is not None
        process.stdin.write(lines(*[{"category": "errors", "text": "x"} for _ in range(3)]))
        process.stdin.flush()
        until(lambda: redis.llen(NORMAL) == 3, "the events on the queue")
        server.kill()
        process.stdin.write(lines({"category": "errors", "text": "x"}))
        process.stdin.flush()
        result = ended(process)
    assert (result.code, result.out) == (69, '{"enqueued": 3, "duplicate": 0, "invalid": 0}\n')
    assert "3 enqueued, 0 duplicate, 0 invalid; of the lines after 3 it is unknown whether some arrived" in result.err


def test_a_server_that_is_away_at_the_start_leaves_the_counts_as_json() -> None:
    stdin = lines({"category": "errors", "text": "x"})
    result = run("send", "--stdin", "--json", stdin=stdin, DISPATCHER_REDIS_URL="redis://127.0.0.1:1/0")
    assert (result.code, result.out) == (69, '{"enqueued": 0, "duplicate": 0, "invalid": 0}\n')


def test_an_interruption_leaves_the_counts_as_json(redis: Database, redis_url: str) -> None:
    with started("send", "--stdin", "--json", DISPATCHER_REDIS_URL=redis_url) as process:
        assert process.stdin is not None
        process.stdin.write(lines(*[{"category": "errors", "text": "x"} for _ in range(3)]))
        process.stdin.flush()
        until(lambda: redis.llen(NORMAL) == 3, "the events on the queue")
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        result = ended(process)
    assert (result.code, result.out) == (130, '{"enqueued": 3, "duplicate": 0, "invalid": 0}\n')
    assert "interrupted: 3 enqueued, 0 duplicate, 0 invalid; lines after 3 were not sent\n" in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_each_line_is_sent_at_once_and_an_interruption_says_how_many_were_sent(
    redis: Database, redis_url: str, number: signal.Signals
) -> None:
    with started("send", "--stdin", DISPATCHER_REDIS_URL=redis_url) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(lines(*[{"category": "errors", "text": "x", "id": f"e{n}"} for n in range(3)]) + '{"cat')
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(3)] == ["e0\n", "e1\n", "e2\n"]
        process.send_signal(number)
        process.wait(PATIENCE_S)
        result = ended(process)
    assert result.code == 130
    assert "interrupted: 3 enqueued, 0 duplicate, 0 invalid; lines after 3 were not sent\n" in result.err
    assert "Traceback" not in result.err
    assert redis.llen(NORMAL) == 3


@pytest.mark.usefixtures("served")
def test_a_reader_of_the_ids_that_goes_away_stops_nothing(redis: Database, redis_url: str) -> None:
    with started("send", "--stdin", DISPATCHER_REDIS_URL=redis_url) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, said = process.communicate(lines(*[{"category": "errors", "text": "x"} for _ in range(1200)]), PATIENCE_S)
    assert process.returncode == 0
    assert said == f"dispatcher: queue notifications on {redacted_url(redis_url)}\n"
    assert redis.llen(NORMAL) == 1200


@pytest.mark.usefixtures("tmp_path")
def test_a_terminal_gets_a_progress_bar_on_stderr_alone(redis_url: str) -> None:
    Path("events.jsonl").write_text(lines(*[{"category": "errors", "text": "x", "id": f"e{n}"} for n in range(600)]))
    env = {"DISPATCHER_REDIS_URL": redis_url, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "100"}
    with Path("events.jsonl").open("rb") as stdin, terminal() as (stderr, written):
        result = run_on(Streams(stdin=stdin.fileno(), stderr=stderr), "send", "--stdin", **env)
        drawn = written()
    assert result.out.split() == [f"e{n}" for n in range(600)]
    assert "100%" in drawn
    assert "600 enqueued, 0 duplicate, 0 invalid" in drawn


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("arguments", [(), ("--json",)], ids=["ids", "json"])
def test_no_spinner_is_left_on_the_terminal(redis_url: str, arguments: tuple[str, ...]) -> None:
    env = {"DISPATCHER_REDIS_URL": redis_url, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "100"}
    stdin = lines(*[{"category": "errors", "text": "x"} for _ in range(20)]).encode()
    with terminal() as (stderr, written):
        assert run_on(Streams(stderr=stderr), "send", "--stdin", *arguments, stdin=stdin, **env).code == 0
        drawn = written()
    erased, _, left = drawn.rpartition("\x1b[2K")
    assert "20 enqueued, 0 duplicate, 0 invalid" in erased
    summary = "" if arguments else "dispatcher: 20 enqueued, 0 duplicate, 0 invalid"
    assert left.replace("\x1b[?25h", "").strip() == summary


def test_a_server_that_is_away_exits_with_69() -> None:
    with socket.socket() as closed:  # bound, and not listening: nobody else can take the port
        closed.bind(("127.0.0.1", 0))
        url = f"redis://app:s3same%40door@127.0.0.1:{closed.getsockname()[1]}/0"
        results = [
            run("send", "errors", "x", DISPATCHER_REDIS_URL=url),
            run("send", "--stdin", stdin=lines({"category": "errors", "text": "x"}), DISPATCHER_REDIS_URL=url),
            run("status", DISPATCHER_REDIS_URL=url),
            run("metrics", DISPATCHER_REDIS_URL=url),
        ]
    for result in results:
        assert (result.code, result.out) == (69, "")
        assert "redis://app:***@127.0.0.1" in result.err
        assert "cannot be reached" in result.err
        assert "s3same" not in result.err
        assert "Traceback" not in result.err


def test_a_wrong_password_exits_with_78() -> None:
    with RedisServer(password="right") as server:
        for url in (f"unix://:wr0ng@{server.socket}", f"unix://{server.socket}"):
            result = run("send", "errors", "x", DISPATCHER_REDIS_URL=url)
            assert result.code == 78
            assert f"the server at {server.socket} " in result.err
            assert ("refuses the user name or password in DISPATCHER_REDIS_URL" in result.err) is ("wr0ng" in url)
            assert ("asks for a password, and DISPATCHER_REDIS_URL has none" in result.err) is ("wr0ng" not in url)
            assert "wr0ng" not in result.err


def test_without_a_server_it_says_what_to_do() -> None:
    result = run("send", "errors", "x")
    assert (result.code, result.out) == (78, "")
    assert "no embedded server is running in .dispatcher" in result.err
    assert "DISPATCHER_REDIS_URL" in result.err
    assert not Path(".dispatcher").exists()

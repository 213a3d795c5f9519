"""``dispatcher dead``: what it shows, replays exactly once whatever happens, and removes; and the bounds of it all."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import zlib
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from dispatcher.cli.dead.replaying import CHUNK
from dispatcher.cli.dead.waiting import Endings
from dispatcher.core.event import job_id_for
from dispatcher.core.limits import Reason
from dispatcher.core.policy import OnLimit
from dispatcher.core.states import DEADLY, DeadLettered, Leased
from dispatcher.producer.blocking import Producer
from dispatcher.settings.redaction import redacted_url
from dispatcher.store.audit import Audit
from dispatcher.store.dead_letters import MAX_PAYLOAD, Filter
from tests.support.commands import Streams, ended, run, run_on, run_typing, started, terminal
from tests.support.dead_letters import (
    DENIED,
    EXHAUSTED,
    KEYS,
    QUEUE,
    balanced,
    buried,
    bury,
    everything,
    numbered,
    on_lanes,
    twice,
)
from tests.support.delay_proxy import DelayProxy
from tests.support.forked import Forked
from tests.support.in_process import InProcess
from tests.support.processes import PATIENCE_S, Command, until
from tests.support.servers import Database, RedisServer
from tests.support.stage import UNPACED, Stage, policy_of

BINARY: Final = b'\x80\x00["dispatcher.jobs.dispatch"\xff\x1b[31m\n\x00'
FEW: Final = 3 * CHUNK


@pytest.fixture
def dead(inside: InProcess) -> InProcess:
    """``dispatcher dead``."""
    return replace(inside, command=("dead",))


def push_raw(redis: Database, job_id: str, data: bytes) -> None:
    """A job as anybody may write one."""
    redis.hset(QUEUE.job(job_id), mapping={"data": data})
    redis.rpush(QUEUE.lanes[1], job_id)


@pytest.fixture
def six(redis: Database) -> None:
    """Six letters, of several categories, reasons and ages."""
    bury(redis, [{"category": "deploys", "text": "old", "id": "old"}], DENIED, ago_s=3 * 3_600)
    bury(redis, [{"category": "errors", "text": "one", "id": "one"}], EXHAUSTED, attempts=8)
    bury(redis, [{"category": "errors", "text": "a \x1b[31m[red]text", "id": "two words"}], DENIED)
    bury(redis, [{"category": "deploys", "text": "three", "id": "three", "priority": "high"}])
    push_raw(redis, "raw", BINARY)
    redis.rpush(QUEUE.lanes[1], "lost")
    bury(redis)


ALL: Final = ["old", "one", "two words", "three", "raw", "lost"]
FILTERS: Final = [
    pytest.param(("--category", "errors"), ["one", "two words"], id="category"),
    pytest.param(("--category", "-"), ["raw", "lost"], id="what could not be read"),
    pytest.param(("--reason", "limit:category"), ["old", "two words"], id="reason"),
    pytest.param(("--code", "connection"), ["one"], id="code"),
    pytest.param(("--since", "2h"), ["one", "two words", "three", "raw", "lost"], id="since"),
    pytest.param(("--since", "4h", "--before", "2h"), ["old"], id="before"),
    pytest.param(("--category", "deploys", "--since", "4h", "--reason", "limit:category"), ["old"], id="several"),
    pytest.param(("--text", "TEXT a"), ["two words"], id="all words in any case and order"),
    pytest.param(("--text", "one three"), [], id="no letter has both words"),
    pytest.param(("--category", "nobody"), [], id="nothing matches"),
]
CHOICES: Final = [
    *FILTERS,
    pytest.param(("three", job_id_for("two words"), "one", "one"), ["one", "two words", "three"], id="ids"),
    pytest.param(("--all", "--limit", "2"), ["old", "one"], id="limit"),
]


@pytest.mark.usefixtures("six")
class TestList:
    @pytest.mark.parametrize(("filters", "expected"), [pytest.param((), ALL, id="all"), *FILTERS])
    def test_the_newest_come_first(self, dead: InProcess, filters: tuple[str, ...], expected: list[str]) -> None:
        found = dead.json("list", *filters)
        assert [letter["id"] for letter in found["dead_letters"]] == expected[::-1]
        assert (found["more"], found["kept"]) == (False, 6)

    def test_no_more_are_shown_than_asked_for(self, dead: InProcess) -> None:
        found = dead.json("list", "--limit", "2")
        assert ([letter["id"] for letter in found["dead_letters"]], found["more"]) == (["lost", "raw"], True)
        shown = dead("list", "--limit", "2")
        assert "there are more than these 2: --limit N shows N, 6 are kept in all" in shown.err
        shown = dead("list", "--limit", "1", "--category", "errors")
        assert "there are more than these 1: --limit N shows N, of all kinds 6 are kept" in shown.err

    def test_each_letter_is_a_line_that_does_nothing_to_a_terminal(
        self, dead: InProcess, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        result = dead("list")
        assert (result.code, result.err) == (0, f"dispatcher: namespace dispatcher on {redacted_url(redis_url)}\n")
        lines = {id_: line for line in result.out.splitlines() for id_ in ALL if re.search(rf"[0-9] +{id_} ", line)}
        assert list(lines) == ALL[::-1]
        assert "exhausted: connection" in lines["one"]
        assert re.search(r" 8( |$)", lines["one"])
        assert "category errors had used 10 of 10 in 30 min; it would have fitted at " in lines["two words"]
        assert "(unreadable)" in lines["raw"]
        assert "\x1b" not in result.out

    @pytest.mark.parametrize(("width", "detail"), [(60, "detail"), (80, ""), (120, "Detail")])
    def test_the_text_has_room_in_each_width_and_the_detail_gives_way_before_it(
        self, dead: InProcess, monkeypatch: pytest.MonkeyPatch, width: int, detail: str
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        out = dead("list", "--category", "errors").out
        assert r"a \x1b[31m[red]text" in out
        assert max(map(len, out.splitlines())) <= width
        assert re.findall("[Dd]etail", out.splitlines()[0]) == ([detail] if detail else [])


def test_a_letter_of_blocks_is_found_and_shown_by_their_words(redis: Database, dead: InProcess) -> None:
    section = {"type": "section", "text": {"type": "plain_text", "text": "disk <full> & slow"}}
    bury(redis, [{"category": "errors", "blocks": [section], "labels": {"host": "db1"}}])
    (letter,) = dead.json("list", "--text", "<FULL> slow")["dead_letters"]
    assert (letter["text"], letter["labels"]) == ("disk <full> & slow", {"host": "db1"})


@pytest.mark.parametrize(("width", "tries"), [(60, "  1 try"), (160, "  1")])
def test_a_channel_that_slack_refused_is_named_beside_the_code(
    redis: Database, dead: InProcess, monkeypatch: pytest.MonkeyPatch, width: int, tries: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rejected = DeadLettered(Reason.REJECTED, "no such channel", "channel_not_found")
    bury(redis, [{"category": "errors", "text": "x", "id": "this"}], rejected, attempts=1)
    out = dead("list").out
    assert "rejected: channel_not_found in #general" in out
    assert any(line.endswith(tries) for line in out.splitlines())
    assert re.search(r"^Channel +#general$", dead("show", "this").out, re.MULTILINE)


def test_words_that_are_none_are_refused(dead: InProcess) -> None:
    result = dead("purge", "--text", " ", "--yes")
    assert (result.code, "' ', expected words such as 'disk full'" in result.err) == (2, True)


@pytest.mark.parametrize("reason", DEADLY)
def test_each_reason_a_dead_letter_can_have_can_be_asked_for(redis: Database, dead: InProcess, reason: Reason) -> None:
    bury(redis, [{"category": "errors", "text": "x", "id": "this"}], DeadLettered(reason, "why"))
    for command in (("list",), ("replay", "--dry-run"), ("purge", "--yes")):
        assert dead(*command, "--reason", reason.value).code == 0
    assert buried(redis) == []


def test_a_limit_of_a_label_is_a_reason_to_die() -> None:
    assert Reason.LIMIT_LABEL in DEADLY


@pytest.mark.usefixtures("six")
class TestShow:
    def test_everything_is_told_of_a_letter(self, dead: InProcess) -> None:
        for id_ in ("two words", job_id_for("two words")):
            result = dead("show", id_)
            assert result.code == 0
            for said in (
                "two words",
                job_id_for("two words"),
                "Room at",
                ": category errors had used 10 of 10 in 30 min;",
                '"text": "a \\u001b[31m[red]text"',
            ):
                assert said in result.out
            assert "\x1b" not in result.out

    def test_as_json_with_the_event(self, dead: InProcess) -> None:
        shown = dead.json("show", "two words")
        assert shown.pop("event") == {
            "v": 1,
            "category": "errors",
            "text": "a \x1b[31m[red]text",
            "id": "two words",
        }
        assert json.loads(shown["payload"])[0] == "dispatcher.jobs.dispatch"
        assert shown.pop("payload_bytes") == len(shown.pop("payload"))
        assert shown.pop("fits_at") == pytest.approx(shown.pop("at") + 90)
        shown.pop("first_seen")
        assert shown.pop("sentence").startswith("Dead letter at ")
        assert shown == {
            "id": "two words",
            "job_id": job_id_for("two words"),
            "category": "errors",
            "channel": "#general",
            "reason": "limit:category",
            "code": None,
            "detail": "category:errors had used its 10/30m",
            "scope": "category:errors",
            "limit": "10/30m",
            "attempts": 0,
            "replays": 0,
            "repeats": 0,
            "text": "a \x1b[31m[red]text",
            "labels": {},
            "payload_encoding": "utf-8",
        }

    def test_a_payload_that_is_no_event_is_shown_byte_by_byte(self, dead: InProcess) -> None:
        shown = dead.json("show", "raw")
        assert (b64decode(shown["payload"]), shown["payload_encoding"], shown["event"]) == (BINARY, "base64", None)
        out = dead("show", "raw").out
        assert out.splitlines()[-2:] == ['\\x80\\x00["dispatcher.jobs.dispatch"\\xff\\x1b[31m', "\\x00"]
        assert "none was left" in dead("show", "lost").out

    @pytest.mark.parametrize("id_", ["nobody", "\udcff"], ids=ascii)  # the second: an argument that is not UTF-8
    def test_an_unknown_id_exits_with_1(self, dead: InProcess, id_: str) -> None:
        result = dead("show", id_)
        assert (result.code, result.out) == (1, "")
        assert f"error: there is no dead letter of the id {id_!r}" in result.err


# Raw payloads


def test_a_raw_payload_is_kept_up_to_a_mebibyte(redis: Database, dead: InProcess) -> None:
    random = os.urandom(MAX_PAYLOAD + 5)
    push_raw(redis, "random", random)
    push_raw(redis, "inflating", compressed := zlib.compress(b"a" * 5 * MAX_PAYLOAD))
    bury(redis)
    shown = {id_: dead.json("show", id_) for id_ in ("random", "inflating")}
    assert b64decode(shown["random"]["payload"]) == random[:MAX_PAYLOAD]
    assert shown["random"]["reason"] == "invalid"
    assert b64decode(shown["inflating"]["payload"]) == compressed
    text = dead("show", "inflating").out
    assert text.endswith(f"{'a' * 100}\n... {MAX_PAYLOAD - 4_000} characters more; --json prints all of it\n")


def test_a_compressed_event_is_read_whole_though_zero_bytes_are_in_it(redis: Database) -> None:
    stage = Stage(redis)
    queue = Queue("q", connection=redis, serializer=JSONSerializer)
    jobs = [
        queue.enqueue("dispatcher.jobs.dispatch", {"category": "errors", "text": f"{n} {'abc' * n}"})
        for n in range(200)
    ]
    assert any(b"\0" in redis.hget(job.key, "data") for job in jobs)
    batch = stage.worker().take(new=200).batch
    texts = [each.event.text for each in batch if isinstance(each, Leased)]
    assert texts == [f"{n} {'abc' * n}" for n in range(200)]


# Replay


@pytest.mark.usefixtures("six")
@pytest.mark.parametrize(("choice", "expected"), CHOICES)
def test_only_the_chosen_dead_letters_are_replayed(
    redis: Database, dead: InProcess, choice: tuple[str, ...], expected: list[str]
) -> None:
    ids = [job_id_for(id_) for id_ in expected]
    has_payload = [id_ for id_ in ids if id_ != "lost"]
    before = everything(redis)
    preview = dead.json("replay", *choice, "--dry-run")
    assert everything(redis) == before
    replayed = dead.json("replay", *choice)
    skipped = {"no_payload": len(ids) - len(has_payload), "no_event": 0, "waiting": 0}
    report = {"replayed": len(has_payload), "skipped": skipped, "gone": 0, "unknown": []}
    assert (preview, replayed) == ({"dry_run": True, **report}, {"dry_run": False, **report})
    assert sorted(on_lanes(redis)) == sorted(has_payload)
    assert buried(redis) == [job_id_for(id_) for id_ in ALL if job_id_for(id_) not in has_payload]
    assert balanced(redis)["replayed"] == len(has_payload)


@pytest.mark.usefixtures("six")
def test_a_replay_keeps_the_order_and_the_lane(redis: Database, dead: InProcess) -> None:
    result = dead("replay", "--all")
    assert (result.code, result.out) == (0, "5 replayed, 1 skipped, 0 gone\n")
    assert "dispatcher: 1 skipped: no payload was left\n" in result.err
    assert on_lanes(redis) == ["three", "old", "one", job_id_for("two words"), "raw"]
    assert redis.hget(QUEUE.job("raw"), "data") == BINARY
    assert balanced(redis)["enqueued"] == 11


@pytest.mark.usefixtures("six")
@pytest.mark.parametrize("command", ["replay", "purge"])
def test_nothing_is_chosen_by_saying_nothing(redis: Database, dead: InProcess, command: str) -> None:
    for choice, said in (
        ((), "Which dead letters?"),
        (("one", "--all"), "not several of these"),
        (("one", "--limit", "1"), "not several of these"),
        (("x",), ""),
    ):
        result = dead(command, *choice, *(["--yes"] if command == "purge" else []))
        assert (result.code, said in result.err) == (1 if choice == ("x",) else 2, True)
    assert buried(redis) == [job_id_for(id_) for id_ in ALL]


@pytest.mark.usefixtures("six")
def test_an_id_that_is_unknown_or_waits_exits_with_1_and_the_others_are_replayed(
    redis: Database, dead: InProcess
) -> None:
    push_raw(redis, "one", b"another")
    result = dead("replay", "nobody", "one", "old")
    assert (result.code, result.out) == (1, "1 replayed, 1 skipped, 0 gone\n")
    assert "1 skipped: the id is on the queue already" in result.err
    assert "there is no dead letter of the id 'nobody'" in result.err
    assert on_lanes(redis) == ["one", "old"]
    bury(redis)  # the one that waited is a duplicate of its letter
    assert balanced(redis)["duplicate"] == 1
    assert dead("replay", "one").code == 0


def test_a_replay_replaces_a_job_that_a_stock_worker_has_finished(redis: Database, dead: InProcess) -> None:
    bury(redis, numbered(1))
    redis.hset(QUEUE.job("e0"), mapping={"status": "finished", "adopted": "1", "data": "old"})
    redis.expire(QUEUE.job("e0"), 500)
    assert dead("replay", "e0").code == 0
    assert redis.ttl(QUEUE.job("e0")) == -1
    assert not redis.hexists(QUEUE.job("e0"), "adopted")
    bury(redis)
    assert buried(redis) == ["e0"]


@pytest.mark.parametrize("on_limit", [OnLimit.DROP, OnLimit.DEAD_LETTER])
def test_a_replay_ends_though_the_limits_deny_all_at_once_again(redis: Database, on_limit: OnLimit) -> None:
    stage = Stage(redis, policy_of("1/30m", "", on_limit=OnLimit.DEAD_LETTER))
    ids = [f"e{n}" for n in range(130)]
    stage.send(*ids, channel=UNPACED)
    worker = stage.worker()
    worker.run()
    stage.policy = policy_of("1/30m", "", on_limit=on_limit)
    replayed = []
    found = stage.dead_letters.find(Filter())
    while some := list(islice(found, 13)):
        assert stage.dead_letters.replay(some) == [1] * len(some)
        worker.run()
        replayed += [letter.id for letter in some]
    assert replayed == ids[1:]
    assert [(letter.id, letter.reason, letter.replays) for letter in stage.dead_letters.find(Filter())] == [
        (id_, "limit:global", 1) for id_ in replayed
    ]
    assert (stage.total("dropped"), stage.total("replayed")) == (0, 129)


@pytest.mark.usefixtures("six")
def test_events_go_to_another_channel_out_of_their_thread_and_what_is_no_event_stays(
    redis: Database, dead: InProcess
) -> None:
    bury(redis, [{"category": "errors", "text": "x", "id": "under", "thread_ts": "1732100000.1", "channel": "#gone"}])
    preview = dead.json("replay", "--all", "--to", "ops", "--dry-run")
    replayed = dead.json("replay", "--all", "--to", "ops")
    assert replayed["skipped"] == {"no_payload": 1, "no_event": 1, "waiting": 0}
    assert preview == {**replayed, "dry_run": True}
    assert on_lanes(redis) == ["three", "old", "one", job_id_for("two words"), "under"]
    (_, _, (event,), _) = json.loads(redis.hget(QUEUE.job("under"), "data") or b"")
    assert event == {"v": 1, "category": "errors", "text": "x", "id": "under", "channel": "#ops"}


def test_a_wait_says_what_became_of_the_replayed_events(redis: Database, redis_url: str, tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("categories: {errors: {limits: [2/30m]}}\n", encoding="utf-8")
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": str(limits), "DISPATCHER_SINK": "console"}
    bury(redis, numbered(6))
    with started("dead", "replay", "--all", "--wait", **env) as process:
        until(lambda: len(on_lanes(redis)) == 6, "the replay")
        with Command("worker", "--burst", env=env, cwd=tmp_path) as worker:
            assert worker.wait() == 0, worker.stderr()
        result = ended(process)
    assert "no worker serves the queue notifications now" in result.err
    assert result.out == "6 replayed, 0 skipped, 0 gone\n6 replayed: 2 sent, 4 dead again: limit:category\n"
    assert result.code == 1


def test_a_replayed_recovery_that_edits_its_message_is_told(redis: Database) -> None:
    stage = Stage(redis)
    ann = stage.worker("ann")
    stage.send("f", channel=UNPACED, dedup_key="db1")
    ann.run()
    stage.send("r", channel=UNPACED, dedup_key="db1", status="resolved", max_age=60)
    stage.clock.forward(60)
    ann.take()
    stage.clock.forward(60)
    ann.give_back()
    ann.run()
    letters = list(stage.dead_letters.find(Filter()))
    assert [(letter.id, letter.reason) for letter in letters] == [("r", "expired")]
    stage.dead_letters.replay(letters)
    ann.run()
    endings = Endings(["r"])
    assert endings.look(stage.explanations) == 0
    assert (str(endings), endings.are_all_told) == ("1 replayed: 1 told by an edit (digested)", True)
    assert endings.as_json()["ended"]["digested"] == 1


@contextmanager
def waiting(redis: Database, url: str) -> Iterator[Forked]:
    """A replay of the only letter, e0, that waits for its end."""
    bury(redis, numbered(1))
    with started("dead", "replay", "e0", "--wait", DISPATCHER_REDIS_URL=url) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1 replayed, 0 skipped, 0 gone\n"
        yield process


def test_an_interruption_ends_the_wait_and_not_the_replay(redis: Database, redis_url: str) -> None:
    with waiting(redis, redis_url) as process:
        process.send_signal(signal.SIGINT)
        result = ended(process)
    assert (result.code, result.out) == (130, "1 replayed: 1 not ended yet\n")
    assert result.err.endswith("error: the wait was interrupted; the replayed events go on without it\n")
    assert on_lanes(redis) == ["e0"]


def test_the_former_end_of_an_event_that_was_taken_off_the_queue_is_not_told_as_its_new_one(
    redis: Database, redis_url: str
) -> None:
    with waiting(redis, redis_url) as process:
        redis.delete(QUEUE.job("e0"), *QUEUE.lanes)
        result = ended(process)
    assert (result.code, result.out) == (1, "1 replayed: 1 no longer known\n")


def test_a_wait_ends_with_its_time(redis: Database, dead: InProcess) -> None:
    bury(redis, numbered(2))
    result = dead("replay", "--all", "--wait", "--timeout", "0", "--json")
    told = json.loads(result.out)
    assert (result.code, told["replayed"], told["not_ended"], told["dead_again"]) == (1, 2, 2, [])


@contextmanager
def held(server: RedisServer, *arguments: str) -> Iterator[tuple[Forked, threading.Event]]:
    """``dispatcher dead ARGUMENTS`` that asks for its second chunk, and gets no answer until the event is set."""
    is_held, goes_on = threading.Event(), threading.Event()

    def hold(_piece: bytes) -> None:
        if not goes_on.is_set() and redis.xlen(KEYS.dead) < FEW:
            is_held.set()
            goes_on.wait(PATIENCE_S)

    with server.client() as redis, DelayProxy(server.socket) as proxy:
        proxy.on_call = hold
        with started("dead", *arguments, DISPATCHER_REDIS_URL=proxy.url) as process:
            until(is_held.is_set, "the second chunk")
            yield process, goes_on


def test_each_is_replayed_exactly_once_though_the_replay_is_killed(own_server: RedisServer) -> None:
    with own_server.client() as redis:
        bury(redis, numbered(FEW))
        with held(own_server, "replay", "--all") as (process, goes_on):
            process.kill()
            assert process.wait(PATIENCE_S) == -signal.SIGKILL
            goes_on.set()
        first = balanced(redis)["replayed"]
        assert 0 < first < FEW
        assert len(buried(redis)) + len(on_lanes(redis)) == FEW

        result = run("dead", "replay", "--all", DISPATCHER_REDIS_URL=own_server.url)
        assert (result.code, result.out) == (0, f"{FEW - first} replayed, 0 skipped, 0 gone\n")
        assert on_lanes(redis) == [f"e{n}" for n in range(FEW)]
        assert buried(redis) == []
        totals = balanced(redis)
        assert (totals["replayed"], totals["dead"], totals["enqueued"]) == (FEW, FEW, 2 * FEW)


def test_an_interrupted_replay_ends_its_chunk_and_says_how_far_it_came(own_server: RedisServer) -> None:
    with own_server.client() as redis:
        bury(redis, numbered(FEW))
        with held(own_server, "replay", "--all") as (process, goes_on):
            process.send_signal(signal.SIGINT)
            goes_on.set()
            result = ended(process)
        count = balanced(redis)["replayed"]
        assert 0 < count < FEW
        assert (result.code, result.out) == (130, "")
        said = f"error: interrupted: {count} replayed, 0 skipped, 0 gone; run it again for the rest\n"
        assert result.err.endswith(said)
        assert trail(redis) == [("dead replay", count)]


def test_an_interrupted_purge_stands_in_the_trail_with_what_it_has_removed(own_server: RedisServer) -> None:
    with own_server.client() as redis:
        bury(redis, numbered(FEW))
        with held(own_server, "purge", "--all", "--yes") as (process, goes_on):
            process.send_signal(signal.SIGINT)
            goes_on.set()
            result = ended(process)
        assert redis.xlen(KEYS.dead) == FEW - 2 * CHUNK
        assert (result.code, result.out) == (130, "")
        assert result.err.endswith(f"error: interrupted: {2 * CHUNK} removed; run it again for the rest\n")
        assert trail(redis) == [("dead purge", 2 * CHUNK)]


def test_a_purge_whose_answer_is_lost_does_not_send_the_operator_on_to_others(own_server: RedisServer) -> None:
    def lose(_piece: bytes) -> None:
        if redis.xlen(KEYS.dead) < FEW:
            raise ConnectionResetError

    with own_server.client() as redis, DelayProxy(own_server.socket) as proxy:
        bury(redis, numbered(FEW))
        proxy.on_reply = lose
        result = run("dead", "purge", "--all", "--limit", "3", "--yes", DISPATCHER_REDIS_URL=proxy.url)
        assert redis.xlen(KEYS.dead) == FEW - 3
    assert result.code == 69
    said = "0 removed; whether the next ones were is not known: 'dispatcher dead list' shows what is left\n"
    assert result.err.endswith(said)


def trail(redis: Database) -> list[tuple[str, int]]:
    """What operators did, and to how many."""
    return [(entry["what"], entry["count"]) for entry in Audit(redis, KEYS).newest()]


def test_a_server_that_goes_away_in_the_middle_exits_with_69_and_nothing_goes_twice(own_server: RedisServer) -> None:
    with own_server.client() as redis:
        bury(redis, numbered(FEW))
        with held(own_server, "replay", "--all") as (process, goes_on):
            own_server.stop()
            goes_on.set()
            result = ended(process)
        assert result.code == 69
        assert "run it again, none goes twice" in result.err
        own_server.start()
        assert 0 < balanced(redis)["replayed"] < FEW
        assert run("dead", "replay", "--all", DISPATCHER_REDIS_URL=own_server.url).code == 0
        assert on_lanes(redis) == [f"e{n}" for n in range(FEW)]
        assert balanced(redis)["replayed"] == FEW


def test_two_replays_at_once_replay_each_once(own_server: RedisServer) -> None:
    with own_server.client() as redis:
        bury(redis, numbered(FEW))
        with held(own_server, "replay", "--all", "--json") as (one, goes_on):
            other = run("dead", "replay", "--all", "--json", DISPATCHER_REDIS_URL=own_server.url)
            goes_on.set()
            reports = [json.loads(each.out) for each in (ended(one), other)]
        assert all(report["replayed"] for report in reports)
        assert sum(report["replayed"] for report in reports) == FEW
        assert (len(on_lanes(redis)), twice(on_lanes(redis)), buried(redis)) == (FEW, [], [])
        assert balanced(redis)["replayed"] == FEW


# Purge


@pytest.mark.usefixtures("six")
@pytest.mark.parametrize(("choice", "expected"), CHOICES)
def test_only_the_chosen_dead_letters_are_purged(
    redis: Database, dead: InProcess, choice: tuple[str, ...], expected: list[str]
) -> None:
    assert dead.json("purge", *choice, "--yes") == {"removed": len(expected), "unknown": []}
    assert buried(redis) == [job_id_for(id_) for id_ in ALL if id_ not in expected]


@pytest.mark.usefixtures("six")
def test_a_purge_changes_only_the_dead_letters(redis: Database, dead: InProcess) -> None:
    def rest() -> dict[str, bytes]:
        return {
            key: value
            for key, value in everything(redis).items()
            if key not in (KEYS.dead, KEYS.dead_ids, KEYS.dead_bytes, KEYS.metrics, KEYS.audit)
        }

    before = rest()
    result = dead("purge", "--all", "--yes")
    assert (result.code, result.out) == (0, "6 removed\n")
    assert (rest(), buried(redis), balanced(redis)["dead"]) == (before, [], 6)


@pytest.mark.usefixtures("six")
def test_without_yes_a_purge_says_what_it_would_do(redis: Database, dead: InProcess) -> None:
    for more in ((), ("--json",)):
        result = dead("purge", "--reason", "limit:category", *more)
        assert (result.code, result.out) == (2, "")
        assert "error: 2 dead letters would be removed for good; with --yes it is done" in result.err
    assert len(buried(redis)) == 6


@pytest.mark.usefixtures("six")
@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, 6), ("y", 0, 0)])
def test_on_a_terminal_a_purge_asks(redis: Database, redis_url: str, answer: str, code: int, left: int) -> None:
    done, said = run_typing(answer, "dead", "purge", "--all", env={"DISPATCHER_REDIS_URL": redis_url})
    assert (done.code, len(buried(redis))) == (code, left)
    assert "Remove 6 dead letters for good? [y/N]:" in said
    assert ("error: nothing was removed" in said) == (answer == "n")


@pytest.mark.usefixtures("six")
def test_on_a_terminal_a_purge_that_prints_json_does_not_ask(redis: Database, redis_url: str) -> None:
    done, said = run_typing("y", "dead", "purge", "--all", "--json", env={"DISPATCHER_REDIS_URL": redis_url})
    assert (done.code, len(buried(redis))) == (2, 6)
    assert "6 dead letters would be removed for good" in said


def test_on_a_terminal_a_long_replay_shows_how_far_it_is(redis: Database, redis_url: str) -> None:
    bury(redis, numbered(300))
    env = {"DISPATCHER_REDIS_URL": redis_url, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "100"}
    with terminal() as (stderr, written):
        done = run_on(Streams(stderr=stderr), "dead", "replay", "--all", **env)
        drawn = written()
    assert done.out == "300 replayed, 0 skipped, 0 gone\n"
    assert "100%" in drawn
    assert "300 replayed, 0 skipped, 0 gone" in drawn


# Bounds


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [("max: 2", ["e3", "e4"]), ("max_age: 1h", ["e2", "e3", "e4"]), ("max: 1, max_age: 1h", ["e4"])],
)
def test_dead_letters_beyond_the_bounds_of_the_limits_file_are_trimmed_and_logged(
    redis: Database, redis_url: str, tmp_path: Path, bounds: str, kept: list[str]
) -> None:
    events = numbered(5)
    bury(redis, events[:2], ago_s=7_200)
    bury(redis, events[2:], ago_s=60)
    limits = tmp_path / "limits.yaml"
    limits.write_text(f"dead_letters: {{{bounds}}}\n", encoding="utf-8")
    env = {
        "DISPATCHER_REDIS_URL": redis_url,
        "DISPATCHER_LIMITS_FILE": str(limits),
        "DISPATCHER_SINK": "console",
    }
    with Command("worker", "--burst", env=env, cwd=tmp_path) as worker:
        assert worker.wait() == 0, worker.stderr()
        (line,) = worker.named("dead_letters.trimmed")
    assert (line["count"], line["level"]) == (5 - len(kept), "warning")
    assert buried(redis) == kept
    assert balanced(redis)["dead"] == 5


def test_a_worker_has_logged_all_trimmed_dead_letters_when_it_ends(
    redis: Database, redis_url: str, tmp_path: Path
) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("unknown_categories: reject\ndead_letters: {max: 2}\n", encoding="utf-8")
    Producer(redis).send_many(numbered(5))
    env = {
        "DISPATCHER_REDIS_URL": redis_url,
        "DISPATCHER_LIMITS_FILE": str(limits),
        "DISPATCHER_SINK": "console",
    }
    with Command("worker", "--burst", env=env, cwd=tmp_path) as worker:
        assert worker.wait() == 0, worker.stderr()
        assert sum(line["count"] for line in worker.named("dead_letters.trimmed")) == 3
    assert buried(redis) == ["e3", "e4"]
    assert balanced(redis)["dead"] == 5


# Where nothing is


def test_where_nothing_has_run_every_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (("list",), ("show", "x"), ("replay", "--all"), ("purge", "--all", "--yes")):
        result = InProcess(monkeypatch, capsys)("dead", *command)
        assert (result.code, result.out) == (78, "")
        assert "nothing has run here" in result.err
    assert not Path(".dispatcher").exists()


def test_a_time_that_cannot_be_or_that_nothing_can_match_is_refused(dead: InProcess) -> None:
    for choice, said in (
        (("--since", "17321"), "'17321', expected a time such as 2h (that long ago), 2026-11-21"),
        (("--since", "today", "--until", "yesterday"), "--since is not earlier than --before"),
    ):
        result = dead("list", *choice)
        assert (result.code, result.out) == (2, "")
        assert said in result.err


def test_where_there_are_none_all_are_listed_replayed_and_purged_without_a_trace(
    redis: Database, dead: InProcess
) -> None:
    result = dead("list")
    assert (result.code, result.out) == (0, "")
    assert "there are no dead letters" in result.err
    assert dead("replay", "--all").out == "0 replayed, 0 skipped, 0 gone\n"
    assert dead("purge", "--all").out == "0 removed\n"
    assert trail(redis) == []

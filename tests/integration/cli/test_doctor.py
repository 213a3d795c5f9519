"""``dispatcher doctor``: each condition on a real server or the stand-in, what is said of it and what to do."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dispatcher.app.checks import ServerFacts
from dispatcher.cli.doctor.examination import examine
from dispatcher.cli.doctor.finding import Finding, Level
from dispatcher.cli.doctor.server import server_findings
from dispatcher.cli.doctor.slack import slack_findings
from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.keys import Keys
from dispatcher.settings.environment import Settings
from dispatcher.slack.taxonomy import row_for
from dispatcher.stand_in import SCOPES, FaultReply, Page, Setup, SlackError, StandIn, TooManyRequests, not_landed
from dispatcher.store.intake import claim_namespace
from dispatcher.store.leases import Outbox
from dispatcher.store.operator_controls import Pausing
from dispatcher.store.rq_keys import QueueKeys
from tests.support.commands import run
from tests.support.processes import LIMITS, Command, environment
from tests.support.servers import Database, RedisServer

KEYS, QUEUE = Keys("dispatcher"), QueueKeys("notifications")
OK, WARNING, ERROR = Level.OK, Level.WARNING, Level.ERROR


def findings(**settings: object) -> list[Finding]:
    """What is found with these settings; printing unless they say how to post."""
    posts = {"slack_token", "slack_webhook_url"} & settings.keys()
    return list(examine(Settings.isolated(**(settings if posts else {"sink": "console", **settings})), ()))


def findings_about(subject: str, **settings: object) -> list[Finding]:
    """Each finding about one subject."""
    return [each for each in findings(**settings) if each.about == subject]


def about(subject: str, **settings: object) -> list[tuple[Level, str]]:
    """How bad each finding about one subject is, and its words."""
    return [(each.level, each.said) for each in findings(**settings) if each.about == subject]


def one_about(subject: str, **settings: object) -> tuple[Level, str]:
    (found,) = about(subject, **settings)
    return found


def test_a_set_up_without_fault_is_said_to_be_one(own_server: RedisServer, slack: StandIn, tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    env = environment(own_server.url, slack.base_url, slack.token, limits)
    with Command("worker", env=env, cwd=tmp_path) as worker:
        worker.await_line("worker.started")
        result = run("doctor", "--json", **env)
        shown = run("doctor", **env)
    document = json.loads(result.out)
    assert (result.code, result.err, document["errors"], document["warnings"]) == (0, "", 0, 1)
    assert all(each.keys() == {"level", "about", "said", "remedy"} for each in document["findings"])
    assert [each["about"] for each in document["findings"] if each["level"] != "ok"] == ["address"]
    assert [each["about"] for each in document["findings"]] == [
        "limits", "server", "eviction", "persistence", "memory", "clock", "namespace", "queue", "limits", "books",
        "waiting", "workers", "leases", "dead letters", "slack", "scopes", "reconciliation", "slack clock", "address",
    ]  # fmt: skip
    assert shown.code == 0
    assert "ok       workers         1 is running, the last heartbeat was" in shown.out
    assert "         to do           unset DISPATCHER_SLACK_BASE_URL to post to Slack" in shown.out
    assert [line[9:25].strip() for line in shown.out.splitlines() if line[:8].rstrip() in set(Level)] == [
        each["about"] for each in document["findings"]
    ]
    assert shown.out.endswith("\nno errors, 1 warning\n")
    assert "\x1b" not in shown.out
    assert slack.workspace.posts == 0


def test_every_finding_that_is_not_ok_has_a_remedy(redis: Database, redis_url: str, slack: StandIn) -> None:
    redis.hset(KEYS.pause, mapping={"kind": "operator", "code": "token_revoked", "detail": "", "since": 1, "probe": 2})
    redis.zadd(KEYS.cooldowns, {"#ops": round(time.time() + 60) * US})
    redis.set(QUEUE.binding, "other")
    redis.hincrby(KEYS.totals, "received", 1)
    redis.set(QUEUE.suspended, 1)
    redis.xadd(KEYS.dead, {"id": "x"})
    slack.workspace.revoke_token()
    found = findings(redis_url=redis_url, slack_token=slack.token, slack_base_url=slack.base_url)
    assert all(bool(each.remedy) is (each.level is not OK) for each in found)
    assert sum(each.level is ERROR for each in found) == 4


@pytest.mark.usefixtures("tmp_path")
def test_limits_in_force_that_are_not_those_of_the_file_are_a_warning(redis_url: str) -> None:
    Path("limits.yaml").write_text("global: {limits: [5/1m]}", encoding="utf-8")
    settings = {"redis_url": redis_url, "limits_file": Path("limits.yaml")}
    assert len(about("limits", **settings)) == 1
    run("limits", "apply", "limits.yaml", DISPATCHER_REDIS_URL=redis_url)
    assert about("limits", **settings)[1] == (OK, "version 1 is in force, as limits.yaml says")
    assert about("limits", redis_url=redis_url)[1][1].startswith("version 1 is in force, published by ")
    Path("limits.yaml").write_text("global: {limits: [6/1m]}", encoding="utf-8")
    found = findings_about("limits", **settings)[1]
    assert (found.level, found.said) == (WARNING, "version 1 is in force, NOT what limits.yaml says")
    assert str(found.remedy).startswith("'dispatcher limits apply limits.yaml' publishes it")
    Path("limits.yaml").write_text("no limits", encoding="utf-8")
    assert [level for level, _ in about("limits", **settings)] == [ERROR, OK]


def test_an_unknown_setting_is_a_warning_with_the_nearest_name() -> None:
    found = list(
        examine(
            Settings.isolated(sink="console"),
            ["DISPATCHER_QUEU is not a known variable and is ignored; did you mean DISPATCHER_QUEUE?"],
        )
    )
    assert found[0] == Finding(
        WARNING,
        "settings",
        "DISPATCHER_QUEU is not a known variable and is ignored",
        "did you mean DISPATCHER_QUEUE?",
    )


def test_repeats_routes_fallbacks_and_quiet_hours_are_said_in_sentences(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(
        'defaults: {fallback: "#ops"}\n'
        "categories:\n"
        '  alerts: {once: {per: 4h}, fallback: none, routes: [{match: "team=db", channel: "#db"}]}\n'
        "quiet: {nights: {times: ['22:00-07:00'], zone: UTC, categories: [alerts], then: drop}}\n",
        encoding="utf-8",
    )
    _, *said = [each.said for each in findings_about("limits", limits_file=file)]
    assert [*said[:3], said[3].partition(", by")[0], said[4].partition(":")[0]] == [
        "alerts: of events with the same dedup_key one is posted in any 4 hours, repeats are dropped",
        "alerts, route 1: an event that names no channel is posted to #db if team is db",
        "If the channel of an event of any other category is gone or archived, it is posted to #ops",
        "Quiet hours nights: from 22:00 to 07:00 on every day",
        "Quiet hours nights",
    ]


def test_every_fault_and_warning_of_the_limits_file_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("global: {limits: [5]}\nother: 1\n", encoding="utf-8")
    assert [level for level, _ in about("limits", limits_file=file)] == [ERROR, ERROR]
    file.write_text("global: {limits: [5/1m]}\ncategories: {errors: {limits: [10/1m]}}\n", encoding="utf-8")
    (warned, _), (level, said) = about("limits", limits_file=file)
    assert (warned, level, said) == (WARNING, OK, "limits.yaml is valid and names 1 category")


# The server


def test_a_server_that_is_away_is_said_with_what_could_be_looked_at(tmp_path: Path) -> None:
    result = run("doctor", DISPATCHER_REDIS_URL=f"unix://app:s3same@{tmp_path}/none", DISPATCHER_SINK="console")
    assert result.code == 69
    assert "error    server          unix://app:***@" in result.out
    assert "cannot be reached" in result.out
    assert "ok       limits" in result.out
    assert "ok       slack" in result.out
    assert "s3same" not in result.out + result.err
    assert "Traceback" not in result.err


def test_a_wrong_password_is_a_matter_of_configuration() -> None:
    with RedisServer(password="right") as server:
        result = run("doctor", DISPATCHER_REDIS_URL=f"unix://:wr0ng@{server.socket}", DISPATCHER_SINK="console")
    assert result.code == 78
    assert "refuses the user name or password" in result.out
    assert "wr0ng" not in result.out + result.err


def test_settings_that_cannot_be_read_end_it() -> None:
    result = run("doctor", DISPATCHER_BATCH="many")
    assert (result.code, result.out) == (78, "")


def test_an_eviction_policy_is_an_error_with_a_bound_and_a_warning_without(own_server: RedisServer) -> None:
    with connect(own_server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert one_about("eviction", redis_url=own_server.url) == (
            WARNING,
            "maxmemory-policy is allkeys-lru: harmless as long as there is no maxmemory",
        )
        client.config_set("maxmemory", "500mb")
        assert one_about("eviction", redis_url=own_server.url)[0] is ERROR


def test_persistence_is_looked_at(own_server: RedisServer, redis_url: str) -> None:
    url = own_server.url
    with connect(url) as client:
        assert one_about("persistence", redis_url=url)[1].startswith("AOF with appendfsync everysec")
        client.config_set("appendfsync", "always")
        assert one_about("persistence", redis_url=url)[0] is OK
        client.config_set("appendfsync", "no")
        assert one_about("persistence", redis_url=url)[0] is WARNING
    level, said = one_about("persistence", redis_url=redis_url)
    assert (level, said) == (WARNING, "appendonly is off: when the server ends, everything that waits is lost")


def test_memory_is_compared_with_its_bound(own_server: RedisServer) -> None:
    with connect(own_server.url) as client:
        assert one_about("memory", redis_url=own_server.url)[0] is OK
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used * 100)
        assert one_about("memory", redis_url=own_server.url)[0] is OK
        client.config_set("maxmemory", round(used / 0.85))
        level, said = one_about("memory", redis_url=own_server.url)
        assert (level, "soon it refuses events" in said) == (WARNING, True)
        client.config_set("maxmemory", "1kb")
        level, said = one_about("memory", redis_url=own_server.url)
        assert (level, "full and refuses events" in said) == (ERROR, True)


@pytest.mark.parametrize(("ahead_s", "said"), [(60, "1m 0s ahead of"), (-7200, "2h 0m behind")])
def test_a_clock_that_differs_is_told(redis_url: str, ahead_s: float, said: str) -> None:
    settings = Settings.isolated(redis_url=redis_url, sink="console")
    found = examine(settings, (), clock=lambda: time.time() + ahead_s)
    (clock,) = [each for each in found if each.about == "clock"]
    assert (clock.level, clock.said) == (WARNING, f"this machine's clock is {said} the server's")


def test_a_replica_takes_no_writes(own_server: RedisServer) -> None:
    with connect(own_server.url) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert (ERROR, "this is a replica and takes no writes") in about("server", redis_url=own_server.url)


def test_a_server_that_hides_what_it_is_is_told_so(own_server: RedisServer) -> None:
    with connect(own_server.url) as client:
        client.acl_setuser("app", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-info", "-config"])
        url = f"unix://app:pw@{own_server.socket}"
        level, said = one_about("server", redis_url=url)
        assert (level, said) == (WARNING, f"unix://app:***@{own_server.socket} answers and does not let us read INFO")
        client.acl_setuser("app", enabled=True, commands=["+info"])
        assert one_about("persistence", redis_url=url)[1].startswith("AOF; how often it is flushed")
        client.acl_setuser("app", enabled=True, commands=["-evalsha", "-script"])
        found = findings(redis_url=url)
    assert [each.cause is not None for each in found if each.level is ERROR] == [True]
    assert any("the server's ACL does not let" in each.said for each in found)


@pytest.mark.parametrize(
    ("info", "subject", "level", "said"),
    [
        ({"redis_version": "6.2.14"}, "server", ERROR, "redis 6.2.14: it is too old"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.1"}, "server", OK, "valkey 8.1.1: it, answers in 2.0 ms"),
        ({"cluster_enabled": 1}, "server", ERROR, "this is a node of a cluster, which is not supported"),
        (
            {"aof_last_write_status": "err"},
            "persistence",
            ERROR,
            "the last write to the AOF failed: the server refuses writes",
        ),
        (
            {"rdb_last_bgsave_status": "err"},
            "persistence",
            WARNING,
            "the last snapshot failed: the server may refuse writes",
        ),
        (
            {"used_memory": 900_000_000, "total_system_memory": 1_000_000_000},
            "memory",
            WARNING,
            "900 MB of the machine's 1.0 GB are used, there is no maxmemory: when it is full, the server is killed",
        ),
    ],
    ids=["too old", "valkey", "cluster", "aof", "snapshot", "machine"],
)
def test_doctor_reads_the_facts_of_servers_that_the_tests_do_not_run(
    info: dict[str, Any], subject: str, level: Level, said: str
) -> None:
    healthy = {"redis_version": "7.0.15", "aof_enabled": 1}
    facts = ServerFacts({**healthy, **info}, "everysec", None, round_trip_s=0.002, ahead_s=0.0)
    assert (level, said) in [(each.level, each.said) for each in server_findings(facts, "it") if each.about == subject]


@pytest.mark.parametrize(("ahead_s", "level"), [(-6.0, OK), (6.0, OK), (-8.5, WARNING), (8.5, WARNING)])
def test_a_server_that_answers_late_is_not_taken_for_one_with_another_clock(ahead_s: float, level: Level) -> None:
    facts = ServerFacts({}, None, None, round_trip_s=12.0, ahead_s=ahead_s)
    assert [each.level for each in server_findings(facts, "it") if each.about == "clock"] == [level]


# The embedded server


def test_no_embedded_server_is_started_where_none_has_run(tmp_path: Path) -> None:
    level, said = one_about("server", data_dir=tmp_path / "data")
    assert level is OK
    assert said.startswith(
        f"none has run in {tmp_path}/data yet; 'dispatcher up' or 'dispatcher worker' starts the embedded one, "
    )
    assert not (tmp_path / "data").exists()


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user who may not write everywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("below", [".", "data", "some/data"])
def test_a_data_dir_that_cannot_be_written_is_an_error(below: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o555)
        with unprivileged():
            found = findings_about("data dir", data_dir=Path(place, below))
        Path(place).chmod(0o755)
    assert [(each.level, each.said.partition(": ")[2]) for each in found] == [
        (ERROR, f"this user must not write in {place}")
    ]


def test_a_data_dir_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ((level, said),) = about("data dir", data_dir=tmp_path / "file" / "data")
    assert (level, said.endswith(f"{tmp_path}/file is no folder")) == (ERROR, True)


def test_the_help_says_what_each_exit_code_means() -> None:
    said = run("doctor", "--help").out.partition("Exit codes:\n")[2].partition("Examples:")[0]
    assert [line.split()[0] for line in said.splitlines() if line.strip()] == ["0", "1", "69", "78"]


def test_an_advice_about_workers_names_both_ways_and_one_about_dead_letters_the_replay(
    redis: Database, redis_url: str
) -> None:
    redis.xadd(KEYS.dead, {"id": "x"})
    (workers,) = findings_about("workers", redis_url=redis_url)
    (letters,) = findings_about("dead letters", redis_url=redis_url)
    assert workers.remedy == "start some with 'dispatcher up' or 'dispatcher worker'"
    assert letters.remedy is not None
    assert "'dispatcher dead replay'" in letters.remedy


@pytest.mark.usefixtures("tmp_path")
def test_an_embedded_server_that_has_run_is_looked_at() -> None:
    env = {"DISPATCHER_SINK": "console", "DISPATCHER_DATA_DIR": "data"}
    assert run("send", "errors", "x", **env).code == 78
    assert run("worker", "--burst", **env).code == 0
    result = run("doctor", "--json", **env)
    server, *_ = [each for each in json.loads(result.out)["findings"] if each["about"] == "server"]
    assert result.code == 0
    assert ": embedded server in data, answers in" in server["said"]


# The namespace


def test_a_new_namespace_is_no_fault_and_stays_new(redis: Database, redis_url: str) -> None:
    found = findings(redis_url=redis_url)
    assert [each for each in found if each.level is ERROR] == []
    assert one_about("workers", redis_url=redis_url) == (WARNING, "none is running")
    assert redis.keys("*") == []


def test_a_wrong_layout_and_a_queue_of_another_namespace_are_errors(redis: Database, redis_url: str) -> None:
    claim_namespace(redis, KEYS, QUEUE)
    assert one_about("queue", redis_url=redis_url) == (OK, "notifications belongs to dispatcher")
    redis.set(QUEUE.binding, "shop")
    assert one_about("queue", redis_url=redis_url) == (
        ERROR,
        "notifications belongs to namespace shop, not to dispatcher",
    )
    redis.set(KEYS.layout, "7\x1b")
    assert one_about("namespace", redis_url=redis_url)[1].startswith("dispatcher holds key layout 7\\x1b, this version")
    assert about("books", redis_url=redis_url) == []


def test_a_worker_that_was_killed_is_missed_with_what_it_had(redis: Database, redis_url: str) -> None:
    claim_namespace(redis, KEYS, QUEUE)
    Producer(redis).send_many([{"category": "errors", "text": "x"}] * 3)
    past_us = round((time.time() - 7_230) * US)
    gone = Outbox(redis, KEYS, QUEUE, owner="h.7.gone", lease_us=US, remember_us=US, clock=lambda: past_us)
    assert len(gone.take(2, 0).batch) == 2
    beat = datetime.fromtimestamp(past_us / US, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    redis.hset("rq:worker:h.7.gone", mapping={"hostname": "h", "pid": "7", "state": "busy", "last_heartbeat": beat})
    redis.sadd("rq:workers:notifications", "rq:worker:h.7.gone")
    found = findings(redis_url=redis_url)
    said = {each.about: each.said for each in found if each.level is WARNING and each.about in {"leases", "workers"}}
    assert said == {
        "leases": "the lease of h.7.gone ended 2h 0m ago with 2 events in hand",
        "workers": "none is running, and 3 events are to be dealt with",
    }
    assert (WARNING, "h.7.gone has been silent for 2h 0m: it was killed, or hangs") in about(
        "workers", redis_url=redis_url
    )
    assert one_about("books", redis_url=redis_url) == (OK, "they balance: 2 received = 2 in flight")


def with_steady_span(said: str) -> str:
    """A busy machine looks some seconds after what was 65 s ago."""
    return re.sub(r"1m [5-9]s|1m [1-5][0-9]s", "1m 5s", said)


def test_a_pause_and_a_cool_down_are_told_with_what_ends_them(redis: Database, redis_url: str) -> None:
    now_us = round(time.time() * US)
    detail = row_for("token_revoked").words
    pause = {"kind": "operator", "code": "token_revoked", "detail": detail, "since": now_us - 65 * US, "probe": now_us}
    redis.hset(KEYS.pause, mapping=pause)
    redis.zadd(KEYS.cooldowns, {"#ops": now_us + 600 * US, "#past": now_us - US, "#poor": now_us + 600 * US})
    redis.hset(KEYS.failures, "#poor", 3)
    pause_, cooldown, failing = [each for each in findings(redis_url=redis_url) if each.about == "posting"]
    assert replace(pause_, said=with_steady_span(pause_.said)) == Finding(
        ERROR,
        "posting",
        "paused for 1m 5s by token_revoked: Slack does not accept the token",
        "put the bot token in DISPATCHER_SLACK_TOKEN and restart, or in its file and send SIGHUP",
    )
    assert cooldown.level is WARNING
    assert cooldown.said.startswith("Slack asked for a pause in #ops, another ")
    assert failing.said.startswith("#poor gives no clear answers, the next post to it tries in ")
    assert "lower the channel's pace" not in (failing.remedy or "")


def test_history_scans_that_wait_are_told_as_such_and_not_as_a_channel(redis: Database, redis_url: str) -> None:
    """After a 429 to one of them all wait; posts go on."""
    redis.zadd(KEYS.cooldowns, {"conversations.history": round((time.time() + 600) * US)})
    (found,) = [each for each in findings(redis_url=redis_url) if each.about in {"posting", "history scans"}]
    assert found.about == "history scans"
    assert re.match(r"Slack limits history scans, the next one is made in (10m|9m 5[0-9]s)", found.said)
    status = run("status", DISPATCHER_REDIS_URL=redis_url).out
    assert re.search(r"History scans +Slack limits them, the next in (10m|9m 5[0-9]s)", status)
    assert "conversations.history" not in status
    (cooldown,) = json.loads(run("status", "--json", DISPATCHER_REDIS_URL=redis_url).out)["cooldowns"]
    assert cooldown["scope"] == "history-scans"


@pytest.mark.parametrize(
    ("failures", "begins"),
    [
        (0, "Slack asked for a pause in edits of messages, another "),
        (3, "edits of messages get no clear answers, the next edit tries in "),
    ],
)
def test_edits_that_cool_down_are_told_as_such_and_not_as_a_channel(
    redis: Database, redis_url: str, failures: int, begins: str
) -> None:
    """Their pace is fixed: no setting makes it slower."""
    redis.zadd(KEYS.cooldowns, {"edits": round((time.time() + 600) * US)})
    redis.hset(KEYS.failures, "edits", failures)
    (found,) = [each for each in findings(redis_url=redis_url) if each.about == "posting"]
    assert found.said.startswith(begins)
    assert "pace" not in (found.remedy or "")
    assert re.search(r"^\W*\(edits\) ", run("status", DISPATCHER_REDIS_URL=redis_url).out, re.MULTILINE)
    (cooldown,) = json.loads(run("status", "--json", DISPATCHER_REDIS_URL=redis_url).out)["cooldowns"]
    assert cooldown["scope"] == "edits"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("outage", "Slack has not been reached for 1m 5s, http_503: no answer of Slack's own came back"),
        (
            "cooldown",
            "the whole workspace has been cooling down for 1m 5s, http_503: no answer of Slack's own came back",
        ),
    ],
)
def test_an_outage_is_told_as_what_ends_by_itself(redis: Database, redis_url: str, kind: str, said: str) -> None:
    now_us = round(time.time() * US)
    facts = {"code": "http_503", "detail": "no answer of Slack's own came back"}
    redis.hset(KEYS.pause, mapping={"kind": kind, **facts, "since": now_us - 65 * US, "probe": now_us})
    (found,) = [each for each in findings(redis_url=redis_url) if each.about == "posting"]
    assert (found.level, with_steady_span(found.said)) == (WARNING, said)
    assert (found.remedy or "").startswith("it is tried again automatically; ")
    Pausing(redis, KEYS).pause("*", "ops@here")
    by_hand, again = [each for each in findings(redis_url=redis_url) if each.about == "posting"]
    assert (by_hand.remedy, again.remedy) == ("go on: dispatcher resume", row_for("http_503").remedy)


def test_a_pause_by_hand_is_reported_with_its_remedy(redis: Database, redis_url: str) -> None:
    pausing = Pausing(redis, KEYS)
    pausing.pause("*", "ops@here")
    pausing.pause("errors", "ops@here")
    found = [each for each in findings(redis_url=redis_url) if each.about == "posting"]
    assert [each.remedy for each in found] == ["go on: dispatcher resume", "go on: dispatcher resume errors"]
    assert found[1].said.startswith("errors is paused for ")
    assert found[1].said.endswith(" by ops@here")


def test_the_number_of_waiting_events_is_compared_with_its_bound(redis: Database, redis_url: str) -> None:
    Producer(redis).send_many([{"category": "errors", "text": "x"}] * 8)
    assert one_about("waiting", redis_url=redis_url) == (OK, "8 waiting, 0 in flight, 0 parked")
    level, said = one_about("waiting", redis_url=redis_url, max_waiting=10)
    assert (level, said) == (WARNING, "8 waiting, 0 in flight, 0 parked; from 10 in all on producers are refused")
    (found,) = findings_about("waiting", redis_url=redis_url, max_waiting=10)
    assert "start more workers" in (found.remedy or "")
    redis.delete(*QUEUE.lanes)
    redis.zadd(KEYS.parked, {str(n): 1 for n in range(8)})
    level, said = one_about("waiting", redis_url=redis_url, max_waiting=10)
    assert (level, said) == (WARNING, "0 waiting, 0 in flight, 8 parked; from 10 in all on producers are refused")
    (found,) = findings_about("waiting", redis_url=redis_url, max_waiting=10)
    assert "start more workers" not in (found.remedy or "")
    assert "cancel what is out of date" in (found.remedy or "")
    redis.delete(KEYS.parked)
    redis.set(QUEUE.suspended, 1)
    level, said = one_about("waiting", redis_url=redis_url)
    assert (level, "taking is suspended" in said) == (WARNING, True)


def test_dead_letters_and_books_that_do_not_balance_are_told(redis: Database, redis_url: str) -> None:
    assert one_about("dead letters", redis_url=redis_url) == (OK, "none")
    redis.xadd(KEYS.dead, {"id": "x"})
    redis.hincrby(KEYS.totals, "received", 1)
    assert one_about("dead letters", redis_url=redis_url) == (WARNING, "1 is kept for somebody to look at")
    level, said = one_about("books", redis_url=redis_url)
    assert (level, said.startswith("they do not balance: received is 1")) == (ERROR, True)


# Slack


@pytest.mark.parametrize(
    ("scopes", "level", "said"),
    [
        (("chat:write", "chat:write.public", "chat:write.customize", "channels:history"), OK, "public"),
        (("chat:write", "chat:write.public"), OK, "public"),
        (("chat:write",), WARNING, "the app can post only where it was invited"),
        (("channels:read",), ERROR, "nothing can be posted"),
        ((), WARNING, "names none"),
    ],
    ids=["all", "needed", "not public", "none that posts", "none named"],
)
def test_the_scopes_of_the_token_are_read(scopes: tuple[str, ...], level: Level, said: str) -> None:
    with StandIn(setup=Setup(scopes=scopes)) as slack:
        found = one_about("scopes", slack_token=slack.token, slack_base_url=slack.base_url)
        assert (found[0], found[1].endswith(said)) == (level, True)
        assert slack.workspace.posts == 0


def test_scopes_that_look_ups_need_are_missed() -> None:
    with StandIn() as slack:
        found = one_about("reconciliation", slack_token=slack.token, slack_base_url=slack.base_url)
    said = "posts with an unknown delivery status are searched for in channels that the app is a member of"
    assert found == (OK, f"the token may read histories: {said}; messages to one person also need im:history")
    with StandIn(setup=Setup(scopes=(*SCOPES, "im:history"))) as slack:
        found = one_about("reconciliation", slack_token=slack.token, slack_base_url=slack.base_url)
    assert found == (OK, f"the token may read histories: {said}")
    with StandIn(setup=Setup(scopes=("chat:write", "channels:history", "channels:read"))) as slack:
        level, said = one_about("reconciliation", slack_token=slack.token, slack_base_url=slack.base_url)
    assert (level, said.partition(" absent")[0]) == (WARNING, "groups:history, groups:read")


def slack_clock(slack_ahead_s: float, **settings: object) -> list[Finding]:
    """What is said of the clocks where Slack's is so far ahead of this machine's."""
    with StandIn(setup=Setup(clock=lambda: time.time() + slack_ahead_s)) as slack:
        return findings_about("slack clock", slack_token=slack.token, slack_base_url=slack.base_url, **settings)


AGREE = Finding(OK, "slack clock", "the Redis server and Slack agree on the time")


@pytest.mark.parametrize("slack_ahead_s", [-1, 0, 3])
def test_slack_and_the_server_agree_on_the_time_within_a_few_seconds(redis_url: str, slack_ahead_s: float) -> None:
    assert slack_clock(slack_ahead_s, redis_url=redis_url) == [AGREE]
    assert slack_clock(slack_ahead_s) == [AGREE], "the embedded server that is to come runs on this machine"


@pytest.mark.parametrize("slack_ahead_s", [-90, 90])
def test_a_clock_of_slack_s_that_differs_from_the_server_s_is_a_warning(redis_url: str, slack_ahead_s: float) -> None:
    (found,) = slack_clock(slack_ahead_s, redis_url=redis_url)
    assert found.level is WARNING
    assert found.remedy is not None
    assert found.remedy.startswith("set the server's clock right (NTP)")


@pytest.mark.parametrize(
    ("server_ahead_s", "said"),
    [(6, "6.0s ahead of"), (90, "1m 30s ahead of"), (-6, "6.0s behind"), (-3_600, "1h 0m behind")],
)
@pytest.mark.parametrize("machine_ahead_s", [0, 600])
def test_a_clock_difference_is_reported_with_its_direction_and_size(
    server_ahead_s: float, said: str, machine_ahead_s: float
) -> None:
    slack_s = 1_732_100_000.0
    machine_s = slack_s + machine_ahead_s
    with StandIn(setup=Setup(clock=lambda: slack_s)) as slack:
        settings = Settings.isolated(slack_token=slack.token, slack_base_url=slack.base_url)
        found = list(slack_findings(settings, None, lambda: machine_s, machine_ahead_s - server_ahead_s))
    (told,) = [each.said for each in found if each.about == "slack clock"]
    assert told == f"the Redis server's clock is {said} Slack's"


@pytest.mark.parametrize(
    ("server_ahead_s", "said"),
    [
        (0, "the Redis server and Slack agree on the time"),
        (-34, "the Redis server and Slack agree on the time"),
        (6, "the Redis server's clock is 6.0s ahead of Slack's"),
        (-36, "the Redis server's clock is 6.0s behind Slack's"),
    ],
)
def test_a_clock_difference_that_the_time_of_the_call_explains_is_none(server_ahead_s: float, said: str) -> None:
    slack_s = 1_732_100_000.0
    machine_s = iter([slack_s, slack_s + 30])
    with StandIn(setup=Setup(clock=lambda: slack_s)) as slack:
        settings = Settings.isolated(slack_token=slack.token, slack_base_url=slack.base_url)
        found = list(slack_findings(settings, None, lambda: next(machine_s), -server_ahead_s))
    (told,) = [each.said for each in found if each.about == "slack clock"]
    assert told == said


def test_this_machine_s_clock_says_nothing_of_the_server_s_and_slack_s(redis_url: str, slack: StandIn) -> None:
    settings = Settings.isolated(redis_url=redis_url, slack_token=slack.token, slack_base_url=slack.base_url)
    found = examine(settings, (), clock=lambda: time.time() + 600)
    assert [each.level for each in found if each.about in {"clock", "slack clock"}] == [WARNING, OK]


def test_without_a_server_or_an_answer_of_slack_s_nothing_is_said_of_their_clocks(tmp_path: Path) -> None:
    assert slack_clock(90, redis_url=f"unix://{tmp_path}/none") == []
    with StandIn(setup=Setup(clock=lambda: time.time() + 90)) as slack:
        slack.workspace.revoke_token()
        assert findings_about("slack clock", slack_token=slack.token, slack_base_url=slack.base_url) == []


@pytest.mark.usefixtures("tmp_path")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_scope_that_the_limits_file_needs_for_names_and_icons_is_missed(is_there: bool) -> None:  # noqa: FBT001 - a case
    Path("limits.yaml").write_text("categories: {errors: {username: Errors}}\n", encoding="utf-8")
    scopes = ("chat:write", "chat:write.public", *(["chat:write.customize"] if is_there else []))
    with StandIn(setup=Setup(scopes=scopes)) as slack:
        found = about(
            "scopes", slack_token=slack.token, slack_base_url=slack.base_url, limits_file=Path("limits.yaml").absolute()
        )
    missed = (
        WARNING,
        "chat:write.customize is missing: username, icon_emoji and icon_url of the limits file have no effect",
    )
    assert [each == missed for each in found] == ([False] if is_there else [False, True])


@pytest.mark.parametrize(
    ("reply", "level", "said"),
    [
        (SlackError("token_revoked"), ERROR, "token_revoked: Slack does not accept the token"),
        (TooManyRequests("30"), WARNING, "ratelimited: Slack asks to come back in 30s, the token was not checked"),
        (
            Page(200, "<html>proxy: login</html>"),
            ERROR,
            "unreadable_reply: the answer was not what Slack documents (<html>",
        ),
        (Page(502), ERROR, "http_502: no answer of Slack's own came back"),
        (SlackError("code_of_tomorrow"), ERROR, "code_of_tomorrow: the answer has no meaning known to this version"),
    ],
    ids=lambda value: getattr(value, "code", None) or type(value).__name__,
)
def test_a_failed_token_check_is_reported_with_slacks_answer(
    slack: StandIn, reply: FaultReply, level: Level, said: str
) -> None:
    slack.faults.add(not_landed(reply), kind="auth.test")
    found = one_about("slack", slack_token=slack.token, slack_base_url=slack.base_url)
    assert (found[0], found[1][: len(said)]) == (level, said)


def test_a_slack_that_is_down_is_told(slack: StandIn) -> None:
    with slack.down():
        found = one_about("slack", slack_token=slack.token, slack_base_url=slack.base_url)
        (advised,) = findings_about("slack", slack_token=slack.token, slack_base_url=slack.base_url)
        (usual,) = findings_about("slack", slack_token=slack.token, slack_base_url="http://127.0.0.1:8901/api/")
    said = f"connection_refused: nobody listens at {slack.base_url}, the address of a stand-in on this machine"
    assert found == (ERROR, said)
    assert advised.remedy == f"start it: dispatcher slack-stand-in --port {urlsplit(slack.base_url).port}"
    assert usual.level is OK or usual.remedy == "start it: dispatcher slack-stand-in"


def test_a_webhook_cannot_be_checked_and_it_is_said(slack: StandIn) -> None:
    level, said = one_about("slack", slack_webhook_url=slack.webhook_url)
    assert (level, said.partition(";")[0]) == (WARNING, "a webhook cannot be checked without posting")
    assert slack.workspace.posts == 0


def test_no_way_to_post_is_an_error_and_printing_is_none() -> None:
    (found,) = [each for each in examine(Settings.isolated(), ()) if each.about == "slack"]
    assert (found.level, found.said) == (ERROR, "no way to post")
    assert found.remedy is not None
    assert "run 'dispatcher slack-stand-in'" in found.remedy
    assert one_about("slack", sink="console")[0] is OK


def test_an_address_of_another_machine_is_noted(slack: StandIn) -> None:
    url = slack.base_url.replace("127.0.0.1", "localhost")
    assert one_about("address", slack_token=slack.token, slack_base_url=url)[0] is WARNING
    elsewhere = "http://slack.invalid/api/"
    assert one_about("address", slack_token=slack.token, slack_base_url=elsewhere, slack_timeout=1) == (
        OK,
        f"posts go to {elsewhere} in place of Slack's own address",
    )

"""``dispatcher health`` beside real workers and a real server."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from dispatcher.core.units import US
from dispatcher.server.keys import Keys
from dispatcher.slack.taxonomy import row_for
from dispatcher.store.rq_keys import QueueKeys
from tests.support.commands import run
from tests.support.processes import Command, until
from tests.support.servers import RedisServer

KEYS, QUEUE = Keys("dispatcher"), QueueKeys("notifications")
HOST = socket.gethostname()


def test_a_worker_is_healthy_while_it_beats_and_not_when_it_hangs(redis_url: str, tmp_path: Path) -> None:
    env = {
        "DISPATCHER_REDIS_URL": redis_url,
        "DISPATCHER_SINK": "console",
        "DISPATCHER_SLACK_TIMEOUT": "500ms",
        "DISPATCHER_LEASE": "2s",
    }
    with Command("worker", env=env, cwd=tmp_path) as worker:
        worker.await_line("worker.started")
        until(lambda: run("health", **env).code == 0, "a healthy worker")
        assert re.match(rf"healthy: a worker of host {HOST} has a lease for another \d s ", run("health", **env).out)
        worker.signal(signal.SIGSTOP)
        until(lambda: run("health", **env).code == 1, "an unhealthy worker")
        said = rf"unhealthy: the lease of the last worker of host {HOST} ended \d+ s ago in namespace dispatcher "
        assert re.match(said, run("health", **env).out)
        worker.signal(signal.SIGCONT)
        until(lambda: run("health", **env).code == 0, "a healthy worker again")


@pytest.mark.parametrize("owner", ["elsewhere.1.0a1b2c", f"{HOST}.local.1.0a1b2c", f"job.{HOST}.1.0a1b2c"])
def test_a_lease_of_nobody_on_this_host_makes_it_not_healthy(redis: Redis, redis_url: str, owner: str) -> None:
    redis.zadd(KEYS.leases, {owner: time.time() * US + 60 * US})
    answer = run("health", DISPATCHER_REDIS_URL=redis_url)
    assert (answer.code, answer.err) == (1, "")
    assert answer.out.startswith(f"unhealthy: no worker of host {HOST} has a lease in namespace dispatcher on ")


@pytest.mark.parametrize("question", [("health",), ("health", "--ready"), ("health", "--json")], ids=" ".join)
def test_without_a_server_the_answer_is_no_and_shows_no_password(question: tuple[str, ...]) -> None:
    answer = run(*question, DISPATCHER_REDIS_URL="redis://:geheim-7@127.0.0.1:1/0")
    assert answer.code == 1
    assert answer.out.startswith(("unhealthy: ", "not ready: ", '{"healthy": false, "reason": "'))
    assert "redis://:***@127.0.0.1:1/0 cannot be reached" in answer.out
    assert "geheim" not in answer.err + answer.out


def test_it_is_ready_while_nothing_keeps_events_from_being_posted(redis_url: str) -> None:
    answer = run("health", "--ready", DISPATCHER_REDIS_URL=redis_url)
    assert answer.code == 0
    assert answer.out.startswith("ready: namespace dispatcher on ")


@pytest.mark.parametrize("data_dir", ["data", "~/data"])
def test_a_setting_that_names_no_server_is_not_looked_at(redis_url: str, data_dir: str) -> None:
    """A home folder is read by the full reader of settings."""
    others = {"DISPATCHER_DATA_DIR": data_dir, "DISPATCHER_LEASE": "soon", "DISPATCHER_SLACK_TOKEN": "a b"}
    answer = run("health", "--ready", DISPATCHER_REDIS_URL=redis_url, **others)
    assert (answer.code, answer.out[:7], answer.err) == (0, "ready: ", "")


@pytest.mark.parametrize("options", [("--ready",), ("--ready", "--json")], ids=" ".join)
@pytest.mark.parametrize("url", ["", "http://x"], ids=["good", "wrong"])
def test_a_name_that_is_misspelt_is_a_warning_on_stderr(redis_url: str, url: str, options: tuple[str, ...]) -> None:
    answer = run("health", *options, DISPATCHER_REDIS_URL=url or redis_url, DISPATCHER_QUEU="q")
    said = "DISPATCHER_QUEU is not a known variable and is ignored; did you mean DISPATCHER_QUEUE?"
    assert (answer.code, answer.err) == (1 if url else 0, f"dispatcher: warning: {said}\n")
    assert answer.out.count("\n") == 1


def pause_posting(redis: Redis) -> str:
    code, now_us = "token_revoked", round(time.time() * US)
    redis.hset(KEYS.pause, mapping={"kind": "operator", "code": code, "detail": "", "since": now_us, "probe": now_us})
    return f"posting is paused by {code}, {row_for(code).told}; to do: {row_for(code).remedy}\n"


def bind_queue_elsewhere(redis: Redis) -> str:
    redis.set(QUEUE.binding, "other")
    return "queue notifications belongs to namespace other, not to dispatcher\n"


def write_another_layout(redis: Redis) -> str:
    redis.set(KEYS.layout, "999")
    return "namespace 'dispatcher' holds key layout '999'"


def break_limits(_redis: Redis) -> str:
    Path("limits.yaml").write_text("global: {limits: [many]}\n", encoding="utf-8")
    return f"{Path.cwd()}/limits.yaml:1:19: "


@pytest.mark.usefixtures("tmp_path")
@pytest.mark.parametrize("harm", [pause_posting, bind_queue_elsewhere, write_another_layout, break_limits])
def test_it_is_not_ready_before_an_operator_has_acted(
    redis: Redis, redis_url: str, harm: Callable[[Redis], str]
) -> None:
    said = harm(redis)
    limits = {"DISPATCHER_LIMITS_FILE": "limits.yaml"} if Path("limits.yaml").exists() else {}
    answer = run("health", "--ready", DISPATCHER_REDIS_URL=redis_url, **limits)
    assert (answer.code, answer.err) == (1, "")
    assert answer.out.startswith(f"not ready: {said}")


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        (["+@all", "-@scripting"], "the server's ACL does not let the user of DISPATCHER_REDIS_URL do"),
        (["+@all", "-setrange"], "the server can only be read, its ACL does not let the user of DISPATCHER_REDIS_URL"),
    ],
    ids=["no scripts", "no writes"],
)
def test_it_is_not_ready_for_a_user_whom_the_acl_refuses_what_workers_do(
    own_server: RedisServer, commands: list[str], said: str
) -> None:
    with own_server.client() as client:
        client.acl_setuser("poor", enabled=True, nopass=True, commands=commands, keys=["*"], channels=["*"])
    answer = run("health", "--ready", DISPATCHER_REDIS_URL=own_server.url.replace("unix://", "unix://poor:any@"))
    assert (answer.code, answer.err) == (1, "")
    assert answer.out.startswith(f"not ready: {said}")


def test_as_json_the_answer_and_its_reason_are_one_object(redis: Redis, redis_url: str) -> None:
    def told(*question: str) -> tuple[int, dict[str, object], str]:
        answer = run("health", *question, "--json", DISPATCHER_REDIS_URL=redis_url)
        return answer.code, json.loads(answer.out), answer.err

    def said(*question: str) -> str:
        return run("health", *question, DISPATCHER_REDIS_URL=redis_url).out.partition(": ")[2].rstrip("\n")

    assert told() == (1, {"healthy": False, "reason": said()}, "")
    redis.zadd(KEYS.leases, {f"{HOST}.1.0a1b2c": time.time() * US + 3_600 * US})
    code, answer, _ = told()
    assert (code, answer["healthy"]) == (0, True)
    assert str(answer["reason"]).startswith(f"a worker of host {HOST} has a lease for another ")
    assert told("--ready") == (0, {"ready": True, "reason": said("--ready")}, "")
    pause_posting(redis)
    assert told("--ready") == (1, {"ready": False, "reason": said("--ready")}, "")


def test_it_is_not_ready_while_the_server_takes_no_writes() -> None:
    with RedisServer() as server, server.client() as client:
        client.config_set("maxmemory", "1mb")
        answer = run("health", "--ready", DISPATCHER_REDIS_URL=server.url)
    assert answer.code == 1
    assert answer.out.startswith("not ready: the server can only be read, its memory is full (maxmemory)")

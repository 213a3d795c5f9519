"""A pause since Slack refuses the token: workers with another one end it at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from dispatcher.core.policy import WEBHOOK
from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.server.keys import Keys
from dispatcher.stand_in import StandIn
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from tests.support.processes import LIMITS, Command, environment, until
from tests.support.servers import Database

KEYS, QUEUE = Keys("dispatcher"), QueueKeys("notifications")


def test_a_worker_that_starts_with_a_corrected_token_tries_at_once_and_one_with_the_refused_token_waits(
    redis: Database, redis_url: str, tmp_path: Path
) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    Producer(redis).send("errors", "x")
    with StandIn() as slack:
        wrong = environment(redis_url, slack.base_url, "xoxb-mistyped", limits)
        with Command("worker", env=wrong, cwd=tmp_path) as worker:
            paused = worker.await_line("slack.paused")
            assert paused["code"] == "invalid_auth"
            assert "next_try_s" not in paused
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        redis.hset(KEYS.pause, "probe", round((time.time() + 3_600) * US))
        with Command("worker", env=wrong, cwd=tmp_path) as worker:
            told = worker.await_line("slack.paused")
            assert (told["code"], told["detail"]) == (paused["code"], paused["detail"])
            assert told["next_try_s"] > 3_000
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        with Command("worker", env={**wrong, "DISPATCHER_SLACK_TOKEN": slack.token}, cwd=tmp_path) as worker:
            assert worker.await_line("slack.paused")["next_try_s"] == 0
            until(lambda: len(slack.ledger) == 1, "the post")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        assert Books(redis, KEYS, QUEUE).snapshot().pause is None
        with Command("worker", "--burst", env=wrong, cwd=tmp_path) as worker:
            assert worker.wait() == 0
            assert worker.named("slack.paused") == []


def test_a_token_that_is_replaced_in_its_file_is_used_after_sighup(
    redis: Database, redis_url: str, tmp_path: Path
) -> None:
    limits, token = tmp_path / "limits.yaml", tmp_path / "token"
    limits.write_text(LIMITS, encoding="utf-8")
    token.write_text("xoxb-mistyped\n", encoding="utf-8")
    producer = Producer(redis)
    producer.send("errors", "x")
    with StandIn() as slack:
        env = environment(redis_url, slack.base_url, "", limits, DISPATCHER_SLACK_TOKEN_FILE=str(token))
        del env["DISPATCHER_SLACK_TOKEN"]
        with Command("worker", env=env, cwd=tmp_path) as worker:
            worker.await_line("slack.paused")
            redis.hset(KEYS.pause, "probe", round((time.time() + 3_600) * US))
            token.write_text("", encoding="utf-8")
            worker.signal(signal.SIGHUP)
            (fault,) = worker.await_line("credential.refused")["faults"]
            assert fault.startswith("DISPATCHER_SLACK_TOKEN_FILE is ")
            token.write_text(slack.token, encoding="utf-8")
            worker.signal(signal.SIGHUP)
            worker.await_line("credential.changed")
            until(lambda: len(slack.ledger) == 1, "the post")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
            assert slack.token not in worker.stderr()


def test_after_sighup_with_a_webhook_in_place_of_the_token_all_goes_to_its_channel(
    redis: Database, redis_url: str, tmp_path: Path
) -> None:
    limits, dotenv = tmp_path / "limits.yaml", tmp_path / ".env"
    limits.write_text(LIMITS, encoding="utf-8")
    producer = Producer(redis)
    with StandIn() as slack:
        env = environment(redis_url, slack.base_url, "", limits)
        del env["DISPATCHER_SLACK_TOKEN"]
        dotenv.write_text(f"DISPATCHER_SLACK_TOKEN={slack.token}\n", encoding="utf-8")
        with Command("worker", env=env, cwd=tmp_path) as worker:
            producer.send("errors", "first", channel="#a")
            until(lambda: len(slack.ledger) == 1, "the first post")
            dotenv.write_text(f"DISPATCHER_SLACK_WEBHOOK_URL={slack.webhook_url}\n", encoding="utf-8")
            worker.signal(signal.SIGHUP)
            worker.await_line("credential.changed")
            producer.send("errors", "second", channel="#a")
            until(lambda: len(worker.named("event.settled")) == 2, "both log lines")
            assert [each["channel"] for each in worker.named("event.settled")] == ["#a", WEBHOOK]
            assert [each.channel for each in slack.ledger.posted()] == ["#a", "#webhook"]
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0


def test_a_worker_that_takes_the_place_of_a_crashed_one_reads_the_token_again(redis_url: str, tmp_path: Path) -> None:
    limits, token = tmp_path / "limits.yaml", tmp_path / "token"
    limits.write_text(LIMITS, encoding="utf-8")
    token.write_text("xoxb-old", encoding="utf-8")
    env = environment(redis_url, "http://127.0.0.1:1/api/", "", limits, DISPATCHER_SLACK_TOKEN_FILE=str(token))
    del env["DISPATCHER_SLACK_TOKEN"]
    with Command("worker", "--processes", "2", env=env, cwd=tmp_path) as workers:
        until(lambda: len(workers.named("worker.started")) == 2, "two workers")
        token.write_text("xoxb-new", encoding="utf-8")
        os.kill(int(workers.named("worker.started")[0]["worker"].split(".")[-2]), signal.SIGKILL)
        workers.await_line("credential.changed")

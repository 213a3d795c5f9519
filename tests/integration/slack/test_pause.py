"""A pause of posting: told at the start of workers that find one."""

from __future__ import annotations

import signal
from pathlib import Path

from dispatcher.producer.blocking import Producer
from dispatcher.server.keys import Keys
from dispatcher.stand_in import StandIn
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from tests.support.processes import LIMITS, Command, environment, until
from tests.support.servers import Database

KEYS, QUEUE = Keys("dispatcher"), QueueKeys("notifications")


def test_a_worker_that_starts_with_a_corrected_token_says_when_the_pause_is_tried(
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
        with Command("worker", env={**wrong, "DISPATCHER_SLACK_TOKEN": slack.token}, cwd=tmp_path) as worker:
            told = worker.await_line("slack.paused")
            assert (told["code"], told["detail"]) == (paused["code"], paused["detail"])
            assert 0 <= told["next_try_s"] <= 60
            redis.hset(KEYS.pause, "probe", 1)
            redis.rpush(KEYS.wake, "1")
            until(lambda: len(slack.ledger) == 1, "the post")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        assert Books(redis, KEYS, QUEUE).snapshot().pause is None
        with Command("worker", "--burst", env=wrong, cwd=tmp_path) as worker:
            assert worker.wait() == 0
            assert worker.named("slack.paused") == []

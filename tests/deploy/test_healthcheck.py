"""The health check of the image, run as the image runs it, beside real workers."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from redis import Redis
from rq.utils import now, utcformat

from tests.support.processes import Command, until

HEALTHCHECK: Final = Path(__file__).resolve().parents[2] / "deploy" / "healthcheck.py"


def check_health(**env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, HEALTHCHECK], env=env, capture_output=True, text=True, check=False)


def test_a_worker_is_healthy_while_it_beats_and_not_when_it_hangs(redis_url: str, tmp_path: Path) -> None:
    env = {
        "DISPATCHER_REDIS_URL": redis_url,
        "DISPATCHER_SINK": "console",
        "DISPATCHER_SLACK_TIMEOUT": "500ms",
        "DISPATCHER_LEASE": "2s",
    }
    with Command("worker", env=env, cwd=tmp_path) as worker:
        worker.await_line("worker.started")
        until(lambda: check_health(**env).returncode == 0, "a healthy worker")
        worker.signal(signal.SIGSTOP)
        until(lambda: check_health(**env).returncode == 1, "an unhealthy worker")
        assert re.search(r"the last heartbeat from \S+ was \d+ s ago, expected at most 2 s", check_health(**env).stderr)
        worker.signal(signal.SIGCONT)
        until(lambda: check_health(**env).returncode == 0, "a healthy worker again")


def test_a_worker_on_another_host_makes_this_one_not_healthy(redis: Redis, redis_url: str) -> None:
    entry: dict[Any, Any] = {"hostname": "elsewhere", "pid": "1", "state": "idle", "last_heartbeat": utcformat(now())}
    redis.hset("rq:worker:elsewhere.1", mapping=entry)
    redis.sadd("rq:workers:notifications", "rq:worker:elsewhere.1")
    answer = check_health(DISPATCHER_REDIS_URL=redis_url)
    assert answer.returncode == 1
    assert re.fullmatch(r"unhealthy: no worker on \S+ is known to the server\n", answer.stderr)


def test_without_a_server_it_is_not_healthy_and_shows_no_password() -> None:
    answer = check_health(DISPATCHER_REDIS_URL="redis://:geheim-7@127.0.0.1:1/0")
    assert answer.returncode == 1
    assert answer.stderr.startswith("unhealthy: redis://:***@127.0.0.1:1/0 cannot be reached")
    assert "geheim" not in answer.stderr + answer.stdout

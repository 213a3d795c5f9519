"""Side by side with stock RQ 2.12: its producers, its workers, its tools and its maintenance on our lanes."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from rq import Queue, SimpleWorker, Worker
from rq.cli.cli import main
from rq.job import Job, JobStatus
from rq.registry import DeferredJobRegistry, FailedJobRegistry, StartedJobRegistry
from rq.results import Result
from rq.serializers import JSONSerializer
from rq.suspension import resume, suspend

from dispatcher import jobs
from dispatcher.core.units import US, Lane
from dispatcher.errors import InvalidEvent
from dispatcher.producer.blocking import Producer
from dispatcher.server.keys import Keys
from dispatcher.settings.limits_file import read_limits
from dispatcher.stand_in import StandIn
from dispatcher.store.dead_letters import DeadLetters, Filter
from dispatcher.store.intake import open_envelope
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.rq_recovery import Sweep
from dispatcher.store.snapshot import Books
from dispatcher.store.versions import Unless, Versions
from tests.support.commands import run
from tests.support.dead_letters import balanced
from tests.support.forked import SEEN_BY_ALL
from tests.support.processes import LIMITS, Command, environment, until
from tests.support.servers import Database

KEYS, QUEUE = Keys("dispatcher"), QueueKeys("notifications")
FUNCTION = "dispatcher.jobs.dispatch"
SIMPLE: Final = ("--worker-class", "rq.SimpleWorker")
"""A stock worker that imports us once, not for each job."""


@pytest.fixture
def env(redis_url: str, slack: StandIn, tmp_path: Path) -> dict[str, str]:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    return environment(redis_url, slack.base_url, slack.token, limits)


@pytest.fixture
def queue(redis: Database) -> Queue:
    return Queue("notifications", connection=redis, serializer=JSONSerializer)


def drain(env: dict[str, str], tmp_path: Path) -> list[dict[str, object]]:
    with Command("worker", "--burst", env=env, cwd=tmp_path) as worker:
        assert worker.wait() == 0, worker.stderr()
        return worker.named("event.settled")


def stock_worker(env: dict[str, str], redis_url: str, tmp_path: Path, *options: str) -> str:
    """``rq worker -S json --burst`` on the normal lane; what it says on stderr."""
    path = Path(sys.executable).with_name("rq")
    done = subprocess.run(
        [path, "worker", "-S", "json", "--burst", *options, "notifications"],
        env={**SEEN_BY_ALL, "RQ_REDIS_URL": redis_url, **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def rq(command: str, redis_url: str, *options: str) -> str:
    """One of RQ's own commands; what it prints."""
    done = CliRunner().invoke(main, [command, *options], env={"RQ_REDIS_URL": redis_url})
    assert done.exit_code == 0, done.output
    return done.output


def test_a_stock_worker_posts_through_the_same_gate_and_books(
    env: dict[str, str], redis: Database, redis_url: str, slack: StandIn, tmp_path: Path
) -> None:
    Path(env["DISPATCHER_LIMITS_FILE"]).write_text(LIMITS.replace("limits: [10/30m]", "limits: [1/30m]"))
    Producer(redis).send_many({"category": "errors", "text": str(n), "id": f"e{n}"} for n in range(2))
    said = stock_worker({**env, "DISPATCHER_QUEU": "q"}, redis_url, tmp_path)
    assert "DISPATCHER_QUEU" not in said, "each job would say it again"
    totals = balanced(redis)
    assert (totals["received"], totals["sent"], totals["dropped"]) == (2, 1, 1)
    assert [posted.text for posted in slack.ledger.posted()] == ["0"]
    assert drain(env, tmp_path) == []


NO_EVENTS: Final = {
    "nothing": ((), {}),
    "two": (({"category": "errors", "text": "x"}, {}), {}),
    "keyword": (({"category": "errors", "text": "x"},), {"retry": 3}),
    "named": ((), {"event": {"category": "errors", "text": "x"}}),
    "text": (("disk full",), {}),
    "null": ((None,), {}),
    "list": (([{"category": "errors", "text": "x"}],), {}),
    "empty": (({},), {}),
    "large": (({"category": "errors", "text": "x" * 2_000_000},), {}),
}
"""Arguments of jobs that our function is called with, by job id."""


def enqueue_no_events(queue: Queue) -> None:
    for job_id, (arguments, keywords) in NO_EVENTS.items():
        queue.enqueue(FUNCTION, args=arguments, kwargs=keywords, job_id=job_id)


def are_dead_letters(redis: Database) -> None:
    """Each of them is one, ``invalid``, in books that balance, and RQ has none of them."""
    totals = balanced(redis)
    assert (totals["received"], totals["dead"]) == (len(NO_EVENTS), len(NO_EVENTS))
    letters = DeadLetters(redis, KEYS, QUEUE).find(Filter())
    assert {letter.id: letter.reason for letter in letters} == dict.fromkeys(NO_EVENTS, "invalid")
    assert FailedJobRegistry("notifications", connection=redis).get_job_ids(cleanup=False) == []


@pytest.mark.slow
def test_an_undecodable_job_becomes_a_dead_letter_under_a_stock_worker_too(
    env: dict[str, str], queue: Queue, redis: Database, redis_url: str, tmp_path: Path
) -> None:
    enqueue_no_events(queue)
    stock_worker(env, redis_url, tmp_path, *SIMPLE)
    are_dead_letters(redis)
    for job_id in NO_EVENTS:
        told = run("explain", job_id, **env)
        assert told.code == 0
        assert told.out.startswith("Dead letter at "), told.out


def test_an_undecodable_job_that_failed_before_it_was_run_becomes_a_dead_letter(
    env: dict[str, str], queue: Queue, redis: Database, tmp_path: Path
) -> None:
    """A stock worker that was killed, or one of an older version of ours, has left it among RQ's failed jobs."""
    enqueue_no_events(queue)
    for job_id in NO_EVENTS:
        FailedJobRegistry(queue=queue).add(Job.fetch(job_id, connection=redis, serializer=JSONSerializer), ttl=1000)
    redis.delete(QUEUE.lanes[1])
    drain(env, tmp_path)
    redis.delete(KEYS.sweep)  # the minute between two sweeps has passed
    drain(env, tmp_path)
    are_dead_letters(redis)


def test_arguments_that_json_cannot_show_are_kept_as_words() -> None:
    data = jobs._data((object(),), {})  # noqa: SLF001 - a stock worker with another serializer
    with pytest.raises(InvalidEvent, match="expected a JSON object"):
        open_envelope("id", data.encode())


@pytest.mark.slow
def test_our_worker_posts_an_event_that_a_stock_worker_parked(
    env: dict[str, str], redis: Database, redis_url: str, slack: StandIn, tmp_path: Path
) -> None:
    Producer(redis).send("errors", "later")
    with slack.down():
        stock_worker(env, redis_url, tmp_path, *SIMPLE)
    assert Books(redis, KEYS, QUEUE).snapshot().parked == 1
    (line,) = drain(env, tmp_path)
    assert line["outcome"] == "sent"
    assert len(slack.ledger) == 1


def test_rq_info_sees_our_workers_and_our_queue(env: dict[str, str], redis: Database, tmp_path: Path) -> None:
    with Command("worker", env=env, cwd=tmp_path) as worker:
        worker.await_line("worker.started")
        (seen,) = until(lambda: Worker.all(connection=redis), "a worker in RQ's registry")
        assert seen.queue_names() == ["notifications:high", "notifications", "notifications:low"]
        assert seen.pid == worker.pid
        Producer(redis).send("errors", "x")
        until(lambda: balanced(redis)["sent"] == 1, "the post")
        assert {each.name for each in Queue.all(connection=redis)} == {"notifications"}


def test_rqs_own_commands_show_us_and_hold_us(
    env: dict[str, str], redis: Database, redis_url: str, slack: StandIn, tmp_path: Path
) -> None:
    rq("suspend", redis_url)
    with Command("worker", env=env, cwd=tmp_path) as worker:
        worker.await_line("worker.started")
        Producer(redis).send("errors", "x")
        until(lambda: redis.exists(KEYS.leases), "the first take")
        said = rq("info", redis_url, "--raw")
        assert "queue notifications 1" in said
        assert f"worker {worker.named('worker.started')[0]['worker']} " in said
        assert "notifications:high,notifications,notifications:low" in said.replace(", ", ",")
        rq("resume", redis_url)
        until(lambda: len(slack.ledger) == 1, "the post")


def test_rq_reads_our_jobs_with_all_their_fields(redis: Database, redis_url: str) -> None:
    """Fields that RQ writes empty are absent; one of ours is there, and is not RQ's matter."""
    ids = [Producer(redis).send("errors", "disk full\non host a", id=id_) for id_ in ("e1", None)]
    at = datetime.now(UTC)
    for id_ in ids:
        job = Job.fetch(id_, connection=redis, serializer=JSONSerializer)
        assert (job.func_name, job.args[0]["text"], job.kwargs) == (FUNCTION, "disk full\non host a", {})
        assert (job.id, job.origin, job.timeout) == (id_, "notifications", 180)
        assert (job.get_status(), job.description) == (JobStatus.QUEUED, "errors: disk full on host a")
        for instant in (job.created_at, job.enqueued_at):
            assert instant is not None
            assert abs((at - instant).total_seconds()) < 60
        assert (job.started_at, job.ended_at, job.last_heartbeat, job.worker_name) == (None, None, None, None)
        assert (job.group_id, job.success_callback, job.failure_callback, job.stopped_callback) == (None,) * 4
        assert (job.result_ttl, job.failure_ttl, job.ttl, job.meta, job.dependency_ids) == (None, None, None, {}, [])
    assert {each.id for each in Queue("notifications", connection=redis, serializer=JSONSerializer).jobs} == set(ids)
    assert "queue notifications 2" in rq("info", redis_url, "--raw")


def test_suspended_workers_take_nothing_until_resumed(
    env: dict[str, str], redis: Database, slack: StandIn, tmp_path: Path
) -> None:
    suspend(redis)
    with Command("worker", env=env, cwd=tmp_path) as worker:
        worker.await_line("worker.suspended")
        Producer(redis).send("errors", "x")
        assert balanced(redis)["received"] == 0
        resume(redis)
        until(lambda: len(slack.ledger) == 1, "the post")
        suspended, resumed = worker.await_line("worker.suspended"), worker.await_line("worker.resumed")
        assert (suspended["level"], resumed["level"]) == ("warning", "info")
        assert "'rq resume' lets them go on" in suspended["detail"]
        assert len(worker.named("worker.suspended")) == len(worker.named("worker.resumed")) == 1


def test_a_burst_that_is_suspended_says_so_and_ends(env: dict[str, str], redis: Database, tmp_path: Path) -> None:
    suspend(redis)
    Producer(redis).send("errors", "x")
    with Command("worker", "--burst", env=env, cwd=tmp_path) as worker:
        assert worker.wait() == 0
    assert len(worker.named("worker.suspended")) == 1
    assert balanced(redis)["received"] == 0


def test_a_job_that_a_stock_producer_scheduled_is_posted_when_it_is_due_without_rqs_scheduler(
    env: dict[str, str], queue: Queue, redis: Database, slack: StandIn, tmp_path: Path
) -> None:
    urgent = Queue("notifications:high", connection=redis, serializer=JSONSerializer)
    now = datetime.now(UTC)
    for number, (lane, at) in enumerate([(queue, now), (urgent, now), (queue, now + timedelta(days=1))]):
        lane.enqueue_at(at, FUNCTION, {"category": "errors", "text": str(number)}, job_id=f"job-{number}")
    gone = queue.enqueue_at(now, FUNCTION, {"category": "errors", "text": "gone"}, job_id="gone")
    redis.delete(gone.key)
    drain(env, tmp_path)
    assert sorted(posted.text for posted in slack.ledger.posted()) == ["0", "1"]
    assert [redis.zrange(key, 0, -1) for key in QUEUE.scheduled] == [[], [b"job-2"], []]


def test_a_repeated_job_id_of_a_stock_producer_is_a_duplicate(
    env: dict[str, str], queue: Queue, slack: StandIn, tmp_path: Path
) -> None:
    for text in ("first", "second"):
        queue.enqueue(FUNCTION, {"category": "errors", "text": text}, job_id="mine")
    outcomes = sorted(str(line["outcome"]) for line in drain(env, tmp_path))
    assert outcomes == ["duplicate", "sent"]
    assert len(slack.ledger) == 1


def test_a_job_whose_time_to_live_ended_is_a_dead_letter(
    env: dict[str, str], queue: Queue, redis: Database, tmp_path: Path
) -> None:
    queue.enqueue(FUNCTION, {"category": "errors", "text": "x"}, job_id="brief", ttl=100)
    redis.pexpire(QUEUE.job("brief"), 1)
    until(lambda: not redis.exists(QUEUE.job("brief")), "the end of its time to live")
    (line,) = drain(env, tmp_path)
    assert (line["event_id"], line["outcome"], line["reason"]) == ("brief", "dead", "expired")


def test_an_id_that_does_not_belong_to_its_job_says_what_to_pass(
    env: dict[str, str], queue: Queue, tmp_path: Path
) -> None:
    queue.enqueue(FUNCTION, {"category": "errors", "text": "x", "id": "mine"})
    (line,) = drain(env, tmp_path)
    assert line["reason"] == "invalid"
    assert "pass job_id='mine'" in str(line["detail"])


def test_the_sweep_puts_a_job_with_dependencies_on_its_lane(
    env: dict[str, str], queue: Queue, redis: Database, slack: StandIn, tmp_path: Path
) -> None:
    first = queue.enqueue(FUNCTION, {"category": "errors", "text": "first"}, job_id="first")
    queue.enqueue(FUNCTION, {"category": "errors", "text": "second"}, job_id="second", depends_on=first)
    assert drain(env, tmp_path)[0]["event_id"] == "first"
    redis.delete(KEYS.sweep)  # the minute between two sweeps has passed
    drain(env, tmp_path)
    drain(env, tmp_path)
    assert [posted.text for posted in slack.ledger.posted()] == ["first", "second"]
    assert len(DeferredJobRegistry(queue=queue)) == 0
    assert redis.keys("rq:job:*") == []


def test_the_sweep_brings_failed_jobs_of_ours_back_and_leaves_others_alone(queue: Queue, redis: Database) -> None:
    for job_id, function in (("ours", FUNCTION), ("other", "os.getcwd")):
        arguments = ({"category": "errors", "text": "x"},) if job_id == "ours" else ()
        job = Job.create(
            function, args=arguments, id=job_id, connection=redis, serializer=JSONSerializer, origin=queue.name
        )
        job.save()
        FailedJobRegistry(queue=queue).add(job, ttl=1000)
        Result.create_failure(job, ttl=1000, exc_string="killed")  # as RQ's maintenance does
    assert Sweep(redis, KEYS, QUEUE, owner="test").sweep() == 1
    assert queue.job_ids == ["ours"]
    assert FailedJobRegistry(queue=queue).get_job_ids(cleanup=False) == ["other"]
    assert redis.keys("rq:results:*") == [b"rq:results:other"]


def test_a_job_of_ours_comes_back_from_behind_hundreds_of_others(queue: Queue, redis: Database) -> None:
    registry = FailedJobRegistry(queue=queue).key
    redis.zadd(registry, {f"gone-{n}": n for n in range(450)})
    queue.enqueue(FUNCTION, {"category": "errors", "text": "x"}, job_id="ours")
    redis.lpop(QUEUE.lanes[1])
    redis.zadd(registry, {"ours": 1_000})
    now_us = 1_900_000_020 * US
    sweep, brought = Sweep(redis, KEYS, QUEUE, owner="test", clock=lambda: now_us), []
    for _ in range(3):
        brought.append(sweep.sweep())
        now_us += 60 * US
    assert sorted(brought) == [0, 0, 1]
    assert queue.job_ids == ["ours"]


def test_an_event_a_stock_worker_entered_is_never_run_again(queue: Queue, redis: Database) -> None:
    job = queue.enqueue(FUNCTION, {"category": "errors", "text": "x"}, job_id="entered")
    redis.lpop(QUEUE.lanes[1])
    redis.hset(QUEUE.job("entered"), "adopted", redis.hget(QUEUE.job("entered"), "created_at")[:19])
    redis.zadd(StartedJobRegistry(queue=queue).key, {f"{job.id}:execution": 1})
    assert Sweep(redis, KEYS, QUEUE, owner="test").sweep() == 0
    assert queue.job_ids == []
    assert not redis.exists(QUEUE.job("entered"))


@pytest.mark.parametrize("adopted", ["2024-11-20T00:00:00", "1"])
def test_a_later_job_of_an_id_that_a_stock_worker_entered_comes_back(
    queue: Queue, redis: Database, adopted: str
) -> None:
    """RQ keeps the fields of a finished job that it does not know."""
    job = queue.enqueue(FUNCTION, {"category": "errors", "text": "x"}, job_id="later")
    redis.lpop(QUEUE.lanes[1])
    redis.hset(QUEUE.job("later"), "adopted", adopted)
    redis.zadd(StartedJobRegistry(queue=queue).key, {f"{job.id}:execution": 1})
    assert Sweep(redis, KEYS, QUEUE, owner="test").sweep() == 1
    assert queue.job_ids == ["later"]


def test_an_id_nobody_works_on_comes_back_after_a_minute(queue: Queue, redis: Database) -> None:
    queue.enqueue(FUNCTION, {"category": "errors", "text": "x"}, job_id="abandoned")
    redis.lmove(QUEUE.lanes[1], QUEUE.intermediates[1])
    now = 1_900_000_000_000_000
    times = iter([now] * 3 + [now + 59_000_000] * 3 + [now + 60_000_000] * 3)
    sweep = Sweep(redis, KEYS, QUEUE, owner="test", clock=lambda: next(times))
    assert [sweep.sweep() for _ in range(3)] == [0, 0, 1]
    assert queue.job_ids == ["abandoned"]


def test_the_sweep_forgets_the_names_of_workers_that_were_killed(
    env: dict[str, str], redis: Database, queue: Queue, tmp_path: Path
) -> None:
    lanes = [Queue(QUEUE.lane_name(lane), connection=redis, serializer=JSONSerializer) for lane in Lane]
    SimpleWorker([queue], connection=redis, name="stock").register_birth()  # type: ignore[no-untyped-call]  # RQ's
    with Command("worker", env=env, cwd=tmp_path) as worker:
        killed = f"rq:worker:{worker.await_line('worker.started')['worker']}"
        until(lambda: redis.sismember("rq:workers", killed), "its name in RQ's registry")
        worker.signal(signal.SIGKILL)
        worker.wait()
    Sweep(redis, KEYS, QUEUE, owner="test").sweep()
    assert killed.encode() in redis.smembers("rq:workers")  # its entry lives on for some minutes
    redis.delete(killed)
    Sweep(redis, KEYS, QUEUE, owner="test").sweep()
    registries = ("rq:workers", *(f"rq:workers:{lane.name}" for lane in lanes))
    assert [redis.smembers(name) for name in registries] == [{b"rq:worker:stock"}, set(), {b"rq:worker:stock"}, set()]
    assert [each.name for each in Worker.all(connection=redis)] == ["stock"]


def test_only_one_worker_of_the_fleet_sweeps_in_a_minute(redis: Database, queue: Queue) -> None:
    queue.enqueue(FUNCTION, {"category": "errors", "text": "x"}, job_id="abandoned")
    assert Sweep(redis, KEYS, QUEUE, owner="one").is_due()
    assert redis.get(KEYS.sweep) == b"one"
    assert Sweep(redis, KEYS, QUEUE, owner="two").is_due() is False
    assert redis.get(KEYS.sweep) == b"one"
    assert redis.pttl(KEYS.sweep) > 0


def test_stock_maintenance_beside_us_neither_fails_nor_doubles_an_event(
    env: dict[str, str], queue: Queue, redis: Database, slack: StandIn, tmp_path: Path
) -> None:
    Producer(redis).send_many({"category": f"c{n}", "text": str(n), "id": f"e{n}"} for n in range(8))
    maintenance = SimpleWorker([queue], connection=redis, serializer=JSONSerializer)
    with Command("worker", env=env, cwd=tmp_path) as worker:
        worker.await_line("worker.started")
        for _ in range(20):
            maintenance.clean_registries()  # type: ignore[no-untyped-call]  # RQ's
        until(lambda: len(slack.ledger) == 8, "eight posts")
    totals = balanced(redis)
    assert (totals["received"], totals["dead"], totals["duplicate"]) == (8, 0, 0)
    assert len(FailedJobRegistry(queue=queue)) == 0


@pytest.mark.slow
def test_a_stock_worker_publishes_its_limits_file_only_if_no_limits_are_in_force(
    env: dict[str, str], redis: Database, redis_url: str, slack: StandIn, tmp_path: Path
) -> None:
    versions = Versions(redis, KEYS)
    Producer(redis).send("errors", "first")
    stock_worker(env, redis_url, tmp_path, *SIMPLE)
    first = versions.in_force()
    assert first is not None
    assert (first.number, first.file) == (1, str(tmp_path / "limits.yaml"))
    content = read_limits("global: {limits: [2/30m]}", "x").content
    versions.publish(content.text, content.digest, by="ed", file="x", unless=Unless.SAME)
    (tmp_path / "limits.yaml").write_text("global: {limits: []}\n", encoding="utf-8")
    Producer(redis).send_many({"category": "errors", "text": str(n)} for n in range(2))
    stock_worker(env, redis_url, tmp_path, *SIMPLE)
    assert len(slack.ledger) == 2
    now = versions.in_force()
    assert now is not None
    assert now.number == 2

"""Worker processes on a real server, posting to the stand-in over HTTP: the main job, and what goes wrong around it."""

from __future__ import annotations

import json
import pickle
import select
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from dispatcher.app.servers import keys_of
from dispatcher.core.event import Event
from dispatcher.producer.blocking import Producer
from dispatcher.server.keys import Keys
from dispatcher.settings.environment import Settings
from dispatcher.stand_in import Held, Hold, Reset, SlackError, StandIn, TooManyRequests, landed, not_landed
from dispatcher.stand_in.faults import Fault
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books, Snapshot
from tests.support.processes import LIMITS, Command, environment, settled, until
from tests.support.servers import Database
from tests.support.slack import mark_of

KEYS, QUEUE = Keys("dispatcher"), QueueKeys("notifications")
Start = Callable[..., Command]


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    path = tmp_path / "limits.yaml"
    path.write_text(LIMITS, encoding="utf-8")
    return path


@pytest.fixture
def start(redis_url: str, slack: StandIn, limits: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts ``dispatcher worker`` processes; ends them with the test."""
    running: list[Command] = []

    def starter(*arguments: str, **env: str) -> Command:
        variables = environment(redis_url, slack.base_url, slack.token, limits, **env)
        command = Command("worker", *arguments, env=variables, cwd=tmp_path, name="worker")
        running.append(command)
        return command

    yield starter
    for command in running:
        command.__exit__(None, None, None)


@pytest.fixture
def producer(redis: Database) -> Producer:
    return Producer(redis)


def snapshot_of(redis: Database) -> Snapshot:
    snapshot = Books(redis, KEYS, QUEUE).snapshot()
    assert snapshot.imbalances() == []
    return snapshot


def drain(start: Start, count: int = 1, **env: str) -> list[Command]:
    workers = [start("--burst", **env) for _ in range(count)]
    assert [worker.wait() for worker in workers] == [0] * count, workers[0].stderr()
    return workers


def test_four_workers_post_exactly_what_the_limits_allow(
    start: Start, redis: Database, slack: StandIn, producer: Producer
) -> None:
    """20 event types x 15 events, limits 100 global and 10 each: the source's scenario."""
    events = [Event(f"type{n % 20}", f"message {n}", id=f"event-{n}", channel=f"#type{n % 20}") for n in range(20 * 15)]
    ids = producer.send_many(events)
    lines = settled(drain(start, 4))

    assert lines.keys() == set(ids)
    assert all(len(each) == 1 for each in lines.values())
    outcomes = {event_id: line["outcome"] for event_id, (line,) in lines.items()}
    sent = {event_id for event_id, outcome in outcomes.items() if outcome == "sent"}
    assert Counter(outcomes.values()) == {"sent": 100, "dropped": 200}
    assert {posted.mark for posted in slack.ledger.posted()} == {mark_of(event_id) for event_id in sent}
    assert len(slack.ledger) == 100
    assert max(slack.ledger.per_channel().values()) <= 10
    snapshot = snapshot_of(redis)
    assert snapshot.overall()["sent"] == 100
    assert snapshot.overall()["dropped"] == 200
    assert max(snapshot.by_category("sent").values()) <= 10


def test_the_articles_small_demo(start: Start, redis: Database, limits: Path, producer: Producer) -> None:
    limits.write_text("global: {limits: [10/60s]}\ndefaults: {limits: [3/60s]}\n", encoding="utf-8")
    producer.send_many({"category": "deploys", "text": str(n)} for n in range(10))
    (worker,) = drain(start)
    lines = worker.named("event.settled")
    assert Counter((line["outcome"], line["reason"]) for line in lines) == {
        ("sent", "ok"): 3,
        ("dropped", "limit:category"): 7,
    }
    denied = next(line for line in lines if line["outcome"] == "dropped")
    assert denied["scope"] == "category:deploys"
    assert 0 < denied["retry_after_s"] <= 60
    assert snapshot_of(redis).overall()["dropped"] == 7


def test_messages_of_one_channel_arrive_in_order(start: Start, slack: StandIn, producer: Producer) -> None:
    producer.send_many({"category": f"type{n}", "text": str(n), "channel": "#one"} for n in range(9))
    drain(start, 2)
    assert [posted.text for posted in slack.ledger.posted()] == [str(n) for n in range(9)]


def test_the_pace_of_a_channel_delays_and_never_drops(
    start: Start, limits: Path, slack: StandIn, producer: Producer
) -> None:
    limits.write_text('channels: {"#slow": {pace: 2/500ms}}\n', encoding="utf-8")
    producer.send_many({"category": "news", "text": str(n), "channel": "#slow"} for n in range(6))
    drain(start, 2)
    times = [posted.arrived_at for posted in slack.ledger.posted()]
    assert len(times) == 6
    assert all(later - earlier > 0.45 for earlier, later in zip(times, times[2:], strict=False))


def test_an_undecodable_job_becomes_a_dead_letter_and_the_worker_goes_on(
    start: Start, redis: Database, slack: StandIn, producer: Producer
) -> None:
    payloads = {
        "broken": b"{not json",
        "pickled": pickle.dumps(("os.system", None, ("true",), {})),
        "foreign": json.dumps(["os.system", None, ["true"], {}]).encode(),
        "empty": json.dumps(["dispatcher.jobs.dispatch", None, [{"category": "errors", "text": ""}], {}]).encode(),
    }
    for job_id, data in payloads.items():
        redis.hset(QUEUE.job(job_id), mapping={"data": data, "status": "queued"})
        redis.rpush(QUEUE.lanes[1], job_id)
    redis.rpush(QUEUE.lanes[1], "vanished")
    good = producer.send("errors", "still here")
    lines = settled(drain(start))

    assert lines[good][0]["outcome"] == "sent"
    assert {job_id: lines[job_id][0]["reason"] for job_id in payloads} == dict.fromkeys(payloads, "invalid")
    assert "pickled" in lines["pickled"][0]["detail"]
    assert "'os.system'" in lines["foreign"][0]["detail"]
    assert lines["vanished"][0]["reason"] == "expired"
    letters = {fields[b"id"].decode(): fields for _, fields in redis.xrange(KEYS.dead)}
    assert {job_id: letters[job_id][b"payload"] for job_id in payloads} == payloads
    assert snapshot_of(redis).dead_letters == 5
    assert len(slack.ledger) == 1


def test_stock_rq_producers_are_understood(start: Start, redis: Database, slack: StandIn) -> None:
    queue = Queue("notifications", connection=redis, serializer=JSONSerializer)
    queue.enqueue("dispatcher.jobs.dispatch", {"category": "errors", "text": "from rq"})
    queue.enqueue("dispatcher.jobs.dispatch", {"category": "errors", "text": "first"}, job_id="mine")
    drain(start)
    queue.enqueue("dispatcher.jobs.dispatch", {"category": "errors", "text": "again"}, job_id="mine")
    (worker,) = drain(start)
    assert [line["outcome"] for line in worker.named("event.settled")] == ["duplicate"]
    assert sorted(posted.text for posted in slack.ledger.posted()) == ["first", "from rq"]
    assert snapshot_of(redis).overall()["duplicate"] == 1
    assert redis.keys("rq:job:*") == []


def test_slack_being_down_delays_and_loses_nothing(
    start: Start, redis: Database, slack: StandIn, producer: Producer
) -> None:
    with slack.down():
        ids = producer.send_many({"category": "errors", "text": str(n), "channel": f"#c{n}"} for n in range(5))
        worker = start("--burst")
        until(lambda: len({line["event_id"] for line in worker.named("event.parked")}) == 5, "five parked events")
        assert worker.named("event.settled") == []
        assert snapshot_of(redis).overall()["dead"] == 0
    assert worker.wait() == 0
    assert {line["event_id"]: line["outcome"] for line in worker.named("event.settled")} == dict.fromkeys(ids, "sent")
    assert len(slack.ledger) == 5
    assert snapshot_of(redis).overall()["sent"] == 5


@pytest.mark.parametrize("fate", [landed, not_landed])
def test_a_post_without_an_answer_is_reconciled_and_arrives_once_on_one_slot(
    start: Start, redis: Database, slack: StandIn, producer: Producer, fate: Callable[[Reset], Fault]
) -> None:
    slack.faults.add(fate(Reset()))
    producer.send("errors", "just once", id="a")
    (worker,) = drain(start)
    assert [posted.text for posted in slack.ledger.posted()] == ["just once"]
    (settled,) = worker.named("event.settled")
    assert settled["ts"] == slack.ledger.posted()[0].ts
    assert settled.get("found") is (True if fate is landed else None)
    assert redis.zrange(KEYS.scope("global"), 0, -1) == [b"1"]


def test_a_429_is_one_delay_for_the_whole_fleet(start: Start, slack: StandIn, producer: Producer) -> None:
    slack.faults.add(not_landed(TooManyRequests(retry_after="1")))
    producer.send_many({"category": "errors", "text": str(n), "channel": "#busy"} for n in range(3))
    producer.send("errors", "elsewhere", channel="#quiet")
    workers = drain(start, 2)
    cooldowns = [line for worker in workers for line in worker.named("event.parked") if line["reason"] == "cooldown"]
    assert cooldowns
    busy = [posted for posted in slack.ledger.posted() if posted.channel == "#busy"]
    quiet = [posted for posted in slack.ledger.posted() if posted.channel == "#quiet"]
    if not quiet or len(busy) + len(quiet) != 4:
        pytest.fail(f"expected all four posted, got {slack.ledger.posted()}")


def test_a_rejected_message_is_a_dead_letter_and_gives_its_slot_back(
    start: Start, redis: Database, slack: StandIn, producer: Producer
) -> None:
    slack.faults.add(not_landed(SlackError("channel_not_found")))
    producer.send("errors", "lost", id="a")
    (worker,) = drain(start)
    (line,) = worker.named("event.settled")
    assert (line["outcome"], line["reason"], line["code"]) == ("dead", "rejected", "channel_not_found")
    assert redis.zcard(KEYS.scope("global")) == 0
    assert snapshot_of(redis).dead_letters == 1


def test_a_revoked_token_pauses_the_fleet_and_says_so_until_a_post_succeeds(
    start: Start, redis: Database, slack: StandIn, producer: Producer
) -> None:
    ids = producer.send_many({"category": "errors", "text": str(n), "channel": f"#c{n}"} for n in range(4))
    worker = start(DISPATCHER_SLACK_TOKEN="xoxb-revoked-by-somebody")
    paused = worker.await_line("slack.paused")
    assert paused["code"] == "invalid_auth"
    until(lambda: snapshot_of(redis).parked == 4, "all four parked")
    pause = snapshot_of(redis).pause
    assert pause is not None
    assert pause.code == "invalid_auth"
    assert len(slack.ledger) == 0
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0

    redis.hset(KEYS.pause, "probe", 1)  # the minute until the next event tries has passed
    drain(start)
    assert len(slack.ledger) == len(ids)
    assert snapshot_of(redis).pause is None


def test_a_worker_that_is_told_to_stop_finishes_its_post_and_exits_with_0(
    start: Start, redis: Database, slack: StandIn, producer: Producer
) -> None:
    hold = Hold()
    slack.faults.add(landed(Held(hold)))
    producer.send_many({"category": "errors", "text": str(n), "channel": "#one"} for n in range(3))
    worker = start()
    hold.wait_for_arrival()
    worker.signal(signal.SIGTERM)
    hold.release()
    assert worker.wait() == 0
    assert [line["event_id"] for line in worker.named("event.settled")] != []
    snapshot = snapshot_of(redis)
    assert snapshot.in_flight == 0
    assert snapshot.leases == {}
    drain(start)
    assert [posted.text for posted in slack.ledger.posted()] == ["0", "1", "2"]


def test_an_idle_worker_wakes_for_an_event_and_stops_at_once(
    start: Start, slack: StandIn, producer: Producer, redis: Database
) -> None:
    worker = start()
    worker.await_line("worker.started")
    for n in range(3):
        producer.send("errors", str(n))
        until(lambda: len(slack.ledger) > n, f"post {n}")  # noqa: B023 - called before n changes
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0
    assert redis.smembers("rq:workers") == set()


def test_an_idle_worker_asks_the_server_nothing(
    start: Start, redis: Database, producer: Producer, slack: StandIn
) -> None:
    worker = start()
    producer.send("errors", "x")
    until(lambda: len(slack.ledger) == 1, "the post")
    until(lambda: snapshot_of(redis).events == 0, "the settle")
    calls = until(lambda: _calls_at_rest(redis), "a worker at rest")
    assert calls is not None
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def _calls_at_rest(redis: Database) -> bool:
    """Whether no script ran between two looks half a second apart."""
    before = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    select.select([], [], [], 0.5)
    return bool(redis.info("commandstats")["cmdstat_evalsha"]["calls"] == before)


def test_a_queue_belongs_to_one_namespace(start: Start) -> None:
    drain(start)
    worker = start("--burst", DISPATCHER_NAMESPACE="other")
    assert worker.wait() == 78
    assert "queue 'notifications' belongs to namespace 'dispatcher', not to 'other'" in worker.stderr()


def test_a_worker_refuses_a_namespace_of_another_layout(start: Start, redis: Database) -> None:
    redis.set(KEYS.layout, "0")
    worker = start("--burst")
    assert worker.wait() == 78
    assert "holds key layout '0'" in worker.stderr()


def test_settings_name_the_keys() -> None:
    keys, queue = keys_of(Settings.isolated(namespace="shop", queue="mail"))
    assert (keys.layout, queue.lanes[0]) == ("{shop}:layout", "rq:queue:mail:high")

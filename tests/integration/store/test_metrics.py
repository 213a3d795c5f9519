"""What scripts count for metrics alone, and what a look at all of it costs the server."""

from __future__ import annotations

import pytest

from dispatcher.app.metrics import read_facts
from dispatcher.app.operating import Desk
from dispatcher.app.servers import Server
from dispatcher.core.limits import Bounds
from dispatcher.core.posts import RateLimitedBySlack, Rejected, Retryable
from dispatcher.core.units import US
from dispatcher.errors import GateUnavailable
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.keys import Keys
from dispatcher.settings.environment import Settings
from dispatcher.settings.limits_file import read_limits
from dispatcher.slack.replies import Requests, Result, result_of
from dispatcher.store.leases import Outbox
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.versions import Unless, Versions
from dispatcher.web.exposition import DELIVERY_BUCKETS_S, families
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, LEASE_US, REMEMBER_US, UNPACED, Stage, policy_from

DAYS: int = 10 * 86_400 * US


def deliveries(stage: Stage) -> dict[str, int]:
    """How many were delivered, by what they waited for, priority, and number of the bucket."""
    counts = stage.books.measure(0).counts
    return {
        field.removeprefix("delivery "): number
        for field, number in counts.items()
        if field.startswith("delivery ") and not field.endswith(" us")
    }


def test_a_delivery_is_counted_by_what_it_waited_for_longest_to_tell(stage: Stage) -> None:
    ann = stage.worker()
    stage.send("plain", channel=UNPACED, priority="high")
    ann.run()
    assert deliveries(stage) == {"nothing high 1": 1}
    stage.send("first", "second")
    ann.run()
    assert deliveries(stage) == {"nothing high 1": 1, "nothing normal 1": 1, "pace normal 1": 1}
    stage.send("tried", channel=UNPACED)
    ann.answer(ann.go()[0], Retryable("refused", "connection refused"))
    stage.clock.now_us += BACKOFF_US
    ann.run()
    assert deliveries(stage)["retry normal 6"] == 1, "5 s, no more"
    stage.send("slowed", channel=UNPACED, priority="low")
    ann.answer(ann.go()[0], RateLimitedBySlack(30 * US, "ratelimited"))
    stage.clock.now_us += 30 * US
    ann.run()
    assert deliveries(stage)["cooldown low 8"] == 1
    assert stage.books.measure(0).counts["delivery cooldown low us"] == 30 * US


def test_a_deferred_event_has_waited_for_a_limit_and_a_scheduled_one_for_nothing(redis: Database) -> None:
    stage = Stage(redis, policy_from("defaults: {limits: [1/1m], on_limit: defer}\nchannels: {default: {pace: none}}"))
    ann = stage.worker()
    stage.send("a", "b")
    stage.send("c", category="later", not_before=stage.clock.now_us / US + 90)
    ann.run()
    assert stage.snapshot().counts.by_reason("parked") == {("errors", "limit"): 1, ("later", "scheduled"): 1}
    for _ in range(3):
        stage.clock.now_us += 60 * US
        ann.run()
    assert deliveries(stage) == {"nothing normal 1": 1, "limit normal 9": 1, "nothing normal 8": 1}


def test_the_buckets_are_those_that_metrics_name(stage: Stage) -> None:
    ann = stage.worker(lease_us=DAYS)
    for number, bound_s in enumerate(DELIVERY_BUCKETS_S):
        for beyond_us in (0, 1):
            stage.send(f"e{number}-{beyond_us}", channel=UNPACED)
            started = ann.go()
            stage.clock.now_us += round(bound_s * US) + beyond_us
            ann.deliver(started)
    expected = {f"nothing normal {number}": 2 for number in range(1, len(DELIVERY_BUCKETS_S) + 2)}
    assert deliveries(stage) == {**expected, "nothing normal 1": 1, f"nothing normal {len(DELIVERY_BUCKETS_S) + 1}": 1}


def test_the_slots_that_waiting_events_hold_are_counted(stage: Stage) -> None:
    ann = stage.worker()
    stage.send("first", "second", "third")
    ann.go()
    assert stage.books.held(["global", "category:errors", "category:others"]) == [2, 2, 0]


def test_letters_that_are_lost_to_their_bounds_are_counted(stage: Stage) -> None:
    stage.bounds = Bounds(max=2)
    ann = stage.worker()
    stage.send(*"abcde", channel=UNPACED)
    for started in ann.go():
        ann.answer(started, Rejected("channel_not_found", "no such channel"))
    counts = stage.books.measure(0).counts
    assert (counts["trimmed"], counts["letters rejected"]) == (3, 2)


def test_requests_are_stored_with_what_is_settled_and_kept_while_the_server_is_away(
    redis: Database, redis_url: str
) -> None:
    requests = Requests()
    for client, is_away in ((connect("unix:///nowhere/at/all"), True), (connect(redis_url), False)):
        outbox = Outbox(
            client,
            Keys("stage"),
            QueueKeys("q"),
            owner="ann",
            lease_us=LEASE_US,
            remember_us=REMEMBER_US,
            requests=requests,
        )
        requests.note("chat.postMessage", Result.OK, 0.2)
        if is_away:
            with pytest.raises(GateUnavailable):
                outbox.settle([])
        else:
            outbox.settle([])
    assert requests.take() == {}
    counted = {field.decode(): int(number) for field, number in redis.hgetall(Keys("stage").metrics).items()}
    assert counted == {
        "slack chat.postMessage ok": 2,
        "seconds chat.postMessage 3": 2,
        "seconds chat.postMessage us": 400_000,
    }


@pytest.mark.parametrize(
    ("status", "answer", "result"),
    [
        (200, {"ok": True}, Result.OK),
        (200, {"ok": False, "error": "channel_not_found"}, Result.REFUSED),
        (200, {"ok": False, "error": "a_code_that_nobody_knows"}, Result.REFUSED),
        (200, {"ok": False, "error": "internal_error"}, Result.FAILED),
        (200, {"ok": False, "error": "ratelimited"}, Result.RATE_LIMITED),
        (200, "ok", Result.OK),
        (200, "<html>sign in</html>", Result.FAILED),
        (404, "channel_not_found", Result.REFUSED),
        (404, "<html>not found</html>", Result.FAILED),
        (404, {"ok": False, "error": "no JSON object: <html>"}, Result.FAILED),
        (429, {"ok": False}, Result.RATE_LIMITED),
        (429, "rate_limited", Result.RATE_LIMITED),
        (503, {"ok": False}, Result.FAILED),
    ],
)
def test_an_answer_of_slack_is_counted_as_what_the_worker_takes_it_for(
    status: int, answer: object, result: Result
) -> None:
    assert result_of(status, {}, answer) is result


@pytest.fixture
def crowded(redis: Database, redis_url: str) -> Desk:
    """A namespace with 50 categories in its limits file, 1,000 others, and events of all."""
    text = "global: {limits: [100/30m]}\ncategories:\n" + "".join(
        f"  known{n}: {{limits: [10/30m], on_limit: defer}}\n" for n in range(50)
    )
    keys = Keys("dispatcher")
    redis.hset(keys.totals, mapping={"received": 3_000, "sent": 1_000, "dropped": 1_000, "parked x": 0})
    names = [*(f"known{n}" for n in range(50)), *(f"other{n}" for n in range(950))]
    redis.hset(keys.totals, mapping={f"sent {name}": 1 for name in names})
    redis.hset(keys.totals, mapping={f"dropped {name} limit:global": 1 for name in names})
    redis.zadd(keys.names, {f"other{n}": n for n in range(950)})
    content = read_limits(text, "limits.yaml").content
    Versions(redis, keys).publish(content.text, content.digest, by="eve", file="limits.yaml", unless=Unless.SAME)
    Producer(redis).send_many([{"category": name, "text": "x"} for name in names[:500]])
    return Desk(Settings.isolated(redis_url=redis_url), Server(redis_url, "here"), timeout_s=5)


def test_a_scrape_of_50_categories_and_950_others_has_less_than_1_500_series(crowded: Desk) -> None:
    assert sum(len(family.samples) for family in families(read_facts(crowded))) < 1_500

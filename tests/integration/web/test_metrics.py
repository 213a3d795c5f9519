"""``GET /metrics`` and ``dispatcher metrics``: what they tell, and that it fits together in every scrape."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.app.operating import Desk
from dispatcher.app.servers import Server
from dispatcher.core.limits import Reason
from dispatcher.core.policy import WEBHOOK
from dispatcher.core.units import Lane
from dispatcher.errors import GateUnavailable
from dispatcher.producer.blocking import Producer
from dispatcher.server.keys import Keys
from dispatcher.settings.environment import Settings
from dispatcher.testing import SlackStandIn
from dispatcher.web import metrics
from dispatcher.web.auth import LOCAL
from dispatcher.web.bounds import MOST_BODY
from dispatcher.web.metrics import Look, Metrics, Traffic
from dispatcher.web.threads import MOST, Threads
from tests.support.commands import run
from tests.support.processes import PATIENCE_S, until
from tests.support.scrapes import COUNTERS, GAUGES, HISTOGRAMS, OF_PROCESS, Scrape
from tests.support.servers import Database, RedisServer
from tests.support.serving import Serving

KEYS = Keys("dispatcher")
LIMITS = """\
global: {limits: [20/1h]}
channels: {default: {pace: none}}
defaults: {limits: [3/1h]}
categories:
  errors: {limits: [2/30m, {max: 1, window: 1h, shadow: true}]}
  deploys: {on_limit: defer, limits: [1/1h]}
  audit: {on_limit: dead-letter, limits: [1/1h]}
  disks: {once: {per: 1h}}
  hosts: {per_label: {host: [1/1h]}}
"""
WAITS = ("limit", "pace", "retry", "cooldown", "paused", "silenced", "quiet", "scheduled", "resolved", "unknown")
"""Whatever an event may wait for."""


@pytest.fixture
def env(redis_url: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    return {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": str(tmp_path / "limits.yaml")}


@pytest.fixture
def scraped(redis: Database, env: dict[str, str]) -> Scrape:
    """After events of all kinds, one of which waits on its lane."""
    producer = Producer(redis)
    for category, count in (("errors", 3), ("audit", 2), ("deploys", 3), ("mystery", 2)):
        producer.send_many([{"category": category, "text": str(n)} for n in range(count)])
    producer.send_many([{"category": "disks", "text": "full", "dedup_key": "db1"} for _ in range(3)])
    assert run("worker", "--burst", **env, DISPATCHER_SINK="console").code == 0
    producer.send("errors", "later", priority="high")
    return Scrape.of(run("metrics", **env).out)


def test_a_scrape_tells_what_became_of_every_event(scraped: Scrape) -> None:
    assert scraped.faults() == []
    assert scraped.by("events_received_total", "category") == {
        "": 0, "errors": 3, "audit": 2, "deploys": 3, "disks": 3, "mystery": 2,
    }  # fmt: skip
    assert scraped.value("events_total", category="errors", outcome="sent") == 2
    assert scraped.value("events_ended_total", outcome="dead", reason="limit:category") == 1
    assert scraped.value("suppressed_total", category="errors", limit="category") == 1
    assert scraped.value("suppressed_total", category="audit", limit="category") == 1
    assert scraped.value("suppressed_total", category="disks", limit="repeat") == 2
    assert scraped.value("shadow_denied_total", scope="category:errors", limit="1/1h") == 1
    assert scraped.by("parked", "why") == {"limit": 2}
    assert scraped.by("waiting", "lane") == {"high": 1, "normal": 0, "low": 0}
    assert 0 <= scraped.value("oldest_waiting_seconds", lane="high") < 60
    assert scraped.value("dead_letters", reason="limit:category") == 1
    assert scraped.value("limit_used", scope="category:errors", window="30m") == 2
    assert scraped.value("limit_max", scope="global", window="1h") == 20
    assert 0 < scraped.value("limit_free_in_seconds", scope="category:audit", window="1h") <= 3_600
    assert scraped.value("limits_version") == 1
    assert scraped.total("delivery_seconds_count") == 7


def test_where_nothing_has_happened_a_scrape_shows_bounds_alone(redis: Database, env: dict[str, str]) -> None:
    scraped = Scrape.of(run("metrics", **env).out)
    told = {name for name in scraped.samples if scraped.total(name)}
    assert told == {"max_waiting", "limit_max", "build_info", "redis_up"}
    causes = [(labels["category"], labels["limit"]) for labels in map(dict, scraped.samples["suppressed_total"])]
    named = ("errors", "deploys", "audit", "disks", "hosts")
    assert sorted(causes) == sorted([("hosts", "label"), *product(named, ("category", "global"))])
    assert redis.keys() == []


def test_the_families_are_those_of_the_documentation(scraped: Scrape) -> None:
    documented = Path(__file__).parents[3].joinpath("docs/metrics.md").read_text(encoding="utf-8")
    assert set(scraped.types) == GAUGES | COUNTERS | HISTOGRAMS | {"redis_up"}, (
        "tests/support/scrapes.py lists the families"
    )
    for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
        assert {scraped.types[name] for name in names} == {kind}
    for name in GAUGES | HISTOGRAMS | {f"{name}_total" for name in COUNTERS}:
        assert f"`dispatcher_{name}`" in documented, f"add {name} to the table in docs/metrics.md"


@pytest.fixture
def serving(env: dict[str, str], tmp_path: Path) -> Iterator[Serving]:
    with Serving(
        env["DISPATCHER_REDIS_URL"], tmp_path, DISPATCHER_LIMITS_FILE=env["DISPATCHER_LIMITS_FILE"]
    ) as serving:
        yield serving


def test_serve_tells_the_same_and_what_it_counts_itself(scraped: Scrape, serving: Serving) -> None:
    assert serving.post("/v1/events", [{"category": "errors", "text": "a", "id": "a"}] * 2).status_code == 202
    assert serving.post("/v1/events", {"category": "no good", "text": "a"}).status_code == 422
    with serving.client() as client:
        assert client.get("/nowhere").status_code == 404
        answer = client.get("/metrics")
        opened = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert opened.headers["content-type"].startswith("application/openmetrics-text")
    found = Scrape.of(answer.text)
    assert found.faults() == []
    assert set(found.types) == set(scraped.types) | OF_PROCESS
    assert found.value("http_requests_total", route="/v1/events", code="202") == 1
    assert found.value("http_requests_total", route="none", code="404") == 1
    assert found.by("http_events_total", "result") == {"enqueued": 1, "duplicate": 1, "refused": 1}
    assert found.by("http_events_total", "source") == {"local": 3}
    assert found.value("redis_up") == 1
    families = {family.name: family for family in read_openmetrics(opened.text)}  # type: ignore[no-untyped-call] # the parser has no types
    assert families["dispatcher_events"].type == "counter"


@pytest.mark.parametrize("version", ["abc", "1.x"])
def test_a_client_whose_wish_cannot_be_read_gets_the_text_format(serving: Serving, version: str) -> None:
    with serving.client() as client:
        answer = client.get("/metrics", headers={"Accept": f"application/openmetrics-text;version={version}"})
    assert (answer.status_code, answer.headers["content-type"][:19]) == (200, "text/plain; version")
    assert Scrape.of(answer.text).faults() == []


def test_without_redis_a_scrape_is_503_and_says_so(own_server: RedisServer, tmp_path: Path) -> None:
    with Serving(own_server.url, tmp_path) as serving, serving.client() as client:
        assert client.get("/metrics").status_code == 200
        own_server.stop()
        until(lambda: client.get("/metrics").status_code == 503, "a scrape that finds no Redis")
        gone = Scrape.of(client.get("/metrics").text)
    assert gone.value("redis_up") == 0
    assert "events_total" not in gone.samples


def test_events_are_counted_also_where_the_rest_found_no_room_and_refusals_wherever_they_are(
    env: dict[str, str], tmp_path: Path
) -> None:
    lines = b"".join(b'{"category": "errors", "text": "x", "id": "e%d"}\n' % n for n in (0, *range(999)))
    kind = {"Content_Type": "application/x-ndjson"}
    with Serving(env["DISPATCHER_REDIS_URL"], tmp_path, DISPATCHER_MAX_WAITING="700") as serving:
        assert serving.post("/v1/events", lines, **kind).json()["rest_from"] == 500
        assert serving.post("/v1/events", b" " * (MOST_BODY + 1)).status_code == 413
        with serving.client() as client:
            found = Scrape.of(client.get("/metrics").text)
    assert found.by("http_events_total", "result") == {"enqueued": 499, "duplicate": 1, "refused": 2}


def test_a_request_of_events_that_meets_a_defect_is_counted_as_refused() -> None:
    async def fail(_request: Request) -> Response:
        raise ZeroDivisionError

    async def post() -> None:
        await traffic.of_events(fail)(Request({"type": "http", "state": {"caller": LOCAL}}))

    traffic = Traffic()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(post())
    _, events = traffic.families()
    assert [(sample.labels, sample.value) for sample in events.samples] == [
        ({"source": "local", "result": "refused"}, 1)
    ]


def test_a_scrape_that_cannot_look_in_time_has_what_needs_no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scrape(threads: Threads) -> Response:
        others = [asyncio.create_task(threads.run(goes_on.wait)) for _ in range(MOST)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await Metrics(desk, threads).get(Request({"type": "http", "headers": []}), b"")
        finally:
            goes_on.set()
            await asyncio.gather(*others)

    goes_on = threading.Event()
    desk = Desk(Settings.isolated(), Server("redis://127.0.0.1:1", "there"), timeout_s=0.2)
    monkeypatch.setattr(metrics, "LOOK_S", 0)
    with Threads() as threads:
        answer = asyncio.run(scrape(threads))
    assert answer.status_code == 503
    assert Scrape.of(bytes(answer.body).decode()).value("redis_up") == 0


def test_one_look_a_second_serves_all_scrapes() -> None:
    now, looks = [100.0], []

    def read() -> list[Metric]:
        looks.append(now[0])
        if now[0] < 101:
            raise GateUnavailable("away")
        return []

    look = Look(read, clock=lambda: now[0])
    for at in (100.0, 100.1, 101.0, 101.5, 101.99, 102.0):
        now[0] = at
        with suppress(GateUnavailable):
            look.families()
    assert looks == [100.0, 100.1, 101.0, 102.0], "what failed is not kept"


def test_series_stay_bounded_however_many_categories_come(redis: Database, env: dict[str, str]) -> None:
    first, later = [f"first{n}" for n in range(60)], [f"unknown{n}" for n in range(1_500)]
    for names in (first, later):
        for at in range(0, len(names), 500):
            Producer(redis).send_many([{"category": name, "text": "x"} for name in names[at : at + 500]])
        assert run("worker", "--burst", **env, DISPATCHER_SINK="console").code == 0
    scraped = Scrape.of(run("metrics", **env).out)
    assert scraped.faults() == []
    received = scraped.by("events_received_total", "category")
    assert len(received) == 1 + 100 + 1, "without a category, by name, and all others"
    assert received["other"] == len(first) + len(later) - 100
    assert {received[name] for name in first} == {1}, "places are given at first sight"
    assert scraped.series < 1_500
    few = Scrape.of(run("metrics", **env, DISPATCHER_METRICS_CATEGORIES="10").out)
    shown = set(few.by("events_received_total", "category")) - {"", "other"}
    assert len(shown) == 10
    assert shown <= set(first)


def test_a_scrape_has_less_than_5000_series_where_everything_has_happened_in_each_category(
    redis: Database, env: dict[str, str]
) -> None:
    names = [f"c{n}" for n in range(300)]
    shadow = "{max: 1, window: 1h, shadow: true}"
    rule = f"{{limits: [3/1m, 5/1h, 7/3h, {shadow}], per_label: {{host: [1/1h]}}, channel: '#%s'}}"
    text = "".join(f"  {name}: {rule % name}\n" for name in names)
    Path(env["DISPATCHER_LIMITS_FILE"]).write_text(f"categories:\n{text}", encoding="utf-8")
    assert run("limits", "apply", env["DISPATCHER_LIMITS_FILE"], **env).code == 0
    ended = [f"{outcome} {{}} {reason.value}" for outcome in ("dropped", "digested", "dead") for reason in Reason]
    fields = ["sent {}", *ended, *(f"parked {{}} {why}" for why in WAITS)]
    redis.hset(KEYS.totals, mapping={field.format(name): 1 for name in names for field in fields})
    redis.hset(KEYS.shadowed, mapping={f"category:{name} {limit}": 1 for name in names for limit in ("1/1h", "2/1h")})
    waited = ("nothing", "limit", "pace", "cooldown", "retry", "paused", "quiet")
    took = {f"delivery {word} {lane.value} {n}": 1 for word in waited for lane in Lane for n in range(1, 17)}
    took |= {"seconds chat.postMessage 1": 1, "letters expired": 1}
    redis.hset(KEYS.metrics, mapping={**took, **{f"slack method{n} ok": 1 for n in range(300)}})
    redis.zadd(KEYS.cooldowns, {f"#{name}": 4e15 for name in names})
    scraped = Scrape.of(run("metrics", **env).out)
    names_of_samples = GAUGES | {f"{name}_total" for name in COUNTERS} | {f"{name}_count" for name in HISTOGRAMS}
    assert {name for name in names_of_samples if not scraped.samples.get(name)} == set(), "not counted: fill it above"
    assert 4_000 < scraped.series < 5_000
    assert len(scraped.by("parked", "category")) == 151


def test_the_cool_downs_of_a_webhook_and_of_each_channel_of_the_limits_have_labels_of_their_own(
    redis: Database, env: dict[str, str]
) -> None:
    routes = "[{match: severity=critical, channel: '#oncall'}]"
    rule = f"{{channel: '#own', fallback: '#spare', routes: {routes}}}"
    Path(env["DISPATCHER_LIMITS_FILE"]).write_text(f"categories: {{errors: {rule}}}\n", encoding="utf-8")
    named = {WEBHOOK, "#own", "#spare", "#oncall"}
    redis.zadd(KEYS.cooldowns, dict.fromkeys((*named, "#elsewhere"), 4e15))
    scraped = Scrape.of(run("metrics", **env).out)
    assert scraped.by("cooldown_seconds", "channel").keys() == {*named, "other"}


def test_history_scans_and_edits_that_wait_are_no_channel_that_takes_no_post(
    redis: Database, env: dict[str, str]
) -> None:
    redis.zadd(KEYS.cooldowns, {"conversations.history": 4e15, "edits": 4e15})
    assert Scrape.of(run("metrics", **env).out).by("cooldown_seconds", "channel") == {}


def test_requests_to_slack_are_counted_with_what_is_settled(
    redis: Database, env: dict[str, str], slack_stand_in: SlackStandIn
) -> None:
    Producer(redis).send_many([{"category": "errors", "text": "a"}, {"category": "errors", "text": "b"}])
    slack = {"DISPATCHER_SLACK_TOKEN": slack_stand_in.token, "DISPATCHER_SLACK_BASE_URL": slack_stand_in.base_url}
    assert run("worker", "--burst", **env, **slack).code == 0
    scraped = Scrape.of(run("metrics", **env).out)
    assert scraped.by("slack_requests_total", "method")["chat.postMessage"] == 2
    assert scraped.total("slack_request_seconds_count") == scraped.total("slack_requests_total")
    assert 0 < scraped.total("slack_request_seconds_sum") < 60

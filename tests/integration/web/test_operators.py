"""Looking and operating over HTTP: the objects of the commands, what is changed, and the trail of it."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
import httpx
import pytest
from httpx import ASGITransport
from redis.asyncio import Redis as AsyncRedis
from rq import Queue
from rq.serializers import JSONSerializer
from starlette.routing import Route

from dispatcher.cli.parked import parked
from dispatcher.core.event import in_words
from dispatcher.core.units import US
from dispatcher.settings.limits_file import read_limits
from dispatcher.store.silences import Silencing
from dispatcher.web import operating
from tests.support.commands import run
from tests.support.dead_letters import KEYS, buried, bury, numbered, on_lanes
from tests.support.delay_proxy import DelayProxy
from tests.support.servers import Database, RedisServer
from tests.support.serving import TOKENS, Serving, app_on
from tests.support.stage import Stage

SCOPES: Final[Mapping[str, tuple[str, set[str]]]] = {
    name: (secret, set(scopes.split(",")))
    for name, scopes, secret in (line.split() for line in TOKENS.splitlines() if not line.startswith("#"))
}
LIMITS = 'defaults: {limits: [1/1d], on_limit: defer, channel: "#all"}\n'


@pytest.fixture(scope="module")
def desk(shared_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    cwd: Path = tmp_path_factory.mktemp("desk")
    (cwd / "tokens").write_text(TOKENS, encoding="utf-8")
    with Serving(shared_server.url, cwd, "--tokens", "tokens") as serving:
        yield serving


@pytest.fixture
def olga(desk: Serving, redis_url: str) -> Iterator[httpx.Client]:
    """An operator, on an empty database."""
    del redis_url
    with desk.client("secret-of-olga") as client:
        yield client


def serving_stage(redis_url: str, cwd: Path) -> Serving:
    """``serve`` on the namespace of a ``Stage`` with ``LIMITS``."""
    (cwd / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    (cwd / "tokens").write_text(TOKENS, encoding="utf-8")
    return Serving(
        redis_url, cwd, "--tokens", "tokens",
        DISPATCHER_NAMESPACE="stage", DISPATCHER_QUEUE="q", DISPATCHER_LIMITS_FILE="limits.yaml",
    )  # fmt: skip


def said(*arguments: str, redis_url: str) -> Any:  # noqa: ANN401 - JSON
    """What a command prints with ``--json``."""
    return json.loads(run(*arguments, "--json", DISPATCHER_REDIS_URL=redis_url).out)


def alike(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Without what another instant, or another current folder, changes."""
    text = re.sub(r'"(now|next_free_s|over_s|file|sentence)": ("[^"]*"|[0-9.]+)', r'"\1": 0', json.dumps(value))
    text = re.sub(r'"rates": \{[^}]*\}', '"rates": 0', text)  # they are by the second
    return json.loads(text)


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/v1/status", ["status"]),
        ("/v1/status?category=e*&sort=dead", ["status", "--category", "e*", "--sort", "dead"]),
        ("/v1/limits", ["limits", "show"]),
        ("/v1/dead", ["dead", "list"]),
        (
            "/v1/dead?category=errors&since=2h&limit=3",
            ["dead", "list", "--category", "errors", "--since", "2h", "--limit=3"],
        ),
        ("/v1/dead?text=TEXT+1", ["dead", "list", "--text", "TEXT 1"]),
        ("/v1/dead/e1", ["dead", "show", "e1"]),
        ("/v1/events", ["events"]),
        (
            "/v1/events?category=errors&outcome=dead&reason=rejected&text=1+text&since=1h&limit=1",
            ["events", "--category=errors", "--outcome=dead", "--text=1 text", "--since=1h", "--limit=1"],
        ),
        ("/v1/events/e1", ["explain", "e1"]),
        ("/v1/parked", ["parked", "list"]),
        ("/v1/audit", ["audit"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_read_is_what_the_command_prints(
    olga: httpx.Client, redis: Database, redis_url: str, path: str, command: list[str]
) -> None:
    bury(redis, numbered(3), ago_s=60)
    answer = olga.get(path)
    assert answer.status_code == 200
    assert alike(answer.json()) == alike(said(*command, redis_url=redis_url))


def test_half_of_a_character_and_a_number_that_json_lacks_are_shown(
    olga: httpx.Client, redis: Database, redis_url: str
) -> None:
    queue = Queue("notifications", connection=redis, serializer=JSONSerializer)
    block = {"type": "section", "text": {"type": "plain_text", "text": "a\ud800b"}}
    event = {"category": "errors", "blocks": [{**block, "n": [math.nan, math.inf]}]}
    queue.enqueue("dispatcher.jobs.dispatch", event, job_id="odd")
    bury(redis)
    answer = olga.get("/v1/dead/odd")
    assert answer.status_code == 200, answer.text
    assert '"text":"a\\ud800b"},"n":[null,null]' in answer.text
    assert ascii(alike(answer.json())) == ascii(alike(said("dead", "show", "odd", redis_url=redis_url)))
    assert {olga.get(path).status_code for path in ("/v1/dead", "/v1/events/odd", "/v1/events", "/dead/odd")} == {200}


@pytest.mark.parametrize(("path", "rows"), [("/v1/events", "events"), ("/v1/dead", "dead_letters")])
def test_a_list_goes_on_behind_its_last_row_and_leaves_nothing_out(
    olga: httpx.Client, redis: Database, path: str, rows: str
) -> None:
    for ago_s in (80, 60, 40):
        bury(redis, [{**event, "id": f"{ago_s}-{event['id']}"} for event in numbered(3)], ago_s=ago_s)
    lists: list[list[str]] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        answer = olga.get(path, params=query).json()
        lists.append([row["id"] for row in answer[rows]])
        if not answer["more"]:
            break
        query["after"] = answer["next"]
    assert [len(each) for each in lists] == [2, 2, 2, 2, 1]
    assert sorted(chain.from_iterable(lists)) == sorted(f"{ago_s}-e{n}" for ago_s in (40, 60, 80) for n in range(3))
    assert "next" not in answer


@pytest.mark.parametrize("query", [{}, {"category": "reports"}, {"text": "text"}], ids=str)
def test_the_list_of_parked_events_goes_on_and_names_each_that_stays_once_while_others_come_and_go(
    shared_server: RedisServer, redis: Database, tmp_path: Path, query: dict[str, str]
) -> None:
    """More than two pages of the store wait; many of them expire in the same microsecond."""
    stage = Stage(redis, read_limits(LIMITS, "limits.yaml").policy)
    stage.clock.now_us = time.time_ns() // 1_000
    for group in "abc":
        stage.send(*(f"{group}{number:02}" for number in range(50)), category="reports")
        stage.worker("ann").run()
        stage.clock.forward(1)
    staying = {f"{group}{number:02}" for group in "abc" for number in range(50)} - {"a00"}  # which was posted
    with serving_stage(shared_server.url, tmp_path) as serving, serving.client("secret-of-olga") as olga:
        found: list[str] = []
        answer: dict[str, Any] = {}
        for turn in count():
            after = {"after": answer["next"]} if found else {}
            answer = olga.get("/v1/parked", params={**query, "limit": 7, **after}).json()
            found += [each["id"] for each in answer["parked"]]
            if not answer["more"]:
                break
            assert len(answer["parked"]) == 7
            gone = [found[-1], *sorted(staying - set(found))[:1]]  # the last one shown, and one that is still to come
            staying -= {*gone[1:]}
            assert olga.post("/v1/parked/cancel", json={"ids": gone}).json()["cancelled"] == len(gone)
            stage.send(f"late-{turn}", category="reports")
            stage.worker("ann").run()
    assert "next" not in answer
    assert len(found) == len(set(found))
    assert staying <= set(found)


@pytest.mark.parametrize("after", ["", "7", "a-1", "1-", "1.1.1", "9" * 17 + "-a"])
def test_a_place_among_parked_events_that_no_answer_has_named_is_refused(olga: httpx.Client, after: str) -> None:
    answer = olga.get("/v1/parked", params={"after": after})
    assert (answer.status_code, "expected the next of an answer" in answer.text) == (422, True)


def test_the_at_of_an_answer_is_a_time(olga: httpx.Client, redis: Database) -> None:
    for ago_s in (80, 60, 40):
        bury(redis, [{**event, "id": f"{ago_s}-{event['id']}"} for event in numbered(3)], ago_s=ago_s)
    at = olga.get("/v1/events", params={"limit": 4}).json()["events"][-1]["at"]
    assert len(olga.get("/v1/events", params={"before": at}).json()["events"]) == 3
    assert olga.post("/v1/dead/purge", json={"since": at, "dry_run": True}).json()["matched"] == 6


@pytest.mark.parametrize("path", ["/v1/events", "/v1/dead"])
@pytest.mark.parametrize("after", ["", "7", "a-1", "1-1-1", "1.1.1", "1-" + "9" * 17, "1.1.1." + "9" * 17])
def test_a_place_that_no_answer_has_named_is_refused(olga: httpx.Client, path: str, after: str) -> None:
    answer = olga.get(path, params={"after": after})
    assert (answer.status_code, "expected the next of an answer" in answer.text) == (422, True)


@pytest.mark.parametrize("path", ["/v1/events/none", "/v1/dead/none"])
def test_what_is_not_known_is_404(olga: httpx.Client, path: str) -> None:
    assert olga.get(path).status_code == 404


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/v1/dead?limit=0", "/limit"),
        ("/v1/dead?since=soon", "/since"),
        ("/v1/parked?older_than=x", "/older_than"),
        ("/v1/parked?reason=zz", "/reason"),
        ("/v1/parked?reason=expired", "/reason"),
        ("/v1/dead?reason=zz", "/reason"),
        ("/v1/status?sort=size", "/sort"),
        ("/v1/events?outcome=gone", "/outcome"),
        ("/v1/events?reason=pace", "/reason"),
        ("/v1/audit?whom=olga", "/whom"),
        ("/v1/events/e1?text=x", "/text"),
        ("/v1/dead/e1?category=errors", "/category"),
    ],
)
def test_a_question_with_a_fault_is_told_with_its_place(olga: httpx.Client, path: str, pointer: str) -> None:
    answer = olga.get(path)
    assert (answer.status_code, [fault["pointer"] for fault in answer.json()["errors"]]) == (422, [pointer])


def test_a_reason_for_which_nothing_can_wait_is_told_with_those_that_there_are(olga: httpx.Client) -> None:
    (option,) = [each for each in parked.commands["list"].params if each.name == "reason"]
    assert isinstance(option.type, click.Choice)
    said = f"reason is 'zz', expected one of {', '.join(option.type.choices)}"
    assert olga.get("/v1/parked?reason=zz").json()["detail"] == said
    assert olga.post("/v1/parked/cancel", json={"reason": "zz"}).json()["detail"] == said
    assert {olga.get(f"/v1/parked?reason={each}").status_code for each in option.type.choices} == {200}


def test_a_replay_is_counted_first_and_then_done(olga: httpx.Client, redis: Database) -> None:
    bury(redis, [*numbered(250), {"category": "deploys", "text": "x", "id": "d"}])
    wanted = {"category": "errors"}
    counted = olga.post("/v1/dead/replay", json={**wanted, "dry_run": True}).json()
    assert counted == {"matched": 250, "replayed": 0, "dry_run": True, "more": False}
    assert on_lanes(redis) == []
    done = olga.post("/v1/dead/replay", json={**wanted, "to": "ops"}).json()
    assert done == {"matched": 250, "replayed": 250, "dry_run": False, "more": False}
    assert on_lanes(redis) == [f"e{n}" for n in range(250)]
    assert buried(redis) == ["d"]


def test_an_action_whose_time_is_over_says_that_there_is_more(
    redis: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def purge() -> object:
        app = ASGITransport(app_on(redis_url, tokens=tokens))
        async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
            headers = {"Authorization": "Bearer secret-of-olga"}
            return (await client.post("/v1/dead/purge", json={"all": True}, headers=headers)).json()

    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS, encoding="utf-8")
    bury(redis, numbered(5))
    monkeypatch.setattr(operating, "WORK_S", -1.0)
    assert asyncio.run(purge()) == {"matched": 0, "purged": 0, "dry_run": False, "more": True}
    assert len(buried(redis)) == 5


def test_where_the_answer_to_a_change_is_lost_the_problem_says_that_it_may_have_been_made(
    redis: Database, shared_server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(TOKENS, encoding="utf-8")
    with DelayProxy(shared_server.socket) as proxy:
        url = f"redis://:{quote(shared_server.password, safe='')}@127.0.0.1:{proxy.port}/0"
        with Serving(url, tmp_path, "--tokens", "tokens") as serving, serving.client("secret-of-olga") as olga:
            proxy.lose_answer_to(b"for_us")
            lost = olga.post("/v1/silences", json={"matchers": ["host=db1"], "for": "1h", "why": "x"})
    assert lost.status_code == 503
    assert lost.json()["detail"].endswith("; what was asked for may have been done")
    assert len(Silencing(redis, KEYS).all()) == 1


@pytest.mark.parametrize(
    ("words", "path", "body"),
    [
        (b'"most"', "/v1/dead/purge", b'{"all": true, "dry_run": true}'),
        (b'"most"', "/v1/dead/replay", b'{"all": true, "dry_run": true}'),
        (b"ZRANGE", "/v1/parked/cancel", b'{"all": true, "dry_run": true}'),
        (b"limits_refused", "/v1/limits/apply", b"global: {limits: [0/1h]}"),
    ],
)
def test_a_request_that_changes_nothing_does_not_say_that_it_may_have(  # noqa: PLR0913, PLR0917 - a table
    redis: Database, shared_server: RedisServer, tmp_path: Path, words: bytes, path: str, body: bytes
) -> None:
    async def ask(url: str) -> httpx.Response:
        app = ASGITransport(app_on(url, tokens=tokens))
        async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
            return await client.post(path, content=body, headers={"Authorization": "Bearer secret-of-olga"})

    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS, encoding="utf-8")
    bury(redis, numbered(1))
    with DelayProxy(shared_server.socket) as proxy:
        proxy.lose_answer_to(words)
        answer = asyncio.run(ask(f"redis://:{quote(shared_server.password, safe='')}@127.0.0.1:{proxy.port}/0"))
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("Redis did not answer: ")
    assert "; " not in answer.json()["detail"]


def test_where_the_server_refuses_the_next_part_the_problem_says_how_many_were_done(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async def purge(url: str) -> httpx.Response:
        app = ASGITransport(app_on(url, tokens=tokens))
        async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
            headers = {"Authorization": "Bearer secret-of-olga"}
            return await client.post("/v1/dead/purge", json={"all": True}, headers=headers)

    def on_call(piece: bytes) -> None:
        if b'"letters"' in piece:
            proxy.on_reply = refuse_the_next

    def refuse_the_next(piece: bytes) -> None:
        if not piece.startswith(b"-NOSCRIPT"):
            own_server.attendant.config_set("min-replicas-to-write", 1)

    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS, encoding="utf-8")
    bury(own_server.attendant, numbered(60))
    with DelayProxy(own_server.socket) as proxy:
        proxy.on_call = on_call
        answer = asyncio.run(purge(proxy.url))
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("Redis has too few replicas and refuses to write: ")
    assert answer.json()["detail"].endswith("; 50 were purged")


def test_on_the_page_a_silence_begins_by_the_clock_of_the_redis_server(
    redis: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add() -> None:
        app, olga = ASGITransport(app_on(redis_url, tokens=tokens)), ("", "secret-of-olga")
        async with httpx.AsyncClient(transport=app, base_url="http://localhost", auth=olga) as client:
            asked = {"matchers": "host=db1", "for": "1h", "why": "x", "start": "30m"}
            answer = await client.post("/silences/add", data=asked, headers={"Origin": "http://localhost"})
            assert answer.status_code == 303, answer.text

    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS, encoding="utf-8")
    host_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: host_ns() + 2 * 86_400 * 10**9)
    asyncio.run(add())
    seconds, _ = redis.time()
    (begun,) = Silencing(redis, KEYS).all()
    assert abs(begun.silence.from_us / US - seconds - 1_800) < 60


@pytest.mark.parametrize("to", ["", "#", "ops room", "@olga", "a,b", "x" * 81, 5])
def test_a_channel_that_no_event_can_have_is_refused_by_its_name(olga: httpx.Client, to: object) -> None:
    answer = olga.post("/v1/dead/replay", json={"all": True, "dry_run": True, "to": to})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/to")
    assert answer.json()["detail"] == f"to is {in_words(to)}, expected a channel such as #ops"


def test_dead_letters_are_purged_by_id_or_all_up_to_a_limit(olga: httpx.Client, redis: Database) -> None:
    bury(redis, numbered(5))
    assert olga.post("/v1/dead/purge", json={"ids": ["e3", "none"]}).json()["purged"] == 1
    assert olga.post("/v1/dead/purge", json={"all": True, "limit": 2}).json()["purged"] == 2
    assert buried(redis) == ["e2", "e4"]


@pytest.mark.parametrize(
    "body", [{}, {"ids": ["a"], "all": True}, {"category": "a", "all": True}, {"ids": "a"}, {"all": "yes"}, {"id": "a"}]
)
def test_what_is_meant_must_be_said_once(olga: httpx.Client, body: dict[str, object]) -> None:
    for path in ("/v1/dead/replay", "/v1/dead/purge", "/v1/parked/cancel"):
        assert olga.post(path, json=body).status_code == 422


@pytest.mark.parametrize("path", ["/v1/dead/replay", "/v1/dead/purge", "/v1/parked/cancel"])
def test_a_limit_beside_ids_is_refused_as_the_commands_do(olga: httpx.Client, redis: Database, path: str) -> None:
    bury(redis, numbered(2))
    answer = olga.post(path, json={"ids": ["e0", "e1"], "limit": 1})
    assert (answer.status_code, [each["pointer"] for each in answer.json()["errors"]]) == (422, ["/limit"])
    assert buried(redis) == ["e0", "e1"]


def test_where_no_parked_event_is_meant_every_filter_is_named(olga: httpx.Client) -> None:
    (fault,) = olga.post("/v1/parked/cancel", json={}).json()["errors"]
    said = "which ones are meant: give ids, or some of category, reason, channel, older_than, text, or all as true"
    assert (fault["pointer"], fault["detail"]) == ("/ids", said)


def test_parked_events_are_listed_and_cancelled(shared_server: RedisServer, redis: Database, tmp_path: Path) -> None:
    stage = Stage(redis, read_limits(LIMITS, "limits.yaml").policy)
    stage.clock.now_us = time.time_ns() // 1_000 - 600_000_000
    ann = stage.worker("ann")
    stage.send("one", "two", category="reports")
    ann.run()
    stage.clock.forward(600)
    stage.send("three", category="reports", channel="#ops")
    ann.run()
    stage.redis.delete(stage.keys.leases)
    with serving_stage(shared_server.url, tmp_path) as serving, serving.client("secret-of-olga") as olga:
        listed = olga.get("/v1/parked?category=reports&text=text").json()["parked"]
        assert {each["id"] for each in listed} == {"two", "three"}
        for asked, found in (("older_than=5m", ["two"]), ("channel=%23ops", ["three"]), ("reason=pace", [])):
            assert [each["id"] for each in olga.get(f"/v1/parked?{asked}").json()["parked"]] == found, asked
        told = olga.post("/v1/parked/cancel", json={"category": "reports", "dry_run": True}).json()
        assert told == {"matched": 2, "cancelled": 0, "dry_run": True, "more": False}
        assert olga.post("/v1/parked/cancel", json={"ids": ["two"]}).json()["cancelled"] == 1
        assert olga.post("/v1/parked/cancel", json={"all": True}).json()["cancelled"] == 1
        assert olga.get("/v1/parked").json()["total"] == 0
        assert "by olga" in olga.get("/v1/events/two").json()["sentence"]
    assert {line["event_id"] for line in serving.named("event.settled")} == {"two", "three"}


def test_pauses_and_mutes_begin_and_end(olga: httpx.Client) -> None:
    assert olga.put("/v1/pause", json={"why": "a move"}).status_code == 204
    assert olga.put("/v1/pause/errors").status_code == 204
    muted = olga.put("/v1/mutes/chatter", json={"for": "2h", "why": "a deploy"})
    assert (muted.status_code, muted.json()["who"]) == (200, "olga")
    status = olga.get("/v1/status").json()
    assert status["paused"]["detail"] == "paused by olga: a move"
    assert [each["category"] for each in status["paused_categories"]] == ["errors"]
    assert [(each["category"], each["why"], each["who"]) for each in status["muted"]] == [
        ("chatter", "a deploy", "olga")
    ]
    ends = ("/v1/pause", "/v1/pause/errors", "/v1/mutes/chatter")
    assert [olga.delete(path).status_code for path in ends] == [204, 204, 204]
    assert [olga.delete(path).status_code for path in ends] == [404, 404, 404]
    for body, pointers in (
        ({"for": "soon", "why": "x"}, ["/for"]),
        ({"for": -1, "why": "x"}, ["/for"]),
        ({"for": "9" * 30 + "h", "why": "x"}, ["/for"]),
        ({"for": "2h", "why": "\ud800"}, ["/why"]),
        ({"why": None}, ["/for", "/why"]),
    ):
        refused = olga.put("/v1/mutes/chatter", content=json.dumps(body))
        assert (refused.status_code, [each["pointer"] for each in refused.json()["errors"]]) == (422, pointers)
    assert olga.put("/v1/pause/a b").status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/pause?category=errors", {}),
        ("DELETE", "/v1/pause?category=errors", {}),
        ("DELETE", "/v1/pause", {"category": "errors"}),
        ("DELETE", "/v1/pause/errors", {"category": "news"}),
        ("DELETE", "/v1/mutes/chatter?category=errors", {}),
        ("DELETE", "/v1/mutes/chatter", {"category": "errors"}),
        ("DELETE", "/v1/silences/x", {"category": "errors"}),
        ("POST", "/v1/dead/purge?category=errors", {"all": True}),
        ("POST", "/v1/parked/cancel?category=errors", {"all": True}),
        ("POST", "/v1/limits/check?category=errors", {}),
    ],
)
def test_a_field_that_a_call_does_not_read_is_refused_and_nothing_is_done(
    olga: httpx.Client, redis: Database, method: str, path: str, body: dict[str, object]
) -> None:
    bury(redis, numbered(1))
    assert olga.put("/v1/mutes/chatter", json={"for": "2h", "why": "a deploy"}).status_code == 200
    for begun in ("/v1/pause", "/v1/pause/errors")[method == "PUT" :]:
        assert olga.put(begun).status_code == 204
    before = olga.get("/v1/audit").json()
    answer = olga.request(method, path, json=body)
    (fault,) = answer.json()["errors"]
    assert (answer.status_code, fault["pointer"]) == (422, "/category")
    assert fault["detail"] == "'category' is not known here, expected none"
    assert olga.get("/v1/audit").json() == before
    assert buried(redis) == ["e0"]


def test_silences_begin_are_listed_and_end(olga: httpx.Client) -> None:
    wanted = {"matchers": ["host=db1", "severity!=critical"], "for": "2h", "why": "db1 moves", "start": 4_070_908_800}
    begun = olga.post("/v1/silences", json={**wanted, "until_resolved": True, "end_if_idle": "1h", "no_report": True})
    assert (begun.status_code, begun.json()) == (
        201,
        {
            "id": "1",
            "matchers": ["host=db1", "severity!=critical"],
            "why": "db1 moves",
            "who": "olga",
            "from": 4_070_908_800,
            "until": 4_070_916_000,
            "ends": 4_070_908_800 + 3_600,
            "suppressed": 0,
        },
    )
    assert olga.get("/v1/silences").json() == {"silences": [begun.json()]}
    text = olga.post(
        "/v1/silences", json={"matchers": "host=db2", "for": "1h", "why": "x", "start": "2099-01-01T00:00Z"}
    )
    assert (text.status_code, text.json()["from"]) == (201, 4_070_908_800)
    seen = olga.post("/v1/silences/preview", json={"matchers": ["host=db1"]})
    assert (seen.status_code, seen.json()) == (200, {"matched": 0, "of": 0, "since": None, "priorities": {}})
    assert [olga.delete("/v1/silences/1").status_code for _ in range(2)] == [204, 404]
    for fault, *pointers in (
        ({"matchers": ["host"]}, "/matchers"),
        ({"matchers": ["category=*"]}, "/matchers"),
        ({"matchers": [1]}, "/matchers"),
        ({"for": "soon"}, "/for"),
        ({"for": "0"}, "/for"),
        ({"why": None}, "/why"),
        ({"for": None, "why": 1}, "/why", "/for"),
        ({"start": "2099-01-01T00:00"}, "/start"),
        ({"end_if_idle": 3}, "/end_if_idle"),
        ({"end_if_idle": "0"}, "/end_if_idle"),
        ({"other": 1}, "/other"),
    ):
        refused = olga.post("/v1/silences", json={**wanted, **fault})
        assert (refused.status_code, [each["pointer"] for each in refused.json()["errors"]]) == (422, pointers)
    assert olga.post("/v1/silences/preview", json={}).status_code == 422
    audited = [(each["what"], each["about"]) for each in olga.get("/v1/audit").json()["audit"]]
    assert audited == [
        ("silence expire", "1"),
        ("silence add", "2: host=db2"),
        ("silence add", "1: host=db1 severity!=critical"),
    ]


def test_limits_are_checked_and_put_in_force(olga: httpx.Client) -> None:
    good = b"global: {limits: [100/30m]}\ndefaults: {limits: [10/30m]}\n"
    rules = olga.post("/v1/limits/check", content=good).json()["rules"]
    assert any("at most 100 in any 30 minutes" in rule for rule in rules)
    bad = olga.post("/v1/limits/apply", content=b"global:\n  limits: [10/30]\nchanels: {}\n")
    assert bad.status_code == 422
    assert [(fault["line"], fault["column"]) for fault in bad.json()["errors"]] == [(2, 12), (3, 1)]
    early = olga.post("/v1/limits/apply?if_version=3", content=good)
    assert early.json()["detail"] == "no version is in force, expected version 3: nothing has changed"
    assert olga.post("/v1/limits/apply", content=good).json() == {"version": 1, "was": None, "known": None}
    other = good.replace(b"100", b"50")
    assert olga.post("/v1/limits/apply?if_version=2", content=other).status_code == 412
    assert olga.post("/v1/limits/apply", content=b"# not written yet\n").status_code == 422
    assert olga.post("/v1/limits/apply?if_version=1", content=other).json()["version"] == 2
    assert olga.get("/v1/limits").json()["by"] == "olga"


def test_an_outage_is_a_reason_to_come_again_for_operators_too(own_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKENS, encoding="utf-8")
    with (
        Serving(own_server.url, tmp_path, "--tokens", "tokens") as serving,
        serving.client("secret-of-olga") as olga,
    ):
        assert olga.get("/v1/status").status_code == 200
        own_server.stop()
        for answer in (olga.get("/v1/status"), olga.get("/v1/events/a"), olga.put("/v1/pause")):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        own_server.start()
        assert olga.put("/v1/pause").status_code == 204
        with own_server.client() as redis:
            redis.set(KEYS.pause, "of another type")
        assert olga.delete("/v1/pause").status_code == 503


def test_without_tokens_nobody_operates(serving: Serving) -> None:
    with serving.client() as client:
        assert client.get("/v1/status").status_code == 200
        answer = client.put("/v1/pause")
    assert answer.status_code == 403
    assert "DISPATCHER_SERVE_TOKENS_FILE" in answer.json()["detail"]


def test_the_description_names_every_route_and_each_is_opened_by_its_scope_alone(desk: Serving, redis_url: str) -> None:
    def bare(path: str) -> str:
        return re.sub(r"\{[^}]+\}", "x", path)

    with ExitStack() as stack:
        nobody = stack.enter_context(desk.client())
        callers = {name: stack.enter_context(desk.client(secret)) for name, (secret, _) in SCOPES.items()}
        described = {
            (method, path): {name for each in operation.get("security", ()) for (name,) in each.values()}
            for path, methods in nobody.get("/openapi.json").json()["paths"].items()
            for method, operation in methods.items()
        }
        paths = {path for _, path in described}
        assert len({bare(path) for path in paths}) == len(paths), "OpenAPI has one path for what differs in names only"
        assert {(method.upper(), bare(path)) for method, path in described} == {
            (method, bare(route.path))
            for route in app_on(redis_url).routes
            if isinstance(route, Route) and route.path.startswith(("/v1/", "/-/", "/metrics", "/openapi"))
            for method in (route.methods or set()) - {"HEAD"}
        }
        for (method, path), scopes in described.items():
            status = nobody.request(method, bare(path)).status_code
            assert (status == 401) == bool(scopes), f"{method} {path}"
            for name, (_, has) in SCOPES.items():
                refused = callers[name].request(method, bare(path)).status_code == 403
                assert refused == (not scopes <= has), f"{method} {path} by {name}"
            allowed = nobody.request("PATCH", bare(path))
            assert allowed.status_code == 405
            assert method.upper() in allowed.headers["allow"].split(", ")


def test_every_route_that_reads_the_namespace_refuses_another_layout(redis: Database, redis_url: str) -> None:
    async def answers() -> dict[str, httpx.Response]:
        async with (
            AsyncRedis.from_url(redis_url) as connected,
            httpx.AsyncClient(
                transport=ASGITransport(app_on(redis_url, connected)), base_url="http://localhost"
            ) as client,
        ):
            paths = (await client.get("/openapi.json")).json()["paths"]
            asked = [path for path, methods in paths.items() if "get" in methods]
            return {path: await client.get(re.sub(r"\{[^}]+\}", "seen", path)) for path in asked}

    bury(redis, [{"category": "errors", "text": "x", "id": "seen"}])
    redis.set(KEYS.layout, "99")
    found = asyncio.run(answers())
    assert {path for path, answer in found.items() if answer.status_code != 503} == {"/-/healthy", "/openapi.json"}
    refused = {path: answer for path, answer in found.items() if "problem" in answer.headers["content-type"]}
    problems = {path: answer.json()["detail"] for path, answer in refused.items()}
    assert found.keys() - problems.keys() == {"/-/healthy", "/openapi.json", "/metrics"}
    assert all("holds key layout '99'" in detail for detail in problems.values()), problems


def test_the_description_names_the_parameters_that_are_read(desk: Serving, redis_url: str) -> None:
    """What a path reads of its query it names itself where it refuses one that it does not know."""
    del redis_url
    with desk.client() as client:
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            for method, operation in methods.items():
                scopes = {name for each in operation.get("security", ()) for (name,) in each.values()}
                secret = next(secret for secret, has in SCOPES.values() if scopes <= has)
                bearer = {"Authorization": f"Bearer {secret}"}
                answer = client.request(method, re.sub(r"\{[^}]+\}", "x", path), params={"odd": "x"}, headers=bearer)
                errors = answer.json().get("errors", ()) if answer.status_code == 422 else ()
                told = "".join(each["detail"] for each in errors if each["pointer"] == "/odd")
                described = sorted(each["name"] for each in operation["parameters"] if each["in"] == "query")
                assert ", ".join(described) == told.partition("expected one of ")[2], f"{method} {path}"

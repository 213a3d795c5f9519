"""The page over HTTP, without a browser: what each view says, that it is escaped, and what its forms do."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx
import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from dispatcher.core.limits import Reason
from dispatcher.core.policy import OnLimit
from dispatcher.core.posts import Paused
from dispatcher.core.quiet import WEEK
from dispatcher.core.states import DeadLettered
from dispatcher.core.units import US
from dispatcher.web import operating
from dispatcher.web.page import views
from dispatcher.web.page.silences import FIELDS
from dispatcher.web.page.views import VIEWS
from tests.support.dead_letters import EXHAUSTED, KEYS, buried, bury, numbered, on_lanes
from tests.support.html import Node, read_html
from tests.support.processes import until
from tests.support.servers import Database, RedisServer
from tests.support.serving import TOKENS, Serving, app_on
from tests.support.stage import UNPACED, Stage, policy_of

LIMITS: Final = 'defaults: {limits: [1/1d], on_limit: defer, channel: "#all"}\n'
RULES: Final = """\
defaults: {limits: [5/30m], channel: "#all"}
categories:
  alerts:
    limits: [10/30m]
    channel: "#alerts"
    routes: [{match: severity=critical, channel: "#oncall"}]
    fallback: "#ops"
    once: {by: [host], per: 4h}
quiet:
  nights: {times: ["22:00-07:00"], zone: UTC, categories: [alerts], then: digest}
"""
NASTY: Final = """<script>alert(1)</script>"'><img src=x onerror=alert(1)>"""
SEES: Final = ["/", "/suppressed", "/explain", "/waiting", "/dead", "/silences", "/limits", "/audit"]


@pytest.fixture(scope="module")
def desk(shared_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    cwd: Path = tmp_path_factory.mktemp("page")
    (cwd / "tokens").write_text(TOKENS, encoding="utf-8")
    (cwd / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    with Serving(
        shared_server.url, cwd, "--tokens", "tokens", DISPATCHER_LIMITS_FILE="limits.yaml", TZ="Asia/Tokyo"
    ) as serving:
        yield serving


@pytest.fixture
def browser(desk: Serving, redis_url: str) -> Iterator[httpx.Client]:
    """As a browser in which an operator has given her token, on an empty database."""
    del redis_url
    with desk.client() as client:
        client.auth = ("", "secret-of-olga")
        yield client


@pytest.fixture(scope="module")
def staged(shared_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """What shows the namespace of a stage, without tokens."""
    cwd: Path = tmp_path_factory.mktemp("staged")
    with Serving(shared_server.url, cwd, DISPATCHER_NAMESPACE="stage", DISPATCHER_QUEUE="q") as serving:
        yield serving


@pytest.fixture
def audience(staged: Serving, redis_url: str) -> Iterator[httpx.Client]:
    """A viewer of the stage."""
    del redis_url
    with staged.client() as client:
        yield client


def at_now(redis: Database, on_limit: OnLimit) -> Stage:
    """A stage at the present time, with one place for each category."""
    stage = Stage(redis, policy_of("", "1/30m", on_limit=on_limit))
    stage.clock.now_us = time.time_ns() // 1_000
    return stage


def seen(client: httpx.Client, path: str, status: int = 200) -> Node:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    return read_html(answer.text)


def alert(page: Node) -> str:
    """What a page says is wrong."""
    (found,) = [each for each in page.all("ul") if each.attributes.get("role") == "alert"]
    return found.text


def in_this_process(redis_url: str, paths: Iterable[str]) -> list[httpx.Response]:
    """What a viewer gets of a program that has looked at nothing yet."""

    async def answers() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app_on(redis_url))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.get(path) for path in paths]

    return asyncio.run(answers())


def inputs(form: Node) -> dict[str, str]:
    return {each.attributes["name"]: each.attributes["value"] for each in form.all("input")}


def test_every_view_is_a_whole_page_with_the_books_and_its_own_name(browser: httpx.Client) -> None:
    for path, (address, name) in zip(SEES, VIEWS.values(), strict=True):
        page = seen(browser, path)
        assert path == address
        assert page.one("title").text == f"{name} · dispatcher"
        assert page.one("h1").text == name
        (current,) = [link for link in page.one("nav").all("a") if "aria-current" in link.attributes]
        assert (current.text, current.attributes["href"]) == (name, path)
        assert page.one("footer").text == (
            "received 0 sent 0 dropped 0 digested 0 dead 0 duplicate 0 parked 0 in flight 0 "
            "the books balance times are in JST"
        )


def test_pages_run_nothing_inline_and_load_nothing_from_elsewhere(browser: httpx.Client) -> None:
    for path in SEES:
        answer = browser.get(path)
        page = read_html(answer.text)
        assert not list(page.all("style"))
        assert [script.parts for script in page.all("script")] == [[]]
        for node in page.all():
            assert not [name for name in node.attributes if name.startswith("on") or name == "style"]
            for name in ("src", "href", "action", "formaction"):
                assert node.attributes.get(name, "/")[0] in "/#"
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert answer.headers["cache-control"] == "no-store"


def test_what_a_page_names_is_there_and_may_be_kept(browser: httpx.Client) -> None:
    page = seen(browser, "/")
    named = [node.attributes.get("src") or node.attributes["href"] for node in page.all("script", "link")]
    assert [re.sub(r"\?v=[0-9a-f]{12}$", "", name) for name in named] == [
        "/page/favicon.svg",
        "/page/style.css",
        "/page/page.js",
    ]
    for name in named:
        answer = httpx.get(browser.base_url.join(name))  # needs no token
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
        other = httpx.get(browser.base_url.join(f"{name}0"))  # the one of another version
        assert (other.status_code, other.headers["cache-control"]) == (200, "no-cache")
    assert httpx.get(browser.base_url.join("/favicon.ico")).headers["content-type"] == "image/svg+xml"
    assert len(httpx.get(browser.base_url.join("/page/page.js")).text.splitlines()) < 150


def test_foreign_text_is_shown_and_never_markup(browser: httpx.Client, redis: Database) -> None:
    event = {"category": "errors", "text": NASTY, "id": NASTY, "labels": {"host": NASTY}, "channel": "#ops"}
    bury(redis, [event], DeadLettered(Reason.REJECTED, NASTY, NASTY))
    redis.hset(KEYS.totals, f"dead {NASTY}", 0)
    browser.put("/v1/pause/errors", json={"why": NASTY})
    browser.put("/v1/mutes/errors", json={"for": "2h", "why": NASTY})
    paths = [*SEES, "/explain?text=script", f"/dead/{NASTY}", "/suppressed?category=" + NASTY]
    shown = 0
    for path in [*paths, f"/explain?id={NASTY}", f"/dead?text={NASTY}", f"/nothing?{NASTY}"]:
        page = read_html(browser.get(path).text)
        assert [node.attributes.get("src", "")[:14] for node in page.all("script", "img")] in ([], ["/page/page.js?"])
        shown += page.text.count("<script>alert(1)</script>")
    assert shown > 10


def test_characters_that_no_screen_shows_are_made_visible(browser: httpx.Client, redis: Database) -> None:
    bury(redis, [{"category": "errors", "text": "a\x1b[31mb\u202ec\nnext", "id": "e"}])
    page = seen(browser, "/dead/e")
    assert page.one("main").text.count("a\\x1b[31mb\\u202ec next") == 1
    assert "\x1b" not in page.text + seen(browser, "/dead").text


@pytest.mark.parametrize("path", ["/dead/e", "/explain?id=e"])
def test_a_text_is_shown_with_its_blanks_and_tabs(browser: httpx.Client, redis: Database, path: str) -> None:
    text = "Traceback:\n  File  'a.py'\n\n\tname\t= 1\x1b"
    bury(redis, [{"category": "errors", "text": text, "id": "e"}])
    assert next(seen(browser, path).all("pre")).verbatim == text.replace("\x1b", "\\x1b")


def test_a_viewer_gets_the_part_that_changes_only_when_it_has(browser: httpx.Client, redis: Database) -> None:
    first = browser.get("/audit", headers={"X-Live": "1"})
    assert first.text.startswith("<main")
    known = {"X-Live": "1", "If-None-Match": first.headers["etag"]}
    again = browser.get("/audit", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    bury(redis, numbered(1))
    assert browser.post("/v1/dead/purge", json={"all": True}).status_code == 200
    assert browser.get("/audit", headers=known).status_code == 200


def test_it_says_who_is_suppressed_by_which_limit_and_since_when(audience: httpx.Client, redis: Database) -> None:
    stage = at_now(redis, OnLimit.DROP)
    for id_ in "abc":
        stage.send(id_, channel=UNPACED)
        stage.worker("ann").run()
    page = seen(audience, "/suppressed")
    (cause,) = [row for row in page.rows() if len(row) == 7]
    assert cause[:4] == ["errors", "dropped", "the limit of category errors, 1 in 30m", "2"]
    assert [row[1] for row in page.rows() if len(row) == 5] == ["c", "b"]
    assert [heading.text for heading in page.all("h2")] == ["Now", "The newest"]
    assert "No suppressed event is on record for news." in seen(audience, "/suppressed?category=news").text


def test_where_not_all_could_be_looked_at_no_list_says_that_there_is_nothing(
    redis: Database, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(redis, numbered(1))
    redis.xadd(KEYS.decision_logs[0], {f'{time.time_ns() // 1_000} ["dropped","news","repeat",null,{{}}]': "a"})
    said = {
        "/dead?category=none": ("No dead letter matches.", "No dead letter that matches was found in time"),
        "/suppressed?category=none": ("is on record for none", "No suppressed event of none was found in time"),
    }

    for answer, (nothing, _) in zip(in_this_process(redis_url, said), said.values(), strict=True):
        assert nothing in answer.text
    monkeypatch.setattr(views, "WORK_S", -1)
    for answer, (nothing, in_time) in zip(in_this_process(redis_url, said), said.values(), strict=True):
        assert nothing not in answer.text
        assert in_time in answer.text
        assert "in the last 30 minutes" not in answer.text


def test_a_full_line_is_said_to_have_suppressed_what_found_no_place_in_it(
    audience: httpx.Client, redis: Database
) -> None:
    policy = policy_of("", "1/30m", on_limit=OnLimit.DEFER)
    stage = Stage(redis, replace(policy, categories={"errors": replace(policy.defaults, max_parked=1)}))
    stage.clock.now_us = time.time_ns() // 1_000
    stage.send("a", "b", "c", "d", channel=UNPACED)
    stage.worker("ann").run()
    (cause,) = [row for row in seen(audience, "/suppressed").rows() if len(row) == 7]
    assert cause[1:4] == ["dead", "its line was full", "2"]


def test_what_an_operator_cancelled_is_not_among_the_suppressed(audience: httpx.Client, redis: Database) -> None:
    stage = at_now(redis, OnLimit.DEFER)
    stage.send("a", "b")
    stage.worker("ann").run()
    stage.parked_events.cancel(stage.parked_events.by_ids(["b"]), "olga")
    page = seen(audience, "/suppressed")
    assert page.rows() == []
    assert "Nothing was suppressed in the last 30 minutes." in page.text
    assert "No suppressed event is on record." in page.text


def test_an_event_is_found_by_its_id_by_a_beginning_of_it_and_by_words(audience: httpx.Client, redis: Database) -> None:
    stage = at_now(redis, OnLimit.DEFER)
    stage.send("early-disk-db1", "late-disk-db2")
    stage.worker("ann").run()
    for asked in ("late-disk-db2", "late"):
        told = seen(audience, f"/explain?id={asked}").one("main")
        assert told.one("pre").text == "text of late-disk-db2"
        assert "Waits for room" in told.text
    assert [row[0] for row in seen(audience, "/explain?text=DISK-DB2&category=errors").rows()] == ["late-disk-db2"]
    assert [row[0] for row in seen(audience, "/waiting?text=db2").rows() if len(row) == 6]
    assert seen(audience, "/explain?text=nobody").rows() == []


def test_what_waits_is_shown_with_the_instant_at_which_it_is_expected(audience: httpx.Client, redis: Database) -> None:
    stage = at_now(redis, OnLimit.DEFER)
    stage.send("one", "two", "three")
    stage.worker("ann").run()
    page = until(lambda: page if (page := seen(audience, "/waiting")).text.count("2 parked") else None, "a new look")
    (line,) = [row for row in page.rows() if len(row) == 4]
    events = [row for row in page.rows() if len(row) == 6]
    assert (line[0], line[1], line[3]) == ("errors", "2", "room in the limit of category errors")
    assert {row[1] for row in events} == {"two", "three"}
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d", row[0]) for row in events)


def test_while_slack_takes_no_post_the_page_says_when_it_is_tried_and_tells_no_instant_for_lines(
    audience: httpx.Client, redis: Database
) -> None:
    stage = Stage(redis, policy_of("", ""))
    stage.clock.now_us = time.time_ns() // 1_000 - 60 * US
    stage.send("a", "b", channel="#ops")
    ann = stage.worker("ann")
    (started,) = ann.go()
    ann.answer(started, Paused("invalid_auth", "Slack does not accept the token"))
    stage.pausing.pause("orders", "olga")
    stage.send("c", category="orders", channel=UNPACED)
    ann.go()
    redis.zadd(stage.keys.cooldowns, {"#busy": 4e15, "#poor": 4e15, "edits": 4e15, "conversations.history": 4e15})
    redis.hset(stage.keys.failures, mapping={"#poor": 3, "edits": 2})
    by_hand, refused, busy, poor, edits, scans = until(
        lambda: [row for row in seen(audience, "/").rows() if len(row) == 6], "a new look"
    )
    assert (by_hand[1], by_hand[5]) == ("paused", "")
    assert refused[:4] == ["All posting", "refused by Slack", "invalid_auth", "Slack does not accept the token"]
    assert re.fullmatch(r"next try \d\d:\d\d:\d\d", refused[5])
    assert (busy[0], busy[3]) == ("#busy", "429")
    assert (poor[0], poor[3]) == ("#poor", "no clear answer to 3 posts in a row")
    assert edits[:4] == ["Edits", "wait", "Slack", "no clear answer to 2 edits in a row"]
    assert scans[:4] == ["History scans", "wait", "Slack", "429"]
    for path in ("/", "/waiting"):
        lines = [row for row in seen(audience, path).rows() if len(row) == 4 and row[1] == "1"]
        assert lines == [["#ops", "1", "", "posting to go on"], ["orders (paused)", "1", "", "the end of the pause"]]


def test_the_first_view_says_what_is_stopped_and_how_much_of_a_limit_is_used(
    redis: Database, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(TOKENS, encoding="utf-8")
    days = ", ".join(WEEK[(datetime.now(UTC).weekday() + ahead) % 7] for ahead in (0, 1))
    hours = f'times: ["00:00-24:00"], days: [{days}], zone: UTC, categories: [news], then: drop'
    quiet = f"quiet: {{today: {{{hours}}}}}\n"
    (tmp_path / "limits.yaml").write_text(LIMITS + quiet, encoding="utf-8")
    bury(redis, numbered(3), EXHAUSTED)
    with (
        Serving(redis_url, tmp_path, "--tokens", "tokens", DISPATCHER_LIMITS_FILE="limits.yaml") as serving,
        serving.client("secret-of-olga") as olga,
    ):
        olga.put("/v1/pause/errors", json={"why": "a move"})
        page = seen(olga, "/")
    assert page.one("main").text.startswith("Now No worker runs. Nothing waits. Start a worker: none runs.")
    paused, held = [row[:4] for row in page.rows() if len(row) == 6]
    assert paused == ["errors", "paused", "olga", "a move"]
    assert held == ["news", "quiet (drop)", "the limits", "today"]
    (category,) = [row for row in page.rows() if row[0] == "errors" and len(row) > 6]
    assert category[1] == "0 of 1 in 1d"
    assert "dead 3" in page.one("figcaption").text
    assert next(page.all("polyline")).attributes["points"]


def test_a_group_of_dead_letters_is_counted_before_it_is_replayed(browser: httpx.Client, redis: Database) -> None:
    bury(redis, numbered(5), attempts=1)
    bury(redis, [{"category": "deploys", "text": "x", "id": "d"}], EXHAUSTED)
    (by_reason,) = [
        each for each in seen(browser, "/dead").all("table") if each.attributes["aria-labelledby"] == "groups"
    ]
    groups = [row[:4] for row in by_reason.rows()]
    assert groups == [
        ["exhausted", "connection", "tried in vain, as often as it may be connection refused", "1"],
        [
            "rejected",
            "channel_not_found",
            "Slack refuses it there is no such channel the last one was for #general",
            "5",
        ],
    ]
    (form,) = [form for form in seen(browser, "/dead").all("form") if inputs(form).get("reason") == "rejected"]
    asked = browser.post(form.attributes["action"], data=inputs(form))
    assert asked.status_code == 200
    question = read_html(asked.text).one("main")
    assert "5 dead letters match." in question.text
    assert on_lanes(redis) == []
    (sure,) = question.all("form")
    done = browser.post(sure.attributes["action"], data=inputs(sure))
    assert (done.status_code, done.headers["location"]) == (303, "/dead?replayed=5")
    assert "5 replayed." in seen(browser, "/dead?replayed=5").text
    assert (len(on_lanes(redis)), buried(redis)) == (5, ["d"])
    (entry,) = seen(browser, "/audit").rows()
    assert entry[1:3] + entry[4:] == ["olga", "dead replay", "5", "", "page"]
    assert entry[3].startswith("reason rejected, code channel_not_found, died before ")


def test_a_group_without_a_code_has_no_buttons_where_its_reason_has_other_codes(
    browser: httpx.Client, redis: Database
) -> None:
    bury(redis, numbered(2), DeadLettered(Reason.EXHAUSTED, "no clear answer"))
    assert [form for form in seen(browser, "/dead").all("form") if inputs(form).get("reason")]
    bury(redis, [{"category": "errors", "text": "x", "id": "d"}], EXHAUSTED)
    page = seen(browser, "/dead")
    assert [inputs(form)["code"] for form in page.all("form") if inputs(form).get("reason")] == ["connection"]
    (row,) = [row for row in page.rows() if row[:2] == ["exhausted", ""]]
    assert row[5] == "one by one: the reason alone means other codes too"


def test_where_there_is_more_to_do_the_list_has_the_filter_with_which_it_goes_on(
    browser: httpx.Client, redis: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def purge() -> str:
        transport = httpx.ASGITransport(app_on(redis_url, tokens=tokens))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.auth = ("", "secret-of-olga")
            return (await client.post("/dead/purge", data=sure)).headers["location"]

    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS, encoding="utf-8")
    bury(redis, numbered(5), EXHAUSTED)
    sure = {"reason": "exhausted", "before": "2099-01-01", "confirmed": "true"}
    monkeypatch.setattr(operating, "WORK_S", -1.0)
    done = asyncio.run(purge())
    assert done == "/dead?purged=0&more=true&reason=exhausted&before=2099-01-01"
    page = seen(browser, done)
    assert "There are more: the same again goes on." in page.text
    on = [inputs(form) for form in page.all("form") if form.attributes.get("action") == "/dead/replay"]
    assert {"reason": "exhausted", "before": "2099-01-01"} in on


@pytest.mark.parametrize(
    ("asked", "ago_s"), [({"before": "1h"}, 3_600), ({"reason": "rejected"}, 0), ({"all": "true"}, 0)], ids=str
)
def test_what_dies_after_the_question_is_left_as_it_is(
    browser: httpx.Client, redis: Database, asked: dict[str, str], ago_s: int
) -> None:
    bury(redis, numbered(2), ago_s=7_200)
    question = read_html(browser.post("/dead/purge", data=asked).text).one("main")
    assert "2 dead letters match" in question.text
    bury(redis, [{"category": "errors", "text": "x", "id": "late"}], ago_s=ago_s)
    (sure,) = question.all("form")
    done = browser.post(sure.attributes["action"], data=inputs(sure))
    assert (done.headers["location"], buried(redis)) == ("/dead?purged=2", ["late"])


def test_a_dead_letter_names_its_channel(browser: httpx.Client, redis: Database) -> None:
    bury(redis, numbered(1), attempts=1)
    (newest,) = [row for row in seen(browser, "/dead").rows() if row[1] == "e0"]
    assert newest[3] == "rejected: channel_not_found in #general"
    assert "Channel #general" in seen(browser, "/dead/e0").one("dl").text


def test_a_letter_that_slack_has_not_refused_is_said_to_be_refused_in_no_channel(
    browser: httpx.Client, redis: Database
) -> None:
    bury(redis, numbered(1), DeadLettered(Reason.REJECTED, "not in the limits file", "unknown_category"))
    page = seen(browser, "/dead")
    (newest,) = [row for row in page.rows() if row[1] == "e0"]
    assert (newest[3], "#general" in page.text) == ("rejected: unknown_category", False)


def test_each_button_of_a_row_has_a_name_of_its_own(browser: httpx.Client, redis: Database) -> None:
    bury(redis, numbered(2))
    browser.post("/silences/add", data=silence("host=db1"))
    named = [
        button.attributes["aria-label"]
        for path in ("/dead", "/silences")
        for row in seen(browser, path).all("td")
        for button in row.all("button")
    ]
    assert named == [
        "Replay rejected: channel_not_found…",
        "Remove rejected: channel_not_found…",
        "Replay e1…",
        "Remove e1…",
        "Replay e0…",
        "Remove e0…",
        "Expire silence 1: host=db1",
    ]


@pytest.mark.parametrize(
    ("path", "fault", "typed"),
    [
        ("/dead?reason=foo&category=errors", "reason is 'foo', expected one of", {"category": "errors"}),
        ("/dead?since=soon&text=disk", "since is 'soon', expected a time", {"since": "soon", "text": "disk"}),
        ("/explain?since=soon&text=disk", "since is 'soon', expected a time", {"since": "soon", "text": "disk"}),
        (f"/waiting?category={'x' * 300}", "category is", {"category": "x" * 300}),
        ("/waiting?older_than=x&text=disk", "older_than is 'x', expected a span", {"older_than": "x", "text": "disk"}),
        (f"/suppressed?category={'x' * 300}", "category is", {"category": "x" * 300}),
    ],
)
def test_a_filter_that_cannot_be_is_shown_again_with_what_is_wrong(
    browser: httpx.Client, redis: Database, path: str, fault: str, typed: dict[str, str]
) -> None:
    bury(redis, numbered(1))
    page = seen(browser, path, 422)
    assert fault in alert(page)
    given = {name: value for form in page.all("form") for name, value in inputs(form).items() if value}
    assert given == typed
    assert page.rows() == []
    assert not list(page.all("script"))  # else it would be asked for every two seconds


@pytest.mark.parametrize("path", ["/suppressed?", "/explain?text=x&", "/waiting?", "/dead?"])
def test_each_filter_of_a_view_has_a_field(browser: httpx.Client, path: str) -> None:
    """Which filters there are, the reader names itself where it refuses one that it does not know."""
    page = seen(browser, f"{path}odd=x", 422)
    filters = set(alert(page).partition("expected one of ")[2].split(", ")) - {"replayed", "purged", "more"}
    fields = {each.attributes["name"] for form in page.all("form") for each in form.all("input", "select")}
    assert filters == fields - {"id"}


def test_parked_events_are_filtered_by_their_age_and_reason(audience: httpx.Client, redis: Database) -> None:
    stage = at_now(redis, OnLimit.DEFER)
    stage.clock.now_us -= 600 * US
    stage.send("old-1", "old-2")
    stage.worker("ann").run()
    stage.clock.forward(600)
    stage.send("new")
    stage.worker("ann").run()
    for asked, found in (
        ("older_than=5m", ["old-2"]),
        ("reason=pace", []),
        ("reason=limit:global", ["new", "old-2"]),
    ):
        rows = [row for row in seen(audience, f"/waiting?{asked}").rows() if len(row) == 6]
        assert sorted(row[1] for row in rows) == found, asked


def test_where_an_end_is_looked_for_no_event_that_waits_is_found(audience: httpx.Client, redis: Database) -> None:
    stage = at_now(redis, OnLimit.DEFER)
    stage.send("one", "two")
    stage.worker("ann").run()
    assert [heading.text for heading in seen(audience, "/explain?text=text").all("h2")] == ["Waiting", "Ended"]
    for end in ("outcome=sent", "since=1h", "before=2099-01-01"):
        assert [heading.text for heading in seen(audience, f"/explain?text=text&{end}").all("h2")] == ["Ended"]
    assert seen(audience, "/explain?text=text&reason=expired").rows() == []


def test_a_version_of_the_limits_that_cannot_be_is_told_above_the_rules_and_versions(browser: httpx.Client) -> None:
    assert browser.post("/v1/limits/apply", content=LIMITS).status_code == 200
    page = seen(browser, "/limits?version=x", 422)
    assert "version is 'x', expected a whole number" in alert(page)
    assert [row[0] for row in page.rows()] == ["1"]
    assert "at most 1 in any 24 hours" in page.text


def test_a_field_that_no_silence_has_is_told_beside_the_silences(browser: httpx.Client) -> None:
    browser.post("/silences/add", data=silence("host=db1"))
    page = seen(browser, "/silences?odd=1", 422)
    assert "'odd' is not known here" in alert(page)
    assert [row[0] for row in page.rows()] == ["host=db1"]
    assert not list(page.all("script"))


def test_reasons_of_dead_letters_are_offered_and_the_chosen_one_stays(browser: httpx.Client) -> None:
    for reason in ("exhausted", "foo"):
        options = list(read_html(browser.get(f"/dead?reason={reason}").text).one("select").all("option"))
        assert [each.text for each in options if "selected" in each.attributes] == [reason]
        assert {"any", "rejected", "limit:category"} < {each.text for each in options}


def test_the_payload_of_a_stock_producer_is_shown_as_what_it_says(browser: httpx.Client, redis: Database) -> None:
    """RQ compresses what a job takes."""
    queue = Queue("notifications", connection=redis, serializer=JSONSerializer)
    queue.enqueue("dispatcher.jobs.dispatch", {"category": "errors", "text": "disk full on db1"}, job_id="stock")
    bury(redis)
    assert '"text": "disk full on db1"' in [each.text for each in seen(browser, "/dead/stock").all("pre")][-1]


@pytest.mark.parametrize("id_", [".", "..", "a/b"])
def test_a_dead_letter_is_opened_whatever_its_id(browser: httpx.Client, redis: Database, id_: str) -> None:
    bury(redis, [{"category": "errors", "text": "disk full on db1", "id": id_}])
    for path in ("/dead", f"/explain?id={id_}"):
        (link,) = [
            link for node in seen(browser, path).one("main").all("a")
            if (link := node.attributes["href"]).startswith("/dead/")
        ]  # fmt: skip
        assert "disk full on db1" in seen(browser, link).text


def test_one_dead_letter_or_those_of_a_filter_are_removed(browser: httpx.Client, redis: Database) -> None:
    bury(redis, numbered(4))
    (form,) = seen(browser, "/dead/e1").all("form")
    sure = {**inputs(form), "confirmed": "true"}
    assert browser.post("/dead/purge", data=sure).headers["location"] == "/dead?purged=1"
    assert buried(redis) == ["e0", "e2", "e3"]
    ids = browser.post("/dead/purge", data={"text": "text 3", "category": "errors", "reason": "", "confirmed": "true"})
    assert ids.headers["location"] == "/dead?purged=1"
    assert buried(redis) == ["e0", "e2"]
    assert "No dead letter matches any more." in browser.post("/dead/purge", data={"ids": "e1"}).text
    assert browser.post("/dead/purge", data={}).status_code == 422


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("replay", "0 replayed: they are no longer there, or cannot be replayed."),
        ("purge", "0 purged: they are no longer there."),
    ],
)
def test_where_nothing_was_done_the_list_says_so(browser: httpx.Client, redis: Database, act: str, said: str) -> None:
    bury(redis, numbered(1))
    done = browser.post(f"/dead/{act}", data={"ids": "gone", "confirmed": "true"})
    assert said in seen(browser, done.headers["location"]).text
    assert "0 replayed. There are more: the same again goes on." in seen(browser, "/dead?replayed=0&more=true").text


def test_without_the_scope_nothing_is_offered_and_nothing_done(desk: Serving, redis: Database) -> None:
    bury(redis, numbered(2))
    with desk.client() as eve:
        eve.auth = ("", "secret-of-eve")
        page = seen(eve, "/dead")
        assert [form.attributes.get("method") for form in page.all("form")] == [None]
        assert "Your token does not have the scope operate." in page.text
        assert [each.attributes.get("method") for each in seen(eve, "/silences").all("form")] == []
        for path, data in (
            ("/dead/replay", {"all": "true", "confirmed": "true"}),
            ("/silences/preview", silence("host=db1")),
            ("/silences/add", silence("host=db1")),
            ("/silences/expire", {"id": "1"}),
        ):
            refused = eve.post(path, data=data)
            assert (refused.status_code, refused.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert len(buried(redis)) == 2


def silence(matchers: str, **fields: str) -> dict[str, str]:
    return {"matchers": matchers, "for": "2h", "why": "db1 moves", **fields}


def test_a_silence_is_previewed_added_and_expired(browser: httpx.Client, redis: Database) -> None:
    labels = [
        {"labels": {"host": host}, **event} for event, host in zip(numbered(3), ("db1", "db2", "db1"), strict=True)
    ]
    bury(redis, labels)
    (form,) = seen(browser, "/silences").all("form")
    assert [each.attributes["name"] for each in form.all("input")] == list(FIELDS)
    asked = browser.post(form.attributes["action"], data=silence("host=db1 severity!=critical", end_if_idle="1h"))
    question = read_html(asked.text).one("main")
    assert "It would have matched 2 of the newest 3 events" in question.text
    assert "host is db1, and severity is not critical" in question.text
    assert [row[1] for row in question.rows()] == ["e2", "e0"]
    assert seen(browser, "/silences").rows() == []
    (sure,) = question.all("form")
    added = browser.post(sure.attributes["action"], data=inputs(sure))
    assert (added.status_code, added.headers["location"]) == (303, "/silences?added=1")
    page = seen(browser, "/silences?added=1")
    assert "Silence 1 was added." in page.text
    (row,) = page.rows()
    assert row[:3] == ["host=db1 severity!=critical", "db1 moves", "olga"]
    assert re.fullmatch(r"\S+( \S+)? at the latest ?at \S+( \S+)? if nothing more matches", row[4])
    assert row[5:] == ["0", "1", "Expire"]
    (expire,) = [each for each in page.all("form") if each.attributes["action"] == "/silences/expire"]
    assert browser.post("/silences/expire", data=inputs(expire)).headers["location"] == "/silences?expired=1"
    page = seen(browser, "/silences?expired=1")
    assert "Nothing is silenced now." in page.text
    (gone,) = page.rows()
    assert (gone[0], gone[4].split(" ", 1)[1]) == ("host=db1 severity!=critical", "by olga")
    trail = [row[1:] for row in seen(browser, "/audit").rows()]
    assert trail == [
        ["olga", "silence expire", "1", "", "", "page"],
        ["olga", "silence add", "1: host=db1 severity!=critical", "", "db1 moves", "page"],
    ]


@pytest.mark.parametrize("start", ["", "2001-01-01"])
def test_a_silence_that_is_to_begin_now_or_before_begins_when_it_is_added(browser: httpx.Client, start: str) -> None:
    question = read_html(browser.post("/silences/preview", data=silence("host=db1", start=start)).text).one("main")
    (sure,) = question.all("form")
    assert "From now" in question.text
    assert "start" not in inputs(sure)


def test_a_silence_begins_when_its_preview_has_said(browser: httpx.Client) -> None:
    begin = time.time()
    question = read_html(browser.post("/silences/preview", data=silence("host=db1", start="1h")).text).one("main")
    end = time.time()
    shown = datetime.fromisoformat(next(question.all("time")).attributes["datetime"]).timestamp()
    (sure,) = question.all("form")
    browser.post("/silences/add", data=inputs(sure))
    (added,) = browser.get("/v1/silences").json()["silences"]
    assert added["from"] == pytest.approx(float(inputs(sure)["start"]))
    assert begin <= added["from"] - 3_600 <= end
    assert 0 <= added["from"] - shown < 1


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"start": "9999999d"}, "it would begin too late"),
        ({"for": "4000d"}, "it would last too long"),
        ({"matchers": " ".join(f"host!=db{number:0200}" for number in range(21))}, "its matchers have"),
    ],
)
def test_a_silence_that_cannot_be_has_no_preview(browser: httpx.Client, fields: dict[str, str], fault: str) -> None:
    answer = browser.post("/silences/preview", data=silence("host=db1") | fields)
    assert answer.status_code == 422
    assert fault in alert(read_html(answer.text))


def test_a_silence_that_ended_by_itself_is_among_those_that_have_also_where_no_worker_runs(
    browser: httpx.Client,
) -> None:
    browser.post("/silences/add", data=silence("host=db1", **{"for": "1ms"}))
    page = until(lambda: page if "automatically" in (page := seen(browser, "/silences")).text else None, "its end")
    assert "Nothing is silenced now." in page.text
    assert browser.get("/v1/silences").json() == {"silences": []}


def test_long_matchers_are_in_the_form_again_after_their_preview(browser: httpx.Client) -> None:
    asked = silence(" ".join(f"host!=db{number:0200}" for number in range(15)))
    page = read_html(browser.post("/silences/preview", data=asked).text)
    (change,) = [each.attributes["href"] for each in page.all("a") if each.text == "Change"]
    (form,) = seen(browser, change).all("form")
    assert {name: value for name, value in inputs(form).items() if value} == {**asked, "until_resolved": "true"}


def test_silences_that_begin_later_and_mutes_are_listed(browser: httpx.Client) -> None:
    browser.post("/silences/add", data=silence("team=web", start="30m"))
    browser.put("/v1/mutes/errors", json={"for": "1h", "why": "too loud"})
    page = seen(browser, "/silences")
    assert [(table.one("caption").text.split(";")[0], table.rows()[0][0]) for table in page.all("table")] == [
        ("In force", "category=errors"),
        ("Nothing is suppressed by these yet", "team=web"),
    ]
    assert "Mutes that have ended are in the view Audit" in page.text


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (silence("host"), "expected NAME=VALUE"),
        (silence("category=*"), "it would match everything"),
        ({"matchers": "host=db1", "for": "2h"}, "why is missing"),
        (silence("host=db1", start="soon"), "start is"),
        (silence("host=db1", **{"for": "4000d"}), "it would last too long"),
    ],
)
def test_a_silence_that_cannot_be_is_shown_again_with_what_is_wrong(
    browser: httpx.Client, fields: dict[str, str], fault: str
) -> None:
    answer = browser.post("/silences/add", data=fields)
    page = read_html(answer.text)
    assert answer.status_code == 422
    assert fault in alert(page)
    typed = {
        each.attributes["name"]: each.attributes["value"] for each in page.all("input") if each.attributes["value"]
    }
    assert typed == {**fields, "until_resolved": "true"}
    assert browser.get("/v1/silences").json() == {"silences": []}


@pytest.mark.parametrize("path", ["/dead/purge", "/silences/add"])
def test_a_form_of_too_many_fields_is_told_on_a_page(browser: httpx.Client, path: str) -> None:
    answer = browser.post(path, content="a=&" * 1_001)
    assert answer.status_code == 422
    assert "expected at most 1000" in read_html(answer.text).one("main").text


def test_the_rules_of_a_category_are_said_in_sentences(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(RULES, encoding="utf-8")
    with Serving(redis_url, tmp_path, DISPATCHER_LIMITS_FILE="limits.yaml") as serving, serving.client() as client:
        page = seen(client, "/limits?category=alerts").one("main")
        others = seen(client, "/limits?category=news").text
    for said in (
        "at most 10 in any 30 minutes, posted to #alerts unless a route matches",
        "of events with the same label host one is posted in any 4 hours, repeats are dropped",
        "if its channel is gone or archived, it is posted to #ops",
        "alerts, route 1 an event that names no channel is posted to #oncall if severity is critical",
        "Quiet hours nights from 22:00 to 07:00 on every day, by the clock of UTC, for alerts",
    ):
        assert said in page.text
    assert re.search(r"(now, since|next from) \d{4}-\d\d-\d\d", page.text)
    assert "alerts" not in others
    assert "news at most 5 in any 30 minutes" in others


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://elsewhere"}, {"Origin": "null"}]
)
def test_a_form_of_another_site_changes_nothing(
    browser: httpx.Client, redis: Database, headers: dict[str, str]
) -> None:
    bury(redis, numbered(2))
    answer = browser.post("/dead/purge", data={"all": "true", "confirmed": "true"}, headers=headers)
    assert (answer.status_code, len(buried(redis))) == (403, 2)
    assert browser.post("/silences/add", data=silence("host=db1"), headers=headers).status_code == 403
    assert browser.get("/v1/silences").json() == {"silences": []}


def test_a_browser_is_asked_for_a_token(desk: Serving) -> None:
    answer = httpx.get(desk.url)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (
        401,
        'Basic realm="dispatcher", charset="UTF-8"',
    )
    assert read_html(answer.text).one("h1").text == "Unauthorized"
    of_script = httpx.get(desk.url, headers={"X-Live": "1"})  # which must open no dialogue above what somebody types
    assert (of_script.status_code, "Basic" in of_script.headers["www-authenticate"]) == (401, False)


@pytest.mark.parametrize(
    ("path", "status"), [("/dead/none", 404), ("/dead?since=soon", 422), ("/limits?version=x", 422), ("/?x=1", 422)]
)
def test_what_cannot_be_shown_is_told_on_a_page(browser: httpx.Client, path: str, status: int) -> None:
    page = seen(browser, path, status)
    assert len(list(page.one("nav").all("a"))) == len(VIEWS)
    assert not list(page.all("script"))  # it would be asked for every two seconds, and nothing could change


def test_versions_of_the_limits_and_what_each_has_changed_are_shown(browser: httpx.Client) -> None:
    for limit in ("1/1d", "2/1d"):
        body = LIMITS.replace("1/1d", limit)
        assert browser.post("/v1/limits/apply", content=body).status_code == 200
    page = seen(browser, "/limits")
    assert [row[0] for row in page.rows()] == ["2", "1"]
    assert "at most 1 in any 24 hours" in next(page.all("del")).text
    assert "at most 2 in any 24 hours" in next(page.all("ins")).text
    assert [mark.text for mark in page.all("mark")] == ["1", "2"]
    assert "No version before it is kept." in seen(browser, "/limits?version=1").text
    page = seen(browser, "/limits?version=99")
    assert page.text.count("Version 99 is not kept.") == 1
    assert not list(page.all("ins"))


def test_a_version_that_this_program_cannot_read_is_not_compared_and_the_rules_are_shown(
    browser: httpx.Client, redis: Database
) -> None:
    for limit in ("1/1d", "2/1d"):
        assert browser.post("/v1/limits/apply", content=LIMITS.replace("1/1d", limit)).status_code == 200
    row = json.loads(redis.hget(KEYS.limits_versions[0], "1") or "")
    redis.hset(KEYS.limits_versions[0], "1", json.dumps(row | {"content": '{"of_another_program": 1}'}))
    in_force = "at most 2 in any 24 hours"
    page = until(lambda: page if in_force in (page := seen(browser, "/limits")).text else None, "a new look")
    assert "It cannot be compared with version 1" in page.text
    assert [each[0] for each in page.rows()] == ["2", "1"]
    assert in_force in seen(browser, "/limits?category=news").text


def test_limits_that_this_program_cannot_read_take_away_only_the_views_that_need_them(
    browser: httpx.Client, redis: Database, redis_url: str
) -> None:
    bury(redis, numbered(1))
    assert browser.post("/v1/limits/apply", content=LIMITS).status_code == 200
    row = json.loads(redis.hget(KEYS.limits_versions[0], "1") or "")
    redis.hset(KEYS.limits_versions[0], "1", json.dumps(row | {"content": '{"of_another_program": 1}'}))
    for answer in in_this_process(redis_url, ["/dead", "/dead/e0", "/silences", "/audit"]):
        assert answer.status_code == 200
        assert "the books balance" in read_html(answer.text).one("footer").text
    assert [answer.status_code for answer in in_this_process(redis_url, ["/", "/limits"])] == [503, 503]


def test_a_server_that_is_away_is_told_on_a_page(own_server: RedisServer, tmp_path: Path) -> None:
    with Serving(own_server.url, tmp_path) as serving, serving.client() as client:
        assert client.get("/").status_code == 200
        own_server.stop()
        page = seen(client, "/audit", 503)
        assert list(page.all("script"))  # it goes on by itself
        assert page.one("title").text == "Audit · dispatcher"
        assert [link.text for link in page.one("nav").all("a") if "aria-current" in link.attributes] == ["Audit"]
        assert not list(read_html(client.post("/dead/purge", data={"ids": "a"}).text).all("script"))
        own_server.start()

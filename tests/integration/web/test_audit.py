"""The trail: an entry of each action of an operator. Which actions there are, the program itself is asked."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import httpx
import pytest
from starlette.routing import Route

from dispatcher.cli.commands import dispatcher
from dispatcher.cli.options import operator
from dispatcher.producer.blocking import Producer
from tests.support.commands import run
from tests.support.dead_letters import bury, numbered
from tests.support.servers import Database
from tests.support.serving import Serving, app_on

LIMITS: Final = "categories: {reports: {limits: [1/1d], on_limit: defer}}\n"


@dataclass(frozen=True)
class Entry:
    """What the trail says of an action, beside who did it and whence."""

    what: str
    about: str = ""
    why: str = ""
    count: int | None = None


COMMANDS: Final[Mapping[str, tuple[str, Entry]]] = {
    "silence add": ("host=db1 --for 2h --why move", Entry("silence add", "1: host=db1", "move")),
    "silence expire": ("1", Entry("silence expire", "1")),
    "pause": ("chatter --why move", Entry("pause", "chatter", "move")),
    "resume": ("chatter", Entry("resume", "chatter")),
    "mute": ("chatter --for 2h --why move", Entry("mute", "chatter", "move")),
    "unmute": ("chatter", Entry("unmute", "chatter")),
    "dead replay": ("e0 --to ops", Entry("dead replay", "e0 to #ops", count=1)),
    "dead purge": ("e1 e2 --yes", Entry("dead purge", "e1, e2", count=2)),
    "parked cancel": ("--all --yes", Entry("parked cancel", "all", count=2)),
    "limits apply": ("other.yaml", Entry("limits apply", "version 2", "from other.yaml")),
    "limits rollback": ("1", Entry("limits rollback", "version 3", "from version 1")),
}
"""Commands that change what others see, in an order in which each can: what follows the name, and the entry."""

NO_ACTIONS: Final = frozenset(
    {
        "audit", "dead list", "dead show", "events", "explain", "limits check", "limits diff", "limits history",
        "limits schema", "limits show", "metrics", "parked list", "parked show", "silence list", "silence preview",
        "silence show", "simulate", "status", "doctor", "health",
        "demo", "send", "serve", "slack-stand-in", "up", "worker",
    }
)  # fmt: skip
"""Commands that only look, and those that run a part or send events."""

MOVE: Final = {"why": "move"}
ROUTES: Final[Mapping[tuple[str, str], tuple[dict[str, Any], Entry | None]]] = {
    ("POST", "/v1/silences"): (
        {"json": {"matchers": ["host=db1"], "for": "2h", **MOVE}},
        Entry("silence add", "1: host=db1", "move"),
    ),
    ("POST", "/v1/silences/preview"): ({"json": {"matchers": ["host=db1"]}}, None),
    ("DELETE", "/v1/silences/{id}"): ({}, Entry("silence expire", "1")),
    ("POST", "/silences/preview"): ({"data": {"matchers": "host=db1", "for": "2h", **MOVE}}, None),
    ("POST", "/silences/add"): (
        {"data": {"matchers": "host=db1", "for": "2h", **MOVE}},
        Entry("silence add", "2: host=db1", "move"),
    ),
    ("POST", "/silences/expire"): ({"data": {"id": "2"}}, Entry("silence expire", "2")),
    ("PUT", "/v1/pause"): ({"json": MOVE}, Entry("pause", "*", "move")),
    ("DELETE", "/v1/pause"): ({}, Entry("resume", "*")),
    ("PUT", "/v1/pause/{category}"): ({"json": MOVE}, Entry("pause", "chatter", "move")),
    ("DELETE", "/v1/pause/{category}"): ({}, Entry("resume", "chatter")),
    ("PUT", "/v1/mutes/{category}"): ({"json": {"for": "2h", **MOVE}}, Entry("mute", "chatter", "move")),
    ("DELETE", "/v1/mutes/{category}"): ({}, Entry("unmute", "chatter")),
    ("POST", "/v1/dead/replay"): ({"json": {"ids": ["e0"], "to": "ops"}}, Entry("dead replay", "e0 to #ops", count=1)),
    ("POST", "/v1/dead/purge"): ({"json": {"ids": ["e1"]}}, Entry("dead purge", "e1", count=1)),
    ("POST", "/dead/replay"): ({"data": {"ids": "e2", "confirmed": "true"}}, Entry("dead replay", "e2", count=1)),
    ("POST", "/dead/purge"): ({"data": {"ids": "e3", "confirmed": "true"}}, Entry("dead purge", "e3", count=1)),
    ("POST", "/v1/parked/cancel"): ({"json": {"all": True}}, Entry("parked cancel", "all", count=2)),
    ("POST", "/v1/limits/apply"): ({"content": "defaults: {limits: [5/1h]}\n"}, Entry("limits apply", "version 2")),
}
"""Routes that need the scope `operate`, in such an order: a request, and the entry, if it changes something."""


@pytest.fixture
def acting(redis: Database, redis_url: str, tmp_path: Path) -> Iterator[Serving]:
    """A server beside which four dead letters lie and two events are parked."""
    (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    (tmp_path / "other.yaml").write_text("defaults: {limits: [5/1h]}\n", encoding="utf-8")
    (tmp_path / "tokens").write_text(
        "olga read,operate secret-of-olga\neve ingest,read,metrics secret-of-eve\n", encoding="utf-8"
    )
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": "limits.yaml"}
    Producer(redis).send_many([{"category": "reports", "text": str(n)} for n in range(3)])
    assert run("worker", "--burst", **env, DISPATCHER_SINK="console").code == 0
    bury(redis, numbered(4))
    with Serving(redis_url, tmp_path, "--tokens", "tokens", DISPATCHER_LIMITS_FILE="limits.yaml") as serving:
        yield serving


@pytest.fixture
def olga(acting: Serving) -> Iterator[httpx.Client]:
    with acting.client("secret-of-olga") as client:
        yield client


def commands(group: click.Group = dispatcher, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of all commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


def check_entry(olga: httpx.Client, count: int, who: str, whence: str, expected: Entry) -> None:
    """The trail has so many entries, and the newest is this one."""
    trail = olga.get("/v1/audit?limit=1000").json()["audit"]
    newest = trail[0]
    assert len(trail) == count, newest
    assert abs(newest.pop("at") - time.time()) < 60
    assert newest == {"who": who, "whence": whence, **asdict(expected)}


def test_each_command_that_changes_something_leaves_an_entry(olga: httpx.Client, redis_url: str) -> None:
    assert COMMANDS.keys() | NO_ACTIONS == set(commands()), "each command is in one of the two"
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": "limits.yaml"}
    for count, (name, (words, expected)) in enumerate(COMMANDS.items(), start=1):
        done = run(*name.split(), *words.split(), **env)
        assert done.code == 0, done.err
        check_entry(olga, count, operator(), "cli", expected)


def test_each_route_that_needs_an_operator_leaves_an_entry(acting: Serving, olga: httpx.Client, redis_url: str) -> None:
    with acting.client("secret-of-eve") as eve:
        needs = {
            (method, route.path)
            for route in app_on(redis_url).routes
            if isinstance(route, Route)
            for method in route.methods or ()
            if eve.request(method, path_of(route.path)).status_code == 403
        }
    assert ROUTES.keys() == needs, "each is in the table"
    count = 0
    for (method, route), (request, expected) in ROUTES.items():
        answer = olga.request(method, path_of(route), **request)
        assert answer.status_code < 400, answer.text
        if expected is not None:
            count += 1
            check_entry(olga, count, "olga", "http" if route.startswith("/v1/") else "page", expected)


def path_of(route: str) -> str:
    return re.sub(r"\{[^}]+\}", "chatter", route.replace("{id}", "1"))


def test_what_only_counts_or_fails_leaves_no_entry(olga: httpx.Client) -> None:
    assert olga.post("/v1/dead/replay", json={"ids": ["e1"], "dry_run": True}).json()["matched"] == 1
    assert olga.post("/v1/dead/purge", json={"ids": ["nothing"]}).json()["purged"] == 0
    assert olga.delete("/v1/pause").status_code == 404
    assert olga.post("/v1/limits/apply", content="limits: [").status_code == 422
    assert olga.get("/v1/audit").json() == {"audit": [], "more": False}


LETTERS: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    ("d0", {"ids": ["d0"]}, "d0"),
    (
        "d7 no d6 d5 d4 d3 d2 d1",
        {"ids": ["d7", "no", "d6", "d5", "d4", "d3", "d2", "d1"]},
        "d7, d6, d5, d4, d3 and 2 more",
    ),
    (
        "--category deploys --reason rejected --code channel_not_found --before 2099-01-01T00:00+00:00 --text disk",
        {
            "category": "deploys",
            "reason": "rejected",
            "code": "channel_not_found",
            "before": "2099-01-01T00:00+00:00",
            "text": "disk",
        },
        "category deploys, reason rejected, code channel_not_found, died before 2099-01-01 00:00:00 UTC, text disk",
    ),
    ("--all --limit 2", {"all": True, "limit": 2}, "all, at most 2"),
)
"""Which dead letters are meant: to a command, to a request, and in the words of the trail."""

PARKED: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    ("w0 no", {"ids": ["w0", "no"]}, "w0"),
    ("--category reports --limit 1", {"category": "reports", "limit": 1}, "category reports, at most 1"),
    (
        "--reason limit:category --channel #notifications --text disk",
        {"reason": "limit:category", "channel": "#notifications", "text": "disk"},
        "reason limit:category, channel #notifications, text disk",
    ),
)
"""The same of parked events."""


@pytest.mark.parametrize("door", ["cli", "http"])
def test_an_entry_says_which_events_were_meant_in_the_same_words_from_each_door(
    olga: httpx.Client, redis: Database, redis_url: str, door: str
) -> None:
    bury(redis, [{"category": "deploys", "text": "disk full", "id": f"d{n}"} for n in range(10)])
    Producer(redis).send_many([{"category": "reports", "text": "disk full", "id": f"w{n}"} for n in range(3)])
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": "limits.yaml"}
    assert run("worker", "--burst", **env, DISPATCHER_SINK="console").code == 0
    for name, cases in (("dead purge", LETTERS), ("parked cancel", PARKED)):
        for words, request, about in cases:
            if door == "cli":
                run(*name.split(), *words.split(), "--yes", **env)
            else:
                olga.post(f"/v1/{name.replace(' ', '/')}", json=request)
            newest = olga.get("/v1/audit?limit=1").json()["audit"][0]
            assert (newest["whence"], newest["what"], newest["about"]) == (door, name, about)


def test_what_is_paused_already_stays_as_it_is_and_leaves_no_further_entry(olga: httpx.Client, redis_url: str) -> None:
    for path, words in (("/v1/pause", ()), ("/v1/pause/chatter", ("chatter",))):
        assert [olga.put(path, json={"why": why}).status_code for why in ("first", "second")] == [204, 204]
        assert run("pause", *words, "--why", "third", DISPATCHER_REDIS_URL=redis_url).code == 0
    trail = olga.get("/v1/audit?limit=2").json()
    assert [(each["about"], each["why"]) for each in reversed(trail["audit"])] == [("*", "first"), ("chatter", "first")]
    assert trail["more"] is False
    shown = olga.get("/v1/audit?limit=1").json()
    assert ([each["about"] for each in shown["audit"]], shown["more"]) == (["chatter"], True)

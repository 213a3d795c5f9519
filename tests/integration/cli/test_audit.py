"""``dispatcher audit``: what operators did."""

from __future__ import annotations

import pytest

from dispatcher.server.keys import Keys
from dispatcher.store.audit import Action, Audit
from tests.support.in_process import InProcess
from tests.support.servers import Database

NAMESPACE = Keys("dispatcher")


@pytest.fixture
def inside(redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InProcess:
    monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_url)
    monkeypatch.setenv("COLUMNS", "160")
    return InProcess(monkeypatch, capsys)


def test_the_trail_is_shown_with_the_newest_action_first(redis: Database, inside: InProcess) -> None:
    trail = Audit(redis, NAMESPACE)
    trail.note(Action("ed@here", "cli", "pause", "chatter", "Slack moves"))
    trail.note(Action("olga", "http", "dead replay", "category\x1b errors", count=12))
    result = inside("audit")
    assert (result.code, "\x1b" in result.out) == (0, False)
    heading, _, *rows = (" ".join(line.split()) for line in result.out.splitlines())
    assert heading.startswith("When (")
    assert heading.endswith(") Who What About Events Why From")
    assert [row.split(" ", 1)[1] for row in rows] == [
        "olga dead replay category\\x1b errors 12 http",
        "ed@here pause chatter Slack moves cli",
    ]
    assert inside.json("audit") == {"audit": trail.newest()}


def test_at_most_so_many_actions_are_shown_as_are_asked_for(redis: Database, inside: InProcess) -> None:
    trail = Audit(redis, NAMESPACE)
    for name in ("a", "b", "c"):
        trail.note(Action("ed", "cli", "pause", name))
    result = inside("audit", "--limit", "2")
    assert [name in result.out for name in (" c ", " b ", " a ")] == [True, True, False]
    assert "there are more than these 2: --limit N shows N" in result.err
    assert "there are more" not in inside("audit", "--limit", "3").err
    assert [each["about"] for each in inside.json("audit", "--limit", "1")["audit"]] == ["c"]


@pytest.mark.usefixtures("redis")
def test_where_nobody_has_done_anything_it_says_so(inside: InProcess) -> None:
    result = inside("audit")
    assert (result.code, result.out, "no operator has done anything yet" in result.err) == (0, "", True)
    assert inside.json("audit") == {"audit": []}

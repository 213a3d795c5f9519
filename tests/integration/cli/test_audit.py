"""``dispatcher audit``: what operators did."""

from __future__ import annotations

import re

import pytest

from dispatcher.server.keys import Keys
from dispatcher.store.audit import Action, Audit
from tests.support.in_process import InProcess
from tests.support.servers import Database

NAMESPACE = Keys("dispatcher")


@pytest.fixture
def inside(inside: InProcess, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    monkeypatch.setenv("COLUMNS", "160")
    return inside


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
    assert inside.json("audit") == {"audit": trail.newest(), "more": False}


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_end_of_a_silence_says_what_was_silenced_in_any_width(
    redis: Database, inside: InProcess, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    trail = Audit(redis, NAMESPACE)
    for number, matchers in enumerate(("host=db1 severity!=critical", "a-long-name-of-a-label=x"), start=1):
        trail.note(Action("ed@here", "cli", "silence add", f"{number}: {matchers}", "db1 moves to other disks"))
    trail.note(Action("olga@the-other-host", "page", "dead replay", "category errors", count=12))
    for number in (1, 2, 3):
        trail.note(Action("ed@here", "cli", "silence expire", str(number)))
    monkeypatch.setenv("COLUMNS", str(width))
    result = inside("audit", "--limit", "4")
    assert max(map(len, result.out.splitlines())) <= width
    said = [re.split("  +", line.strip()) for line in result.out.splitlines()]
    abouts = [row[row.index("silence expire") + 1] for row in said if "silence expire" in row]
    assert abouts == ["3", "2: a-long-name-of-a-label=x", "1: host=db1 severity!=critical"]
    assert ("12 events" in result.out) == (width < 160)


def test_at_most_so_many_actions_are_shown_as_are_asked_for(redis: Database, inside: InProcess) -> None:
    trail = Audit(redis, NAMESPACE)
    for name in ("a", "b", "c"):
        trail.note(Action("ed", "cli", "pause", name))
    result = inside("audit", "--limit", "2")
    assert [name in result.out for name in (" c ", " b ", " a ")] == [True, True, False]
    assert "there are more than these 2: --limit N shows N" in result.err
    assert "there are more" not in inside("audit", "--limit", "3").err
    shown = inside.json("audit", "--limit", "2")
    assert ([each["about"] for each in shown["audit"]], shown["more"]) == (["c", "b"], True)
    assert inside.json("audit", "--limit", "3")["more"] is False


@pytest.mark.usefixtures("redis")
def test_where_nobody_has_done_anything_it_says_so(inside: InProcess) -> None:
    result = inside("audit")
    assert (result.code, result.out, "no operator has done anything yet" in result.err) == (0, "", True)
    assert inside.json("audit") == {"audit": [], "more": False}

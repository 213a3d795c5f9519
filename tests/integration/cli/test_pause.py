"""``dispatcher pause`` and ``resume``: what they say, and what workers and ``status`` make of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dispatcher.core.posts import Ambiguous, Paused, Receipt
from dispatcher.core.states import Started
from dispatcher.producer.blocking import Producer
from dispatcher.stand_in import StandIn
from dispatcher.store.operator_controls import Pausing
from dispatcher.store.snapshot import Books
from tests.support.dead_letters import KEYS, QUEUE
from tests.support.in_process import InProcess
from tests.support.processes import LIMITS, Command, environment, until
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, Worker, policy_of


@pytest.fixture
def inside(inside: InProcess, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    monkeypatch.setenv("COLUMNS", "120")
    return inside


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_of())


@pytest.fixture
def pausing(stage: Stage) -> Pausing:
    return stage.pausing


def names(started: Sequence[Started]) -> list[str]:
    return [each.candidate.leased.id for each in started]


# What the commands say


def test_posting_is_paused_and_goes_on(redis: Database, inside: InProcess) -> None:
    assert (inside("pause", "--why", "a drill").out, inside("pause").out) == (
        "posting is paused\n",
        "posting was already paused\n",
    )
    status = inside.json("status")
    assert (status["paused"]["kind"], status["paused"]["next_try"]) == ("hand", None)
    assert status["paused"]["detail"].startswith("paused by ops@")
    assert status["paused"]["detail"].endswith(": a drill")
    assert "go on with 'dispatcher resume'" in inside("status").out
    assert inside("resume").out == "posting goes on\n"
    assert Books(redis, KEYS, QUEUE).snapshot().paused == {}
    again = inside("resume")
    assert (again.code, again.out, "posting is not paused" in again.err) == (1, "", True)


def test_a_second_pause_says_that_its_reason_changed_nothing(inside: InProcess) -> None:
    for about, what in (((), "posting"), (("errors",), "errors")):
        inside("pause", *about)
        command = " ".join(("dispatcher pause", *about))
        assert inside("pause", *about, "--why", "lunch").out == (
            f"{what} was already paused; --why did not change its reason: "
            f"to change it, run '{command.replace('pause', 'resume')}', then '{command}' with --why\n"
        )
        assert inside("pause", *about).out == f"{what} was already paused\n"
    status = inside.json("status")
    assert "lunch" not in status["paused"]["detail"]
    assert status["paused_categories"][0]["why"] == ""


def test_a_category_is_paused_by_itself(inside: InProcess) -> None:
    assert inside.json("pause", "errors") == {"category": "errors", "paused": True, "was_paused": False}
    status = inside.json("status")
    assert status["paused"] is None
    (category,) = status["paused_categories"]
    assert (category["category"], category["why"]) == ("errors", "")
    assert "errors paused for" in inside("status").out
    assert inside.json("resume", "errors") == {"category": "errors", "paused": False, "was_paused": True}
    assert inside.json("resume", "errors", code=1)["was_paused"] is False
    assert inside("pause", "no category").code == 2


def test_workers_wait_and_go_on_at_once(redis: Database, redis_url: str, inside: InProcess, tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    inside("pause")
    Producer(redis).send("errors", "waits")
    with StandIn() as slack:
        env = environment(redis_url, slack.base_url, slack.token, limits)
        with Command("worker", env=env, cwd=tmp_path) as worker:
            assert worker.await_line("event.parked")["reason"] == "paused"
            assert slack.workspace.posts == 0
            inside("resume")
            until(lambda: len(slack.ledger) == 1, "the post")


# What they change


def test_everything_waits_with_its_slots_and_goes_on_in_order(stage: Stage, ann: Worker, pausing: Pausing) -> None:
    stage.send("a", "b", channel="#x")
    first = ann.go(new=1)
    assert pausing.pause("*", "ops") is True
    assert ann.go() == []
    ann.deliver(first)
    assert ann.go() == []
    stage.send("c", channel="#y")
    assert ann.go() == []
    assert (stage.line("#x"), stage.line("#y")) == (["b"], ["c"])
    assert set(stage.held("global")) == {"b", "c"}
    stage.collect_tokens()
    stage.tokens = 0
    assert pausing.resume("*") is True
    assert stage.collect_tokens() == 1
    assert names(ann.go()) == ["b", "c"]


def test_a_paused_category_is_in_nobodys_way(stage: Stage, ann: Worker, pausing: Pausing) -> None:
    stage.send("a", "b", channel="#x")
    stage.send("c", channel="#x", category="deploys")
    first = ann.go()
    assert (names(first), stage.line("#x")) == (["a"], ["b", "c"])
    pausing.pause("errors", "ops")
    ann.deliver(first)
    assert ann.go() == []  # the turn of b, which waits by itself from now on
    assert [id_.decode() for id_ in stage.redis.zrange(stage.keys.line("paused:errors"), 0, -1)] == ["b"]
    last = ann.go()
    assert names(last) == ["c"]
    ann.deliver(last)
    stage.send("d", channel=UNPACED)
    assert ann.go() == []
    assert stage.snapshot().parked == 2
    assert pausing.resume("errors") is True
    assert names(ann.go()) == ["b", "d"]


def test_an_event_parked_by_a_paused_category_expires_like_any_other(
    stage: Stage, ann: Worker, pausing: Pausing
) -> None:
    pausing.pause("errors", "ops")
    stage.send("a", max_age=60)
    ann.run()
    stage.clock.forward(61)
    ann.run()
    assert [letter["reason"] for letter in stage.letters()] == ["expired"]
    assert stage.redis.exists(stage.keys.line("paused:errors")) == 0


def test_resume_lets_the_next_event_try_what_slack_had_refused(stage: Stage, ann: Worker, pausing: Pausing) -> None:
    stage.send("a", "b", channel=UNPACED)
    first, second = ann.go()
    ann.answer(first, Paused("invalid_auth", "the token"))
    ann.answer(second, Paused("invalid_auth", "the token"))
    assert ann.go() == []
    assert pausing.resume("*") is True
    (again,) = ann.go()
    assert ann.go() == []
    ann.answer(again, Receipt("#free", "1.1"))
    assert len(ann.go()) == 1
    assert pausing.resume("*") is False


def test_resume_lets_every_channel_go_on_that_was_held_up(stage: Stage, ann: Worker, pausing: Pausing) -> None:
    stage.send("tried", channel="#quiet")
    stage.send("a", "b", "c", channel="#busy")
    for _ in range(2):
        for each in ann.go():
            ann.answer(each, Ambiguous("http_503", "no answer of Slack's own came back"))
    assert (stage.line("#quiet"), stage.line("#busy")) == ([], ["c"])
    stage.send("denied", channel=UNPACED)
    ann.answer(ann.go()[0], Paused("invalid_auth", "the token"))
    assert pausing.resume("*") is True
    assert stage.line_at("#busy") == stage.clock.now_us
    assert stage.redis.zcount(stage.keys.timers, "-inf", stage.clock.now_us) == 1, "only of what was denied"
    for _ in range(2):
        ann.deliver(ann.go())
    assert sorted(ann.desk.posts) == ["c", "denied"]

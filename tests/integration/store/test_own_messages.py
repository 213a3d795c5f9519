"""Digest messages and reports of silences are no events, but what their posts teach about Slack is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.core.matchers import parse_matchers
from dispatcher.core.posts import Ambiguous, Paused, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.states import Started
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from dispatcher.store.silences import Wanted
from tests.support.deferral import send
from tests.support.digests import DELAY_S, storm, telling_policy
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, Worker


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, telling_policy())


@pytest.fixture
def started(stage: Stage, ann: Worker) -> dict[str, Started]:
    """A post of an event, one of a digest, one of the report of a silence, and an edit of the digest."""
    stage.silencing.begin(Wanted(parse_matchers(["host=db1"]), DELAY_S * US, "anna", "db1 moves"))
    send(stage, "silenced", category="other", labels={"host": "db1"})
    storm(stage, 5)
    taken = ann.take()
    ann.finish(taken)
    stage.clock.forward(DELAY_S)
    send(stage, "event", category="other")
    first = ann.go_on()
    ann.deliver(first)
    storm(stage, 1)
    stage.clock.forward(1)
    later = ann.go_on()
    stage.clock.forward(DELAY_S)
    ann.renew()
    (edit,) = ann.go_on()
    return {each.candidate.leased.id.partition(":")[0]: each for each in (*first, *later)} | {"edit": edit}


@pytest.mark.parametrize("attempt", [1, MAX_ATTEMPTS])
@pytest.mark.parametrize(
    "result",
    [
        Receipt(UNPACED, "1.5"),
        Rejected("msg_too_long", "too long"),
        Retryable("connection_refused", "nobody listens"),
        Retryable("internal_error", "later", reached=True),
        RateLimitedBySlack(30 * US, "ratelimited"),
        Ambiguous("reply_timeout", "no answer"),
        Paused("invalid_auth", "the token is not valid"),
    ],
    ids=lambda result: type(result).__name__,
)
def test_posts_of_digests_and_reports_tell_about_slack_what_posts_of_events_tell(
    ann: Worker, started: dict[str, Started], result: PostResult, attempt: int
) -> None:
    def learnt(kind: str) -> tuple[object, ...]:
        end = ann.dispatcher.conclude(replace(started[kind], attempt=attempt), result)
        return end.replied, end.arrived, end.resume, end.reached, end.cooldown_us, end.pause

    assert learnt("digest") == learnt("edit") == learnt("silence") == learnt("event")

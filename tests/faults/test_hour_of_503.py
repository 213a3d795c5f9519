"""Slack answers 503 for an hour: no alert dies of it, one at a time tries, and then all are posted.

The scripts, the core, the sink and HTTP are the real ones; time is made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Final

import pytest

from dispatcher.core.states import Sent
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from dispatcher.stand_in import Outage, Setup
from tests.support.models import most_in_any_window
from tests.support.poison import Credential, Slack, open_slack
from tests.support.quiet_stage import QuietStage
from tests.support.servers import Database
from tests.support.virtual_fleet import Arrival, VirtualFleet

HOUR_S: Final = 3_600
MOST, WINDOW_S = 30, 60
LIMITS: Final = f"""\
global: {{limits: [{MOST}/{WINDOW_S}s]}}
channels: {{default: {{pace: 10/10s}}}}
defaults: {{limits: [], channel: "#general", on_limit: defer}}
"""
AT_ONCE: Final = 20
EVERY_S: Final = 120
EAGER, DOUBLINGS = 12, 5
"""So many probes at most come a second apart, and so many before the longest gap is reached."""

LONGEST_GAP_S: Final = 30
LONGEST_BACKOFF_S: Final = 300
PROMPT_S: Final = 10


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def alerts(channels: int, at_once: int, until_s: int) -> list[Arrival]:
    """Some at once when it begins, then one now and then."""
    instants = [0] * at_once + list(range(EVERY_S, until_s, EVERY_S))
    return [Arrival(at_s * US, f"alert{n}", f"#c{n % channels}") for n, at_s in enumerate(instants)]


@pytest.mark.parametrize(
    ("credential", "channels", "at_once", "until_s"),
    [
        pytest.param(credential, *alerts, id=f"{credential.name}, {name}", marks=marks)
        for credential in Credential
        for name, alerts, marks in (
            ("ten channels", (10, AT_ONCE, HOUR_S), pytest.mark.slow),
            ("three channels", (3, AT_ONCE, HOUR_S), () if credential is Credential.HISTORY else pytest.mark.slow),
            ("one channel", (1, AT_ONCE, HOUR_S), pytest.mark.slow),
            ("one alert alone", (1, 1, 0), pytest.mark.slow if credential is Credential.HISTORY else ()),
        )
    ],
)
def test_an_hour_of_503_kills_no_alert(  # noqa: PLR0913, PLR0917 - fixtures and a case
    redis: Database, running: ExitStack, credential: Credential, channels: int, at_once: int, until_s: int
) -> None:
    stage = QuietStage(redis, LIMITS)
    outage = Outage(0, HOUR_S, refuses=False)
    setup = Setup(scopes=credential.scopes, outages=(outage,), clock=lambda: stage.clock.now_us / US)
    slack = open_slack(running, credential, stage.clock, setup)
    is_webhook = credential is Credential.WEBHOOK
    stage.policy = replace(stage.policy, by_webhook=is_webhook)
    fleet = VirtualFleet(stage, slack)
    sent = alerts(channels, at_once, until_s)
    ids = [each.id for each in sent]
    fleet.run(sent, ids, 3 * HOUR_S)
    assert {type(fleet.ended[id_].outcome) for id_ in ids} == {Sent}
    assert sorted(posted.text for posted in slack.stand_in.ledger.posted()) == sorted(f"text of {id_}" for id_ in ids)
    check_the_hour([at_us - fleet.began_us for at_us, _ in slack.posts])
    check_attempts(fleet, slack, ids, is_outage=channels > 1 and not is_webhook, is_told=not is_webhook)
    landed = [round(posted.arrived_at * US) - fleet.began_us for posted in slack.stand_in.ledger.posted()]
    check_the_return(landed, is_alone=at_once == 1, is_told=not is_webhook)


def check_the_hour(posts: list[int]) -> None:
    """Soon one tries at a time, and then ever more seldom."""
    during = [at_us for at_us in posts if at_us < HOUR_S * US]
    assert len(during) <= AT_ONCE + EAGER + DOUBLINGS + HOUR_S // LONGEST_GAP_S
    assert all(later - earlier >= US for earlier, later in pairwise(during) if earlier >= US)


def check_attempts(fleet: VirtualFleet, slack: Slack, ids: list[str], *, is_outage: bool, is_told: bool) -> None:
    """In an outage none is used up. Where a history scan fails for now, nothing is posted again before it was made."""
    posts = [slack.posts_of(id_) for id_ in ids]
    attempts = [fleet.ended[id_].attempt for id_ in ids]
    assert max(posts) <= (2 if is_told else MAX_ATTEMPTS)
    assert max(attempts) <= (2 if is_outage else max(posts)), "one before it was an outage, and one that arrived"


def check_the_return(landed: list[int], *, is_alone: bool, is_told: bool) -> None:
    """All is posted within the limits, at the latest when the longest wait for another look or another post is over."""
    back_us = HOUR_S * US
    longest_s = LONGEST_BACKOFF_S if is_told else HOUR_S
    assert min(landed) <= back_us + (longest_s if is_alone else LONGEST_GAP_S + PROMPT_S) * US
    assert max(landed) <= back_us + (longest_s + PROMPT_S) * US + len(landed) * WINDOW_S * US // MOST
    assert most_in_any_window(landed, WINDOW_S * US) <= MOST

"""Every message is at Slack once, whatever Slack answers and whoever is killed, where Slack lets us look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from dispatcher.server.clients import connect
from dispatcher.stand_in import Chance, Setup, StandIn
from dispatcher.stand_in.faults import POST, Faults
from tests.support.effectively_once import CHANNELS, QUICK, Fleet
from tests.support.kill_points import KillPoint
from tests.support.kill_round import KEYS
from tests.support.killable_workers import KillableWorkers
from tests.support.processes import environment

SHARE: Final = 1 / 3
LIMITS: Final = """\
global: {{limits: [100000/30m]}}
channels: {{default: {{pace: none}}}}
defaults: {{limits: [], channel: "#c0", on_ambiguous: {on_ambiguous}, max_age: {max_age}, fallback: "#c0"}}
"""
KILLS: Final = [
    KillPoint("post", "after", 3),
    KillPoint("start", "after", 3),
    KillPoint("settle", "before", 3),
    KillPoint("settle", "middle", 3),
    KillPoint("post", "before", 3),
    KillPoint("scan", "before", 1),
    KillPoint("scan", "after", 1),
    KillPoint("settle", "after", 3),
    KillPoint("take over", "after", 1),
    KillPoint("start", "middle", 3),
    KillPoint("gate", "after", 3),
    KillPoint("take", "after", 4),
]
"""One death in each state that an event may be in."""

Begin = Callable[..., Fleet]


@pytest.fixture
def begin(redis_url: str, killable: KillableWorkers, tmp_path: Path) -> Iterator[Begin]:
    """A fleet and its Slack."""
    running: list[StandIn] = []

    def make(  # noqa: PLR0913 - figures, by name
        *,
        seed: int,
        places: int,
        webhook: bool = False,
        setup: Setup | None = None,
        on_ambiguous: str = "resend",
        share: float = SHARE,
        max_age: str = "24h",
    ) -> Fleet:
        kinds = (POST, "conversations.history", "conversations.list")
        known = Setup(channels=frozenset({"#webhook", *(f"#c{n}" for n in range(CHANNELS))}))
        slack = StandIn(setup=setup or known, faults=Faults(Chance(seed, share, QUICK, kinds)))
        slack.start()
        running.append(slack)
        path = tmp_path / "limits.yaml"
        path.write_text(LIMITS.format(on_ambiguous=on_ambiguous, max_age=max_age), encoding="utf-8")
        env = environment(
            redis_url,
            slack.base_url,
            slack.token,
            path,
            DISPATCHER_LEASE="2",
            DISPATCHER_SLACK_TIMEOUT="1",
            DISPATCHER_RECONCILE_GRACE="1",
            DISPATCHER_BATCH="8",
        )
        if webhook:
            del env["DISPATCHER_SLACK_TOKEN"]
            env["DISPATCHER_SLACK_WEBHOOK_URL"] = slack.webhook_url
        return Fleet(killable, connect(redis_url), slack, env, places)

    yield make
    killable.clear()
    for slack in running:
        slack.stop()


@pytest.mark.parametrize(
    ("count", "kill_points", "places", "timeout_s"),
    [
        pytest.param(60, [*KILLS[:3], KILLS[5]], 2, 90, id="60 messages"),
        pytest.param(2_000, KILLS * 3, 4, 900, id="2000 messages", marks=pytest.mark.slow),
    ],
)
def test_no_event_is_lost_or_posted_twice_when_the_history_can_be_read(
    begin: Begin, count: int, kill_points: list[KillPoint], places: int, timeout_s: float
) -> None:
    fleet = begin(seed=count, places=places)
    snapshot = fleet.run(count, kill_points, timeout_s)
    account = fleet.account()
    print(account)  # noqa: T201 - the figures, with -s
    assert fleet.killed == len(kill_points)
    assert (account.lost, account.duplicated, account.reported) == ([], 0, 0)
    assert account.dead.keys() <= {"ambiguous", "exhausted"}
    assert fleet.too_soon_given_up() == []
    assert account.sent + account.dead.total() == len(fleet.ids) == snapshot.received
    slots = fleet.client.zcard(KEYS.scope("global"))
    assert account.sent <= slots <= len(fleet.ids), "a retry takes no second slot"


@pytest.mark.parametrize(
    ("count", "kill_points", "places", "timeout_s"),
    [
        pytest.param(40, [KILLS[2], KILLS[3], KILLS[7]], 2, 90, id="40 messages"),
        pytest.param(1_000, KILLS * 2, 4, 600, id="1000 messages", marks=pytest.mark.slow),
    ],
)
def test_what_finds_its_channel_gone_is_at_the_fallback_once(
    begin: Begin, count: int, kill_points: list[KillPoint], places: int, timeout_s: float
) -> None:
    known = frozenset(f"#c{n}" for n in range(CHANNELS))
    setup = Setup(channels=known - {"#c5"}, archived=frozenset({"#c4"}))
    fleet = begin(seed=count, places=places, setup=setup, share=0.1)
    snapshot = fleet.run(count, kill_points, timeout_s)
    account = fleet.account()
    assert fleet.killed == len(kill_points)
    assert (account.lost, account.duplicated) == ([], 0)
    assert account.dead.keys() <= {"ambiguous", "exhausted"}
    assert fleet.too_soon_given_up() == []
    assert account.sent + account.dead.total() == len(fleet.ids) == snapshot.received
    assert {posted.channel for posted in fleet.slack.ledger.posted()} == {"#c0", "#c1", "#c2", "#c3"}


@pytest.mark.parametrize(
    ("count", "kill_points", "places", "timeout_s"),
    [
        pytest.param(60, KILLS[:2], 2, 90, id="60 messages"),
        pytest.param(2_000, KILLS * 3, 4, 900, id="2000 messages", marks=pytest.mark.slow),
    ],
)
def test_through_a_webhook_nothing_is_lost_and_every_copy_is_reported(
    begin: Begin, count: int, kill_points: list[KillPoint], places: int, timeout_s: float
) -> None:
    fleet = begin(seed=count, places=places, webhook=True)
    snapshot = fleet.run(count, kill_points, timeout_s)
    account = fleet.account()
    print(account)  # noqa: T201 - the figures, with -s
    assert fleet.killed == len(kill_points)
    assert (account.lost, account.unreported) == ([], [])
    assert 0 < account.duplicated <= account.reported + 8 * account.dead.total()
    assert account.dead.keys() <= {"ambiguous", "exhausted"}
    assert fleet.too_soon_given_up() == []
    assert account.sent + account.dead.total() == len(fleet.ids) == snapshot.received


@pytest.mark.parametrize(
    ("count", "kill_points", "places", "timeout_s"),
    [
        pytest.param(60, KILLS[:2], 2, 90, id="60 messages"),
        pytest.param(2_000, KILLS * 3, 4, 900, id="2000 messages", marks=pytest.mark.slow),
    ],
)
def test_with_on_ambiguous_dead_letter_no_message_is_posted_twice(
    begin: Begin, count: int, kill_points: list[KillPoint], places: int, timeout_s: float
) -> None:
    fleet = begin(seed=count, places=places, webhook=True, on_ambiguous="dead-letter")
    snapshot = fleet.run(count, kill_points, timeout_s)
    account = fleet.account()
    print(account)  # noqa: T201 - the figures, with -s
    assert fleet.killed == len(kill_points)
    assert (account.lost, account.duplicated, account.reported) == ([], 0, 0)
    assert account.dead["ambiguous"] > 0
    assert account.dead.keys() <= {"ambiguous", "exhausted"}
    assert fleet.too_soon_given_up() == []
    assert account.sent + account.dead.total() == len(fleet.ids) == snapshot.received


@pytest.mark.slow
def test_every_copy_is_reported_when_slack_shows_fifteen_messages_a_minute(begin: Begin) -> None:
    fleet = begin(seed=15, places=2, setup=Setup(history_items=15), share=0.2, max_age="30s")
    snapshot = fleet.run(60, [], 900)  # nobody is killed: a 429 that a dead worker got is known to nobody
    account = fleet.account()
    print(account)  # noqa: T201 - the figures, with -s
    assert (account.lost, account.unreported) == ([], [])
    ignored = fleet.slack.workspace.traffic.ignored["conversations.history"]
    assert ignored < CHANNELS, "only what was under way when the first 429 came"
    assert account.dead.keys() <= {"ambiguous", "expired", "exhausted"}
    assert account.sent + account.dead.total() == len(fleet.ids) == snapshot.received

"""How fast a fleet posts to channels that take one message a second, and that it never posts when told to wait."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Final

import pytest

from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.stand_in import STRICT, Fault, Setup, Slow, StandIn, TooManyRequests, landed, not_landed
from dispatcher.stand_in.faults import POST, Faults
from dispatcher.store.snapshot import Books
from tests.support.kill_round import KEYS, QUEUE
from tests.support.killable_workers import KillableWorkers
from tests.support.processes import environment
from tests.support.snapshots import is_drained, watch

CHANNELS: Final = tuple(f"#c{n}" for n in range(5))
LIMITS: Final = """\
global: {{limits: []}}
channels: {{default: {{pace: {pace}}}}}
defaults: {{limits: [], channel: "#c0"}}
"""
COOL_S: Final = 3


class Answers:
    """Each post is answered after 1 to 50 ms."""

    def __init__(self, seed: int) -> None:
        self._lock = threading.Lock()
        self._dice = random.Random(seed)
        self.took_s: list[float] = []

    def draw(self, kind: str) -> Fault | None:
        if kind != POST:
            return None
        with self._lock:
            self.took_s.append(self._dice.uniform(0.001, 0.05))
            return landed(Slow(self.took_s[-1]))

    def reset(self) -> None:
        self.took_s.clear()


@pytest.fixture
def answers() -> Answers:
    return Answers(seed=1)


@pytest.fixture
def slack(answers: Answers) -> Iterator[StandIn]:
    with StandIn(setup=Setup(rate=STRICT), faults=Faults(answers)) as stand_in:
        yield stand_in


def drain(  # noqa: PLR0913, PLR0917 - where, and figures
    killable: KillableWorkers,
    redis_url: str,
    slack: StandIn,
    cwd: Path,
    pace: str,
    workers: int,
    each: int,
    *,
    by_webhook: bool = False,
) -> dict[str, list[float]]:
    """So many messages for each channel, by so many workers; the instants at which they arrived, in order.

    ``by_webhook``: all arrive in its one channel.
    """
    path = cwd / "limits.yaml"
    path.write_text(LIMITS.format(pace=pace), encoding="utf-8")
    client = connect(redis_url)
    Producer(client).send_many(
        {"category": "news", "channel": channel, "text": str(n)} for n in range(each) for channel in CHANNELS
    )
    env = environment(redis_url, slack.base_url, slack.token, path)
    if by_webhook:
        del env["DISPATCHER_SLACK_TOKEN"]
        env["DISPATCHER_SLACK_WEBHOOK_URL"] = slack.webhook_url
    try:
        for _ in range(workers):
            killable.start(env)
        end = watch(Books(client, KEYS, QUEUE), is_drained, 10 * each + 30)
        killable.stop()
        assert [process.code for process in killable.started] == [0] * workers
    finally:
        killable.clear()
    assert end.overall()["sent"] == each * len(CHANNELS)
    arrived: dict[str, list[float]] = defaultdict(list)
    texts: dict[str, list[str]] = defaultdict(list)
    for posted in slack.ledger.posted():
        arrived[posted.channel].append(posted.arrived_at)
        texts[posted.channel].append(posted.text)
    if by_webhook:
        assert texts == {"#webhook": [str(n) for n in range(each) for _ in CHANNELS]}, "in order, each once"
    else:
        assert texts == {channel: [str(n) for n in range(each)] for channel in CHANNELS}, "in order, each once"
    return arrived


@pytest.mark.parametrize(
    ("workers", "each", "share"),
    [
        pytest.param(3, 8, 0.5, id="3 workers, maybe on a busy machine"),
        pytest.param(8, 60, 0.95, id="8 workers", marks=[pytest.mark.slow, pytest.mark.alone]),
    ],
)
def test_a_channel_gets_what_its_pace_allows_and_nobody_is_told_to_wait(  # noqa: PLR0913, PLR0917 - fixtures and figures
    redis_url: str,
    killable: KillableWorkers,
    slack: StandIn,
    answers: Answers,
    tmp_path: Path,
    workers: int,
    each: int,
    share: float,
) -> None:
    """The wall clock is what is promised here: a post a second, and the time that Slack takes to answer."""
    arrived = drain(killable, redis_url, slack, tmp_path, "1/1s", workers, each)
    assert (slack.workspace.rate_limited, slack.workspace.inside_retry_after) == (0, 0)
    ideal_s = (each - 1) * (1 + mean(answers.took_s))
    shares = {channel: ideal_s / (instants[-1] - instants[0]) for channel, instants in arrived.items()}
    print({channel: f"{100 * part:.1f} %" for channel, part in shares.items()})  # noqa: T201 - the figures, with -s
    assert min(shares.values()) >= share
    assert min(later - earlier for instants in arrived.values() for earlier, later in pairwise(instants)) >= 1


def test_while_one_channel_cools_down_the_others_keep_their_pace(
    redis_url: str, killable: KillableWorkers, slack: StandIn, tmp_path: Path
) -> None:
    slack.faults.add(not_landed(TooManyRequests(str(COOL_S))))  # for whoever comes first
    arrived = drain(killable, redis_url, slack, tmp_path, "1/1s", 3, 6)
    (cold,) = slack.workspace.traffic.waits
    assert slack.workspace.inside_retry_after == 0
    began = min(instants[0] for instants in arrived.values())
    assert arrived[cold][0] - began >= COOL_S - 0.5
    others = [instants for channel, instants in arrived.items() if channel != cold]
    assert all(instants[2] < arrived[cold][0] for instants in others), "they went on meanwhile"


@pytest.mark.parametrize(
    ("workers", "each"),
    [pytest.param(3, 4, id="3 workers"), pytest.param(8, 20, id="8 workers", marks=pytest.mark.slow)],
)
def test_with_a_pace_faster_than_slack_no_worker_posts_within_a_retry_after(  # noqa: PLR0913, PLR0917 - fixtures and figures
    redis_url: str, killable: KillableWorkers, slack: StandIn, tmp_path: Path, workers: int, each: int
) -> None:
    """Bursts of ten to channels that take one a second: each answer of 429 holds for the whole fleet."""
    arrived = drain(killable, redis_url, slack, tmp_path, "10/10s", workers, each)
    print(f"{slack.workspace.posts} posts, {slack.workspace.rate_limited} told to wait")  # noqa: T201 - the figures, with -s
    assert slack.workspace.rate_limited > 0
    assert slack.workspace.inside_retry_after == 0
    assert min(later - earlier for instants in arrived.values() for earlier, later in pairwise(instants)) >= 1


@pytest.mark.parametrize(
    ("pace", "is_faster"),
    [pytest.param("1/1s", False, id="as fast as Slack"), pytest.param("10/10s", True, id="faster")],
)
def test_a_webhook_has_one_pace_whatever_channels_the_events_name(  # noqa: PLR0913 - fixtures and figures
    redis_url: str, killable: KillableWorkers, slack: StandIn, tmp_path: Path, pace: str, *, is_faster: bool
) -> None:
    drain(killable, redis_url, slack, tmp_path, pace, 3, 2, by_webhook=True)
    assert slack.workspace.inside_retry_after == 0
    assert (slack.workspace.rate_limited > 0) is is_faster

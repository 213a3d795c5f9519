"""Digests and notices under random walks: every number that is told is right, and no limit is exceeded by telling."""

from __future__ import annotations

import pytest

from dispatcher.core.units import US
from tests.support.digest_walk import DigestWalk
from tests.support.digests import WINDOW_S, digest_posts, edits, storm, telling_policy, wait_until
from tests.support.models import most_in_any_window
from tests.support.servers import Database
from tests.support.stage import Stage


def walk(redis: Database, seed: int, steps: int) -> DigestWalk:
    walker = DigestWalk(redis, seed)
    for _ in range(steps):
        walker.step()
    walker.drain()
    walker.verify()
    return walker


@pytest.mark.parametrize(("seeds", "least"), [(1, 2), pytest.param(3, 8, marks=pytest.mark.slow)])
def test_digest_and_notice_counts_equal_the_suppressed_events(redis: Database, seeds: int, least: int) -> None:
    told = 0
    for seed in range(seeds):
        told += len(walk(redis, seed, 200).slack.counts)
    assert told >= least


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_digest_and_notice_counts_of_a_long_run_equal_the_suppressed_events(redis: Database, seed: int) -> None:
    assert len(walk(redis, seed, 1_500).slack.counts) >= 10


@pytest.mark.parametrize(
    ("hours", "gap_s"),
    [
        (1, 55.0),
        pytest.param(1.5, 55.0, marks=pytest.mark.slow),
        pytest.param(6, 55.0, marks=pytest.mark.slow),
        pytest.param(6, 7.0, marks=pytest.mark.slow),
    ],
)
def test_a_storm_of_hours_gives_one_digest_in_each_window(redis: Database, hours: float, gap_s: float) -> None:
    """The rate is a little over the limit, or far."""
    stage = Stage(redis, telling_policy("10/30m"))
    stage.prolongs = True
    ann = stage.worker()
    count, windows = round(hours * 3_600 / gap_s), round(hours * 3_600 / WINDOW_S)
    for n in range(count):
        storm(stage, 1)
        wait_until(stage, gap_s * (n + 1), ann)
    wait_until(stage, (hours + 1) * 3_600, ann)
    told = [at_us for at_us, each in stage.attempts if each.candidate.leased.tally and each.candidate.terms.scopes]
    posted = [at_us for at_us, each in stage.attempts if each.candidate.terms.scopes]
    assert most_in_any_window(posted, WINDOW_S * US) <= 10
    assert most_in_any_window(told, WINDOW_S * US) == 1
    assert windows - 2 < len(told) <= windows
    assert len(digest_posts(ann)) == stage.total("notices") == len(told)
    assert len(edits(ann)) <= hours * 120 + len(told)
    last_words = [text for text in edits(ann) if text.splitlines()[0].endswith("closed")]
    assert sum(int(text.partition(" ")[0]) for text in last_words) == stage.total("digested")
    assert stage.total("digested") + stage.total("sent") == count
    assert stage.snapshot().tallies == {}

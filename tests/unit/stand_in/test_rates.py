"""The stand-in's buckets and what it counts of those who do not wait, with a clock that is passed in."""

from __future__ import annotations

import pytest

from dispatcher.stand_in import REALISTIC, STRICT, WORKSPACE, Rate, Setup
from dispatcher.stand_in.rates import TIER_3, Buckets
from dispatcher.stand_in.traffic import Traffic

NOW = 1_732_100_000.0
METHOD = "conversations.history"


def taken(buckets: Buckets, now: float, key: str = "#ops") -> int | None:
    if (retry_after := buckets.refusal(key, now)) is None:
        buckets.charge(key, now)
    return retry_after


@pytest.mark.parametrize(
    ("rate", "retry_after"), [(STRICT, 1), (REALISTIC, 1), (WORKSPACE, 1), (TIER_3, 2), (Rate(3, 60.0), 60)], ids=str
)
def test_a_burst_passes_and_the_next_is_told_when_to_come(rate: Rate, retry_after: int) -> None:
    buckets = Buckets(rate)
    assert [taken(buckets, NOW) for _ in range(rate.burst + 1)] == [None] * rate.burst + [retry_after]
    assert taken(buckets, NOW, "#other") is None
    assert taken(buckets, NOW + retry_after - 0.001) == 1
    assert taken(buckets, NOW + retry_after) is None


def test_a_bucket_fills_at_its_rate_and_no_further_than_its_burst() -> None:
    buckets = Buckets(Rate(burst=2, interval_s=10))
    assert [taken(buckets, NOW), taken(buckets, NOW)] == [None, None]
    assert taken(buckets, NOW + 10) is None
    assert taken(buckets, NOW + 19.5) == 1
    assert [taken(buckets, NOW + 1_000) for _ in range(3)] == [None, None, 10]


def test_posts_share_the_workspace_and_one_that_a_channel_refuses_costs_it_nothing() -> None:
    traffic = Traffic(Setup(rate=STRICT, workspace_rate=Rate(burst=3, interval_s=20)))
    assert traffic.admit_post("#a", NOW) is None
    assert [traffic.admit_post("#a", NOW) for _ in range(9)] == [1] * 9
    assert [traffic.admit_post(name, NOW) for name in ("#b", "#c", "#d")] == [None, None, 20]
    assert traffic.admit_post("#e", NOW + 19.5) == 1
    assert traffic.admit_post("#d", NOW + 20) is None
    assert traffic.waits == {"#a": 9, "#d": 1, "#e": 1}


def test_a_post_that_the_workspace_refuses_costs_the_channel_nothing() -> None:
    traffic = Traffic(Setup(rate=Rate(burst=1, interval_s=1_000), workspace_rate=Rate(burst=1, interval_s=1)))
    traffic.admit_post("#a", NOW)
    assert traffic.admit_post("#b", NOW) == 1
    assert traffic.admit_post("#b", NOW + 1) is None


def test_a_method_has_a_rate_of_its_own() -> None:
    traffic = Traffic(Setup.paced(STRICT))
    assert [traffic.admit(METHOD, NOW) for _ in range(51)] == [None] * 50 + [2]
    assert traffic.admit("conversations.replies", NOW) is None
    assert traffic.admit("auth.test", NOW) is None
    assert traffic.admit_post("#a", NOW) is None
    assert traffic.waits == {METHOD: 1}


def test_fifteen_items_mean_one_reading_a_minute_whatever_the_other_rates() -> None:
    traffic = Traffic(Setup.paced(STRICT, history_items=15))
    assert [traffic.admit(METHOD, NOW + after) for after in (0, 0, 30, 60)] == [None, 60, 30, None]
    assert traffic.admit("chat.update", NOW) is None


@pytest.mark.parametrize(("after", "ignored"), [(0.0, {"#a": 1}), (2.9, {"#a": 1}), (3.0, {}), (60.0, {})])
def test_posts_that_come_too_early_after_a_429_are_counted_by_channel(after: float, ignored: dict[str, int]) -> None:
    traffic = Traffic(Setup(rate=Rate(burst=1, interval_s=2.5)))
    traffic.admit_post("#a", NOW)
    assert traffic.admit_post("#a", NOW) == 3
    traffic.arrived("chat.postMessage", "#b", NOW + after)
    traffic.arrived("chat.postMessage", "#a", NOW + after)
    assert traffic.ignored == ignored
    assert traffic.calls == {"chat.postMessage": 2}


def test_being_told_again_while_waiting_does_not_make_the_wait_longer() -> None:
    traffic = Traffic(Setup(rate=Rate(burst=1, interval_s=2.5)))
    traffic.admit_post("#a", NOW)
    assert [traffic.admit_post("#a", NOW), traffic.admit_post("#a", NOW + 2.9)] == [3, 1]
    traffic.arrived("chat.postMessage", "#a", NOW + 3)
    assert traffic.ignored == {}


def test_a_full_workspace_is_everybodys_wait() -> None:
    traffic = Traffic(Setup(workspace_rate=Rate(burst=1, interval_s=5)))
    assert [traffic.admit_post("#a", NOW), traffic.admit_post("#a", NOW)] == [None, 5]
    traffic.arrived("webhook", "#b", NOW + 1)
    traffic.arrived(METHOD, None, NOW + 1)
    assert traffic.ignored == {"#b": 1}


def test_a_retry_after_of_a_fault_counts_for_later_requests() -> None:
    traffic = Traffic(Setup())
    traffic.told("#a", 7, NOW)
    traffic.told("#a", 30, NOW)
    traffic.told(METHOD, 5, NOW)
    traffic.arrived("chat.postMessage", "#a", NOW + 29)
    traffic.arrived(METHOD, None, NOW + 4)
    traffic.arrived(METHOD, None, NOW + 5)
    assert (traffic.ignored, traffic.waits) == ({"#a": 1, METHOD: 1}, {"#a": 2, METHOD: 1})

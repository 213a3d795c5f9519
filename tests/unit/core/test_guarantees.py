"""What guarantees, labels and aligned windows in a limits file mean for what an event is counted against."""

from __future__ import annotations

import pytest

from dispatcher.core.event import Event
from dispatcher.core.limits import Demand, FirstOf, Kind, Limit, Reason, Scope
from dispatcher.core.policy import Policy, limit_reason
from dispatcher.settings.describe import sentences
from dispatcher.settings.limits_file import read_limits


def policy(text: str) -> Policy:
    return read_limits(text, "limits.yaml").policy


def warnings(text: str) -> list[str]:
    return list(read_limits(text, "limits.yaml").warnings)


def scope(name: str, *limits: str) -> Scope:
    return Scope(name, limits)


SHARES = """\
global: {limits: [5/1s, 100/30m]}
categories:
  errors: {guarantee: 5, limits: [10/30m]}
  deploys: {guarantee: 3, limits: []}
"""


def test_without_guarantees_nothing_but_the_limits_is_asked() -> None:
    assert policy("{}").scopes("errors") == (scope("global", "100/30m"), scope("category:errors", "10/30m"))


def test_a_guaranteed_category_takes_of_its_share_first_and_then_of_what_all_share() -> None:
    shared = scope("shared", "92/30m")
    assert policy(SHARES).scopes("errors") == (
        scope("global", "5/1s", "100/30m"),
        FirstOf((scope("guarantee:errors", "5/30m"), shared)),
        scope("category:errors", "10/30m"),
    )
    assert policy(SHARES).scopes("deploys") == (
        scope("global", "5/1s", "100/30m"),
        FirstOf((scope("guarantee:deploys", "3/30m"), shared)),
    )


def test_any_other_category_takes_of_what_all_share_alone() -> None:
    asked = policy(SHARES).scopes("news")
    expected: tuple[Demand, ...] = (
        scope("global", "5/1s", "100/30m"),
        scope("shared", "92/30m"),
        scope("category:news", "10/30m"),
    )
    assert asked == expected


def test_no_shared_scope_is_left_when_everything_is_guaranteed() -> None:
    text = "categories: {a: {guarantee: 60, limits: []}, b: {guarantee: 40, limits: []}}\nunknown_categories: reject"
    assert policy(text).scopes("a") == (scope("global", "100/30m"), scope("guarantee:a", "60/30m"))


def test_a_category_that_everything_leaves_nothing_for_is_asked_of_the_limit_alone() -> None:
    text = "categories: {a: {guarantee: 100, limits: []}}\nunknown_categories: reject\ndefaults: {limits: []}"
    assert policy(text).scopes("unknown") == (scope("global", "100/30m"),)


def test_a_guarantee_is_a_part_of_the_longest_window_and_moves_as_it_does() -> None:
    text = "global: {limits: [50/1d fixed, 20/1h]}\ncategories: {a: {guarantee: 2}}"
    assert policy(text).scopes("a")[1] == FirstOf((scope("guarantee:a", "2/1d fixed"), scope("shared", "48/1d fixed")))


HALF_HOUR = "any 30 minutes"


def test_the_price_of_guarantees_is_told() -> None:
    together, errors, *_ = sentences(policy(SHARES))
    kept = (
        f"8 of the 100 in {HALF_HOUR} are kept for errors and deploys even while they are not used, 92 are left for all"
    )
    assert together == f"All events together: at most 5 in any second and 100 in {HALF_HOUR}; {kept}."
    assert f"; 5 in {HALF_HOUR} are kept for it, whatever the others send, if the other limits" in errors


def test_a_guarantee_that_its_own_limit_never_lets_it_use_is_a_warning() -> None:
    text = "categories:\n  errors: {guarantee: 15, limits: [3/10m]}\n  fine: {guarantee: 9, limits: [3/10m]}"
    said = "15 can never be used up, since the category's own limit is 3/10m"
    assert warnings(text) == [f"limits.yaml:2:23: categories.errors.guarantee: {said}"]


def test_half_an_hour_may_hold_what_two_of_the_clock_do() -> None:
    assert warnings("categories: {errors: {guarantee: 10, limits: [5/30m fixed]}}") == []
    [said] = warnings("categories: {errors: {guarantee: 11, limits: [5/30m fixed]}}")
    assert said.endswith("11 can never be used up, since the category's own limit is 5/30m fixed")


@pytest.mark.parametrize("name", ["global", "shared", "guarantee:errors"])
def test_a_share_that_is_used_up_counts_as_the_global_limit(name: str) -> None:
    assert limit_reason(name) is Reason.LIMIT_GLOBAL


LABELS = "categories: {deploys: {limits: [30/1h], per_label: {host: [3/10m], region: [9/1h]}}}"


def test_events_with_other_values_of_two_limited_labels_wait_in_other_lines() -> None:
    hosts = ("a b", "a%20b", "a%2520b")
    assert (
        len({policy(LABELS).line(Event("deploys", "x", labels={"host": host, "region": "eu"})) for host in hosts}) == 3
    )


def test_each_value_of_a_label_has_limits_of_its_own() -> None:
    asked = policy(LABELS).scopes("deploys", {"host": "db1", "user": "eva"})
    assert asked[1:] == (scope("category:deploys", "30/1h"), scope("label:deploys:host=db1", "3/10m"))
    assert limit_reason("label:deploys:host=db1") is Reason.LIMIT_LABEL


def test_an_event_without_the_label_is_not_counted_there() -> None:
    assert policy(LABELS).scopes("deploys", {}) == policy(LABELS).scopes("deploys")
    assert len(policy(LABELS).scopes("deploys")) == 2


def test_a_long_value_of_a_label_stands_as_a_digest() -> None:
    names = [policy(LABELS).scopes("deploys", {"host": "x" * length + "y"})[-1] for length in (63, 64, 5_000)]
    lengths = [len(each.name.rpartition("=")[2]) for each in names if isinstance(each, Scope)]
    assert lengths == [64, 32, 32]
    assert len(set(names)) == 3


def test_labels_of_the_defaults_hold_for_every_category_that_names_none() -> None:
    text = "defaults: {per_label: {host: [3/10m]}}\ncategories: {a: {}, b: {per_label: {}}}"
    counted = [len(policy(text).scopes(name, {"host": "db1"})) for name in ("a", "b", "news")]
    assert counted == [3, 2, 3]


def test_a_window_aligned_to_the_clock_is_read_and_told() -> None:
    quotas = policy("global: {limits: [1000/1d fixed]}")
    assert quotas.global_limits == (Limit(1000, window_us=86_400_000_000, kind=Kind.FIXED),)
    assert sentences(quotas)[0] == "All events together: at most 1000 in each clock-aligned 24 hours."


def test_one_window_may_stand_as_a_rolling_and_as_an_aligned_one() -> None:
    both = policy("global: {limits: [100/1h, 60/1h fixed]}")
    assert [str(limit) for limit in both.global_limits] == ["100/1h", "60/1h fixed"]


@pytest.mark.parametrize(
    ("limits", "idle"),
    [
        ("[10/1m fixed, 20/2m fixed]", "20/2m fixed"),
        ("[10/1m fixed, 29/2m]", None),
        ("[10/1m fixed, 30/2m]", "30/2m"),
        ("[10/1m, 20/2m fixed]", "20/2m fixed"),
        ("[10/40s fixed, 39/2m]", None),
        ("[10/40s fixed, 40/2m]", "40/2m"),
        ("[10/40s, 60/2m fixed]", None),
    ],
)
def test_a_window_that_never_binds_is_found_among_aligned_and_rolling_ones(limits: str, idle: str | None) -> None:
    found = [each for each in warnings(f"global: {{limits: {limits}}}") if "can never bind" in each]
    assert len(found) == (idle is not None)
    assert idle is None or f"]: {idle} can never bind" in found[0]


def test_the_policy_sentence_says_what_happens_over_the_limit_of_a_label() -> None:
    text = "global: {limits: []}\ncategories: {deploys: {limits: [], per_label: {host: [3/10m]}}}"
    _, deploys, *_ = sentences(policy(text))
    assert "3 in any 10 minutes for each value of the label host; beyond that the event is dropped" in deploys

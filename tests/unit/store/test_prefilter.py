"""Which categories a worker names by the pre-check, and for how long."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from dispatcher.core.limits import Demand, Denied, FirstOf, Limit, Scope
from dispatcher.core.states import Prefiltered
from dispatcher.core.units import US
from dispatcher.store.admission import IDLE_S, MOST_CATEGORIES, Prefilter, PrefilterCall

HOUR_US: Final = 3_600 * US


class Seconds:
    """A clock of seconds that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def prefilter(clock: Seconds) -> Prefilter:
    return Prefilter(clock)


def scope(name: str, *limits: str) -> Scope:
    return Scope(name, limits or "5/1h")


def denied(wait_us: int = HOUR_US) -> Denied:
    return Denied("global", Limit.parse("5/1h"), wait_us)


def close(
    prefilter: Prefilter, category: str, *demands: Demand, wait_us: int = HOUR_US, configured: bool = True
) -> None:
    prefilter.add(category, demands or (scope("global"),), denied(wait_us), configured=configured)


def read(closed: PrefilterCall | None) -> dict[str, Any]:
    """What take.lua is told, by the category, and of each scope by its number."""
    assert closed is not None
    lines = (line.split("\t") for line in closed.text.removeprefix("\n").split("\n"))
    return {name: json.loads(facts) for name, facts in lines}


def named(prefilter: Prefilter) -> list[str]:
    closed = prefilter.call()
    return [] if closed is None else [name for name in read(closed) if not name.startswith("@")]


def test_a_named_category_comes_with_all_scopes_that_its_events_ask_for(prefilter: Prefilter) -> None:
    pools = FirstOf((scope("guarantee:errors", "2/1h"), scope("shared", "3/1h")))
    close(prefilter, "errors", scope("global", "9/1s", "5/1h"), pools, scope("category:errors", "4/1d fixed"))
    close(prefilter, "news", scope("global", "9/1s", "5/1h"), scope("shared", "3/1h"), configured=False)
    assert read(prefilter.call()) == {
        "errors": [True, [1, [2, 3], 4]],
        "news": [False, [1, 3]],
        "@1": [
            "global",
            [[9, US], [5, HOUR_US]],
            ['"limit:global",["global","9/1s",', '"limit:global",["global","5/1h",'],
        ],
        "@2": ["guarantee:errors", [[2, HOUR_US]], ['"limit:global",["guarantee:errors","2/1h",']],
        "@3": ["shared", [[3, HOUR_US]], ['"limit:global",["shared","3/1h",']],
        "@4": [
            "category:errors",
            [[4, 24 * HOUR_US, "fixed"]],
            ['"limit:category",["category:errors","4/1d fixed",'],
        ],
    }


def test_dropped_events_are_reported_with_the_limit_that_refused_them(prefilter: Prefilter) -> None:
    close(prefilter, "errors", scope("global", "9/1s", "5/1h"), scope("category:errors", "4/1h"))
    close(prefilter, "news", scope("global", "9/1s", "5/1h"))
    closed = prefilter.call()
    assert closed is not None
    rows = [["errors", 1, 2, "250", "a b c"], ["errors", 2, 1, "3600000000", "d"], ["news", 1, 1, "7", ""]]  # nobody
    assert closed.read(rows, 7) == [
        Prefiltered("errors", Denied("global", Limit.parse("5/1h"), 250), ["a", "b", "c"], 7),
        Prefiltered("errors", Denied("category:errors", Limit.parse("4/1h"), HOUR_US), ["d"], 7),
    ]


def test_a_category_that_has_room_again_is_named_no_more(prefilter: Prefilter, clock: Seconds) -> None:
    close(prefilter, "long", wait_us=10 * US)
    close(prefilter, "short", wait_us=4 * US)
    close(prefilter, "longer", wait_us=11 * US)
    told = []
    for now_s in (1_003.75, 1_004.0, 1_009.75, 1_010.0, 1_010.75, 1_011.0, 1_012.0):
        clock.now_s = now_s
        told.append(named(prefilter))
    every = ["long", "short", "longer"]
    assert told == [every, ["long", "longer"], ["long", "longer"], ["longer"], ["longer"], [], []]
    assert prefilter.call() is None


def test_a_category_that_is_refused_again_is_named_for_longer(prefilter: Prefilter, clock: Seconds) -> None:
    close(prefilter, "errors", wait_us=4 * US)
    clock.now_s += 3
    close(prefilter, "errors", wait_us=4 * US)
    clock.now_s += 2
    assert named(prefilter) == ["errors"]
    clock.now_s += 2
    assert named(prefilter) == []


def test_a_new_category_replaces_one_that_had_no_event_for_a_while(prefilter: Prefilter, clock: Seconds) -> None:
    names = [f"c{n}" for n in range(MOST_CATEGORIES)]
    for name in names:
        close(prefilter, name)
    clock.now_s += IDLE_S / 2
    close(prefilter, "c0")  # it was refused once more
    prefilter.note([Prefiltered("c1", denied(), ["a", "b"], 7), Prefiltered("unknown", denied(), ["c"], 7)])
    close(prefilter, "early")
    assert set(named(prefilter)) == set(names)
    clock.now_s += IDLE_S / 2
    close(prefilter, "late")
    close(prefilter, "later")  # none is replaced twice in so short a time
    assert set(named(prefilter)) == set(names) - {"c2"} | {"late"}
    clock.now_s += IDLE_S
    close(prefilter, "later")
    assert set(named(prefilter)) == set(names) - {"c2", "c3"} | {"late", "later"}


def test_repeats_of_no_more_categories_are_looked_for_than_may(prefilter: Prefilter, clock: Seconds) -> None:
    names = [f"c{n}" for n in range(MOST_CATEGORIES)]
    for name in names:
        prefilter.add_repeats(name, HOUR_US, configured=True)
    clock.now_s += IDLE_S
    prefilter.note([Prefiltered("c0", denied(), ["a"], 7)])
    prefilter.add_repeats("late", HOUR_US, configured=True)
    assert set(named(prefilter)) == {f"#{name}" for name in names} - {"#c1"} | {"#late"}


def test_with_other_limits_none_is_named(prefilter: Prefilter, clock: Seconds) -> None:
    close(prefilter, "errors", wait_us=2 * US)
    assert named(prefilter) == ["errors"]
    prefilter.clear()
    assert prefilter.call() is None
    close(prefilter, "news", wait_us=5 * US)
    clock.now_s += 3
    assert named(prefilter) == ["news"]


def test_the_text_is_made_once_while_nothing_changes(prefilter: Prefilter, clock: Seconds) -> None:
    demands = (scope("global"), scope("category:errors"))
    close(prefilter, "errors", *demands)
    closed = prefilter.call()
    assert closed is not None
    clock.now_s += 5
    close(prefilter, "errors", *demands)
    assert prefilter.call() is closed
    close(prefilter, "news")
    assert prefilter.call() is not closed
    assert named(prefilter) == ["errors", "news"]


def test_other_demands_of_a_category_take_the_place_of_the_first(prefilter: Prefilter) -> None:
    for most in (5, 7):
        close(prefilter, "errors", scope("category:errors", f"{most}/1h"))
        told = [f'"limit:category",["category:errors","{most}/1h",']
        assert read(prefilter.call()) == {
            "errors": [True, [1]],
            "@1": ["category:errors", [[most, HOUR_US]], told],
        }

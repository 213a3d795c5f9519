"""Which categories a worker names at the door, and for how long."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from dispatcher.core.limits import US, Demand, Denied, FirstOf, Limit, Scope
from dispatcher.core.outcomes import TurnedAway
from dispatcher.store.prefilter import MOST_CLOSED, Closed, Door

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
def door(clock: Seconds) -> Door:
    return Door("shop", clock)


def scope(name: str, *limits: str) -> Scope:
    return Scope(name, tuple(Limit.parse(limit) for limit in limits or ("5/1h",)))


def denied(wait_us: int = HOUR_US) -> Denied:
    return Denied("global", Limit.parse("5/1h"), wait_us)


def close(door: Door, category: str, *demands: Demand, wait_us: int = HOUR_US, configured: bool = True) -> None:
    door.close(category, demands or (scope("global"),), denied(wait_us), configured=configured)


def read(closed: Closed | None) -> dict[str, Any]:
    """What take.lua is told."""
    assert closed is not None
    facts: dict[str, Any] = json.loads(closed.text)
    return facts


def named(door: Door) -> list[str]:
    closed = door.closed()
    return [] if closed is None else list(read(closed)["categories"])


def test_while_nothing_was_refused_nothing_is_named(door: Door) -> None:
    assert door.closed() is None


def test_what_is_named_comes_with_all_that_its_events_ask_for(door: Door) -> None:
    pools = FirstOf((scope("guarantee:errors", "2/1h"), scope("shared", "3/1h")))
    close(door, "errors", scope("global", "9/1s", "5/1h"), pools, scope("category:errors", "4/1d fixed"))
    close(door, "news", scope("global", "9/1s", "5/1h"), scope("shared", "3/1h"), configured=False)
    closed = door.closed()
    facts = read(closed)
    assert closed is not None
    assert closed.keys == [
        "{shop}:scope:global",
        "{shop}:scope:guarantee:errors",
        "{shop}:scope:shared",
        "{shop}:scope:category:errors",
    ]
    assert facts == {
        "scopes": [
            [[9, US], [5, HOUR_US]],
            [[2, HOUR_US]],
            [[3, HOUR_US]],
            [[4, 24 * HOUR_US, "fixed"]],
        ],
        "rows": [[0, 1, [2, 3], 4], [0, 1, 3]],
        "told": [
            ['"limit:global",["global","9/1s",', '"limit:global",["global","5/1h",'],
            ['"limit:global",["guarantee:errors","2/1h",'],
            ['"limit:global",["shared","3/1h",'],
            ['"limit:category",["category:errors","4/1d fixed",'],
        ],
        "categories": {"errors": [1, True], "news": [2, False]},
    }


def test_what_was_dropped_is_told_with_the_limit_that_refused_it(door: Door) -> None:
    close(door, "errors", scope("global", "9/1s", "5/1h"), scope("category:errors", "4/1h"))
    close(door, "news", scope("global", "9/1s", "5/1h"))
    closed = door.closed()
    assert closed is not None
    rows = [["errors", 1, 2, "250", "a b c"], ["errors", 2, 1, "3600000000", "d"], ["news", 1, 1, "7", ""]]  # nobody
    assert closed.read(rows) == [
        TurnedAway("errors", Denied("global", Limit.parse("5/1h"), 250), ["a", "b", "c"]),
        TurnedAway("errors", Denied("category:errors", Limit.parse("4/1h"), HOUR_US), ["d"]),
    ]


def test_what_has_room_again_is_named_no_more(door: Door, clock: Seconds) -> None:
    close(door, "long", wait_us=10 * US)
    close(door, "short", wait_us=4 * US)
    close(door, "longer", wait_us=11 * US)
    told = []
    for now_s in (1_003.75, 1_004.0, 1_009.75, 1_010.0, 1_010.75, 1_011.0, 1_012.0):
        clock.now_s = now_s
        told.append(named(door))
    every = ["long", "short", "longer"]
    assert told == [every, ["long", "longer"], ["long", "longer"], ["longer"], ["longer"], [], []]
    assert door.closed() is None


def test_a_category_that_is_refused_again_is_named_for_longer(door: Door, clock: Seconds) -> None:
    close(door, "errors", wait_us=4 * US)
    clock.now_s += 3
    close(door, "errors", wait_us=4 * US)
    clock.now_s += 2
    assert named(door) == ["errors"]
    clock.now_s += 2
    assert named(door) == []


def test_no_more_are_named_than_may(door: Door, clock: Seconds) -> None:
    for n in range(MOST_CLOSED + 2):
        close(door, f"c{n}", wait_us=(5 if n == 3 else 60) * US)
    assert named(door) == [f"c{n}" for n in range(MOST_CLOSED)]
    close(door, "c0", wait_us=90 * US)
    close(door, "late")
    assert len(named(door)) == MOST_CLOSED
    clock.now_s += 5
    assert len(named(door)) == MOST_CLOSED - 1
    close(door, "late")
    assert named(door)[-1] == "late"
    clock.now_s += 60
    assert named(door) == ["c0", "late"]


def test_with_other_limits_none_is_named(door: Door, clock: Seconds) -> None:
    close(door, "errors", wait_us=2 * US)
    assert named(door) == ["errors"]
    door.open()
    assert door.closed() is None
    close(door, "news", wait_us=5 * US)
    clock.now_s += 3
    assert named(door) == ["news"]


def test_the_text_is_made_once_while_nothing_changes(door: Door, clock: Seconds) -> None:
    demands = (scope("global"), scope("category:errors"))
    close(door, "errors", *demands)
    closed = door.closed()
    assert closed is not None
    clock.now_s += 5
    close(door, "errors", *demands)
    assert door.closed() is closed
    close(door, "news")
    assert door.closed() is not closed
    assert named(door) == ["errors", "news"]


def test_other_demands_of_a_category_take_the_place_of_the_first(door: Door) -> None:
    close(door, "errors", scope("category:errors", "5/1h"))
    assert read(door.closed())["scopes"] == [[[5, HOUR_US]]]
    close(door, "errors", scope("category:errors", "7/1h"))
    assert read(door.closed())["scopes"] == [[[7, HOUR_US]]]
    assert named(door) == ["errors"]

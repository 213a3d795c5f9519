"""Whole batches as the dispatcher asks them: many events of few kinds, and what the gate says of the scopes ahead.

The events of a kind share their list of scopes, so that the gate may answer one as it has answered another.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.limits import Admitted, Demand, Denied, FirstOf, Kind, Limit, Opening, Scope, all_scopes
from dispatcher.core.units import US
from dispatcher.server.keys import Keys
from tests.support.gate import Gate
from tests.support.models import GateModel
from tests.support.servers import Database
from tests.support.slots import SlotScripts

START_US: Final = 1_732_100_000_123_457
OWNERS: Final = 6
NAMES: Final = ("global", "category:a", "category:b", "guarantee:a", "shared")

Step: TypeAlias = tuple[list[tuple[int, int]], bool, set[int], int, int | None]
"""Who asks (kind, owner), whether all are new, which scopes are ahead, what passes then, how long id0 is held."""

limits = st.lists(
    st.builds(
        Limit,
        st.integers(1, 6),
        window_us=st.sampled_from([30 * US, 60 * US, 61_500_000, 300 * US]),
        kind=st.sampled_from([Kind.ROLLING, Kind.ROLLING, Kind.ROLLING, Kind.FIXED]),
    ),
    min_size=1,
    max_size=2,
).map(tuple)
batches = st.tuples(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2 * OWNERS)), min_size=2, max_size=14),
    st.booleans(),
    st.sets(st.integers(0, len(NAMES) - 1)),
    st.sampled_from([0, 0, 1, 7 * US, 29 * US, 61 * US, 400 * US]),
    st.sampled_from([None, None, 20 * US, 90 * US]),
)
walks = st.tuples(st.tuples(*[limits] * len(NAMES)), st.lists(batches, min_size=5, max_size=25))


def opening_of(model: GateModel, scope: Scope, now_us: int) -> Opening:
    """When one more may pass, and how many may at once; at least one where one may.

    No later than after the largest window: a held slot may be given back long before its end.
    """
    usage = model.usage(scope, now_us)
    wait_us = min(max(each.wait_us for each in usage), max(each.limit.window_us for each in usage))
    room = 0 if wait_us else max(1, min(each.limit.max - each.used for each in usage))
    return Opening(scope.name, now_us + wait_us, room)


def explore(redis: Database, examples: int) -> int:
    """Take ``examples`` walks; how many refusals were compared."""
    refusals = number = 0

    @settings(settings.get_profile("walks"), max_examples=examples)
    @given(walks)
    def hold(walk: tuple[tuple[tuple[Limit, ...], ...], list[Step]]) -> None:
        nonlocal refusals, number
        number += 1
        refusals += _walk(redis, f"b{number}", *walk)

    hold()
    return refusals


def _walk(redis: Database, namespace: str, all_limits: tuple[tuple[Limit, ...], ...], steps: list[Step]) -> int:
    now_us, refusals, newcomers = START_US, 0, 0
    model, keys, slots = GateModel(), Keys(namespace), SlotScripts(redis)
    gate = Gate(redis, namespace=namespace, clock=lambda: now_us)
    scopes = [Scope(name, each) for name, each in zip(NAMES, all_limits, strict=True)]
    kinds: tuple[tuple[Demand, ...], ...] = (
        (scopes[0], scopes[1]),
        (scopes[0], scopes[2]),
        (scopes[0], FirstOf((scopes[3], scopes[4])), scopes[1]),
        (scopes[0], scopes[4]),
    )
    for asked, fresh, positions, later_us, held_us in steps:
        requests = []
        for kind, owner in asked:
            newcomers += 1
            is_new = fresh or owner >= OWNERS
            requests.append((f"new{newcomers}" if is_new else f"id{owner}", kinds[kind]))
        ahead = [scopes[position] for position in sorted(positions)]
        got, openings = gate.decide(requests, fresh=fresh, ahead=ahead)
        assert got == [model.decide(id_, demands, now_us) for id_, demands in requests]
        assert openings == [opening_of(model, scope, now_us) for scope in ahead]
        refusals += sum(isinstance(verdict, Denied) for verdict in got)
        for (id_, demands), verdict in zip(requests, got, strict=True):
            if held_us is not None and id_ == "id0" and isinstance(verdict, Admitted):
                for scope in all_scopes(demands):
                    slots.hold(keys.scope(scope.name), id_, now_us + held_us, now_us)
                    model.hold(id_, scope.name, now_us + held_us)
        now_us += later_us
    return refusals


def test_the_room_ahead_is_what_charged_and_held_slots_leave(redis: Database) -> None:
    scope = Scope("global", (Limit.parse("5/1m"),))
    gate = Gate(redis, namespace="room", clock=lambda: START_US)
    gate.try_acquire_many([(id_, (scope,)) for id_ in ("charged", "held")])
    SlotScripts(redis).hold(Keys("room").scope("global"), "held", START_US + 90 * US, START_US)
    _, openings = gate.decide([("a", (scope,))], ahead=[scope])
    assert openings == [Opening("global", START_US, 2)]


@pytest.mark.parametrize(("batches", "least"), [(20, 150), pytest.param(60, 500, marks=pytest.mark.slow)])
def test_a_batch_is_decided_as_its_requests_one_by_one_and_then_tells_what_is_ahead(
    redis: Database, batches: int, least: int
) -> None:
    assert explore(redis, batches) >= least


@pytest.mark.slow
def test_thousands_of_batches_are_decided_as_their_requests_one_by_one(redis: Database) -> None:
    assert explore(redis, 600) >= 10_000

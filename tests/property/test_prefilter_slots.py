"""Of any slots in a scope, charged and held ones, the pre-check says what the gate says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher.core.limits import Admitted, Denied
from dispatcher.core.units import US
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage

HELD: Final = 2**52
LIMITS: Final = ("3/10m", "2/30s, 4/10m", "4/10m, 3/30m", "3/10m fixed", "5/1m")
INSTANTS: Final = (-1900, -700, -599, -200, -31, -20, -5, 0, 3)
"""Of charges, in seconds from now; the last one is of a clock that was stepped back since."""
DEADLINES: Final = (-1, 0, 10, 400, 3_000)

slots = st.lists(
    st.one_of(
        st.sampled_from(INSTANTS).map(lambda seconds: (0, seconds)),
        st.sampled_from(DEADLINES).map(lambda seconds: (HELD, seconds)),
    ),
    min_size=1,
    max_size=6,
)


def explore(redis: Database, examples: int) -> tuple[int, int]:
    """How many scopes with held slots refused an event, and how many admitted one."""
    refused = admitted = 0

    @settings(settings.get_profile("walks"), max_examples=examples)
    @given(st.sampled_from(LIMITS), slots)
    @example("3/10m", [(0, -599), (0, -20), (HELD, 400)])  # the oldest charge is the first that leaves
    @example("3/10m", [(0, -20), (HELD, 10), (HELD, 400)])  # the first held slot is
    @example("3/10m", [(HELD, 10), (HELD, 10), (HELD, 400)])
    @example("2/30s, 4/10m", [(0, -5), (HELD, 10)])  # in so short a window held slots do not count
    def hold(limits: str, charged: Sequence[tuple[int, int]]) -> None:
        nonlocal refused, admitted
        redis.flushall()
        stage = Stage(redis)
        ann = stage.worker("ann")
        named = (
            f'channels: {{"{UNPACED}": {{pace: none}}}}\nglobal: {{limits: []}}\ndefaults: {{channel: "{UNPACED}"}}\n'
        )
        ann.follow(stage.put_in_force(f"{named}categories: {{errors: {{limits: [{limits}]}}}}\n"))
        stage.send(*(f"e{n}" for n in range(6)))
        ann.run()
        assert ann.prefilter.call() is not None, "the gate has refused an event of the category"
        scope = stage.keys.scope("category:errors")
        redis.delete(scope)
        for place, (kind, seconds) in enumerate(charged):
            redis.zadd(scope, {str(900 + place): kind + stage.clock.now_us + seconds * US})
        (verdict,) = stage.gate.peek([("new", ann.policy.scopes("errors"))])
        new = stage.send_unnamed()
        taken = ann.outbox.take(1, 1)  # not ann.take: these slots belong to nobody
        has_held = any(kind for kind, _ in charged)
        match verdict:
            case Denied():
                assert [(each.denied, each.names) for each in taken.prefiltered] == [(verdict, [new])]
                refused += has_held
            case Admitted():
                assert [each.id for each in taken.batch] == [new]
                admitted += has_held

    search = hold
    search()
    return refused, admitted


def test_of_any_slots_the_pre_check_says_what_the_gate_says(redis: Database) -> None:
    refused, admitted = explore(redis, 120)
    assert refused >= 30
    assert admitted >= 20


@pytest.mark.slow
def test_of_any_slots_the_pre_check_says_what_the_gate_says_for_long(redis: Database) -> None:
    refused, admitted = explore(redis, 1_000)
    assert refused >= 300
    assert admitted >= 200

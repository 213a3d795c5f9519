"""Which admitted events may stand by, and how many of them."""

from __future__ import annotations

import pytest

from dispatcher.core.event import Event
from dispatcher.core.limits import Limit, Scope
from dispatcher.core.states import Candidate, Leased, Terms
from dispatcher.core.transitions import may_stand_by
from dispatcher.worker.post_pool import STANDBY_S, Standby


def candidate(*limits: str, pace: str | None = None, thread: str | None = None) -> Candidate:
    scopes = tuple(Scope(f"scope{n}", each) for n, each in enumerate(limits))
    terms = Terms("#a", Limit.parse(pace) if pace else None, scopes, deadline_us=0, configured=True)
    return Candidate(Leased("e1", Event("news", "x", thread=thread), seq=1, seen_us=0), terms)


@pytest.mark.parametrize(
    ("event", "may"),
    [
        pytest.param(candidate(), True, id="no limits"),
        pytest.param(candidate("10/1m", "100/30m"), True, id="windows that last longer"),
        pytest.param(candidate("10/1m", "10/59s"), False, id="a short window: the slot might leave it"),
        pytest.param(candidate("10/1h fixed"), False, id="a window that ends by the clock"),
        pytest.param(candidate(pace="1/1s"), False, id="a paced channel"),
        pytest.param(candidate(thread="deploy 7"), False, id="a thread"),
    ],
)
def test_which_events_may_stand_by(event: Candidate, *, may: bool) -> None:
    assert may_stand_by(event) is may


@pytest.mark.parametrize(
    ("post_s", "room"),
    [
        pytest.param(0.0, 100, id="not known yet"),
        pytest.param(STANDBY_S / 100, 100, id="quick"),
        pytest.param(STANDBY_S / 8, 28, id="all start in seven rounds"),
        pytest.param(STANDBY_S * 0.9, 0, id="those in flight end too late for any other"),
        pytest.param(STANDBY_S * 40, 0, id="slow"),
    ],
)
def test_so_many_stand_by_as_start_in_time(post_s: float, room: int) -> None:
    standby = Standby(size=100, senders=4)
    standby.open("1-a", post_s)
    assert standby.room == room

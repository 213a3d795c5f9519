"""Random traffic: what ``explain`` says of each event is what became of it, and the instants it names are exact."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final, assert_never

import pytest

from dispatcher.core.explain import Explanation, State
from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit
from dispatcher.core.states import DeadLettered, Digested, Dropped, Hushed, Outcome, Parked, Reported, Sent, Told
from dispatcher.core.units import US
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, Worker, policy_of

CATEGORIES: Final = {"waits": OnLimit.DEFER, "goes": OnLimit.DROP, "stays": OnLimit.DEAD_LETTER}
STEPS: Final = 40


class Asker:
    """A stage with three categories, one worker, and who asks about every event after every step."""

    def __init__(self, redis: Database, seed: int) -> None:
        redis.flushall()
        limits = (Limit.parse("3/1m"), Limit.parse("5/4m"))
        rules = {name: CategoryRule(limits, UNPACED, then, 86_400 * US) for name, then in CATEGORIES.items()}
        self.stage = Stage(redis, replace(policy_of("7/2m", ""), categories=rules))
        self.stage.prolongs = True
        self.ann: Worker = self.stage.worker("ann")
        self.random = Random(seed)
        self.ids: list[str] = []
        self.asked = self.predicted = 0

    def send(self, category: str) -> str:
        id_ = f"e{len(self.ids)}"
        self.stage.send(id_, category=category, channel=UNPACED)
        self.ids.append(id_)
        return id_

    def step(self) -> None:
        for _ in range(self.random.randrange(4)):
            self.send(self.random.choice(list(CATEGORIES)))
        self.ann.run()
        self.ann.decided()
        heads = self.ask_all()
        if heads and self.random.random() < 0.5:
            at_us, _ = min(heads)
            self.await_heads(at_us, [id_ for head_us, id_ in heads if head_us == at_us])
        else:
            self.stage.clock.forward(self.random.choice([0.000001, 1, 7, 20, 61]))

    def ask_all(self) -> list[tuple[int, str]]:
        """Ask about every event; the heads of lines with the instants at which they are expected."""
        ended = {each.subject.id: each.outcome for each in self.ann.told.settlements}
        heads = []
        for id_ in self.ids:
            told = self.stage.explanations.explain(id_)
            self.asked += 1
            outcome = ended.get(id_)
            if outcome is None or isinstance(outcome, Parked):
                assert (told.state, told.outcome) == (State.PARKED, "parked"), told
                if told.place == 1:
                    assert told.expected_at is not None
                    heads.append((round(told.expected_at * US), id_))
            else:
                assert (told.state, told.outcome) == (State.SETTLED, _word(outcome)), told
                self.check_denial(told, outcome)
        return heads

    def check_denial(self, told: Explanation, outcome: Outcome) -> None:
        denied = outcome.denied if isinstance(outcome, Dropped | DeadLettered) else None
        if denied is None:
            assert told.fits_at is None
            return
        assert told.at is not None
        assert told.fits_at is not None
        assert (told.scope, told.limit) == (denied.scope, str(denied.limit))
        assert round((told.fits_at - told.at) * US) == denied.retry_after_us
        assert f"had used {denied.limit.max} of {denied.limit.max}" in told.sentence

    def await_heads(self, at_us: int, ids: list[str]) -> None:
        """Of the heads that are expected first, one goes at that instant, and none a microsecond before."""
        assert at_us > self.stage.clock.now_us
        self.stage.clock.now_us = at_us - 1
        self.ann.run()
        assert not set(ids) & set(self.ann.desk.posts)
        self.stage.clock.now_us = at_us
        self.ann.run()
        assert set(ids) & set(self.ann.desk.posts)
        self.predicted += 1


def _word(outcome: Outcome) -> str:
    match outcome:
        case Sent():
            return "sent"
        case Dropped():
            return "dropped"
        case DeadLettered():
            return "dead"
        case Parked() | Told() | Reported() | Digested() | Hushed():
            raise AssertionError(outcome)
        case _:
            assert_never(outcome)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 30))])
def test_an_explanation_agrees_with_what_happened_and_what_then_happens(redis: Database, seed: int) -> None:
    asker = Asker(redis, seed)
    for _ in range(STEPS):
        asker.step()
    assert asker.asked > 500
    assert asker.predicted >= 2


@pytest.mark.parametrize("seed", range(3))
def test_an_event_that_was_dropped_would_have_fitted_when_it_is_said(redis: Database, seed: int) -> None:
    asker = Asker(redis, seed)
    checked = 0
    while checked < 5:
        id_ = asker.send("goes")
        asker.ann.run()
        told = asker.stage.explanations.explain(id_)
        if told.outcome == "sent":
            asker.stage.clock.forward(asker.random.choice([0.5, 3, 11]))
            continue
        assert told.fits_at is not None
        asker.stage.clock.now_us = round(told.fits_at * US) - 1
        early = asker.send("goes")
        asker.ann.run()
        assert asker.stage.explanations.explain(early).outcome == "dropped"
        asker.stage.clock.now_us += 1
        fitting = asker.send("goes")
        asker.ann.run()
        assert asker.stage.explanations.explain(fitting).outcome == "sent"
        checked += 1

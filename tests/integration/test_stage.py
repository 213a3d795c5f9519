"""A stage finds what does not fit, also where it checks few of many steps."""

from __future__ import annotations

import pytest

from tests.support.servers import Database
from tests.support.stage import CLOSELY, LATER, Stage, check_the_last_step


def break_after(redis: Database, steps: int) -> Stage:
    """A stage that counts an event as sent, after so many steps, which nobody has received."""
    stage = Stage(redis)
    for _ in range(steps):
        stage.look()
    redis.hincrby(stage.keys.totals, "sent", 1)
    return stage


def test_the_first_steps_are_checked_each(redis: Database) -> None:
    stage = break_after(redis, CLOSELY - 1)
    with pytest.raises(AssertionError, match="what was received has ended or is held"):
        stage.look()


def test_of_later_steps_one_in_so_many_is_checked(redis: Database) -> None:
    stage = break_after(redis, CLOSELY)

    def go_on() -> None:
        for _ in range(LATER):
            stage.look()

    with pytest.raises(AssertionError, match="what was received has ended or is held"):
        go_on()


def test_the_last_step_of_a_test_is_checked(redis: Database) -> None:
    break_after(redis, LATER * (CLOSELY // LATER + 1)).look()
    with pytest.raises(AssertionError, match="what was received has ended or is held"):
        check_the_last_step()

"""Digests and notices on a stage: policies, storms, and a worker that sleeps from one instant to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from dispatcher.core.posts import Message
from dispatcher.core.units import US
from tests.support.doubles import START_US
from tests.support.stage import UNPACED, Stage, Worker, policy_of

WINDOW_S: Final = 1_800
DELAY_S: Final = 60
DIGEST: Final = "digest:errors"
NOTICE: Final = "notice:errors"


def telling_policy(
    limits: str = "3/30m",
    global_limits: str = "100/30m",
    on_limit: OnLimit = OnLimit.DIGEST,
    **fields: Any,  # noqa: ANN401 - those of a rule
) -> Policy:
    """A category ``errors`` that digests, in a channel without pace; all others drop, without limits of their own."""
    own = tuple(Limit.parse(part) for part in limits.split(",") if part)
    rule = replace(CategoryRule(own, UNPACED, on_limit, 86_400 * US), **fields)
    return replace(policy_of(global_limits, ""), categories={"errors": rule})


def storm(stage: Stage, count: int, text: str = "disk full", category: str = "errors") -> list[str]:
    """Enqueue so many events with generated ids, which are returned."""
    return [stage.send_unnamed(category, text) for _ in range(count)]


def seconds(stage: Stage) -> float:
    """The time on the stage's clock since it began."""
    return (stage.clock.now_us - START_US) / US


def wait_until(stage: Stage, at_s: float, *workers: Worker) -> None:
    """Let time pass until ``at_s``; the workers sleep as ``take`` tells them, and do what there is to do."""
    end_us = START_US + round(at_s * US)
    while True:
        wakes_us = end_us
        for worker in workers:
            worker.run()
            taken = worker.take(0, 100)
            assert taken.batch == []
            wakes_us = min(wakes_us, taken.again_us())
        stage.collect_tokens()
        if stage.clock.now_us >= end_us:
            return
        assert wakes_us > stage.clock.now_us, "a worker is woken for nothing"
        stage.clock.now_us = min(wakes_us, end_us)


def digest_posts(worker: Worker) -> list[Message]:
    """The messages of digest messages, in order; edits are not among them."""
    return [message for message in worker.desk.messages if ":" in message.event_id]


def texts(worker: Worker) -> list[str]:
    """What digest messages have posted."""
    return [message.text for message in digest_posts(worker)]


def edits(worker: Worker) -> list[str]:
    """What digest messages have edited their messages to."""
    return [message.text for _, _, message in worker.desk.edits]


def tally(stage: Stage, tally_id: str = DIGEST) -> dict[str, str]:
    """What is stored of a tally."""
    return {field.decode(): value.decode() for field, value in stage.redis.hgetall(stage.keys.tally(tally_id)).items()}

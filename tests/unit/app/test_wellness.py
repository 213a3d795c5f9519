"""Whether it is well, and whether more workers would help: what each of the states is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from dispatcher.app.documents.facts import Status
from dispatcher.app.documents.recent import Lately, Recent
from dispatcher.app.documents.wellness import Level, wellness
from dispatcher.app.fleet import WorkerEntry
from dispatcher.core.limits import EVERYTHING, US
from dispatcher.server.writing import WriteRefusal
from dispatcher.store.snapshot import Pause, PausedByHand, Snapshot

NOW_US: Final = 1_000_000 * US
SNAPSHOT: Final = Snapshot(
    now_us=NOW_US, waiting=0, events=0, leased=0, requeued=0, parked=0, timers=0, lines={}, deferred={}, dead_letters=0,
    totals={}, leases={}, cooldowns={}, pause=None,
)  # fmt: skip
IDLE: Final = WorkerEntry("a", "host", 1, "idle", NOW_US / US)
BUSY: Final = IDLE._replace(state="busy")
QUIET: Final = Status(SNAPSHOT, {}, (), [IDLE])


def lately(**ended: int) -> Recent:
    """What ended in the last 30 minutes, by ``OUTCOME_REASON``."""
    pairs = {(name.partition("_")[0], name.partition("_")[2].replace("_", ":")): n for name, n in ended.items()}
    return Recent({"errors": Lately(ended=pairs)})


def test_all_is_well_where_nothing_is_wrong() -> None:
    found = wellness(QUIET)
    assert found.level is Level.WELL
    assert found.said == "It is well. In the last 30 minutes nothing was suppressed."
    assert found.workers == "More workers would not help: nothing waits."


def test_what_limits_suppress_is_their_work_and_no_fault() -> None:
    found = wellness(replace(QUIET, recent=lately(dropped_limit_category=3, dropped_repeat=2, dead_limit_global=1)))
    assert found.level is Level.WELL
    causes = "3 by their own limits, 2 as repeats, 1 by the limit of all"
    assert found.said == f"It is well. In the last 30 minutes 6 events were suppressed: {causes}."


def test_events_that_die_of_something_else_than_a_limit_want_a_look() -> None:
    found = wellness(replace(QUIET, recent=lately(dead_rejected=2, dead_limit_global=1)))
    assert found.level is Level.LOOK
    died, suppressed = "2 events died: 2 rejected.", "1 event was suppressed: 1 by the limit of all."
    assert found.said == f"It works, but in the last 30 minutes {died} {suppressed}"


@pytest.mark.parametrize(
    ("status", "level", "begin"),
    [
        (
            replace(QUIET, refusal=WriteRefusal("its memory is full", "x")),
            Level.ILL,
            "It is not well: the server cannot",
        ),
        (replace(QUIET, workers=[]), Level.LOOK, "No worker runs. Nothing waits."),
        (
            replace(QUIET, workers=[IDLE._replace(alive=False)], snapshot=replace(SNAPSHOT, waiting=1)),
            Level.ILL,
            "It is not well: no worker runs, and 1 event wait",
        ),
        (
            replace(QUIET, snapshot=replace(SNAPSHOT, paused={EVERYTHING: PausedByHand("olga", NOW_US, "a move")})),
            Level.LOOK,
            "Nothing is posted: paused for 0.0s by olga: a move.",
        ),
        (
            replace(QUIET, snapshot=replace(SNAPSHOT, pause=Pause("invalid_auth", "", NOW_US, NOW_US, "operator"))),
            Level.ILL,
            "Nothing is posted: Paused for 0.0s by invalid_auth",
        ),
        (replace(QUIET, snapshot=replace(SNAPSHOT, totals={"received": 1})), Level.ILL, "It is not well: the books do"),
    ],
    ids=["read-only", "no worker", "no worker and work", "by hand", "by Slack", "books"],
)
def test_the_worst_is_told(status: Status, level: Level, begin: str) -> None:
    found = wellness(status)
    assert found.level is level
    assert found.said.startswith(begin)


@pytest.mark.parametrize(
    ("workers", "waiting", "rate", "said"),
    [
        ([], 9, 1.0, "Start a worker: none runs."),
        ([IDLE, BUSY], 900, 1.0, "More workers would not help: 1 of 2 are idle and take what waits."),
        ([BUSY], 900, 100.0, "More workers would hardly help: 900 events wait, and are taken within seconds."),
        (
            [BUSY, BUSY], 9_000, 100.0,
            "More workers would help: all 2 are busy, and 9,000 events wait. At 100 a second they are taken in 1m 30s.",
        ),
        ([BUSY], 9, 0.0, "More workers would help: the one worker is busy, and 9 events wait."),
    ],
)  # fmt: skip
def test_more_workers_help_where_all_are_busy_and_much_waits_for_one(
    workers: list[WorkerEntry], waiting: int, rate: float, said: str
) -> None:
    recent = Recent(rates={"received": rate})
    found = wellness(replace(QUIET, workers=workers, recent=recent, snapshot=replace(SNAPSHOT, waiting=waiting)))
    assert found.workers == said


def test_more_workers_do_not_help_what_waits_for_something_else() -> None:
    counted = {"errors limit": 4, "news limit": 1, "errors pace": 3, "errors cooldown": 1, "errors scheduled": 2}
    snapshot = replace(SNAPSHOT, totals={f"parked {name}": number for name, number in counted.items()})
    assert wellness(replace(QUIET, snapshot=snapshot)).workers == (
        "More workers would not help: no event waits for one (5 for room in a limit, 4 for a channel, 2 for its time)."
    )

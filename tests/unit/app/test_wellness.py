"""Whether it is well, and whether more workers would help: what each of the states is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from dispatcher.app.documents.facts import Status
from dispatcher.app.documents.recent import Lately, Recent
from dispatcher.app.documents.wellness import Level, wellness
from dispatcher.app.fleet import WorkerEntry
from dispatcher.core.limits import EVERYTHING
from dispatcher.core.units import US
from dispatcher.server.writing import WriteRefusal
from dispatcher.store.snapshot import Pause, PausedByHand, Snapshot

NOW_US: Final = 1_000_000 * US
SNAPSHOT: Final = Snapshot(
    now_us=NOW_US, waiting=0, events=0, leased=0, requeued=0, parked=0, timers=0, lines={}, deferred={}, dead_letters=0,
    totals={}, leases={}, cooldowns={}, pause=None,
)  # fmt: skip
IDLE: Final = WorkerEntry("a", "host", 1, "idle", NOW_US / US)
BUSY: Final = IDLE._replace(state="busy")
SUSPENDED: Final = IDLE._replace(state="suspended")
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


def test_of_what_died_the_most_frequent_reason_comes_first() -> None:
    found = wellness(replace(QUIET, recent=lately(dead_expired=1, dead_rejected=3, dead_invalid=2)))
    died = "6 events died: 3 rejected, 2 invalid, 1 expired."
    assert found.said == f"It works, but in the last 30 minutes {died} Nothing was suppressed."


def test_dead_letters_about_what_was_over_are_no_reason_to_look() -> None:
    assert wellness(replace(QUIET, recent=lately(dead_resolved=2))) == wellness(QUIET)


def test_what_an_operator_cancelled_or_a_recovery_ended_is_not_suppressed() -> None:
    recent = lately(dropped_cancelled=4, dropped_resolved=3, digested_resolved=2, dropped_unposted=1)
    assert wellness(replace(QUIET, recent=recent)) == wellness(QUIET)


def test_events_that_were_too_many_for_their_line_are_suppressed() -> None:
    found = wellness(replace(QUIET, recent=lately(dead_overflow=2)))
    said = "2 events were suppressed: 2 because too many waited for room."
    assert found.said == f"It is well. In the last 30 minutes {said}"


@pytest.mark.parametrize(
    ("status", "level", "said"),
    [
        (
            replace(QUIET, refusal=WriteRefusal("its memory is full", "x")),
            Level.ILL,
            "It is not well: the server cannot be written to. Its memory is full.",
        ),
        (replace(QUIET, workers=[]), Level.LOOK, "No worker runs. Nothing waits."),
        (
            replace(QUIET, workers=[IDLE._replace(alive=False)], snapshot=replace(SNAPSHOT, waiting=1)),
            Level.ILL,
            "It is not well: no worker runs, and 1 event waits.",
        ),
        (
            replace(QUIET, workers=[SUSPENDED, SUSPENDED, BUSY._replace(alive=False)]),
            Level.LOOK,
            "Every worker is suspended. Nothing waits. To do: rq resume.",
        ),
        (
            replace(QUIET, workers=[SUSPENDED, SUSPENDED], snapshot=replace(SNAPSHOT, waiting=9_000)),
            Level.ILL,
            "It is not well: every worker is suspended, and 9,000 events wait. To do: rq resume.",
        ),
        (
            replace(QUIET, snapshot=replace(SNAPSHOT, paused={EVERYTHING: PausedByHand("olga", NOW_US, "a move")})),
            Level.LOOK,
            "Nothing is posted: paused for 0.0s by olga: a move.",
        ),
        (
            replace(QUIET, snapshot=replace(SNAPSHOT, pause=Pause("invalid_auth", "", NOW_US, NOW_US, "operator"))),
            Level.ILL,
            (
                "Nothing is posted: posting stopped 0.0s ago, after invalid_auth: Slack does not accept the token or "
                "this IP address. To do: Put the bot token in DISPATCHER_SLACK_TOKEN and restart, or in its file and "
                "send SIGHUP."
            ),
        ),
        (
            replace(QUIET, snapshot=replace(SNAPSHOT, totals={"received": 1})),
            Level.ILL,
            "It is not well: the books do not balance. Received is 1, but outcomes + parked + in flight is 0.",
        ),
    ],
    ids=[
        "read-only",
        "no worker",
        "no worker and work",
        "suspended",
        "suspended and work",
        "by hand",
        "by Slack",
        "books",
    ],
)
def test_the_worst_is_told(status: Status, level: Level, said: str) -> None:
    found = wellness(status)
    assert found.level is level
    assert found.said == said


BY_HAND: Final = {EVERYTHING: PausedByHand("olga", NOW_US)}


@pytest.mark.parametrize(
    ("status", "level", "said"),
    [
        (
            replace(QUIET, workers=[], snapshot=replace(SNAPSHOT, paused=BY_HAND, waiting=1)),
            Level.ILL,
            "It is not well: no worker runs, and 1 event waits.",
        ),
        (
            replace(QUIET, snapshot=replace(SNAPSHOT, paused=BY_HAND, totals={"received": 1})),
            Level.ILL,
            "It is not well: the books do not balance. Received is 1, but outcomes + parked + in flight is 0.",
        ),
        (
            replace(QUIET, workers=[], snapshot=replace(SNAPSHOT, totals={"received": 1})),
            Level.ILL,
            "It is not well: the books do not balance. Received is 1, but outcomes + parked + in flight is 0.",
        ),
        (
            replace(QUIET, workers=[], snapshot=replace(SNAPSHOT, paused=BY_HAND)),
            Level.LOOK,
            "No worker runs. Nothing waits.",
        ),
        (
            replace(QUIET, recent=lately(dead_rejected=1), snapshot=replace(SNAPSHOT, paused=BY_HAND)),
            Level.LOOK,
            "Nothing is posted: paused for 0.0s by olga.",
        ),
    ],
    ids=["no worker and work", "books", "books and no worker", "no worker", "a dead letter"],
)
def test_of_several_the_worst_is_told_and_a_pause_by_hand_hides_nothing(
    status: Status, level: Level, said: str
) -> None:
    found = wellness(status)
    assert (found.level, found.said) == (level, said)


def test_a_pause_by_hand_does_not_hide_that_slack_refuses_the_token() -> None:
    by_slack = replace(SNAPSHOT, pause=Pause("invalid_auth", "", NOW_US, NOW_US, "operator"))
    found = wellness(replace(QUIET, snapshot=replace(by_slack, paused=BY_HAND)))
    assert found == wellness(replace(QUIET, snapshot=by_slack))


@pytest.mark.parametrize(
    ("workers", "waiting", "rate", "said"),
    [
        ([], 9, 1.0, "Start a worker: none runs."),
        ([IDLE, BUSY], 900, 1.0, "More workers would not help: 1 of 2 is idle and takes what waits."),
        ([IDLE, IDLE], 1, 1.0, "More workers would not help: 2 of 2 are idle and take what waits."),
        ([SUSPENDED, SUSPENDED], 9_000, 1.0, "More workers would not help: 2 of 2 are suspended."),
        ([BUSY, SUSPENDED], 9_000, 1.0, "More workers would not help: 1 of 2 is suspended."),
        ([BUSY], 900, 100.0, "More workers would hardly help: 900 events wait, and will be taken within seconds."),
        ([BUSY], 1, 100.0, "More workers would hardly help: 1 event waits, and will be taken within seconds."),
        (
            [BUSY, BUSY], 9_000, 100.0,
            "More workers would help: all 2 are busy, and 9,000 events wait. At 100 a second that takes 1m 30s.",
        ),
        ([BUSY], 9, 0.0, "More workers would help: the one worker is busy, and 9 events wait."),
        ([BUSY], 1, 0.0, "More workers would help: the one worker is busy, and 1 event waits."),
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


def test_what_a_pause_a_silence_or_quiet_hours_parked_waits_for_its_turn_once_these_are_over() -> None:
    counted = {f"parked errors {why}": count for why, count in (("paused", 5), ("silenced", 2), ("quiet", 1))}
    parked = replace(SNAPSHOT, totals=counted)
    said = "More workers would not help: no event waits for one"
    assert wellness(replace(QUIET, snapshot=parked)).workers == f"{said} (8 for its turn)."
    of_category = replace(parked, paused={"errors": PausedByHand("olga", NOW_US)})
    assert wellness(replace(QUIET, snapshot=of_category)).workers == (
        f"{said} (5 for the end of a pause, 3 for its turn)."
    )

"""Log entries as a person reads them on a terminal: one line where there is room, nothing said twice."""

from __future__ import annotations

import io
from typing import Any

import pytest

from dispatcher.core.event import Event
from dispatcher.core.limits import Denied, Limit, Reason
from dispatcher.core.posts import Receipt
from dispatcher.core.states import DeadLettered, Dropped, Leased, Outcome, Parked, Place, Sent, Settlement, Terms
from dispatcher.logs.event_log import build_event_log
from dispatcher.logs.terminal_line import TerminalLine

AT = "2026-11-20T22:08:35.123456Z"
DENIED = Denied("category:errors", Limit.parse("10/30m"), 1_799_400_000)


class Tty(io.StringIO):
    """A terminal as far as a writer can tell."""

    def isatty(self) -> bool:
        return True


def line(columns: int | None = None, **entry: Any) -> str:  # noqa: ANN401 - any facts
    """One entry, on a terminal of so many columns or in a file."""
    stream = io.StringIO() if columns is None else Tty()
    return TerminalLine(stream, in_colour=False)(None, "info", {"level": "info", **entry, "timestamp": AT})


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Sent(Receipt("C1", "1732100000.123456")), "event.settled errors sent channel=#ops id=disk-1"),
        (
            Dropped(DENIED, Reason.LIMIT_CATEGORY),
            "event.settled errors dropped limit:category 10/30m room_in=29m59s id=disk-1",
        ),
        (
            DeadLettered(Reason.REJECTED, "no such channel", "channel_not_found"),
            'event.settled errors dead rejected channel=#ops code=channel_not_found id=disk-1 detail="no such channel"',
        ),
        (
            Parked(Place.TIMER, Reason.RETRY, 2_000_000, "http_502"),
            "event.parked  errors retry channel=#ops code=http_502 retry_in=2.0s id=disk-1",
        ),
        (
            Parked(Place.LINE, Reason.COOLDOWN, 2_000_000, "ratelimited", detail="said once, by slack.paused"),
            "event.parked  errors cooldown channel=#ops code=ratelimited retry_in=2.0s id=disk-1",
        ),
    ],
    ids=["sent", "dropped", "dead", "parked", "cooling"],
)
def test_a_settlement_is_shown_in_one_short_line(outcome: Outcome, said: str) -> None:
    stream = io.StringIO()
    log = build_event_log(style="console", stream=stream).of("host.7.abc")
    leased = Leased("job-1", Event("errors", "x", id="disk-1"), 1, 0)
    log.settled([Settlement(leased, Terms("#ops", None, (), 1, configured=True), outcome)])
    time, _, rest = stream.getvalue().rstrip("\n").partition(" ")
    assert (len(time), time[-1], rest) == (len("22:08:35Z"), "Z", said)


def test_a_scope_that_the_reason_does_not_name_is_said() -> None:
    facts: dict[str, Any] = {"event_id": "e", "category": "errors", "outcome": "dropped", "reason": "limit:label"}
    assert line(event="event.settled", scope="label:host=db1", **facts) == (
        '22:08:35Z event.settled errors dropped limit:label scope="label:host=db1" id=e'
    )


def test_since_and_until_are_times_of_the_clock_with_the_date_of_another_day() -> None:
    facts: dict[str, Any] = {"event_id": "e", "category": "errors", "outcome": "dropped", "reason": "quiet"}
    assert line(event="event.settled", since=1_795_212_000.0, until=1_795_248_000, **facts) == (
        "22:08:35Z event.settled errors dropped quiet since=22:00:00Z until=2026-11-21T08:00:00Z id=e"
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(9.94, "9.9s"), (59.4, "59s"), (60, "1m0s"), (3_599, "59m59s"), (3_600, "1h0m"), (7_380, "2h3m")],
)
def test_the_time_until_there_is_room_is_said_in_its_two_largest_units(seconds: float, said: str) -> None:
    shown = line(event="event.settled", event_id="e", outcome="dropped", reason="repeat", retry_after_s=seconds)
    assert shown == f"22:08:35Z event.settled dropped repeat room_in={said} id=e"


def test_a_generated_id_is_cut_and_a_chosen_one_is_not() -> None:
    cut = line(event="lease.lost", event_id="6f1c2ea9-0123-4567-89ab-0123456789ab")
    assert cut == "22:08:35Z lease.lost id=6f1c2ea9…"
    assert line(event="lease.lost", event_id="deploy-2026") == "22:08:35Z lease.lost id=deploy-2026"


def test_a_warning_says_so_and_numbers_are_short() -> None:
    assert line(event="redis.found", level="warning", away_s=3.14159, given_back=2) == (
        "22:08:35Z warning redis.found away_s=3.1 given_back=2"
    )


def test_a_terminal_gets_lines_no_longer_than_it_is_wide_and_a_file_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    facts: dict[str, Any] = {
        "event": "slack.paused",
        "level": "error",
        "code": "token_revoked",
        "detail": "set a new token " * 5,
    }
    shown = line(50, **facts).splitlines()
    assert shown[0] == "22:08:35Z error slack.paused code=token_revoked"
    assert len(shown) > 2
    assert max(map(len, shown)) <= 50
    assert all(row.startswith(" " * 10) for row in shown[1:])
    assert len(line(**facts).splitlines()) == 1


def test_on_a_terminal_a_worker_that_starts_does_not_repeat_the_head_of_its_command() -> None:
    facts: dict[str, Any] = {
        "event": "worker.started",
        "worker": "h.7.abc",
        "server": "unix:/s",
        "queue": "q",
        "limits": "l",
    }
    assert line(100, **facts) == "22:08:35Z worker.started worker=h.7.abc"
    assert "queue=q" in line(**facts)


def test_a_value_in_quotes_shows_where_it_ends() -> None:
    shown = line(event="worker.failed", detail='C:\\a said "x" id=forged', queue="a\\b")
    assert shown == r'22:08:35Z worker.failed queue=a\b detail="C:\\a said \"x\" id=forged"'


def test_a_trace_stands_below_its_line() -> None:
    shown = line(event="worker.failed", level="error", exception="Traceback\n  here")
    assert shown == "22:08:35Z error worker.failed\nTraceback\n  here"

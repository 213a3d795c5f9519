"""Faults by chance and outages at the local Slack: the same ones for the same seed, and each what the table says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.core.posts import Ambiguous, PostResult, Receipt
from dispatcher.slack.taxonomy import TABLE, Meaning, Row, problem, row_for
from dispatcher.stand_in import (
    EVERY_ROW,
    TRANSIENT,
    Chance,
    Fault,
    Faults,
    Hang,
    Outage,
    Reset,
    Setup,
    SlackError,
    StandIn,
    TooManyRequests,
    landed,
    not_landed,
)
from dispatcher.stand_in.chance import faults_of
from dispatcher.stand_in.faults import POST
from tests.support.processes import until
from tests.support.slack import MESSAGE, Clock, call, post, request, token_sink, webhook_sink

ONLY = [landed(Reset()), not_landed(Reset()), not_landed(SlackError("fatal_error"))]
BELOW_ANY_ANSWER = {
    "dns_failed",
    "connection_refused",
    "connect_timeout",
    "proxy_failed",
    "tls_failed",
    "too_late",
    "connection_closed",
    "console_closed",
    "console_failed",
    "answer_too_large",
    "internal",
}


def drawn(chance: Chance, count: int, kind: str = POST) -> list[Fault | None]:
    return [chance.draw(kind) for _ in range(count)]


def test_the_same_seed_befalls_the_same_calls_and_another_one_others() -> None:
    fates = drawn(Chance(7, 0.3), 200)
    assert fates == drawn(Chance(7, 0.3), 200)
    assert fates != drawn(Chance(8, 0.3), 200)
    assert 40 <= sum(fate is not None for fate in fates) <= 80


def test_a_larger_share_befalls_the_same_calls_and_more() -> None:
    few, many = drawn(Chance(7, 0.2), 300), drawn(Chance(7, 0.5), 300)
    assert all(fate in (None, other) for fate, other in zip(few, many, strict=True))
    assert sum(fate is None for fate in many) < sum(fate is None for fate in few)


def test_kinds_of_calls_do_not_disturb_each_other() -> None:
    chance = Chance(7, 0.5, ONLY)
    drawn(chance, 20, "conversations.history")
    assert drawn(chance, 50) == drawn(Chance(7, 0.5, ONLY), 50)
    assert drawn(chance, 50, "auth.test") == [None] * 50
    assert drawn(Chance(7, 1.0, ONLY, kinds=["auth.test"]), 3) == [None] * 3


def test_a_reset_begins_anew() -> None:
    chance = Chance(7, 0.5)
    fates = drawn(chance, 50)
    chance.reset()
    assert drawn(chance, 50) == fates


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (1.0, 50)])
def test_a_share_may_be_none_or_all(share: float, expected: int) -> None:
    assert sum(fate is not None for fate in drawn(Chance(7, share), 50)) == expected


@pytest.mark.parametrize(
    ("share", "faults", "said"),
    [(1.1, ONLY, "is 1.1, expected 0 to 1"), (-0.1, ONLY, "is -0.1"), (0.5, [], "no faults to choose from")],
)
def test_an_invalid_chance_is_refused(share: float, faults: list[Fault], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Chance(1, share, faults)


def test_every_row_of_the_table_has_its_faults_but_those_below_any_answer() -> None:
    silent = [row.codes[0] for row in TABLE if not faults_of(row)]
    assert set(silent) == BELOW_ANY_ANSWER
    assert {fault for row in TABLE for fault in faults_of(row)} <= set(EVERY_ROW)
    assert set(TRANSIENT) < set(EVERY_ROW)
    meant = {row_for(fault.reply.code).meaning for fault in TRANSIENT if isinstance(fault.reply, SlackError)}
    assert meant == {Meaning.COOL_DOWN, Meaning.AGAIN, Meaning.MAYBE}


@pytest.fixture(scope="module")
def patient_slack() -> Iterator[StandIn]:
    with StandIn() as slack:
        yield slack


@pytest.mark.parametrize("row", [row for row in TABLE if faults_of(row)], ids=lambda row: str(row.codes[0]))
def test_a_fault_of_a_row_comes_to_what_the_row_means(patient_slack: StandIn, row: Row) -> None:
    sink = token_sink(patient_slack, timeout_s=0.2 if "reply_timeout" in row.codes else 5.0)
    for fault in faults_of(row):
        before = len(patient_slack.ledger)
        patient_slack.faults.add(fault)
        assert type(sink.post(MESSAGE)) is kind_of(row), fault
        assert len(patient_slack.ledger) - before == fault.landed, fault


def kind_of(row: Row) -> type[PostResult]:
    code = row.codes[0]
    return type(problem(code.replace("http_5*", "http_500").replace("*", "x")))


def test_a_fault_of_no_row_is_an_answer_in_time(patient_slack: StandIn) -> None:
    sink = token_sink(patient_slack)
    for fault in set(EVERY_ROW) - {fault for row in TABLE for fault in faults_of(row)}:
        patient_slack.faults.add(fault)
        assert isinstance(sink.post(MESSAGE), Receipt)


def test_a_post_that_landed_is_in_the_ledger_whatever_its_poster_was_told() -> None:
    quick = [fault for fault in EVERY_ROW if not isinstance(fault.reply, Hang)]
    with StandIn(faults=Faults(Chance(7, 0.6, quick))) as slack:
        sink = token_sink(slack, timeout_s=1.0)
        fates = drawn(Chance(7, 0.6, quick), 150)
        told = [sink.post(MESSAGE) for _ in fates]
        assert len(slack.ledger) == sum(fate is None or fate.landed for fate in fates)
        assert slack.faults.played == sum(fate is not None for fate in fates)
        wrong = [
            (fate, result)
            for fate, result in zip(fates, told, strict=True)
            if isinstance(result, Receipt) and fate is not None and not fate.landed
        ]
        assert wrong == []
        assert any(isinstance(result, Ambiguous) for result in told)


@pytest.mark.parametrize("method", ["conversations.history", "conversations.replies", "chat.update"])
def test_readings_and_edits_are_befallen_too(method: str) -> None:
    fault = landed(SlackError("fatal_error"))
    with StandIn(faults=Faults(Chance(1, 1.0, [fault], kinds=[method]))) as slack:
        head = post(slack, text="old")
        answer = call(slack, method, channel=head["channel"], ts=head["ts"], text="new").json
        assert answer == {"ok": False, "error": "fatal_error"}
        assert slack.ledger.posted()[0].edits == (method == "chat.update")


def test_a_queued_fault_goes_before_chance_and_a_reset_clears_both() -> None:
    dice = Chance(1, 1.0, [not_landed(SlackError("fatal_error"))])
    with StandIn(faults=Faults(dice)) as slack:
        slack.faults.add(not_landed(SlackError("internal_error")), not_landed(TooManyRequests("3")))
        assert [post(slack)["error"] for _ in range(3)] == ["internal_error", "ratelimited", "fatal_error"]
        expected = {"internal_error, not landed": 1, "too many requests, not landed": 1, "fatal_error, not landed": 1}
        assert request(slack.url + "ledger").json["faults"] == expected
        slack.faults.add(not_landed(SlackError("internal_error")))
        request(slack.url + "reset", "")
        assert slack.faults.played == 0
        assert post(slack)["error"] == "fatal_error"


def down(slack: StandIn) -> str | int:
    """What a post comes to: a status, or how the connection failed."""
    try:
        return call(slack, "chat.postMessage", channel="#ops", text="hi").status
    except OSError as error:
        return type(error).__name__


def test_an_outage_refuses_connections_from_and_to_an_instant() -> None:
    clock = Clock()
    with StandIn(setup=Setup(outages=(Outage(10, 20), Outage(30, 31)), clock=clock)) as slack:
        assert down(slack) == 200
        for after, expected in ((10, "ConnectionRefusedError"), (20, 200), (30, "ConnectionRefusedError"), (31, 200)):
            clock.now = Clock.now + after
            until(lambda expected=expected: down(slack) == expected, f"{expected} after {after} s")  # type: ignore[misc] # a default hides the type
        assert isinstance(token_sink(slack).post(MESSAGE), Receipt)


def test_a_stop_during_an_outage_ends_it_too() -> None:
    clock = Clock()
    slack = StandIn(setup=Setup(outages=(Outage(0, 5),), clock=clock))
    with slack:
        assert down(slack) == "ConnectionRefusedError"
    clock.now += 5
    assert down(slack) == "ConnectionRefusedError"


def test_an_outage_may_answer_503() -> None:
    clock = Clock()
    with StandIn(setup=Setup(outages=(Outage(10, 20, refuses=False),), clock=clock)) as slack:
        slack.faults.add(not_landed(SlackError("fatal_error")))
        answers: list[Any] = []
        for after in (10, 19.9):
            clock.now = Clock.now + after
            answers += [down(slack), type(webhook_sink(slack).post(MESSAGE))]
        assert answers == [503, Ambiguous] * 2
        clock.now = Clock.now + 20
        assert post(slack)["error"] == "fatal_error"
        assert slack.faults.counts["503, not landed"] == 4
        assert len(slack.ledger) == 0


@pytest.mark.parametrize(("begins", "ends"), [(5, 5), (5, 4), (-1, 4)])
def test_an_outage_that_is_no_span_is_refused(begins: float, ends: float) -> None:
    with pytest.raises(ValueError, match=f"from {begins} to {ends}, expected a later end"):
        Outage(begins, ends)

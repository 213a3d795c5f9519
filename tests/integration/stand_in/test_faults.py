"""Tests of what goes wrong at the local Slack on purpose, over real HTTP."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from dispatcher.stand_in import (
    Close,
    CutBody,
    Drip,
    Fault,
    FaultReply,
    Hang,
    Held,
    Hold,
    Page,
    Reset,
    Setup,
    SlackError,
    Slow,
    StandIn,
    Text,
    TooManyRequests,
    landed,
    not_landed,
)
from tests.support.processes import until
from tests.support.slack import Clock, call, post, request


@pytest.mark.parametrize(
    "reply",
    [
        SlackError("fatal_error"),
        Page(503),
        TooManyRequests("7"),
        Text(""),
        Text("{nope"),
        CutBody(),
        Reset(),
        Close(),
        Drip(interval_s=0.0001, at_once=100),
    ],
    ids=repr,
)
def test_a_fault_says_by_itself_whether_the_post_landed(slack: StandIn, reply: FaultReply) -> None:
    slack.faults.add(landed(reply), not_landed(reply))
    for total in (1, 1):
        with suppress(OSError, http.client.HTTPException, ValueError):  # the fault's doing
            post(slack)
        assert len(slack.ledger) == total
    assert post(slack)["ok"] is True
    assert slack.faults.played == 2


@pytest.mark.parametrize(
    "fault", [landed(TooManyRequests("7")), not_landed(TooManyRequests("7"))], ids=["landed", "not"]
)
def test_a_post_within_the_retry_after_of_a_fault_is_counted(fault: Fault) -> None:
    clock = Clock()
    with StandIn(setup=Setup(clock=clock)) as slack:
        slack.faults.add(fault, landed(TooManyRequests("soon")), landed(TooManyRequests(None)))
        for _ in range(3):
            call(slack, "chat.postMessage", channel="ops", text="hi")
            clock.now += 3.5
        assert slack.workspace.traffic.ignored == {"#ops": 1}


def test_a_failed_answer_that_arrives_whole_says_so(slack: StandIn) -> None:
    for reply in (Slow(0.0), Drip(0.0)):
        slack.faults.add(not_landed(reply), not_landed(reply), landed(reply))
        assert post(slack) == {"ok": False, "error": "internal_error"}
        refusal = request(slack.webhook_url, '{"text": "hi"}')
        assert (refusal.status, refusal.body) == (500, "rollup_error")
        assert post(slack)["ok"] is True
    assert len(slack.ledger) == 2


def test_a_slow_answer_comes_in_the_end(slack: StandIn) -> None:
    slack.faults.add(landed(Slow(0.05)))
    began = time.monotonic()
    assert post(slack)["ok"] is True
    assert time.monotonic() - began >= 0.05


def test_faults_of_another_method_leave_posts_alone(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("fatal_error")), kind="auth.test")
    assert post(slack)["ok"] is True
    assert call(slack, "auth.test").json["error"] == "fatal_error"


def test_a_held_answer_comes_when_it_is_released(slack: StandIn) -> None:
    hold = Hold()
    slack.faults.add(landed(Held(hold)))
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(post(slack)))
    caller.start()
    hold.wait_for_arrival()
    assert (len(slack.ledger), answers) == (1, [])
    hold.release()
    caller.join(5)
    assert answers[0]["ok"] is True


def test_a_hold_says_when_nobody_came() -> None:
    with pytest.raises(TimeoutError, match="no call arrived"):
        Hold().wait_for_arrival(0.01)


def test_down_means_refused_and_back_means_the_same_port_and_ledger(slack: StandIn) -> None:
    post(slack)
    with slack.down(), pytest.raises(ConnectionRefusedError):
        post(slack)
    assert post(slack)["ok"] is True
    assert len(slack.ledger) == 2


@pytest.mark.parametrize("reply", [Hang(), Held(Hold()), Drip(60), Slow(60)], ids=["hang", "held", "drip", "slow"])
def test_a_stop_waits_for_no_caller(reply: FaultReply) -> None:
    slack = StandIn()
    slack.start()
    slack.faults.add(landed(reply))
    with socket.create_connection(("127.0.0.1", slack.port), 5) as idle, idle.makefile("rb") as answers:
        body = b'{"channel": "#ops", "text": "hi"}'
        head = (
            "POST /api/chat.postMessage HTTP/1.1\r\nContent-Type: application/json\r\n"
            f"Host: 127.0.0.1:{slack.port}\r\n"
            f"Authorization: Bearer {slack.token}\r\nContent-Length: {len(body)}"
        )
        idle.sendall(head.encode() + b"\r\n\r\n" + body)
        until(lambda: len(slack.ledger), "the call, whose caller waits from then on")
        began = time.monotonic()
        slack.stop()
        assert time.monotonic() - began < 2
        answers.read()
    slack.stop()

"""Each row of the error table over HTTP: what an answer makes of an event, of its attempt and of its slots.

The worker's core, the store and the sink are the real ones; only time is made up.
"""

from __future__ import annotations

from typing import Final

import pytest

from dispatcher.core.states import GRACE_US, Sent
from dispatcher.core.units import US
from dispatcher.slack.credentials import BotToken
from dispatcher.slack.sink import SlackSink
from dispatcher.slack.taxonomy import TABLE, Meaning, Row, row_for
from dispatcher.stand_in import Drip, Fault, Hang, SlackError, StandIn, TooManyRequests, not_landed
from dispatcher.stand_in.chance import faults_of
from tests.support.slack import slack_sink, token_sink, webhook_sink
from tests.support.stage import Stage, Worker

OF_WEBHOOKS: Final = (
    "invalid_token", "no_service", "no_active_hooks", "team_disabled", "no_team", "channel_not_found",
    "channel_is_archived", "action_prohibited", "posting_to_general_channel_denied", "invalid_payload", "rate_limited",
    "internal_error",
)  # fmt: skip
SCOPES: Final = ("global", "category:errors")
SHORT_S: Final = 0.3


def worker_of(stage: Stage, sink: SlackSink) -> Worker:
    worker = stage.worker()
    worker.desk = sink  # type: ignore[assignment]  # the real one takes the double's place
    return worker


def post(worker: Worker) -> None:
    """One event, posted once."""
    worker.stage.send("x", channel="#ops")
    (started,) = worker.go()
    worker.deliver([started])


def owners(stage: Stage) -> list[set[str]]:
    """Whose slots there are."""
    return [set(stage.slots(scope)) for scope in SCOPES]


def holders(stage: Stage) -> list[set[str]]:
    """Whose slots are held."""
    return [set(stage.held(scope)) for scope in SCOPES]


def check_meaning(stage: Stage, row: Row, code: str | None) -> None:
    """What follows from an answer, at once."""
    if row.meaning in {Meaning.ROUTE, Meaning.CONTENT}:
        (letter,) = stage.letters()
        assert (letter["reason"], letter["attempts"]) == ("rejected", "1")
        assert letter["code"] == code
        assert letter["detail"].startswith(row.told)
        assert owners(stage) == [set(), set()], "given back"
        assert stage.snapshot().events == 0
        return
    header, snapshot = stage.header("x"), stage.snapshot()
    uses_attempt = row.meaning in {Meaning.LATER, Meaning.AGAIN, Meaning.MAYBE}
    assert header["attempt"] == uses_attempt
    assert owners(stage) == [{"x"}, {"x"}]
    assert holders(stage) == ([set(), set()] if row.meaning is Meaning.MAYBE else [{"x"}, {"x"}])
    assert (header.get("unconfirmed"), stage.letters()) == (0 if row.meaning is Meaning.MAYBE else None, [])
    in_line = row.meaning is Meaning.COOL_DOWN
    assert (stage.line("#ops"), snapshot.timers) == ((["x"], 0) if in_line else ([], 1))
    assert set(snapshot.cooldowns) == ({"#ops"} if row.meaning is Meaning.COOL_DOWN else set())
    assert (snapshot.pause.code if snapshot.pause else None) == (code if row.meaning is Meaning.OPERATOR else None)


def go_well(worker: Worker) -> tuple[bool, int]:
    """From now on Slack answers as it should; whether a scan found the post, and how many may stand beside it."""
    clock = worker.stage.clock
    clock.now_us = max([clock.now_us, *worker.stage.snapshot().cooldowns.values()])
    for _ in range(5):
        clock.now_us += 3 * GRACE_US
        worker.run()
    settlement = worker.told.settlements[-1]
    assert isinstance(settlement.outcome, Sent), f"it waits still: {settlement.outcome}"
    return settlement.outcome.found, settlement.perhaps_posted


CASES: Final = [
    pytest.param(row, fault, id=f"{row.codes[0]}: {fault}", marks=pytest.mark.slow if nth else ())
    for row in TABLE
    for nth, fault in enumerate(dict.fromkeys(faults_of(row)))
]
"""The short suite has one fault of each row."""


@pytest.mark.parametrize(("row", "fault"), CASES)
def test_each_row_of_the_table(slack: StandIn, stage: Stage, row: Row, fault: Fault) -> None:
    is_late = isinstance(fault.reply, Hang | Drip)
    ann = worker_of(stage, token_sink(slack, timeout_s=SHORT_S if is_late else 5))
    slack.faults.add(fault)
    post(ann)
    check_meaning(stage, row, fault.reply.code if isinstance(fault.reply, SlackError) else None)
    if isinstance(fault.reply, TooManyRequests):
        assert stage.snapshot().cooldowns["#ops"] == stage.clock.now_us + int(fault.reply.retry_after or 0) * US
    elif row.meaning is Meaning.COOL_DOWN:
        assert stage.snapshot().cooldowns["#ops"] == stage.clock.now_us + row.cool_down_us
    assert len(slack.ledger) == fault.landed
    if stage.letters():
        return
    sent = go_well(ann)
    assert (len(slack.ledger), stage.total("sent"), stage.snapshot().events) == (1, 1, 0)
    assert sent == (fault.landed, 0)
    assert owners(stage) == [{"x"}, {"x"}], "a retry takes no second slot"


@pytest.mark.parametrize("code", OF_WEBHOOKS)
def test_each_row_through_a_webhook(slack: StandIn, stage: Stage, code: str) -> None:
    ann = worker_of(stage, webhook_sink(slack))
    reply = TooManyRequests("3") if code == "rate_limited" else SlackError(code)
    slack.faults.add(not_landed(reply))
    post(ann)
    check_meaning(stage, row_for(code), code)
    if stage.letters():
        return
    sent = go_well(ann)
    is_maybe = row_for(code).meaning is Meaning.MAYBE
    assert (len(slack.ledger), stage.total("sent")) == (1, 1)
    assert sent == (False, is_maybe), "a copy may stand there: nobody can look"
    assert owners(stage) == [{"x", "x#1"}] * 2 if is_maybe else [{"x"}] * 2


def broken(slack: StandIn, code: str, monkeypatch: pytest.MonkeyPatch) -> SlackSink:
    """A sink whose requests never leave."""
    url = {
        "connection_refused": slack.base_url,
        "dns_failed": "http://no-such-host.invalid/api/",
        "tls_failed": slack.base_url.replace("http:", "https:"),
        "proxy_failed": "https://slack.invalid/api/",
    }[code]
    if code == "proxy_failed":
        monkeypatch.setenv("HTTPS_PROXY", slack.url)
    return slack_sink(BotToken(slack.token), base_url=url, timeout_s=5)


@pytest.mark.parametrize("code", ["connection_refused", "dns_failed", "tls_failed", "proxy_failed"])
def test_each_row_of_a_request_that_never_left(
    slack: StandIn, stage: Stage, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = worker_of(stage, broken(slack, code, monkeypatch))
    if code == "connection_refused":
        slack.go_down()
    post(ann)
    if code == "connection_refused":
        slack.come_back()
    check_meaning(stage, row_for(code), code)
    assert ann.told.settlements[-1].outcome.code == code  # type: ignore[union-attr]  # it is parked
    ann.desk = token_sink(slack)  # type: ignore[assignment]  # as above
    go_well(ann)
    assert (len(slack.ledger), stage.total("sent")) == (1, 1)
    assert owners(stage) == [{"x"}, {"x"}]

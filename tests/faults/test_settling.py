"""Whatever a post or a scanned comes to, and whatever else is the case then: it is settled, and the fleet goes on."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import pytest

from dispatcher.core.posts import (
    Ambiguous,
    Message,
    Paused,
    PostResult,
    RateLimitedBySlack,
    Receipt,
    Rejected,
    Retryable,
)
from dispatcher.core.states import Absent, ScanLater, ScanResult, Search, Unreadable
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from tests.support.doubles import Desk
from tests.support.quiet_stage import QuietStage
from tests.support.servers import Database
from tests.support.stage import Stage, Worker

DOWN: Final = Retryable("connection_refused", "refused")
SEEDS: Final = (2, 12, 29)
"""With these, edits of several digests do not leave, so that the last attempt of one is the fleet's fifth in a row."""

DIGESTING: Final = """
global: {limits: []}
channels: {default: {pace: none}}
defaults: {limits: [100/30m]}
categories:
  errors: {limits: [2/30m], on_limit: digest, digest_delay: 60s}
"""


def until_drained(stage: Stage, worker: Worker, step_s: float = 5.0, steps: int = 1_000) -> None:
    """Time passes, and the worker takes, until nothing is left."""
    for _ in range(steps):
        worker.run()
        snapshot = stage.snapshot()
        if snapshot.events + snapshot.waiting == 0:
            return
        stage.clock.forward(step_s)
    raise AssertionError(f"something is left: {stage.snapshot()}")


def outcomes(stage: Stage) -> dict[str, int]:
    """The totals, without categories."""
    return {name: count for name, count in stage.snapshot().totals.items() if " " not in name}


# A digest whose last attempt fails as the fleet's fifth post in a row


@pytest.fixture
def stage(redis: Database) -> Stage:
    return QuietStage(redis, DIGESTING)


def settle_the_last_failure(stage: Stage) -> Worker:
    """Bring it about; returns the worker that has settled it. Slack is not reached."""
    worker = stage.worker()
    stage.send(*(f"e{n}" for n in range(5)))
    worker.run()
    assert outcomes(stage)["digested"] == 4

    def fail_the_digest(message: Message) -> PostResult:
        return DOWN if message.event_id.startswith("digest:") else Receipt(message.channel, "1.0")

    worker.desk.reply = fail_the_digest
    for attempt in range(1, 8):
        stage.clock.forward(61 if attempt == 1 else 6)
        worker.run()
        assert stage.header("digest:errors")["attempt"] == attempt
        stage.send(f"ok{attempt}", category="other")  # ends the row of failures
        worker.run()
    worker.desk.reply = lambda _: DOWN
    stage.send("x1", "x2", "x3", "x4", category="other")
    worker.run()
    stage.send("y1", "y2", category="other")
    stage.clock.forward(5)
    started = worker.dispatch(worker.take().batch)
    assert started[0].candidate.leased.id == "digest:errors"
    worker.settle([worker.dispatcher.deliver(each) for each in started])
    return worker


def test_after_the_digest_has_failed_for_good_in_an_outage_every_worker_can_take(stage: Stage) -> None:
    ann = settle_the_last_failure(stage)
    assert stage.snapshot().imbalances() == []
    for name in ("bob", "carl"):
        stage.worker(name).take()
        stage.clock.forward(3_600)
    ann.desk.reply = lambda message: Receipt(message.channel, "2.0")
    until_drained(stage, ann)
    assert stage.snapshot().imbalances() == []
    assert outcomes(stage)["sent"] == 1 + 7 + 4 + 2
    assert any(message.event_id.startswith("digest:") for message in ann.desk.messages[-20:])


def test_after_the_digest_has_failed_for_good_events_that_wait_too_long_expire(stage: Stage) -> None:
    ann = settle_the_last_failure(stage)
    for _ in range(26):
        stage.clock.forward(3_600)
        ann.run()
    assert stage.snapshot().imbalances() == []
    assert [letter["id"] for letter in stage.letters()] == ["x1", "x2", "x3", "x4", "y1", "y2"]
    assert outcomes(stage)["dead"] == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "hours", "answer"),
    [
        *((each, 1, DOWN) for each in SEEDS),
        (1, 24, Ambiguous("http_502", "no answer of Slack's own came back")),
    ],
)
def test_digests_whose_edits_fail_at_a_gateway_stop_nobody(
    redis: Database, seed: int, hours: int, answer: PostResult
) -> None:
    """Their posts arrive: only what is edited fails, again and again."""
    chance = random.Random(seed)
    names = [f"d{n}" for n in range(4)]
    rules = "".join(f"  {name}: {{limits: [5/30m], on_limit: digest, digest_delay: 60s}}\n" for name in names)
    stage = QuietStage(redis, DIGESTING.partition("categories")[0] + f"categories:\n{rules}")
    stage.prolongs = True
    ann = stage.worker()
    ann.desk = _Broken(answer, ann.desk.reply)
    sent = met = 0
    for _ in range(0, hours * 3_600, 5):
        stage.clock.forward(5)
        if chance.random() < 0.08:
            stage.send(*(f"s{sent + n}" for n in range(8)), category=chance.choice(names))
            sent += 8
        attempts, pauses = len(stage.attempts), len(ann.told.pauses)
        ann.run()
        began = any(each.began for each in ann.told.pauses[pauses:])
        met += began and [each.attempt for _, each in stage.attempts[attempts:]] == [MAX_ATTEMPTS]
    assert met or answer != DOWN, "no outage began with the last attempt of an edit"
    snapshot = stage.snapshot()
    assert snapshot.imbalances() == []
    assert snapshot.received == sent > 0


class _Broken(Desk):
    """Slack behind a gateway that lets nothing through but new messages."""

    def __init__(self, answer: PostResult, reply: Callable[[Message], PostResult]) -> None:
        super().__init__(reply)
        self._answer = answer

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        del channel, ts, message, by_s
        return self._answer


# An admitted event that this worker cannot read


def test_an_admitted_event_that_cannot_be_read_becomes_a_dead_letter_and_gives_back_its_slots(
    redis: Database,
) -> None:
    stage = QuietStage(redis, "global: {limits: [100/30m]}\nchannels: {default: {pace: 1/10s}}\n")
    ann = stage.worker()
    stage.send("a", "b", "c")
    ann.run()
    assert stage.header("b")["holds"] == ["global", "category:errors"]
    record = redis.hget(stage.keys.events, "b")
    redis.hset(stage.keys.events, "b", record.replace(b'"v":1', b'"v":2'))
    stage.clock.forward(11)
    ann.run()
    assert stage.snapshot().imbalances() == []
    (letter,) = stage.letters()
    assert (letter["id"], letter["reason"], letter["payload"]) == (
        "b",
        "invalid",
        record.replace(b'"v":1', b'"v":2').partition(b"\n")[2].decode(),
    )
    until_drained(stage, ann)
    assert outcomes(stage) == {"received": 3, "sent": 2, "dead": 1}
    assert len(stage.slots("global")) == 2


# Everything at once


TELLING: Final = """
global: {{limits: [100/30m]}}
channels: {{default: {{pace: 5/10s}}}}
categories:
  errors: {{limits: [2/30s], on_limit: digest, digest_delay: 60s, on_ambiguous: {on_ambiguous}}}
  chat: {{limits: [2/30s], notice: true, digest_delay: 60s, on_ambiguous: {on_ambiguous}}}
"""
OWN: Final = {"errors": "digest:errors", "chat": "notice:chat"}
UNCLEAR: Final = Ambiguous("reply_timeout", "x")
RESULTS: Final[tuple[PostResult, ...]] = (
    Receipt("#notifications", "9.9"),
    Receipt("C0ABCDEFG", None),
    RateLimitedBySlack(3 * US, "ratelimited"),
    DOWN,
    Retryable("request_timeout", "x", reached=True),
    Rejected("is_archived", "x"),
    Paused("invalid_auth", "x"),
    Paused("unknown_method", "x"),
)
SCANS: Final = (
    ScanResult({}, Absent()),
    ScanResult({}, ScanLater("reply_timeout", "x")),
    ScanResult({}, ScanLater("ratelimited", "x", 2 * US, reached=True)),
    ScanResult({}, ScanLater("invalid_auth", "x", reached=True, pause=Paused("invalid_auth", "x"))),
    ScanResult({}, Unreadable("webhook", "x")),
)


class Case(NamedTuple):
    """What one event meets: a digest is posted or edited, and a notice has a first line and one that ``edits``."""

    category: str
    edits: bool
    can_edit: bool
    pause: str
    failures: int
    attempts: int
    result: PostResult
    scanned: ScanResult
    on_ambiguous: str

    def __str__(self) -> str:
        rest = type(self.scanned.rest).__name__
        act = "edit" if self.edits else "post"
        return (
            f"{self.category} {act} {type(self.result).__name__} {rest} pause {self.pause or '-'} "
            f"failures {self.failures} attempts {self.attempts} {self.on_ambiguous} can_edit {self.can_edit}"
        )


def cases() -> Iterator[Case]:
    """Each result, each scanned of a post without a clear one, in all circumstances."""
    results = [(result, SCANS[0], "resend") for result in RESULTS]
    results += [(UNCLEAR, scanned, rule) for scanned in SCANS for rule in ("resend", "dead-letter")]
    events = [*itertools.product(OWN, (False, True), (False, True)), ("other", False, True)]
    for event, pause, failures, attempts, result in itertools.product(
        events, ("", "outage", "operator", "cooldown"), (0, 4), (0, 7), results
    ):
        yield Case(*event, pause, failures, attempts, *result)


@pytest.mark.parametrize("extent", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_every_result_of_a_post_is_settled_and_the_books_balance(redis: Database, extent: str) -> None:
    found = list(cases())
    if extent == "some":
        last = [case for case in found if case.attempts and case.failures and not case.pause]
        found = [*random.Random(18).sample(last, 12), *random.Random(18).sample(found, 8)]
    wrong = []
    for case in found:
        try:
            faults = _settled(redis, case)
        except Exception as error:  # noqa: BLE001 - whatever stops a worker
            faults = [f"{type(error).__name__}: {str(error)[:120]}"]
        if faults:
            wrong.append(f"{case}: {faults}")
    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} of {len(found)} cases, such as", *wrong[:10]]), pytrace=False)


def _settled(redis: Database, case: Case) -> list[str]:
    """What is wrong with the books after the case; raises what stops the worker."""
    redis.flushall()
    stage = QuietStage(redis, TELLING.format(on_ambiguous=case.on_ambiguous))
    ann = stage.worker()
    answers = ann.desk.reply
    ann.desk.can_update = case.can_edit
    victim = OWN.get(case.category, "p0")
    if victim == "p0":
        stage.send("p0", category="other")
        ann.take()
        ann.give_back()
    else:
        stage.send(*(f"e{n}" for n in range(5)), category=case.category)
        ann.finish(ann.take())
        if case.edits:
            ann.run()
        if case.edits and case.category == "errors":
            stage.clock.forward(61)
            ann.run()
            stage.send(*(f"x{n}" for n in range(5)), category=case.category)
            ann.run()
    if case.attempts:
        header = stage.header(victim) | {"attempt": case.attempts}
        payload = redis.hget(stage.keys.events, victim).partition(b"\n")[2]
        redis.hset(stage.keys.events, victim, json.dumps(header, separators=(",", ":")).encode() + b"\n" + payload)
    if case.failures:
        redis.hset(stage.keys.failing, "#elsewhere", case.failures)
    if case.pause:
        now = str(stage.clock.now_us)
        facts = {
            "kind": case.pause,
            "code": "c",
            "detail": "d",
            "since": now,
            "probe": now,
            "prober": "",
            "gap": "1000000",
        }
        redis.hset(stage.keys.pause, mapping=facts)
    ann.desk.reply = lambda _: case.result
    ann.desk.shows = partial(_shown, case.scanned)
    for seconds in (61, 11, 31, 5):
        stage.clock.forward(seconds)
        _bounded_run(ann)
    ann.desk.reply = answers
    ann.desk.shows = partial(_shown, SCANS[0])
    for seconds in (61, 61, 61, 5):
        stage.clock.forward(seconds)
        _bounded_run(ann)
    faults = stage.snapshot().imbalances()
    tried = {started.candidate.leased.attempt for _, started in stage.attempts if started.candidate.leased.id == victim}
    if case.attempts not in tried and case.pause != "operator":
        faults.append(f"{victim} was never tried after {case.attempts} attempts: {tried}")
    return faults


def _shown(scanned: ScanResult, search: Search) -> ScanResult:
    del search
    return scanned


def _bounded_run(worker: Worker) -> None:
    """Take, post and settle; what is to be tried again at once is tried fifty times."""
    for _ in range(50):
        taken = worker.take()
        if not taken.batch:
            return
        worker.deliver(worker.dispatch(taken.batch))

"""One line per event at its end, for people and for machines, without secrets."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from typing import Any, Final, Literal

import pytest

from dispatcher.core.event import Event
from dispatcher.core.limits import Denied, DeniedInPart, Limit, Reason
from dispatcher.core.policy import EDITS
from dispatcher.core.posts import LeftOut, Part, Receipt
from dispatcher.core.states import (
    Candidate,
    DeadLettered,
    Dropped,
    Leased,
    Outcome,
    Parked,
    Place,
    Posted,
    Prefiltered,
    Recovered,
    Sent,
    Settlement,
    Step,
    Terms,
    Told,
    Undecodable,
    Waiting,
)
from dispatcher.core.tally import Suppressed, Tally, Telling, counting_of
from dispatcher.logs.event_log import EventLog, build_event_log

LEASED = Leased("job-1", Event("errors", "x", id="disk-1"), 1, 5_250_000)
TERMS = Terms("#ops", None, (), 1, configured=True)
EDIT_TERMS = replace(TERMS, channel=EDITS)
DENIED = Denied("category:errors", Limit.parse("10/30m"), 1_500_000)
IN_PART = DeniedInPart("category:errors", Limit.parse("10/30m"), 1_500_000, refused_by="singles:errors 9/30m")


def lines(tell: Any, **options: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a test's callable and options
    stream = io.StringIO()
    tell(build_event_log(style="json", stream=stream, **options).of("w1"))
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (
            Sent(Receipt("C1", "1.1")),
            {"outcome": "sent", "reason": "ok", "channel": "#ops", "channel_id": "C1", "ts": "1.1"},
        ),
        (Sent(Receipt("#ops", None)), {"outcome": "sent", "reason": "ok", "channel": "#ops"}),
        (
            Dropped(DENIED, Reason.LIMIT_CATEGORY),
            {
                "outcome": "dropped",
                "reason": "limit:category",
                "scope": "category:errors",
                "limit": "10/30m",
                "retry_after_s": 1.5,
            },
        ),
        (
            DeadLettered(Reason.REJECTED, "no such channel", "channel_not_found"),
            {
                "outcome": "dead",
                "reason": "rejected",
                "code": "channel_not_found",
                "channel": "#ops",
                "detail": "no such channel",
            },
        ),
    ],
    ids=["sent", "sent to the very name", "dropped", "dead"],
)
def test_an_event_at_its_end_is_one_line(outcome: Outcome, expected: dict[str, Any]) -> None:
    (line,) = lines(lambda log: log.settled([Settlement(LEASED, TERMS, outcome)]))
    del line["time"], line["sentence"]
    assert line == {
        "event": "event.settled",
        "level": "info",
        "worker": "w1",
        "event_id": "disk-1",
        "category": "errors",
        "seen": 5.25,
        **expected,
    }


SENTENCES: Final = [
    (
        Dropped(DENIED, Reason.LIMIT_CATEGORY),
        "Dropped at 12:03:11: category errors had used 10 of 10 in 30 min; it would have fitted at 12:03:13.",
    ),
    (
        Dropped(IN_PART, Reason.LIMIT_CATEGORY),
        (
            "Dropped at 12:03:11: category errors had used 9 of 10 in 30 min, and 1 is kept for its notice or "
            "digest; it would have fitted at 12:03:13."
        ),
    ),
    (Sent(Receipt("C1", "1.1")), "Sent to #ops at 12:03:11."),
    (
        DeadLettered(Reason.REJECTED, "no such channel", "channel_not_found"),
        "Dead letter at 12:03:11, rejected (channel_not_found): no such channel.",
    ),
    (
        DeadLettered(Reason.LIMIT_CATEGORY, "category:errors had used its 10/30m", denied=DENIED),
        "Dead letter at 12:03:11: category errors had used 10 of 10 in 30 min; it would have fitted at 12:03:13.",
    ),
]


@pytest.mark.parametrize(
    ("outcome", "said"), SENTENCES, ids=["dropped", "dropped by a part of a limit", "sent", "dead", "dead by a limit"]
)
def test_the_line_of_an_event_says_what_explain_says(
    outcome: Outcome, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    stream = io.StringIO()
    log = build_event_log(style="json", stream=stream, clock=lambda: 1_795_176_191_500_000)
    log.settled([Settlement(LEASED, TERMS, outcome)])
    if isinstance(outcome, Dropped) and outcome.denied is not None:
        log.dropped([(LEASED, outcome.denied)])
        log.prefiltered([Prefiltered("errors", outcome.denied, ["disk-1"], LEASED.seen_us)])
    sentences = {json.loads(line)["sentence"] for line in stream.getvalue().splitlines()}
    assert sentences == {said}
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("most", "expected"), [(0, None), (20, r"disk \x1b[31mfull *…"), (200, r"disk \x1b[31mfull *** and more")]
)
def test_each_line_of_an_event_has_its_trace_and_its_text_only_where_that_is_asked_for(
    most: int, expected: str | None
) -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    event = Event("errors", "disk\n\x1b[31mfull xoxb-secret and more", id="disk-1", labels={"host": "db1", **trace})
    leased = LEASED._replace(event=event)
    parked = Settlement(leased, TERMS, Parked(Place.TIMER, Reason.RETRY, 2_000_000))

    def tell(log: EventLog) -> None:
        log.settled([Settlement(leased, TERMS, Sent(Receipt("#ops", "1.1"))), parked])
        log.dropped([(leased, DENIED)])
        log.waiting([Waiting(Candidate(leased, TERMS), Reason.PACE, None)])

    told = lines(tell, text=most, secrets=["xoxb-secret"])
    assert [line.get("text") for line in told] == [expected] * 4
    assert [line["traceparent"] for line in told] == [trace["traceparent"]] * 4


def test_a_waiting_event_has_a_line_of_its_own() -> None:
    outcome = Parked(Place.TIMER, Reason.RETRY, 2_000_000, "connection_refused", detail="nobody listens there")
    parked = Settlement(LEASED, TERMS, outcome)
    waiting = Waiting(Candidate(LEASED, TERMS), Reason.PACE, None)
    first, second = lines(lambda log: (log.settled([parked]), log.waiting([waiting])))
    assert (first["event"], first["reason"], first["retry_after_s"]) == ("event.parked", "retry", 2.0)
    assert first["channel"] == "#ops"
    assert (first["code"], first["detail"]) == ("connection_refused", "nobody listens there")
    assert (second["event"], second["reason"], second["channel"]) == ("event.parked", "pace", "#ops")
    assert "retry_after_s" not in second


def test_an_event_that_waits_for_the_end_of_a_pause_is_given_no_instant() -> None:
    outcome = Parked(Place.TIMER, Reason.PAUSED, 130_000, "invalid_auth", detail="make a new token")
    waiting = Waiting(Candidate(LEASED, TERMS), Reason.PAUSED, 130_000)
    first, second = lines(lambda log: (log.settled([Settlement(LEASED, TERMS, outcome)]), log.waiting([waiting])))
    assert (first["event"], first["reason"], first["code"]) == ("event.parked", "paused", "invalid_auth")
    assert (second["event"], second["reason"]) == ("event.parked", "paused")
    assert "retry_after_s" not in first | second


def test_parts_left_out_of_a_post_are_logged_and_a_missing_scope_once_by_itself() -> None:
    parts = (LeftOut(Part.IDENTITY, "missing_scope", "add it"), LeftOut(Part.BLOCKS, "invalid_blocks", "a rule"))
    sent = Settlement(LEASED, TERMS, Sent(Receipt("#ops", "1.1", parts)))
    plain = Settlement(LEASED, TERMS, Sent(Receipt("#ops", "1.1", parts[1:])))
    told = lines(lambda log: (log.settled([plain]), log.settled([sent, sent]), log.settled([sent])))
    assert [line["event"] for line in told if line["event"] != "event.settled"] == ["slack.scope_missing"]
    assert [line["left_out"] for line in told if "left_out" in line] == ["blocks", *["identity,blocks"] * 3]
    assert (told[0]["code"], told[0]["detail"]) == ("invalid_blocks", "a rule")
    (missing,) = (line for line in told if line["event"] == "slack.scope_missing")
    assert (missing["level"], missing["code"], missing["detail"]) == ("warning", "missing_scope", "add it")


def test_a_template_that_fails_is_told_once_for_each_category() -> None:
    other = LEASED._replace(event=Event("deploys", "x"))
    sent = Settlement(LEASED, TERMS, Sent(Receipt("#ops", "1.1")))
    settled = [
        sent,
        sent._replace(template_fault="no label a"),
        sent._replace(template_fault="again"),
        sent._replace(subject=other, template_fault="b"),
    ]
    told = lines(lambda log: (log.settled(settled), log.settled(settled)))
    failed = [line for line in told if line["event"] == "template.failed"]
    assert [(line["level"], line["category"], line["detail"]) for line in failed] == [
        ("warning", "errors", "no label a"), ("warning", "deploys", "b"),
    ]  # fmt: skip
    assert [line["outcome"] for line in told if line["event"] == "event.settled"] == ["sent"] * 8


def test_a_thousand_categories_with_a_template_that_fails_are_told_and_no_more() -> None:
    settled = [
        Settlement(
            LEASED._replace(event=Event(f"c{n}", "x")), TERMS, Sent(Receipt("#ops", "1.1")), template_fault="no label a"
        )
        for n in range(1_001)
    ]
    told = lines(lambda log: log.settled(settled))
    assert sum(line["event"] == "template.failed" for line in told) == 1_000


def test_duplicates_and_lost_leases_are_told() -> None:
    told = lines(lambda log: (log.duplicates(["a"]), log.lost([Undecodable("b", Reason.INVALID, "x")])))
    assert [(line["event"], line["event_id"]) for line in told] == [("event.settled", "a"), ("lease.lost", "b")]
    assert told[0]["outcome"] == "duplicate"
    assert told[0]["sentence"].endswith(": an event of this id came before.")


def test_secrets_are_removed_wherever_they_stand() -> None:
    secrets = ["xoxb-secret", "s/e+cret", "s%2Fe%2Bcret"]
    facts = {"detail": "token xoxb-secret", "nested": {"url": ["redis://:s%2Fe%2Bcret@host", ("s/e+cret",)]}}
    stream = io.StringIO()
    build_event_log(style="json", stream=stream, secrets=secrets).say("redis.lost", **facts)
    build_event_log(style="console", stream=stream, secrets=secrets).failed(ValueError("xoxb-secret"), "worker.failed")
    assert "***" in stream.getvalue()
    assert not any(secret in stream.getvalue() for secret in secrets)


def test_a_secret_that_becomes_known_later_is_removed_too() -> None:
    stream = io.StringIO()
    first = build_event_log(style="json", stream=stream, secrets=["first"])
    log = first.of("ann")
    first.hide(["second"])
    log.say("setting.warning", detail="first, second, third")
    log.duplicates(["e1-second", "e2"])
    said = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert said[0]["detail"] == "***, ***, third"
    assert {each["event_id"] for each in said[1:]} == {"e1-***", "e2"}


@pytest.mark.parametrize("secret", ['s"e\\cret', "s\u00e9cret", "s-cret"])
def test_a_secret_in_one_line_of_a_batch_is_removed_and_the_others_stay(secret: str) -> None:
    told = lines(lambda log: log.duplicates(["first", f"of {secret}", "last"]), secrets=[secret])
    assert sorted(line["event_id"] for line in told) == ["first", "last", "of ***"]
    assert all(line.keys() == told[0].keys() for line in told)


def test_control_characters_in_one_line_of_a_batch_are_taken_out() -> None:
    told = lines(lambda log: log.duplicates(["first", "a\x1b[2J\u202e", "b\x7f"]))
    assert sorted(line["event_id"] for line in told) == ["a\ufffd[2J\ufffd", "b\ufffd", "first"]


def test_control_characters_do_nothing_to_a_terminal() -> None:
    stream = io.StringIO()
    log = build_event_log(style="console", stream=stream)
    log.say("redis.lost", detail="a\x1b[31m\u202eb\nc")
    assert "a\ufffd[31m\ufffdb\ufffdc" in stream.getvalue()


def test_the_joiners_of_an_emoji_stay() -> None:
    (line,) = lines(lambda log: log.say("redis.lost", detail="👩\u200d👧 a\u200db"))
    assert line["detail"] == "👩\u200d👧 a\ufffdb"


@pytest.mark.parametrize("event", ["worker.failed", "serve.failed"])
def test_the_trace_of_a_defect_keeps_its_lines_and_nothing_that_reorders_them(
    event: Literal["worker.failed", "serve.failed"],
) -> None:
    (line,) = lines(lambda log: log.failed(ValueError("open \u202egpj.exe\x1b[2J\nor not"), event))
    assert line["event"] == event
    assert line["exception"] == "ValueError: open \ufffdgpj.exe\ufffd[2J\nor not"


def test_the_level_is_kept() -> None:
    assert lines(lambda log: log.say("worker.started"), level="warning") == []
    assert [line["level"] for line in lines(lambda log: log.say("redis.lost"), level="warning")] == ["warning"]


def test_a_reader_that_is_gone_does_not_stop_the_worker() -> None:
    stream = io.StringIO()
    log = build_event_log(style="json", stream=stream)
    stream.close()
    log.settled([Settlement(LEASED, TERMS, Sent(Receipt("C1", None)))])


GLOBAL: Final = Denied("global", Limit.parse("100/30m"), 900_000)
GROUPS: Final = [Prefiltered("errors", DENIED, ["e-1", "e-2"], 7), Prefiltered("news", GLOBAL, ["n-1"], 7)]
"""Three events that were dropped as they were taken."""


def dropped_one_by_one(log: EventLog) -> None:
    """The same three as the gate drops them."""
    log.dropped(
        [
            (Leased(name, Event(category, "x", id=name), 1, seen_us), denied)
            for category, denied, names, seen_us in GROUPS
            for name in names
        ]
    )


@pytest.mark.parametrize("worker", ["w1", None])
def test_prefiltered_events_have_the_same_lines_as_events_that_the_gate_drops(
    worker: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_795_176_191_500_000_000)  # sentences hold the time of day
    said = []
    for tell in (lambda log: log.prefiltered(GROUPS), dropped_one_by_one):
        stream = io.StringIO()
        log = build_event_log(style="json", stream=stream)
        tell(log if worker is None else log.of(worker))
        assert stream.getvalue().endswith("}\n")
        rows = [list(json.loads(line).items()) for line in stream.getvalue().splitlines()]
        said.append([[(key, value if key != "time" else "") for key, value in row] for row in rows])
    assert said[0] == said[1]
    assert [dict(row)["event_id"] for row in said[0]] == ["e-1", "e-2", "n-1"]
    assert [dict(row)["limit"] for row in said[0]] == ["10/30m", "10/30m", "100/30m"]
    assert [key for key, _ in said[0][0]] == [
        *("event_id", "category", "outcome", "reason", "scope", "limit", "retry_after_s", "sentence", "seen"),
        *(("worker",) if worker else ()),
        *("event", "level", "time"),
    ]


@pytest.mark.parametrize("secret", ["news", "global", "n-1", "100/30m"])
def test_a_secret_in_what_is_dropped_as_it_is_taken_is_removed(secret: str) -> None:
    stream = io.StringIO()
    build_event_log(style="json", stream=stream, secrets=[secret]).prefiltered(GROUPS)
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert secret not in stream.getvalue()
    assert sorted(line["event_id"] for line in told) == sorted(["e-1", "e-2", "n-1" if secret != "n-1" else "***"])
    assert all(line.keys() == told[0].keys() for line in told)


def test_an_id_with_a_quotation_mark_leaves_its_line_json() -> None:
    stream = io.StringIO()
    build_event_log(style="json", stream=stream).prefiltered([Prefiltered("errors", DENIED, ['a"b', "c"], 7)])
    assert {json.loads(line)["event_id"] for line in stream.getvalue().splitlines()} == {'a"b', "c"}


def test_prefiltered_events_have_the_same_console_lines_as_events_that_the_gate_drops() -> None:
    told = []
    for tell in (lambda log: log.prefiltered(GROUPS), dropped_one_by_one):
        stream = io.StringIO()
        log = build_event_log(style="console", stream=stream, clock=lambda: 1_795_176_191_500_000)
        tell(log)
        told.append([line.partition(" ")[2] for line in stream.getvalue().splitlines()])
    assert told[0] == told[1]
    assert ["e-1" in told[0][0], "e-2" in told[0][1], "n-1" in told[0][2]] == [True] * 3


def test_prefiltered_events_are_logged_as_information() -> None:
    assert lines(lambda log: log.prefiltered(GROUPS), level="warning") == []
    assert len(lines(lambda log: log.prefiltered(GROUPS), level="info")) == 3
    assert lines(lambda log: log.prefiltered([])) == []


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_reader_that_is_gone_does_not_stop_what_is_dropped_as_it_is_taken(style: Literal["json", "console"]) -> None:
    stream = io.StringIO()
    log = build_event_log(style=style, stream=stream)
    stream.close()
    log.prefiltered(GROUPS)


def told(settlement: Settlement) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if key not in {"time", "worker"}}
        for line in lines(lambda log: log.settled([settlement]))
    ]


COUNTING = counting_of(Telling.DIGEST, "errors", 60_000_000, own=DENIED.limit, share=None, window=DENIED.limit)
TALLY = Tally("digest:errors", Telling.DIGEST, "errors", "digested", "category:errors", "10/30m", 37, 0, 0, 0)
OWN = Leased("digest:errors", Event("errors", "x"), 1, 0, tally=TALLY)
SAID = {"category": "errors", "count": 37, "channel": "#ops"}


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Told(Step.POSTED, COUNTING, shown=37), {"event": "digest.posted", "level": "info", **SAID, "ends": False}),
        (
            Told(Step.EDITED, COUNTING, shown=37, ends=True),
            {"event": "digest.edited", "level": "info", **SAID, "ends": True},
        ),
        (
            Told(Step.FAILED, COUNTING, code="channel_not_found", detail="no such channel"),
            {
                "event": "digest.failed",
                "level": "warning",
                **SAID,
                "code": "channel_not_found",
                "detail": "no such channel",
            },
        ),
        (
            Parked(Place.TIMER, Reason.LIMIT_GLOBAL, 2_000_000),
            {"event": "digest.parked", "level": "info", **SAID, "reason": "limit:global", "retry_after_s": 2.0},
        ),
    ],
)
def test_each_step_of_a_digest_message_is_a_line_of_its_own(outcome: Outcome, expected: dict[str, Any]) -> None:
    assert told(Settlement(OWN, TERMS, outcome)) == [expected]


@pytest.mark.parametrize("telling", Telling)
def test_a_digest_message_that_slack_refuses_is_a_warning(telling: Telling) -> None:
    refused = Told(Step.FAILED, COUNTING, code="channel_not_found", detail="no such channel")
    own = OWN._replace(tally=replace(TALLY, telling=telling))
    (line,) = lines(lambda log: log.settled([Settlement(own, TERMS, refused)]), level="warning")
    assert (line["event"], line["code"]) == (f"{telling}.failed", "channel_not_found")


def test_an_edit_names_the_channel_of_its_message_and_not_the_line_of_edits() -> None:
    edited = Told(Step.EDITED, COUNTING, shown=37)
    own = OWN._replace(tally=replace(TALLY, shown=30, channel="C0OPS", ts="1.1"))
    (line,) = told(Settlement(own, EDIT_TERMS, edited))
    assert line["channel"] == "C0OPS"
    recovery = LEASED._replace(edits=Posted("disk-0", 1, "C0OPS", "1.1", "disk full"))
    (line,) = told(Settlement(recovery, EDIT_TERMS, Parked(Place.TIMER, Reason.RETRY, 2_000_000)))
    assert (line["event"], line["channel"]) == ("event.parked", "C0OPS")
    (line,) = lines(lambda log: log.waiting([Waiting(Candidate(recovery, EDIT_TERMS), Reason.PACE, None)]))
    assert (line["event"], line["channel"]) == ("event.parked", "C0OPS")
    (line,) = told(Settlement(LEASED, EDIT_TERMS, DeadLettered(Reason.EXPIRED, "too old")))
    assert "channel" not in line


def test_that_a_digest_cannot_be_posted_is_told_once() -> None:
    failed = Told(Step.FAILED, COUNTING, code="channel_not_found", detail="no such channel")
    again = OWN._replace(tally=replace(TALLY, failed=True))
    assert told(Settlement(again, TERMS, failed)) == []


def test_a_digest_message_that_waits_for_its_own_time_is_not_logged() -> None:
    assert told(Settlement(OWN, TERMS, Told(Step.WAITED, COUNTING))) == []


def test_a_digested_event_ends_with_its_limit_and_a_sentence() -> None:
    (line,) = lines(lambda log: log.digested([Suppressed("disk-1", "errors", DENIED, 7)]))
    assert (line["event"], line["event_id"], line["outcome"]) == ("event.settled", "disk-1", "digested")
    assert (line["reason"], line["scope"], line["limit"]) == ("limit:category", "category:errors", "10/30m")
    assert line["sentence"].startswith("Counted into a digest at ")


def test_an_event_whose_failure_was_over_ends_with_its_first_sight() -> None:
    (line,) = lines(lambda log: log.recovered([Recovered("disk db1", "errors", 7)]))
    assert (line["event"], line["event_id"], line["outcome"]) == ("event.settled", "disk db1", "dropped")
    assert (line["reason"], line["category"], line["seen"]) == ("resolved", "errors", 0.000007)

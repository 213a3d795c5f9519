"""``dispatcher explain``: one sentence, one JSON object, and what it exits with."""

from __future__ import annotations

import io

import pytest

from dispatcher.core.event import job_id_for
from dispatcher.logs.terminal_line import TerminalLine
from dispatcher.producer.blocking import Producer
from dispatcher.settings.redaction import redacted_url
from tests.support.commands import run
from tests.support.dead_letters import DENIED, bury
from tests.support.in_process import InProcess
from tests.support.servers import Database


def test_one_sentence_says_what_happened(redis: Database, redis_url: str, inside: InProcess) -> None:
    Producer(redis).send("errors", "x", id="disk-1")
    said = inside("explain", "disk-1")
    assert said.out == "Waits on the queue, on lane normal, as the next; no worker has taken it yet.\n"
    assert (said.code, said.err) == (0, f"dispatcher: namespace dispatcher on {redacted_url(redis_url)}\n")


def test_as_json_every_fact_has_its_key(redis: Database, inside: InProcess) -> None:
    bury(redis, [{"category": "errors", "text": "x", "id": "disk 1"}], DENIED)
    told = inside.json("explain", "disk 1")
    assert told["first_seen"] == told["at"]
    assert told.pop("fits_at") == pytest.approx(told.pop("at") + 90)
    told.pop("first_seen")
    sentence = told.pop("sentence")
    assert sentence.startswith("Dead letter at ")
    assert ": category errors had used 10 of 10 in 30 min; it would have fitted at " in sentence
    assert told == {
        "id": "disk 1",
        "job_id": job_id_for("disk 1"),
        "state": "settled",
        "outcome": "dead",
        "reason": "limit:category",
        "category": "errors",
        "channel": "#general",
        "scope": "category:errors",
        "limit": "10/30m",
        "used": None,
        "max": None,
        "window_s": None,
        "place": None,
        "expected_at": None,
        "next_at": None,
        "before": None,
        "attempts": 0,
        "replays": 0,
        "worker": None,
        "text": "x",
        "labels": {},
        "code": None,
        "detail": "category:errors had used its 10/30m",
        "ts": None,
        "dead_letter": True,
    }


def test_the_beginning_of_an_id_as_a_log_line_has_it_is_enough(redis: Database, inside: InProcess) -> None:
    id_ = Producer(redis).send("errors", "x")
    line = TerminalLine(io.StringIO(), in_colour=False)(None, "info", {"event": "event.settled", "event_id": id_})
    _, _, shown = line.partition("id=")
    assert len(shown) < len(id_)
    said = inside("explain", shown)
    assert (said.code, said.out[:20]) == (0, "Waits on the queue, ")
    assert f"dispatcher: id {id_}\n" in said.err
    assert inside.json("explain", id_[:4])["id"] == id_


def test_a_beginning_that_several_ids_have_is_told_with_a_few_of_them(redis: Database, inside: InProcess) -> None:
    producer = Producer(redis)
    for id_ in ("disk-1", "disk-2", "dis"):
        producer.send("errors", "x", id=id_)
    said = inside("explain", "disk")
    assert (said.code, said.out) == (
        1,
        "2 ids begin with 'disk', give more of the one that you mean: disk-1, disk-2.\n",
    )
    assert inside("explain", "disk-1").out.startswith("Waits on the queue, ")
    assert inside("explain", "dis").out.startswith("Waits on the queue, ")
    short = inside("explain", "di").out
    assert short.startswith("There is nothing about 'di'")
    assert short.endswith(" The beginning of an id is looked for if it has 4 characters or more.\n")
    for n in range(3, 9):
        producer.send("errors", "x", id=f"disk-{n}")
    assert inside("explain", "disk").out.startswith("More than 5 ids begin with 'disk', give more of the one that ")
    assert inside("explain", "d*sk").out.startswith("There is nothing about 'd*sk'")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.usefixtures("redis_url")
def test_an_id_that_nothing_is_known_of_exits_with_1(inside: InProcess, *, as_json: bool) -> None:
    if as_json:
        told = inside.json("explain", "nobody", code=1)
        assert (told["state"], told["outcome"]) == ("unknown", None)
    else:
        said = inside("explain", "nobody")
        assert (said.code, "it was never handed over, or it was removed from the queue" in said.out) == (1, True)


def test_no_id_sends_an_escape_sequence_to_the_terminal(inside: InProcess) -> None:
    for id_ in ("\x1b[31mred", "\ud800", "a" * 5_000):
        said = inside("explain", id_)
        assert said.code == 1
        assert "\x1b" not in said.out


@pytest.mark.parametrize(
    "command", ["explain", "dead show", "dead replay", "dead purge --yes", "parked show", "parked cancel --yes"]
)
def test_an_empty_id_is_refused(inside: InProcess, command: str) -> None:
    said = inside(*command.split(), "")
    assert (said.code, "'', expected an id" in said.err) == (2, True)


def test_the_command_needs_an_id_and_a_server() -> None:
    assert run("explain").code == 2
    assert run("explain", "a", DISPATCHER_REDIS_URL="redis://127.0.0.1:1/0").code == 69

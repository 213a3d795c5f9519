"""One malformed event stops neither a batch nor a fleet: it becomes a dead letter, and all others go on.

A record is malformed where a version wrote other fields, by a defect, by a hand, or on a server that lost a part.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

import pytest

from tests.support.mutations import ABSENT, BROKEN, PAYLOADS, RAW, VALUES, Mutation, broken, headers, with_header
from tests.support.servers import Database
from tests.support.victim_scenarios import (
    EVENTS,
    OWN,
    Make,
    Scenario,
    digest_collects,
    digest_grows,
    in_a_channels_line,
    leased,
)

T = TypeVar("T")

DIGEST_IDS: Final = frozenset({"digest:storms", "notice:notes"})
SHOWN: Final = 10
"""Faults that a failure tells of."""


def named(make: Make) -> str:
    """What a scenario is called in the name of a test."""
    return make.__name__


in_extent = pytest.mark.parametrize(
    "most", [pytest.param(1, id="some"), pytest.param(100_000, id="all", marks=pytest.mark.slow)]
)
everywhere = pytest.mark.parametrize("make", [*EVENTS, *OWN], ids=named)
of_producers = pytest.mark.parametrize("make", EVENTS, ids=named)
of_ours = pytest.mark.parametrize("make", OWN, ids=named)


def drawn(cases: Iterable[T], most: int, seed: str) -> list[T]:
    """So many of the cases, always the same ones."""
    found = list(cases)
    return found if len(found) <= most else random.Random(seed).sample(found, most)


class Found:
    """What went wrong, told at the end."""

    def __init__(self) -> None:
        self.runs = 0
        self.faults: list[str] = []

    def run(self, words: object, check: Callable[[], object]) -> None:
        """One run; whatever it raises is noted."""
        self.runs += 1
        try:
            check()
        except Exception as error:  # noqa: BLE001 - whatever stops a worker or an operator
            text = f"{type(error).__name__}: {error}"
            self.faults.append(f"{words}: {text.splitlines()[0][:220]}")

    def check(self) -> None:
        """Fail with the first of them."""
        assert self.runs > 0
        if self.faults:
            told = [f"{len(self.faults)} of {self.runs} runs went wrong, such as", *self.faults[:SHOWN]]
            pytest.fail("\n".join(told), pytrace=False)


def spoilt(redis: Database, make: Make, change: Mutation | str) -> Scenario:
    """The scenario, with another record in place of the victim's, or none."""
    redis.flushall()
    scenario = make(redis)
    if isinstance(change, Mutation):
        scenario.spoil(with_header(scenario.record, change))
    else:
        scenario.spoil(broken(scenario.record, change))
    return scenario


def changes(redis: Database, make: Make) -> list[Mutation | str]:
    """Everything that the victim's record may be and should not."""
    redis.flushall()
    scenario = make(redis)
    payloads = () if scenario.victim in DIGEST_IDS else PAYLOADS  # those have none
    return [*BROKEN, *payloads, *headers(scenario.record)]


@everywhere
def test_nothing_is_wrong_where_nothing_is_malformed(redis: Database, make: Make) -> None:
    scenario = make(redis)
    scenario.operate()
    scenario.live()
    scenario.operate()
    scenario.check_others()
    scenario.check_victim_is_gone()
    assert scenario.letters() == []


# An event of a producer


@of_producers
@in_extent
def test_an_event_with_a_broken_record_becomes_a_dead_letter_and_all_others_go_on(
    redis: Database, make: Make, most: int
) -> None:
    found = Found()
    for change in drawn(BROKEN, most, make.__name__):
        found.run(change, partial(_broken_ends, redis, make, change))
    found.check()


def _broken_ends(redis: Database, make: Make, change: str) -> None:
    scenario = spoilt(redis, make, change)
    record, is_in_hands = scenario.stored(), scenario.is_in_hands()
    scenario.live()
    scenario.check_others()
    scenario.check_victim_is_gone()
    if is_in_hands and scenario.outcome() == "sent":  # who posted it knows that, whatever the record says
        assert scenario.letters() == []
        return
    (letter,) = scenario.letters()
    assert letter[b"reason"] == b"invalid"
    for part in (record or b"").split(b"\n", 1):
        assert any(part in value for value in letter.values()), f"{part!r} is not kept in the letter: {letter}"


@of_producers
@in_extent
def test_a_payload_that_cannot_be_read_is_kept_in_a_dead_letter(redis: Database, make: Make, most: int) -> None:
    """Of a newer version, too: such an event may have been admitted by a worker that could read it."""
    found = Found()
    for change in drawn(PAYLOADS, most, make.__name__):
        found.run(change, partial(_unreadable_ends, redis, make, change))
    found.check()


def _unreadable_ends(redis: Database, make: Make, change: str) -> None:
    scenario = spoilt(redis, make, change)
    is_in_hands = scenario.is_in_hands()
    scenario.live()
    scenario.check_others()
    scenario.check_victim_is_gone()
    if is_in_hands and scenario.outcome() == "sent":
        return
    (letter,) = scenario.letters()
    assert (letter[b"reason"], letter[b"payload"]) == (b"invalid", PAYLOADS[change])


@of_producers
@in_extent
def test_an_event_with_a_malformed_field_ends_and_all_others_go_on(redis: Database, make: Make, most: int) -> None:
    """It may be understood and go its way; where it is not, it is a dead letter that keeps what was stored."""
    found = Found()
    for change in drawn(headers(make(redis).record), most, make.__name__):
        found.run(change, partial(_changed_ends, redis, make, change))
    found.check()


def _changed_ends(redis: Database, make: Make, change: Mutation) -> None:
    scenario = spoilt(redis, make, change)
    payload = scenario.record.partition(b"\n")[2]
    scenario.live()
    scenario.check_others()
    scenario.check_victim_is_gone()
    letters = scenario.letters()
    assert len(letters) <= 1
    assert letters or scenario.outcome() is not None, "nobody knows what became of it"
    for letter in letters:
        if letter[b"reason"] == b"invalid":
            assert any(payload in value for value in letter.values()), "the payload is not kept in the letter"
            assert any(_shows(value, change) for value in letter.values()), f"the header is not kept: {letter}"


def _shows(text: bytes, change: Mutation) -> bool:
    """Whether this is a header with what is wrong in it."""
    try:
        facts = json.loads(text.partition(b"\n")[0])
    except ValueError:
        return False
    (field,) = change.path
    return isinstance(facts, dict) and (field in facts) == (VALUES[change.name] is not ABSENT)


@of_producers
def test_unknown_header_fields_of_a_newer_version_change_nothing(redis: Database, make: Make) -> None:
    scenario = make(redis)
    header = scenario.header() | {"of_a_newer_version": {"a": [1, None]}, "another": "text"}
    scenario.spoil(json.dumps(header, separators=(",", ":")).encode() + b"\n" + scenario.record.partition(b"\n")[2])
    scenario.live()
    scenario.check_others()
    scenario.check_victim_is_gone()
    assert scenario.outcome() in scenario.ends


# An event of the dispatcher's own


@of_ours
@in_extent
def test_a_digest_message_that_is_malformed_ends_and_its_category_is_told_of_again(
    redis: Database, make: Make, most: int
) -> None:
    found = Found()
    for change in drawn(changes(redis, make), most, make.__name__):
        found.run(change, partial(_own_ends, redis, make, change))
    found.check()


def _own_ends(redis: Database, make: Make, change: Mutation | str) -> None:
    scenario = spoilt(redis, make, change)
    scenario.live()
    scenario.check_others()
    scenario.check_victim_is_gone()
    check_told_again(scenario)


def check_told_again(scenario: Scenario) -> None:
    """What is suppressed from now on is told of."""
    scenario.stage.clock.forward(7_200)
    ids = [f"again{n}" for n in range(9)]
    scenario.stage.send(*ids, category=scenario.victim.partition(":")[2])
    scenario.others += ids
    scenario.goes_on = []
    scenario.workers = [scenario.stage.worker("teller")]
    before = scenario.posts()
    scenario.live()
    scenario.check_others()
    assert scenario.posts() > before, "nobody was told of what was suppressed later"


# Operators


@everywhere
def test_cancelling_does_no_harm_where_nothing_is_malformed(redis: Database, make: Make) -> None:
    _operate_and_live(make(redis))


@everywhere
@in_extent
def test_an_operator_who_looks_or_cancels_stops_at_no_malformed_event(redis: Database, make: Make, most: int) -> None:
    found = Found()
    for change in drawn(changes(redis, make), most, make.__name__):
        found.run(change, partial(_operated, redis, make, change))
    found.check()


def _operated(redis: Database, make: Make, change: Mutation | str) -> None:
    scenario = spoilt(redis, make, change)
    _operate_and_live(scenario)


def _operate_and_live(scenario: Scenario) -> None:
    scenario.operate()
    scenario.cancel()
    scenario.operate()
    scenario.ends |= {"dropped"}
    scenario.live()
    scenario.operate()
    scenario.check_others()
    # A tally forgets one that was cancelled when the next one comes.
    assert [place for place in scenario.places() if ":tally:" not in place] == []


# What is stored beside the events

PAUSE: Final = {
    "kind": "outage", "code": "connection_refused", "detail": "refused", "since": "1732100000000000",
    "probe": "1732100000000000", "prober": "", "gap": "1000000",
}  # fmt: skip
BESIDE: Final = (
    "deciding nobody", "deciding ann", "silences 1", "silences other", "silencing version", "silencing names",
    *(f"pause {field}" for field in PAUSE), *(f"pause only {field}" for field in PAUSE),
)  # fmt: skip


def _put_beside(scenario: Scenario, place: str, value: bytes) -> None:
    """A malformed value in a hash beside the events, where there may be others that are not."""
    stage, (name, *more, field) = scenario.stage, place.split(" ")
    if name == "pause" and not more:
        stage.redis.hset(stage.keys.pause, mapping=PAUSE)
    if name in {"silences", "silencing"}:
        stage.silencing.mute("third", 60_000_000, "ed", "known")
    stage.redis.hset(stage.keys.named(name), field, value)


@pytest.mark.parametrize("make", [in_a_channels_line, leased], ids=named)
@in_extent
def test_a_malformed_value_beside_the_events_stops_no_worker(redis: Database, make: Make, most: int) -> None:
    found = Found()
    for place, name in drawn([(place, name) for place in BESIDE for name in RAW], 3 * most, make.__name__):
        found.run(f"{place} {name}", partial(_beside_ends, redis, make, place, RAW[name]))
    found.check()


def _beside_ends(redis: Database, make: Make, place: str, value: bytes) -> None:
    redis.flushall()
    scenario = make(redis)
    _put_beside(scenario, place, value)
    scenario.live()
    scenario.check_others()
    scenario.check_victim_is_gone()
    assert scenario.outcome() in scenario.ends


@pytest.mark.parametrize("make", [in_a_channels_line, leased], ids=named)
@in_extent
def test_an_operator_sees_past_what_is_malformed_beside_the_events(redis: Database, make: Make, most: int) -> None:
    found = Found()
    places = [*BESIDE, "paused *", "paused plain"]
    for place, name in drawn([(place, name) for place in places for name in RAW], 3 * most, make.__name__):
        found.run(f"{place} {name}", partial(_beside_seen, redis, make, place, RAW[name]))
    found.check()


def _beside_seen(redis: Database, make: Make, place: str, value: bytes) -> None:
    redis.flushall()
    scenario = make(redis)
    if place.startswith("paused"):
        redis.hset(scenario.stage.keys.paused, place.split(" ")[1], value)
    else:
        _put_beside(scenario, place, value)
    scenario.operate()


@pytest.mark.parametrize("paused", ["*", "plain"])
def test_a_pause_by_hand_that_is_malformed_ends_at_the_latest_when_it_is_taken_back(
    redis: Database, paused: str
) -> None:
    found = Found()
    for name, value in RAW.items():
        found.run(name, partial(_paused_ends, redis, paused, value))
    found.check()


def _paused_ends(redis: Database, paused: str, value: bytes) -> None:
    redis.flushall()
    scenario = in_a_channels_line(redis)
    redis.hset(scenario.stage.keys.paused, paused, value)
    for worker in scenario.workers:
        worker.run()
    scenario.goes_on += [partial(scenario.stage.pausing.resume, paused)]
    scenario.live()
    scenario.check_others()
    scenario.check_victim_is_gone()
    assert scenario.outcome() == "sent"


TALLY: Final = (
    "count", "first", "last", "why", "samples", "since", "edit", "shown", "channel", "ts", "next", "failed", "snap",
    "buffered", "name", "remember",
)  # fmt: skip


@pytest.mark.parametrize("make", [digest_collects, digest_grows], ids=named)
@in_extent
def test_a_tally_that_is_malformed_stops_nobody_and_its_category_is_told_of_again(
    redis: Database, make: Make, most: int
) -> None:
    values: dict[str, bytes | None] = {"absent": None, **RAW}
    found = Found()
    for field, name in drawn([(field, name) for field in TALLY for name in values], most, make.__name__):
        found.run(f"{field} {name}", partial(_tally_ends, redis, make, field, values[name]))
    found.check()


def _tally_ends(redis: Database, make: Make, field: str, value: bytes | None) -> None:
    redis.flushall()
    scenario = make(redis)
    key = scenario.stage.keys.tally(scenario.victim)
    if value is None:
        redis.hdel(key, field)
    else:
        redis.hset(key, field, value)
    scenario.stage.send("more", category="storms")
    scenario.others.append("more")
    scenario.live()
    scenario.check_others()
    check_told_again(scenario)

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

from dispatcher.store.operator_controls import Muting, Pausing
from tests.support.mutations import ABSENT, BROKEN, PAYLOADS, RAW, VALUES, Mutation, broken, headers, with_header
from tests.support.plights import EVENTS, OWN, Make, Plight, digest_collects, digest_grows, in_a_channels_line, leased
from tests.support.servers import Database

T = TypeVar("T")

DIGEST_IDS: Final = frozenset({"digest:storms", "notice:notes"})
SHOWN: Final = 10
"""Faults that a failure tells of."""


def named(make: Make) -> str:
    """What a plight is called in the name of a test."""
    return make.__name__


in_extent = pytest.mark.parametrize(
    "most", [pytest.param(5, id="some"), pytest.param(100_000, id="all", marks=pytest.mark.slow)]
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


def spoilt(redis: Database, make: Make, change: Mutation | str) -> Plight:
    """The plight, with another record in place of the victim's, or none."""
    redis.flushall()
    plight = make(redis)
    if isinstance(change, Mutation):
        plight.spoil(with_header(plight.record, change))
    else:
        plight.spoil(broken(plight.record, change))
    return plight


def changes(redis: Database, make: Make) -> list[Mutation | str]:
    """Everything that the victim's record may be and should not."""
    redis.flushall()
    plight = make(redis)
    payloads = () if plight.victim in DIGEST_IDS else PAYLOADS  # those have none
    return [*BROKEN, *payloads, *headers(plight.record)]


@everywhere
def test_nothing_is_wrong_where_nothing_is_malformed(redis: Database, make: Make) -> None:
    plight = make(redis)
    plight.operate()
    plight.live()
    plight.operate()
    plight.check_others()
    plight.check_victim_is_gone()
    assert plight.letters() == []


# An event of a producer


@of_producers
def test_what_is_no_record_becomes_a_dead_letter_and_all_others_go_on(redis: Database, make: Make) -> None:
    found = Found()
    for change in BROKEN:
        found.run(change, partial(_broken_ends, redis, make, change))
    found.check()


def _broken_ends(redis: Database, make: Make, change: str) -> None:
    plight = spoilt(redis, make, change)
    record, is_in_hands = plight.stored(), plight.is_in_hands()
    plight.live()
    plight.check_others()
    plight.check_victim_is_gone()
    if is_in_hands and plight.outcome() == "sent":  # who posted it knows that, whatever the record says
        assert plight.letters() == []
        return
    (letter,) = plight.letters()
    assert letter[b"reason"] == b"invalid"
    for part in (record or b"").split(b"\n", 1):
        assert any(part in value for value in letter.values()), f"{part!r} is not kept in the letter: {letter}"


@of_producers
def test_a_payload_that_cannot_be_read_is_kept_in_a_dead_letter(redis: Database, make: Make) -> None:
    """Of a newer version, too: such an event may have been admitted by a worker that could read it."""
    found = Found()
    for change in PAYLOADS:
        found.run(change, partial(_unreadable_ends, redis, make, change))
    found.check()


def _unreadable_ends(redis: Database, make: Make, change: str) -> None:
    plight = spoilt(redis, make, change)
    is_in_hands = plight.is_in_hands()
    plight.live()
    plight.check_others()
    plight.check_victim_is_gone()
    if is_in_hands and plight.outcome() == "sent":
        return
    (letter,) = plight.letters()
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
    plight = spoilt(redis, make, change)
    payload = plight.record.partition(b"\n")[2]
    plight.live()
    plight.check_others()
    plight.check_victim_is_gone()
    letters = plight.letters()
    assert len(letters) <= 1
    assert letters or plight.outcome() is not None, "nobody knows what became of it"
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
def test_what_a_newer_version_has_added_to_a_header_changes_nothing(redis: Database, make: Make) -> None:
    plight = make(redis)
    header = plight.header() | {"of_a_newer_version": {"a": [1, None]}, "another": "text"}
    plight.spoil(json.dumps(header, separators=(",", ":")).encode() + b"\n" + plight.record.partition(b"\n")[2])
    plight.live()
    plight.check_others()
    plight.check_victim_is_gone()
    assert plight.outcome() in plight.ends


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
    plight = spoilt(redis, make, change)
    plight.live()
    plight.check_others()
    plight.check_victim_is_gone()
    check_told_again(plight)


def check_told_again(plight: Plight) -> None:
    """What is suppressed from now on is told of."""
    plight.stage.clock.forward(7_200)
    ids = [f"again{n}" for n in range(9)]
    plight.stage.send(*ids, category=plight.victim.partition(":")[2])
    plight.others += ids
    plight.goes_on = []
    plight.workers = [plight.stage.worker("teller")]
    before = plight.posts()
    plight.live()
    plight.check_others()
    assert plight.posts() > before, "nobody was told of what was suppressed later"


# Operators


@everywhere
def test_cancelling_does_no_harm_where_nothing_is_malformed(redis: Database, make: Make) -> None:
    _operate_and_live(make(redis))


@everywhere
@in_extent
def test_an_operator_who_looks_or_cancels_stops_at_no_malformed_event(redis: Database, make: Make, most: int) -> None:
    found = Found()
    for change in drawn(changes(redis, make), most // 2, make.__name__):
        found.run(change, partial(_operated, redis, make, change))
    found.check()


def _operated(redis: Database, make: Make, change: Mutation | str) -> None:
    plight = spoilt(redis, make, change)
    _operate_and_live(plight)


def _operate_and_live(plight: Plight) -> None:
    plight.operate()
    plight.cancel()
    plight.operate()
    plight.ends |= {"dropped"}
    plight.live()
    plight.operate()
    plight.check_others()
    # A tally forgets one that was cancelled when the next one comes.
    assert [place for place in plight.places() if ":tally:" not in place] == []


# What is stored beside the events

PAUSE: Final = {
    "kind": "outage", "code": "connection_refused", "detail": "refused", "since": "1732100000000000",
    "probe": "1732100000000000", "prober": "", "gap": "1000000",
}  # fmt: skip
BESIDE: Final = (
    "deciding nobody", "deciding ann", "muted plain", "muted other",
    *(f"pause {field}" for field in PAUSE), *(f"pause only {field}" for field in PAUSE),
)  # fmt: skip


def _put_beside(plight: Plight, place: str, value: bytes) -> None:
    """A malformed value in a hash beside the events, where there may be others that are not."""
    stage, (name, *more, field) = plight.stage, place.split(" ")
    if name == "pause" and not more:
        stage.redis.hset(stage.keys.pause, mapping=PAUSE)
    if name == "muted":
        Muting(stage.redis, stage.keys, clock=stage.clock).mute("third", 60_000_000, "ed", "known")
    keys = {"deciding": stage.keys.deciding, "muted": stage.keys.muted, "pause": stage.keys.pause}
    stage.redis.hset(keys[name], field, value)


@pytest.mark.parametrize("make", [in_a_channels_line, leased], ids=named)
@in_extent
def test_what_is_malformed_beside_the_events_stops_nobody(redis: Database, make: Make, most: int) -> None:
    found = Found()
    for place, name in drawn([(place, name) for place in BESIDE for name in RAW], 3 * most, make.__name__):
        found.run(f"{place} {name}", partial(_beside_ends, redis, make, place, RAW[name]))
    found.check()


def _beside_ends(redis: Database, make: Make, place: str, value: bytes) -> None:
    redis.flushall()
    plight = make(redis)
    _put_beside(plight, place, value)
    if place == "muted plain":
        plight.ends |= {"dropped"}
    plight.live()
    plight.check_others()
    plight.check_victim_is_gone()
    assert plight.outcome() in plight.ends


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
    plight = make(redis)
    if place.startswith("paused"):
        redis.hset(plight.stage.keys.paused, place.split(" ")[1], value)
    else:
        _put_beside(plight, place, value)
    plight.operate()


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
    plight = in_a_channels_line(redis)
    redis.hset(plight.stage.keys.paused, paused, value)
    for worker in plight.workers:
        worker.run()
    pausing = Pausing(redis, plight.stage.keys, clock=plight.stage.clock)
    plight.goes_on += [partial(pausing.resume, paused)]
    plight.live()
    plight.check_others()
    plight.check_victim_is_gone()
    assert plight.outcome() == "sent"


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
    plight = make(redis)
    key = plight.stage.keys.tally(plight.victim)
    if value is None:
        redis.hdel(key, field)
    else:
        redis.hset(key, field, value)
    plight.stage.send("more", category="storms")
    plight.others.append("more")
    plight.live()
    plight.check_others()
    check_told_again(plight)

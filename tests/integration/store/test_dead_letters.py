"""Dead letters in an operator's hands: looked at, replayed one by one and each at most once, purged."""

from __future__ import annotations

import pytest
from redis import ResponseError

from dispatcher.app.documents.acted import letters_of
from dispatcher.core.event import Event, job_id_for
from dispatcher.core.limits import Bounds
from dispatcher.core.policy import OnLimit, again_after_us
from dispatcher.core.posts import Ambiguous, Rejected
from dispatcher.core.states import Leased
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US, Lane
from dispatcher.store.dead_letters import DeadLetters, Filter, Replayed
from tests.support.doubles import NOTHING_TO_READ, START_US
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, policy_of

DONE, GONE, WAITING = Replayed.DONE, Replayed.GONE, Replayed.WAITING


@pytest.fixture
def letters(stage: Stage) -> DeadLetters:
    return stage.dead_letters


def bury(stage: Stage, *ids: str, **fields: str) -> None:
    """Let an event of each id be rejected by the channel."""
    worker = stage.worker()
    stage.send(*ids, channel=UNPACED, **fields)
    for started in worker.go():
        worker.answer(started, Rejected("is_archived", "archived"))


def test_a_replayed_letter_leaves_the_slots_of_posts_that_may_have_arrived(stage: Stage, letters: DeadLetters) -> None:
    worker = stage.worker()
    worker.desk.shows = lambda _: NOTHING_TO_READ
    stage.send("x", channel=UNPACED)
    for n in range(MAX_ATTEMPTS):
        (started,) = worker.go()
        worker.answer(started, Ambiguous("http_500", "no answer"))
        worker.post_beside()
        stage.clock.forward(10)
        worker.go()
        stage.clock.now_us += again_after_us("x", n + 1)
    assert [letter.reason for letter in letters.find(Filter())] == ["ambiguous"]
    assert letters.now_us() == stage.clock.now_us
    charged = stage.slots("category:errors")
    assert len(charged) == MAX_ATTEMPTS
    assert letters.replay(letters.find(Filter())) == [DONE]
    worker.run()
    assert stage.total("sent") == MAX_ATTEMPTS + 1
    assert charged.items() < stage.slots("category:errors").items()
    assert len(stage.slots("category:errors")) == MAX_ATTEMPTS + 1


def test_letters_are_found_oldest_first_by_category_reason_and_time(stage: Stage, letters: DeadLetters) -> None:
    bury(stage, "a", "b")
    stage.clock.forward(60)
    bury(stage, "c", category="deploys")
    stage.redis.rpush(stage.queue.lanes[1], "gone")
    stage.worker().run()

    def found(**wanted: object) -> list[str]:
        return [letter.id for letter in letters.find(Filter(**wanted))]  # type: ignore[arg-type]  # fields by name

    assert found() == ["a", "b", "c", "gone"]
    assert found(category="errors") == ["a", "b"]
    assert found(reason="expired") == ["gone"]
    assert found(since_us=START_US + 60 * US) == ["c", "gone"]
    assert found(category="errors", since_us=START_US + 60 * US) == []


def test_every_letter_is_found_however_many_there_are(stage: Stage, letters: DeadLetters) -> None:
    ids = [f"e{n:03}" for n in range(450)]
    stage.redis.rpush(stage.queue.lanes[1], *ids)
    worker = stage.worker()
    worker.dispatch(worker.take(new=450).batch)
    assert [letter.id for letter in letters.find(Filter())] == ids


def test_backwards_nothing_is_asked_for_behind_the_oldest_letter(
    stage: Stage, redis: Database, letters: DeadLetters
) -> None:
    """The server would look at the whole stream for it."""
    bury(stage, "a", "b", "c")
    redis.config_resetstat()
    assert [letter.id for letter in letters.find(Filter(), newest_first=True)] == ["c", "b", "a"]
    asked_for_the_newest = 1
    assert redis.info("commandstats")["cmdstat_xrevrange"]["calls"] == asked_for_the_newest + 3


def test_a_letter_tells_its_event_and_what_became_of_it(stage: Stage, letters: DeadLetters) -> None:
    bury(stage, "a")
    letter = letters.get("a")
    assert letter is not None
    assert letter.event() == Event("errors", "text of a", id="a", channel=UNPACED)
    assert (letter.reason, letter.code, letter.attempts, letter.at_us) == ("rejected", "is_archived", 1, START_US)
    assert letters.get("unknown") is None


def test_a_replayed_letter_goes_the_normal_way_again(stage: Stage, letters: DeadLetters) -> None:
    bury(stage, "a", priority=Lane.HIGH)
    stage.send("b", priority=Lane.HIGH)
    stage.redis.delete(stage.queue.queues)
    assert letters.replay(letters.find(Filter())) == [DONE]
    stage.check()
    assert (stage.letters(), letters.get("a")) == ([], None)
    assert stage.redis.smembers(stage.queue.queues) == {stage.queue.lanes[0].encode()}
    worker = stage.worker()
    batch = worker.take().batch
    assert [(each.id, each.replays) for each in batch if isinstance(each, Leased)] == [("b", 0), ("a", 1)]
    worker.deliver(worker.dispatch(batch))
    worker.run()
    assert worker.desk.posts == ["b", "a"]
    overall = stage.snapshot().overall()
    assert (overall["received"], overall["sent"], overall["dead"], overall["replayed"]) == (3, 2, 1, 1)


def test_a_letter_is_replayed_once(stage: Stage, letters: DeadLetters) -> None:
    bury(stage, "a")
    (letter,) = letters.find(Filter())
    assert letters.replay([letter, letter]) == [DONE, GONE]
    assert letters.replay([letter]) == [GONE]
    assert stage.redis.lrange(stage.queue.lanes[1], 0, -1) == [b"a"]


def test_a_letter_whose_id_waits_on_a_lane_stays(stage: Stage, letters: DeadLetters) -> None:
    bury(stage, "a")
    stage.redis.hset(stage.queue.job("a"), "data", "another")
    (letter,) = letters.find(Filter())
    assert letters.replay([letter]) == [WAITING]
    assert [each.id for each in letters.find(Filter())] == ["a"]
    assert stage.redis.llen(stage.queue.lanes[1]) == 0


def test_a_letter_whose_job_is_a_key_of_something_else_stays(stage: Stage, letters: DeadLetters) -> None:
    bury(stage, "a", "b")
    stage.redis.rpush(stage.queue.job("a"), "no job")
    assert letters.replay(letters.find(Filter())) == [WAITING, DONE]
    assert [each.id for each in letters.find(Filter())] == ["a"]
    stage.letters_bytes()


@pytest.mark.parametrize("place", ["lane", "queues", "totals"])
def test_a_replay_that_meets_a_key_of_another_type_changes_nothing(
    stage: Stage, letters: DeadLetters, place: str
) -> None:
    bury(stage, "a")
    key = {"lane": stage.queue.lanes[0], "queues": stage.queue.queues, "totals": stage.keys.totals}[place]
    stage.redis.delete(key)
    stage.redis.set(key, "a string")
    before = {name: stage.redis.dump(name) for name in stage.redis.scan_iter()}
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        letters.replay(letters.find(Filter()))
    assert {name: stage.redis.dump(name) for name in stage.redis.scan_iter()} == before


def test_a_letter_of_an_earlier_version_counts_no_bytes(stage: Stage, letters: DeadLetters) -> None:
    bury(stage, "a")
    counted = stage.letters_bytes()
    old = stage.redis.xadd(stage.keys.dead, {"id": "old", "at": "1", "payload": "x" * 1_000, "reason": "invalid"})
    stage.redis.hset(stage.keys.dead_ids, "old", old)
    assert letters.purge(letters.find(Filter(reason="invalid"))) == 1
    assert [each.id for each in letters.find(Filter())] == ["a"]
    assert stage.letters_bytes() == counted


def test_the_letters_of_many_ids_are_read_page_by_page(stage: Stage, letters: DeadLetters) -> None:
    ids = [f"e{n}" for n in range(48)]
    bury(stage, *ids, "no letter/asked")
    stage.redis.config_resetstat()
    found, known = letters_of(letters, [*ids, "none", "no letter/asked", "e3"])
    assert sorted(each.id for each in found) == sorted([*ids, job_id_for("no letter/asked")])
    assert known == [*ids, "no letter/asked"]
    stats = stage.redis.info("commandstats")
    assert "cmdstat_hget" not in stats
    assert stats["cmdstat_hmget"]["calls"] <= 3


def test_without_letters_there_are_no_bytes_of_them(stage: Stage, letters: DeadLetters) -> None:
    bury(stage, "a", "b")
    assert letters.purge(letters.find(Filter())) == 2
    assert not stage.redis.exists(stage.keys.dead_bytes)


def test_a_replayed_id_is_no_duplicate_of_its_first_life(stage: Stage, letters: DeadLetters) -> None:
    bury(stage, "a")
    assert stage.redis.zscore(stage.keys.seen, "a") is not None
    letters.replay(letters.find(Filter()))
    worker = stage.worker()
    worker.run()
    assert (worker.desk.posts, stage.total("duplicate")) == (["a"], 0)
    assert stage.send("a") == [0]


def test_a_letter_tells_how_often_it_came_back(stage: Stage, letters: DeadLetters) -> None:
    bury(stage, "a")
    for replays in (1, 2, 3):
        letters.replay(letters.find(Filter()))
        worker = stage.worker()
        (started,) = worker.go()
        worker.answer(started, Rejected("is_archived", "archived"))
        (letter,) = letters.find(Filter())
        assert letter.replays == replays


@pytest.mark.parametrize("on_limit", list(OnLimit))
def test_a_replayed_event_that_the_limits_deny_is_a_dead_letter_again_or_waits(
    redis: Database, on_limit: OnLimit
) -> None:
    stage = Stage(redis, policy_of("2/30m", "", on_limit=on_limit))
    letters = stage.dead_letters
    bury(stage, "a")
    stage.send("b", "c", channel=UNPACED)
    worker = stage.worker()
    worker.run()
    letters.replay(letters.find(Filter()))
    worker.run()
    if on_limit is OnLimit.DEFER:
        assert (list(letters.find(Filter())), stage.snapshot().deferred) == ([], {"errors": 1})
        return
    (letter,) = letters.find(Filter())
    assert (letter.id, letter.reason, letter.scope, letter.limit) == ("a", "limit:global", "global", "2/30m")
    assert letter.fits_at_us == START_US + 1_800 * US


def test_purged_letters_are_gone_and_their_ids_may_come_again(stage: Stage, letters: DeadLetters) -> None:
    stage.redis.rpush(stage.queue.lanes[1], "a", "b", "c")
    stage.worker().run()
    chosen = [letter for letter in letters.find(Filter()) if letter.id != "b"]
    assert letters.purge(chosen) == 2
    assert letters.purge(chosen) == 0
    stage.check()
    assert [letter.id for letter in letters.find(Filter())] == ["b"]
    assert stage.redis.hkeys(stage.keys.dead_ids) == [b"b"]
    assert stage.total("dead") == 3
    for id_ in ("a", "b"):
        stage.redis.hset(stage.queue.job(id_), "data", "no event")
        stage.redis.rpush(stage.queue.lanes[1], id_)
    assert stage.worker().take().duplicates == ["b"]


def test_trimming_keeps_what_is_within_the_bounds(stage: Stage, letters: DeadLetters) -> None:
    for n in range(6):
        stage.redis.rpush(stage.queue.lanes[1], f"e{n}")
        stage.worker().run()
        stage.clock.forward(10)
    assert letters.trim(Bounds(100, 3_600 * US)) == 0
    assert letters.trim(Bounds(4, 3_600 * US)) == 2
    assert letters.trim(Bounds(4, 30 * US)) == 2
    assert [letter.id for letter in letters.find(Filter())] == ["e4", "e5"]
    assert letters.trim(Bounds(max_bytes=stage.letters_bytes())) == 0
    assert letters.trim(Bounds(max_bytes=stage.letters_bytes() - 1)) == 1
    assert [letter.id for letter in letters.find(Filter())] == ["e5"]

"""Versions of the limits: numbered, kept, published once, and never two contents under one name."""

from __future__ import annotations

import pytest

from dispatcher.core.units import US
from dispatcher.jsonio import encode
from dispatcher.server.keys import Keys
from dispatcher.store.versions import Published, Unless, Versions
from tests.support.doubles import START_US, Clock
from tests.support.servers import Database
from tests.support.stage import Stage

KEYS = Keys("stage")
KEPT, REMEMBERED = 20, 1_000


@pytest.fixture
def versions(redis: Database) -> Versions:
    return Versions(redis, KEYS, Clock())


def publish(
    versions: Versions, content: str, unless: Unless = Unless.SAME, *, if_version: int | None = None
) -> Published:
    """Publish a content whose digest is itself."""
    text, file = f"text of {content}", f"{content}.yaml"
    return versions.publish(text, content, by="ann", file=file, unless=unless, if_version=if_version)


def test_before_the_first_there_is_none(versions: Versions) -> None:
    assert versions.in_force() is None


def test_a_version_says_what_it_is_and_where_it_is_from(versions: Versions, redis: Database) -> None:
    assert publish(versions, "a") == Published("1-a", is_new=True, known=None)
    found = versions.in_force()
    assert found is not None
    assert (found.name, found.number, found.digest, found.content) == ("1-a", 1, "a", "text of a")
    assert (found.at_us, found.by, found.file) == (START_US, "ann", "a.yaml")
    assert redis.ttl(KEYS.limits_version) == -1


def test_a_content_that_was_a_version_is_published_again_only_if_asked_for(versions: Versions) -> None:
    publish(versions, "a")
    assert publish(versions, "a", Unless.KNOWN) == Published("1-a", is_new=False, known=1)
    assert publish(versions, "b", Unless.KNOWN) == Published("2-b", is_new=True, known=None)
    assert publish(versions, "a", Unless.KNOWN) == Published("2-b", is_new=False, known=1)
    assert publish(versions, "a") == Published("3-a", is_new=True, known=1)
    assert publish(versions, "b", Unless.KNOWN) == Published("3-a", is_new=False, known=2)


def test_a_content_that_is_in_force_is_no_new_version(versions: Versions) -> None:
    publish(versions, "a")
    assert publish(versions, "a") == Published("1-a", is_new=False, known=1)


def test_publish_if_version_publishes_only_over_that_version(versions: Versions, redis: Database) -> None:
    assert publish(versions, "a", if_version=1) == Published("", is_new=False, known=None)
    publish(versions, "a")
    assert publish(versions, "b", if_version=1) == Published("2-b", is_new=True, known=None)
    assert publish(versions, "a", if_version=1) == Published("2-b", is_new=False, known=1)
    assert publish(versions, "b", if_version=1) == Published("2-b", is_new=False, known=2)
    redis.hdel(KEYS.limits_versions[0], "2")
    assert publish(versions, "c", if_version=2) == Published("", is_new=False, known=None)


def test_publish_unless_any_publishes_only_the_first_version(versions: Versions) -> None:
    assert publish(versions, "a", Unless.ANY) == Published("1-a", is_new=True, known=None)
    assert publish(versions, "b", Unless.ANY) == Published("1-a", is_new=False, known=None)


def test_the_last_are_kept_and_of_many_more_it_is_known_that_they_were(versions: Versions, redis: Database) -> None:
    for n in range(1, REMEMBERED + 3):
        publish(versions, f"c{n}")
    files, digests = KEYS.limits_versions
    kept = sorted(int(number) for number in redis.hkeys(files))
    assert kept == list(range(REMEMBERED + 3 - KEPT, REMEMBERED + 3))
    assert redis.zcard(digests) == REMEMBERED
    assert publish(versions, "c3", Unless.KNOWN).known == 3
    assert publish(versions, "c2", Unless.KNOWN) == Published(f"{REMEMBERED + 3}-c2", is_new=True, known=None)


@pytest.mark.parametrize("name", ["7", "7-lost", "tuesday"])
def test_a_name_that_nothing_is_known_of_counts_as_none(versions: Versions, redis: Database, name: str) -> None:
    publish(versions, "a")
    redis.set(KEYS.limits_version, name)
    assert versions.in_force() is None
    answer = publish(versions, "a", Unless.KNOWN)
    assert (answer.is_new, answer.version.endswith("-a")) == (True, True)
    found = versions.in_force()
    assert found is not None
    assert (found.digest, found.number > 1) == ("a", True)


def test_a_number_that_a_server_lost_comes_back_under_another_name(versions: Versions, redis: Database) -> None:
    publish(versions, "a")
    before = {key: redis.dump(key) for key in (KEYS.limits_version, *KEYS.limits_versions)}
    lost = publish(versions, "b").version
    for key, dump in before.items():  # a failover to a replica that had not heard of it
        assert dump is not None
        redis.restore(key, 0, dump, replace=True)
    assert publish(versions, "c").version.partition("-")[0] == lost.partition("-")[0] == "2"
    found = versions.in_force()
    assert found is not None
    assert found.name != lost
    assert found.content == "text of c"


def test_publishing_says_that_all_that_waits_is_to_ask_anew_and_wakes_the_fleet(
    versions: Versions, redis: Database
) -> None:
    redis.zadd(KEYS.leases, {"ann": START_US, "bob": START_US, "cy": START_US})
    publish(versions, "a")
    begins = f"{START_US} 0".encode()
    assert redis.hgetall(KEYS.reopening) == {b"lines": begins, b"timers": begins, b"shared": b"0"}
    assert redis.llen(KEYS.wake) == 3
    redis.delete(KEYS.reopening)
    publish(versions, "b", Unless.ANY)
    assert (redis.exists(KEYS.reopening), redis.llen(KEYS.wake)) == (0, 3)


def test_after_new_limits_each_take_lets_a_page_of_lines_ask_anew(redis: Database) -> None:
    stage = Stage(redis)
    number = 62
    later = {f"scope:s{n}": START_US + (n + 1) * US for n in range(number)}
    redis.zadd(stage.keys.lines, {**later, "channel:#busy": float("inf"), "scope:past": START_US - 5})
    stage.versions.publish("{}", "digest", by="ed", file="limits.yaml", unless=Unless.SAME)
    outbox = stage.worker().outbox
    waiting = []
    for _ in range(3):
        taken = outbox.take(0, 0)
        waiting.append((redis.zcount(stage.keys.lines, START_US + 1, "(inf"), taken.more))
    assert waiting == [(37, True), (12, True), (0, False)]
    assert redis.zscore(stage.keys.lines, "channel:#busy") == float("inf")
    assert redis.exists(stage.keys.reopening) == 0


def test_after_new_limits_the_timers_of_limits_ask_anew_behind_any_number_of_others(redis: Database) -> None:
    stage = Stage(redis)
    ids = [f"e{n:02}" for n in range(60)]
    redis.zadd(stage.keys.timers, dict.fromkeys(ids, START_US + US))
    redis.hset(stage.keys.events, mapping=dict.fromkeys(ids[:40], '{"why":["retry"]}\n'))
    redis.hset(stage.keys.events, mapping=dict.fromkeys(ids[40:], '{"why":["limit:category"]}\n'))
    stage.versions.publish("{}", "digest", by="ed", file="limits.yaml", unless=Unless.SAME)
    outbox = stage.worker().outbox
    assert [outbox.take(0, 0).more for _ in range(3)] == [True, True, False]
    assert [each.decode() for each in redis.zrangebyscore(stage.keys.timers, 0, START_US)] == ids[40:]


FACTS = {"number": 1, "digest": "a", "content": "text of a", "at": "1", "by": "ann", "file": "a.yaml"}


@pytest.mark.parametrize(
    "row",
    [
        "garbage",
        "[]",
        encode({**FACTS, "number": "1"}),
        encode({**FACTS, "number": 2}),
        encode({**FACTS, "digest": "b"}),
        encode({**FACTS, "at": "soon"}),
        encode({**FACTS, "at": "9" * 17}),
        *(encode({**FACTS, name: None}) for name in FACTS),
        *(encode({other: FACTS[other] for other in FACTS if other != name}) for name in FACTS),
    ],
)
def test_a_row_that_publish_did_not_write_counts_as_no_version(versions: Versions, redis: Database, row: str) -> None:
    publish(versions, "a")
    for number, unless in enumerate(Unless, start=2):
        redis.set(KEYS.limits_version, "1-a")
        redis.hset(KEYS.limits_versions[0], "1", row)
        assert versions.in_force() is None
        done = publish(versions, f"c{number}", unless)
        assert (done.version, done.is_new) == (f"{number}-c{number}", True)
    assert [version.number for version in versions.kept()][:3] == [4, 3, 2]

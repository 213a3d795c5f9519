"""The limiter as a library: what it is asked and what it answers."""

from __future__ import annotations

import itertools
import os
from typing import Final

import pytest

from dispatcher.core.limits import Admitted, Denied, FirstOf, Scope
from dispatcher.core.units import US
from dispatcher.errors import RateLimited, StaleLimits
from dispatcher.limiter import Left, Limiter, Usage
from dispatcher.limiter.arguments import Ids
from dispatcher.testing import FakeLimiter
from tests.support.gate import Gate
from tests.support.limiters import KEYS, contents, scope
from tests.support.processes import until
from tests.support.servers import Database

NOW_US: Final = 1_732_100_000_123_457
USER: Final = scope("user:42", "2/1m")


# One call


def test_the_id_of_an_admission_is_the_callers_or_a_new_one(limiter: Limiter) -> None:
    named, anonymous = limiter.try_acquire(USER, "a"), limiter.try_acquire(USER)
    assert isinstance(named, Admitted)
    assert isinstance(anonymous, Admitted)
    assert named.id == "a"
    assert anonymous.id is not None
    assert limiter.release(USER, anonymous.id)


def test_an_admission_says_what_is_left_when_it_is_asked(limiter: Limiter) -> None:
    user, everyone = Scope("user:42", ["3/1m", "10/1h fixed"]), Scope("global", "5/30m", ids=False)
    minute, hour = user.limits
    first, second = (limiter.try_acquire([user, everyone], with_left=True, now_us=NOW_US) for _ in "12")
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert first.left == (Left("user:42", minute, 2), Left("user:42", hour, 9), Left("global", everyone.limits[0], 4))
    assert [each.left for each in second.left or ()] == [1, 8, 3]
    unasked = limiter.try_acquire([user, everyone], now_us=NOW_US)
    assert isinstance(unasked, Admitted)
    assert unasked.left is None
    assert isinstance(limiter.try_acquire([user, everyone], with_left=True, now_us=NOW_US), Denied)
    limiter.enforce("7")
    with pytest.raises(StaleLimits):
        limiter.try_acquire(user, with_left=True, version="6")


def test_an_id_that_asks_again_leaves_as_much_as_before(limiter: Limiter) -> None:
    for at_us in (NOW_US, NOW_US + US):
        verdict = limiter.try_acquire(USER, "a", with_left=True, now_us=at_us)
        assert isinstance(verdict, Admitted)
        assert verdict.left == (Left("user:42", USER.limits[0], 1),)


def test_a_reset_scope_has_all_of_its_room_and_no_other_has(limiter: Limiter, redis: Database) -> None:
    log, quota = scope("log", "1/1m", ids=False), scope("quota", "1/1h fixed", ids=False)
    everything = [USER, log, quota, scope("other", "1/1m")]
    limiter.try_acquire(everything, "a")
    assert limiter.reset(everything[:3]) == 3
    assert [limiter.usage(each)[0].used for each in everything] == [0, 0, 0, 1]
    assert (limiter.reset(USER), limiter.reset(FirstOf((USER, everything[3])))) == (0, 1)
    assert redis.keys() == []


def test_ids_made_before_and_after_a_fork_differ(limiter: Limiter, redis: Database) -> None:
    many = scope("many", "1000/10m")
    limiter.try_acquire(many)
    redis.connection_pool.disconnect()
    child = os.fork()
    if child == 0:
        for _ in range(50):
            limiter.try_acquire(many)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(50):
        limiter.try_acquire(many)
    assert limiter.usage(many)[0].used == 101


def test_an_id_is_never_longer_than_what_a_scope_stores_as_it_is() -> None:
    ids = Ids()
    ids._now = ids._now[0], itertools.count(16**7 - 2)  # noqa: SLF001 - nobody counts that far
    first, *more = [ids(), *ids.many(3), ids()]
    assert len(first) == 16
    assert all(len(each) == 10 for each in more)
    assert len({first, *more}) == 5
    ids._now = ids._now[0], itertools.count(16**7)  # noqa: SLF001 - as above
    assert len(ids()) == 10


def test_usage_is_told_of_any_iterable(limiter: Limiter) -> None:
    limiter.try_acquire(USER)
    assert limiter.usage_many(each for each in (USER, USER)) == [[Usage(USER.limits[0], 1, 0)]] * 2
    assert limiter.usage_many(iter(())) == []
    assert FakeLimiter().usage_many(each for each in (USER,)) == [[Usage(USER.limits[0], 0, 0)]]


def test_of_a_choice_the_first_with_room_is_charged(limiter: Limiter, redis: Database) -> None:
    share, shared = scope("guarantee:a", "1/1m"), scope("shared", "1/2m")
    first_of = FirstOf((share, shared))
    assert limiter.try_acquire(first_of, "a", now_us=NOW_US) == Admitted()
    assert limiter.try_acquire(first_of, "b", now_us=NOW_US + US) == Admitted()
    assert limiter.try_acquire(first_of, "c", now_us=NOW_US + US) == Denied("guarantee:a", share.limits[0], 59 * US)
    assert redis.zrange(KEYS.scope("guarantee:a"), 0, -1) == [b"a"]
    assert redis.zrange(KEYS.scope("shared"), 0, -1) == [b"b"]


def test_a_slot_in_another_alternative_goes_back_when_its_id_is_charged(limiter: Limiter, redis: Database) -> None:
    share, shared = scope("guarantee:a", "1/1m"), scope("shared", "1/2m")
    first_of = FirstOf((share, shared))
    limiter.try_acquire(share, "a", now_us=NOW_US)
    limiter.try_acquire(first_of, "b", now_us=NOW_US)
    assert limiter.try_acquire(first_of, "b", now_us=NOW_US + 60 * US) == Admitted()
    assert redis.zscore(KEYS.scope("guarantee:a"), "b") == NOW_US + 60 * US
    assert not redis.exists(KEYS.scope("shared"))


def test_without_ids_the_same_id_is_a_new_request(limiter: Limiter) -> None:
    for each in (scope("log", "2/1m", ids=False), scope("quota", "2/1h fixed", ids=False)):
        verdicts = [limiter.try_acquire(each, "a", now_us=NOW_US) for _ in range(3)]
        assert verdicts[:2] == [Admitted()] * 2
        assert isinstance(verdicts[2], Denied)
        with pytest.raises(
            ValueError, match=rf"scope '{each.name}' keeps no ids, so none of its slots can be given back"
        ):
            limiter.release(each, "a")


def test_a_batch_of_any_length_is_decided_in_calls_of_128(limiter: Limiter, redis: Database) -> None:
    many = scope("many", "290/10m")
    limiter.try_acquire(many)
    redis.config_resetstat()
    verdicts = limiter.try_acquire_many([many] * 300)
    assert verdicts.count(Admitted()) == 289
    assert all(isinstance(verdict, Denied) for verdict in verdicts[289:])
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == 3
    assert limiter.try_acquire_many([]) == []


def test_a_batch_of_thousands_is_counted_without_ids_too(redis: Database) -> None:
    log = (scope("log", "2200/1h", ids=False),)
    verdicts = Gate(redis, namespace="shop").try_acquire_many([("", log)] * 2500)
    assert verdicts.count(Admitted()) == 2200
    assert redis.llen(KEYS.log("log")) == 2200


def test_a_batch_may_be_an_iterator_of_lists_made_on_the_way(limiter: Limiter, redis: Database) -> None:
    verdicts = limiter.try_acquire_many([scope(f"user:{n}", "1/10m")] for n in range(5))
    assert verdicts == [Admitted()] * 5
    assert redis.dbsize() == 5


# Giving back, and looking


def test_a_released_slot_is_free_at_once_and_released_only_once(limiter: Limiter, redis: Database) -> None:
    choice = FirstOf((scope("guarantee:a", "1/1m"), scope("shared", "1/1m")))
    long_id = "an id that is longer than sixteen characters"
    assert limiter.try_acquire((USER, choice), long_id) == Admitted()
    assert limiter.release((USER, choice), long_id) is True
    assert not redis.keys()
    assert limiter.release((USER, choice), long_id) is False
    assert limiter.release(USER, "never seen") is False


def test_a_release_gives_back_the_slots_of_its_own_id_alone(limiter: Limiter) -> None:
    limiter.try_acquire(USER, "a")
    limiter.try_acquire(USER, "b")
    limiter.release(USER, "a")
    assert limiter.usage(USER)[0].used == 1
    assert limiter.try_acquire(USER, "c") == Admitted()
    assert isinstance(limiter.try_acquire(USER, "d"), Denied)


@pytest.mark.parametrize("ids", [True, False], ids=["with ids", "without"])
def test_usage_says_what_each_window_holds_and_when_it_has_room(limiter: Limiter, *, ids: bool) -> None:
    both = scope("both", "3/1m", "2/30s", "9/1h fixed", ids=ids)
    assert limiter.usage(both, now_us=NOW_US) == [Usage(limit, 0, 0) for limit in both.limits]
    for n in range(3):
        limiter.try_acquire(both, now_us=NOW_US + n * 20 * US)
    assert limiter.usage(both, now_us=NOW_US + 40 * US) == [
        Usage(both.limits[0], 3, 20 * US),
        Usage(both.limits[1], 2, 10 * US),
        Usage(both.limits[2], 3, 0),
    ]
    assert limiter.usage(both, now_us=NOW_US + 70 * US)[0] == Usage(both.limits[0], 2, 0)


def test_usage_of_a_quota_begins_anew_with_its_window(limiter: Limiter) -> None:
    quota, hour_us = scope("quota", "3/1h fixed", "5/1d fixed", ids=False), 1_732_104_000 * US
    for _ in range(3):
        limiter.try_acquire(quota, now_us=hour_us - 10)
    assert limiter.usage(quota, now_us=hour_us - 1)[0] == Usage(quota.limits[0], 3, 1)
    assert limiter.usage(quota, now_us=hour_us) == [Usage(quota.limits[0], 0, 0), Usage(quota.limits[1], 3, 0)]


# The guard


def test_the_guard_runs_the_block_while_there_is_room_and_raises_its_own_error_beyond(limiter: Limiter) -> None:
    ran = 0
    for _ in range(2):
        with limiter.ensure(USER) as admitted:
            assert isinstance(admitted.id, str)
            ran += 1
    with pytest.raises(RateLimited) as caught, limiter.ensure(USER):
        ran += 1
    assert ran == 2
    assert (caught.value.scope, caught.value.limit) == ("user:42", "2/1m")
    assert 50 < caught.value.retry_after <= 60
    assert str(caught.value).startswith("user:42 has used its 2/1m; there is room in ")


def test_the_guard_passes_on_what_the_block_raises_and_keeps_the_slot(limiter: Limiter) -> None:
    class TooManyRequests(Exception):
        """What the API behind the guard answers."""

    with pytest.raises(TooManyRequests), limiter.ensure(USER):
        raise TooManyRequests
    assert limiter.usage(USER)[0].used == 1


def test_a_repeated_id_passes_the_guard_without_a_second_slot(limiter: Limiter) -> None:
    for _ in range(5):
        with limiter.ensure(USER, "a"):
            assert limiter.usage(USER)[0].used == 1
        assert limiter.acquire(USER, "a", timeout=0) == Admitted()


# Versions


def test_a_call_by_limits_that_are_not_in_force_is_told_so_and_decides_nothing(
    limiter: Limiter, redis: Database
) -> None:
    assert limiter.try_acquire(USER, version="7") == Admitted(), "no version is in force yet"
    limiter.enforce("8")
    before = contents(redis)
    for call in (
        lambda: limiter.try_acquire(USER, version="7"),
        lambda: limiter.try_acquire_many([USER, USER], version="7"),
    ):
        with pytest.raises(StaleLimits, match="names version 7 of the limits, but version 8 is in force") as caught:
            call()
        assert (caught.value.asked, caught.value.in_force) == ("7", "8")
    assert contents(redis) == before
    assert limiter.try_acquire(USER, version="8") == Admitted()
    assert isinstance(limiter.try_acquire(USER), Denied), "who names no version is decided"


# What stays behind


@pytest.fixture
def everything(limiter: Limiter, redis: Database) -> Database:
    """A server on which the limiter has done all it can do."""
    for each in (
        USER,
        scope("log", "5/1m", ids=False),
        scope("quota", "5/1m fixed", ids=False),
        FirstOf((scope("guarantee:a", "5/1m"), scope("shared", "5/1m fixed"))),
        scope("free"),
        scope("log without limits", ids=False),
    ):
        limiter.try_acquire(each, "a")
    line = scope("line", "1/1m")
    limiter.acquire(line)
    with pytest.raises(RateLimited):
        limiter.acquire(line, timeout=0.01)
    return redis


def test_the_largest_cost_is_charged_and_given_back_whole(limiter: Limiter, redis: Database) -> None:
    scopes = [scope("a", "1500/1h"), scope("b", "1000/1h"), scope("c", "1500/1h")]
    assert limiter.try_acquire(scopes, "x", cost=1_000)
    assert not limiter.try_acquire(scopes[0], "y", cost=501)
    assert limiter.try_acquire(scopes[0], "y", cost=500)
    assert limiter.try_acquire(scopes, "x", cost=1_000), "the same id with the same cost takes no second slots"
    assert [redis.zcard(KEYS.scope(each.name)) for each in scopes] == [1_500, 1_000, 1_000]
    assert not limiter.release(scopes, "x")
    assert limiter.release(scopes, "x", cost=1_000)
    assert [redis.zcard(KEYS.scope(each.name)) for each in scopes] == [500, 0, 0]


def test_of_a_cost_that_smaller_limits_have_kept_a_part_of_the_rest_is_charged_anew(redis: Database) -> None:
    now_us = 1_732_100_000 * US
    limiter = Limiter(redis, namespace="shop", clock=lambda: now_us)
    assert limiter.try_acquire(scope("user", "5/1m"), "x", cost=4)
    now_us += 61 * US
    assert all(limiter.try_acquire_many([scope("user", "2/1m")] * 2))
    assert redis.zcard(KEYS.scope("user")) == 3
    again = limiter.try_acquire(scope("user", "8/1h"), "x", cost=4, with_left=True)
    assert isinstance(again, Admitted)
    assert [each.left for each in again.left or ()] == [2]
    assert redis.zcard(KEYS.scope("user")) == 6


def test_no_key_is_without_a_lifetime(everything: Database) -> None:
    lifetimes = {key: everything.pttl(key) for key in everything.scan_iter()}
    assert len(lifetimes) >= 5
    assert min(lifetimes.values()) >= 0
    assert max(lifetimes.values()) <= 2 * 60_000 + 1


def test_a_scope_without_ids_lives_as_long_as_its_longest_window(limiter: Limiter, redis: Database) -> None:
    limiter.try_acquire(scope("quota", "5/1m fixed", "9/2h fixed", "5/1h fixed", ids=False))
    limiter.try_acquire(scope("log", "5/1m", "9/2h", "5/1h", ids=False))
    for key in (KEYS.quota("quota"), KEYS.log("log")):
        assert 7_200_000 - 5_000 <= redis.pttl(key) <= 14_400_001


def test_the_key_of_a_batch_lives_as_long_as_its_longest_window(limiter: Limiter, redis: Database) -> None:
    assert limiter.try_acquire_many([scope("some", "5/1m", "9/2h")] * 2) == [Admitted()] * 2
    assert 7_200_000 - 5_000 <= redis.pttl(KEYS.scope("some")) <= 14_400_001


def test_an_id_that_owns_a_slot_in_one_of_its_scopes_moves_it_in_a_batch(limiter: Limiter) -> None:
    both, one = scope("both", "2/1h"), scope("one", "5/1h")
    assert limiter.try_acquire_many([both] * 2, ["moved", "stays"], now_us=NOW_US) == [
        Admitted("moved"),
        Admitted("stays"),
    ]
    later = NOW_US + US
    moved, denied = limiter.try_acquire_many([[both, one]] * 2, ["moved", "new"], now_us=later)
    assert (moved, denied) == (Admitted("moved"), Denied("both", both.limits[0], 3_599 * US))


def test_values_without_bound_leave_no_keys_behind(limiter: Limiter, redis: Database) -> None:
    kinds = [("1/50ms", True), ("1/50ms", False), ("1/50ms fixed", False), ("1/50ms fixed", True)]
    for n in range(0, 2000, 100):
        limiter.try_acquire_many([scope(f"label:{m}", kinds[m % 4][0], ids=kinds[m % 4][1]) for m in range(n, n + 100)])
    until(lambda: redis.dbsize() == 0, "every key to be gone", 5)


@pytest.mark.parametrize(
    ("slots", "ids", "bytes_each"), [(32, True, 45), (1000, True, 140), (100, False, 16), (10_000, False, 16)]
)
def test_a_slot_takes_few_bytes(limiter: Limiter, redis: Database, slots: int, *, ids: bool, bytes_each: int) -> None:
    many = scope("many", f"{slots}/1h", ids=ids)
    assert limiter.try_acquire_many([many] * slots) == [Admitted()] * slots
    key = KEYS.scope("many") if ids else KEYS.log("many")
    assert redis.memory_usage(key, samples=0) / slots <= bytes_each


@pytest.mark.parametrize("batch", [(1, None), (2, None), (1, ["a"]), (2, ["a", "b"])], ids=str)
@pytest.mark.parametrize(("most", "has_index"), [(32, False), (33, True)])
def test_the_set_of_a_large_scope_has_an_index_from_its_first_slot_on(
    limiter: Limiter, redis: Database, batch: tuple[int, list[str] | None], most: int, *, has_index: bool
) -> None:
    together, ids = batch
    limiter.try_acquire_many([scope("some", "5/1m", f"{most}/1h")] * together, ids)
    assert (redis.object("encoding", KEYS.scope("some")) == b"skiplist") is has_index
    assert redis.zcard(KEYS.scope("some")) == together


def test_a_quota_takes_the_same_bytes_however_much_it_counts(limiter: Limiter, redis: Database) -> None:
    quota = scope("quota", "100000/1h fixed", "200000/1d fixed", ids=False)
    limiter.try_acquire_many([quota] * 5000)
    assert redis.memory_usage(KEYS.quota("quota")) <= 200
    assert limiter.usage(quota)[0].used == 5000


def test_a_slot_that_no_limit_counts_any_more_is_none_to_give_back(redis: Database) -> None:
    now_us, user = [1_732_104_000 * US], Scope("user:42", ["1/1m"])
    limiter = Limiter(redis, namespace="past", clock=lambda: now_us[0])
    for passed_us, counted in ((60 * US - 1, True), (60 * US, False)):
        limiter.try_acquire(user, "a")
        now_us[0] += passed_us
        assert limiter.release(user, "a") is counted

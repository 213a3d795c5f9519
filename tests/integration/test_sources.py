"""What goes wrong with the limiters that this one takes the place of, on a real server, and does not go wrong here."""

from __future__ import annotations

import threading
from typing import Final

import pytest
from redis import Redis, ResponseError
from redis.crc import key_slot

from dispatcher.core.limits import Admitted, Denied, FirstOf, Verdict
from dispatcher.core.units import US
from dispatcher.limiter import Limiter
from dispatcher.server.scripts import read_script
from tests.support.limiters import KEYS, scope
from tests.support.models import most_in_any_window
from tests.support.recipes import (
    CheckThenAddRecipe,
    CounterRecipe,
    HierarchicalRecipe,
    SortedSetRecipe,
    TwoWindowsRecipe,
)
from tests.support.servers import Database

NOW_US: Final = 1_732_100_000_123_457
NOW_S: Final = 1_732_100_000


def admitted(verdicts: list[Verdict]) -> int:
    return verdicts.count(Admitted())


# 1. One limit for all and one for each event type, several senders


def test_members_that_are_instants_collide_and_ours_are_ids(limiter: Limiter, redis: Database) -> None:
    recipe = HierarchicalRecipe(redis, everyone=100, category=100, window_us=1_800 * US)
    assert all(recipe.try_send("errors", now_us=NOW_US) for _ in range(500))
    scopes = (scope("global", "100/30m"), scope("category:errors", "100/30m"))
    assert admitted(limiter.try_acquire_many([scopes] * 500, now_us=NOW_US)) == 100
    without_ids = (scope("log", "100/30m", ids=False),)
    assert admitted(limiter.try_acquire_many([without_ids] * 500, now_us=NOW_US)) == 100


def test_many_calls_in_one_transaction_are_still_counted_one_by_one(redis: Database) -> None:
    """Some servers freeze the clock for a whole transaction."""
    digest = redis.script_load(read_script("gate"))
    with redis.pipeline() as pipe:
        for n in range(500):
            call = f'{{"scopes":[[[100,1800000000]]],"rows":[["id{n}",1]]}}'
            pipe.execute_command("EVALSHA", digest, 1, KEYS.scope("global"), call)
        answers = pipe.execute()
    assert sum(b'"verdicts":[0]' in answer for answer in answers) == 100


def test_keys_that_never_expire_stay_and_ours_go(limiter: Limiter, redis: Database) -> None:
    recipe = HierarchicalRecipe(redis, everyone=1_000, category=10, window_us=1_800 * US)
    for n in range(50):
        recipe.try_send(f"type{n}")
    assert {redis.ttl(key) for key in redis.scan_iter()} == {-1}
    redis.flushall()
    for n in range(50):
        limiter.try_acquire((scope("global", "1000/30m"), scope(f"category:type{n}", "10/30m")))
    assert all(1_800 - 5 <= redis.ttl(key) <= 3_601 for key in redis.scan_iter())


def test_keys_of_one_decision_lie_in_several_slots_of_a_cluster_and_ours_in_one(
    limiter: Limiter, redis: Database
) -> None:
    recipe = HierarchicalRecipe(redis, everyone=1_000, category=10, window_us=1_800 * US)
    assert len({key_slot(key.encode()) for key in recipe.keys("errors")}) == 2
    limiter.try_acquire((scope("global", "1000/30m"), scope("category:errors", "10/30m")))
    assert len({key_slot(key) for key in redis.scan_iter()}) == 1


def test_a_call_after_a_quiet_time_pays_for_all_that_expired_and_ours_for_a_few(
    limiter: Limiter, redis: Database
) -> None:
    recipe = HierarchicalRecipe(redis, everyone=20_000, category=20_000, window_us=60 * US)
    redis.zadd("limits:global", {str(NOW_US + n): NOW_US + n for n in range(20_000)})
    recipe.try_send("errors", now_us=NOW_US + 120 * US)
    assert redis.zcard("limits:global") == 1
    many = scope("global", "20000/60s")
    redis.zadd(KEYS.scope("global"), {str(NOW_US + n): NOW_US + n for n in range(20_000)})
    assert limiter.try_acquire(many, now_us=NOW_US + 120 * US) == Admitted()
    assert redis.zcard(KEYS.scope("global")) >= 20_000 - 20


def test_a_storm_starves_quiet_types_and_a_guarantee_keeps_their_share(limiter: Limiter, redis: Database) -> None:
    recipe = HierarchicalRecipe(redis, everyone=100, category=100, window_us=1_800 * US)
    for n in range(300):
        recipe.try_send("storm", now_us=NOW_US + n)
    assert not recipe.try_send("quiet", now_us=NOW_US + 300)
    everyone, shared = scope("global", "100/30m"), scope("shared", "90/30m")
    storm, quiet = (everyone, shared), (everyone, FirstOf((scope("guarantee:quiet", "10/30m"), shared)))
    assert admitted(limiter.try_acquire_many([storm] * 300, now_us=NOW_US)) == 90
    assert admitted(limiter.try_acquire_many([quiet] * 12, now_us=NOW_US)) == 10


@pytest.mark.parametrize("senders", [1, 4, 16])
def test_twenty_event_types_and_any_number_of_senders_stay_within_both_limits(redis_url: str, senders: int) -> None:
    verdicts: dict[str, list[Verdict]] = {f"type{n}": [] for n in range(20)}
    start = threading.Barrier(senders)

    def send(part: int) -> None:
        with Redis.from_url(redis_url) as client:
            limiter, everyone = Limiter(client, namespace="shop"), scope("global", "100/30m")
            start.wait()
            for n in range(part, 320, senders):
                category = f"type{n % 20}"
                verdicts[category].append(limiter.try_acquire((everyone, scope(f"category:{category}", "10/30m"))))

    threads = [threading.Thread(target=send, args=(part,)) for part in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted(each) for each in verdicts.values()) == 100
    assert max(admitted(each) for each in verdicts.values()) <= 10
    assert sum(len(each) for each in verdicts.values()) == 320


# 2. A counter for each second


def test_a_counter_for_each_second_lets_twice_the_limit_pass_at_its_border(limiter: Limiter, redis: Database) -> None:
    recipe = CounterRecipe(redis, limit=10)
    instants_s = [NOW_S + 0.95 + n * 0.004 for n in range(25)]
    assert sum(recipe.try_acquire("u", now_s=now_s) for now_s in instants_s) == 20
    user = scope("u", "10/1s")
    assert sum(limiter.try_acquire(user, now_us=round(now_s * US)) == Admitted() for now_s in instants_s) == 10


def test_a_counter_by_the_callers_clocks_lets_each_clock_pass(limiter: Limiter, redis: Database) -> None:
    recipe = CounterRecipe(redis, limit=10)
    clocks_s = [NOW_S + worker for worker in range(5)]
    assert sum(recipe.try_acquire("u", now_s=now_s) for now_s in clocks_s for _ in range(20)) == 50
    assert admitted([limiter.try_acquire(scope("u", "10/1h")) for _ in range(100)]) == 10  # the server's clock


def test_a_counter_recipe_polls_for_a_slot_and_acquire_sleeps(limiter: Limiter, redis: Database) -> None:
    recipe, asked, now_s = CounterRecipe(redis, limit=1), 0, float(NOW_S)
    recipe.try_acquire("u", now_s=now_s)
    while not recipe.try_acquire("u", now_s=now_s):
        asked, now_s = asked + 1, now_s + 0.05
    assert asked >= 19
    limiter.acquire(scope("u", "1/300ms"))
    redis.config_resetstat()
    limiter.acquire(scope("u", "1/300ms"))
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] <= 4


# 3. A sorted set for each user


def test_adding_before_counting_starves_who_asks_too_often(limiter: Limiter, redis: Database) -> None:
    recipe, user = SortedSetRecipe(redis, limit=10, window_s=1), scope("u", "10/1s")
    theirs, ours = [], []
    for n in range(200):  # twenty a second for ten seconds
        now_us = NOW_US + n * US // 20
        if recipe.try_acquire("u", now_s=now_us / US):
            theirs.append(now_us)
        redis.persist(KEYS.scope("u"))  # keys live in real time
        if limiter.try_acquire(user, now_us=now_us) == Admitted():
            ours.append(now_us)
    assert len(theirs) == 10
    assert len(ours) == 100
    assert most_in_any_window(ours, US) == 10


def test_members_collide_within_a_millisecond_and_ours_do_not(limiter: Limiter, redis: Database) -> None:
    recipe = SortedSetRecipe(redis, limit=10, window_s=60)
    assert all(recipe.try_acquire("u", now_s=NOW_S) for _ in range(1_000))
    assert admitted(limiter.try_acquire_many([scope("u", "10/60s")] * 1_000, now_us=NOW_US)) == 10


def test_a_window_of_half_a_second_fails_after_the_write_and_ours_is_exact(limiter: Limiter, redis: Database) -> None:
    with pytest.raises(ResponseError, match="not an integer"):
        SortedSetRecipe(redis, limit=10, window_s=0.5).try_acquire("u", now_s=NOW_S)
    assert redis.zcard("sliding:u") == 1
    half = scope("u", "1/0.5s")
    assert limiter.try_acquire(half, now_us=NOW_US) == Admitted()
    assert limiter.try_acquire(half, now_us=NOW_US) == Denied("u", half.limits[0], US // 2)
    assert limiter.try_acquire(half, now_us=NOW_US + US // 2) == Admitted()


# 4. Two windows around the calls of another's API


@pytest.mark.slow
def test_windows_charged_one_by_one_lose_what_the_next_refuses(limiter: Limiter, redis: Database) -> None:
    recipe, api = TwoWindowsRecipe(redis, (300, 300), (25, 5)), scope("api", "300/5m", "25/5s")
    theirs = ours = 0
    for n in range(300 * 8):  # eight calls a second for five minutes
        theirs += recipe.try_call(now_s=NOW_S - NOW_S % 300 + n // 8)
    for n in range(300 * 8):
        ours += limiter.try_acquire(api, now_us=(NOW_S + n // 8) * US + n % 8 * US // 8) == Admitted()
    assert ours == 300
    assert theirs < 225


# 5. One limit for the operations of all users


def test_checking_before_adding_lets_all_pass_who_check_at_once(redis_url: str, redis: Database) -> None:
    recipe = CheckThenAddRecipe(redis, limit=5, window_s=60)
    passed = [n for n in range(32) if recipe.check(now_s=NOW_S)]
    for n in passed:
        recipe.add(now_s=NOW_S, member=f"operation{n}")
    assert len(passed) == 32
    assert redis.zcard("operations") == 32

    verdicts, start = list[Verdict](), threading.Barrier(32)

    def operate() -> None:
        with Redis.from_url(redis_url) as client:
            start.wait()
            verdicts.append(Limiter(client, namespace="shop").try_acquire(scope("operations", "5/1m")))

    threads = [threading.Thread(target=operate) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert admitted(verdicts) == 5


def test_a_member_for_each_second_counts_once_and_ours_each_time(limiter: Limiter, redis: Database) -> None:
    recipe = CheckThenAddRecipe(redis, limit=5, window_s=60)
    for _ in range(1_000):
        assert recipe.check(now_s=NOW_S)
        recipe.add(now_s=NOW_S)
    operations = scope("operations", "5/60s")
    assert limiter.peek(operations, now_us=NOW_US) == Admitted()
    assert admitted(limiter.try_acquire_many([operations] * 1_000, now_us=NOW_US)) == 5
    assert isinstance(limiter.peek(operations, now_us=NOW_US), Denied)

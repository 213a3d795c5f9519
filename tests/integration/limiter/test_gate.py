"""The gate on a real server: what each of its promises looks like, one by one.

Instants are made up and passed in; keys live in real time, so windows are longer than any test takes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from random import Random
from typing import Final

import pytest
from redis import Redis, ResponseError
from redis.crc import key_slot

from dispatcher.core.limits import Admitted, Denied, Limit, Scope, Verdict, slot_id
from dispatcher.core.units import US
from dispatcher.errors import GateRefused, GateUnavailable
from dispatcher.limiter import Limiter, Usage
from dispatcher.server.keys import Keys
from tests.support.gate import Gate
from tests.support.limiters import KEYS, scope
from tests.support.models import HELD, GateModel, most_in_any_window, stored_slots
from tests.support.servers import Database, RedisServer
from tests.support.slots import SlotScripts

NOW_US: Final = 1_732_100_000_123_457


@pytest.fixture
def gate(redis: Database) -> Gate:
    return Gate(redis, namespace="shop")


@pytest.fixture
def slots(redis: Database) -> SlotScripts:
    return SlotScripts(redis)


def contents(redis: Database) -> dict[bytes, object]:
    """Every key with its value and, to the second, its lifetime."""
    return {key: (redis.dump(key), round(redis.pttl(key) / 10_000)) for key in redis.scan_iter()}


def writes(redis: Database) -> int:
    return int(redis.info("persistence")["rdb_changes_since_last_save"])


def charged_at(redis: Database, name: str, id_: str) -> float | None:
    score: float | None = redis.zscore(KEYS.scope(name), id_)
    return score


# One window


def test_as_many_as_the_limit_says_are_admitted_and_the_next_is_told_when(limiter: Limiter) -> None:
    user = scope("user:42", "3/1m")
    verdicts = [limiter.try_acquire([user], now_us=NOW_US + n * US) for n in range(4)]
    assert verdicts[:3] == [Admitted()] * 3
    assert verdicts[3] == Denied("user:42", Limit.parse("3/1m"), 57 * US)


@pytest.mark.parametrize(
    "limits",
    [("2/1m",), ("2/30.5s",), ("2/1m fixed",), ("5/30s", "2/10m"), ("2/30s", "5/10m"), ("2/1h fixed", "1/31s")],
    ids=" ".join,
)
def test_a_denied_call_is_denied_until_retry_after_and_admitted_at_that_instant(
    limiter: Limiter, limits: tuple[str, ...]
) -> None:
    user, at_us, waits = scope("user:42", *limits), NOW_US, 0
    for _ in range(12):
        verdict = limiter.try_acquire([user], now_us=at_us)
        if isinstance(verdict, Denied):
            waits += 1
            early = limiter.try_acquire([user], now_us=at_us + verdict.retry_after_us - 1)
            assert early == Denied(verdict.scope, verdict.limit, 1)
            at_us += verdict.retry_after_us
            assert limiter.try_acquire([user], now_us=at_us) == Admitted()
        at_us += 7 * US + 1
    assert waits >= 2


def test_no_window_holds_more_than_its_limit_however_calls_arrive(limiter: Limiter) -> None:
    random, user, at_us = Random(7), scope("user:42", "4/30s", "9/2m"), NOW_US
    admitted = []
    for _ in range(400):
        at_us += random.choice((0, 1, US // 3, 2 * US, 9 * US))
        if limiter.try_acquire([user], now_us=at_us) == Admitted():
            admitted.append(at_us)
    assert most_in_any_window(admitted, 30 * US) == 4
    assert most_in_any_window(admitted, 120 * US) == 9


def test_many_ids_at_one_microsecond_take_a_slot_each(limiter: Limiter, redis: Database) -> None:
    user = scope("user:42", "50/1m")
    verdicts = [limiter.try_acquire([user], now_us=NOW_US) for _ in range(51)]
    assert verdicts == [Admitted()] * 50 + [Denied("user:42", user.limits[0], 60 * US)]
    assert redis.zcard(KEYS.scope("user:42")) == 50


def test_instants_keep_their_last_microsecond(limiter: Limiter, redis: Database) -> None:
    limiter.try_acquire([scope("user:42", "5/1m")], "a", now_us=NOW_US)
    assert charged_at(redis, "user:42", "a") == NOW_US


def test_a_window_aligned_to_the_clock_begins_anew_with_its_quarter(limiter: Limiter) -> None:
    quota, noon_us = scope("quota", "2/1h fixed"), 1_732_104_000 * US
    assert limiter.try_acquire([quota], now_us=noon_us - 2) == Admitted()
    assert limiter.try_acquire([quota], now_us=noon_us - 1) == Admitted()
    assert limiter.try_acquire([quota], now_us=noon_us - 1) == Denied("quota", quota.limits[0], 1)
    assert [limiter.try_acquire([quota], now_us=noon_us) for _ in range(3)] == [
        Admitted(),
        Admitted(),
        Denied("quota", quota.limits[0], 3_600 * US),
    ]


def test_a_fixed_window_keeps_its_count_when_others_ask_without_naming_it(limiter: Limiter, redis: Database) -> None:
    noon_us = 1_732_104_000 * US
    both, hour = Scope("quota", ["50/1h fixed", "3/1d fixed"], ids=False), Scope("quota", ["50/1h fixed"], ids=False)
    for n in range(3):
        assert limiter.try_acquire([both], now_us=noon_us + n) == Admitted()
        assert limiter.try_acquire([hour], now_us=noon_us + n) == Admitted()
    assert limiter.try_acquire([both], now_us=noon_us + 3) == Denied("quota", both.limits[1], 43_200 * US - 3)
    assert redis.pttl(KEYS.quota("quota")) > 3_600_000
    assert limiter.try_acquire([both], now_us=noon_us + 43_200 * US) == Admitted(), "the next day"


def test_windows_that_have_ended_and_windows_beyond_the_bound_are_not_kept(limiter: Limiter, redis: Database) -> None:
    noon_us, key = 1_732_104_000 * US, KEYS.quota("quota")
    for minutes in range(1, 100):
        limiter.try_acquire([Scope("quota", f"5/{minutes}m fixed", ids=False)], now_us=noon_us)
    assert (redis.get(key) or b"").count(b" ") == 8
    limiter.try_acquire([Scope("quota", "5/1d fixed", ids=False)], now_us=noon_us + 3_600 * US * 2)
    assert (redis.get(key) or b"").split(b":", 1)[0] == b"86400000000"
    assert b" " not in (redis.get(key) or b"")


@pytest.mark.parametrize(("charged", "blocked_s"), [(1, 600), (2, 600 + 3_600)])
def test_a_clock_stepped_back_over_a_quota_blocks_until_there_is_room_in_the_window_that_was_charged(
    limiter: Limiter, charged: int, blocked_s: int
) -> None:
    quota, noon_us = Scope("quota", ["2/1h fixed"], ids=False), 1_732_104_000 * US
    for _ in range(charged):
        assert limiter.try_acquire([quota], now_us=noon_us) == Admitted()
    assert limiter.try_acquire([quota], now_us=noon_us - 600 * US) == Denied("quota", quota.limits[0], blocked_s * US)


def test_a_window_of_a_microsecond_is_decided(limiter: Limiter) -> None:
    blink = Scope("blink", (Limit(1, window_us=1),))
    assert limiter.try_acquire([blink], now_us=NOW_US) == Admitted()
    assert limiter.try_acquire([blink], now_us=NOW_US + 1) == Admitted()


def test_without_an_instant_the_server_tells_the_time(limiter: Limiter, redis: Database) -> None:
    before = redis.time()
    limiter.try_acquire([scope("user:42", "5/1m")], "a")
    after = redis.time()
    at_us = charged_at(redis, "user:42", "a")
    assert at_us is not None
    assert before[0] * US + before[1] <= at_us <= after[0] * US + after[1]


def test_a_clock_stepped_back_blocks_for_the_step_and_the_window_at_most(limiter: Limiter) -> None:
    user, step_us = scope("user:42", "2/1m"), 600 * US
    for _ in range(2):
        limiter.try_acquire([user], now_us=NOW_US)
    assert limiter.try_acquire([user], now_us=NOW_US - step_us) == Denied("user:42", user.limits[0], step_us + 60 * US)


def test_a_clock_stepped_back_never_moves_a_slot_back(limiter: Limiter, redis: Database) -> None:
    user = scope("user:42", "2/1m")
    limiter.try_acquire([user], "a", now_us=NOW_US)
    assert limiter.try_acquire([user], "a", now_us=NOW_US - 10 * US) == Admitted()
    assert charged_at(redis, "user:42", "a") == NOW_US


# Several scopes


def test_a_call_charges_every_scope_or_none(limiter: Limiter, redis: Database) -> None:
    everyone, one = scope("global", "10/1m"), scope("category:errors", "1/1m")
    limiter.try_acquire([everyone, one], now_us=NOW_US)
    refused = limiter.try_acquire([everyone, one], now_us=NOW_US)
    assert refused == Denied("category:errors", one.limits[0], 60 * US)
    assert redis.zcard(KEYS.scope("global")) == 1
    for _ in range(9):
        limiter.try_acquire([everyone], now_us=NOW_US)
    other = limiter.try_acquire([scope("category:deploys", "5/1m"), everyone], now_us=NOW_US)
    assert other == Denied("global", everyone.limits[0], 60 * US)
    assert not redis.exists(KEYS.scope("category:deploys"))


def test_a_denial_names_the_scope_and_the_window_that_free_up_last(limiter: Limiter) -> None:
    everyone, one = scope("global", "2/1m"), scope("category:errors", "2/30s", "2/10m")
    for n in range(2):
        limiter.try_acquire([everyone, one], now_us=NOW_US + n * US)
    assert limiter.try_acquire([everyone, one], now_us=NOW_US + US) == Denied(
        "category:errors", Limit.parse("2/10m"), 599 * US
    )


def test_of_scopes_and_windows_that_free_up_together_the_first_is_named(limiter: Limiter) -> None:
    first, second = scope("first", "1/1m", "1/60s"), scope("second", "1/1m")
    limiter.try_acquire([first, second], now_us=NOW_US)
    for order in ([first, second], [second, first]):
        verdict = limiter.try_acquire(order, now_us=NOW_US)
        assert verdict == Denied(order[0].name, order[0].limits[0], 60 * US)


def test_a_scope_without_limits_admits_all(limiter: Limiter) -> None:
    assert [limiter.try_acquire([scope("free")], now_us=NOW_US) for _ in range(50)] == [Admitted()] * 50


def test_an_event_without_scopes_is_admitted(gate: Gate, redis: Database) -> None:
    assert gate.try_acquire_many([("a", ()), ("b", ())], now_us=NOW_US) == [Admitted(), Admitted()]
    assert not redis.keys()


# What is written


def test_a_denied_call_writes_nothing(limiter: Limiter, redis: Database) -> None:
    scopes = [scope("global", "5/1m"), scope("category:errors", "1/10m")]
    limiter.try_acquire(scopes, "a", now_us=NOW_US)
    before, count = contents(redis), writes(redis)
    for _ in range(20):
        assert isinstance(limiter.try_acquire([*scopes, scope("new", "1/1m")], now_us=NOW_US + US), Denied)
    assert (contents(redis), writes(redis)) == (before, count)


def test_a_peeked_call_writes_nothing_and_answers_the_same(limiter: Limiter, redis: Database) -> None:
    scopes = [scope("global", "5/1m"), scope("category:errors", "1/10m")]
    before, count = contents(redis), writes(redis)
    assert [limiter.peek(scopes, now_us=NOW_US) for _ in range(5)] == [Admitted()] * 5
    assert (contents(redis), writes(redis)) == (before, count)
    limiter.try_acquire(scopes, "a", now_us=NOW_US)
    before, count = contents(redis), writes(redis)
    denied = Denied("category:errors", scopes[1].limits[0], 599 * US)
    assert limiter.peek(scopes, "b", now_us=NOW_US + US) == denied
    assert limiter.peek(scopes, "a", now_us=NOW_US + US) == Admitted()
    assert (contents(redis), writes(redis)) == (before, count)


def test_every_scope_key_lives_as_long_as_its_longest_window(limiter: Limiter, redis: Database) -> None:
    limiter.try_acquire([scope("short", "5/30.0001s"), scope("long", "5/30s", "9/2h", "3/1m")], now_us=NOW_US)
    assert 30_001 <= redis.pttl(KEYS.scope("short")) + 5_000 <= 66_000
    assert 7_200_000 <= redis.pttl(KEYS.scope("long")) + 5_000 <= 14_406_000


def test_a_lifetime_is_renewed_only_when_it_has_run_below_the_window(limiter: Limiter, redis: Database) -> None:
    user, key = scope("user:42", "5/1h"), KEYS.scope("user:42")
    limiter.try_acquire([user], now_us=NOW_US)
    redis.pexpire(key, 3_700_000)
    limiter.try_acquire([user], now_us=NOW_US)
    assert redis.pttl(key) <= 3_700_000
    redis.pexpire(key, 3_500_000)
    limiter.try_acquire([user], now_us=NOW_US)
    assert redis.pttl(key) > 7_000_000


def test_a_lifetime_grows_with_the_window(limiter: Limiter, redis: Database) -> None:
    limiter.try_acquire([scope("user:42", "5/30s")], now_us=NOW_US)
    limiter.try_acquire([scope("user:42", "5/1d")], now_us=NOW_US)
    assert redis.pttl(KEYS.scope("user:42")) >= 86_400_000 - 5_000


def test_a_scope_keeps_one_slot_more_than_its_largest_limit(limiter: Limiter, redis: Database) -> None:
    user, key = scope("user:42", "2/30s", "5/1m"), KEYS.scope("user:42")
    for n in range(300):
        limiter.try_acquire([user], now_us=NOW_US + n * 31 * US)
        assert redis.zcard(key) <= 6


def test_slots_that_a_lowered_limit_no_longer_needs_go_within_a_few_calls(
    limiter: Limiter, gate: Gate, redis: Database
) -> None:
    wide = scope("user:42", "200/30s")
    gate.try_acquire_many([(f"id{n}", (wide,)) for n in range(200)], now_us=NOW_US)
    sizes = []
    for n in range(1, 16):
        limiter.try_acquire([scope("user:42", "5/30s")], now_us=NOW_US + n * 31 * US)
        sizes.append(redis.zcard(KEYS.scope("user:42")))
    assert sizes[0] >= 180  # one call never pays for the whole history
    assert sizes[-1] == 6


def test_history_that_a_smaller_limit_dropped_counts_as_empty(limiter: Limiter) -> None:
    for n in range(4):
        assert limiter.try_acquire([scope("user:42", "1/30s")], now_us=NOW_US + n * 30 * US) == Admitted()
    grown, at_us = scope("user:42", "4/10m"), NOW_US + 91 * US
    verdicts = [limiter.try_acquire([grown], now_us=at_us) for _ in range(3)]
    assert verdicts == [Admitted(), Admitted(), Denied("user:42", grown.limits[0], 569 * US)]


def test_a_key_of_another_type_is_an_error_and_nothing_is_written(gate: Gate, redis: Database) -> None:
    redis.set(KEYS.scope("category:errors"), "not ours")
    before, count = contents(redis), writes(redis)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        gate.try_acquire_many(
            [("a", (scope("global", "5/1m"),)), ("b", (scope("global", "5/1m"), scope("category:errors", "5/1m")))],
            now_us=NOW_US,
        )
    assert (contents(redis), writes(redis)) == (before, count)


def test_a_wrong_key_type_of_a_scope_without_limits_raises_and_writes_nothing(
    limiter: Limiter, redis: Database
) -> None:
    redis.set(KEYS.scope("category:errors"), "not ours")
    before, count = contents(redis), writes(redis)
    with pytest.raises(GateRefused, match="category:errors holds a string"):
        limiter.try_acquire_many(
            [[scope("global", "5/1m")], [scope("global", "5/1m"), scope("category:errors")]], now_us=NOW_US
        )
    assert (contents(redis), writes(redis)) == (before, count)


def test_all_keys_of_a_decision_share_one_hash_tag(limiter: Limiter, redis: Database) -> None:
    limiter.try_acquire([scope("global", "5/1m"), scope("user:{x}", "5/1m")], now_us=NOW_US)
    assert {key_slot(key) for key in redis.scan_iter()} == {key_slot(b"shop")}


# A slot belongs to an id


def test_a_repeated_id_takes_no_second_slot_and_its_slot_moves_to_now(limiter: Limiter, redis: Database) -> None:
    user = scope("user:42", "1/1m")
    for n in range(5):
        assert limiter.try_acquire([user], "a", now_us=NOW_US + n * US) == Admitted()
    assert charged_at(redis, "user:42", "a") == NOW_US + 4 * US
    assert limiter.try_acquire([user], "b", now_us=NOW_US + 60 * US) == Denied("user:42", user.limits[0], 4 * US)


def test_a_repeated_id_that_is_refused_keeps_its_slots(limiter: Limiter, redis: Database) -> None:
    everyone, one = scope("global", "3/1m"), scope("category:errors", "1/1m")
    limiter.try_acquire([everyone], "a", now_us=NOW_US)
    limiter.try_acquire([one], "b", now_us=NOW_US)
    assert isinstance(limiter.try_acquire([everyone, one], "a", now_us=NOW_US + US), Denied)
    assert charged_at(redis, "global", "a") == NOW_US


def test_a_repeated_id_whose_slot_was_older_than_all_that_count_is_not_counted_for_itself(limiter: Limiter) -> None:
    user = scope("user:42", "2/1m")
    limiter.try_acquire([user], "a", now_us=NOW_US)
    limiter.try_acquire([user], "b", now_us=NOW_US + US)
    assert limiter.try_acquire([user], "a", now_us=NOW_US + 2 * US) == Admitted()
    assert limiter.try_acquire([user], "c", now_us=NOW_US + 2 * US) == Denied("user:42", user.limits[0], 59 * US)


@pytest.mark.parametrize("length", [1, 16, 17, 36, 128, 512])
def test_an_id_of_any_length_owns_its_slot(limiter: Limiter, redis: Database, length: int) -> None:
    user, id_ = scope("user:42", "2/1m"), "x" * length
    assert [limiter.try_acquire([user], id_, now_us=NOW_US) for _ in range(3)] == [Admitted()] * 3
    assert limiter.try_acquire([user], id_[:-1] + "y", now_us=NOW_US) == Admitted()
    assert redis.zrange(KEYS.scope("user:42"), 0, -1) == sorted(
        slot_id(each).encode() for each in (id_, id_[:-1] + "y")
    )
    assert all(len(member) <= 16 for member in redis.zrange(KEYS.scope("user:42"), 0, -1))


def test_an_id_of_any_characters_owns_its_slot(gate: Gate, redis: Database) -> None:
    user = scope("user:42", "9/1m")
    ids = ("a b", "ä", "\x00", '"\\', "😀", "1e3", "nan", "-inf")
    verdicts = gate.try_acquire_many([(id_, (user,)) for id_ in (*ids, *ids)], now_us=NOW_US)
    assert verdicts == [Admitted()] * 16
    assert set(redis.zrange(KEYS.scope("user:42"), 0, -1)) == {id_.encode() for id_ in ids}


# Held slots


def test_held_slots_count_until_their_deadline(limiter: Limiter, slots: SlotScripts) -> None:
    user = scope("user:42", "2/1m")
    for id_, until_us in (("a", 500 * US), ("b", 400 * US)):
        limiter.try_acquire([user], id_, now_us=NOW_US)
        slots.hold(KEYS.scope("user:42"), id_, NOW_US + until_us, NOW_US)
    at_us = NOW_US + 300 * US
    assert limiter.try_acquire([user], "c", now_us=at_us) == Denied("user:42", user.limits[0], 100 * US)
    assert limiter.peek([user], "c", now_us=at_us + 100 * US - 1) == Denied("user:42", user.limits[0], 1)
    assert limiter.try_acquire([user], "c", now_us=at_us + 100 * US) == Admitted()


def test_an_id_finds_room_in_the_slot_that_was_held_for_it(
    limiter: Limiter, slots: SlotScripts, redis: Database
) -> None:
    user = scope("user:42", "1/1m")
    limiter.try_acquire([user], "a", now_us=NOW_US)
    slots.hold(KEYS.scope("user:42"), "a", NOW_US + 5_000 * US, NOW_US)
    at_us = NOW_US + 1_000 * US
    assert limiter.try_acquire([user], "b", now_us=at_us) == Denied("user:42", user.limits[0], 4_000 * US)
    assert limiter.try_acquire([user], "a", now_us=at_us) == Admitted()
    assert charged_at(redis, "user:42", "a") == at_us
    assert limiter.try_acquire([user], "b", now_us=at_us) == Denied("user:42", user.limits[0], 60 * US)


def test_a_released_slot_is_free_at_once(limiter: Limiter, slots: SlotScripts) -> None:
    user = scope("user:42", "1/1m")
    limiter.try_acquire([user], "a", now_us=NOW_US)
    slots.hold(KEYS.scope("user:42"), "a", NOW_US + 5_000 * US, NOW_US)
    slots.release(KEYS.scope("user:42"), "a")
    assert limiter.try_acquire([user], "b", now_us=NOW_US) == Admitted()


@pytest.mark.parametrize(
    ("limit", "counts"),
    [("1/59.999s", False), ("1/60s", True), ("1/30s fixed", True), ("1/1h", True)],
    ids=["under a minute", "a minute", "fixed", "an hour"],
)
def test_held_slots_count_in_windows_of_a_minute_and_in_fixed_ones(
    limiter: Limiter, slots: SlotScripts, limit: str, *, counts: bool
) -> None:
    user = scope("user:42", limit)
    limiter.try_acquire([user], "a", now_us=NOW_US)
    slots.hold(KEYS.scope("user:42"), "a", NOW_US + 5_000 * US, NOW_US)
    refused = Denied("user:42", user.limits[0], 5_000 * US)
    assert limiter.try_acquire([user], "b", now_us=NOW_US) == (refused if counts else Admitted())


def test_under_lowered_limits_who_waits_goes_in_the_order_of_the_deadlines(
    limiter: Limiter, slots: SlotScripts
) -> None:
    for id_, until_s in (("late", 900), ("early", 800), ("even", 800)):
        limiter.try_acquire([scope("user:42", "3/1m")], id_, now_us=NOW_US)
        slots.hold(KEYS.scope("user:42"), id_, NOW_US + until_s * US, NOW_US)
    user = scope("user:42", "1/1m")
    ahead = Denied("user:42", user.limits[0], 800 * US)
    assert [limiter.try_acquire([user], id_, now_us=NOW_US) for id_ in ("new", "late", "even")] == [
        Denied("user:42", user.limits[0], 900 * US),
        ahead,
        ahead,
    ]
    assert limiter.try_acquire([user], "early", now_us=NOW_US) == Admitted()
    assert limiter.try_acquire([user], "even", now_us=NOW_US) == Denied("user:42", user.limits[0], 60 * US)
    assert limiter.try_acquire([user], "even", now_us=NOW_US + 60 * US) == Admitted()


def test_held_slots_that_lapsed_make_room_for_what_counts(
    limiter: Limiter, slots: SlotScripts, redis: Database
) -> None:
    user = scope("user:42", "2/1m")
    for n in range(40):
        now_us = NOW_US + n * 61 * US
        assert limiter.try_acquire([user], f"id{n}", now_us=now_us) == Admitted()
        slots.hold(KEYS.scope("user:42"), f"id{n}", now_us + US, now_us)
    assert redis.zcard(KEYS.scope("user:42")) <= 4


def test_after_a_step_back_of_the_clock_a_batch_with_lapsed_slots_decides_like_single_calls(
    limiter: Limiter, gate: Gate, slots: SlotScripts
) -> None:
    user = scope("user:42", "3/10m")
    for id_ in ("x", "y"):
        limiter.try_acquire([user], id_, now_us=NOW_US - 20 * US)
        slots.hold(KEYS.scope("user:42"), id_, NOW_US - 10 * US, NOW_US - 20 * US)
    limiter.try_acquire([user], "ahead", now_us=NOW_US + 100 * US)
    assert gate.try_acquire_many([(id_, (user,)) for id_ in "abc"], now_us=NOW_US) == [
        Admitted(),
        Admitted(),
        Denied("user:42", user.limits[0], 600 * US),
    ]


def test_an_id_without_a_slot_gets_none_by_holding(redis: Database, slots: SlotScripts) -> None:
    slots.hold(KEYS.scope("user:42"), "a", NOW_US + US, NOW_US)
    assert not redis.exists(KEYS.scope("user:42"))


def test_a_held_slot_keeps_its_key_until_the_deadline(limiter: Limiter, slots: SlotScripts, redis: Database) -> None:
    limiter.try_acquire([scope("user:42", "5/1m")], "a", now_us=NOW_US)
    slots.hold(KEYS.scope("user:42"), "a", NOW_US + 86_400 * US, NOW_US)
    assert charged_at(redis, "user:42", "a") == HELD + NOW_US + 86_400 * US
    assert redis.pttl(KEYS.scope("user:42")) >= 86_400_000 - 5_000


# What is used


def test_usage_counts_what_each_window_holds_and_writes_nothing(
    limiter: Limiter, slots: SlotScripts, redis: Database
) -> None:
    scopes = [scope("global", "3/1m", "9/30s"), scope("unused", "5/1m")]
    for n, id_ in enumerate("abc"):
        limiter.try_acquire(scopes[:1], id_, now_us=NOW_US + n * 20 * US)
    slots.hold(KEYS.scope("global"), "b", NOW_US + 500 * US, NOW_US)
    before, count = contents(redis), writes(redis)
    minute, half = scopes[0].limits
    assert limiter.usage_many(scopes, now_us=NOW_US + 40 * US) == [
        [Usage(minute, 3, 20 * US, held=1), Usage(half, 1, 0)],
        [Usage(scopes[1].limits[0], 0, 0)],
    ]
    assert limiter.usage_many([]) == []
    assert (contents(redis), writes(redis)) == (before, count)


@pytest.mark.parametrize("limit", ["3/1d fixed", "3/2d", "3/1m"])
def test_a_limit_is_held_once_all_its_slots_are_however_soon_the_deadline_is(
    limiter: Limiter, slots: SlotScripts, limit: str
) -> None:
    user = scope("user:42", limit)
    for id_ in "abc":
        limiter.try_acquire([user], id_, now_us=NOW_US)
    for id_, is_held in (("a", False), ("b", False), ("c", True)):
        slots.hold(KEYS.scope("user:42"), id_, NOW_US + 30 * US, NOW_US)
        assert limiter.usage(user, now_us=NOW_US)[0].is_held is is_held
    assert limiter.usage(user, now_us=NOW_US) == [Usage(user.limits[0], 3, 30 * US, held=3)]
    assert not limiter.usage(user, now_us=NOW_US + 30 * US)[0].is_held


# Batches


def one_by_one(gate: Gate, batch: Sequence[tuple[str, tuple[Scope, ...]]], now_us: int) -> list[Verdict]:
    return [gate.try_acquire_many([request], now_us=now_us)[0] for request in batch]


def test_a_batch_is_decided_like_the_same_calls_one_after_another(redis: Database) -> None:
    random = Random(11)
    pool = [scope("global", "60/1m", "25/30s"), scope("a", "20/10m"), scope("b", "40/45s fixed"), scope("c", "9/1h")]
    together, apart = Gate(redis, namespace="together"), Gate(redis, namespace="apart")
    for n in range(30):
        now_us = NOW_US + random.randrange(n * 20, n * 21 + 1) * US
        batch = [
            (f"id{random.randrange(300)}", tuple(random.sample(pool, random.randint(1, 4))))
            for _ in range(random.choice((1, 5, 40, 128)))
        ]
        assert together.try_acquire_many(batch, now_us=now_us) == one_by_one(apart, batch, now_us)
        for each in pool:
            kept = [redis.zrange(Keys(name).scope(each.name), 0, -1, withscores=True) for name in ("together", "apart")]
            most = max(limit.max for limit in each.limits) + 1
            assert kept[0][-most:] == kept[1][-most:]


def test_large_limits_are_decided_as_the_model_decides(redis: Database, slots: SlotScripts) -> None:
    random, gate, model, decided = Random(5), Gate(redis, namespace="shop"), GateModel(), 0
    scopes = [scope("global", "150/1m"), scope("a", "70/30s", "110/10m")]
    now_us = NOW_US
    for _ in range(25):
        now_us += random.choice((1, 5, 20, 31)) * US
        batch = [(f"id{random.randrange(400)}", tuple(scopes)) for _ in range(random.choice((3, 40, 90)))]
        expected = [model.decide(id_, each, now_us) for id_, each in batch]
        assert gate.try_acquire_many(batch, now_us=now_us) == expected
        decided += len(batch)
        for each in scopes:
            rows = redis.zrange(KEYS.scope(each.name), 0, -1, withscores=True)
            model.forget_all_but(stored_slots(rows), each, now_us)
        for id_ in {f"id{random.randrange(400)}" for _ in range(25)}:
            until_us = now_us + random.choice((10, 40, 100)) * US
            for each in scopes:
                slots.hold(KEYS.scope(each.name), id_, until_us, now_us)
                model.hold(id_, each.name, until_us)
    assert decided > 500


def test_a_batch_of_thousands_is_decided_in_one_call(gate: Gate, redis: Database) -> None:
    scopes = (scope("global", "2200/1m"), scope("a", "2100/1m"))
    batch = [(f"id{n}", scopes) for n in range(2_500)]
    verdicts = gate.try_acquire_many(batch, now_us=NOW_US)
    assert verdicts == [Admitted()] * 2_100 + [Denied("a", scopes[1].limits[0], 60 * US)] * 400
    assert redis.zcard(KEYS.scope("a")) == 2_100
    again = gate.try_acquire_many(batch[:2_100], now_us=NOW_US + US)
    assert again == [Admitted()] * 2_100


def test_a_batch_after_a_step_back_of_the_clock_is_decided_like_its_calls(limiter: Limiter, gate: Gate) -> None:
    user = scope("user:42", "3/1m")
    limiter.try_acquire([user], "ahead", now_us=NOW_US + 10 * US)
    batch = [(id_, (user,)) for id_ in ("a", "b", "c")]
    assert gate.try_acquire_many(batch, now_us=NOW_US) == [
        Admitted(),
        Admitted(),
        Denied("user:42", user.limits[0], 60 * US),
    ]


# Many callers, and servers that forget


def test_sixteen_threads_get_five_slots_between_them(redis_url: str) -> None:
    user, verdicts, start = scope("user:42", "5/10m"), list[Verdict](), threading.Barrier(16)

    def ask() -> None:
        with Redis.from_url(redis_url) as client:
            limiter = Limiter(client, namespace="shop")
            start.wait()
            verdicts.extend(limiter.try_acquire([user]) for _ in range(4))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(verdicts) == 64
    assert verdicts.count(Admitted()) == 5


def test_a_server_that_forgot_its_scripts_is_told_them_again(limiter: Limiter, redis: Database) -> None:
    user = scope("user:42", "2/1m")
    assert limiter.try_acquire([user], now_us=NOW_US) == Admitted()
    redis.script_flush()
    assert limiter.try_acquire([user], now_us=NOW_US) == Admitted()
    assert isinstance(limiter.try_acquire([user], now_us=NOW_US), Denied)


def test_a_server_that_is_away_raises_gate_unavailable(own_server: RedisServer) -> None:
    user = scope("user:42", "2/1m")
    with own_server.client() as client:
        limiter = Limiter(client, namespace="shop")
        assert limiter.try_acquire([user]) == Admitted()
        own_server.kill()
        with pytest.raises(GateUnavailable, match="Redis did not answer"):
            limiter.try_acquire([user])
        own_server.start()

"""A plan answers as if each of its operations had been carried out at once, writes the same at its end, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from dispatcher.data_files import data_file
from tests.support.servers import Database, RedisServer

Operation = tuple[Any, ...]
"""A function of the plan and its arguments. "inf" is the highest score."""

_RUN: Final = """
local function shown(value)
  if type(value) == 'number' then
    return value == math.huge and 'inf' or digits(value)
  elseif type(value) == 'table' then
    local rows = {}
    for name, each in pairs(value) do
      rows[#rows + 1] = { type(name) == 'string' and name or digits(name), each }
    end
    return rows
  end
  return value == nil and cjson.null or value
end

local function number_in(value)
  return value == 'inf' and math.huge or value == 'nan' and 0 / 0 or value
end

local answers = {}
for n, operation in ipairs(cjson.decode(ARGV[1])) do
  local arguments = {}
  for place, value in ipairs(operation) do
    arguments[place] = value ~= cjson.null and number_in(value) or nil
  end
  local first, second = plan[arguments[1]](unpack(arguments, 2, #operation))
  answers[n] = { shown(first), shown(second) }
end
plan.commit(unpack(cjson.decode(ARGV[2])))
return cjson.encode(answers)
"""


def part(name: str) -> str:
    """The text of an include."""
    return data_file("lua", "include", f"{name}.lua").read_text(encoding="utf-8")


SCRIPT: Final = part("prelude") + part("plan") + _RUN


def planned(client: Database, operations: list[Operation], *drained: str) -> list[list[Any]]:
    """What a script is told that plans all this, and then writes it."""
    answers: list[list[Any]] = json.loads(client.eval(SCRIPT, 0, json.dumps(operations), json.dumps(drained)))
    return answers


class AtOnce:
    """The same operations, each carried out at once."""

    def __init__(self, client: Database) -> None:
        self.client = client

    def run(self, operation: Operation) -> list[Any]:
        """What the operation answers."""
        name, *arguments = operation
        answer = getattr(self, name)(*arguments)
        return list(answer) if isinstance(answer, tuple) else [answer, None]

    def hget(self, key: str, field: str) -> str | None:
        return _text(self.client.hget(key, field))

    def hset(self, key: str, field: str, value: str) -> None:
        self.client.hset(key, field, value)

    def hdel(self, key: str, field: str) -> None:
        self.client.hdel(key, field)

    def hgetall(self, key: str) -> list[list[str | None]]:
        return sorted([_text(field), _text(value)] for field, value in self.client.hgetall(key).items())

    def hlen(self, key: str) -> str:
        return str(self.client.hlen(key))

    def count(self, key: str, field: str, by: int) -> None:
        self.client.hincrby(key, field, by)

    def zscore(self, key: str, member: str) -> str | None:
        return _score(self.client.zscore(key, member))

    def zadd(self, key: str, score: float | str, member: str) -> None:
        self.client.zadd(key, {member: score})

    def zadd_lower(self, key: str, score: float, member: str) -> None:
        self.client.zadd(key, {member: score}, lt=True)

    def zadd_higher(self, key: str, score: float, member: str) -> None:
        self.client.zadd(key, {member: score}, gt=True)

    def zrem(self, key: str, member: str) -> bool:
        return bool(self.client.zrem(key, member))

    def zfirst(self, key: str) -> tuple[str | None, str | None]:
        return _row(self.client.zrange(key, 0, 0, withscores=True))

    def znext(self, key: str, low: float) -> tuple[str | None, str | None]:
        return _row(self.client.zrangebyscore(key, f"({low}", "+inf", start=0, num=1, withscores=True))

    def zprevious(self, key: str, high: float | str) -> tuple[str | None, str | None]:
        return _row(self.client.zrevrangebyscore(key, f"({high}", "-inf", start=0, num=1, withscores=True))

    def zdue(self, key: str, high: float | str, most: int) -> list[list[str | None]]:
        rows = self.client.zrangebyscore(key, "-inf", high, start=0, num=most)
        return [[str(n), _text(member)] for n, member in enumerate(rows, 1)]

    def zcount_below(self, key: str, high: float) -> str:
        return str(self.client.zcount(key, "-inf", f"({high}"))

    def sismember(self, key: str, member: str) -> bool:
        return bool(self.client.sismember(key, member))

    def sadd(self, key: str, member: str) -> None:
        self.client.sadd(key, member)

    def srem(self, key: str, member: str) -> bool:
        return bool(self.client.srem(key, member))

    def smembers(self, key: str, most: int) -> list[str | None]:
        return sorted(map(_text, self.client.srandmember(key, most)), key=str)

    def scard(self, key: str) -> str:
        return str(self.client.scard(key))

    def delete(self, key: str) -> None:
        self.client.delete(key)

    def keep_alive(self, key: str, span_us: int, renew_us: int) -> None:
        if self.client.pttl(key) < span_us // 1_000:
            self.client.pexpire(key, renew_us // 1_000 + 1)

    def number(self, key: str) -> str:
        return (self.client.get(key) or b"0").decode()

    def set_number(self, key: str, number: int) -> None:
        self.client.set(key, number)

    def write(self, *command: str) -> None:
        self.client.execute_command(*command)

    def write_rows(self, command: str, key: str, rows: list[str], _width: int) -> None:
        if rows:
            self.client.execute_command(command, key, *rows)

    def ring(self, key: str) -> None:
        if self.client.llen(key) < 16:
            self.client.rpush(key, "1")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _score(score: float | None) -> str | None:
    return None if score is None else f"{score:.0f}"


def _row(rows: list[tuple[bytes, float]]) -> tuple[str | None, str | None]:
    return (rows[0][0].decode(), _score(rows[0][1])) if rows else (None, None)


def alike(operation: Operation, answer: list[Any]) -> list[Any]:
    """An answer whose order the server or Lua chooses, in one that can be compared."""
    match operation[0], answer:
        case "smembers", [[*rows], second] if rows and isinstance(rows[0], list):
            return [sorted(row[1] for row in rows), second]
        case "hgetall" | "smembers" | "zdue", [[] | {}, second]:
            return [[], second]
        case "hgetall", [[*rows], second]:
            return [sorted(rows), second]
        case "zdue", [[*rows], second]:
            return [sorted(rows, key=lambda row: int(row[0])), second]
        case _:
            return answer


# Random sequences

MEMBERS: Final = st.sampled_from(["a", "b", "c", "B", "aa", "é"])
SCORES: Final = st.integers(-2, 5)
HIGHEST: Final = st.one_of(SCORES, st.just("inf"))
HASH, ZSET, SET = (
    st.sampled_from(["h1", "h1", "h2"]),
    st.sampled_from(["z1", "z1", "z2"]),
    st.sampled_from(["s1", "s2"]),
)
SPANS_US: Final = st.sampled_from([100_000_000, 200_000_000, 400_000_000])

OF_HASHES: Final = st.one_of(
    st.tuples(st.just("hset"), HASH, MEMBERS, st.sampled_from("123")),
    st.tuples(st.just("hdel"), HASH, MEMBERS),
    st.tuples(st.just("count"), st.just("counts"), MEMBERS, st.sampled_from([-1, 1, 2])),
    st.tuples(st.just("del"), st.one_of(HASH, st.just("counts"))),
    st.tuples(st.just("hget"), HASH, MEMBERS),
    st.tuples(st.sampled_from(["hgetall", "hlen"]), HASH),
)
OF_ZSETS: Final = st.one_of(
    st.tuples(st.just("zadd"), ZSET, HIGHEST, MEMBERS),
    st.tuples(st.sampled_from(["zadd_lower", "zadd_higher"]), ZSET, SCORES, MEMBERS),
    st.tuples(st.sampled_from(["zrem", "zscore"]), ZSET, MEMBERS),
    st.tuples(st.just("del"), st.just("z2")),
    st.tuples(st.just("zfirst"), ZSET),
    st.tuples(st.sampled_from(["znext", "zcount_below"]), ZSET, SCORES),
    st.tuples(st.just("zprevious"), ZSET, HIGHEST),
    st.tuples(st.just("zdue"), ZSET, HIGHEST, st.integers(1, 4)),
)
OF_SETS: Final = st.one_of(
    st.tuples(st.sampled_from(["sadd", "srem", "sismember"]), SET, MEMBERS),
    st.tuples(st.just("del"), SET),
    st.tuples(st.just("smembers"), SET, st.just(100)),
    st.tuples(st.just("scard"), SET),
)
OTHERS: Final = st.one_of(
    st.tuples(
        st.just("keep_alive"), st.sampled_from(["h1", "z1", "s1", "log", "counts"]), SPANS_US, st.just(400_000_000)
    ),
    st.tuples(st.just("set_number"), st.just("number"), st.integers(0, 2**52)),
    st.tuples(st.just("number"), st.just("number")),
    st.tuples(st.just("write"), st.just("RPUSH"), st.just("log"), MEMBERS),
    st.tuples(st.just("write_rows"), st.just("RPUSH"), st.just("log"), st.lists(MEMBERS, max_size=4), st.just(1)),
    st.tuples(st.just("ring"), st.just("wake")),
)
ALL: Final = st.one_of(OF_HASHES, OF_ZSETS, OF_SETS, OTHERS)


SEQUENCES: Final = st.one_of(
    *(
        st.tuples(st.lists(each, min_size=5, max_size=30), st.lists(each, min_size=15, max_size=50))
        for each in (OF_HASHES, OF_ZSETS, OF_SETS, ALL)
    )
)
"""What is done before, and in one plan: with keys of one type, where operations meet often, or with all."""


def at_once(operation: Operation) -> Operation:
    """The operation by its name in Python, where ``del`` is a word of the language."""
    return ("delete", *operation[1:]) if operation[0] == "del" else operation


def contents(client: Database) -> dict[str, Any]:
    """All that is stored."""
    readers: dict[bytes, Callable[[str], Any]] = {
        b"hash": client.hgetall,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"set": client.smembers,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"string": client.get,
        b"stream": client.xrange,
    }
    keys = [key.decode() for key in client.keys("*")]
    return {key: readers[client.type(key)](key) for key in keys}


def but_zero(stored: dict[str, Any]) -> dict[str, Any]:
    """All that is stored, less counts of nothing: what adds up to it need not be written."""
    counts = {field: count for field, count in stored.get("counts", {}).items() if count != b"0"}
    return {**stored, "counts": counts}


def check_lifetimes(client: Database, before: dict[str, int], operations: list[Operation]) -> None:
    """Whoever asked for a lifetime has it; who had one keeps it, unless the key was made anew."""
    asked: dict[str, int] = {}
    had = {key for key, ms in before.items() if ms > 0}
    for name, key, *arguments in operations:
        if name == "keep_alive":
            asked[key] = max(asked.get(key, 0), arguments[0] // 1_000)
        elif name == "del":
            asked.pop(key, None)
            had.discard(key)
    for key in map(bytes.decode, client.keys("*")):
        left_ms = client.pttl(key)
        if key in asked:
            assert left_ms > asked[key] - 60_000, f"{key} lives {left_ms} ms, asked for {asked[key]}"
        else:
            assert (left_ms > 0) == (key in had), f"{key} lives {left_ms} ms"


@pytest.fixture
def twins(redis_url: str) -> Iterator[tuple[Redis, Redis]]:
    """Two empty databases of one server."""
    with Redis.from_url(redis_url) as one, Redis.from_url(redis_url.replace("db=0", "db=1")) as two:
        assert two.get_connection_kwargs()["db"] == 1
        yield one, two


def explore(twins: tuple[Database, Database], examples: int) -> int:
    """Try so many sequences; how many answers were compared."""
    plans, model = twins
    compared = 0

    @settings(settings.get_profile("walks"), max_examples=examples)
    @given(SEQUENCES)
    def compare(sequence: tuple[list[Operation], list[Operation]]) -> None:
        nonlocal compared
        stored, operations = sequence
        plans.flushall()
        for client in twins:
            for each in stored:
                AtOnce(client).run(at_once(each))
        before = {key.decode(): plans.pttl(key) for key in plans.keys("*")}
        expected = [alike(each, AtOnce(model).run(at_once(each))) for each in operations]
        answers = planned(plans, operations)
        for each, answer, right in zip(operations, answers, expected, strict=True):
            if each[0] not in _SILENT:
                assert alike(each, answer) == right, each
                compared += 1
        assert but_zero(contents(plans)) == but_zero(contents(model))
        check_lifetimes(plans, before, operations)

    search: Callable[[], None] = compare
    search()
    return compared


_SILENT: Final = frozenset(
    {"hset", "hdel", "count", "zadd", "zadd_lower", "zadd_higher", "sadd", "del", "keep_alive", "set_number", "write"}
    | {"write_rows", "ring"}
)
"""What answers nothing."""


@pytest.mark.parametrize(("plans", "least"), [(30, 220), pytest.param(100, 750, marks=pytest.mark.slow)])
def test_reads_see_what_is_planned_and_the_end_is_that_of_operations_at_once(
    twins: tuple[Redis, Redis], plans: int, least: int
) -> None:
    assert explore(twins, plans) >= least


@pytest.mark.slow
def test_reads_of_many_sequences_see_what_is_planned(twins: tuple[Redis, Redis]) -> None:
    assert explore(twins, 4_000) >= 30_000


def test_a_count_adds_to_the_value_set_before(redis: Database) -> None:
    redis.hset("counts", mapping={"a": "5", "b": "5", "c": "5", "d": "words"})
    counted = [("count", "counts", field, 1) for field in "abcde"]
    planned(redis, [("hset", "counts", "a", 7), ("hdel", "counts", "b"), *counted])
    assert redis.hgetall("counts") == {b"a": b"8", b"b": b"1", b"c": b"6", b"d": b"1", b"e": b"1"}


def test_a_key_that_is_deleted_can_be_made_anew_of_another_type(redis: Database) -> None:
    redis.hset("key", "a", "1")
    assert planned(redis, [("del", "key"), ("zadd", "key", 1, "b"), ("zfirst", "key")])[-1] == ["b", "1"]
    assert contents(redis) == {"key": [(b"b", 1.0)]}


# What is refused

MADE_FIRST: Final = ("hset", "made first", "a", "1")
"""Stands before what is refused: nothing is to be seen of it."""


def check_refused(client: Database, operation: Operation, words: str) -> None:
    """The plan raises with these words, and nothing is written."""
    before = contents(client)
    with pytest.raises(ResponseError, match=words):
        planned(client, [MADE_FIRST, ("set_number", "number", 7), operation])
    assert contents(client) == before


@pytest.mark.parametrize(
    "operation",
    [
        ("hset", "key", "a", "1"), ("hdel", "key", "a"), ("hget", "key", "a"), ("hgetall", "key"), ("hlen", "key"),
        ("count", "key", "a", 1), ("zadd", "key", 1, "a"), ("zadd_lower", "key", 1, "a"), ("zrem", "key", "a"),
        ("zfirst", "key"), ("znext", "key", 1), ("zprevious", "key", 1), ("zdue", "key", 1, 1),
        ("zcount_below", "key", 1), ("sadd", "key", "a"), ("srem", "key", "a"), ("smembers", "key", 1),
        ("scard", "key"), ("ring", "key"), ("number", "key"),
    ],
    ids=str,
)  # fmt: skip
def test_a_key_of_another_type_is_refused_before_the_first_write(redis: Database, operation: Operation) -> None:
    redis.xadd("key", {"of": "another program"})
    check_refused(redis, operation, "WRONGTYPE")


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (("zadd", "key", "nan", "a"), "expected a number"),
        (("zadd", "key", "text", "a"), "expected a number"),
        (("zadd", "key", None, "a"), "expected a number"),
        (("zadd", "key", 1, 5), "expected a text"),
        (("sadd", "key", ["a"]), "expected a text"),
        (("hset", "key", None, "1"), "expected a text"),
        (("hset", "key", "a", None), "expected a text"),
        (("hset", "key", "a", True), "expected a text"),
        (("hset", "key", "a", 0.5), "expected a text"),
        (("hset", "key", "a", "inf"), "expected a text"),
        (("write", "LTRIM", "key", 0.5, 1), "expected a text"),
        (("write", "RPUSH", "key", None), "expected a text"),
        (("write", "RPUSH", "key", 1e300), "expected a text"),
        (("write_rows", "RPUSH", "key", ["a", ["b"]], 1), "expected a text"),
        (("write_rows", "RPUSH", "key", ["a", None], 1), "expected a text"),
        (("publish", "channel", ["a"]), "expected a text"),
        (("keep_alive", "key", 1e300), "expected microseconds"),
        (("keep_alive", "key", 1_000, 1e300), "expected microseconds"),
        (("keep_alive", "key", "nan"), "expected microseconds"),
        (("set_number", "key", 0.5), "expected a text"),
        (("sadd", "made first", "a"), "two types"),
        (("sismember", "made first", "a"), "two types"),
    ],
    ids=str,
)
def test_arguments_that_a_command_would_refuse_are_refused_before_the_first_write(
    redis: Database, operation: Operation, words: str
) -> None:
    check_refused(redis, operation, words)


def test_a_lifetime_that_has_ended_is_none_and_removes_no_key(redis: Database) -> None:
    planned(redis, [("hset", "key", "a", "1"), ("keep_alive", "key", -5_000_000), ("keep_alive", "key", 0, -9_000)])
    assert redis.pttl("key") == -1


def test_a_lifetime_without_length_ends_at_once(redis: Database) -> None:
    planned(redis, [("hset", "key", "a", "1"), ("keep_alive", "key", 0)])
    assert redis.pttl("key") in {-2, 0, 1}


def test_a_number_that_cannot_be_read_is_none(redis: Database) -> None:
    for text in ("text", "0.5", "1e308", "nan", "inf", "9223372036854775807"):
        redis.set("number", text)
        assert planned(redis, [("number", "number")]) == [[None, None]]
        assert redis.get("number") == text.encode()


# Full servers, large plans, lifetimes


@pytest.fixture
def full() -> Iterator[Redis]:
    """A server that takes nothing more; ``full.config_set`` empties it."""
    with RedisServer() as server, server.client() as client:
        client.hset("held", mapping={f"field{n}": "x" for n in range(100)})
        client.config_set("maxmemory", "1")
        yield client


DRAINING: Final[list[Operation]] = [
    ("zadd", "zset", 1, "a"),
    ("hset", "hash", "a", "1"),
    *(("hdel", "held", f"field{n}") for n in range(100)),
    ("write", "RPUSH", "list", "a"),
    ("set_number", "number", 5),
    ("ring", "wake"),
]


def test_a_full_server_refuses_a_plan_and_nothing_is_written(full: Database) -> None:
    before = contents(full)
    with pytest.raises(OutOfMemoryError):
        planned(full, DRAINING)
    assert contents(full) == before


def test_a_full_server_carries_out_a_plan_that_drains_though_it_adds_first(full: Database) -> None:
    planned(full, DRAINING, "held")
    assert contents(full) == {
        "zset": [(b"a", 1.0)], "hash": {b"a": b"1"}, "list": [b"a"], "number": b"5", "wake": [b"1"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("alone", "key"),
    [(("hset", "hash", "a", "1"), "hash"), (("write", "RPUSH", "list", "a"), "list"), (("ring", "wake"), "wake")],
    ids=["planned", "another command", "wake"],
)
def test_a_full_server_carries_out_a_plan_that_drains_though_it_only_adds(
    full: Database, alone: Operation, key: str
) -> None:
    planned(full, [alone], "held")
    assert contents(full).keys() == {"held", key}


def test_a_plan_that_drains_and_changes_nothing_writes_nothing(full: Database) -> None:
    full.config_resetstat()
    planned(full, [("hget", "held", "field1"), ("zrem", "zset", "a")], "held")
    assert "cmdstat_hdel" not in full.info("commandstats")


def test_a_plan_of_very_many_members_is_written_in_pieces(redis: Database) -> None:
    names = [f"member{n}" for n in range(9_000)]
    kept = [*(("sadd", "set", name) for name in names), *(("zadd", "zset", 1, name) for name in names)]
    planned(redis, [*kept, *(("hset", "hash", name, "1") for name in names), ("write_rows", "RPUSH", "list", names, 1)])
    assert [redis.scard("set"), redis.zcard("zset"), redis.hlen("hash"), redis.llen("list")] == [9_000] * 4
    planned(redis, [(name, key, each) for name, key in (("srem", "set"), ("hdel", "hash")) for each in names])
    assert [redis.scard("set"), redis.hlen("hash")] == [0, 0]


@pytest.mark.parametrize(
    "refill", [("zadd", "key", 1, "new"), ("write", "ZADD", "key", "1", "new")], ids=["planned", "another command"]
)
def test_a_key_that_is_emptied_and_filled_again_keeps_its_lifetime(redis: Database, refill: Operation) -> None:
    redis.zadd("key", {"old": 1})
    redis.pexpire("key", 500_000)
    planned(redis, [("zrem", "key", "old"), refill, ("keep_alive", "key", 100_000_000)])
    assert contents(redis) == {"key": [(b"new", 1.0)]}
    assert redis.pttl("key") > 400_000


def test_a_plan_is_written_though_the_server_lets_nobody_be_told(redis: Database, redis_url: str) -> None:
    redis.acl_setuser("quiet", enabled=True, nopass=True, keys=["*"], categories=["+@all"], reset_channels=True)
    try:
        with Redis.from_url(redis_url, username="quiet", password="any") as client:
            planned(client, [("publish", "bell", "a"), ("sadd", "set", "a")])
    finally:
        redis.acl_deluser("quiet")
    assert contents(redis) == {"set": {b"a"}}


def test_what_a_call_has_read_or_counted_of_a_hash_it_does_not_ask_for_again(redis: Database) -> None:
    redis.hset("hash", mapping={f"old-{n}": "1" for n in range(5)})
    redis.config_resetstat()
    for_each = [[("hset", "hash", f"new-{n}", "1"), ("hlen", "hash"), ("hgetall", "hash")] for n in range(50)]
    answers = planned(redis, [("hlen", "hash"), *(operation for each in for_each for operation in each)])
    assert [answers[0], answers[-2]] == [["5", None], ["55", None]]
    stats = redis.info("commandstats")
    assert [stats[f"cmdstat_{name}"]["calls"] for name in ("hgetall", "hexists")] == [1, 50]
    assert stats["cmdstat_hlen"]["calls"] <= 2


def test_a_key_that_is_deleted_is_freed_beside_the_work_of_the_server(redis: Database) -> None:
    redis.set("number", "7")
    redis.config_resetstat()
    planned(redis, [("del", "number")])
    stats = redis.info("commandstats")
    assert "cmdstat_del" not in stats
    assert stats["cmdstat_unlink"]["calls"] == 1
    assert contents(redis) == {}

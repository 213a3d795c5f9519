"""Every script reads and computes first and writes then: an error leaves all that it writes, or nothing.

The server keeps what a script wrote before it raised. So nothing that can raise may stand after the first write.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import pytest
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher.server.keys import Keys
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from tests.support.doubles import START_US
from tests.support.mutations import RAW, UNKNOWN, mutations
from tests.support.script_calls import SCRIPTS, Bench, Call, Run, recording
from tests.support.script_scenes import SCENES, Scene
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server

T = TypeVar("T")

Place: TypeAlias = Callable[[], Iterable[T]]
"""An argument of a call, or a key that it uses: makes the cases of what may be wrong with it."""

KEYS: Final = Keys("stage")
PATIENCE_S: Final = 20
"""A script that runs longer never ends."""

OFTEN: Final = 2
"""So often each change is tried on a script, in situations that differ."""

ALL: Final = 100_000

in_extent = pytest.mark.parametrize(
    "most", [pytest.param(2, id="some"), pytest.param(ALL, id="all", marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module", params=[*SCENES.values()], ids=[*SCENES])
def scene(request: pytest.FixtureRequest) -> Scene:
    """All tests of a scene run one after another: a worker of xdist that takes over some plays only their scenes."""
    played: Scene = request.param
    return played


class Situation(NamedTuple):
    """A call of a script, and what it did."""

    call: Call
    run: Run


class Situations:
    """The calls of scenes; of those that went the same way the first."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._known: dict[str, list[Situation]] = {}

    def of(self, scene: Scene) -> list[Situation]:
        """Those of a scene, which is played once."""
        if scene.__name__ not in self._known:
            self._known[scene.__name__] = list(self._play(scene).values())
        return self._known[scene.__name__]

    def _play(self, scene: Scene) -> dict[object, Situation]:
        self.bench.client.flushall()
        with recording(self.bench) as recorder:
            scene(self.bench.client)
        found: dict[object, Situation] = {}
        for call in recorder.calls:
            self.bench.restore(call.before)
            run = self.bench.run(call)
            assert run.raised is None, f"{call.name} of {scene.__name__} raised {run.raised}"
            found.setdefault((call.name, run.shape), Situation(call, run))
        return found


@pytest.fixture(scope="module")
def situations() -> Iterator[Situations]:
    """On a server of this module's own: its settings change, and all that it holds goes."""
    patience = {"socket_timeout": PATIENCE_S, "retry": Retry(NoBackoff(), 0)}
    with RedisServer() as server, server.client(**patience) as client:
        yield Situations(Bench(client))


class Trials:
    """Runs of scripts that something is wrong with, and what was found; told at the end, script by script."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.runs = 0
        self._faults: dict[str, list[str]] = defaultdict(list)

    def run(
        self,
        call: Call,
        words: str,
        *,
        spoil: Callable[[], object] = lambda: None,
        args: list[bytes] | None = None,
        fault: int = 0,
    ) -> Run:
        """One run, after something was spoilt: where it raises, everything is as it was."""
        self.runs += 1
        self.bench.restore(call.before)
        spoil()
        before = self.bench.contents()
        run = self.bench.run(call, args=args, fault=fault)
        if run.raised is not None:
            keys = changed(before, self.bench.contents())
            done = [f"{step.command} {step.key}" for step in run.changes if step.answer != "0"]
            if keys or done:
                self.add(call, f"{words}: raised {run.raised[:100]!r}, had run {done[:4]}, changed {keys}")
        return run

    def add(self, call: Call, words: str) -> None:
        """One more fault of a script."""
        self._faults[call.name].append(words)

    def check(self) -> None:
        """Fail with the first faults of each script; also where nothing was tried."""
        assert self.runs > 0
        told = [
            f"{script}: {len(faults)} faults, such as: {' | '.join(faults[:3])}"
            for script, faults in sorted(self._faults.items())
        ]
        if told:
            pytest.fail("\n".join([f"in {self.runs} runs of all scripts", *told]), pytrace=False)


@pytest.fixture
def trials(situations: Situations) -> Trials:
    return Trials(situations.bench)


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The keys that hold something else."""
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def drawn(cases: Iterable[T], most: int, scene: Scene) -> list[T]:
    """So many of the cases, always the same ones."""
    found = list(cases)
    return found if len(found) <= most else random.Random(scene.__name__).sample(found, most)


def drawn_by_script(found: Iterable[Situation], most: int, scene: Scene) -> Iterator[Situation]:
    """So many situations of each script, always the same ones."""
    by_script: dict[str, list[Situation]] = defaultdict(list)
    for each in found:
        by_script[each.call.name].append(each)
    for situations in by_script.values():
        yield from drawn(situations, most, scene)


def drawn_from(places: Iterable[Place[T]], most: int, scene: Scene) -> Iterator[T]:
    """So many of the cases of all places, always the same ones: of each place as many.

    What is not drawn is not made: there are hundreds of thousands.
    """
    found = list(places)
    if most >= ALL:
        yield from chain.from_iterable(place() for place in found)
        return
    chance, left = random.Random(scene.__name__), most
    while found and left:
        for place in chance.sample(found, min(len(found), left)):
            cases = list(place())
            if cases:
                yield chance.choice(cases)
                left -= 1
            else:
                found.remove(place)


class Often:
    """Lets each change of a script pass ``OFTEN`` times."""

    def __init__(self) -> None:
        self._met: dict[tuple[str, str], int] = defaultdict(int)

    def __call__(self, call: Call, words: str) -> bool:
        self._met[call.name, words] += 1
        return self._met[call.name, words] <= OFTEN


@pytest.mark.slow
def test_each_script_is_called_in_several_situations(situations: Situations) -> None:
    shapes = defaultdict(set)
    for scene in SCENES.values():
        for call, run in situations.of(scene):
            shapes[call.name].add(run.shape)
    assert shapes.keys() == set(SCRIPTS)
    assert {name: len(ways) for name, ways in shapes.items() if len(ways) < 3} == {}


# What stands where


def test_after_its_first_write_a_script_only_writes(situations: Situations, trials: Trials, scene: Scene) -> None:
    """What it still had to read it could fail to read."""
    for call, run in situations.of(scene):
        trials.runs += 1
        rest = run.steps[run.first_change - 1 :]
        late = [f"{step.command} {step.key}" for step in rest if not step.changes]
        if late:
            trials.add(call, f"{late[0]} after {rest[0].command} {rest[0].key}, and {len(late) - 1} reads more")
    trials.check()


@in_extent
def test_a_script_does_not_depend_on_the_answers_of_its_writes(
    situations: Situations, trials: Trials, scene: Scene, most: int
) -> None:
    """All is computed before the first write; what was still to be computed could fail."""
    bench = situations.bench
    for call, run in drawn_by_script((each for each in situations.of(scene) if each.run.changes), most, scene):
        trials.runs += 1
        bench.restore(call.before)
        bench.run(call)
        expected = bench.contents()
        bench.restore(call.before)
        deaf = bench.run(call, deaf=True)
        keys = [] if buries(run) else changed(expected, bench.contents())  # each entry of a stream has a new id
        if keys or (deaf.raised, deaf.answer) != (None, run.answer):
            trials.add(
                call, f"raised {deaf.raised!r}, answered {deaf.answer!r} for {run.answer!r}, changed {keys}"[:500]
            )
    trials.check()


def buries(run: Run) -> int:
    """How many dead letters it made."""
    return sum(step.command == "XADD" for step in run.changes)


# An error of the server


@in_extent
def test_an_error_at_a_read_or_at_the_first_write_changes_nothing(
    situations: Situations, trials: Trials, scene: Scene, most: int
) -> None:
    """Where a script goes on after an error, it does not take it for the fault of an event."""
    places = [
        (call, run, place)
        for call, run in situations.of(scene)
        for place, step in enumerate(run.steps, 1)
        if place == run.first_change or not step.changes
    ]
    for call, run, place in drawn(places, 4 * most, scene):
        words = f"error at {run.steps[place - 1].command} {run.steps[place - 1].key}"
        faulty = trials.run(call, words, fault=place)
        if faulty.raised is None and buries(faulty) > buries(run):
            trials.add(call, f"{words}: an event is a dead letter for it")
    trials.check()


@in_extent
def test_on_a_full_server_a_script_does_everything_or_nothing(
    situations: Situations, trials: Trials, scene: Scene, most: int
) -> None:
    client = situations.bench.client
    for call, _ in drawn_by_script(situations.of(scene), most, scene):
        try:
            trials.run(call, "full server", spoil=partial(client.config_set, "maxmemory", "1"))
        finally:
            client.config_set("maxmemory", "0")
    trials.check()


@in_extent
def test_a_key_of_another_type_changes_nothing(situations: Situations, trials: Trials, scene: Scene, most: int) -> None:
    """Another program may use the name. That is found before the first write, though it may only be written to."""
    for call, key in drawn(_keys_of(situations.of(scene)), most, scene):
        trials.run(call, f"{key} of another type", spoil=partial(_take_name, situations.bench, key))
    trials.check()


def _keys_of(found: Iterable[Situation]) -> Iterator[tuple[Call, str]]:
    passes = Often()
    for call, run in found:
        for key in dict.fromkeys(step.key for step in run.steps if ":" in step.key):
            if passes(call, key):
                yield call, key


def _take_name(bench: Bench, key: str) -> None:
    is_stream = bench.client.type(key) == b"stream"
    bench.client.delete(key)
    if is_stream:
        bench.client.set(key, "another program's")
    else:
        bench.client.xadd(key, {"another": "program's"})


# Arguments


@in_extent
def test_an_argument_that_is_malformed_changes_nothing_or_is_understood(
    situations: Situations, trials: Trials, scene: Scene, most: int
) -> None:
    """What lacks a field is of an older version: where a script answers it, the books balance as before."""
    books = Books(situations.bench.client, KEYS, QueueKeys("q"), clock=lambda: START_US)
    for call, _, args, words in drawn_from(_argued(situations.of(scene)), 2 * most, scene):
        wrong: list[str] = []
        run = trials.run(call, words, args=args(), spoil=lambda: wrong.extend(books.snapshot().imbalances()))  # noqa: B023 - called at once
        if (
            run.raised is None
            and words.endswith(("absent", "null"))
            and (found := books.snapshot().imbalances()) != wrong
        ):
            trials.add(call, f"{words}: {found}")
    trials.check()


@in_extent
def test_an_argument_of_a_newer_version_that_is_not_known_is_left_alone(
    situations: Situations, trials: Trials, scene: Scene, most: int
) -> None:
    places = [
        partial(_unknown, place) for place in _argued(situations.of(scene), lambda argument: argument[:1] == b"{")
    ]
    for call, run, args, words in drawn_from(places, most, scene):
        other = trials.run(call, words, args=args())
        if (other.raised, other.answer) != (None, run.answer):
            trials.add(call, f"{words}: raised {other.raised!r}, answered {other.answer!r}"[:500])
    if places:  # not of the scripts that take no JSON
        trials.check()


Args = Callable[[], list[bytes]]
"""Makes arguments when they are needed, since some are large."""


Argued: TypeAlias = tuple[Call, Run, Args, str]


def _argued(found: Iterable[Situation], is_meant: Callable[[bytes], bool] = lambda _: True) -> Iterator[Place[Argued]]:
    passes = Often()
    for call, run in found:
        for nth, argument in enumerate(call.args):
            if is_meant(argument):
                yield partial(_changed, passes, call, run, nth)


def _changed(passes: Often, call: Call, run: Run, nth: int) -> Iterator[Argued]:
    for words, change in _changes_of(call.args[nth]):
        told = f"argument {nth + 1}, {words}"
        if passes(call, told):
            yield call, run, partial(_with, call.args, nth, change), told


def _unknown(place: Place[Argued]) -> list[Argued]:
    """The cases of a field that a newer version may know. The fields of "about" are positions of requests."""
    return [case for case in place() if case[3].endswith(UNKNOWN) and not case[3].endswith(f"about {UNKNOWN}")]


def _with(args: tuple[bytes, ...], nth: int, change: Args) -> list[bytes]:
    return [*args[:nth], *change(), *args[nth + 1 :]]


def _changes_of(arg: bytes) -> Iterator[tuple[str, Args]]:
    facts = json.loads(arg) if arg[:1] == b"{" else None
    if isinstance(facts, dict):
        for mutation in mutations(facts):
            yield str(mutation), partial(mutation.in_list, facts)
    for name, raw in RAW.items():
        yield f"as a whole {name}", partial(list, [raw])
    yield "as a whole absent", list


# Stored values


@in_extent
def test_a_record_that_is_malformed_changes_nothing_or_is_understood(
    situations: Situations, trials: Trials, scene: Scene, most: int
) -> None:
    """Of an older or a newer version, or written by another program."""
    cases = _spoilt(situations, scene, lambda key: key == KEYS.events)
    for call, words, spoil in drawn_from(cases, 2 * most, scene):
        trials.run(call, words, spoil=spoil)
    if scene.__name__ not in {"limiter", "waiting", "full_queue"}:
        trials.check()


@in_extent
def test_a_stored_value_that_is_malformed_changes_nothing_or_is_understood(
    situations: Situations, trials: Trials, scene: Scene, most: int
) -> None:
    for call, words, spoil in drawn_from(_spoilt(situations, scene, lambda key: key != KEYS.events), most, scene):
        trials.run(call, words, spoil=spoil)
    trials.check()


Spoil = Callable[[], object]


Spoilt: TypeAlias = tuple[Call, str, Spoil]


def _spoilt(situations: Situations, scene: Scene, is_meant: Callable[[str], bool]) -> Iterator[Place[Spoilt]]:
    passes = Often()
    for call, run in situations.of(scene):
        for key in dict.fromkeys(step.key for step in run.steps if ":" in step.key and is_meant(step.key)):
            yield partial(_spoilt_at, passes, situations.bench, call, key)


def _spoilt_at(passes: Often, bench: Bench, call: Call, key: str) -> Iterator[Spoilt]:
    bench.restore(call.before)
    for words, spoil in _spoilings(bench.client, key):
        if passes(call, words):
            yield call, words, spoil


def _spoilings(client: Any, key: str) -> Iterator[tuple[str, Spoil]]:  # noqa: ANN401 - a client whose answers are read
    match client.type(key):
        case b"string":
            for name, raw in RAW.items():
                yield f"{key} {name}", partial(client.set, key, raw)
        case b"hash":
            for field, value in sorted(client.hgetall(key).items()):
                place = "record" if key == KEYS.events else field.decode("utf-8", "replace")
                yield f"{key}, {place} absent", partial(client.hdel, key, field)
                for words, change in _values_of(value):
                    yield f"{key}, {place}, {words}", partial(_put, client, key, field, change)
        case b"zset":
            for name, raw in RAW.items():
                yield f"{key}, also a member {name}", partial(client.zadd, key, {raw: 0})
        case b"set":
            for name, raw in RAW.items():
                yield f"{key}, also a member {name}", partial(client.sadd, key, raw)


def _put(client: Any, key: str, field: bytes, change: Callable[[], bytes]) -> None:  # noqa: ANN401 - as above
    client.hset(key, field, change())


def _values_of(value: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    for name, raw in RAW.items():
        yield name, partial(bytes, raw)
    header, line, payload = value.partition(b"\n")
    if header[:1] == b"{":
        facts = json.loads(header)
        for mutation in mutations(facts):
            yield str(mutation), partial(mutation.before, facts, line + payload)
        if line:
            yield "without a line feed", partial(bytes, header)
            yield "with words for its header", partial(bytes, b"words\n" + payload)

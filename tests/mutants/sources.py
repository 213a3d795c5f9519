"""Which files are mutated, and which tests have to notice: one table, the first row that fits a file counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Final

from tests.mutants import lua, python
from tests.mutants.change import Mutant, named
from tests.mutants.harness import PROJECT


def _in(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


_STORE: Final = (
    *_in(
        "integration",
        "store_settle store_take store_order store_waiting store_versions mutes explain shadow_limits"
        " store_dead_letters store_intake store_ahead store_decisions limits_change store_endurance store_threads"
        " store_pause store_reconcile store_deferred store_notice store_door store_parked",
    ),
    *_in("property", "store_model door_model explain_model"),
    *_in("integration", "delivery_table store_digest"),
    *_in("property", "deferral_model digest_model"),
)
"""The tests of what is stored, quickest first; those of the table's row run before them."""

_GATE: Final = (
    *_in("integration", "gate limiter async_limiter"),
    *_in("property", "gate_batches line_model"),
    *_in("integration", "limiter_refusals limiter_waiting async_limiter_waiting"),
    *_in("property", "gate_model"),
)
_SLACK: Final = _in(
    "integration", "slack_sink slack_secrets slack_fallbacks slack_history slack_transport slack_keep_alive slack_pause"
)
_ENDS: Final = "store_decisions store_digest store_door shadow_limits store_notice store_dead_letters store_take"
_RQ: Final = _in("integration", "rq")
_WORKER: Final = _in("integration", "worker_ahead delivery_table dead_letters worker")

TESTS: Final[Mapping[str, tuple[str, ...]]] = {
    # The gate, and those who wait in `acquire`
    "lua/include/slots.lua": _GATE,
    "lua/include/decide.lua": _GATE,
    "lua/include/batch.lua": (*_in("property", "gate_batches"), *_GATE, *_in("integration", "shadow_limits")),
    "lua/include/log.lua": (*_in("integration", "limiter"), *_GATE),
    "lua/include/glance.lua": _GATE,
    "lua/include/prelude.lua": _GATE,
    "lua/include/shadow.lua": (*_in("integration", "shadow_limits"), *_STORE),
    "lua/include/waiters.lua": (*_in("property", "line_model"), *_GATE),
    "lua/gate.lua": _GATE,
    "lua/usage.lua": _GATE,
    "lua/release.lua": _GATE,
    "lua/wait.lua": (*_in("property", "line_model"), *_GATE),
    # What is stored
    "lua/enqueue.lua": (*_in("integration", "store_intake producer_contract producer"), *_STORE),
    "lua/take.lua": (
        *_in("integration", "store_take store_order store_door store_reconcile store_ahead"),
        *_STORE,
        *_RQ,
    ),
    "lua/include/entering.lua": (*_in("integration", "store_take store_door door_rights"), *_STORE, *_RQ),
    "lua/include/door.lua": (*_in("integration", "store_door"), *_STORE),
    "lua/include/pause.lua": (*_in("integration", "store_pause"), *_STORE),
    "lua/include/tal*.lua": (*_in("integration", "store_digest store_notice"), *_STORE),
    "lua/include/tell.lua": (*_in("integration", "store_digest store_notice"), *_STORE),
    "lua/include/deferred.lua": (*_in("integration", "store_deferred store_order"), *_STORE),
    "lua/include/leaving.lua": (*_in("integration", "store_parked"), *_STORE),
    "lua/include/d[er]*.lua": (*_in("integration", "store_decisions store_settle store_dead_letters"), *_STORE),
    "lua/include/threads.lua": (*_in("integration", "store_threads"), *_STORE),
    "lua/pace.lua": (*_in("integration", "store_waiting store_order limits_change store_threads"), *_STORE),
    "lua/line_up.lua": (*_in("integration", "store_deferred store_order limits_change"), *_STORE),
    "lua/admit.lua": (*_in("integration", "store_decisions limits_change store_digest shadow_limits"), *_STORE),
    "lua/publish.lua": (*_in("integration", "store_versions limits_change"), *_STORE),
    "lua/cancel.lua": _in("integration", "store_parked cli_parked store_waiting"),
    "lua/explain.lua": (*_in("integration", "explain"), *_in("property", "explain_model")),
    "lua/mute.lua": _in("integration", "mutes cli_mute store_waiting"),
    "lua/pause.lua": _in("integration", "store_pause cli_pause"),
    "lua/p*.lua": _in("integration", "store_dead_letters dead_letters"),
    "lua/replay.lua": _in("integration", "store_dead_letters dead_letters"),
    "lua/snapshot.lua": (*_in("integration", "store_waiting store_pause"), *_STORE, *_in("integration", "cli_status")),
    "lua/sweep.lua": _in("integration", "rq worker"),
    "lua/claim.lua": _in("integration", "store_intake worker producer"),
    "lua/*.lua": _STORE,
    "lua/*/*.lua": _STORE,
    # What follows for an event
    "dispatcher/consequences.py": (*_in("integration", "delivery_table store_reconcile mutes"), *_STORE),
    "dispatcher/own*.py": (*_in("integration", "store_digest store_notice"), *_STORE),
    "dispatcher/reconcile.py": (*_in("unit", "reconcile"), *_in("integration", "store_reconcile"), *_STORE),
    "dispatcher/policy.py": (*_in("unit", "policy guarantees"), *_in("integration", "shadow_limits"), *_STORE),
    "dispatcher/dispatch.py": (*_in("integration", "store_decisions limits_change delivery_table"), *_STORE),
    "dispatcher/outcome.py": (*_in("integration", "store_decisions delivery_table"), *_STORE),
    "dispatcher/mutes.py": (*_in("integration", "mutes"), *_STORE),
    "dispatcher/tally.py": (*_in("integration", "store_digest store_notice"), *_STORE),
    "dispatcher/shards.py": _in("unit", "shards"),
    "dispatcher/store/envelope.py": (*_in("unit", "envelope"), *_in("integration", "store_intake store_endurance")),
    "dispatcher/store/enqueueing.py": _in("integration", "store_intake producer_contract producer async_producer"),
    "dispatcher/store/explanations.py": (*_in("unit", "explaining"), *_in("integration", "explain cli_explain")),
    "dispatcher/store/dead_letters.py": _in("integration", "store_dead_letters dead_letters"),
    "dispatcher/store/parked_events.py": _in("integration", "store_parked cli_parked"),
    "dispatcher/store/sweep.py": _in("integration", "rq worker"),
    "dispatcher/store/tallies.py": (*_in("integration", "store_digest store_notice"), *_STORE),
    "dispatcher/store/decisions.py": (*_in("integration", "store_decisions shadow_limits explain"), *_STORE),
    "dispatcher/store/*.py": (*_STORE, *_in("integration", "cli_pause cli_status")),
    "dispatcher/limiter/*.py": (*_in("integration", "limiter async_limiter"), *_GATE),
    "dispatcher/producer/*.py": _in("integration", "producer_contract producer async_producer"),
    "dispatcher/slack/taxonomy.py": (*_in("unit", "taxonomy"), *_SLACK),
    "dispatcher/slack/history.py": (*_in("integration", "slack_history"), *_SLACK),
    "dispatcher/slack/fallbacks.py": (*_in("integration", "slack_fallbacks"), *_SLACK),
    "dispatcher/slack/clients.py": _SLACK,
    "dispatcher/slack/idle.py": (*_in("integration", "slack_keep_alive"), *_SLACK),
    "dispatcher/slack/re*.py": _SLACK,
    "dispatcher/slack/s*.py": _SLACK,
    "dispatcher/slack/t*.py": (*_in("integration", "slack_transport"), *_SLACK),
    "dispatcher/worker/door.py": (*_in("unit", "door"), *_in("integration", "store_door"), *_WORKER),
    "dispatcher/worker/senders.py": (*_in("unit", "senders"), *_WORKER),
    "dispatcher/worker/admission.py": (*_in("integration", _ENDS), *_WORKER),
    "dispatcher/worker/ends.py": (*_in("integration", _ENDS), *_WORKER),
}


def listed_tests(file: str) -> tuple[str, ...]:
    """The tests that have to notice a mistake in the file, in the order in which they run; none of one not listed."""
    for glob, tests in TESTS.items():
        if PurePosixPath(file).match(glob):
            return tuple(dict.fromkeys(tests))
    return ()


def listed_files() -> list[str]:
    """Every file that a row fits; some modules state nothing but names and have no mutant."""
    found = {path for glob in TESTS for path in PROJECT.glob(glob)}
    return sorted(path.relative_to(PROJECT).as_posix() for path in found if path.name != "__init__.py")


@cache
def mutants_of(file: str) -> tuple[Mutant, ...]:
    """Every mutant of one file."""
    text = read(file)
    operators = lua if file.endswith(".lua") else python
    return tuple(named(file, text, operators.changes(text), listed_tests(file)))


def all_mutants() -> Iterator[Mutant]:
    """Every mutant of every listed file."""
    for file in listed_files():
        yield from mutants_of(file)


def read(file: str) -> str:
    """The text of a file of the project."""
    return (PROJECT / file).read_text(encoding="utf-8")

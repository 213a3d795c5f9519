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
    places = (name.rpartition("/") for name in names.split())
    return tuple(f"tests/{folder}/{room}{slash}test_{name}.py" for room, slash, name in places)


_METRICS: Final = _in("integration", "web/metrics store/metrics")

_STORE: Final = (
    *_in(
        "integration",
        "store/settle store/take store/order store/waiting store/versions silences store/explanations shadow_limits"
        " store/dead_letters store/intake store/ahead store/decisions limits_change store/endurance store/threads"
        " store/pause store/reconcile store/deferred store/notice store/prefilter store/parked store/metrics"
        " store/stock_jobs store/counts store/scheduled store/fallback store/clock quiet_hours worker/once"
        " worker/recoveries",
    ),
    *_in(
        "property", "prefilter_slots store_model prefilter_model explain_model silences_model quiet_walk recovery_model"
    ),
    *_in("integration", "delivery_table store/digest"),
    *_in("property", "deferral_model digest_model"),
    *_in("integration", "store/lines"),
    *_in("faults", "malformed_records"),
    *_in("integration", "bounded_scripts bad_input"),
)
"""The tests of what is stored, quickest first; those of the table's row run before them."""

_GATE: Final = (
    *_in("integration", "limiter/gate limiter/limiter limiter/async_limiter"),
    *_in("property", "gate_batches gate_model line_model"),
    *_in("integration", "limiter/refusals limiter/waiting limiter/async_waiting"),
)
_SLACK: Final = _in(
    "integration", "slack/sink slack/secrets slack/degrade slack/history slack/transport slack/keep_alive slack/pause"
)
_ENDS: Final = "store/decisions store/digest store/prefilter shadow_limits store/notice store/dead_letters store/take"
_RECOVERIES: Final = (*_in("integration", "worker/recoveries"), *_in("property", "recovery_model"))
_RQ: Final = _in("integration", "rq")
_WORKER: Final = _in("integration", "worker/ahead worker/batches delivery_table cli/dead worker/worker")

TESTS: Final[Mapping[str, tuple[str, ...]]] = {
    # The gate, and those who wait in `acquire`
    "lua/include/slots.lua": (*_in("integration", "limiter/limiter"), *_GATE, *_STORE),
    "lua/include/gate.lua": (*_in("property", "gate_batches"), *_GATE, *_STORE),
    "lua/include/prelude.lua": (*_GATE, *_STORE),
    "lua/include/plan.lua": (*_in("property", "plan_model"), *_STORE, *_GATE),
    "lua/include/waiters.lua": (*_in("property", "line_model"), *_GATE),
    "lua/gate.lua": _GATE,
    "lua/usage.lua": _GATE,
    "lua/release.lua": _GATE,
    "lua/reset.lua": _GATE,
    "lua/wait.lua": (*_in("property", "line_model"), *_GATE),
    # What is stored
    "lua/enqueue.lua": (*_in("integration", "store/intake producer/contract producer/producer"), *_STORE),
    "lua/take.lua": (
        *_in("integration", "store/take store/order store/prefilter store/reconcile store/ahead"),
        *_STORE,
        *_RQ,
    ),
    "lua/peek.lua": _in("integration", "store/stock_jobs"),
    "lua/include/intake.lua": (
        *_in("integration", "store/take store/prefilter store/stock_jobs store/prefilter_rights"),
        *_STORE,
        *_RQ,
    ),
    "lua/include/due.lua": (*_in("integration", "store/take store/order store/scheduled"), *_STORE, *_RQ),
    "lua/include/record.lua": (*_in("integration", "store/settle store/notice store/take"), *_STORE),
    "lua/include/lines.lua": (*_in("integration", "store/lines store/waiting"), *_STORE),
    "lua/include/pause.lua": (*_in("integration", "store/pause"), *_STORE),
    "lua/include/digest.lua": (*_in("integration", "store/digest store/notice"), *_STORE),
    "lua/include/deferred.lua": (*_in("integration", "store/deferred store/order"), *_STORE),
    "lua/include/leases.lua": (*_in("integration", "store/parked"), *_STORE),
    "lua/include/accounting.lua": (
        *_in("integration", "store/counts store/decisions store/settle store/dead_letters"),
        *_STORE,
    ),
    "lua/include/letters.lua": (*_in("integration", "store/decisions store/settle store/dead_letters"), *_STORE),
    "lua/include/threads.lua": (*_in("integration", "store/threads"), *_STORE),
    "lua/include/subjects.lua": (*_RECOVERIES, *_STORE),
    "lua/resolve.lua": (*_RECOVERIES, *_STORE),
    "lua/pace.lua": (*_in("integration", "store/waiting store/order limits_change store/threads"), *_STORE),
    "lua/line_up.lua": (*_in("integration", "store/deferred store/order limits_change"), *_STORE),
    "lua/admit.lua": (*_in("integration", "store/decisions limits_change store/digest shadow_limits"), *_STORE),
    "lua/publish.lua": (*_in("integration", "store/versions limits_change"), *_STORE),
    "lua/cancel.lua": _in(
        "integration", "store/parked cli/parked store/waiting worker/recoveries store/digest store/counts"
    ),
    "lua/explain.lua": (*_in("integration", "store/explanations"), *_in("property", "explain_model")),
    "lua/forecast.lua": (*_in("integration", "store/explanations"), *_in("property", "explain_model")),
    "lua/silence.lua": (*_in("integration", "silences cli/mute store/waiting"), *_STORE),
    "lua/include/silences.lua": (*_in("integration", "silences"), *_STORE),
    "lua/pause.lua": _in("integration", "store/pause cli/pause store/parked"),
    "lua/purge.lua": _in("integration", "store/dead_letters cli/dead"),
    "lua/letters.lua": _in("integration", "store/dead_letters cli/dead"),
    "lua/of_category.lua": _in("integration", "store/parked cli/parked"),
    "lua/replay.lua": _in("integration", "store/dead_letters cli/dead"),
    "lua/snapshot.lua": (*_in("integration", "store/waiting store/pause"), *_STORE, *_in("integration", "cli/status")),
    "lua/sweep.lua": _in("integration", "rq worker/worker"),
    "lua/removals.lua": _in("integration", "store/removals"),
    "lua/claim.lua": _in("integration", "store/intake worker/worker producer/producer"),
    "lua/*.lua": _STORE,
    "lua/*/*.lua": _STORE,
    # What follows for an event
    "dispatcher/core/transitions.py": (
        *_in("integration", "delivery_table store/reconcile silences quiet_hours store/fallback"),
        *_STORE,
    ),
    "dispatcher/core/digests.py": (
        *_in("integration", "store/own_messages store/digest store/notice worker/once"),
        *_STORE,
    ),
    "dispatcher/core/reconciliation.py": (
        *_in("unit", "core/reconciliation"),
        *_in("integration", "store/reconcile"),
        *_STORE,
    ),
    "dispatcher/core/policy.py": (
        *_in("unit", "core/policy core/guarantees"),
        *_in("integration", "shadow_limits"),
        *_STORE,
    ),
    "dispatcher/core/pipeline.py": (
        *_in("integration", "store/decisions limits_change delivery_table"),
        *_STORE,
    ),
    "dispatcher/core/states.py": (*_in("integration", "store/decisions delivery_table"), *_STORE),
    "dispatcher/core/quiet.py": (
        *_in("unit", "settings/quiet"),
        *_in("property", "quiet_model"),
        *_in("integration", "quiet_hours"),
        *_in("property", "quiet_walk"),
    ),
    "dispatcher/core/matchers.py": (*_in("unit", "core/matchers"), *_in("property", "matchers_model")),
    "dispatcher/core/silences.py": (*_in("integration", "silences cli/silence cli/mute"), *_STORE),
    "dispatcher/core/silence_reports.py": _in("integration", "store/own_messages silences"),
    "dispatcher/core/tally.py": (*_in("integration", "store/digest store/notice"), *_STORE),
    "dispatcher/producer/shards.py": _in("unit", "producer/shards"),
    "dispatcher/store/intake.py": (
        *_in("unit", "store/intake"),
        *_in("integration", "store/intake producer/contract producer/producer producer/async_producer store/endurance"),
        *_RQ,
    ),
    "dispatcher/store/stock_jobs.py": _in("integration", "store/stock_jobs"),
    "dispatcher/store/script_rows.py": (
        *_in("unit", "store/intake"),
        *_STORE,
        *_in("integration", "cli/pause cli/status"),
    ),
    "dispatcher/store/explanations.py": (
        *_in("unit", "core/explain"),
        *_in("integration", "store/explanations cli/explain quiet_hours silences worker/once store/fallback"),
        *_in("integration", "worker/recoveries store/scheduled store/digest"),
    ),
    "dispatcher/store/id_search.py": _in("integration", "store/explanations cli/explain"),
    "dispatcher/store/forecast.py": (*_in("integration", "store/explanations"), *_in("property", "explain_model")),
    "dispatcher/store/dead_letters.py": _in("integration", "store/dead_letters cli/dead"),
    "dispatcher/store/parked_events.py": _in("integration", "store/parked cli/parked"),
    "dispatcher/store/rq_recovery.py": _in("integration", "rq worker/worker"),
    "dispatcher/store/removals.py": _in("integration", "store/removals"),
    "dispatcher/store/tallies.py": (*_in("integration", "store/digest store/notice"), *_STORE),
    "dispatcher/store/decisions.py": (*_in("integration", "store/decisions shadow_limits store/explanations"), *_STORE),
    "dispatcher/store/admission.py": (
        *_in("unit", "store/prefilter"),
        *_in("integration", _ENDS),
        *_in("integration", "quiet_hours silences worker/once worker/recoveries"),
        *_WORKER,
    ),
    "dispatcher/store/silences.py": (*_in("integration", "silences cli/silence cli/mute"), *_STORE),
    "dispatcher/store/audit.py": _in("integration", "web/audit"),
    "dispatcher/store/*.py": (*_STORE, *_in("integration", "cli/pause cli/status web/metrics")),
    "dispatcher/limiter/*.py": (*_in("integration", "limiter/limiter limiter/async_limiter"), *_GATE),
    "dispatcher/producer/background.py": _in("integration", "producer/log_handlers"),
    "dispatcher/producer/log_handlers.py": _in("integration", "producer/log_handlers"),
    "dispatcher/producer/*.py": _in("integration", "producer/contract producer/producer producer/async_producer"),
    "dispatcher/slack/taxonomy.py": (*_in("unit", "slack/taxonomy"), *_SLACK),
    "dispatcher/slack/history.py": (*_in("integration", "slack/history"), *_SLACK),
    "dispatcher/slack/clients.py": _SLACK,
    "dispatcher/slack/transport.py": (*_in("integration", "slack/keep_alive slack/transport"), *_SLACK),
    "dispatcher/slack/replies.py": (*_in("unit", "slack/taxonomy"), *_in("integration", "store/metrics"), *_SLACK),
    "dispatcher/slack/re*.py": _SLACK,
    "dispatcher/app/metrics.py": _METRICS,
    "dispatcher/web/exposition.py": _METRICS,
    "dispatcher/web/metrics.py": _METRICS,
    "dispatcher/cli/drawing.py": (*_in("unit", "cli/drawing"), *_in("integration", "cli/status")),
    "dispatcher/slack/s*.py": (*_in("integration", "slack/degrade"), *_SLACK),
    "dispatcher/slack/t*.py": (*_in("integration", "slack/transport"), *_SLACK),
    "dispatcher/worker/post_pool.py": (*_in("unit", "worker/post_pool"), *_WORKER),
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

"""The metrics as families of samples, from one look. Imports prometheus_client.

Every figure that two samples have in common comes from one script's answer: in each scrape what was received is what
ended, what is parked and what is in flight, and the reasons of an outcome add up to its categories.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dispatcher.app.documents.facts import window
from dispatcher.app.documents.recent import CAUSES, REASONED
from dispatcher.app.fleet import WorkerEntry
from dispatcher.app.metrics import MOST_LIMITS, OTHER, Facts
from dispatcher.core.limits import EVERYTHING, Reason
from dispatcher.core.policy import EDITS, GLOBAL_SCOPE
from dispatcher.core.units import US
from dispatcher.slack.replies import BUCKETS_S as REQUEST_BUCKETS_S

Samples: TypeAlias = Mapping[tuple[str, ...], float] | float
"""Figures by the values of the labels; one figure where there are no labels."""

PREFIX: Final = "dispatcher_"
NO_CATEGORY: Final = ""
"""The label of what has no category: a duplicate is not read."""

DELIVERY_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 1800, 3600, 21_600, 86_400)
"""Those of lua/include/accounting.lua."""

_KINDS: Final = ("operator", "outage", "cooldown", "by_hand", "category")
_LIMITS: Final = {Reason.LIMIT_GLOBAL: "global", Reason.LIMIT_CATEGORY: "category", Reason.LIMIT_LABEL: "label"}
_DEATHS: Final = (
    Reason.EXPIRED,
    Reason.REJECTED,
    Reason.INVALID,
    Reason.AMBIGUOUS,
    Reason.EXHAUSTED,
    Reason.OVERFLOW,
)
"""Why an event dies that no limit refuses: these are told from the start, so that the first one is an increase."""

_MOST_RESULTS: Final = 100


def families(facts: Facts) -> Iterator[Metric]:
    """All of them."""
    yield from _events(facts)
    yield from _totals(facts)
    yield from _durations(facts)
    yield from _waiting(facts)
    yield from _limits(facts)
    yield from _state(facts)
    yield from _identity(facts)


def counter(name: str, told: str, labels: Sequence[str], samples: Samples) -> Metric:
    """The family of a counter."""
    return _filled(CounterMetricFamily(PREFIX + name, told, labels=labels), samples)


def _gauge(name: str, told: str, labels: Sequence[str], samples: Samples) -> Metric:
    return _filled(GaugeMetricFamily(PREFIX + name, told, labels=labels), samples)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, samples: Samples) -> Metric:
    for values, number in samples.items() if isinstance(samples, Mapping) else (((), samples),):
        family.add_metric(values, number)
    return family


def _events(facts: Facts) -> Iterator[Metric]:
    """What came, what became of it, by which limit it was refused, and what waits."""
    counts = facts.measured.snapshot.counts
    duplicates = counts.total("duplicate")
    received: Counter[tuple[str, ...]] = Counter({(NO_CATEGORY,): duplicates})
    for category, number in counts.received_by_category().items():
        received[facts.category(category),] += number
    events: Counter[tuple[str, ...]] = Counter({(NO_CATEGORY, "duplicate"): duplicates})
    ended: Counter[tuple[str, ...]] = Counter({("duplicate", Reason.DUPLICATE.value): duplicates, ("sent", "ok"): 0})
    ended.update({("dead", reason.value): 0 for reason in _DEATHS})
    suppressed: Counter[tuple[str, ...]] = Counter()
    for name in sorted(facts.categories & facts.policy.categories.keys()):
        causes = ("category", "global", *(["label"] if facts.policy.rule(name).per_label else []))
        suppressed.update({(name, limit): 0 for limit in causes})
    for outcome in ("sent", *REASONED):
        for (category, reason), number in counts.by_reason(outcome).items():
            label = facts.category(category)
            events[label, outcome] += number
            ended[outcome, reason or Reason.OK.value] += number
            if reason in CAUSES:
                suppressed[label, _LIMITS.get(Reason(reason), reason)] += number
    yield counter("events_received", "Events that were taken and read.", ["category"], received)
    yield counter("events", "Events that ended, by what became of them.", ["category", "outcome"], events)
    yield counter("events_ended", "Events that ended, by why.", ["outcome", "reason"], ended)
    yield counter(
        "suppressed",
        "Events that a limit, a silence, quiet hours or a repeat ended.",
        ["category", "limit"],
        suppressed,
    )
    shadowed: Counter[tuple[str, ...]] = Counter()
    for field, number in facts.measured.shadowed.items():
        scope, _, limit = field.partition(" ")
        if not scope.startswith("label:"):
            name = scope.removeprefix("category:")
            known = scope == GLOBAL_SCOPE or name in facts.categories
            shadowed[scope if known else OTHER, limit] += number
    yield counter(
        "shadow_denied",
        "Events that a limit would have refused that is not enforced.",
        ["scope", "limit"],
        dict(shadowed.most_common(MOST_LIMITS)),
    )


def _totals(facts: Facts) -> Iterator[Metric]:
    snapshot, counts = facts.measured.snapshot, facts.measured.counts
    for name, told, number in (
        ("enqueued", "Events that were handed over.", snapshot.enqueued),
        ("replayed", "Dead letters that were sent through the limits again.", snapshot.totals.get("replayed", 0)),
        ("notices", "Digests and notices that were posted.", snapshot.totals.get("notices", 0)),
        ("dead_letters_trimmed", "Dead letters lost to their bounds.", counts.get("trimmed", 0)),
        (
            "limits_refused",
            "Limits files with faults that a worker or HTTP was given.",
            counts.get("limits_refused", 0),
        ),
    ):
        yield counter(name, told, [], number)


def _durations(facts: Facts) -> Iterator[Metric]:
    """How long posts and requests took; the store counts them by bucket."""
    counts = facts.measured.counts
    yield _histogram(
        "delivery_seconds",
        "From when an event might be posted until it was.",
        ["waited_for", "priority"],
        DELIVERY_BUCKETS_S,
        _fields(counts, "delivery"),
    )
    requests = Counter({(method, result): number for (method, result), number in _fields(counts, "slack").items()})
    yield counter(
        "slack_requests", "Requests to Slack.", ["method", "result"], dict(requests.most_common(_MOST_RESULTS))
    )
    yield _histogram(
        "slack_request_seconds",
        "How long a request to Slack took.",
        ["method"],
        REQUEST_BUCKETS_S,
        _fields(counts, "seconds"),
    )


def _fields(counts: Mapping[str, int], first: str) -> dict[tuple[str, ...], int]:
    """The fields that begin with a word, by the words that follow it."""
    return {tuple(field.split(" ")[1:]): number for field, number in counts.items() if field.startswith(f"{first} ")}


def _histogram(
    name: str,
    told: str,
    labels: Sequence[str],
    bounds: Sequence[float],
    fields: Mapping[tuple[str, ...], int],
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(PREFIX + name, told, labels=labels)
    for values in sorted({words[:-1] for words in fields}):
        counts = [fields.get((*values, str(number)), 0) for number in range(1, len(bounds) + 2)]
        les = [*(str(float(bound)) for bound in bounds), "+Inf"]
        buckets = list(zip(les, accumulate(counts), strict=True))
        family.add_metric(values, buckets, sum_value=fields.get((*values, "us"), 0) / US)
    return family


def _waiting(facts: Facts) -> Iterator[Metric]:
    snapshot = facts.measured.snapshot
    lanes: dict[tuple[str, ...], float] = {(lane.value,): number for lane, number in facts.measured.lanes.items()}
    yield _gauge("waiting", "Events on a lane, not yet taken.", ["lane"], lanes)
    oldest: dict[tuple[str, ...], float] = {(lane.value,): facts.oldest_s(lane) for lane in facts.measured.lanes}
    yield _gauge("oldest_waiting_seconds", "For how long the next event of a lane waits.", ["lane"], oldest)
    yield _gauge("max_waiting", "How many events may wait, be in flight and parked, together.", [], facts.max_waiting)
    parked: Counter[tuple[str, ...]] = Counter()
    for (category, why), number in snapshot.counts.by_reason("parked").items():
        parked[facts.category(category), why or "unknown"] += number
    read = sum(snapshot.counts.received_by_category().values())
    ended = sum(sum(snapshot.by_category(outcome).values()) for outcome in ("sent", *REASONED))
    waiting = sum(parked.values())
    yield _gauge("parked", "Events that wait off the queue, and for what.", ["category", "why"], _but_zeros(parked))
    yield _gauge("in_flight", "Events in workers' hands about which something was decided.", [], read - ended - waiting)
    undecided = snapshot.received - snapshot.totals.get("duplicate", 0) - read
    yield _gauge("undecided", "Events in workers' hands about which nothing was decided yet.", [], undecided)


def _but_zeros(counts: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], float]:
    return {labels: number for labels, number in counts.items() if number}


def _limits(facts: Facts) -> Iterator[Metric]:
    """The use of limits, but for those of labels and those about one thing, of which there may be any number."""
    most: dict[tuple[str, ...], float] = {}
    used: dict[tuple[str, ...], float] = {}
    held: dict[tuple[str, ...], float] = {}
    free: dict[tuple[str, ...], float] = {}
    for scope in facts.scopes:
        for usage in scope.usages:
            labels = (scope.name, window(usage.limit))
            most[labels], used[labels], held[labels] = usage.limit.max, usage.used, scope.held
            free[labels] = usage.wait_us / US
    labels_of = ["scope", "window"]
    yield _gauge("limit_max", "How many events a limit lets through in its window.", labels_of, most)
    yield _gauge("limit_used", "How many slots of a limit are used.", labels_of, used)
    yield _gauge("limit_held", "How many slots of the scope are held by events that wait.", labels_of, held)
    yield _gauge("limit_free_in_seconds", "Until a limit has room for one more; 0: now.", labels_of, free)


def _state(facts: Facts) -> Iterator[Metric]:
    """What holds posting up, what was kept, who works, and whether the books balance."""
    snapshot = facts.measured.snapshot
    cooling: dict[tuple[str, ...], float] = {}
    for channel, until_us in snapshot.cooldowns.items():
        if channel == EDITS:
            continue
        label = (channel if channel in facts.channels else OTHER,)
        cooling[label] = max(cooling.get(label, 0.0), max(0, until_us - snapshot.now_us) / US)
    yield _gauge("cooldown_seconds", "For how long a channel takes no post.", ["channel"], cooling)
    paused: dict[tuple[str, ...], float] = {(kind,): 0 for kind in _KINDS}
    if snapshot.pause is not None:
        paused[snapshot.pause.kind,] = 1
    paused["by_hand",] = int(EVERYTHING in snapshot.paused)
    paused["category",] = sum(name != EVERYTHING for name in snapshot.paused)
    yield _gauge("paused", "Whether nobody posts, by why; category: how many are paused by hand.", ["kind"], paused)
    in_force = snapshot.silences_in_force
    yield _gauge("muted", "Categories that are muted.", [], len({each.muted for each in in_force if each.muted}))
    yield _gauge("silences", "Silences that are in force, mutes among them.", [], len(in_force))
    letters = Counter({words: max(0, count) for words, count in _fields(facts.measured.counts, "letters").items()})
    letters["unknown",] = max(0, snapshot.dead_letters - sum(letters.values()))
    yield _gauge("dead_letters", "Dead letters that are kept.", ["reason"], _but_zeros(letters))
    states: Counter[tuple[str, ...]] = Counter({("idle",): 0, ("busy",): 0, ("silent",): 0})
    states.update((_state_of(each),) for each in facts.workers)
    yield _gauge("workers", "Workers by state; silent: without a sign of life.", ["state"], dict(states))
    living = [each for each in facts.workers if each.alive]
    yield _gauge("senders", "Posts that may be under way at once.", [], sum(each.senders for each in living))
    yield _gauge("senders_busy", "Posts that were under way.", [], sum(each.senders_busy for each in living))
    yield _gauge("ledger_difference", "Events for which the books do not balance.", [], snapshot.difference())


def _state_of(worker: WorkerEntry) -> str:
    """Its state; ``started`` is RQ's word for one that waits for its first work."""
    if not worker.alive:
        return "silent"
    return "idle" if worker.state == "started" else worker.state or "unknown"


def _identity(facts: Facts) -> Iterator[Metric]:
    found = facts.version
    yield _gauge("limits_version", "The version of the limits in force; 0: none.", [], found.number if found else 0)
    yield _gauge(
        "limits_applied_timestamp_seconds", "When it was put in force.", [], found.at_us / US if found else 0.0
    )
    labels = (version("notification-dispatcher"), platform.python_version(), facts.server)
    yield _gauge("build_info", "What runs here; always 1.", ["version", "python", "server"], {labels: 1})

"""What a scrape says, read by prometheus_client's own parser, and whether its figures fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from prometheus_client.parser import text_string_to_metric_families

GAUGES: Final = frozenset(
    {
        "waiting", "oldest_waiting_seconds", "max_waiting", "in_flight", "undecided",
        "parked", "limit_max", "limit_used", "limit_held", "limit_free_in_seconds",
        "cooldown_seconds", "paused", "muted", "silences", "dead_letters", "workers",
        "senders", "senders_busy", "ledger_difference", "limits_version", "limits_applied_timestamp_seconds",
        "build_info",
    }
)  # fmt: skip
COUNTERS: Final = frozenset(
    {
        "events_received", "events", "events_ended", "suppressed", "shadow_denied",
        "enqueued", "replayed", "notices", "dead_letters_trimmed", "limits_refused",
        "slack_requests",
    }
)  # fmt: skip
HISTOGRAMS: Final = frozenset({"delivery_seconds", "slack_request_seconds"})
OF_PROCESS: Final = frozenset({"http_requests", "http_events", "scrape_seconds", "redis_up"})


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples by name and labels; the type of each family."""

    types: Mapping[str, str]
    samples: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]

    @classmethod
    def of(cls, text: str) -> Self:
        """Read it."""
        types: dict[str, str] = {}
        samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(text):
            types[family.name.removeprefix("dispatcher_")] = family.type
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                of_name = samples.setdefault(sample.name.removeprefix("dispatcher_"), {})
                assert labels not in of_name, f"{sample.name}{labels} stands there twice"
                of_name[labels] = sample.value
        return cls(types, samples)

    @property
    def series(self) -> int:
        """How many samples there are."""
        return sum(map(len, self.samples.values()))

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums of a family by one label."""
        sums: Counter[str] = Counter()
        for labels, value in self.samples.get(name, {}).items():
            sums[dict(labels)[label]] += value  # type: ignore[assignment] # a Counter of floats
        return dict(sums)

    def total(self, name: str) -> float:
        """All samples of a name together."""
        return sum(self.samples.get(name, {}).values())

    def value(self, name: str, **labels: str) -> float:
        """One sample."""
        return self.samples[name][tuple(sorted(labels.items()))]

    def faults(self) -> list[str]:
        """A sentence for each thing that does not fit."""
        received, ended = self.total("events_received_total"), self.total("events_total")
        held = self.total("parked") + self.total("in_flight")
        rules = (
            (received == ended + held, f"received {received} = ended {ended} + parked and in flight {held}"),
            (
                _but_zeros(self.by("events_total", "outcome")) == _but_zeros(self.by("events_ended_total", "outcome")),
                "the reasons of each outcome are its categories",
            ),
            (
                self.total("enqueued_total") == received + self.total("undecided") + self.total("waiting"),
                "enqueued = received + undecided + waiting",
            ),
            (self.total("in_flight") >= 0 and self.total("undecided") >= 0, "nothing is less than nothing"),
            (min(self.samples.get("parked", {}).values(), default=0) >= 0, "nothing parked is less than nothing"),
            (self.total("ledger_difference") == 0, "the books balance"),
            (
                self.total("delivery_seconds_count") == self.by("events_total", "outcome").get("sent", 0),
                "each sent event was delivered once",
            ),
        )
        return [said for holds, said in rules if not holds]


def _but_zeros(counts: Mapping[str, float]) -> dict[str, float]:
    return {name: count for name, count in counts.items() if count}

"""Rules and board ask for metrics that there are; every alert is explained, and tested in both directions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from tests.support.scrapes import COUNTERS, GAUGES, HISTOGRAMS, OF_PROCESS

CHECKOUT: Final = Path(__file__).resolve().parents[2]
RULES: Final = YAML(typ="safe").load(CHECKOUT / "deploy" / "prometheus" / "rules.yaml")["groups"][0]["rules"]
TESTS: Final = YAML(typ="safe").load(CHECKOUT / "deploy" / "prometheus" / "rules.test.yaml")["tests"]
BOARD: Final = json.loads((CHECKOUT / "deploy" / "grafana" / "board.json").read_text(encoding="utf-8"))
ALERTS: Final = {rule["alert"] for rule in RULES if "alert" in rule}

COUNTED: Final = frozenset({"http_requests", "http_events"})
SERIES: Final = {
    *GAUGES,
    *(f"{name}_total" for name in COUNTERS | COUNTED),
    *(f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "count", "sum")),
    *(OF_PROCESS - COUNTED),
}


def queries() -> Iterator[tuple[str, str]]:
    """Every query, and where it stands."""
    for rule in RULES:
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in BOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def test_every_query_names_a_metric_that_exists() -> None:
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for where, query in queries():
        names = re.findall(r"\bdispatcher[_:][a-z_:]+", query)
        assert names, where
        for name in names:
            assert name in recorded or name.removeprefix("dispatcher_") in SERIES, (where, name)


def test_every_figure_of_the_namespace_is_asked_for_once_however_many_processes_tell_it() -> None:
    for where, query in queries():
        one = re.sub(r"\bmax (without \(instance, pod\)|by \(job, namespace\)) \(|\bmax\(", "one(", query)
        for found in re.finditer(r"\bdispatcher_([a-z_]+)", one):
            is_own = found[1].startswith(("http_", "redis_up", "scrape_"))
            assert is_own or "one" in calls_around(one[: found.start()]), (where, found[1])


def calls_around(before: str) -> list[str]:
    """The last word before each bracket that is open at the end."""
    opened: list[str] = []
    for word, bracket in re.findall(r"([a-z_]*) *([()])", before):
        if bracket == "(":
            opened.append(word)
        else:
            opened.pop()
    return opened


def test_the_board_asks_for_the_deployments_that_are_chosen() -> None:
    (chosen,) = [each for each in BOARD["templating"]["list"] if each["name"] == "job"]
    assert (chosen["query"], chosen["includeAll"]) == ("label_values(dispatcher_redis_up, job)", True)
    for where, query in queries():
        if where not in {*ALERTS, "dispatcher:held:sum"}:
            assert query.count('{job=~"$job"') == len(re.findall(r"\bdispatcher_", query)), where


def test_every_alert_is_explained_and_fires_in_its_test_and_not_before() -> None:
    documented = set(
        re.findall(r"^\| `(Dispatcher\w+)`", (CHECKOUT / "docs" / "metrics.md").read_text("utf-8"), re.MULTILINE)
    )
    assert documented == ALERTS
    cases: list[dict[str, Any]] = [case for test in TESTS for case in test.get("alert_rule_test", ())]
    for is_firing in (True, False):
        assert {case["alertname"] for case in cases if bool(case["exp_alerts"]) is is_firing} == ALERTS
    assert {rule["labels"]["severity"] for rule in RULES if "alert" in rule} == {"critical", "warning", "info"}

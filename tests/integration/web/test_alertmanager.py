"""Notifications of Alertmanager and Grafana: the message they become, and that each arrives once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dispatcher.core.rendering import MAX_TEXT, escape
from dispatcher.server.keys import Keys
from dispatcher.web import alertmanager
from tests.integration.web.test_ingest import payload
from tests.support.dead_letters import on_lanes
from tests.support.servers import Database
from tests.support.serving import Serving

KEYS = Keys("dispatcher")


def alert(number: int, status: str = "firing", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {
        "status": status,
        "labels": {"alertname": "DiskFull", "severity": "critical", "instance": f"db{number}"},
        "annotations": {"summary": f"disk full on db{number}"},
        "startsAt": "2026-11-20T10:00:00Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": f"http://prometheus/graph?g0.expr={number}",
        "fingerprint": f"f{number}",
        **more,
    }


def notification(*alerts: dict[str, Any], **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """As Alertmanager sends it, in version 4 of its webhook."""
    return {
        "version": "4",
        "groupKey": '{}:{alertname="DiskFull"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "team storage/Zürich",
        "groupLabels": {"alertname": "DiskFull"},
        "commonLabels": {"alertname": "DiskFull", "severity": "critical"},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "alerts": list(alerts),
        **more,
    }


def sent(serving: Serving, redis: Database, body: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
    """The events that a notification became."""
    answer = serving.post(f"/v1/alertmanager{query}", body)
    assert (answer.status_code, answer.json()["duplicate"]) == (200, 0), answer.text
    return [payload(redis, id_) for id_ in on_lanes(redis)]


def test_one_alert_is_a_message_with_its_summary_and_links(serving: Serving, redis: Database) -> None:
    one = alert(1, annotations={"summary": "disk full on db1", "runbook_url": "https://runbooks/disk"})
    (event,) = sent(serving, redis, notification(one))
    assert event["category"] == "team-storage-Z-rich"
    assert event["priority"] == "high"
    assert event["labels"] == {"alertname": "DiskFull", "severity": "critical"}
    assert event["text"] == (
        "[FIRING 1] disk full on db1\nSource: http://prometheus/graph?g0.expr=1\nRunbook: https://runbooks/disk"
    )


@pytest.mark.parametrize(("shown", "left_out", "more"), [(30, 7, 27), (3, 4, 4), (1, 2, 2)])
def test_many_alerts_are_one_message_that_names_ten_and_counts_the_others(
    serving: Serving, redis: Database, shown: int, left_out: int, more: int
) -> None:
    many = [alert(n) for n in range(shown)]
    (event,) = sent(serving, redis, notification(*many, truncatedAlerts=left_out), "?category=disks")
    lines = event["text"].split("\n")
    assert event["category"] == "disks"
    assert lines[0] == f"[FIRING {shown}] DiskFull"
    assert lines[1] == "- disk full on db0 (instance=db0) · Source: http://prometheus/graph?g0.expr=0"
    assert (len(lines), lines[-1]) == (2 + min(shown, 10), f"and {more} more")


def test_a_group_is_one_subject_and_news_where_other_alerts_fire_than_before() -> None:
    def keys(*alerts: dict[str, Any], each: str = "group", **more: str | int) -> list[tuple[str | None, ...]]:
        payloads = alertmanager.read_notification(notification(*alerts, **more), None, each).payloads
        return [tuple(map(payload.get, ("dedup_key", "once_key", "status"))) for payload in payloads]

    group = '{}:{alertname="DiskFull"}'
    ((about, once, status),) = keys(alert(1), alert(2))
    assert (about, status) == (group, None)
    assert keys(alert(2), alert(1, startsAt="2026-11-20T11:00:00Z"), alert(3, "resolved")) == [(about, once, None)]
    ((_, joined, _),) = keys(alert(1), alert(2), alert(3))
    assert joined != once
    assert keys(alert(1, "resolved"), alert(2, "resolved")) == [(group, None, "resolved")]
    assert [(about, status) for about, _, status in keys(alert(1), alert(2, "resolved"), each="alert")] == [
        ("f1", None),
        ("f2", "resolved"),
    ]
    ((long, _, _),) = keys(alert(1), groupKey="é" * 200)
    assert long is not None
    assert len(long) == 32
    assert keys(alert(1), groupKey="") == [(None, None, None)]
    ((_, hidden, _),) = keys(alert(1), alert(2), truncatedAlerts=1)
    assert hidden not in {once, joined}


def test_a_group_is_not_over_as_long_as_alerts_that_were_left_out_may_fire(serving: Serving, redis: Database) -> None:
    (event,) = sent(serving, redis, notification(alert(1, "resolved"), status="resolved", truncatedAlerts=5))
    assert event["dedup_key"] == '{}:{alertname="DiskFull"}'
    assert event["text"] == (
        "[1 resolved, 5 left out] DiskFull\n"
        "- disk full on db1 (instance=db1) · Source: http://prometheus/graph?g0.expr=1\n"
        "and 5 more"
    )
    assert "status" not in event


def test_of_many_alerts_those_that_fire_are_named_first(serving: Serving, redis: Database) -> None:
    ended = [alert(n, "resolved") for n in range(10)]
    (event,) = sent(serving, redis, notification(*ended, *(alert(n, generatorURL="") for n in (11, 12))))
    assert [line for line in event["text"].split("\n") if line.startswith("-")][:3] == [
        "- disk full on db11 (instance=db11)",
        "- disk full on db12 (instance=db12)",
        "- resolved: disk full on db0 (instance=db0) · Source: http://prometheus/graph?g0.expr=0",
    ]


@pytest.mark.parametrize(
    ("alerts", "priority"),
    [
        ([("warning", "firing"), ("critical", "firing"), ("info", "firing")], "high"),
        ([("critical", "resolved"), ("info", "firing")], "low"),
        ([("page", "resolved"), ("info", "resolved")], "high"),
        ([("none", "firing"), ("", "firing")], "normal"),
    ],
)
def test_the_highest_severity_that_fires_is_the_priority_of_a_group(
    serving: Serving, redis: Database, alerts: list[tuple[str, str]], priority: str
) -> None:
    mixed = [alert(n, status, labels={"severity": severity}) for n, (severity, status) in enumerate(alerts)]
    (event,) = sent(serving, redis, notification(*mixed, commonLabels={"alertname": "DiskFull"}))
    assert event.get("priority", "normal") == priority


def test_another_number_of_alerts_that_were_left_out_is_another_message(serving: Serving, redis: Database) -> None:
    sent(serving, redis, notification(alert(1), truncatedAlerts=1))
    assert len(sent(serving, redis, notification(alert(1), truncatedAlerts=2))) == 2


def test_alerts_that_were_left_out_are_one_event_beside_each_alert(serving: Serving, redis: Database) -> None:
    body = notification(alert(1, labels={"severity": "warning"}), alert(2), commonLabels={}, truncatedAlerts=5)
    events = {event["text"].partition("\n")[0]: event for event in sent(serving, redis, body, "?each=alert")}
    assert set(events) == {"[FIRING 1] disk full on db1", "[FIRING 1] disk full on db2", "[5 left out] DiskFull"}
    hidden = events["[5 left out] DiskFull"]
    assert hidden["priority"] == "high"
    assert hidden["dedup_key"] == '{}:{alertname="DiskFull"}'


def test_a_label_that_no_category_may_be_called_loses_no_alert(serving: Serving, redis: Database) -> None:
    (event,) = sent(serving, redis, notification(alert(1), commonLabels={"dispatcher_category": "disks & more"}))
    assert event["category"] == "disks-more"
    many = {f"label{n:02}": str(n) for n in range(40)}
    assert len(sent(serving, redis, notification(alert(2), commonLabels=many))[1]["labels"]) == 32


def test_what_is_resolved_says_so(serving: Serving, redis: Database) -> None:
    ended, lasting = alert(1, "resolved"), alert(2)
    (first, second) = [
        sent(serving, redis, notification(ended, lasting))[0],
        sent(serving, redis, notification(ended, status="resolved"))[1],
    ]
    assert "- resolved: disk full on db1" in first["text"]
    assert second["text"].startswith("[RESOLVED] disk full on db1\n")


def test_each_alert_can_be_an_event_of_its_own(serving: Serving, redis: Database) -> None:
    events = sent(serving, redis, notification(alert(1), alert(2)), "?each=alert&category=disks")
    assert [event["labels"]["instance"] for event in events] == ["db1", "db2"]


def test_grafanas_links_and_the_category_of_a_label_are_used(serving: Serving, redis: Database) -> None:
    more: dict[str, Any] = {
        "silenceURL": "https://grafana/silence",
        "dashboardURL": "https://grafana/d/1",
        "values": {"A": 1},
    }
    labels = {"dispatcher_category": "graphs", "severity": "info"}
    body = notification(
        alert(1, **more), commonLabels=labels, orgId=1, title="[FIRING:1]", message="m", state="alerting"
    )
    (event,) = sent(serving, redis, body)
    assert (event["category"], event["priority"]) == ("graphs", "low")
    assert event["text"].endswith("Dashboard: https://grafana/d/1\nSilence: https://grafana/silence")


def test_of_several_alerts_each_has_its_links_and_what_they_share_stands_once(
    serving: Serving, redis: Database
) -> None:
    alerts = [
        alert(n, generatorURL="http://prometheus/rule", silenceURL=f"https://grafana/s/{n}", dashboardURL="no link")
        for n in (1, 2)
    ]
    book = {"runbook_url": "https://runbooks/disk"}
    alerts[0]["annotations"] |= book
    (event,) = sent(serving, redis, notification(*alerts, commonAnnotations=book))
    assert event["text"].split("\n") == [
        "[FIRING 2] DiskFull",
        "- disk full on db1 (instance=db1) · Silence: https://grafana/s/1",
        "- disk full on db2 (instance=db2) · Silence: https://grafana/s/2",
        "Source: http://prometheus/rule",
        "Runbook: https://runbooks/disk",
    ]


def test_links_that_no_longer_fit_into_a_message_are_left_out_whole(serving: Serving, redis: Database) -> None:
    urls = [f"https://grafana/s?{'&' * 130}={n}" for n in range(10)]
    alerts = [alert(n, generatorURL="", silenceURL=url) for n, url in enumerate(urls)]
    (event,) = sent(serving, redis, notification(*alerts, truncatedAlerts=3))
    assert len(escape(event["text"])) <= MAX_TEXT
    assert "and 3 more" in event["text"]
    shown = [line.partition(" · Silence: ")[2] for line in event["text"].split("\n") if line.startswith("-")]
    assert shown[0] == urls[0]
    assert shown[-1] == ""
    assert set(shown) <= {"", *urls}


def test_retries_and_the_other_one_of_a_pair_are_folded_for_five_minutes(serving: Serving, redis: Database) -> None:
    body, turned = notification(alert(1), alert(2)), notification(alert(2), alert(1), receiver="team storage/Zürich")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: serving.post("/v1/alertmanager", each).json(), [body, turned] * 20))
    assert sorted(answer["enqueued"] for answer in answers) == [0] * 39 + [1]
    assert len(on_lanes(redis)) == 1
    (fold,) = redis.keys(KEYS.fold("*"))
    assert 290_000 < redis.pttl(fold) <= 300_000
    redis.delete(fold)
    assert serving.post("/v1/alertmanager", body).json() == {"enqueued": 1, "duplicate": 0}


@pytest.mark.parametrize(
    "change",
    [{"status": "resolved"}, {"startsAt": "2026-11-20T11:00:00Z"}, {"fingerprint": "other"}],
    ids=["another state", "another beginning", "another alert"],
)
def test_another_state_of_a_group_is_another_message(serving: Serving, redis: Database, change: dict[str, str]) -> None:
    sent(serving, redis, notification(alert(1)))
    assert len(sent(serving, redis, notification(alert(1, **change)))) == 2


def test_a_notification_that_found_no_room_is_no_repeat_when_it_comes_again(serving: Serving, redis: Database) -> None:
    redis.rpush("rq:queue:notifications", *[f"x{n}" for n in range(1_000)])
    answer = serving.post("/v1/alertmanager", notification(alert(1)))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    redis.delete("rq:queue:notifications")
    assert serving.post("/v1/alertmanager", notification(alert(1))).json()["enqueued"] == 1


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        (b"{", 400, ""),
        (b"[]", 422, "/"),
        (b"{}", 422, "/alerts"),
        (b'{"alerts": []}', 422, "/alerts"),
        (b'{"alerts": [5]}', 422, "/alerts"),
        (b'{"alerts": [{}], "truncatedAlerts": "5"}', 422, "/truncatedAlerts"),
        (b'{"alerts": [{}], "truncatedAlerts": -1}', 422, "/truncatedAlerts"),
    ],
)
def test_what_is_no_notification_is_told(serving: Serving, body: bytes, status: int, pointer: str) -> None:
    answer = serving.post("/v1/alertmanager", body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (status, pointer)


@pytest.mark.parametrize(("alerts", "said"), [([], "an empty list"), ([5], "not a list of objects")])
def test_a_list_without_alerts_is_told_by_what_it_is(serving: Serving, alerts: list[object], said: str) -> None:
    answer = serving.post("/v1/alertmanager", {"alerts": alerts})
    assert answer.json()["detail"] == f"the body is no notification: alerts is {said}, expected one alert or more"


def test_a_notification_may_be_larger_than_other_bodies(serving: Serving, redis: Database) -> None:
    large = [alert(n, annotations={"summary": "x" * 1_000}) for n in range(5_000)]
    (event,) = sent(serving, redis, notification(*large))
    assert len(event["text"]) < 4_000
    assert serving.post("/v1/alertmanager", b" " * (alertmanager.MOST_BODY + 1)).status_code == 413


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"alerts":[%s{}]}' % (b"{}," * 10_000), "the notification holds 10001 alerts, expected at most 10000"),
        (
            b'{"alerts":[%s{}]}' % (b"{}," * 5_000_000),
            "the body holds 10000003 braces, brackets and commas, expected at most 500000",
        ),
        (
            b'{"alerts":[{"labels":[%s[]]}]}' % (b"[]," * 250_000),
            "the body holds 500005 braces, brackets and commas, expected at most 500000",
        ),
    ],
    ids=["alerts", "objects", "lists"],
)
def test_a_notification_of_more_alerts_or_values_than_one_has_is_413(serving: Serving, body: bytes, said: str) -> None:
    answer = serving.post("/v1/alertmanager", body)
    assert (answer.status_code, answer.json()["detail"]) == (413, said)


def test_a_notification_may_have_10000_alerts(serving: Serving, redis: Database) -> None:
    assert sent(serving, redis, notification(*map(alert, range(alertmanager.MOST_ALERTS))))

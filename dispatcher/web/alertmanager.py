"""Notifications of Alertmanager (webhook version 4) and of Grafana, which sends a superset, as events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from types import UnionType
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.core.event import MAX_KEY, MAX_LABELS, in_words
from dispatcher.core.rendering import MAX_TEXT, escape
from dispatcher.core.strict_json import read_json
from dispatcher.core.units import Lane
from dispatcher.errors import InvalidEvent
from dispatcher.web.asked import Asked
from dispatcher.web.ingest import Ingest
from dispatcher.web.problems import Problem

MOST_BODY: Final = 16 * 1024 * 1024
MOST_ALERTS: Final = 10_000
MOST_PARTS: Final = 500_000
"""Braces, brackets and commas of a body: of more, the parts would take the process seconds and hundreds of MB."""

MOST_SHOWN: Final = 10
"""Alerts that a message names; of more it says how many."""

_LONGEST: Final = 300
_PRIORITIES: Final = {"critical": Lane.HIGH, "page": Lane.HIGH, "info": Lane.LOW, "none": Lane.LOW}
_EACH: Final = ("group", "alert")
_LINKS: Final = (
    ("Source", ("generatorURL",)),
    ("Runbook", ("annotations", "runbook_url")),
    ("Dashboard", ("dashboardURL",)),
    ("Silence", ("silenceURL",)),
)


@dataclass(frozen=True, slots=True)
class Notification:
    """The events of one notification; ``fold`` is the same for its repeats, and for that of the other one of a pair."""

    payloads: list[dict[str, Any]]
    fold: str


class Alerts:
    """The route of Alertmanager and Grafana."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    async def post(self, request: Request, body: bytes) -> Response:
        """``POST /v1/alertmanager?category=&each=group|alert``."""
        asked = Asked.in_query(request)
        category = asked.text("category")
        each = asked.take("each", _one_of, " or ".join(_EACH)) or _EACH[0]
        asked.done()
        _check_parts(body)
        try:
            notification = read_notification(read_json(body), category, each)
        except InvalidEvent as error:
            is_json = bool(error.pointer)
            status = HTTPStatus.UNPROCESSABLE_ENTITY if is_json else HTTPStatus.BAD_REQUEST
            fault = {"index": 0, "pointer": error.pointer, "detail": str(error)}
            raise Problem(status, f"the body is no notification: {error}", errors=[fault]) from error
        events = await self._ingest.valid(notification.payloads, request)
        progress = await self._ingest.enqueue(events, request, fold=notification.fold)
        return JSONResponse({"enqueued": progress.enqueued, "duplicate": progress.duplicate})


def _check_parts(body: bytes) -> None:
    """Raise ``Problem`` for a body of more values than any notification has, before they are made."""
    parts = sum(map(body.count, (b"{", b"[", b",")))
    if parts > MOST_PARTS:
        detail = f"the body holds {parts} braces, brackets and commas, expected at most {MOST_PARTS}"
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)


def read_notification(value: object, category: str | None, each: str) -> Notification:
    """One event for the group, or one for each alert.

    Raises ``InvalidEvent`` with the place of what is wrong, and ``Problem`` for too many alerts.
    """
    if not isinstance(value, Mapping):
        raise InvalidEvent(f"{in_words(value)}, expected a JSON object", pointer="/")
    alerts = _field(value, "alerts", list, "a list of alerts")
    if len(alerts) > MOST_ALERTS:
        detail = f"the notification holds {len(alerts)} alerts, expected at most {MOST_ALERTS}"
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    if not alerts or not all(isinstance(alert, Mapping) for alert in alerts):
        said = "not a list of objects" if alerts else "an empty list"
        raise InvalidEvent(f"alerts is {said}, expected one alert or more", pointer="/alerts")
    left_out = _field(value, "truncatedAlerts", int | None, "how many alerts are left out") or 0
    if left_out < 0:
        raise InvalidEvent(f"truncatedAlerts is {left_out}, expected 0 or more", pointer="/truncatedAlerts")
    common = _texts(value, "commonLabels") | _texts(value, "groupLabels")
    named = category or _cleaned(common.get("dispatcher_category") or str(value.get("receiver", "")))
    if each == "alert":
        payloads = [
            _event(named, own, _about(alert.get("fingerprint"), [alert]), _lines([alert], own, value), [alert])
            for alert in alerts
            for own in (_texts(alert, "labels"),)
        ]
        if left_out:
            said = f"[{left_out} left out] {_title(common, value)}"
            payloads.append(_event(named, common, _about(value.get("groupKey"), [], left_out), [said], alerts))
    else:
        about = _about(value.get("groupKey"), alerts, left_out)
        payloads = [_event(named, common, about, _lines(alerts, common, value, left_out), alerts)]
    return Notification(payloads, _fold(value, alerts, left_out, f"{named} {each}"))


def _about(key: object, alerts: Sequence[Any], left_out: int = 0) -> dict[str, str]:
    """What a group, or an alert, is about, and whether that is over: not as long as one that is left out may fire.

    Only a notification whose firing alerts are the same, and that leaves out as many, counts as a repeat: one that
    others have joined is news.
    """
    if not isinstance(key, str) or not key:
        return {}
    firing = sorted(str(alert.get("fingerprint", "")) for alert in alerts if not _is_resolved(alert))
    if not firing and not left_out:
        return {"dedup_key": _short(key), "status": "resolved"}
    return {"dedup_key": _short(key), "once_key": _short(json.dumps([key, firing, left_out]))}


def _short(key: str) -> str:
    """A key that an event may have: itself, or a digest."""
    content = key.encode("utf-8", "surrogatepass")
    return key if len(content) <= MAX_KEY else blake2b(content, digest_size=16).hexdigest()


def _event(
    category: str, labels: dict[str, str], about: Mapping[str, str], lines: Iterable[str], alerts: Sequence[Any]
) -> dict[str, Any]:
    kept = dict(sorted(labels.items())[:MAX_LABELS])
    priority = _priority(labels, alerts)
    return {"category": category, "text": "\n".join(lines), "labels": kept, "priority": priority, **about}


def _priority(shared: Mapping[str, str], alerts: Sequence[Any]) -> str:
    """That of the severity that all share, or else the highest of those that fire, or of all where none does."""
    firing = [alert for alert in alerts if not _is_resolved(alert)]
    each = [shared] if "severity" in shared else [_texts(alert, "labels") for alert in firing or alerts]
    found = {_PRIORITIES.get(labels.get("severity", "").lower(), Lane.NORMAL) for labels in each}
    return next(lane.value for lane in Lane if lane in found)


def _lines(
    alerts: Sequence[Any], shared: Mapping[str, str], notification: Mapping[str, Any], left_out: int = 0
) -> Iterator[str]:
    firing = [alert for alert in alerts if not _is_resolved(alert)]
    over = f"{len(alerts)} resolved, {left_out} left out" if left_out else "RESOLVED"
    state = f"FIRING {len(firing)}" if firing else over
    if len(alerts) == 1 and not left_out:
        yield f"[{state}] {_said(alerts[0], {})}"
        yield from _links(alerts[0])
        return
    head = f"[{state}] {_title(shared, notification)}"
    named = sorted(alerts, key=_is_resolved)[:MOST_SHOWN]
    lines = [f"- {'resolved: ' if firing and _is_resolved(each) else ''}{_said(each, shared)}" for each in named]
    more = max(0, len(alerts) - MOST_SHOWN) + left_out
    tail = [*([f"and {more} more"] if more else []), *_links_of_all(alerts, notification)]
    room = MAX_TEXT - len(escape("\n".join((head, *lines, *tail))))
    yield head
    for line, alert in zip(lines, named, strict=True):
        links = ""
        for link in (f" · {each}" for each in _links(alert) if each not in tail):
            if len(escape(link)) <= room:
                room -= len(escape(link))
                links += link
        yield line + links
    yield from tail


def _links_of_all(alerts: Sequence[Any], notification: Mapping[str, Any]) -> list[str]:
    """The links that several alerts share."""
    first, *others = [list(_links(alert)) for alert in alerts]
    links = [link for link in first if others and all(link in each for each in others)]
    runbook = _texts(notification, "commonAnnotations").get("runbook_url")
    if runbook and not any(link.startswith("Runbook: ") for link in links):
        links.append(f"Runbook: {runbook}")
    return links


def _title(shared: Mapping[str, str], notification: Mapping[str, Any]) -> str:
    """What the alerts of a notification have in common, in a line."""
    head = _texts(notification, "commonAnnotations")
    title = head.get("summary") or head.get("description") or shared.get("alertname") or _named(shared)
    return _cut(title or str(notification.get("receiver", "")))


def _said(alert: Mapping[str, Any], shared: Mapping[str, str]) -> str:
    """What an alert says, and the labels that it does not share with the others."""
    labels, annotations = _texts(alert, "labels"), _texts(alert, "annotations")
    said = annotations.get("summary") or annotations.get("description")
    own = {name: text for name, text in labels.items() if shared.get(name) != text and name != "alertname"}
    if said and not shared:
        return _cut(said)
    return _cut(" ".join(filter(None, (said or labels.get("alertname"), f"({_named(own)})" if own else ""))))


def _links(alert: Mapping[str, Any]) -> Iterator[str]:
    for name, path in _LINKS:
        value: Any = alert
        for step in path:
            value = value.get(step) if isinstance(value, Mapping) else None
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            yield f"{name}: {value}"


def _is_resolved(alert: Mapping[str, Any]) -> bool:
    return alert.get("status") == "resolved"


def _fold(value: Mapping[str, Any], alerts: Sequence[Any], left_out: int, way: str) -> str:
    """A digest of what makes a notification this one, in whatever order its alerts are."""
    states = sorted([str(alert.get(name, "")) for name in ("fingerprint", "status", "startsAt")] for alert in alerts)
    facts = [str(value.get("groupKey", "")), states, left_out, str(value.get("reason", "")), way]
    return blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _texts(value: Mapping[str, Any], name: str) -> dict[str, str]:
    """A map of texts in a field, without what is none; empty where there is none."""
    found = value.get(name)
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {key: text for key, text in pairs if isinstance(text, str)}


def _field(value: Mapping[str, Any], name: str, kind: type | UnionType, expected: str) -> Any:  # noqa: ANN401 - JSON
    found = value.get(name)
    if not isinstance(found, kind):
        raise InvalidEvent(f"{name} is {in_words(found)}, expected {expected}", pointer=f"/{name}")
    return found


def _named(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in sorted(labels.items()))


def _cleaned(receiver: str) -> str:
    """A receiver's name in the alphabet of categories."""
    return re.sub(r"[^A-Za-z0-9_.:-]+", "-", receiver).strip("-_.:")[:64] or "alerts"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _one_of(value: str) -> str:
    if value not in _EACH:
        raise ValueError
    return value

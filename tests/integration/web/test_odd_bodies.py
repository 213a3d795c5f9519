"""Whatever stands in some place of a body: the answer says what was expected there, and no request is a defect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.web.test_alertmanager import alert, notification
from tests.integration.web.test_hooks import LIMITS, ORDER, PUSH, SECRETS, signature
from tests.support.servers import RedisServer
from tests.support.serving import Serving

HALF: Final = "\ud800"
"""Half of a character, which JSON can name and UTF-8 cannot."""

ODD: Final = (None, HALF, {HALF: HALF}, [None], 1e308)

EVENT: Final = {
    "category": "errors", "text": "x", "id": "i", "channel": "#ops", "blocks": [{"type": "section"}],
    "labels": {"a": "b"}, "thread_ts": "1.2", "priority": "high", "created_at": 1.0, "max_age": 3600,
    "mrkdwn": False, "thread": "k", "not_before": 4e9, "dedup_key": "d", "status": "resolved", "once_key": "o",
}  # fmt: skip
CLOUD_EVENT: Final = {
    "specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": "x", "datacontenttype": "text/plain",
    "data_base64": "eA==",
}  # fmt: skip
SILENCE: Final = {
    "matchers": ["host=db1"], "for": "2h", "why": "x", "start": 4_070_908_800, "end_if_idle": "1h",
    "until_resolved": True, "no_report": True,
}  # fmt: skip


REQUESTS: Final = (
    ("POST /v1/events", [EVENT], "application/json"),
    ("POST /v1/events", CLOUD_EVENT, "application/cloudevents+json"),
    ("POST /v1/alertmanager", notification(alert(1), alert(2, "resolved")), "application/json"),
    ("POST /v1/alertmanager?each=alert", notification(alert(1)), "application/json"),
    ("POST /v1/hooks/github", PUSH, "application/json"),
    ("POST /v1/hooks/shop", ORDER, "application/json"),
    ("POST /v1/dead/replay", {"ids": ["a"], "to": "ops", "dry_run": True}, "application/json"),
    ("POST /v1/dead/purge", {"category": "a", "since": "2h", "text": "w", "limit": 3}, "application/json"),
    ("POST /v1/parked/cancel", {"category": "a", "channel": "c", "older_than": "2h"}, "application/json"),
    ("PUT /v1/pause", {"why": "a"}, "application/json"),
    ("PUT /v1/pause/errors", {"why": "a"}, "application/json"),
    ("PUT /v1/mutes/errors", {"why": "a", "for": "2h"}, "application/json"),
    ("POST /v1/silences", SILENCE, "application/json"),
    ("POST /v1/silences/preview", {"matchers": ["host=db1"]}, "application/json"),
)


@pytest.mark.parametrize(("asked", "body", "kind"), REQUESTS, ids=[asked for asked, *_ in REQUESTS])
@pytest.mark.parametrize("nth", [pytest.param(4, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_an_odd_value_in_any_place_is_no_defect(  # noqa: PLR0913, PLR0917 - fixtures and a case
    everything: Serving, redis_url: str, asked: str, body: object, kind: str, nth: int
) -> None:
    del redis_url
    method, path = asked.split()
    with everything.client("secret-of-olga") as client:
        for place, value in islice(product(places(body), ODD), 0, None, nth):
            content = json.dumps(changed(body, place, value)).encode()
            answer = client.request(method, path, content=content, headers=heads(content, kind))
            assert answer.status_code < 500, (place, value)
            if answer.status_code >= 400:
                assert answer.json()["detail"], (place, value)


@pytest.mark.parametrize(("asked", "body", "kind"), REQUESTS, ids=[asked for asked, *_ in REQUESTS])
def test_a_body_without_fault_is_answered_with_the_code_that_is_described(
    everything: Serving, redis_url: str, asked: str, body: object, kind: str
) -> None:
    del redis_url
    method, path = asked.split()
    content = json.dumps(body).encode()
    with everything.client("secret-of-olga") as client:
        answer = client.request(method, path, content=content, headers=heads(content, kind))
        (responses,) = (
            operations[method.lower()]["responses"]
            for described, operations in client.get("/openapi.json").json()["paths"].items()
            if re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", described), path.partition("?")[0])
            and method.lower() in operations
        )
    assert [str(answer.status_code), "default"] == list(responses)


@pytest.fixture(scope="module")
def everything(shared_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """With hooks, and an operator."""
    cwd: Path = tmp_path_factory.mktemp("everything")
    (cwd / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    (cwd / "secret").write_bytes(SECRETS)
    (cwd / "tokens").write_text("olga ingest,read,operate secret-of-olga\n", encoding="utf-8")
    with Serving(shared_server.url, cwd, "--tokens", "tokens", DISPATCHER_LIMITS_FILE="limits.yaml") as serving:
        yield serving


def heads(content: bytes, kind: str) -> dict[str, str]:
    """The headers of a body, with its signatures."""
    signed = {name: signature(content) for name in ("X-Hub-Signature-256", "X-Shop-Signature")}
    return {**signed, "X-GitHub-Event": "push", "X-GitHub-Delivery": "d", "Content-Type": kind}


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to each value in a JSON value, itself the first."""
    yield path
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, found in pairs:
        yield from places(found, (*path, key))


def changed(value: Any, path: tuple[str | int, ...], new: object) -> Any:  # noqa: ANN401 - JSON
    """A copy with another value in one place."""
    if not path:
        return new
    copy = deepcopy(value)
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = new
    return copy

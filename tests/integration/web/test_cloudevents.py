"""CloudEvents, as their SDK sends them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.bindings.http import to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tests.integration.web.test_ingest import payload
from tests.support.servers import Database
from tests.support.serving import Serving

ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/db1", "type": "disk.full"}
HEADERS = {f"ce-{name}": value for name, value in ATTRIBUTES.items()}


def send(serving: Serving, message: Any) -> dict[str, Any]:  # noqa: ANN401 - the SDK's
    with serving.client() as client:
        answer = client.post("/v1/events", content=message.body, headers=dict(message.headers))
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("way", [to_structured, to_binary], ids=["structured", "binary"])
def test_data_that_is_an_event_is_taken_as_one(serving: Serving, redis: Database, way: Any) -> None:  # noqa: ANN401 - the SDK's
    attributes = {"id": "1", "source": "/db1", "type": "any", "datacontenttype": "application/json"}
    event = CloudEvent(attributes, {"category": "errors", "text": "disk full", "channel": "#ops"})
    first, again = (send(serving, way(event, JSONFormat())) for _ in range(2))
    assert (first["enqueued"], again["duplicate"]) == (1, 1)
    found = payload(redis, first["ids"][0])
    assert (found["category"], found["text"], found["channel"]) == ("errors", "disk full", "#ops")


@pytest.mark.parametrize("way", [to_structured, to_binary], ids=["structured", "binary"])
def test_a_text_goes_to_the_category_that_the_type_names(serving: Serving, redis: Database, way: Any) -> None:  # noqa: ANN401 - the SDK's
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    kind = {"datacontenttype": "text/plain", "traceparent": trace}
    attributes = {"id": "1", "source": "/db1", "type": "disk.full", **kind}
    sent = send(serving, way(CloudEvent(attributes, "Platte voll"), JSONFormat()))
    found = payload(redis, sent["ids"][0])
    assert (found["category"], found["text"]) == ("disk.full", "Platte voll")
    assert found["labels"] == {"traceparent": trace}


def test_a_batch_is_all_or_nothing_and_the_id_is_that_of_source_and_id_together(
    serving: Serving, redis: Database
) -> None:
    kind = {"Content_Type": "application/cloudevents-batch+json"}
    good = [{**ATTRIBUTES, "source": source, "data": "x"} for source in ("/a", "/b", "/a")]
    answer = serving.post("/v1/events", [*good, {**ATTRIBUTES, "data": 5}], **kind)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/data")
    assert redis.dbsize() == 0
    answer = serving.post("/v1/events", good, **kind)
    assert (answer.json()["enqueued"], answer.json()["duplicate"]) == (2, 1)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"specversion": "0.3"}, "/specversion"),
        ({"source": ""}, "/source"),
        ({"type": "a b"}, "/category"),
        ({"data": None}, "/data"),
        ({"data_base64": "%"}, "/data_base64"),
        ({"data_base64": "eA=="}, "/data_base64"),
        ({"data_base64": "/w==", "datacontenttype": "text/plain"}, "/data_base64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_cloudevent_that_is_none_is_told_with_its_attribute(
    serving: Serving, fields: dict[str, object], pointer: str
) -> None:
    body = json.dumps({**ATTRIBUTES, "data": "x", **fields}).encode()
    answer = serving.post("/v1/events", body, Content_Type="application/cloudevents+json")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"disk full", {}, "not JSON at character 1 (Expecting value), expected JSON, as it has no content type"),
        (b"x", {"Content-Type": "application/json"}, "expected JSON, as its content type says"),
        (b"\xff", {"Content-Type": "text/plain"}, "the body is not UTF-8 at byte 1"),
    ],
)
def test_a_body_that_is_not_what_its_content_type_says_is_400(
    serving: Serving, body: bytes, kind: dict[str, str], said: str
) -> None:
    with serving.client() as client:
        answer = client.post("/v1/events", content=body, headers={**HEADERS, **kind})
    assert answer.status_code == 400
    assert said in answer.json()["detail"]


def test_an_attribute_in_a_quoted_string_is_the_one_without_quotes(serving: Serving, redis: Database) -> None:
    headers = {**HEADERS, "Content-Type": "text/plain"}
    quoted = {"ce-type": r'"disk.\full"', "ce-source": '"/db%31"'}
    with serving.client() as client:
        first = client.post("/v1/events", content=b"x", headers=headers).json()
        again = client.post("/v1/events", content=b"x", headers={**headers, **quoted}).json()
    assert (again["ids"], again["duplicate"]) == (first["ids"], 1)
    assert payload(redis, first["ids"][0])["category"] == "disk.full"

"""Events over HTTP: what is taken, what is refused and in which words, and what a retry does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.core.event import MAX_LABELS
from dispatcher.store.rq_keys import QueueKeys
from tests.support.servers import Database
from tests.support.serving import Serving

LANE = QueueKeys("notifications").lanes[1]
EVENT = {"category": "errors", "text": "disk full"}
LINE = json.dumps(EVENT).encode()


def queued(database: Database) -> list[str]:
    return [id_.decode() for id_ in database.lrange(LANE, 0, -1)]


def payload(database: Database, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(database.hget(f"rq:job:{job_id}", "data"))[2][0]
    return found


def events(count: int) -> list[dict[str, str]]:
    return [{**EVENT, "id": f"e{n}"} for n in range(count)]


def lines(count: int) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events(count))


def test_an_object_is_enqueued_and_a_repeat_of_its_id_is_a_duplicate(serving: Serving, redis: Database) -> None:
    answers = [serving.post("/v1/events", {**EVENT, "id": "a"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert [answer.json() for answer in answers] == [
        {"ids": ["a"], "enqueued": 1, "duplicate": 0},
        {"ids": ["a"], "enqueued": 0, "duplicate": 1},
    ]
    assert queued(redis) == ["a"]


def test_an_array_keeps_its_order_and_generates_the_ids_that_are_missing(serving: Serving, redis: Database) -> None:
    answer = serving.post("/v1/events", [{**EVENT, "id": "a"}, EVENT, {**EVENT, "id": "c"}])
    assert answer.status_code == 202
    assert queued(redis) == answer.json()["ids"]
    assert answer.json()["ids"][::2] == ["a", "c"]


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/jsonl; charset=utf-8"])
def test_json_lines_may_be_more_than_one_call_takes(serving: Serving, redis: Database, kind: str) -> None:
    answer = serving.post("/v1/events", b"\n" + lines(800), Content_Type=kind)
    assert (answer.status_code, answer.json()["enqueued"]) == (202, 800)
    assert queued(redis) == [f"e{n}" for n in range(800)]


def test_each_value_of_a_sequence_begins_with_a_mark_and_may_have_several_lines(
    serving: Serving, redis: Database
) -> None:
    body = b"".join(b"\x1e" + json.dumps(event, indent=2).encode() + b"\n" for event in events(3))
    answer = serving.post("/v1/events", body, Content_Type="application/json-seq")
    assert (answer.status_code, queued(redis)) == (202, ["e0", "e1", "e2"])
    answer = serving.post("/v1/events", b"\x1e" + lines(1), Content_Type="application/x-ndjson")
    assert answer.status_code == 400, "no mark begins a JSON line"


def test_the_text_route_takes_the_body_as_it_is_and_fields_from_headers(serving: Serving, redis: Database) -> None:
    headers = [
        ("X-Id", "t1"),
        ("X-Channel", "ops"),
        ("X-Priority", "high"),
        ("X-Dedup-Key", "disk-db1"),
        ("X-Status", "resolved"),
        ("X-Label", "host=db1"),
        ("X-Label", "place=Zürich".encode().decode("latin-1")),
        ("Content-Type", "application/x-www-form-urlencoded"),  # what curl says of --data
    ]
    with serving.client() as client:
        raw = [(name.encode(), text.encode("latin-1")) for name, text in headers]
        answer = client.post("/v1/events/errors", content="Platte voll: 99 % €\n".encode(), headers=raw)
    assert answer.status_code == 202
    assert redis.lrange(QueueKeys("notifications").lanes[0], 0, -1) == [b"t1"]
    found = payload(redis, "t1")
    assert found["text"] == "Platte voll: 99 % €\n"
    assert (found["channel"], found["labels"]) == ("#ops", {"host": "db1", "place": "Zürich"})
    assert (found["dedup_key"], found["status"]) == ("disk-db1", "resolved")


def test_the_trace_of_a_request_is_a_label_of_its_events_unless_they_have_one_or_no_room_for_it(
    serving: Serving, redis: Database
) -> None:
    own, given = (f"00-{n * 32}-{n * 16}-01" for n in "ab")
    full = {f"label{n}": "x" for n in range(MAX_LABELS)}
    body = [
        {**EVENT, "id": "a"},
        {**EVENT, "id": "b", "labels": {"traceparent": own}},
        {**EVENT, "id": "e", "labels": full},
    ]
    assert serving.post("/v1/events", body, traceparent=given).status_code == 202
    assert serving.post("/v1/events/errors", b"x", X_Id="c", X_Label="host=db1", traceparent=given).status_code == 202
    assert serving.post("/v1/events/errors", b"x", X_Id="d", traceparent="no trace").status_code == 202
    assert [payload(redis, id_).get("labels") for id_ in "abcde"] == [
        {"traceparent": given},
        {"traceparent": own},
        {"host": "db1", "traceparent": given},
        None,
        full,
    ]


@pytest.mark.parametrize(
    ("event", "pointer", "words"),
    [
        ({"text": "x"}, "/category", "category is missing, expected a name such as errors"),
        ({"category": "errors"}, "/text", "text is missing, expected some text, or blocks"),
        ({**EVENT, "priority": "urgent"}, "/priority", "priority is 'urgent', expected high, normal or low"),
        ({**EVENT, "labels": {"a/b": None}}, "/labels/a~1b", "the label 'a/b' is null, expected a string or a number"),
        ({**EVENT, "chanel": "ops"}, "/chanel", "'chanel' is not a key of an event; did you mean channel?"),
        ({**EVENT, "delay": 1, "not_before": 2}, "/delay", "delay and not_before are both given"),
        ("text", "", "event is 'text', expected a JSON object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_event_is_told_with_its_place_in_the_words_of_the_producer(
    serving: Serving, redis: Database, event: object, pointer: str, words: str
) -> None:
    answer = serving.post("/v1/events", [EVENT, event])
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    (fault,) = answer.json()["errors"]
    assert (fault["index"], fault["pointer"]) == (1, pointer)
    assert words in fault["detail"]
    assert queued(redis) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON at character 1"),
        (b"{", "not JSON at character 2"),
        (b"\xff{}", "not UTF-8 at byte 1"),
        (b"[" * 100_000, "nested too deeply"),
    ],
    ids=["empty", "cut", "not UTF-8", "deep"],
)
def test_a_body_that_is_no_json_is_400_and_says_where(serving: Serving, body: bytes, words: str) -> None:
    answer = serving.post("/v1/events", body)
    assert answer.status_code == 400
    assert words in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"a":1,"a":2}', "the key 'a' stands more than once in an object of the body, expected it once"),
        (b"1" * 5_000, "the body holds a number of more than 4300 digits"),
        (b'{"a":NaN}', "the body is not JSON (NaN is no number), expected a JSON object"),
    ],
    ids=["a key twice", "a long number", "NaN"],
)
def test_a_fault_of_the_body_is_one_sentence(serving: Serving, body: bytes, said: str) -> None:
    answer = serving.post("/v1/events", body)
    assert (answer.status_code, answer.json()["detail"]) == (400, said)


@pytest.mark.parametrize(
    ("kind", "before", "place"),
    [
        ("application/x-ndjson", LINE + b"\r\n\n" + LINE + b"\n", "line 4"),
        ("application/json-seq", LINE + b"\n\n" + LINE + b"\n", "line 4"),
        ("application/json-seq", b"\x1e" + LINE + b"\n\n\x1e" + LINE + b"\n\x1e", "value 3"),
    ],
    ids=["lines", "a sequence without marks", "a sequence"],
)
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b'{"category":"nd","te', "not JSON at character 18 (Unterminated string starting at), expected a JSON object"),
        (b"\xff", "not UTF-8 at byte 1, expected a JSON object"),
        (b'{"a":1,"a":2}', "the key 'a' stands more than once in an object, expected it once"),
        (b"1" * 5_000, "holds a number of more than 4300 digits"),
        (b'{"a":NaN}', "not JSON (NaN is no number), expected a JSON object"),
    ],
    ids=["cut", "not UTF-8", "a key twice", "a long number", "NaN"],
)
def test_a_fault_of_a_line_is_told_with_its_place(  # noqa: PLR0913, PLR0917 - a fixture and a case
    serving: Serving, kind: str, before: bytes, place: str, bad: bytes, said: str
) -> None:
    answer = serving.post("/v1/events", before + bad, Content_Type=kind)
    assert (answer.status_code, answer.json()["detail"]) == (400, f"{place}: {said}")
    assert answer.json()["errors"] == [{"index": 2, "pointer": "", "detail": said}]


def test_a_bad_line_is_told_by_its_number_and_no_line_is_enqueued(serving: Serving, redis: Database) -> None:
    answer = serving.post("/v1/events", lines(600) + b"{}x", Content_Type="application/x-ndjson")
    assert (answer.status_code, answer.json()["errors"][0]["index"]) == (400, 600)
    answer = serving.post("/v1/events", lines(600) + b"{}\n" * 200, Content_Type="application/x-ndjson")
    assert answer.status_code == 422
    assert answer.json()["detail"] == "200 of 800 events cannot be dispatched; none was enqueued"
    assert [fault["index"] for fault in answer.json()["errors"]] == list(range(600, 700))
    assert queued(redis) == []


@pytest.mark.parametrize("field", ["text", "blocks"])
def test_an_event_over_256_kib_is_413(serving: Serving, field: str) -> None:
    large = "x" * 300_000
    event = {**EVENT, "text": large} if field == "text" else {"category": "a", "blocks": [{"type": large}]}
    answer = serving.post("/v1/events", [EVENT, event])
    assert (answer.status_code, answer.json()["errors"][0]["index"]) == (413, 1)


def test_an_array_of_more_than_500_events_or_lines_of_more_than_10000_are_413(serving: Serving) -> None:
    assert serving.post("/v1/events", events(500)).status_code == 202
    assert serving.post("/v1/events", events(501)).status_code == 413
    answer = serving.post("/v1/events", lines(10_001), Content_Type="application/x-ndjson")
    assert (answer.status_code, answer.json()["detail"]) == (
        413,
        "the body holds over 10000 events, expected at most 10000",
    )


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/events", {"Content_Type": "application/x-www-form-urlencoded"}),
        ("/v1/events", {"Content_Type": "multipart/form-data; boundary=b"}),
        ("/v1/events/errors", {"Content_Type": "multipart/form-data; boundary=b"}),
    ],
)
def test_other_content_is_415(serving: Serving, path: str, headers: dict[str, str]) -> None:
    assert serving.post(path, EVENT, **headers).status_code == 415


@pytest.mark.parametrize("path", ["events", "events/errors", "alertmanager", "limits/check"])
def test_a_body_that_is_compressed_is_415_wherever_one_is_taken(serving: Serving, path: str) -> None:
    answer = serving.post(f"/v1/{path}", EVENT, Content_Encoding="gzip")
    assert (answer.status_code, answer.json()["detail"]) == (415, "content-encoding is 'gzip', expected none")


def test_a_body_may_say_that_it_is_not_compressed(serving: Serving) -> None:
    assert serving.post("/v1/events", EVENT, Content_Encoding="Identity").status_code == 202


def test_a_text_that_is_not_utf_8_or_has_a_label_without_value_is_refused(serving: Serving) -> None:
    assert serving.post("/v1/events/errors", b"\xff").status_code == 400
    answer = serving.post("/v1/events/errors", b"x", X_Label="host")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/labels")


def test_an_idempotency_key_makes_a_retry_of_the_whole_body_harmless(serving: Serving, redis: Database) -> None:
    body = [EVENT, {**EVENT, "id": "own"}, EVENT]
    first = serving.post("/v1/events", body, Idempotency_Key="k1").json()
    again = serving.post("/v1/events", body, Idempotency_Key="k1").json()
    other = serving.post("/v1/events", body, Idempotency_Key="k2").json()
    assert again == {"ids": first["ids"], "enqueued": 0, "duplicate": 3}
    assert first["ids"][1] == "own"
    assert (other["enqueued"], other["duplicate"]) == (2, 1)
    assert queued(redis) == [*first["ids"], other["ids"][0], other["ids"][2]]
    assert serving.post("/v1/events", EVENT, Idempotency_Key="k" * 256).status_code == 400


def test_a_request_that_finds_no_room_enqueues_nothing_and_is_told_to_come_again(
    serving: Serving, redis: Database
) -> None:
    assert serving.post("/v1/events", lines(800), Content_Type="application/x-ndjson").status_code == 202
    more = [{**EVENT, "id": f"m{n}"} for n in range(201)]
    answer = serving.post("/v1/events", more)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert (answer.json()["ids"], answer.json()["rest_from"]) == ([], 0)
    assert len(queued(redis)) == 800
    assert serving.post("/v1/events", more[:-1]).status_code == 202
    assert serving.post("/v1/events", more[:-1]).json()["duplicate"] == 200, "what is there needs no room"


def test_json_lines_that_fill_the_queue_say_how_far_they_got_and_sent_again_they_go_on(
    serving: Serving, redis: Database
) -> None:
    body = b"".join(json.dumps({**EVENT, "text": f"e{n}"}).encode() + b"\n" for n in range(1_200))
    headers = {"Content_Type": "application/x-ndjson", "Idempotency_Key": "k"}
    answer = serving.post("/v1/events", body, **headers)
    assert (answer.status_code, answer.json()["rest_from"]) == (503, 1_000)
    ids = queued(redis)
    assert answer.json()["ids"] == ids
    assert len(set(ids)) == 1_000
    redis.ltrim(LANE, 500, -1)  # a worker has taken some
    again = serving.post("/v1/events", body, **headers).json()
    assert (again["enqueued"], again["duplicate"], again["ids"][:1_000]) == (200, 1_000, ids)
    assert [payload(redis, id_)["text"] for id_ in queued(redis)] == [f"e{n}" for n in range(500, 1_200)]


def test_unknown_paths_and_methods_are_problems_too(serving: Serving) -> None:
    with serving.client() as client:
        assert client.get("/v2/nothing").status_code == 404
        assert client.get("/v1/status/").status_code == 404, "a slash more is another path"
        answer = client.get("/v1/alertmanager")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["cache-control"] == "no-store"

"""Hooks of the limits file: who may post, and what becomes an event. Bodies have the shapes that services document."""

from __future__ import annotations

import base64
import hmac
import json
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import httpx
import pytest

from dispatcher.core.event import MAX_ID
from dispatcher.web.hooks import FRESH_S
from tests.support.commands import run
from tests.support.processes import until
from tests.support.servers import Database, RedisServer
from tests.support.serving import Serving

SECRETS: Final = "the-old-secret\nvoilà\nthe-secret\n".encode()
LIMITS: Final = """\
hooks:
  github: {preset: github, secret_file: secret}
  sentry: {preset: sentry, secret_file: secret, category: crashes}
  grafana: {preset: grafana, secret_file: secret, timestamp_header: X-Grafana-Alerting-Timestamp}
  shop:
    verify: hmac
    header: X-Shop-Signature
    secret_file: secret
    when: "{{ body.paid }}"
    category: orders
    id: "order-{{ body.order.id }}"
    text: "{{ body.order.lines | length }} lines for {{ body.customer.name }}"
    channel: "#{{ body.team | lower }}"
    priority: "{% if body.order.total | int > 100 %}high{% else %}normal{% endif %}"
    labels: {customer: "{{ body.customer.name }}", none: "{{ body.nothing | default('') }}"}
  plain: {verify: token, secret_file: secret, category: plain, text: "{{ body.text }}"}
  changed: {verify: token, secret_file: secret, category: plain, text: before}
  large: {verify: token, secret_file: secret, when: "{{ body.order.total > 100 }}", category: "{{ body.cat }}", text: x}
  alerts: {verify: token, secret_file: secret, when: "{{ body.alerts }}", category: plain, text: x}
  gitlab: {verify: token, header: X-Gitlab-Token, secret_file: secret, category: plain, text: "{{ body.text }}"}
  lost: {verify: token, secret_file: nowhere, category: plain, text: "{{ body.text }}"}
  home: {verify: token, secret_file: ~/secret, category: plain, text: "{{ body.text }}"}
  fifo: {verify: token, secret_file: fifo, category: plain, text: "{{ body.text }}"}
  endless: {verify: token, secret_file: endless, category: plain, text: "{{ body.text }}"}
  linked: {verify: token, secret_file: linked, category: plain, text: "{{ body.text }}"}
  homeless: {verify: token, secret_file: ~nobody-of-this-name/secret, category: plain, text: "{{ body.text }}"}
"""
ORDER: Final[dict[str, Any]] = {
    "paid": True,
    "order": {"id": 7, "lines": ["a", "b"], "total": 120},
    "customer": {"name": "Müller & <Söhne>"},
    "team": "OPS",
}
PUSH: Final[dict[str, Any]] = {
    "ref": "refs/heads/main",
    "before": "6113728f27ae82c7b1a177c8d03f9e96e0adf246",
    "after": "59b20b8d5c6ff8d09518454d4dd8b7b30f095ab5",
    "compare": "https://github.com/octo/shop/compare/6113728f27ae...59b20b8d5c6f",
    "repository": {"id": 1, "name": "shop", "full_name": "octo/shop"},
    "pusher": {"name": "olga", "email": "olga@example.com"},
    "sender": {"login": "olga"},
    "commits": [{"id": "59b20b8d", "message": "Mend the basket"}],
    "head_commit": {"id": "59b20b8d", "message": "Mend the basket"},
}
PULL_REQUEST: Final[dict[str, Any]] = {
    "action": "opened",
    "number": 5,
    "pull_request": {"title": "Mend it", "html_url": "https://github.com/octo/shop/pull/5", "merged": False},
    "repository": PUSH["repository"],
    "sender": {"login": "olga"},
}
ISSUE: Final[dict[str, Any]] = {
    "action": "created",
    "installation": {"uuid": "24b6ee14-6c0e-4b39-a4b8-d3b0ad0f3f55"},
    "data": {
        "issue": {
            "id": "1170820242",
            "title": "ReferenceError: blooopy is not defined",
            "culprit": "?(runner)",
            "level": "error",
            "web_url": "https://sentry.io/organizations/octo/issues/1170820242/",
        }
    },
    "actor": {"type": "application", "id": "sentry", "name": "Sentry"},
}
GRAFANA: Final[dict[str, Any]] = {
    "receiver": "ops",
    "status": "firing",
    "alerts": [{"status": "firing", "labels": {"alertname": "High memory"}, "fingerprint": "c6eadffa33fcdf37"}],
    "groupKey": '{}:{alertname="High memory"}',
    "title": "[FIRING:1] High memory",
    "state": "alerting",
    "message": "**Firing**\n\nmemory is above 90 %",
}

_URL: Final = "https://github.com/octo/shop"
OTHERS_OF_GITHUB: Final[list[tuple[str, dict[str, Any], list[str]]]] = [
    (
        "push",
        {**PUSH, "ref": "refs/heads/old", "deleted": True, "after": "0" * 40, "commits": [], "head_commit": None},
        ["olga pushed 0 to refs/heads/old of octo/shop"],
    ),
    (
        "pull_request",
        PULL_REQUEST,
        ["olga: pull request 5 of octo/shop opened", "Mend it", f"{_URL}/pull/5"],
    ),
    (
        "issues",
        {
            "action": "opened",
            "issue": {"number": 6, "title": "It is slow", "html_url": f"{_URL}/issues/6", "labels": []},
            "repository": PUSH["repository"],
            "sender": {"login": "olga"},
        },
        ["olga: issue 6 of octo/shop opened", "It is slow", f"{_URL}/issues/6"],
    ),
    (
        "release",
        {
            "action": "published",
            "release": {"tag_name": "v1.0", "name": None, "html_url": f"{_URL}/releases/tag/v1.0"},
            "repository": PUSH["repository"],
        },
        ["octo/shop: release v1.0 published", f"{_URL}/releases/tag/v1.0"],
    ),
    (
        "workflow_run",
        {
            "action": "completed",
            "workflow_run": {"name": "CI", "conclusion": "failure", "html_url": f"{_URL}/actions/runs/7"},
            "repository": PUSH["repository"],
        },
        ["octo/shop: CI failure", f"{_URL}/actions/runs/7"],
    ),
]
ALERTS_OF_SENTRY: Final[list[tuple[str, dict[str, Any], list[str]]]] = [
    (
        "event_alert",
        {
            "event": {
                "title": "ReferenceError: blooopy is not defined",
                "web_url": "https://sentry.io/organizations/octo/issues/1170820242/events/e4874d664c/",
            },
            "triggered_rule": "Very Important Alert Rule!",
        },
        [
            "ReferenceError: blooopy is not defined",
            "Very Important Alert Rule!",
            "https://sentry.io/organizations/octo/issues/1170820242/events/e4874d664c/",
        ],
    ),
    (
        "metric_alert",
        {
            "description_text": "1000 events in the last 10 minutes\nFilter: level:error",
            "description_title": "Resolved: Too many errors",
            "metric_alert": {"title": "Too many errors", "status": 20},
            "web_url": "https://sentry.io/organizations/octo/alerts/rules/details/7/",
        },
        [
            "Resolved: Too many errors",
            "1000 events in the last 10 minutes",
            "Filter: level:error",
            "https://sentry.io/organizations/octo/alerts/rules/details/7/",
        ],
    ),
]


@pytest.fixture(scope="module")
def process(shared_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    cwd: Path = tmp_path_factory.mktemp("hooks")
    (cwd / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    (cwd / "secret").write_bytes(SECRETS)
    (cwd / "linked").symlink_to("secret")
    (cwd / "endless").write_bytes(SECRETS * 10_000)
    os.mkfifo(cwd / "fifo")
    with Serving(
        shared_server.url, cwd, DISPATCHER_LIMITS_FILE="limits.yaml", DISPATCHER_MAX_WAITING="1000", HOME=str(cwd)
    ) as serving:
        yield serving


@pytest.fixture
def hooks(process: Serving, redis_url: str) -> Iterator[httpx.Client]:
    del redis_url
    with process.client() as client:
        client.base_url = client.base_url.join("/v1/hooks/")
        yield client


def signature(body: bytes, secret: bytes = b"the-secret") -> str:
    return hmac.new(secret, body, sha256).hexdigest()


def post_signed(hooks: httpx.Client, name: str, payload: object, header: str, **headers: str) -> httpx.Response:
    body = json.dumps(payload).encode()
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return hooks.post(name, content=body, headers={header: signature(body), **named})


def events(redis: Database) -> list[dict[str, Any]]:
    """The events of the jobs on the lanes."""
    jobs = [json.loads(redis.hget(key, "data")) for key in redis.keys("rq:job:*") if redis.type(key) == b"hash"]
    return [json.loads(given) if isinstance(given, str) else given for _, _, (given, *_), *_ in jobs]


def only_event(redis: Database) -> dict[str, Any]:
    """The event of the one job on the lanes."""
    (event,) = events(redis)
    return event


def test_a_push_to_github_becomes_an_event_once(hooks: httpx.Client, redis: Database) -> None:
    given = {"X_GitHub_Event": "push", "X_GitHub_Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
    answers = [
        post_signed(hooks, "github", PUSH, "X-Hub-Signature-256", **given, X_Hub_Signature="sha1=0") for _ in range(2)
    ]
    assert [answer.json() for answer in answers] == [
        {"ids": [given["X_GitHub_Delivery"]], "enqueued": 1, "duplicate": 0, "ignored": 0},
        {"ids": [given["X_GitHub_Delivery"]], "enqueued": 0, "duplicate": 1, "ignored": 0},
    ]
    assert [answer.status_code for answer in answers] == [202, 202]
    event = only_event(redis)
    assert event["category"] == "github"
    assert event["text"].splitlines() == [
        "olga pushed 1 to refs/heads/main of octo/shop",
        "Mend the basket",
        "https://github.com/octo/shop/compare/6113728f27ae...59b20b8d5c6f",
    ]


@pytest.mark.parametrize("is_form", [True, False], ids=["a form", "JSON"])
def test_github_may_send_a_form_which_is_its_default_and_json_may_have_that_type(
    hooks: httpx.Client, redis: Database, *, is_form: bool
) -> None:
    payload = {**PUSH, "head_commit": {"message": "Mend a+b & c=d: Körbe"}}
    body = urlencode({"payload": json.dumps(payload)}).encode() if is_form else json.dumps(payload).encode()
    headers = {"X-GitHub-Event": "push", "X-GitHub-Delivery": "d", "X-Hub-Signature-256": signature(body)}
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = hooks.post("github", content=body, headers={**headers, **kind})
    assert answer.status_code == 202, answer.text
    assert only_event(redis)["text"].splitlines()[1] == "Mend a+b & c=d: Körbe"


@pytest.mark.parametrize(("event", "payload", "said"), OTHERS_OF_GITHUB, ids=[each for each, _, _ in OTHERS_OF_GITHUB])
def test_github_tells_of_other_things_than_commits(
    hooks: httpx.Client, redis: Database, event: str, payload: dict[str, Any], said: list[str]
) -> None:
    given = {"X_GitHub_Event": event, "X_GitHub_Delivery": "d"}
    assert post_signed(hooks, "github", payload, "X-Hub-Signature-256", **given).status_code == 202
    assert only_event(redis)["text"].splitlines() == said


@pytest.mark.parametrize(("resource", "data", "said"), ALERTS_OF_SENTRY, ids=[each for each, _, _ in ALERTS_OF_SENTRY])
def test_alerts_of_sentry_become_events(
    hooks: httpx.Client, redis: Database, resource: str, data: dict[str, Any], said: list[str]
) -> None:
    payload = {"action": "triggered", "data": data, "installation": ISSUE["installation"], "actor": ISSUE["actor"]}
    given = {"Sentry_Hook_Resource": resource, "Request_ID": "r-1"}
    assert post_signed(hooks, "sentry", payload, "Sentry-Hook-Signature", **given).status_code == 202
    assert only_event(redis)["text"].splitlines() == said


@pytest.mark.parametrize(("event", "action"), [("ping", None), ("workflow_run", "requested"), ("star", "created")])
def test_of_github_only_what_its_preset_names_becomes_an_event(
    hooks: httpx.Client, event: str, action: str | None
) -> None:
    answer = post_signed(hooks, "github", {"action": action}, "X-Hub-Signature-256", X_GitHub_Event=event)
    assert (answer.status_code, answer.json()) == (202, {"ids": [], "enqueued": 0, "duplicate": 0, "ignored": 1})


def test_an_issue_of_sentry_becomes_an_event_of_the_category_that_the_hook_says(
    hooks: httpx.Client, redis: Database
) -> None:
    given = {"Sentry_Hook_Resource": "issue", "Request_ID": "r-1", "Sentry_Hook_Timestamp": "1711315768"}
    answer = post_signed(hooks, "sentry", ISSUE, "Sentry-Hook-Signature", **given)
    assert (answer.status_code, answer.json()["ids"]) == (202, ["r-1"])
    event = only_event(redis)
    assert event["category"] == "crashes"
    assert event["text"].splitlines()[0] == "ReferenceError: blooopy is not defined"


@pytest.mark.parametrize(("age_s", "status"), [(0, 202), (270, 202), (-270, 202), (400, 401), (-400, 401), (None, 401)])
def test_grafana_signs_the_instant_too(hooks: httpx.Client, redis: Database, age_s: int | None, status: int) -> None:
    body = json.dumps(GRAFANA).encode()
    instant = "9" * 5_000 if age_s is None else str(int(time.time()) - age_s)
    headers = {
        "X-Grafana-Alerting-Timestamp": instant,
        "X-Grafana-Alerting-Signature": signature(instant.encode() + b":" + body),
    }
    assert hooks.post("grafana", content=body, headers=headers).status_code == status
    if status == 202:
        assert only_event(redis)["text"].startswith("[FIRING:1] High memory\n**Firing**")


def test_every_field_is_made_by_a_template_and_an_empty_one_is_left_out(hooks: httpx.Client, redis: Database) -> None:
    assert post_signed(hooks, "shop", ORDER, "X-Shop-Signature").json()["ids"] == ["order-7"]
    event = only_event(redis)
    assert {name: event.get(name) for name in ("category", "text", "channel", "priority", "labels")} == {
        "category": "orders",
        "text": "2 lines for Müller & <Söhne>",
        "channel": "#ops",
        "priority": "high",
        "labels": {"customer": "Müller & <Söhne>"},
    }
    assert post_signed(hooks, "shop", {**ORDER, "paid": False}, "X-Shop-Signature").json()["ignored"] == 1


@pytest.mark.parametrize("length", [MAX_ID, MAX_ID + 1])
def test_an_id_that_is_too_long_is_made_shorter_and_still_tells_events_apart(hooks: httpx.Client, length: int) -> None:
    numbers = [digit * (length - len("order-")) for digit in "122"]
    orders = [{**ORDER, "order": {**ORDER["order"], "id": number}} for number in numbers]
    done = [post_signed(hooks, "shop", order, "X-Shop-Signature").json() for order in orders]
    assert [each["enqueued"] for each in done] == [1, 1, 0]
    kept = [each["ids"] == [f"order-{number}"] for each, number in zip(done, numbers, strict=True)]
    assert kept == [length <= MAX_ID] * 3


def test_a_hook_follows_the_limits_in_force(
    hooks: httpx.Client, redis: Database, redis_url: str, tmp_path: Path
) -> None:
    def is_posted(text: str) -> bool:
        assert hooks.post("changed", content=b"{}", headers={"Authorization": "Bearer the-secret"}).status_code == 202
        return text in {event["text"] for event in events(redis)}

    assert is_posted("before")
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS.replace("text: before", "text: after"), encoding="utf-8")
    assert run("limits", "apply", str(limits), DISPATCHER_REDIS_URL=redis_url).code == 0
    until(lambda: is_posted("after"), "an event by the new limits", 5 * FRESH_S)


def test_what_no_event_can_be_made_of_is_told_with_its_place(hooks: httpx.Client) -> None:
    answer = post_signed(hooks, "shop", {"paid": True}, "X-Shop-Signature")
    (fault,) = answer.json()["errors"]
    assert (answer.status_code, fault["pointer"]) == (422, "/text")
    assert "the hook's template of text fails" in fault["detail"]
    answer = post_signed(hooks, "shop", {**ORDER, "team": "a" * 200}, "X-Shop-Signature")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/channel")


@pytest.mark.parametrize("payload", [{}, {"order": {}}, {"order": None}, [], "text"])
def test_a_when_that_asks_for_what_the_body_lacks_is_not_true(hooks: httpx.Client, payload: object) -> None:
    answer = hooks.post("large", json=payload, headers={"Authorization": "Bearer the-secret"})
    assert (answer.status_code, answer.json()) == (202, {"ids": [], "enqueued": 0, "duplicate": 0, "ignored": 1})


@pytest.mark.parametrize(
    "said", ["", "False", "false", "None", "none", "0", "0.0", "[]", "{}", [], {}, 0, 0.0, False, None], ids=repr
)
def test_a_when_that_becomes_a_false_word_is_not_true(hooks: httpx.Client, said: object) -> None:
    answer = hooks.post("alerts", json={"alerts": said}, headers={"Authorization": "Bearer the-secret"})
    assert (answer.status_code, answer.json()["ignored"]) == (202, 1)


@pytest.mark.parametrize("said", ["no", "off", [0], {"a": 0}, 0.5], ids=repr)
def test_a_when_that_becomes_anything_else_is_true(hooks: httpx.Client, said: object) -> None:
    answer = hooks.post("alerts", json={"alerts": said}, headers={"Authorization": "Bearer the-secret"})
    assert (answer.status_code, answer.json()["ignored"]) == (202, 0)


def test_a_when_that_cannot_be_worked_out_is_a_fault(hooks: httpx.Client) -> None:
    answer = hooks.post("large", json={"order": {"total": "a"}}, headers={"Authorization": "Bearer the-secret"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/when")
    assert answer.json()["detail"].startswith("the hook's template of when fails: TypeError")


def test_a_field_that_the_body_lacks_is_named(hooks: httpx.Client) -> None:
    answer = hooks.post("large", json={"order": {"total": 200}}, headers={"Authorization": "Bearer the-secret"})
    said = "the hook's template of category fails: the body has no field cat"
    assert (answer.status_code, answer.json()["detail"]) == (422, said)


def test_a_key_that_stands_twice_is_told_in_one_sentence(hooks: httpx.Client) -> None:
    answer = hooks.post("plain", content=b'{"text":"a","text":"b"}', headers={"Authorization": "Bearer the-secret"})
    said = "the key 'text' stands more than once in an object of the body, expected it once"
    assert (answer.status_code, answer.json()["detail"]) == (400, said)


@pytest.mark.parametrize(
    ("name", "headers", "status"),
    [
        ("plain", {"Authorization": "Bearer the-secret"}, 202),
        ("plain", {"Authorization": "Bearer the-old-secret"}, 202),
        ("plain", {"Authorization": "Basic " + base64.b64encode(b"x:the-secret").decode()}, 202),
        ("plain", {"Authorization": "Bearer another"}, 401),
        ("plain", {"Authorization": "Basic ?"}, 401),
        ("plain", {}, 401),
        ("plain", {b"Authorization": "Bearer voilà".encode()}, 202),
        ("gitlab", {b"X-Gitlab-Token": "voilà".encode()}, 202),
        ("gitlab", {"X-Gitlab-Token": "the-secret"}, 202),
        ("gitlab", {"Authorization": "Bearer the-secret"}, 401),
        ("none", {"Authorization": "Bearer the-secret"}, 404),
    ],
)
def test_a_token_has_to_be_that_of_the_hook(
    hooks: httpx.Client, name: str, headers: dict[str, str] | dict[bytes, bytes], status: int
) -> None:
    assert hooks.post(name, content=b'{"text": "x"}', headers=headers).status_code == status


@pytest.mark.parametrize("given", ["", "sha256=", signature(b"{}", b"another"), signature(b"{} "), "é"])
def test_a_body_that_was_not_signed_with_the_secret_is_refused(hooks: httpx.Client, given: str) -> None:
    for name, header in (("github", "X-Hub-Signature-256"), ("sentry", "Sentry-Hook-Signature")):
        headers = {header.encode(): given.encode("latin-1")}
        answer = hooks.post(name, content=b"{}", headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="dispatcher"')


def test_requests_of_hooks_are_counted_by_the_names_of_hooks_that_there_are(hooks: httpx.Client) -> None:
    for name, body in (("plain", b'{"text": "x"}'), ("plain", b"{"), ("nothing-like-it", b"{}")):
        hooks.post(name, content=body, headers={"Authorization": "Bearer the-secret"})
    post_signed(hooks, "shop", {"paid": False}, "X-Shop-Signature")
    shown = hooks.get(hooks.base_url.join("/metrics")).text
    found = {line.partition("{")[2].rpartition("}")[0] for line in shown.splitlines() if "_http_" in line}
    assert {
        'result="enqueued",source="hook plain"',
        'result="refused",source="hook plain"',
        'result="ignored",source="hook shop"',
        'result="refused",source="hook"',
        'code="404",route="/v1/hooks/{name}"',
    } <= {",".join(sorted(each.split(","))) for each in found}
    assert "nothing-like-it" not in shown


def test_a_hook_that_finds_no_room_is_told_to_come_again(hooks: httpx.Client, redis: Database) -> None:
    redis.rpush("rq:queue:notifications", *[f"x{n}" for n in range(1_000)])
    answer = hooks.post("plain", content=b'{"text": "x"}', headers={"Authorization": "Bearer the-secret"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lost", "nowhere cannot be read: No such file or directory"),
        ("fifo", "fifo is not a regular file"),
        ("endless", "endless is larger than 65536 bytes"),
    ],
)
def test_a_hook_whose_secret_cannot_be_read_is_told_to_come_again_and_the_log_warns(
    hooks: httpx.Client, process: Serving, name: str, said: str
) -> None:
    answer = hooks.post(name, content=b'{"text": "x"}', headers={"Authorization": "Bearer the-secret"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    line = process.named("hook.refused")[-1]
    assert (line["level"], line["detail"]) == ("warning", said)


def test_the_file_of_a_secret_may_lie_in_the_home_folder_or_be_a_link(hooks: httpx.Client) -> None:
    body, headers = b'{"text": "x"}', {"Authorization": "Bearer the-secret"}
    assert hooks.post("linked", content=body, headers=headers).status_code == 202
    assert hooks.post("home", content=body, headers=headers).status_code == 202
    assert hooks.post("homeless", content=body, headers=headers).status_code == 503


def test_a_body_that_is_compressed_is_refused(hooks: httpx.Client) -> None:
    assert hooks.post("github", content=b"{}", headers={"Content-Encoding": "gzip"}).status_code == 415


def test_a_body_that_is_no_json_is_refused(hooks: httpx.Client) -> None:
    headers = {"X-Gitlab-Token": "the-secret"}
    assert hooks.post("gitlab", content=b"{", headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("{secret_file: x}", "expected verify, category and text, or a preset"),
        ("{preset: gitlab, secret_file: x}", "'gitlab', expected github, sentry or grafana; did you mean github?"),
        ("{preset: github}", "hooks.h.secret_file: the key is missing"),
        ("{preset: github, secret_file: x, verify: md5}", "expected github, sentry, grafana, hmac or token"),
        ("{preset: github, secret_file: x, text: '{{ text }}'}", "text is no variable here"),
        ("{preset: github, secret_file: x, text: '{{ body.a() }}'}", "a call, which templates cannot have"),
        ("{preset: github, secret_file: x, header: 'a b'}", "expected the name of a header such as X-Signature"),
        ("{preset: github, secret_file: 5}", "expected the path of a file such as /run/secrets/github"),
    ],
)
def test_a_hook_with_a_fault_is_told_with_its_place(tmp_path: Path, hook: str, said: str) -> None:
    (tmp_path / "limits.yaml").write_text(f"hooks: {{h: {hook}}}\n", encoding="utf-8")
    told = run("limits", "check", str(tmp_path / "limits.yaml"))
    assert told.code == 78
    assert "limits.yaml:1:" in told.err
    assert said in told.err


def test_a_hook_reads_as_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    said = run("limits", "check", str(tmp_path / "limits.yaml")).out
    assert "Hook github: requests signed as github does, by a secret in secret; some of them become events." in said

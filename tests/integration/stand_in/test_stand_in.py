"""Tests of the local Slack itself, over real HTTP: its methods, limits and page."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import Any
from urllib.parse import urlencode

import pytest

from dispatcher.errors import ConfigError
from dispatcher.stand_in import REALISTIC, STRICT, Hang, Rate, Setup, StandIn, landed
from tests.support.slack import Clock, call, post, request

MARK = {"event_type": "dispatcher_event", "event_payload": {"id": "mark-1"}}


def test_auth_test_answers_the_tokens_scopes(slack: StandIn) -> None:
    response = call(slack, "auth.test")
    assert response.json["ok"] is True
    assert "chat:write" in response.headers["x-oauth-scopes"].split(",")


@pytest.mark.parametrize("code", ["invalid_auth", "token_revoked"])
def test_a_revoked_token_is_refused_until_it_is_restored(slack: StandIn, code: str) -> None:
    slack.workspace.revoke_token(code)
    assert post(slack) == {"ok": False, "error": code}
    slack.workspace.restore_token()
    assert post(slack)["ok"] is True


def test_a_wrong_token_and_a_missing_token_are_refused(slack: StandIn) -> None:
    assert call(slack, "auth.test", token="xoxb-other").json["error"] == "invalid_auth"
    assert request(slack.base_url + "auth.test", "{}").json["error"] == "not_authed"


def test_a_missing_scope_is_named() -> None:
    with StandIn(setup=Setup(scopes=("channels:read",))) as slack:
        answer = post(slack)
    assert answer == {"ok": False, "error": "missing_scope", "needed": "chat:write", "provided": "channels:read"}


def test_an_unknown_method_is_refused_as_slack_does(slack: StandIn) -> None:
    response = call(slack, "chat.postMassage")
    assert (response.status, response.json) == (200, {"ok": False, "error": "unknown_method"})


def test_a_post_lands_in_the_ledger_with_its_metadata(slack: StandIn) -> None:
    answer = post(slack, text="disk full", metadata=MARK, thread_ts="1732100000.000100")
    [posted] = slack.ledger.posted()
    assert (posted.channel, posted.text, posted.mark, posted.thread_ts) == (
        "#ops",
        "disk full",
        "mark-1",
        "1732100000.000100",
    )
    assert (answer["channel"], answer["ts"]) == (posted.channel_id, posted.ts)


def test_a_form_is_taken_as_well_as_json(slack: StandIn) -> None:
    block = {"type": "section", "text": {"type": "mrkdwn", "text": "hi"}}
    form = {"token": slack.token, "channel": "ops", "text": "hi", "blocks": json.dumps([block])}
    form["metadata"] = json.dumps(MARK)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert request(slack.base_url + "chat.postMessage", urlencode(form), **headers).json["ok"] is True
    [posted] = slack.ledger.posted()
    assert (posted.channel, posted.blocks, posted.mark) == ("#ops", (block,), "mark-1")


@pytest.mark.parametrize("person", ["U0123ABCD", "W0123ABCD"])
def test_the_id_of_a_person_is_taken_for_a_conversation(slack: StandIn, person: str) -> None:
    assert post(slack, person)["channel"] == person
    assert slack.ledger.per_channel() == {person: 1}


def test_a_channel_has_one_name_whether_posted_to_by_name_or_id(slack: StandIn) -> None:
    by_name = post(slack, "#ops")
    post(slack, "ops")
    post(slack, by_name["channel"])
    assert slack.ledger.per_channel() == {"#ops": 3}


def test_every_ts_is_newer_than_the_one_before() -> None:
    with StandIn(setup=Setup(clock=Clock())) as slack:
        stamps = [post(slack)["ts"] for _ in range(3)]
    assert stamps == ["1732100000.000000", "1732100000.000001", "1732100000.000002"]


def test_unknown_and_archived_channels_are_refused() -> None:
    with StandIn(setup=Setup(channels=frozenset({"#ops", "#old"}), archived=frozenset({"#old"}))) as slack:
        answers = [post(slack, channel).get("error") for channel in ("#ops", "#nope", "#old", "")]
    assert answers == [None, "channel_not_found", "is_archived", "channel_not_found"]


def test_a_webhook_answers_a_plain_ok(slack: StandIn) -> None:
    response = request(slack.webhook_url, json.dumps({"text": "hi"}))
    assert (response.status, response.body) == (200, "ok")
    assert slack.ledger.per_channel() == {"#webhook": 1}


@pytest.mark.parametrize(
    ("path", "body", "status", "answer"),
    [
        ("/services/T0/B0/other", '{"text": "hi"}', 404, "no_service"),
        ("", "{nope", 400, "invalid_payload"),
        ("", "", 400, "invalid_payload"),
        ("", "[]", 400, "invalid_payload"),
        ("", "{}", 400, "no_text"),
        ("", '{"text": ""}', 400, "no_text"),
    ],
)
def test_a_webhooks_refusal_has_a_status_and_a_word(
    slack: StandIn, path: str, body: str, status: int, answer: str
) -> None:
    response = request(slack.url.rstrip("/") + path if path else slack.webhook_url, body)
    assert (response.status, response.body) == (status, answer)
    assert len(slack.ledger) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"text": " "}, "no_text"),
        ({"text": 7}, "invalid_arguments"),
        ({"blocks": [{"type": "sektion"}]}, "invalid_blocks"),
        ({"blocks": "nope"}, "invalid_blocks_format"),
        ({"metadata": {"event_payload": {}}}, "invalid_metadata_schema"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_content_beyond_slacks_limits_is_refused(slack: StandIn, arguments: dict[str, Any], code: str) -> None:
    """``tests/unit/stand_in/test_sizes.py`` has all limits."""
    assert post(slack, **arguments)["error"] == code
    assert len(slack.ledger) == 0


def test_a_text_over_40_000_characters_is_cut_with_a_warning(slack: StandIn) -> None:
    assert post(slack, text="x" * 40_001)["response_metadata"]["warnings"] == ["message_truncated"]
    assert len(slack.ledger.posted()[0].text) == 40_000


def test_a_strict_rate_lets_one_post_a_second_through() -> None:
    clock = Clock()
    with StandIn(setup=Setup(rate=STRICT, clock=clock)) as slack:
        assert post(slack)["ok"] is True
        clock.now += 0.999
        response = call(slack, "chat.postMessage", channel="#ops", text="hi")
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        assert response.json["error"] == "ratelimited"
        assert post(slack, "#other")["ok"] is True
        clock.now += 1
        assert post(slack)["ok"] is True
        assert slack.workspace.rate_limited == 1


def test_calls_inside_a_retry_after_are_refused_and_counted() -> None:
    clock = Clock()
    with StandIn(setup=Setup(rate=Rate(burst=1, interval_s=2.5), clock=clock)) as slack:
        post(slack)
        assert call(slack, "chat.postMessage", channel="#ops", text="hi").headers["Retry-After"] == "3"
        clock.now += 2.9
        assert call(slack, "chat.postMessage", channel="#ops", text="hi").headers["Retry-After"] == "1"
        clock.now += 0.1
        assert post(slack)["ok"] is True
        assert (slack.workspace.rate_limited, slack.workspace.inside_retry_after) == (2, 1)
        shown = request(slack.url + "ledger").json
        assert (shown["waits"], shown["ignored"]) == ({"#ops": 2}, {"#ops": 1})


def test_a_workspace_takes_three_hundred_posts_in_all() -> None:
    clock = Clock()
    with StandIn(setup=Setup.paced(REALISTIC, clock=clock)) as slack:
        for number in range(300):
            slack.workspace.traffic.admit_post(f"#c{number}", clock.now)
        response = call(slack, "chat.postMessage", channel="#ops", text="hi")
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        clock.now += 1
        assert post(slack)["ok"] is True


@pytest.mark.parametrize("method", ["chat.update", "conversations.history", "conversations.replies"])
def test_other_methods_have_rates_of_their_own(method: str) -> None:
    clock = Clock()
    with StandIn(setup=Setup.paced(REALISTIC, clock=clock)) as slack:
        head = post(slack)
        asked = {"channel": head["channel"], "ts": head["ts"], "text": "new"}
        answers = [call(slack, method, **asked) for _ in range(51)]
        assert [answer.status for answer in answers] == [200] * 50 + [429]
        assert answers[-1].headers["Retry-After"] == "2"
        clock.now += 1
        assert call(slack, method, **asked).headers["Retry-After"] == "1"
        clock.now += 1
        assert call(slack, method, **asked).json["ok"] is True
        assert request(slack.url + "ledger").json["ignored"] == {method: 1}


def test_a_webhook_is_limited_like_its_channel() -> None:
    with StandIn(setup=Setup(rate=STRICT, clock=Clock())) as slack:
        request(slack.webhook_url, '{"text": "hi"}')
        response = request(slack.webhook_url, '{"text": "hi"}')
    assert (response.status, response.body, response.headers["Retry-After"]) == (429, "rate_limited", "1")


def test_the_ledger_and_the_counts_are_there_as_json(slack: StandIn) -> None:
    post(slack, "#b", metadata=MARK)
    post(slack, "#a")
    ledger = request(slack.url + "ledger").json
    assert (ledger["total"], ledger["channels"]) == (2, {"#a": 1, "#b": 1})
    assert ledger["calls"] == {"posts": 2, "rate_limited": 0, "inside_retry_after": 0}
    assert [(each["channel"], each["mark"]) for each in ledger["posted"]] == [("#b", "mark-1"), ("#a", None)]


def test_a_reset_begins_anew(slack: StandIn) -> None:
    post(slack)
    slack.faults.add(landed(Hang()))
    slack.workspace.revoke_token()
    assert request(slack.url + "reset", "").body == "ok"
    assert len(slack.ledger) == 0
    assert post(slack)["ok"] is True


# Who may call


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "10.2.0.2:{port}",
        "0.0.0.0:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost:x",
        "[::1:{port}",
        "",
    ],
)
@pytest.mark.parametrize("path", ["", "ledger", "reset", "api/chat.postMessage", "services/x"])
def test_a_host_that_is_not_this_machine_at_this_port_is_refused(slack: StandIn, host: str, path: str) -> None:
    post(slack)
    headers = {"Host": host.format(port=slack.port)}
    for body in (None, json.dumps({"token": slack.token, "channel": "#ops", "text": "hi"})):
        response = request(slack.url + path, body, **headers)
        assert response.status == 421
        assert response.body == f"expected Host: 127.0.0.1:{slack.port}, as in the address this stand-in told"
    assert len(slack.ledger) == 1


def test_a_request_without_a_host_is_refused(slack: StandIn) -> None:
    with socket.create_connection(("127.0.0.1", slack.port), 5) as caller:
        caller.sendall(b"GET /ledger HTTP/1.1\r\n\r\n")
        assert caller.recv(65_536).startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "127.0.0.2:{port}", "[::1]:{port}"]
)
def test_every_name_of_this_machine_is_taken(slack: StandIn, host: str) -> None:
    named = host.format(port=slack.port)
    assert request(slack.url + "ledger", Host=named).status == 200
    assert request(slack.url + "reset", "", Host=named, Origin=f"http://{named}").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://evil.example:{port}"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "path", ["reset", "api/chat.postMessage", "services/T0STANDIN/B0STANDIN/localStandInWebhookKey00"]
)
def test_a_page_of_another_site_changes_nothing(slack: StandIn, headers: dict[str, str], path: str) -> None:
    post(slack)
    named = {name: value.format(port=slack.port) for name, value in headers.items()}
    form = urlencode({"token": slack.token, "channel": "#ops", "text": "hi", "payload": '{"text": "hi"}'})
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    response = request(slack.url + path, form, **kind, **named)
    assert (response.status, response.body) == (403, "pages of other sites may not call this stand-in")
    assert len(slack.ledger) == 1


def test_a_picture_on_a_page_of_another_site_posts_nothing(slack: StandIn) -> None:
    url = f"{slack.base_url}chat.postMessage?{urlencode({'token': slack.token, 'channel': '#ops', 'text': 'hi'})}"
    assert request(url, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert len(slack.ledger) == 0
    assert request(url, **{"Sec-Fetch-Site": "none"}).json["ok"] is True


def test_a_link_on_a_page_of_another_site_leads_to_the_page(slack: StandIn) -> None:
    for path in ("", "ledger"):
        assert request(slack.url + path, **{"Sec-Fetch-Site": "cross-site"}).status == 200


def test_a_connection_goes_on_after_a_refusal(slack: StandIn) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", slack.port, timeout=5)
    statuses = []
    for headers in ({"Origin": "null"}, {}):
        connection.request("POST", "/reset", "x" * 100_000, headers)
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()
    assert statuses == [403, 200]


def test_no_post_is_lost_when_many_come_at_once(slack: StandIn) -> None:
    def post_many(name: int) -> None:
        for number in range(50):
            post(slack, f"#c{name}", text=f"{name}-{number}")

    callers = [threading.Thread(target=post_many, args=(name,)) for name in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert {posted.text for posted in slack.ledger.posted()} == {f"{a}-{b}" for a in range(8) for b in range(50)}
    assert len({posted.ts for posted in slack.ledger.posted()}) == 400


@pytest.mark.parametrize("path", ["nothing-here", "api", "services"])
def test_an_unknown_path_is_not_found(slack: StandIn, path: str) -> None:
    assert request(slack.url + path).status == 404
    assert request(slack.url + path, "{}").status == 404


def test_a_request_beyond_all_measure_is_refused(slack: StandIn) -> None:
    headers = {"Content-Length": str(100 * 1024 * 1024)}
    assert request(slack.base_url + "chat.postMessage", "", **headers).status == 413


def test_a_taken_port_is_named(slack: StandIn) -> None:
    with pytest.raises(ConfigError, match=f"port {slack.port} on 127.0.0.1"):
        StandIn(slack.port).start()

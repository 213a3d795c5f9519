"""Tests of what Slack's answers mean, row by row."""

from __future__ import annotations

import pytest

from dispatcher.model import Ambiguous, Paused, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.slack.replies import MAX_COOL_DOWN_US, MAX_SAID, read_api_reply, read_webhook_reply, retry_after_us
from dispatcher.slack.taxonomy import COOL_DOWN_US, SLOW_COOL_DOWN_US, TABLE, Meaning, problem, row_for

# The error table, written down a second time: what each code and cause must come to.
COOL_DOWN = "ratelimited rate_limited http_429"
SLOW_COOL_DOWN = "message_limit_exceeded team_added_to_org org_login_required"
NO_ATTEMPT_USED = "request_timeout"
NOT_SENT = "dns_failed connection_refused connect_timeout connect_failed proxy_failed tls_failed"
MAYBE = """internal_error fatal_error service_unavailable http_301 http_302 http_307 http_500 http_502 http_503 http_504
    http_404 unreadable_reply reply_timeout connection_lost some_code_of_tomorrow"""
PAUSED = """invalid_auth not_authed account_inactive token_revoked token_expired missing_scope not_allowed_token_type
    access_denied accesslimited app_access_restricted two_factor_setup_required enterprise_is_restricted is_bot
    method_deprecated deprecated_endpoint unknown_method metadata_must_be_sent_from_app invalid_token team_disabled
    no_service no_active_hooks no_team"""
WRONG_ROUTE = """channel_not_found not_in_channel is_archived no_permission restricted_action
    restricted_action_read_only_channel restricted_action_thread_only_channel ekm_access_denied messages_tab_disabled
    team_not_found channel_is_archived action_prohibited posting_to_general_channel_denied cannot_reply_to_message
    external_channel_thread_locked slack_connect_file_link_sharing_blocked message_not_found
    cant_update_message edit_window_closed"""
WRONG_CONTENT = """no_text msg_too_long msg_blocks_too_long invalid_blocks invalid_blocks_format invalid_arguments
    too_many_attachments too_many_contact_cards attachment_payload_limit_exceeded markdown_text_conflict
    invalid_metadata_format invalid_metadata_schema metadata_too_large as_user_not_supported invalid_payload"""

CAUSES = {"http", "dns", "connect", "connection", "proxy", "tls", "unreadable", "reply"}


def is_slacks_own(code: str) -> bool:
    """Whether Slack sends the code; the others name an HTTP status or a cause in the network."""
    return code.partition("_")[0] not in CAUSES


@pytest.mark.parametrize("code", COOL_DOWN.split())
def test_a_rate_limit_is_a_cool_down(code: str) -> None:
    assert problem(code) == RateLimitedBySlack(COOL_DOWN_US, code)
    assert problem(code, retry_after_us=7_000_000) == RateLimitedBySlack(7_000_000, code)


@pytest.mark.parametrize("code", SLOW_COOL_DOWN.split())
def test_a_limit_of_the_whole_workspace_is_a_longer_cool_down(code: str) -> None:
    assert problem(code) == RateLimitedBySlack(SLOW_COOL_DOWN_US, code)


@pytest.mark.parametrize("code", NO_ATTEMPT_USED.split())
def test_a_refused_delivery_uses_no_attempt(code: str) -> None:
    result = problem(code)
    assert isinstance(result, Retryable)
    assert not result.uses_attempt


@pytest.mark.parametrize("code", NOT_SENT.split())
def test_a_request_that_never_left_is_retried(code: str) -> None:
    result = problem(code)
    assert isinstance(result, Retryable)
    assert result.uses_attempt


@pytest.mark.parametrize("code", MAYBE.split())
def test_what_does_not_say_that_nothing_was_posted_is_ambiguous(code: str) -> None:
    assert isinstance(problem(code), Ambiguous)


@pytest.mark.parametrize("code", PAUSED.split())
def test_what_an_operator_must_mend_pauses_with_a_remedy(code: str) -> None:
    result = problem(code)
    assert isinstance(result, Paused)
    assert len(result.detail.split()) > 4


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        *((code, Meaning.ROUTE) for code in WRONG_ROUTE.split()),
        *((code, Meaning.CONTENT) for code in WRONG_CONTENT.split()),
    ],
)
def test_what_can_never_be_posted_is_rejected(code: str, meaning: Meaning) -> None:
    assert isinstance(problem(code), Rejected)
    assert row_for(code).meaning is meaning


def test_no_code_stands_in_two_rows() -> None:
    codes = [code for row in TABLE for code in row.codes]
    assert sorted(codes) == sorted(set(codes))


def test_every_row_is_tested_here() -> None:
    tested = {
        row_for(code)
        for table in (COOL_DOWN, SLOW_COOL_DOWN, NO_ATTEMPT_USED, NOT_SENT, MAYBE, PAUSED, WRONG_ROUTE, WRONG_CONTENT)
        for code in table.split()
    }
    assert set(TABLE) <= tested


@pytest.mark.parametrize(
    "code", [code for code in f"{COOL_DOWN} {PAUSED} {WRONG_ROUTE} {WRONG_CONTENT}".split() if is_slacks_own(code)]
)
def test_both_apis_answers_are_read_by_the_same_table(code: str) -> None:
    by_api = read_api_reply(200, {}, {"ok": False, "error": code}, "#ops")
    by_webhook = read_webhook_reply(400, {}, code, "#ops")
    assert by_api == by_webhook == problem(code)


def test_a_receipt_carries_slacks_channel_and_ts() -> None:
    reply = {"ok": True, "channel": "C1", "ts": "1732100000.000100"}
    assert read_api_reply(200, {}, reply, "#ops") == Receipt("C1", "1732100000.000100")


@pytest.mark.parametrize(
    "value", [None, 1732100000.0001, ["C1"], "\ud800", "1732100000.000100\n", "\x1b[31m"], ids=ascii
)
def test_a_channel_or_ts_that_cannot_be_kept_is_as_if_it_was_not_said(value: object) -> None:
    assert read_api_reply(200, {}, {"ok": True, "channel": value, "ts": value}, "#ops") == Receipt("#ops", None)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "ok",
        {},
        {"ok": "true"},
        {"ok": 1},
        {"ok": False},
        {"ok": False, "error": "<!DOCTYPE html>"},
        {"ok": False, "error": "Channel Not Found"},
        {"ok": False, "error": ["channel_not_found"]},
        {"ok": "false", "error": "channel_not_found"},
        {"error": "channel_not_found"},
    ],
    ids=repr,
)
def test_only_a_refusal_in_slacks_form_is_believed(data: object) -> None:
    result = read_api_reply(200, {}, data, "#ops")
    assert isinstance(result, Ambiguous)
    assert result.code == "unreadable_reply"


@pytest.mark.parametrize("status", [201, 302, 400, 404, 500, 503])
def test_a_success_under_another_status_is_ambiguous(status: int) -> None:
    assert isinstance(read_api_reply(status, {}, {"ok": True, "ts": "1.2"}, "#ops"), Ambiguous)
    assert isinstance(read_webhook_reply(status, {}, "ok", "#ops"), Ambiguous)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_error_is_ambiguous_whatever_its_body_says(status: int) -> None:
    result = read_api_reply(status, {}, {"ok": False, "error": "channel_not_found"}, "#ops")
    assert isinstance(result, Ambiguous)
    assert result.code == f"http_{status}"
    assert isinstance(read_webhook_reply(status, {}, "rollup_error", "#ops"), Ambiguous)


@pytest.mark.parametrize("body", ["", "ok ", "OK", '{"ok":true}', "<html>ok</html>", "channel_not_found"])
def test_a_webhooks_success_is_exactly_ok(body: str) -> None:
    assert read_webhook_reply(200, {}, "ok", "#ops") == Receipt("#ops", None)
    assert isinstance(read_webhook_reply(200, {}, body, "#ops"), Ambiguous)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_payload", Rejected),
        (403, "action_prohibited", Rejected),
        (403, "posting_to_general_channel_denied", Rejected),
        (403, "invalid_token", Paused),
        (403, "team_disabled", Paused),
        (404, "channel_not_found", Rejected),
        (404, "no_service", Paused),
        (404, "no_active_hooks", Paused),
        (404, "no_team", Paused),
        (410, "channel_is_archived", Rejected),
        (429, "rate_limited", RateLimitedBySlack),
        (500, "rollup_error", Ambiguous),
    ],
)
def test_a_webhooks_refusal_is_read_with_its_status(status: int, code: str, kind: type[PostResult]) -> None:
    assert isinstance(read_webhook_reply(status, {}, code, "#ops"), kind)


def test_a_429_is_a_cool_down_whatever_its_body_says() -> None:
    headers = {"retry-after": "30"}
    assert read_api_reply(429, headers, "<html>", "#ops") == RateLimitedBySlack(30_000_000, "http_429")
    assert read_api_reply(429, headers, {"ok": False, "error": "ratelimited"}, "#ops") == RateLimitedBySlack(
        30_000_000, "ratelimited"
    )
    assert read_webhook_reply(429, headers, "<html>", "#ops") == RateLimitedBySlack(30_000_000, "http_429")


@pytest.mark.parametrize(
    ("value", "expected_us"),
    [
        ("1", 1_000_000),
        ("30", 30_000_000),
        (" 2 ", 2_000_000),
        ("1.5", 1_500_000),
        ("0", 1_000_000),
        ("0.2", 1_000_000),
        ("86400", MAX_COOL_DOWN_US),
        ("999999999999", MAX_COOL_DOWN_US),
        ("Fri, 20 Nov 2026 10:00:45 GMT", 45_000_000),
        ("Fri, 20 Nov 2026 09:59:00 GMT", 1_000_000),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1e3", None),
        ("nan", None),
        ("inf", None),
        ("١", None),  # noqa: RUF001 - a digit, but not one of HTTP's
        ("9" * 40, None),
        ("Fri, 20 Nov 2026 10:00:45", None),
    ],
    ids=repr,
)
def test_a_retry_after_is_read_or_left_to_the_default(value: str, expected_us: int | None) -> None:
    headers = {"retry-after": value, "date": "Fri, 20 Nov 2026 10:00:00 GMT"}
    assert retry_after_us(headers) == expected_us


def test_a_date_without_the_answers_own_date_is_left_to_the_default() -> None:
    assert retry_after_us({"retry-after": "Fri, 20 Nov 2026 10:00:45 GMT"}) is None
    assert retry_after_us({}) is None


def test_a_missing_scope_names_the_scope() -> None:
    reply = {"ok": False, "error": "missing_scope", "needed": "chat:write", "provided": "channels:read"}
    result = read_api_reply(200, {}, reply, "#ops")
    assert isinstance(result, Paused)
    assert "needed: chat:write; provided: channels:read" in result.detail


def test_slacks_messages_about_the_content_are_passed_on() -> None:
    messages = ["[ERROR] must be more than 0 characters [json-pointer:/blocks/0/text]", 7]
    reply = {"ok": False, "error": "invalid_blocks", "response_metadata": {"messages": messages}}
    result = read_api_reply(200, {}, reply, "#ops")
    assert isinstance(result, Rejected)
    assert "json-pointer:/blocks/0/text" in result.detail


def test_a_detail_is_one_short_printable_line() -> None:
    result = read_api_reply(502, {}, {"ok": False, "error": "<html>\n\x1b[31m" + "x" * 5_000}, "#ops")
    assert isinstance(result, Ambiguous)
    assert len(result.detail) <= 300
    assert result.detail.isprintable()


def test_no_rows_advice_is_too_long_for_a_detail() -> None:
    assert max(len(row.told) for row in TABLE) + len(" ()") + MAX_SAID <= 300

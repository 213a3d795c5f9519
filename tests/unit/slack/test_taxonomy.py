"""Tests of what Slack's answers mean, row by row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.posts import Ambiguous, Paused, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.units import US
from dispatcher.slack.replies import MAX_COOL_DOWN_US, MAX_SAID, read_api_reply, read_webhook_reply, retry_after_us
from dispatcher.slack.taxonomy import COOL_DOWN_US, SLOW_COOL_DOWN_US, TABLE, UNKNOWN, Meaning, problem, row_for

# The error table, written down a second time: what each code and cause must come to.
COOL_DOWN = "ratelimited rate_limited http_429"
SLOW_COOL_DOWN = "message_limit_exceeded team_added_to_org org_login_required"
NO_ATTEMPT_USED = "too_late connection_closed console_closed"
NOT_SENT = "dns_failed connection_refused connect_timeout connect_failed proxy_failed tls_failed"
NOT_NOW = """request_timeout external_channel_migrating streaming_state_conflict invalid_cursor
    list_record_comment_fetch_failed"""
MAYBE = """internal_error fatal_error service_unavailable update_failed rollup_error http_301 http_302 http_307 http_500
    http_502 http_503 http_504 http_404 unreadable_reply reply_timeout connection_lost answer_too_large
    internal some_code_of_tomorrow"""
PAUSED = """invalid_auth not_authed account_inactive token_revoked token_expired missing_scope not_allowed_token_type
    access_denied accesslimited app_access_restricted two_factor_setup_required enterprise_is_restricted is_bot
    method_deprecated deprecated_endpoint upgrade_required unknown_method metadata_must_be_sent_from_app
    team_access_not_granted invalid_token team_disabled no_service no_service_id no_active_hooks no_team
    console_failed"""
WRONG_ROUTE = """channel_not_found user_not_found not_in_channel channel_is_limited_access is_archived no_permission
    restricted_action restricted_action_read_only_channel restricted_action_thread_only_channel
    restricted_action_thread_locked restricted_action_non_threadable_channel ekm_access_denied messages_tab_disabled
    team_not_found channel_is_archived action_prohibited posting_to_general_channel_denied posting_to_channel_denied
    cannot_reply_to_message external_channel_thread_locked send_on_behalf_not_allowed thread_not_found
    method_not_supported_for_channel_type slack_connect_canvas_sharing_blocked
    slack_connect_clip_sharing_blocked slack_connect_file_link_sharing_blocked slack_connect_lists_sharing_blocked
    slack_connect_file_upload_sharing_blocked slack_connect_blocked_file_type message_not_found cant_update_message
    edit_window_closed is_inactive cant_broadcast_message duplicate_channel_not_found duplicate_message_not_found"""
WRONG_CONTENT = """no_text missing_text_or_fallback_or_attachments msg_too_long msg_blocks_too_long invalid_blocks
    invalid_blocks_format block_mismatch invalid_arguments invalid_arg_name invalid_array_arg invalid_attachments
    too_many_attachments too_many_contact_cards attachment_payload_limit_exceeded markdown_text_conflict
    invalid_metadata_format invalid_metadata_schema invalid_metadata_filter_keys metadata_too_large
    as_user_not_supported invalid_payload invalid_charset invalid_form_data invalid_post_type missing_post_type
    invalid_json json_not_object missing_file_data blocked_file_type file_deleted file_is_deleted file_not_found
    file_share_limit_reached max_file_sharing_exceeded unable_to_share_files missing_argument invalid_limit
    invalid_ts_latest invalid_ts_oldest invalid_types no_dual_broadcast_content_update draft_already_deleted
    draft_already_sent draft_has_conflict draft_not_found"""

# Every code that Slack documents, by method; collected on 2026-11-22 (sources: dispatcher/slack/taxonomy.py).
EVERY_METHOD = """access_denied accesslimited account_inactive deprecated_endpoint ekm_access_denied
    enterprise_is_restricted
    fatal_error internal_error invalid_arg_name invalid_arguments invalid_array_arg invalid_auth invalid_charset
    invalid_form_data invalid_json invalid_post_type is_bot json_not_object method_deprecated missing_post_type
    missing_scope no_permission not_allowed_token_type not_authed org_login_required ratelimited request_timeout
    service_unavailable team_access_not_granted team_added_to_org token_expired token_revoked
    two_factor_setup_required unknown_method upgrade_required"""
DOCUMENTED = {
    "auth.test": "",
    "chat.postMessage": """app_access_restricted as_user_not_supported attachment_payload_limit_exceeded
        cannot_reply_to_message channel_not_found draft_already_deleted draft_already_sent draft_has_conflict
        draft_not_found duplicate_channel_not_found duplicate_message_not_found invalid_blocks invalid_blocks_format
        invalid_metadata_format invalid_metadata_schema is_archived markdown_text_conflict message_limit_exceeded
        messages_tab_disabled metadata_must_be_sent_from_app metadata_too_large missing_file_data msg_blocks_too_long
        msg_too_long no_text not_in_channel rate_limited restricted_action restricted_action_non_threadable_channel
        restricted_action_read_only_channel restricted_action_thread_locked restricted_action_thread_only_channel
        send_on_behalf_not_allowed slack_connect_canvas_sharing_blocked slack_connect_file_link_sharing_blocked
        slack_connect_lists_sharing_blocked team_not_found too_many_attachments too_many_contact_cards""",
    "chat.update": """as_user_not_supported block_mismatch blocked_file_type cant_broadcast_message cant_update_message
        channel_not_found edit_window_closed external_channel_migrating file_deleted file_is_deleted file_not_found
        file_share_limit_reached invalid_attachments invalid_blocks invalid_blocks_format invalid_metadata_format
        invalid_metadata_schema is_inactive markdown_text_conflict max_file_sharing_exceeded message_limit_exceeded
        message_not_found metadata_must_be_sent_from_app metadata_too_large msg_too_long
        no_dual_broadcast_content_update no_text posting_to_channel_denied rate_limited slack_connect_blocked_file_type
        slack_connect_canvas_sharing_blocked slack_connect_clip_sharing_blocked slack_connect_file_link_sharing_blocked
        slack_connect_file_upload_sharing_blocked streaming_state_conflict team_not_found too_many_attachments
        unable_to_share_files update_failed""",
    "conversations.history": """channel_is_limited_access channel_not_found invalid_cursor invalid_limit
        invalid_metadata_filter_keys invalid_ts_latest invalid_ts_oldest not_in_channel""",
    "conversations.list": """invalid_cursor invalid_limit invalid_types method_not_supported_for_channel_type
        missing_argument""",
    "conversations.replies": """channel_not_found invalid_cursor invalid_limit invalid_metadata_filter_keys
        invalid_ts_latest invalid_ts_oldest list_record_comment_fetch_failed method_not_supported_for_channel_type
        not_in_channel thread_not_found""",
    "webhook": """action_prohibited channel_is_archived channel_not_found invalid_attachments invalid_blocks
        invalid_blocks_format invalid_payload invalid_token missing_text_or_fallback_or_attachments msg_too_long
        no_active_hooks no_service no_service_id no_team no_text posting_to_general_channel_denied rate_limited
        rollup_error team_disabled too_many_attachments user_not_found""",
}
TESTED = (
    COOL_DOWN, SLOW_COOL_DOWN, NO_ATTEMPT_USED, NOT_SENT, NOT_NOW, MAYBE, PAUSED, WRONG_ROUTE, WRONG_CONTENT,
)  # fmt: skip

CAUSES = {"http", "dns", "connect", "connection", "console", "proxy", "tls", "unreadable", "reply"}


def is_slacks_own(code: str) -> bool:
    """Whether Slack sends the code; the others name an HTTP status or a cause in the network."""
    return code.partition("_")[0] not in CAUSES


def cool_down(us: int, code: str, said: str = "") -> RateLimitedBySlack:
    return RateLimitedBySlack(us, code, f"{row_for(code).words} ({said})" if said else row_for(code).words)


@pytest.mark.parametrize("code", COOL_DOWN.split())
def test_a_rate_limit_is_a_cool_down(code: str) -> None:
    assert problem(code) == cool_down(COOL_DOWN_US, code)
    assert problem(code, retry_after_us=7_000_000) == cool_down(7_000_000, code)


@pytest.mark.parametrize("code", SLOW_COOL_DOWN.split())
def test_a_limit_of_the_whole_workspace_is_a_longer_cool_down(code: str) -> None:
    assert problem(code) == cool_down(SLOW_COOL_DOWN_US, code)


@pytest.mark.parametrize("code", NO_ATTEMPT_USED.split())
def test_a_post_that_slack_did_not_try_uses_no_attempt(code: str) -> None:
    result = problem(code)
    assert isinstance(result, Retryable)
    assert not result.uses_attempt


@pytest.mark.parametrize("code", f"{NOT_SENT} {NOT_NOW}".split())
def test_a_request_that_never_left_or_was_refused_for_now_is_retried_and_uses_an_attempt(code: str) -> None:
    result = problem(code)
    assert isinstance(result, Retryable)
    assert result.uses_attempt


@pytest.mark.parametrize("code", MAYBE.split())
def test_a_code_that_does_not_rule_out_a_post_is_ambiguous(code: str) -> None:
    assert isinstance(problem(code), Ambiguous)


def test_a_fault_that_an_operator_must_mend_pauses_posting() -> None:
    assert [code for code in PAUSED.split() if not isinstance(problem(code), Paused)] == []


def test_every_answer_that_can_pause_posting_says_what_it_means_and_what_to_do() -> None:
    can_pause = {Meaning.OPERATOR, Meaning.COOL_DOWN, Meaning.LATER, Meaning.MAYBE}
    for row in (row for row in (*TABLE, UNKNOWN) if row.meaning in can_pause):
        assert min(len(row.told.split()), len(row.remedy.split())) >= 3
        result = problem(row.codes[0].replace("*", "99") if row.codes else "code_of_tomorrow")
        assert not isinstance(result, Rejected)
        assert result.detail == f"{row.told}: {row.remedy}"


@pytest.mark.parametrize(("codes", "meaning"), [(WRONG_ROUTE, Meaning.ROUTE), (WRONG_CONTENT, Meaning.CONTENT)])
def test_a_message_that_can_never_be_posted_is_rejected(codes: str, meaning: Meaning) -> None:
    assert [code for code in codes.split() if not isinstance(problem(code), Rejected)] == []
    assert [code for code in codes.split() if row_for(code).meaning is not meaning] == []


def test_no_code_stands_in_two_rows() -> None:
    codes = [code for row in TABLE for code in row.codes]
    assert sorted(codes) == sorted(set(codes))


def test_every_row_is_tested_here() -> None:
    tested = {row_for(code) for table in TESTED for code in table.split()}
    assert set(TABLE) <= tested


@pytest.mark.parametrize("method", DOCUMENTED)
def test_every_code_that_slack_documents_has_a_row_and_is_tested_here(method: str) -> None:
    documented = f"{DOCUMENTED[method]} {'' if method == 'webhook' else EVERY_METHOD}".split()
    assert [code for code in documented if row_for(code) is UNKNOWN] == []
    tested = [code for table in TESTED for code in table.split()]
    assert [code for code in documented if tested.count(code) != 1] == []


def test_both_apis_answers_are_read_by_the_same_table() -> None:
    for code in filter(is_slacks_own, f"{COOL_DOWN} {PAUSED} {WRONG_ROUTE} {WRONG_CONTENT}".split()):
        by_api = read_api_reply(200, {}, {"ok": False, "error": code}, "#ops")
        by_webhook = read_webhook_reply(400, {}, code, "#ops")
        assert by_api == by_webhook == problem(code)


def test_a_code_that_nobody_knows_is_a_refusal_where_slack_itself_says_no() -> None:
    result = read_api_reply(200, {}, {"ok": False, "error": "code_of_tomorrow"}, "#ops")
    assert result == Rejected("code_of_tomorrow", "the answer has no meaning known to this version")


def test_a_code_that_nobody_knows_is_ambiguous_anywhere_else() -> None:
    body = {"ok": False, "error": "code_of_tomorrow"}
    for status in (302, 400, 404, 500, 503):
        assert isinstance(read_api_reply(status, {}, body, "#ops"), Ambiguous)
        assert isinstance(read_webhook_reply(status, {}, "code_of_tomorrow", "#ops"), Ambiguous)
    assert isinstance(read_webhook_reply(200, {}, "code_of_tomorrow", "#ops"), Ambiguous)
    assert isinstance(read_api_reply(200, {}, {"ok": True, "error": "x"}, "#ops"), Receipt)


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


@pytest.mark.parametrize("body", ["ok", "ok\n", "\r\nok\r\n", " ok "])
def test_a_webhooks_success_is_ok_with_any_space_around_it(body: str) -> None:
    assert read_webhook_reply(200, {}, body, "#ops") == Receipt("#ops", None)


@pytest.mark.parametrize("body", ["", "OK", "ok ok", "<html>ok</html>", "channel_not_found"])
def test_any_other_answer_under_200_to_a_webhook_is_ambiguous(body: str) -> None:
    result = read_webhook_reply(200, {}, body, "#ops")
    assert isinstance(result, Ambiguous)
    assert result.code == "unreadable_reply"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_payload", Rejected),
        (403, "action_prohibited", Rejected),
        (403, "invalid_token", Paused),
        (404, "channel_not_found", Rejected),
        (404, "no_service", Paused),
        (410, "channel_is_archived", Rejected),
        (429, "rate_limited", RateLimitedBySlack),
        (500, "rollup_error", Ambiguous),
    ],
)
def test_a_webhooks_refusal_is_read_with_its_status(status: int, code: str, kind: type[PostResult]) -> None:
    assert isinstance(read_webhook_reply(status, {}, code, "#ops"), kind)


def test_a_429_is_a_cool_down_whatever_its_body_says() -> None:
    headers = {"retry-after": "30"}
    assert read_api_reply(429, headers, "<html>", "#ops") == cool_down(30_000_000, "http_429")
    by_api = read_api_reply(429, headers, {"ok": False, "error": "ratelimited"}, "#ops")
    assert by_api == cool_down(30_000_000, "ratelimited")
    assert read_webhook_reply(429, headers, "<html>", "#ops") == cool_down(30_000_000, "http_429", "<html>")


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
        ("99999999999999", MAX_COOL_DOWN_US),
        ("9" * 40, MAX_COOL_DOWN_US),
        ("9" * 400, MAX_COOL_DOWN_US),  # more than a float can hold
        ("0" * 40 + "2", 2_000_000),
        ("1." + "5" * 40, 1_555_556),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_COOL_DOWN_US),
        ("Fri, 20 Nov 99999999999999999999 10:00:00 GMT", None),
        ("Fri, 20 Nov 2026 10:00:00 +99999999999999999999", None),
        ("Fri, 31 Dec 9999 23:59:59 -2359", MAX_COOL_DOWN_US),
        ("Fri, 20 Nov 2026 10:00:45", None),
    ],
    ids=repr,
)
def test_a_retry_after_is_read_or_left_to_the_default(value: str, expected_us: int | None) -> None:
    headers = {"retry-after": value, "date": "Fri, 20 Nov 2026 10:00:00 GMT"}
    assert retry_after_us(headers) == expected_us


DATES = st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,30} [A-Z][a-z]{2} [0-9]{1,30} [0-9:.]{1,30} ?[-+]?[A-Z0-9]{0,30}")
HEADERS = st.one_of(st.text(), DATES, st.from_regex(r"[0-9]+([.:,/ +-][0-9]*)*", fullmatch=True))


@given(HEADERS, HEADERS)
def test_no_header_makes_a_429_anything_but_a_cool_down(retry_after: str, date: str) -> None:
    result = read_api_reply(429, {"retry-after": retry_after, "date": date}, {}, "#ops")
    assert isinstance(result, RateLimitedBySlack)
    assert US <= result.retry_after_us <= MAX_COOL_DOWN_US


@pytest.mark.parametrize("own", [{}, {"date": "today"}])
@pytest.mark.parametrize(
    ("until", "expected_us"),
    [("10:00:45", 45_000_000), ("09:59:00", 1_000_000), ("23:00:00", MAX_COOL_DOWN_US)],
)
def test_a_date_without_the_answers_own_date_is_measured_from_our_clock(
    until: str, expected_us: int, own: dict[str, str]
) -> None:
    headers = {"retry-after": f"Fri, 20 Nov 2026 {until} GMT", **own}
    assert retry_after_us(headers, now=datetime(2026, 11, 20, 10, tzinfo=UTC)) == expected_us


def test_a_429_with_a_date_and_no_own_date_waits_until_then() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(minutes=30), usegmt=True)
    result = read_api_reply(429, {"retry-after": later}, {}, "#ops")
    assert isinstance(result, RateLimitedBySlack)
    assert 1_700 * US < result.retry_after_us <= 1_800 * US


def test_without_a_retry_after_there_is_none() -> None:
    assert retry_after_us({}) is None


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
    assert max(len(row.words) for row in TABLE) + len(" ()") + MAX_SAID <= 300

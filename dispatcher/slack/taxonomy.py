"""What every answer of Slack means: one table from code or cause to what follows, and what an operator is told to do.

Pure. A code is Slack's own (``channel_not_found``), ``http_`` and a status, or one of the causes that ``transport`` and
``console`` name (``connection_refused``). A code that nobody knows is a refusal where Slack itself says ``ok: false``;
anywhere else it is ``MAYBE``: an alert posted twice is better than one lost.

The table has every code that Slack documents for the methods this package calls (chat.postMessage, chat.update,
conversations.history, conversations.replies, conversations.list, auth.test) and for incoming webhooks. They were
collected on 2026-11-22 from: the pages docs.slack.dev/reference/methods/METHOD as copied in May and August 2026;
Slack's OpenAPI description of 2020, for codes that the pages name no longer; for webhooks
docs.slack.dev/messaging/sending-messages-using-incoming-webhooks and Slack's changelog of 2016-05-17. What a code means
for the message is documented where Slack says so, else assumed on the safe side.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, TypeAlias, assert_never

from dispatcher.core.posts import Ambiguous, Paused, RateLimitedBySlack, Rejected, Retryable
from dispatcher.core.units import US

Problem: TypeAlias = RateLimitedBySlack | Retryable | Rejected | Ambiguous | Paused
"""Every ``PostResult`` but the ``Receipt``."""

COOL_DOWN_US: Final = US
"""The cool-down where Slack names none that can be read: its documented pace of one message a second."""

SLOW_COOL_DOWN_US: Final = 60 * US


class Meaning(StrEnum):
    """What an answer says about the message, and so what is done next."""

    COOL_DOWN = "cool-down"
    """Not posted: nobody posts to the channel for a while.

    If a second channel cools down meanwhile, nobody posts anywhere until the later end (lua/include/pause.lua): so a
    long cool-down of one channel may stop all others.
    """
    LATER = "later"
    """Not posted, since the request never left: a later attempt may do better."""
    AGAIN = "again"
    """Not posted, says Slack: a later attempt may do better."""
    NOT_TRIED = "not tried"
    """Not posted, and no attempt used."""
    MAYBE = "maybe posted"
    OPERATOR = "an operator is needed"
    """Not posted, and nothing else will be."""
    ROUTE = "rejected for its route"
    """Never posted there as it is."""
    CONTENT = "rejected for its content"
    """Never posted as it is; another content might be."""


@dataclass(frozen=True, slots=True)
class Row:
    """Codes (``*`` stands for anything) with one meaning; what an operator is told, and what to do about it.

    ``remedy`` is empty only where the answer concerns one message alone. ``cool_down_us`` counts where the meaning is
    a cool-down and Slack names no other time.
    """

    codes: tuple[str, ...]
    meaning: Meaning
    told: str
    remedy: str = ""
    cool_down_us: int = COOL_DOWN_US

    @property
    def words(self) -> str:
        """All that is said about the code."""
        return f"{self.told}: {self.remedy}" if self.remedy else self.told


def _row(codes: str, meaning: Meaning, told: str, remedy: str = "", cool_down_us: int = COOL_DOWN_US) -> Row:
    return Row(tuple(codes.split()), meaning, told, remedy, cool_down_us)


_ADMIN: Final = "ask an admin of the Slack workspace to allow this app"
_TOKEN: Final = "put the bot token in DISPATCHER_SLACK_TOKEN and restart, or in its file and send SIGHUP"  # noqa: S105 - advice, not a token
_HOOK: Final = "put a new incoming webhook in DISPATCHER_SLACK_WEBHOOK_URL and restart, or in its file and send SIGHUP"
_STATUS: Final = "look at Slack's status page"

TABLE: Final = (
    # Not posted, no attempt used.
    _row(
        "http_429 ratelimited rate_limited",
        Meaning.COOL_DOWN,
        "Slack asks to post more slowly",
        "if it happens often, lower the pace of the channels in the limits file",
    ),
    _row(
        "message_limit_exceeded",
        Meaning.COOL_DOWN,
        "the whole workspace sends more messages than Slack allows",
        "if it lasts, ask an admin of the workspace which app sends so many",
        SLOW_COOL_DOWN_US,
    ),
    _row(
        "team_added_to_org org_login_required",
        Meaning.COOL_DOWN,
        "the workspace is being moved into an Enterprise organisation",
        "wait until that is done; if it lasts, ask an admin of the organisation",
        SLOW_COOL_DOWN_US,
    ),
    _row("too_late", Meaning.NOT_TRIED, "its time had passed before it could be sent"),
    _row("connection_closed", Meaning.NOT_TRIED, "the kept connection was closed before a byte of it was read"),
    _row(
        "console_closed",
        Meaning.NOT_TRIED,
        "nobody reads the output of this worker",
        "start a worker whose output is read",
    ),
    # Not posted: Slack says so.
    _row("request_timeout", Meaning.AGAIN, "the request reached Slack incomplete"),
    _row("external_channel_migrating", Meaning.AGAIN, "Slack is moving the shared channel"),
    _row("streaming_state_conflict", Meaning.AGAIN, "the message is still being written by another call"),
    _row("invalid_cursor list_record_comment_fetch_failed", Meaning.AGAIN, "Slack broke a history scan off"),
    # Not posted: the request never left.
    _row("dns_failed", Meaning.LATER, "Slack's name was not resolved", "look at DNS and the network"),
    _row("connection_refused", Meaning.LATER, "nobody listens there", "look at the network and the address"),
    _row("connect_timeout connect_failed", Meaning.LATER, "no connection was made", "look at network and firewall"),
    _row(
        "proxy_failed",
        Meaning.LATER,
        "the proxy made no connection",
        "look at HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
    ),
    _row(
        "tls_failed",
        Meaning.LATER,
        "no secure connection was made",
        "look at the certificates (SSL_CERT_FILE) and the clock",
    ),
    # Perhaps posted.
    _row(
        "internal_error fatal_error service_unavailable update_failed rollup_error",
        Meaning.MAYBE,
        "Slack failed while it had the message",
        _STATUS,
    ),
    _row("http_3* http_5*", Meaning.MAYBE, "no answer of Slack's own came back", f"{_STATUS}, and at the proxy"),
    _row(
        "http_4*",
        Meaning.MAYBE,
        "this is no answer of Slack's",
        "look at DISPATCHER_SLACK_BASE_URL and the proxy",
    ),
    _row(
        "unreadable_reply",
        Meaning.MAYBE,
        "the answer was not what Slack documents",
        "look at DISPATCHER_SLACK_BASE_URL and the proxy",
    ),
    _row(
        "reply_timeout",
        Meaning.MAYBE,
        "the answer did not arrive before the deadline",
        "look at the network, the proxy and Slack's status page",
    ),
    _row(
        "connection_lost",
        Meaning.MAYBE,
        "the connection ended before the answer",
        "look at the network and the proxy",
    ),
    _row(
        "answer_too_large",
        Meaning.MAYBE,
        "the answer was longer than any of Slack's",
        "look at DISPATCHER_SLACK_BASE_URL and the proxy",
    ),
    _row("internal", Meaning.MAYBE, "the dispatcher itself failed while it posted", "report it to its maintainers"),
    # An operator is needed.
    _row("invalid_auth", Meaning.OPERATOR, "Slack does not accept the token or this IP address", _TOKEN),
    _row("not_authed token_revoked", Meaning.OPERATOR, "Slack does not accept the token", _TOKEN),
    _row("token_expired", Meaning.OPERATOR, "the token has expired", f"turn token rotation off, or {_TOKEN}"),
    _row(
        "account_inactive",
        Meaning.OPERATOR,
        "the app is no longer installed",
        f"install it again, then {_TOKEN}",
    ),
    _row(
        "missing_scope",
        Meaning.OPERATOR,
        "the token lacks a scope",
        "add it under OAuth & Permissions of the app and install the app again",
    ),
    _row("not_allowed_token_type is_bot", Meaning.OPERATOR, "this kind of token cannot post", _TOKEN),
    _row("access_denied", Meaning.OPERATOR, "Slack limits what this app may do", _ADMIN),
    _row(
        "accesslimited",
        Meaning.OPERATOR,
        "Slack limits what may be done from this network",
        "ask an admin of the Slack workspace to allow it",
    ),
    _row(
        "app_access_restricted enterprise_is_restricted",
        Meaning.OPERATOR,
        "the workspace does not let this app post",
        _ADMIN,
    ),
    _row(
        "team_access_not_granted",
        Meaning.OPERATOR,
        "the token was not granted this workspace",
        "have an admin of the organisation add the app to it",
    ),
    _row(
        "two_factor_setup_required",
        Meaning.OPERATOR,
        "the token's owner has no two-factor login at Slack",
        "have the owner set it up",
    ),
    _row(
        "method_deprecated deprecated_endpoint upgrade_required",
        Meaning.OPERATOR,
        "Slack has withdrawn the call this version uses",
        "update the dispatcher",
    ),
    _row(
        "unknown_method",
        Meaning.OPERATOR,
        "there is no Slack Web API at that address",
        "correct DISPATCHER_SLACK_BASE_URL and restart the workers",
    ),
    _row("metadata_must_be_sent_from_app", Meaning.OPERATOR, "the token belongs to no app", _TOKEN),
    _row(
        "invalid_token no_service no_service_id no_active_hooks",
        Meaning.OPERATOR,
        "the webhook is no longer valid",
        _HOOK,
    ),
    _row("team_disabled no_team", Meaning.OPERATOR, "the webhook's workspace is gone or disabled", _HOOK),
    _row(
        "console_failed",
        Meaning.OPERATOR,
        "a worker that prints the messages cannot write to its output",
        "look at the file or device that its stdout goes to",
    ),
    # Never, because of where it goes.
    _row("channel_not_found", Meaning.ROUTE, "no such channel, or a private one the app is not in", "invite the app"),
    _row("user_not_found", Meaning.ROUTE, "Slack knows no such person"),
    _row("not_in_channel channel_is_limited_access", Meaning.ROUTE, "the app is not in the channel", "invite it"),
    _row("is_archived channel_is_archived", Meaning.ROUTE, "the channel is archived"),
    _row(
        "no_permission action_prohibited posting_to_channel_denied send_on_behalf_not_allowed",
        Meaning.ROUTE,
        "the app may not post in this channel",
    ),
    _row("cannot_reply_to_message *_thread_locked", Meaning.ROUTE, "the thread takes no replies"),
    _row("thread_not_found", Meaning.ROUTE, "the thread is not there"),
    _row("method_not_supported_for_channel_type", Meaning.ROUTE, "this kind of conversation cannot be used so"),
    _row("restricted_action*", Meaning.ROUTE, "the workspace restricts who may post in this channel"),
    _row("posting_to_general_channel_denied", Meaning.ROUTE, "the workspace does not let webhooks post in #general"),
    _row("ekm_access_denied", Meaning.ROUTE, "the workspace's key management has suspended posting here"),
    _row("messages_tab_disabled", Meaning.ROUTE, "the app's messages tab is off", "turn it on under App Home"),
    _row(
        "message_not_found cant_update_message edit_window_closed is_inactive cant_broadcast_message",
        Meaning.ROUTE,
        "the message cannot be edited",
    ),
    _row("duplicate_*_not_found", Meaning.ROUTE, "Slack takes it for a repeat of a message that is not there"),
    _row(
        "team_not_found",
        Meaning.ROUTE,
        "Slack does not know in which workspace the channel is",
        "name it by its id, if the token is of a whole organisation",
    ),
    _row(
        "slack_connect_*_blocked slack_connect_blocked_*",
        Meaning.ROUTE,
        "the shared channel's other organisation blocks this",
    ),
    # Never, because of what it says.
    _row("no_text missing_text_or_fallback_or_attachments", Meaning.CONTENT, "the message is empty"),
    _row("msg_too_long msg_blocks_too_long metadata_too_large", Meaning.CONTENT, "the message is too long for Slack"),
    _row("too_many_* attachment_payload_limit_exceeded", Meaning.CONTENT, "the message has too many parts for Slack"),
    _row("invalid_blocks*", Meaning.CONTENT, "the blocks break Block Kit's rules"),
    _row("block_mismatch", Meaning.CONTENT, "these blocks cannot take the place of those that were posted"),
    _row("invalid_attachments", Meaning.CONTENT, "Slack does not take the attachments"),
    _row(
        "missing_file_data blocked_file_type file_deleted file_is_deleted file_not_found file_share_limit_reached"
        " max_file_sharing_exceeded unable_to_share_files",
        Meaning.CONTENT,
        "a file of the message cannot be shared",
    ),
    _row(
        "invalid_arguments invalid_arg_name invalid_array_arg as_user_not_supported missing_argument invalid_limit"
        " invalid_ts_latest invalid_ts_oldest invalid_types no_dual_broadcast_content_update draft_*",
        Meaning.CONTENT,
        "Slack does not take these arguments",
    ),
    _row(
        "invalid_payload invalid_charset invalid_form_data invalid_post_type missing_post_type invalid_json"
        " json_not_object",
        Meaning.CONTENT,
        "Slack cannot read the message",
    ),
    _row("markdown_text_conflict", Meaning.CONTENT, "markdown text excludes blocks and text"),
    _row("invalid_metadata_*", Meaning.CONTENT, "Slack does not take the metadata"),
)

UNKNOWN: Final = Row(
    (),
    Meaning.MAYBE,
    "the answer has no meaning known to this version",
    "look for the code in Slack's documentation, and for a newer version of the dispatcher",
)
_REFUSED: Final = Row((), Meaning.ROUTE, UNKNOWN.told)

_EXACT: Final = {code: row for row in TABLE for code in row.codes if "*" not in code}
_PATTERNS: Final = tuple((code, row) for row in TABLE for code in row.codes if "*" in code)


def row_for(code: str) -> Row:
    """The row of a code; a code spelt out wins over a pattern, and ``UNKNOWN`` stands for all others."""
    if (row := _EXACT.get(code)) is not None:
        return row
    return next((row for pattern, row in _PATTERNS if fnmatchcase(code, pattern)), UNKNOWN)


def may_be_about_blocks(code: str) -> bool:
    """Whether a message that was refused with this code might be taken without its blocks."""
    other = ("no_text", "as_user_not_supported", "*metadata*")
    row = row_for(code)
    is_possible = row is UNKNOWN or row.meaning is Meaning.CONTENT
    return is_possible and not any(fnmatchcase(code, pattern) for pattern in other)


def problem(  # noqa: PLR0911 - one return for each meaning
    code: str, said: str = "", retry_after_us: int | None = None, *, is_refusal: bool = False
) -> Problem:
    """What a post came to that ended in ``code``.

    ``said`` is what Slack or the network added, fit to be shown; ``retry_after_us`` is Slack's own wish, heeded
    where the code means a cool-down. ``is_refusal``: Slack said no in its own form, so nothing was posted unless the
    code says otherwise.
    """
    row = row_for(code)
    if is_refusal and row is UNKNOWN:
        row = _REFUSED
    detail = f"{row.words} ({said})" if said else row.words
    match row.meaning:
        case Meaning.COOL_DOWN:
            return RateLimitedBySlack(row.cool_down_us if retry_after_us is None else retry_after_us, code, detail)
        case Meaning.LATER:
            return Retryable(code, detail)
        case Meaning.AGAIN:
            return Retryable(code, detail, reached=True)
        case Meaning.NOT_TRIED:
            return Retryable(code, detail, uses_attempt=False, reached=None)
        case Meaning.MAYBE:
            return Ambiguous(code, detail)
        case Meaning.OPERATOR:
            return Paused(code, detail)
        case Meaning.ROUTE | Meaning.CONTENT:
            return Rejected(code, detail)
        case unreachable:
            assert_never(unreachable)

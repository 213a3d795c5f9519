"""The two ways to Slack: the Web API with a bot token, and an incoming webhook. What a call says, and what came of it.

slack_sdk's clients stand over our transport: one deadline, no retries, no log lines, nothing secret kept. Each client
has one public method that all its calls go through, ``api_call`` and ``send_dict``: it is replaced. Names and arguments
of the methods and the forms of answers stay the SDK's.

The only module that imports slack_sdk, and imported only when a sink is built.
"""

from __future__ import annotations

import json as standard
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from slack_sdk import WebClient, WebhookClient
from slack_sdk.errors import SlackApiError
from slack_sdk.web import SlackResponse
from slack_sdk.webhook import WebhookResponse

from dispatcher.core.posts import Message, PostResult, Receipt
from dispatcher.core.states import ScanResult, Search, Unreadable
from dispatcher.jsonio import NotPlain, decode, encode
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.history import Answer, History
from dispatcher.slack.replies import (
    CheckResult,
    Requests,
    Result,
    Unchecked,
    event_mark,
    masked,
    metadata_of,
    read_api_reply,
    read_auth_reply,
    read_webhook_reply,
    result_of,
)
from dispatcher.slack.taxonomy import problem
from dispatcher.slack.transport import ExchangeFailed, Reply, Transport

_AGENT: Final = "notification-dispatcher"
_JSON: Final = {"Content-Type": "application/json;charset=utf-8"}
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}


class WebApi:
    """Posts, edits and reads back with a bot token."""

    def __init__(
        self, token: BotToken, transport: Transport, base_url: str, requests: Requests, namespace: str
    ) -> None:
        self._client = ApiClient(token, transport, base_url, requests)
        self._namespace = namespace
        self._history = History(self._read, namespace)

    def post(self, message: Message) -> PostResult:
        """What one request came to. Raises ``ExchangeFailed`` where no answer came."""
        mark = event_mark(message.event_id, self._namespace)
        # client_msg_id is undocumented: Slack may recognise a repeat by it, and we do not count on that.
        arguments = {
            "channel": message.channel,
            **_content(message),
            "metadata": metadata_of(mark),
            "client_msg_id": f"{mark[:8]}-{mark[8:12]}-{mark[12:16]}-{mark[16:20]}-{mark[20:]}",
        }
        status, headers, data = _answer(lambda: self._client.chat_postMessage(**arguments))
        result = read_api_reply(status, headers, data, message.channel)
        if isinstance(result, Receipt):
            self._history.newest[result.channel] = result.ts
            if self._history.ids.get(message.channel, message.channel) != result.channel:
                self._history.note(message.channel, result.channel)
        return result

    def update(self, channel: str, ts: str, message: Message) -> PostResult:
        """What one request came to to put ``message`` in the place of what was posted."""
        # A text alone takes the place of blocks; that none are left is said as well, for what answers in Slack's place.
        status, headers, data = _answer(
            lambda: self._client.chat_update(channel=channel, ts=ts, text=message.text, blocks=[])
        )
        return read_api_reply(status, headers, data, channel)

    def scan(self, search: Search) -> ScanResult:
        """Which of the posts the channel's history shows."""
        return self._history.scan(search)

    def check(self) -> CheckResult:
        """Whether Slack accepts the token, without posting."""
        return read_auth_reply(*_answer(self._client.auth_test))

    def _read(self, method: str, arguments: Mapping[str, Any]) -> Answer:
        # As a form: Slack takes no JSON for what only reads.
        return _answer(lambda: self._client.api_call(method, data=dict(arguments)))


class WebhookApi:
    """Posts through an incoming webhook, which has no other call."""

    def __init__(self, webhook: Webhook, transport: Transport, requests: Requests) -> None:
        self._client = HookClient(webhook, transport, requests)

    def post(self, message: Message) -> PostResult:
        """What one request came to. Raises ``ExchangeFailed`` where no answer came."""
        response = self._client.send_dict(_content(message))
        return read_webhook_reply(response.status_code, response.headers, response.body, message.channel)

    def update(self, channel: str, ts: str, message: Message) -> PostResult:
        """It cannot edit."""
        del channel, ts, message
        return problem("unreadable_reply", "an incoming webhook cannot edit")

    def scan(self, _search: Search) -> ScanResult:
        """It cannot read."""
        return ScanResult({}, Unreadable("webhook", "nothing can be read through a webhook"))

    def check(self) -> CheckResult:
        """It cannot say."""
        return Unchecked()


def _content(message: Message) -> dict[str, Any]:
    content: dict[str, Any] = {"text": message.text}
    if message.blocks:
        content["blocks"] = list(message.blocks)
    if message.thread_ts:
        content["thread_ts"] = message.thread_ts
    if message.identity is not None:
        content |= {name: value for name, value in asdict(message.identity).items() if value}
    return content


def _answer(call: Callable[[], SlackResponse]) -> Answer:
    try:
        response = call()
    except SlackApiError as error:  # the SDK's word for anything but success: 429, 5xx and web pages too
        response = error.response
    return response.status_code, response.headers, response.data


class ApiClient(WebClient):
    """The Web API with a bot token. Calls raise ``SlackApiError`` and ``ExchangeFailed``."""

    def __init__(self, token: BotToken, transport: Transport, base_url: str, requests: Requests) -> None:
        super().__init__(token.value, base_url, retry_handlers=[], logger=_silent_logger(), user_agent_prefix=_AGENT)
        self._exchange = _Exchange(token, transport, requests)
        self._sent = {**self.headers, "Authorization": f"Bearer {token.value}"}

    def api_call(  # noqa: PLR0913 - the SDK's signature
        self,
        api_method: str,
        *,
        http_verb: str = "POST",
        files: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        params: dict[str, Any] | None = None,
        json: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        auth: dict[str, Any] | None = None,
    ) -> SlackResponse:
        """One call by POST, with arguments as JSON or as a form; files and other credentials are not sent.

        Raises ``SlackApiError`` for every answer but a success, ``ExchangeFailed`` where none came.
        """
        if files or auth:
            raise NotImplementedError("the dispatcher sends no files, and no credential but its token")
        url = self.base_url + api_method
        kind, body = (
            (_JSON, _as_json(json)) if json is not None else (_FORM, _as_form({**(params or {}), **(data or {})}))
        )
        reply, answer = self._exchange.post(api_method, url, {**self._sent, **(headers or {}), **kind}, body, _object)
        response = SlackResponse(
            client=self,
            http_verb=http_verb,
            api_url=url,
            req_args={},  # the SDK would keep the token in them
            data=answer,
            headers=dict(reply.headers),
            status_code=reply.status,
        )
        response.validate()  # type: ignore[no-untyped-call]  # the SDK gives it no types
        return response


class HookClient(WebhookClient):
    """An incoming webhook. Calls raise ``ExchangeFailed``."""

    def __init__(self, webhook: Webhook, transport: Transport, requests: Requests) -> None:
        super().__init__(webhook.url, retry_handlers=[], logger=_silent_logger(), user_agent_prefix=_AGENT)
        self._exchange = _Exchange(webhook, transport, requests)

    def send_dict(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> WebhookResponse:
        """One post by webhook."""
        sent = {**self.default_headers, **(headers or {}), **_JSON}
        reply, text = self._exchange.post("webhook", self.url, sent, _as_json(body), lambda text, _status: text)
        return WebhookResponse(url="", status_code=reply.status, body=text, headers=dict(reply.headers))


class _Exchange:
    """Posts, and counts what each request came to and how long it took, whatever becomes of it."""

    def __init__(self, credential: BotToken | Webhook, transport: Transport, requests: Requests) -> None:
        self._secrets = credential.forms
        self._transport = transport
        self._requests = requests

    def post(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, read: Callable[[str, int], Any]
    ) -> tuple[Reply, Any]:
        """The answer, and what ``read`` makes of its text and status. There is no credential in the text."""
        result, begun = Result.NO_ANSWER, time.monotonic()
        try:
            reply = self._transport.post(url, headers, body)
            result = Result.FAILED  # unless it can be read
            answer = read(masked(reply.body.decode("utf-8", "replace"), self._secrets), reply.status)
            result = result_of(reply.status, reply.headers, answer)
        finally:
            self._requests.note(method, result, time.monotonic() - begun)
        return reply, answer


def _as_json(arguments: Mapping[str, Any]) -> bytes:
    try:
        return encode(arguments)
    except TypeError:  # half of a surrogate pair, a number of very many digits
        return standard.dumps(arguments).encode()


def _as_form(arguments: Mapping[str, Any]) -> bytes:
    return urlencode({name: value for name, value in arguments.items() if value is not None}).encode()


def _object(text: str, status: int) -> dict[str, Any]:
    """The JSON object of an answer; an answer without one can be read only where its status says all."""
    try:
        value = decode(text)
    except NotPlain:
        value = _not_plain(text)
    if isinstance(value, dict):
        return value
    if status == HTTPStatus.OK:
        raise ExchangeFailed("unreadable_reply", text or "an empty body")
    return {"ok": False, "error": f"no JSON object: {text}"}


def _not_plain(text: str) -> object:
    try:
        return standard.loads(text)
    except (ValueError, RecursionError):
        return None


def _silent_logger() -> logging.Logger:
    """A logger outside logging's tree: the SDK would log webhook URLs, proxies and bodies; we return values."""
    logger = logging.Logger("dispatcher.slack.vendor", logging.CRITICAL)  # noqa: LOG001 - outside the tree on purpose
    logger.disabled = True
    return logger

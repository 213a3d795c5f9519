"""slack_sdk's two clients over our transport: one deadline, no retries, no log lines, nothing secret kept.

The only module that imports slack_sdk, and imported only when a sink is built. Each client has one public method that
all its calls go through, ``api_call`` and ``send_dict``: it is replaced. Names and arguments of the methods and the
forms of answers stay the SDK's.
"""

from __future__ import annotations

import json as encoder
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from slack_sdk import WebClient, WebhookClient
from slack_sdk.web import SlackResponse
from slack_sdk.webhook import WebhookResponse

from dispatcher.slack.connections import Reply
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.requests import Requests, Result, result_of
from dispatcher.slack.transport import ExchangeFailed, Transport

_AGENT: Final = "notification-dispatcher"
_JSON: Final = {"Content-Type": "application/json;charset=utf-8"}
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}


class ApiClient(WebClient):
    """The Web API with a bot token. Calls raise ``SlackApiError`` and ``ExchangeFailed``."""

    def __init__(self, token: BotToken, transport: Transport, base_url: str, requests: Requests) -> None:
        super().__init__(token.value, base_url, retry_handlers=[], logger=_silent_logger(), user_agent_prefix=_AGENT)
        self._secret = token
        self._exchange = _Counted(transport, requests)
        self._credential = {"Authorization": f"Bearer {token.value}"}

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
        sent = {**self.headers, **(headers or {}), **kind, **self._credential}
        with self._exchange.post(api_method, url, sent, body) as exchange:
            reply = exchange.reply
            text = self._secret.mask(reply.body.decode("utf-8", "replace"))
            exchange.answer = _object(text, reply.status)
        response = SlackResponse(
            client=self,
            http_verb=http_verb,
            api_url=url,
            req_args={},  # the SDK would keep the token in them
            data=exchange.answer,
            headers=dict(reply.headers),
            status_code=reply.status,
        )
        response.validate()  # type: ignore[no-untyped-call]  # the SDK gives it no types
        return response


class HookClient(WebhookClient):
    """An incoming webhook. Calls raise ``ExchangeFailed``."""

    def __init__(self, webhook: Webhook, transport: Transport, requests: Requests) -> None:
        super().__init__(webhook.url, retry_handlers=[], logger=_silent_logger(), user_agent_prefix=_AGENT)
        self._secret = webhook
        self._exchange = _Counted(transport, requests)

    def send_dict(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> WebhookResponse:
        """One post by webhook."""
        sent = {**self.default_headers, **(headers or {}), **_JSON}
        with self._exchange.post("webhook", self.url, sent, _as_json(body)) as exchange:
            reply = exchange.reply
        text = self._secret.mask(reply.body.decode("utf-8", "replace"))
        return WebhookResponse(url="", status_code=reply.status, body=text, headers=dict(reply.headers))


class _Exchange:
    """One request: its answer, and what its body says."""

    reply: Reply
    answer: Any = None


class _Counted:
    """Posts, and counts what each request came to and how long it took, whatever becomes of it."""

    def __init__(self, transport: Transport, requests: Requests) -> None:
        self._transport = transport
        self._requests = requests

    @contextmanager
    def post(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Iterator[_Exchange]:
        exchange, result, begun = _Exchange(), Result.NO_ANSWER, time.monotonic()
        try:
            exchange.reply = self._transport.post(url, headers, body)
            result = Result.FAILED  # unless what is within can read it
            yield exchange
            result = result_of(exchange.reply.status, exchange.answer)
        finally:
            self._requests.note(method, result, time.monotonic() - begun)


def _as_json(arguments: Mapping[str, Any]) -> bytes:
    return encoder.dumps({name: value for name, value in arguments.items() if value is not None}).encode()


def _as_form(arguments: Mapping[str, Any]) -> bytes:
    return urlencode({name: value for name, value in arguments.items() if value is not None}).encode()


def _object(text: str, status: int) -> dict[str, Any]:
    """The JSON object of an answer; an answer without one can be read only where its status says all."""
    try:
        value = encoder.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    if status == HTTPStatus.OK:
        raise ExchangeFailed("unreadable_reply", text or "an empty body")
    return {"ok": False, "error": f"no JSON object: {text}"}


def _silent_logger() -> logging.Logger:
    """A logger outside logging's tree: the SDK would log webhook URLs, proxies and bodies; we return values."""
    logger = logging.Logger("dispatcher.slack.vendor", logging.CRITICAL)  # noqa: LOG001 - outside the tree on purpose
    logger.disabled = True
    return logger

"""slack_sdk's two clients with their HTTP replaced: one deadline, no retries, no log lines, nothing secret kept.

The only module that imports slack_sdk, and imported only when a sink is built. Each client's one method for a
single HTTP exchange is overridden; everything above it (arguments, JSON, headers) stays the SDK's. The SDK names
that method as its own affair, so building a client fails when a version of it no longer has one.
"""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any
from urllib.request import Request

from slack_sdk import WebClient, WebhookClient
from slack_sdk.webhook import WebhookResponse

from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.transport import ExchangeFailed, Reply, Transport

_AGENT = "notification-dispatcher"


class ApiClient(WebClient):
    """The Web API with a bot token. Calls raise ``SlackApiError`` and ``ExchangeFailed``."""

    def __init__(self, token: BotToken, transport: Transport, base_url: str) -> None:
        _expect_method(WebClient, "_perform_urllib_http_request_internal")
        super().__init__(token.value, base_url, retry_handlers=[], logger=_silent_logger(), user_agent_prefix=_AGENT)
        self._secret = token
        self._transport = transport

    def _perform_urllib_http_request_internal(self, url: str, req: Request) -> dict[str, Any]:
        reply = _exchange(self._transport, url, req)
        body = self._secret.mask(reply.body.decode("utf-8", "replace"))
        if reply.status == HTTPStatus.OK and not _is_json_object(body):  # the SDK stumbles over a list or null
            raise ExchangeFailed("unreadable_reply", body or "an empty body")
        return {"status": reply.status, "headers": reply.headers, "body": body}


class HookClient(WebhookClient):
    """An incoming webhook. Calls raise ``ExchangeFailed``."""

    def __init__(self, webhook: Webhook, transport: Transport) -> None:
        _expect_method(WebhookClient, "_perform_http_request_internal")
        super().__init__(webhook.url, retry_handlers=[], logger=_silent_logger(), user_agent_prefix=_AGENT)
        self._secret = webhook
        self._transport = transport

    def _perform_http_request_internal(self, url: str, req: Request) -> WebhookResponse:
        reply = _exchange(self._transport, url, req)
        body = self._secret.mask(reply.body.decode("utf-8", "replace"))
        return WebhookResponse(url="", status_code=reply.status, body=body, headers=dict(reply.headers))


def _exchange(transport: Transport, url: str, request: Request) -> Reply:
    return transport.post(url, dict(request.header_items()), request.data if isinstance(request.data, bytes) else b"")


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _silent_logger() -> logging.Logger:
    """A logger outside logging's tree: the SDK would log webhook URLs, proxies and bodies; we return values."""
    logger = logging.Logger("dispatcher.slack.vendor", logging.CRITICAL)  # noqa: LOG001 - outside the tree on purpose
    logger.disabled = True
    return logger


def _expect_method(client: type, name: str) -> None:
    if not hasattr(client, name):
        raise RuntimeError(f"this version of slack_sdk has no {client.__name__}.{name}; use 3.47")

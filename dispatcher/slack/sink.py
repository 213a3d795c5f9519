"""The Slack sink: posts finished messages and says what became of each, as values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias, assert_never
from urllib.parse import urlsplit

from dispatcher.core.posts import LeftOut, Message, Part, Paused, PostResult, Receipt, Rejected
from dispatcher.core.rendering import one_line
from dispatcher.core.states import ScanLater, ScanResult, Search
from dispatcher.slack.credentials import BotToken, Webhook, fingerprint
from dispatcher.slack.replies import MAX_SAID, CheckResult, Requests, masked
from dispatcher.slack.taxonomy import Problem, may_be_about_blocks, problem
from dispatcher.slack.transport import ExchangeFailed, Transport

SLACK_API: Final = "https://slack.com/api/"

Post: TypeAlias = Callable[[Message], PostResult]

_REMEMBERED: Final = 1_024
"""Events between a refusal of their blocks and their end."""


class SlackSink:
    """Posts through the Web API with a bot token, or through an incoming webhook.

    ``base_url`` is another Web API root than Slack's own (webhooks carry theirs). ``timeout_s`` bounds one whole
    post, whatever the network does; ``by_s`` of a call bounds it as well. ``post`` may be called by several threads
    at once; it makes a second request only after Slack has refused the first for a part that can be left out. Proxies:
    see ``Transport``. Raises ``ConfigError`` for a proxy that cannot be used. A history scan finds only posts of
    the same ``namespace``.
    """

    def __init__(
        self,
        credential: BotToken | Webhook,
        *,
        namespace: str,
        timeout_s: float,
        requests: Requests,
        base_url: str | None = None,
    ) -> None:
        self._credential = credential
        self.requests = requests
        """Where the requests are counted."""
        from dispatcher.slack.clients import WebApi, WebhookApi  # slack_sdk is slow to import and not always needed

        match credential:
            case BotToken():
                api = base_url or SLACK_API
                self._where = urlsplit(api).netloc
                self._transport = Transport(api, timeout_s)
                self._way: WebApi | WebhookApi = WebApi(credential, self._transport, api, self.requests, namespace)
            case Webhook():
                self._where = "webhook"
                self._transport = Transport(credential.url, timeout_s)
                self._way = WebhookApi(credential, self._transport, self.requests)
            case unreachable:
                assert_never(unreachable)
        self.is_webhook = isinstance(credential, Webhook)
        self.can_update = not self.is_webhook
        """Whether what was posted can be edited."""
        self._leaving_out = LeavingOut()
        self.fingerprint = fingerprint(credential, base_url or SLACK_API)
        """Tells the credential and the address from others; it stands in what a refusal of the credential comes to."""

    def __repr__(self) -> str:
        return f"<SlackSink {self._where}>"

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult:
        """What one attempt to post came to; raises nothing. A webhook posts to its own channel."""
        with self._transport.one_deadline(by_s):
            return self._signed(self._leaving_out.post(message, self._request))

    def scan(self, search: Search) -> ScanResult:
        """Which of the posts a scan of the channel's history finds, within one deadline; raises nothing.

        Through a webhook nothing can be read.
        """
        try:
            with self._transport.one_deadline():
                result = self._way.scan(search)
        except Exception as error:  # noqa: BLE001 - the contract: a history scan ends as a value, whatever went wrong
            return ScanResult({}, ScanLater("internal", self._words_of(error), reached=True))
        if isinstance(result.rest, ScanLater) and result.rest.pause is not None:
            pause = replace(result.rest.pause, fingerprint=self.fingerprint)
            return replace(result, rest=replace(result.rest, pause=pause))
        return result

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        """What one attempt came to to put ``message`` in the place of what was posted; raises nothing."""
        try:
            with self._transport.one_deadline(by_s):
                return self._signed(self._way.update(channel, ts, message))
        except Exception as error:  # noqa: BLE001 - as in _request
            return self._failed(error)

    def check(self) -> CheckResult:
        """Whether Slack accepts the credential, without posting; raises nothing."""
        try:
            return self._way.check()
        except Exception as error:  # noqa: BLE001 - as in _request
            return self._failed(error)

    def _signed(self, result: PostResult) -> PostResult:
        return replace(result, fingerprint=self.fingerprint) if isinstance(result, Paused) else result

    def _request(self, message: Message) -> PostResult:
        try:
            return self._way.post(message)
        except Exception as error:  # noqa: BLE001 - the contract: an attempt ends as a value, whatever went wrong
            return self._failed(error)

    def _failed(self, error: Exception) -> Problem:
        if isinstance(error, ExchangeFailed):
            return problem(error.code, one_line(error.detail, MAX_SAID))
        return problem("internal", self._words_of(error))

    def _words_of(self, error: Exception) -> str:
        """What a defect of ours says, without the credential."""
        return one_line(masked(f"{type(error).__name__}: {error}", self._credential.forms), MAX_SAID)


class LeavingOut:
    """Posts messages, less what was refused. May be used by several threads at once.

    When Slack refuses a part of a message, the same message follows without that part. Such a refusal is definite:
    nothing was posted, so the rest may follow at once, within the same attempt.

    That the token may not set a name and icon is remembered for as long as this lives: the scope comes only with a new
    installation of the app, and the workers are restarted after it. That an event's blocks were refused is remembered
    until the event ends: its next attempt must not begin with the same refusal, or in a channel that takes one request
    a second the text would never follow.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._no_look: LeftOut | None = None
        self._no_blocks: OrderedDict[str, LeftOut] = OrderedDict()

    def post(self, message: Message, post: Post) -> PostResult:
        """What the message came to: one request, and one more for each part that is refused.

        A rejection says what was refused before.
        """
        left_out = self._known(message)
        for each in left_out:
            message = _without(message, each.part)
        result = post(message)
        while (part := _refused(message, result)) is not None:
            message, left_out = _without(message, part.part), (*left_out, part)
            result = post(message)
        self._learn(message.event_id, left_out, result)
        return _told(result, left_out)

    def _known(self, message: Message) -> tuple[LeftOut, ...]:
        """The parts that need not be tried."""
        look = self._no_look if message.identity is not None else None
        blocks = None
        if message.blocks:
            with self._lock:
                blocks = self._no_blocks.get(message.event_id)
        return tuple(each for each in (look, blocks) if each is not None)

    def _learn(self, event_id: str, left_out: tuple[LeftOut, ...], result: PostResult) -> None:
        has_ended = isinstance(result, Receipt | Rejected)
        for each in left_out:
            if each.part is Part.IDENTITY and not (isinstance(result, Paused) and result.code == each.code):
                self._no_look = each
            if each.part is Part.BLOCKS:
                with self._lock:
                    self._no_blocks.pop(event_id, None)
                    if not has_ended:
                        self._no_blocks[event_id] = each
                    if len(self._no_blocks) > _REMEMBERED:
                        self._no_blocks.popitem(last=False)


def _refused(message: Message, result: PostResult) -> LeftOut | None:
    """The part that may be what was refused; None where there is none, or nothing was refused."""
    match result:
        case Paused("missing_scope" as code, detail) if message.identity is not None:
            return LeftOut(Part.IDENTITY, code, detail)
        case Rejected(code, detail) if message.blocks and may_be_about_blocks(code):
            return LeftOut(Part.BLOCKS, code, detail)
        case _:
            return None


def _without(message: Message, part: Part) -> Message:
    return replace(message, identity=None) if part is Part.IDENTITY else replace(message, blocks=())


def _told(result: PostResult, left_out: tuple[LeftOut, ...]) -> PostResult:
    blocks = next((each for each in left_out if each.part is Part.BLOCKS), None)
    match result:
        case Receipt() if left_out:
            return replace(result, left_out=left_out)
        case Rejected(code, detail) if blocks is not None:
            return Rejected(code, f"{detail}; before, with its blocks, {blocks.code}: {blocks.detail}")
        case _:
            return result

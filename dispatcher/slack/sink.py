"""The Slack sink: posts finished messages and says what became of each, as values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never
from uuid import UUID

from dispatcher.core.posts import LeftOut, Message, Part, Paused, PostResult, Receipt, Rejected
from dispatcher.core.rendering import one_line
from dispatcher.core.states import ScanLater, ScanResult, Search, Unreadable
from dispatcher.slack.credentials import BotToken, Webhook, checked_url, fingerprint
from dispatcher.slack.history import Answer, History, event_mark, metadata_of
from dispatcher.slack.replies import MAX_SAID, date_us, read_api_problem, read_api_reply, read_webhook_reply
from dispatcher.slack.requests import Requests
from dispatcher.slack.taxonomy import Problem, may_be_about_blocks, problem
from dispatcher.slack.transport import ExchangeFailed, Transport

if TYPE_CHECKING:
    from slack_sdk.web import SlackResponse

SLACK_API: Final = "https://slack.com/api/"

Post: TypeAlias = Callable[[Message], PostResult]

_REMEMBERED: Final = 1_024
"""Events between a refusal of their blocks and their end."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Who the token posts as, by auth.test; ``scopes`` is empty where Slack names none.

    ``date_us`` is when Slack answered, by its own clock, in whole seconds; None where the answer does not say.
    """

    team: str
    user: str
    scopes: tuple[str, ...]
    date_us: int | None = None


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Nothing can be learnt without posting: an incoming webhook has no call but the post."""


CheckResult: TypeAlias = Workspace | Unchecked | Problem


class SlackSink:
    """Posts through the Web API with a bot token, or through an incoming webhook.

    ``base_url`` is another Web API root than Slack's own (webhooks carry theirs). ``timeout_s`` bounds one whole
    post, whatever the network does, and so does ``by_s``. ``post`` may be called by several threads at once; it makes
    a second request only after Slack has refused the first for a part that can be left out. Proxies: see
    ``Transport``. Raises ``ConfigError`` for a URL or proxy that cannot be used.
    """

    def __init__(
        self,
        credential: BotToken | Webhook,
        *,
        base_url: str | None = None,
        timeout_s: float = 10.0,
        requests: Requests | None = None,
    ) -> None:
        self.requests = requests or Requests()
        """What is counted of the requests made."""
        match credential:
            case BotToken():
                self._form: _Api | _Hook = _Api(credential, base_url or SLACK_API, timeout_s, self.requests)
            case Webhook():
                self._form = _Hook(credential, timeout_s, self.requests)
            case unreachable:
                assert_never(unreachable)
        self._fallbacks = Fallbacks()
        self.fingerprint = fingerprint(credential, base_url or SLACK_API)
        """Tells the credential and the address from others; it stands in what a refusal of the credential comes to."""

    def __repr__(self) -> str:
        return f"<SlackSink {self._form.where}>"

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult:
        """What one attempt to post came to; raises nothing. A webhook posts to its own channel."""
        with self._form.transport.one_deadline(by_s):
            return self._signed(self._fallbacks.post(message, self._request))

    def scan(self, search: Search) -> ScanResult:
        """Which of the posts a scan of the channel's history finds, within one deadline; raises nothing.

        Through a webhook nothing can be read.
        """
        try:
            with self._form.transport.one_deadline():
                result = self._form.scan(search)
        except Exception as error:  # noqa: BLE001 - the contract: a history scan ends as a value, whatever went wrong
            return ScanResult({}, ScanLater("internal", f"{type(error).__name__}: {error}", reached=True))
        if isinstance(result.rest, ScanLater) and result.rest.pause is not None:
            pause = replace(result.rest.pause, fingerprint=self.fingerprint)
            return replace(result, rest=replace(result.rest, pause=pause))
        return result

    @property
    def can_update(self) -> bool:
        """Whether what was posted can be edited: not with a webhook."""
        return self._form.can_update

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        """What one attempt came to to put ``message`` in the place of what was posted; raises nothing."""
        try:
            with self._form.transport.one_deadline(by_s):
                return self._signed(self._form.update(channel, ts, message))
        except Exception as error:  # noqa: BLE001 - as in _request
            return _failed(error)

    def check(self) -> CheckResult:
        """Whether Slack accepts the credential, without posting; raises nothing."""
        try:
            return self._form.check()
        except Exception as error:  # noqa: BLE001 - as in _request
            return _failed(error)

    def _signed(self, result: PostResult) -> PostResult:
        return replace(result, fingerprint=self.fingerprint) if isinstance(result, Paused) else result

    def _request(self, message: Message) -> PostResult:
        try:
            return self._form.post(message)
        except Exception as error:  # noqa: BLE001 - the contract: an attempt ends as a value, whatever went wrong
            return _failed(error)


class Fallbacks:
    """Posts messages, less what was refused. May be used by several threads at once.

    When Slack refuses a part of a message, the same message follows without that part. Such a refusal is definite:
    nothing was posted, so the rest may follow at once, within the same attempt.

    That the token may not set a name and icon is remembered for as long as this lives: the scope comes only with a new
    installation of the app. That an event's blocks were refused is remembered until the event ends: its next attempt
    must not begin with the same refusal, or in a channel that takes one request a second the text would never follow.
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
        case Receipt():
            return replace(result, left_out=left_out)
        case Rejected(code, detail) if blocks is not None:
            return Rejected(code, f"{detail}; before, with its blocks, {blocks.code}: {blocks.detail}")
        case _:
            return result


class _Api:
    can_update: Final = True

    def __init__(self, token: BotToken, base_url: str, timeout_s: float, requests: Requests) -> None:
        from dispatcher.slack.clients import ApiClient  # slack_sdk is slow to import and not always needed

        self.where = checked_url(base_url, "DISPATCHER_SLACK_BASE_URL", SLACK_API).netloc
        self.transport = Transport(base_url, timeout_s)
        self._client = ApiClient(token, self.transport, base_url, requests)
        self._history = History(self._read)

    def post(self, message: Message) -> PostResult:
        mark = event_mark(message.event_id)
        # client_msg_id is undocumented: Slack may recognise a repeat by it, and we do not count on that.
        arguments = {
            "channel": message.channel,
            **_content(message),
            "metadata": metadata_of(mark),
            "client_msg_id": str(UUID(hex=mark)),
        }
        status, headers, data = _answer(lambda: self._client.chat_postMessage(**arguments))
        result = read_api_reply(status, headers, data, message.channel)
        if isinstance(result, Receipt):
            self._history.note(message.channel, result.channel)
        return result

    def scan(self, search: Search) -> ScanResult:
        return self._history.scan(search)

    def update(self, channel: str, ts: str, message: Message) -> PostResult:
        status, headers, data = _answer(lambda: self._client.chat_update(channel=channel, ts=ts, text=message.text))
        return read_api_reply(status, headers, data, channel)

    def check(self) -> CheckResult:
        status, headers, data = _answer(self._client.auth_test)
        if status != HTTPStatus.OK or not isinstance(data, dict) or data.get("ok") is not True:
            return read_api_problem(status, headers, data)
        scopes = (scope.strip() for scope in headers.get("x-oauth-scopes", "").split(","))
        team, user = (one_line(str(data.get(key, ""))) for key in ("team", "user"))
        return Workspace(team, user, tuple(scope for scope in scopes if scope), date_us(headers))

    def _read(self, method: str, arguments: Mapping[str, Any]) -> Answer:
        # As a form: Slack takes no JSON for what only reads.
        return _answer(lambda: self._client.api_call(method, data=dict(arguments)))


class _Hook:
    can_update: Final = False

    def __init__(self, webhook: Webhook, timeout_s: float, requests: Requests) -> None:
        from dispatcher.slack.clients import HookClient

        self.where = "webhook"
        self.transport = Transport(webhook.url, timeout_s)
        self._client = HookClient(webhook, self.transport, requests)

    def post(self, message: Message) -> PostResult:
        response = self._client.send_dict(_content(message))
        return read_webhook_reply(response.status_code, response.headers, response.body, message.channel)

    def update(self, channel: str, ts: str, message: Message) -> PostResult:
        del channel, ts, message
        return problem("unreadable_reply", "an incoming webhook cannot edit")

    def scan(self, _search: Search) -> ScanResult:
        return ScanResult({}, Unreadable("webhook", "nothing can be read through a webhook"))

    def check(self) -> CheckResult:
        return Unchecked()


def _answer(call: Callable[[], SlackResponse]) -> Answer:
    from slack_sdk.errors import SlackApiError

    try:
        response = call()
    except SlackApiError as error:  # the SDK's word for anything but success: 429, 5xx and web pages too
        response = error.response
    return response.status_code, response.headers, response.data


def _failed(error: Exception) -> Problem:
    if isinstance(error, ExchangeFailed):
        return problem(error.code, one_line(error.detail, MAX_SAID))
    # An answer nobody foresaw, or a fault of our own: "perhaps posted" is the safe side.
    return problem("unreadable_reply", type(error).__name__)


def _content(message: Message) -> dict[str, Any]:
    content: dict[str, Any] = {"text": message.text}
    if message.blocks:
        content["blocks"] = list(message.blocks)
    if message.thread_ts:
        content["thread_ts"] = message.thread_ts
    if message.identity is not None:
        content |= {name: value for name, value in asdict(message.identity).items() if value}
    return content

"""Tests that tokens, webhooks and what comes with them are shown nowhere."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator

import pytest

from dispatcher.core.posts import Receipt
from dispatcher.errors import ConfigError
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.sink import SlackSink
from dispatcher.stand_in import FaultReply, Page, Reset, SlackError, StandIn, Text, not_landed
from tests.support.slack import MESSAGE, token_sink, webhook_sink


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn() as stand_in:
        yield stand_in


@pytest.mark.parametrize("make_sink", [token_sink, webhook_sink], ids=["token", "webhook"])
def test_no_result_log_line_or_repr_holds_a_secret(
    slack: StandIn,
    make_sink: Callable[[StandIn], SlackSink],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    key = slack.webhook_url.rpartition("/")[2]
    secrets = [slack.token] if make_sink is token_sink else [slack.webhook_url, key]
    html = f"<html>nothing here for {' '.join(secrets)}</html>"
    pages: list[FaultReply] = [Page(status, html) for status in (200, 302, 403, 429, 502)]
    others: list[FaultReply] = [Text(html), SlackError(secrets[0]), SlackError("channel_not_found"), Reset()]
    slack.faults.add(*(not_landed(reply) for reply in pages + others))
    sink = make_sink(slack)
    shown = [repr(sink), str(vars(sink))]
    shown += [repr(sink.post(MESSAGE)) for _ in range(len(pages + others) + 1)]
    with slack.down():
        shown.append(repr(sink.post(MESSAGE)))
    output = capfd.readouterr()
    assert (output.out, output.err, caplog.records) == ("", "", [])
    everything = "\n".join(shown)
    assert not [secret for secret in secrets if secret in everything]
    assert "nothing here for ***" in everything


@pytest.mark.parametrize(
    "credential", [BotToken("xoxb-hunter22"), Webhook("https://hooks.slack.com/services/hunter22")]
)
def test_a_credential_shows_itself_nowhere(credential: BotToken | Webhook) -> None:
    assert "hunter22" not in f"{credential!r} {credential}"
    with pytest.raises(TypeError, match="not written anywhere"):
        pickle.dumps(credential)


@pytest.mark.parametrize(
    "value", ["", "  ", "xoxb-hunter22\nxoxb-2", "xoxb-hunter22 x", "xoxb-hünter22", '"xoxb-hunter22"']
)
def test_an_unusable_token_is_refused_without_being_shown(value: str) -> None:
    with pytest.raises(ConfigError, match="DISPATCHER_SLACK_TOKEN") as caught:
        BotToken(value)
    assert "nter22" not in str(caught.value)


def test_a_tokens_last_newline_is_taken_off(slack: StandIn) -> None:
    assert isinstance(SlackSink(BotToken(slack.token + "\n"), base_url=slack.base_url).post(MESSAGE), Receipt)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hunter22",
        "ftp://hooks.slack.com/services/hunter22",
        "https://hooks.slack.com",
        "https:///services/hunter22",
        "https://hooks.slack.com:99999/services/hunter22",
        "https://hooks.slack.com/services/hunter22 x",
        "https://u:hunter22@hooks.slack.com/services/x",
    ],
)
def test_an_unusable_webhook_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="DISPATCHER_SLACK_WEBHOOK_URL") as caught:
        Webhook(url)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["slack.com/api", "ftp://slack.com/api/", "https://", "https://[::1/api", "http://h:x/"]
)
def test_an_unusable_base_url_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match=r"DISPATCHER_SLACK_BASE_URL is .* expected a URL such as https"):
        SlackSink(BotToken("xoxb-1"), base_url=url)

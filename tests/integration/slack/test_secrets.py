"""Tests that tokens, webhooks and what comes with them are shown nowhere."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from dispatcher.core.posts import Ambiguous
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.sink import SlackSink
from dispatcher.stand_in import FaultReply, Page, Reset, SlackError, StandIn, Text, not_landed
from tests.support.slack import MESSAGE, token_sink, webhook_sink


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


@pytest.mark.parametrize("make_sink", [token_sink, webhook_sink], ids=["token", "webhook"])
def test_a_defect_of_ours_is_told_without_the_secret(slack: StandIn, make_sink: Callable[[StandIn], SlackSink]) -> None:
    secret = slack.token if make_sink is token_sink else slack.webhook_url
    has_no_json = type(secret, (), {})()
    result = make_sink(slack).post(replace(MESSAGE, blocks=({"type": has_no_json},)))
    assert isinstance(result, Ambiguous)
    assert result.code == "internal"
    assert result.detail == (
        "the dispatcher itself failed while it posted: report it to its maintainers "
        "(TypeError: Object of type *** is not JSON serializable)"
    )

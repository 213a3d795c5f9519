"""From the limits file to Slack: what a worker makes of the style of a category, and what it says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatcher.stand_in import SlackError, StandIn, not_landed
from tests.support.commands import run

LIMITS = """\
channels: {default: {pace: none}, "#paced": {pace: 100/1s}}
defaults: {channel: "#ops"}
categories:
  errors: {username: Errors, icon_emoji: ":bell:", template: "*{{ category }}* on {{ labels.host }}: {{ text }}"}
  outages: {allow_mentions: true}
"""


def told(redis_url: str, slack: StandIn, *events: dict[str, Any]) -> list[dict[str, Any]]:
    """The log of a worker that has posted these events."""
    Path("limits.yaml").write_text(LIMITS, encoding="utf-8")
    env = {
        "DISPATCHER_REDIS_URL": redis_url,
        "DISPATCHER_LIMITS_FILE": "limits.yaml",
        "DISPATCHER_SLACK_TOKEN": slack.token,
        "DISPATCHER_SLACK_BASE_URL": slack.base_url,
        "DISPATCHER_LOG_FORMAT": "json",
    }
    lines = "".join(f"{json.dumps(event)}\n" for event in events)
    assert run("send", "--stdin", stdin=lines.encode(), **env).code == 0
    worker = run("worker", "--burst", **env)
    assert worker.code == 0
    return [json.loads(line) for line in worker.err.splitlines()]


def texts(slack: StandIn) -> set[str]:
    """What landed."""
    return {posted.text for posted in slack.ledger.posted()}


@pytest.mark.usefixtures("tmp_path")
def test_a_worker_makes_the_text_by_the_template_and_says_once_that_it_fails(redis_url: str) -> None:
    labelled = [{"category": "errors", "text": "a < b", "labels": {"host": f"db{n}"}} for n in range(2)]
    bare = [{"category": "errors", "text": f"<{n}>"} for n in range(3)]
    with StandIn() as slack:
        log = told(redis_url, slack, *labelled, *bare)
    assert texts(slack) == {
        "*errors* on db0: a &lt; b", "*errors* on db1: a &lt; b", "&lt;0&gt;", "&lt;1&gt;", "&lt;2&gt;",
    }  # fmt: skip
    failed = [(line["category"], line["detail"]) for line in log if line["event"] == "template.failed"]
    assert failed == [("errors", "there is no label host")]
    assert [line["outcome"] for line in log if line["event"] == "event.settled"] == ["sent"] * 5


@pytest.mark.usefixtures("tmp_path")
def test_a_worker_posts_without_a_name_that_its_token_may_not_set_and_says_so_once(redis_url: str) -> None:
    events = [{"category": "errors", "text": str(n), "labels": {"host": "db1"}, "channel": "#paced"} for n in range(3)]
    with StandIn() as slack:
        slack.faults.add(not_landed(SlackError("missing_scope")))
        log = told(redis_url, slack, *events)
    assert texts(slack) == {f"*errors* on db1: {n}" for n in range(3)}
    assert [line["event"] for line in log if line["event"].startswith("slack.")] == ["slack.scope_missing"]
    settled = [line for line in log if line["event"] == "event.settled"]
    assert [(line["outcome"], line["left_out"], line["code"]) for line in settled] == [
        ("sent", "identity", "missing_scope")
    ] * 3


@pytest.mark.usefixtures("tmp_path")
def test_a_worker_posts_the_text_of_refused_blocks_and_the_mentions_of_allowed_categories(redis_url: str) -> None:
    header = {"type": "header", "text": {"type": "plain_text", "text": "x" * 151}}
    events = [
        {"category": "outages", "text": "<!here> down", "mrkdwn": True, "blocks": [header]},
        {"category": "deploys", "text": "<!here> live", "mrkdwn": True},
    ]
    with StandIn() as slack:
        log = told(redis_url, slack, *events)
        assert slack.workspace.posts == 3
    assert texts(slack) == {"<!here> down", "&lt;!here> live"}
    (settled,) = (line for line in log if "left_out" in line)
    assert (settled["category"], settled["left_out"], settled["code"]) == ("outages", "blocks", "invalid_blocks")
    assert "must be less than 151 characters" in settled["detail"]


@pytest.mark.usefixtures("tmp_path")
def test_events_of_one_thread_stand_under_the_first(redis_url: str) -> None:
    events = [{"category": "deploys", "text": str(n), "thread": "api", "channel": "#paced"} for n in range(3)]
    with StandIn() as slack:
        told(redis_url, slack, *events)
        first, *rest = slack.ledger.posted()
    assert (first.text, first.thread_ts) == ("0", None)
    assert [(each.text, each.thread_ts) for each in rest] == [("1", first.ts), ("2", first.ts)]


def test_a_webhook_ignores_channel_and_thread_and_the_worker_says_so_once(redis_url: str) -> None:
    event = {"category": "deploys", "text": "live", "channel": "#paced", "thread": "api"}
    with StandIn() as slack:
        env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SLACK_WEBHOOK_URL": slack.webhook_url}
        assert run("send", "--stdin", stdin=f"{json.dumps(event)}\n" * 3, **env).code == 0
        worker = run("worker", "--burst", DISPATCHER_LOG_FORMAT="json", **env)
        landed = [(posted.channel, posted.thread_ts) for posted in slack.ledger.posted()]
    assert landed == [("#webhook", None)] * 3
    warnings = [
        line["detail"] for line in map(json.loads, worker.err.splitlines()) if line["event"] == "setting.warning"
    ]
    said = (
        "a webhook posts to its own channel and names no message: channel, thread and fallback are ignored, and of the "
        "paces in the limits file that of channels.default counts"
    )
    assert warnings == [said]

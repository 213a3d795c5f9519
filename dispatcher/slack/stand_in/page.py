"""What the stand-in shows of itself: a page for people, and the same as JSON."""

from __future__ import annotations

import time
from collections import defaultdict
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from dispatcher.content import unescape
from dispatcher.slack.stand_in.ledger import Posted
from dispatcher.slack.stand_in.workspace import Workspace

NEWEST: Final = 5
"""Messages shown per channel; all are counted."""

_PAGE: Final = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def as_json(workspace: Workspace) -> dict[str, Any]:
    """The ledger and the counts, as ``GET /ledger`` answers."""
    posted = workspace.ledger.posted()
    channels: dict[str, int] = defaultdict(int)
    for message in posted:
        channels[message.channel] += 1
    return {
        "total": len(posted),
        "channels": dict(sorted(channels.items())),
        "calls": {
            "posts": workspace.posts,
            "rate_limited": workspace.rate_limited,
            "inside_retry_after": workspace.inside_retry_after,
        },
        "waits": dict(sorted(workspace.traffic.waits.items())),
        "ignored": dict(sorted(workspace.traffic.ignored.items())),
        "posted": [message.as_json() for message in posted],
    }


def render(workspace: Workspace) -> str:
    """The page: a card per channel with its newest messages. Everything posted is escaped."""
    channels: dict[str, list[Posted]] = defaultdict(list)
    for message in workspace.ledger.posted():
        channels[message.channel].append(message)
    total = sum(map(len, channels.values()))
    facts = [(total, "message", "messages"), (len(channels), "channel", "channels")]
    if workspace.rate_limited:
        facts.append((workspace.rate_limited, "call told to wait (429)", "calls told to wait (429)"))
    return _PAGE.substitute(
        facts="".join(f"<li><b>{count:,}</b> {one if count == 1 else many}</li>" for count, one, many in facts),
        cards="".join(_card(name, channels[name]) for name in sorted(channels)) or _EMPTY,
    )


_EMPTY: Final = """<section class="empty"><h2>Nothing posted yet</h2>
<p>Messages appear here as soon as they arrive. To send one:</p>
<pre>dispatcher send errors "disk full on db1"</pre></section>"""


def _card(name: str, messages: list[Posted]) -> str:
    shown = messages[: -NEWEST - 1 : -1]
    left = len(messages) - len(shown)
    more = f'<p class="more">and {left:,} earlier</p>' if left else ""
    rows = "".join(map(_row, shown))
    return (
        f'<section class="card"><h2><span title="{escape(name)}">{escape(name)}</span><b>{len(messages):,}</b></h2>'
        f"<ol>{rows}</ol>{more}</section>"
    )


def _row(message: Posted) -> str:
    arrived = time.strftime("%H:%M:%S", time.localtime(message.arrived_at))
    notes = [f"{len(message.blocks)} blocks"] if message.blocks else []
    notes += ["thread"] if message.thread_ts else []
    notes += ["webhook"] if message.via == "webhook" else []
    tags = "".join(f"<i>{note}</i>" for note in notes)
    return f"<li><time>{arrived}</time><p>{escape(unescape(message.text))}{tags}</p></li>"

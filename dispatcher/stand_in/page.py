"""What the stand-in shows of itself: a page for people, and the same as JSON."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from dispatcher.core.rendering import unescape
from dispatcher.data_files import STYLE_SHEET
from dispatcher.stand_in.drawing import drawn_blocks, drawn_text
from dispatcher.stand_in.faults import Faults
from dispatcher.stand_in.ledger import Posted
from dispatcher.stand_in.workspace import Workspace

NEWEST: Final = 5
"""Messages shown per channel, and replies per message; all are counted."""

_PAGE: Final = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
_STYLE: Final = STYLE_SHEET.read_text(encoding="utf-8")
_AUTHOR: Final = "dispatcher"


def as_json(workspace: Workspace, faults: Faults) -> dict[str, Any]:
    """The ledger and the counts, as ``GET /ledger`` answers."""
    posted = workspace.ledger.posted()
    return {
        "total": len(posted),
        "channels": workspace.ledger.per_channel(),
        "calls": {
            "posts": workspace.posts,
            "rate_limited": workspace.rate_limited,
            "inside_retry_after": workspace.inside_retry_after,
        },
        "waits": dict(sorted(workspace.traffic.waits.items())),
        "ignored": dict(sorted(workspace.traffic.ignored.items())),
        "faults": dict(sorted(faults.counts.items())),
        "posted": [message.as_json() for message in posted],
    }


def render(workspace: Workspace, faults: Faults) -> str:
    """The page: a card per channel with its newest messages, replies below theirs. Everything posted is escaped."""
    channels: dict[str, list[Posted]] = defaultdict(list)
    for message in workspace.ledger.posted():
        channels[message.channel].append(message)
    cards = [_card(name, channels[name], workspace) for name in sorted(channels)]
    return _PAGE.substitute(
        style=_STYLE,
        facts="".join(_facts(channels, workspace, faults)),
        cards="".join(cards) or _EMPTY,
        faults=_faults_card(faults),
    )


_EMPTY: Final = """<section class="empty"><h2>Nothing posted yet</h2>
<p>Messages appear here as soon as they arrive. To send one:</p>
<pre>dispatcher send errors "disk full on db1"</pre></section>"""


def _facts(channels: dict[str, list[Posted]], workspace: Workspace, faults: Faults) -> Iterator[str]:
    messages = [message for posted in channels.values() for message in posted]
    facts = [
        (len(messages), "message", "messages"),
        (len(channels), "channel", "channels"),
        (sum(message.edits for message in messages), "edit", "edits"),
        (workspace.rate_limited, "call told to wait (429)", "calls told to wait (429)"),
        (workspace.inside_retry_after, "call that did not wait", "calls that did not wait"),
        (faults.played, "fault", "faults"),
    ]
    for place, (count, one, many) in enumerate(facts):
        if count or place < 2:  # noqa: PLR2004 - the first two are always said
            yield f"<li><b>{count:,}</b> {one if count == 1 else many}</li>"


def _card(name: str, messages: list[Posted], workspace: Workspace) -> str:
    replies: dict[str, list[Posted]] = defaultdict(list)
    heads = []
    for message in messages:
        if message.thread:
            replies[message.thread].append(message)
        else:
            heads.append(message)
    rows = "".join(_row(head) + _thread(replies[head.ts]) for head in heads[: -NEWEST - 1 : -1])
    notes = [
        _more(len(heads) - NEWEST),
        _counted(workspace.traffic.waits[name], "told to wait"),
        _counted(workspace.traffic.ignored[name], "did not wait"),
    ]
    said = " · ".join(filter(None, notes))
    return (
        f'<section class="card"><h2><span title="{escape(name)}">{escape(name)}</span><b>{len(messages):,}</b></h2>'
        f"<ol>{rows}</ol>" + (f'<p class="more">{said}</p>' if said else "") + "</section>"
    )


def _thread(replies: list[Posted]) -> str:
    if not replies:
        return ""
    more = _more(len(replies) - NEWEST)
    rows = "".join(map(_row, replies[-NEWEST:]))
    return f'<li class="thread"><ol>{f"<li class=more>{more}</li>" if more else ""}{rows}</ol></li>'


def _row(message: Posted) -> str:
    author = message.username or _AUTHOR
    arrived = time.strftime("%H:%M:%S", time.localtime(message.arrived_at))
    notes = [message.icon] if message.icon and message.icon.startswith(":") else []
    notes += ["webhook"] if message.via == "webhook" else []
    notes += ["also to the channel"] if message.is_broadcast else []
    tags = "".join(f"<i>{escape(note)}</i>" for note in notes)
    if message.blocks and message.text:
        tags += f'<i class="hint" title="{escape(unescape(message.text))}">notification</i>'
    if message.edits:
        earlier = escape(" → ".join(unescape(text) for text in message.texts))
        tags += f'<i class="hint" title="{earlier}">edited{f" {message.edits} times" if message.edits > 1 else ""}</i>'
    return (
        f"<li><span class=face>{escape(author[:1].upper())}</span><div><h3>{escape(author)}<time>{arrived}</time>{tags}"
        f"</h3>{_said(message)}</div></li>"
    )


def _said(message: Posted) -> str:
    """As Slack shows it: where there are blocks the text stands in notifications alone."""
    name = f"{message.channel_id}-{message.ts}"
    return drawn_blocks(message.blocks, name) if message.blocks else drawn_text(message.text, name)


def _faults_card(faults: Faults) -> str:
    counts = sorted(faults.counts.items(), key=lambda item: (-item[1], item[0]))
    if not counts:
        return ""
    rows = "".join(f"<li><b>{count:,}</b> {escape(fault)}</li>" for fault, count in counts)
    return f'<section class="faults"><h2>Faults played</h2><ul>{rows}</ul></section>'


def _more(count: int) -> str:
    return f"and {count:,} earlier" if count > 0 else ""


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count else ""

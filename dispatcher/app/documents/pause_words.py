"""A pause of posting in words: what has happened, and what an operator is to do."""

from __future__ import annotations

from dispatcher.app.documents.instants import span
from dispatcher.core.limits import EVERYTHING
from dispatcher.core.rendering import one_line
from dispatcher.core.units import US
from dispatcher.slack.taxonomy import row_for
from dispatcher.store.snapshot import Pause, Snapshot


def pause_in_words(pause: Pause, snapshot: Snapshot) -> tuple[str, str]:
    """What stops the posts, for how long already, and why; and what to do."""
    since = span(max(0.0, (snapshot.now_us - pause.since_us) / US))
    code = one_line(pause.code)
    stops = {
        "operator": f"paused for {since} by {code}",
        "outage": f"Slack has not been reached for {since}, {code}",
        "cooldown": f"the whole workspace has been cooling down for {since}, {code}",
    }
    said, remedy = said_and_remedy(pause, is_tried=EVERYTHING not in snapshot.paused)
    return f"{stops[pause.kind]}: {said}", remedy


def said_and_remedy(pause: Pause, *, is_tried: bool = True) -> tuple[str, str]:
    """What the answer that caused the pause means, with what Slack added to it; and what to do.

    ``is_tried``: nobody has paused all posting by hand too.
    """
    row = row_for(pause.code)
    told = pause.detail or row.told
    if told.startswith(row.words):
        told = row.told + told.removeprefix(row.words)
    remedy = f"it is tried again automatically; {row.remedy}" if is_tried and pause.kind != "operator" else row.remedy
    return one_line(told), remedy

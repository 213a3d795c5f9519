"""A pause of posting in words: what has happened, and what an operator is to do."""

from __future__ import annotations

from dispatcher.app.documents.instants import span
from dispatcher.app.documents.status import said_and_remedy
from dispatcher.core.limits import EVERYTHING
from dispatcher.core.rendering import one_line
from dispatcher.core.units import US
from dispatcher.store.snapshot import Pause, Snapshot


def pause_in_words(pause: Pause, snapshot: Snapshot) -> tuple[str, str]:
    """What stops the posts, for how long already, and why; and what to do."""
    since = span(max(0.0, (snapshot.now_us - pause.since_us) / US))
    code = one_line(pause.code)
    stops = {
        "operator": f"paused for {since} by {code}",
        "outage": f"Slack is not reached for {since}, {code}",
        "cooldown": f"the whole workspace cools down for {since}, {code}",
    }
    said, remedy = said_and_remedy(pause, is_tried=EVERYTHING not in snapshot.paused)
    return f"{stops[pause.kind]}: {said}", remedy

"""Words that were given up for the field's terms do not come back, in code, scripts and pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PLACES: Final = ("dispatcher/**/*.py", "lua/**/*.lua", "docs/*.md", "README.md", "CONTRIBUTING.md")
RETIRED: Final = {
    "answered(": "translate_outages(",
    "accepted(": "translate_refusals(",
    "hurry(": "shorten_timeout(",
    "greet_server": "preflight",
    "Bond": "ParentLink",
    "Spoiled": "Undecodable",
    "TurnedAway": "Prefiltered",
    "turned_away": "prefiltered",
    "turned away": "prefiltered",
    "at the door": "by the pre-check",
    "take_ahead": "prefetch",
    "taken ahead": "prefetched",
    "Senders": "PostPool",
    "CurrentCourier": "CurrentExecutor",
    "Errand": "Task",
    "OutboxWatch": "a result",
    "doubt": "unconfirmed, or a warning",
    "doubts": "warnings",
    "doubted": "warning",
    "lone": "buffered",
    "own event": "digest message",
    "own events": "digest messages",
    "is_own(": "is_digest_message(",
    "suspect": "poison-pill candidate",
    "stray": "abandoned job",
    "strays": "abandoned",
    "orphan": "requeued event",
    "orphans": "requeued",
    "errand": "task",
    "courier": "executor",
    "spoiled": "undecodable",
    "Lookup": "HistoryScan",
    "ReadLater": "ScanLater",
    "LAST_LOOK": "LAST_SCAN",
    "TallyLook": "TallyStatus",
    "is_reading": "is_scan",
    "reading_us": "scan_wait_us",
    "unknown fate": "unknown delivery status",
}


def test_a_retired_word_stands_nowhere() -> None:
    words = "|".join(re.escape(word) if word.endswith("(") else rf"{re.escape(word)}\b" for word in RETIRED)
    pattern = re.compile(rf"\b(?:{words})")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r} is now {RETIRED[match[0]]!r}"
        for place in PLACES
        for path in sorted(ROOT.glob(place))
        for match in pattern.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []

"""Words that were given up for the field's terms do not come back, in code, scripts, tests and pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PLACES: Final = (
    "dispatcher/**/*.py",
    "tests/**/*.py",
    "benchmarks/**/*.py",
    "lua/**/*.lua",
    "docs/*.md",
    "README.md",
    "CONTRIBUTING.md",
)
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
    "CurrentCourier": "PostExecutor",
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
    spellings = (re.escape(word).replace(r"\ ", "[ _]") for word in RETIRED)
    words = "|".join(rf"\b{each}" if each.endswith(r"\(") else rf"{each}(?![a-zA-Z0-9])" for each in spellings)
    pattern = re.compile(rf"(?<![a-zA-Z0-9])(?:{words})")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for place in PLACES
        for path in sorted(ROOT.glob(place))
        if path != Path(__file__)
        for match in pattern.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "RETIRED says what each is now"

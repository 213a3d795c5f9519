"""What each view shows, as values for its template."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, Final, TypeAlias

from dispatcher.app.documents.facts import COUNTS, Shadowed, Status, window
from dispatcher.app.documents.instants import span, zone
from dispatcher.app.documents.pause_words import said_and_remedy
from dispatcher.app.documents.recent import Recent
from dispatcher.app.documents.wellness import wellness
from dispatcher.core.explain import Decision, fits_label, scope_words
from dispatcher.core.limits import EVERYTHING, Limit, Reason
from dispatcher.core.policy import EDITS, GLOBAL_SCOPE, Policy
from dispatcher.core.quiet import QUIET_PREFIX, Quiet, Span
from dispatcher.core.rendering import one_line
from dispatcher.core.silences import SILENCE_PREFIX
from dispatcher.core.transitions import UNKNOWN_CATEGORY
from dispatcher.core.units import US
from dispatcher.errors import ConfigError
from dispatcher.limiter import Usage
from dispatcher.settings.content import Content
from dispatcher.settings.describe import next_quiet_sentences, rules
from dispatcher.store.counts import MINUTE_US
from dispatcher.store.dead_letters import DeadLetter
from dispatcher.store.snapshot import Line, Snapshot
from dispatcher.store.versions import Version
from dispatcher.web.page.chart import chart
from dispatcher.web.page.looks import Look, Minute
from dispatcher.web.searching import WORK_S

VIEWS: Final = {
    "now": ("/", "Now"),
    "suppressed": ("/suppressed", "Suppressed"),
    "explain": ("/explain", "Explain"),
    "waiting": ("/waiting", "Waiting"),
    "dead": ("/dead", "Dead letters"),
    "silences": ("/silences", "Silences"),
    "limits": ("/limits", "Limits"),
    "audit": ("/audit", "Audit"),
}
"""Of each view its address and its name, in the order of the navigation."""

GROUPED_S: Final = 0.05
"""How long events are counted for a view, if they are more than ``GROUPED``; fewer are looked for for ``WORK_S``."""

GROUPED: Final = 100

_WAITS_FOR: Final = {"channel": "its turn in the channel", "paused": "the end of the pause"}
"""What the events of a line wait for that wait for no scope, by the kind of the line."""

_STOPS: Final = {
    "operator": "refused by Slack",
    "outage": "Slack is not reached",
    "cooldown": "the workspace cools down",
}
"""What stops all posting, by the kind of the pause."""

PAUSE_US: Final = 30 * 60 * US
"""What goes on without such a pause is told as one."""

_MEANINGS: Final = {
    Reason.REJECTED: "Slack refuses it",
    Reason.EXHAUSTED: "tried in vain, as often as it may be",
    Reason.EXPIRED: "waited longer than it may",
    Reason.INVALID: "no event that can be read",
    Reason.AMBIGUOUS: "perhaps posted: nobody can look it up",
    Reason.OVERFLOW: "its line was full",
    Reason.SILENCED: "silenced",
    Reason.QUIET: "came in quiet hours",
    Reason.REPEAT: "a repeat",
    Reason.RESOLVED: "what it is about was over before",
    Reason.LIMIT_GLOBAL: "over the limit of all events together",
    Reason.LIMIT_CATEGORY: "over the limit of its category",
    Reason.LIMIT_LABEL: "over the limit of one of its labels",
}
"""Why events died, in a few words."""

_MOST_CATEGORIES: Final = 100
_MOST_LINES: Final = 50
_MOST_SAID: Final = 1_000
"""Characters of a rule."""

Runs: TypeAlias = list[tuple[str, bool]]


@dataclass(frozen=True, slots=True)
class Bar:
    """How much of a limit is used: ``part`` in percent; ``alarm`` where it is full and keeps events from being sent."""

    figures: str
    part: float
    room: str
    alarm: bool
    note: str = ""


def books(snapshot: Snapshot) -> dict[str, Any]:
    """The footer: what the books say, and the zone of all times."""
    totals = snapshot.overall()
    return {
        "counts": {
            "received": totals["received"],
            **{name: totals[name] for name in ("sent", "dropped", "digested", "dead", "duplicate")},
            "parked": snapshot.parked,
            "in flight": snapshot.in_flight,
        },
        "balanced": not snapshot.imbalances(),
        "zone": zone(snapshot.now_us / US),
    }


def now(look: Look, minutes: Sequence[Minute]) -> dict[str, Any]:
    """Whether it is well, what waits, what limits are used, what is stopped."""
    status, snapshot = look.status, look.status.snapshot
    names = list(status.categories)
    shown = set(sorted(names, key=status.weights().__getitem__, reverse=True)[:_MOST_CATEGORIES])
    counts = status.counts()
    return {
        "wellness": wellness(status),
        "a_minute": {name: 60 * rate for name, rate in status.recent.rates.items() if rate},
        "together": [_bar(usage) for usage in status.together],
        "together_shadows": [_shadow(each) for each in status.shadows.get(GLOBAL_SCOPE, ())],
        "shared": None if status.shared is None else _bar(status.shared, "shared by all beside the guarantees"),
        "counts": [name for name in COUNTS if name != "duplicate"],
        "categories": [_category(status, name, counts[name]) for name in names if name in shown],
        "more_categories": len(names) - len(shown),
        "stopped": [*_stopped(snapshot), *_quiet(status.quiet)],
        "lines": _lines(snapshot),
        "workers": status.workers,
        "chart": chart(minutes),
        "snapshot": snapshot,
    }


def _category(status: Status, name: str, counts: Mapping[str, int]) -> dict[str, Any]:
    recent = status.recent.of(name)
    share = status.shares.get(name)
    bars = [_bar(usage) for usage in status.categories[name]]
    bars += [] if share is None else [_bar(share, "kept for it", alarms=False)]
    bars += [_shadow(each) for each in status.shadows.get(f"category:{name}", ())]
    return {
        "name": name,
        "counts": counts,
        "causes": recent.causes_in_words(),
        "bars": bars,
    }


def _bar(usage: Usage, note: str = "", *, alarms: bool = True) -> Bar:
    room = ""
    if usage.wait_us:
        room = "held by events that are yet to be posted" if usage.is_held else f"next in {span(usage.wait_us / US)}"
    figures = f"{usage.used:,} of {usage.limit.max:,} in {window(usage.limit)}"
    part = round(100 * min(1.0, usage.used / usage.limit.max), 1)
    return Bar(figures, part, room, alarm=alarms and bool(usage.wait_us), note=note)


def _shadow(shadowed: Shadowed) -> Bar:
    over = f"{shadowed.would_deny:,} over it" if shadowed.would_deny else ""
    return replace(_bar(shadowed.usage, "not enforced", alarms=False), room=over)


def _stopped(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """What is paused, cooling down or silenced, and until when."""
    for name, paused in sorted(snapshot.paused.items()):
        what = "All posting" if name == EVERYTHING else name
        yield {"what": what, "how": "paused", "by": paused.by, "why": paused.why, "since_us": paused.since_us}
    if snapshot.pause is not None:
        said, _ = said_and_remedy(snapshot.pause)
        yield {
            "what": "All posting", "how": _STOPS[snapshot.pause.kind], "by": snapshot.pause.code, "why": said,
            "since_us": snapshot.pause.since_us,
            "tries_us": None if EVERYTHING in snapshot.paused else max(snapshot.pause.probe_us, snapshot.now_us),
        }  # fmt: skip
    for channel, until_us in sorted(snapshot.cooldowns.items()):
        failures = snapshot.failures.get(channel)
        what, kind, how = ("Edits", "edits", "wait") if channel == EDITS else (channel, "posts", "cools down")
        why = f"no clear answer to {failures} {kind} in a row" if failures else "429"
        yield {"what": what, "how": how, "by": "Slack", "why": why, "until_us": until_us}
    if snapshot.next_scan_us is not None:
        yield {
            "what": "History scans", "how": "wait", "by": "Slack", "why": "429", "until_us": snapshot.next_scan_us,
        }  # fmt: skip
    yield from _silenced(snapshot)


def _quiet(holding: Sequence[tuple[Quiet, Span]]) -> Iterator[dict[str, Any]]:
    """The quiet hours that hold."""
    for each, span_now in holding:
        yield {
            "what": "All categories" if each.categories is None else ", ".join(each.categories),
            "how": f"quiet ({each.then})", "by": "the limits", "why": each.name,
            "since_us": span_now.since_us, "until_us": span_now.until_us,
        }  # fmt: skip


def _silenced(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """The silences that are in force, the one that ends first comes first."""
    for each in reversed(snapshot.silences_in_force):
        yield {
            "what": each.muted or str(each.matchers), "how": "silenced", "by": each.who, "why": each.why,
            "since_us": each.from_us, "until_us": each.until_us, "idle_end_us": each.idle_end_us, "id": each.id,
            "suppressed": snapshot.suppressed.get(each.id, 0),
        }  # fmt: skip


def _lines(snapshot: Snapshot) -> dict[str, Any]:
    """Each line with what it waits for; those in which most wait."""
    lines = sorted(snapshot.lines.items(), key=lambda item: (-item[1].waiting, item[0]))
    rows = [_line(snapshot, *each) for each in lines]
    return {
        "rows": rows[:_MOST_LINES],
        "more": max(0, len(rows) - _MOST_LINES),
        "elsewhere": snapshot.more_deferred + snapshot.more_for_channels,
    }


def _line(snapshot: Snapshot, line_name: str, line: Line) -> dict[str, Any]:
    kind, _, _ = line_name.partition(":")
    next_us, waits_for = line.next_us, _awaited(line.scope) if line.scope else _WAITS_FOR.get(kind, "its turn")
    is_due = line.scope is None or (next_us or 0) <= snapshot.now_us
    if kind != "paused" and snapshot.is_stopped and is_due:
        next_us, waits_for = None, "posting to go on"
    said = _line_in_words(line_name)
    return {"key": line_name, "name": said, "waiting": line.waiting, "next_us": next_us, "waits_for": waits_for}


def _line_in_words(line_name: str) -> str:
    """As ``dispatcher status`` calls the line."""
    kind, _, name = line_name.partition(":")
    if kind == "channel":
        return "(edits)" if name == EDITS else name
    if kind == "paused":
        return f"{name} (paused)"
    held = " (quiet)" if line_name.startswith(QUIET_PREFIX) else ""
    return line_name.removeprefix(QUIET_PREFIX).removeprefix("category:").removeprefix("label:") + held


def _awaited(scope: str) -> str:
    kind, _, name = f"{scope}:".partition(":")
    ends = {SILENCE_PREFIX: "silence", QUIET_PREFIX: "quiet hours"}
    if what := ends.get(f"{kind}:"):
        return f"the end of {what} {name.removesuffix(':')}"
    return f"room in the limit of {scope_words(scope)}"


def waiting(snapshot: Snapshot) -> dict[str, Any]:
    """What waits, and in which lines."""
    return {
        "lines": _lines(snapshot),
        "on_lanes": snapshot.waiting,
        "in_flight": snapshot.in_flight,
        "parked": snapshot.parked,
        "scheduled": snapshot.scheduled,
    }


@dataclass(slots=True)
class Cause:
    """What one limit, or something else, did to one category, without a pause of ``PAUSE_US``; and how much earlier."""

    newest: Decision
    since_us: int
    count: int = 0
    earlier: int = 0

    @property
    def by(self) -> str:
        """What suppressed the events."""
        told, limit = self.newest, Limit.parse(self.newest.limit) if self.newest.limit else None
        if told.reason == Reason.OVERFLOW:  # the limit has only refused it a place before
            return _MEANINGS[Reason.OVERFLOW]
        if told.reason == Reason.REPEAT and limit is not None:
            return f"repeats: one in {window(limit)} is posted"
        if limit is not None:
            return f"the limit of {scope_words(told.scope or '')}, {limit.max:,} in {window(limit)}"
        if told.reason == Reason.SILENCED:
            return f"silenced {told.detail or ''}".strip()
        if told.reason == Reason.QUIET:
            return f"quiet hours {told.detail or ''}".strip()
        return told.reason

    def note(self, decision: Decision) -> None:
        """An earlier one."""
        if self.earlier or self.since_us - decision.at_us > PAUSE_US:
            self.earlier += 1
        else:
            self.count += 1
            self.since_us = decision.at_us


def causes(
    decisions: Iterator[Decision], most: int, matches: Callable[[Decision], bool] = lambda _: True
) -> tuple[list[Cause], list[Decision], bool]:
    """Who is suppressed by which limit, those first that were last; the newest ones; whether all were counted."""
    begin_s, count = time.monotonic(), 0
    found: dict[tuple[str | None, ...], Cause] = {}
    newest: list[Decision] = []
    for place, each in enumerate(decisions):
        if place % 100 == 0 and _is_over(begin_s, count):
            return list(found.values()), newest, False
        if not matches(each):
            continue
        count += 1
        if count <= most:
            newest.append(each)
        key = (each.category, each.outcome, each.reason, *_what_suppressed(each))
        found.setdefault(key, Cause(each, each.at_us)).note(each)
    return list(found.values()), newest, True


def _is_over(begin_s: float, count: int) -> bool:
    """Whether so many events were counted, or looked for, for long enough."""
    return time.monotonic() > begin_s + (GROUPED_S if count > GROUPED else WORK_S)


def _what_suppressed(decision: Decision) -> tuple[str | None, ...]:
    """What tells one cause of a reason from another."""
    if decision.reason == Reason.OVERFLOW:
        return ()
    about = (decision.limit,) if decision.reason == Reason.REPEAT else (decision.scope, decision.limit)
    return (*about, None if decision.limit else decision.detail)


def by_books(causes: Sequence[Cause], recent: Recent, now_us: int) -> None:
    """Where not all decisions could be counted, the minutes of the books say since when: 30 minutes ago at most."""
    for cause in causes:
        told = cause.newest
        ago = recent.of(told.category or "").begun.get((told.outcome, told.reason))
        if ago is not None:
            cause.since_us = min(cause.since_us, (now_us // MINUTE_US - ago) * MINUTE_US)


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters of one reason and code, with the newest of them.

    ``has_filter``: no other group that was counted has what a filter can say of this one.
    """

    reason: str
    code: str | None
    count: int
    newest: DeadLetter
    has_filter: bool = True

    @property
    def meaning(self) -> str:
        """The reason in a few words; empty where it is not known."""
        if self.code == UNKNOWN_CATEGORY:
            return "the limits do not accept its category"
        return _MEANINGS.get(Reason(self.reason), "") if self.reason in set(Reason) else ""


def groups(pages: Iterator[list[DeadLetter]], most: int) -> tuple[list[Group], list[DeadLetter], int, bool]:
    """The groups, the newest first; the newest letters; how many were counted; whether these are all."""
    begin_s = time.monotonic()
    counts: Counter[tuple[str, str | None]] = Counter()
    newest: dict[tuple[str, str | None], DeadLetter] = {}
    letters: list[DeadLetter] = []
    is_all = True
    for page in pages:
        for letter in page:
            key = (letter.reason, letter.code)
            counts[key] += 1
            newest.setdefault(key, letter)
        letters += page[: most - len(letters)]
        if _is_over(begin_s, counts.total()):
            is_all = False
            break
    coded = {reason for reason, code in counts if code}
    found = [Group(*key, count, newest[key], bool(key[1]) or key[0] not in coded) for key, count in counts.items()]
    return found, letters, counts.total(), is_all


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule in words: what it is about, and what it says of that."""

    about: str
    said: Sequence[str]


def rules_of(policy: Policy, now_us: int, category: str | None) -> list[Rule]:
    """All rules, or those that an event of the category follows."""
    found = rules(policy, () if category is None else (category,))
    if category is not None:
        quiet = {
            f"quiet {each.name}" for each in policy.quiet if each.categories is None or category in each.categories
        }
        own = f"category {category}"
        found = {
            about: said
            for about, said in found.items()
            if about in {"global", own, *quiet} or about.startswith(f"{own}, route ")
        }
    spans = next_quiet_sentences(policy, now_us)
    return [_rule(sentence, spans) for sentence in found.values()]


def _rule(sentence: str, spans: Sequence[str]) -> Rule:
    about, _, said = sentence.removesuffix(".").partition(": ")
    more = [span.removesuffix(".").partition(": ")[2] for span in spans if span.startswith(f"{about}: ")]
    return Rule(about, [*said.split("; "), *more])


def limits(look: Look, kept: Sequence[Version], number: int | None, category: str | None) -> dict[str, Any]:
    """The rules in force in words, the versions, and what the newest, or a chosen one, changed."""
    versions = list(kept)
    if number is None and versions:
        number = versions[0].number
    chosen = next((each for each in versions if each.number == number), None)
    before = next((each for each in versions if chosen is not None and each.number < chosen.number), None)
    return {
        "rules": rules_of(look.limits.policy, look.status.snapshot.now_us, category),
        "category": category,
        "version": look.limits.version,
        "file": str(look.limits.path),
        "versions": versions,
        "number": number,
        "chosen": chosen,
        "before": before,
        "changes": () if chosen is None or before is None else compared(_content(before), _content(chosen)),
    }


@lru_cache(maxsize=8)  # a viewer asks for the same ones every two seconds, and large files take seconds to read
def compared(before: Content, after: Content) -> Sequence[tuple[Runs, Runs]] | None:
    """The rules that read differently, before and after; None where one of both cannot be read, as of a newer program.

    Each is in pieces, which say whether the other has something else there.
    """
    from dispatcher.settings.differences import changes

    try:
        found = changes(before, after)
    except ConfigError:
        return None
    return [(_runs(each.was, each.will_be), _runs(each.will_be, each.was)) for each in found]


def _runs(said: str | None, other: str | None) -> Runs:
    """A sentence in pieces, each with whether the ``other`` sentence says something else there."""
    words, others = (one_line(text or "", _MOST_SAID).split() for text in (said, other))
    found, at = [], 0
    for block in SequenceMatcher(None, words, others, autojunk=False).get_matching_blocks():
        end = block.a + block.size
        found += [(" ".join(words[at : block.a]), other is not None), (" ".join(words[block.a : end]), False)]
        at = end
    return [(text, is_new) for text, is_new in found if text]


def _content(version: Version) -> Content:
    return Content(version.content, version.digest, version.source)


def facts_of(explained: Mapping[str, Any]) -> dict[str, Any]:
    """What of an explanation stands in its table; what is not known is left out."""
    scope = "Waits for" if explained["outcome"] == "parked" else "Refused by"
    names = {
        "state": "State", "outcome": "Outcome", "reason": "Reason", "category": "Category", "channel": "Channel",
        "scope": scope, "limit": "Limit", "used": "Used", "place": "Place in line", "before": "Before it",
        "attempts": "Attempts", "replays": "Replays", "worker": "Worker", "code": "Code", "detail": "Detail",
        "ts": "Message", "job_id": "Id on the queue",
    }  # fmt: skip
    return {said: explained[name] for name, said in names.items() if explained.get(name) not in {None, "", 0}}


def instants_of(explained: Mapping[str, Any]) -> dict[str, float]:
    """The instants of an explanation in microseconds, those that are known."""
    names = {"first_seen": "First seen", "at": "Ended", "next_at": "Goes on", "expected_at": "Expected"}
    found = {said: explained[name] * US for name, said in names.items() if explained.get(name)}
    fits_at = explained.get("fits_at")
    if fits_at:
        at_us, fits_at_us = round((explained["at"] or 0) * US), round(fits_at * US)
        label = fits_label(explained["reason"] or "", explained["limit"], at_us, fits_at_us)
        found |= {} if label is None else {label: fits_at * US}
    return found

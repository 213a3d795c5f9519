"""A status, and the use of the limits, as JSON has them; instants are seconds since 1970."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dispatcher.app.documents.facts import SILENCE, Shadowed, Status, untold
from dispatcher.app.documents.pause_words import said_and_remedy
from dispatcher.app.documents.silences import silence_document
from dispatcher.app.limits import LoadedLimits, compare_own_file
from dispatcher.core.limits import EVERYTHING
from dispatcher.core.policy import EDITS, GLOBAL_SCOPE, CategoryRule, Policy
from dispatcher.core.silences import Silence
from dispatcher.core.units import CATEGORY, US
from dispatcher.limiter import Usage
from dispatcher.settings.plain import AnySettings
from dispatcher.store.snapshot import Snapshot


def status_document(status: Status) -> dict[str, Any]:
    """The status as JSON has it; instants are seconds since 1970."""
    snapshot, counts = status.snapshot, status.counts()
    return {
        "now": snapshot.now_us / US,
        "writes_refused": None if status.refusal is None else status.refusal.said,
        "queue": {"waiting": snapshot.waiting, "in_flight": snapshot.in_flight, "parked": snapshot.parked},
        "dead_letters": snapshot.dead_letters,
        "totals": snapshot.overall(),
        "categories": {
            name: {
                **counts[name],
                "last_30m": status.recent.of(name).document(),
                "limits": _category_documents(status, name),
            }
            for name in status.categories
        },
        "last_30m": status.recent.together().document(),
        "rates": {"over_s": status.recent.over_s, **status.recent.rates},
        "global": {"limits": _global_documents(status)},
        "lines": [
            {
                "scope": name,
                "waiting": line.waiting,
                "next": None if line.next_us is None else line.next_us / US,
                **({} if line.scope is None else {"waits_for": line.scope}),
            }
            for name, line in sorted(snapshot.lines.items())
        ],
        "in_other_lines": {"deferred": snapshot.more_deferred, "for_channels": snapshot.more_for_channels},
        "suppressed": [
            {
                "category": None if each.telling == SILENCE else each.name,
                "silence": each.name if each.telling == SILENCE else None,
                "told_by": each.telling,
                "count": each.count,
                "since": each.since_us / US,
            }
            for each in untold(snapshot)
        ],
        "timers": {
            "waiting": snapshot.timers - snapshot.tallies_at("timer"),
            "next": None if snapshot.next_timer_us is None else snapshot.next_timer_us / US,
        },
        "scheduled": {
            "waiting": snapshot.scheduled,
            "next": None if snapshot.next_scheduled_us is None else snapshot.next_scheduled_us / US,
        },
        "cooldowns": [{"scope": scope, "until": until / US} for scope, until in _cooldowns(snapshot)],
        "paused": _paused(snapshot),
        "paused_categories": [
            {"category": name, "by": by_hand.by, "why": by_hand.why, "since": by_hand.since_us / US}
            for name, by_hand in sorted(snapshot.paused.items())
            if name != EVERYTHING
        ],
        "muted": [
            {
                "category": category,
                "until": each.until_us / US,
                "ends": each.ends_us / US,
                "why": each.why,
                "who": each.who,
                "since": each.from_us / US,
            }
            for category, each in mutes_of(snapshot)
        ],
        "silences": [
            silence_document(each, snapshot.suppressed.get(each.id, 0)) for each in reversed(snapshot.silences_in_force)
        ],
        "quiet": [
            {
                "name": quiet.name,
                "since": span.since_us / US,
                "until": None if span.until_us is None else span.until_us / US,
                "then": quiet.then.value,
                "categories": None if quiet.categories is None else list(quiet.categories),
            }
            for quiet, span in status.quiet
        ],
        "workers": [
            {
                "name": each.name,
                "host": each.host,
                "pid": each.pid,
                "last_heartbeat": each.last_heartbeat,
                "state": each.state,
                "alive": each.alive,
            }
            for each in status.workers
        ],
    }


def mutes_of(snapshot: Snapshot) -> list[tuple[str, Silence]]:
    """The categories that are muted, with the mute that ends last."""
    found: dict[str, Silence] = {}
    for each in snapshot.silences_in_force:  # the one that ends last comes first
        if each.muted is not None:
            found.setdefault(each.muted, each)
    return sorted(found.items())


def _global_documents(status: Status) -> list[dict[str, Any]]:
    """The use of the limits of all events together, and of what the guarantees leave, as JSON has it."""
    used = [(GLOBAL_SCOPE, usage) for usage in status.together]
    used += [] if status.shared is None else [("shared", status.shared)]
    return [
        *(_limit_document(*each) for each in used),
        *_shadow_documents("global", status.shadows.get(GLOBAL_SCOPE, ())),
    ]


def _category_documents(status: Status, name: str) -> list[dict[str, Any]]:
    """The use of a category's limits, and of what is kept for it, as JSON has it."""
    used = [(f"category:{name}", usage) for usage in status.categories[name]]
    used += [(f"guarantee:{name}", status.shares[name])] if name in status.shares else []
    scope = f"category:{name}"
    return [*(_limit_document(*each) for each in used), *_shadow_documents(scope, status.shadows.get(scope, ()))]


def _shadow_documents(scope: str, shadows: Sequence[Shadowed]) -> Iterator[dict[str, Any]]:
    for each in shadows:
        yield {**_limit_document(scope, each.usage), "shadow": True, "would_deny": each.would_deny}


def _limit_document(scope: str, usage: Usage) -> dict[str, Any]:
    limit = usage.limit
    window_s = limit.window_us / US
    return {
        "scope": scope,
        "max": limit.max,
        "window_s": int(window_s) if window_s.is_integer() else window_s,
        "kind": limit.kind.value,
        "used": usage.used,
        "next_free_s": usage.wait_us / US,
    }


def _cooldowns(snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    """Scopes that cool down, each with its end: channels, the edits together, and the history scans together."""
    for channel, until_us in sorted(snapshot.cooldowns.items()):
        yield EDITS if channel == EDITS else f"channel:{channel}", until_us
    if snapshot.next_scan_us is not None:
        yield "history-scans", snapshot.next_scan_us


def _paused(snapshot: Snapshot) -> dict[str, Any] | None:
    """Why nobody posts: by hand, or by what Slack answered; by hand wins, for then nobody tries."""
    by_hand, pause = snapshot.paused.get(EVERYTHING), snapshot.pause
    if by_hand is not None:
        said = f"paused by {by_hand.by}" + (f": {by_hand.why}" if by_hand.why else "")
        facts = {"kind": "hand", "code": "paused_by_hand", "detail": said, "remedy": "dispatcher resume"}
        return {**facts, "since": by_hand.since_us / US, "next_try": None}
    if pause is None:
        return None
    facts = {"kind": pause.kind, "code": pause.code, "detail": pause.detail, "remedy": said_and_remedy(pause)[1]}
    return {**facts, "since": pause.since_us / US, "next_try": pause.probe_us / US}


def limits_document(settings: AnySettings, limits: LoadedLimits) -> dict[str, Any]:
    """Which limits are looked at, as JSON has it.

    ``file`` is the operator's own, or before any version the one that is read; ``same_as_file`` is null where there are
    not both a version and a file without faults.
    """
    version = limits.version
    if version is None:
        return {"version": None, "file": str(limits.path), "same_as_file": None, "by": None, "from": None}
    own = compare_own_file(settings, version)
    return {
        "version": version.number,
        "file": own and str(own.path),
        "same_as_file": own and own.is_same,
        "by": version.by,
        "from": version.file,
    }


def use_document(status: Status, policy: Policy) -> dict[str, Any]:
    """The use of the limits as JSON has it; ``in_file`` says whether the category is named there."""
    return {
        "global": {"limits": _global_documents(status)},
        "categories": {
            name: {
                "in_file": policy.knows(name),
                "on_limit": policy.rule(name).on_limit.value,
                "channel": policy.rule(name).channel,
                "routes": _routes(policy.rule(name)),
                "fallback": policy.rule(name).fallback,
                "limits": _category_documents(status, name),
                "per_label": _per_label(policy.rule(name)),
            }
            for name in status.categories
            if CATEGORY.fullmatch(name)
        },
        "unknown_categories": "reject" if policy.reject_unknown else "accept",
        "defaults": {
            "on_limit": policy.defaults.on_limit.value,
            "channel": policy.defaults.channel,
            "routes": _routes(policy.defaults),
            "fallback": policy.defaults.fallback,
            "limits": [str(limit) for limit in policy.defaults.limits],
            "per_label": _per_label(policy.defaults),
        },
    }


def _routes(rule: CategoryRule) -> list[dict[str, str]]:
    return [{"match": str(route.matchers), "channel": route.channel} for route in rule.routes]


def _per_label(rule: CategoryRule) -> dict[str, list[str]]:
    """The limits by label; those that are not enforced end in ``shadow``."""
    labels = dict.fromkeys((*rule.per_label, *rule.label_shadows))
    return {
        label: [
            *(str(limit) for limit in rule.per_label.get(label, ())),
            *(f"{limit} shadow" for limit in rule.label_shadows.get(label, ())),
        ]
        for label in labels
    }

"""What a limits file says that is allowed but hardly meant: each a warning with its reason and place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from dispatcher.core.limits import Kind, Limit
from dispatcher.core.matchers import Matchers, parse_matchers
from dispatcher.core.once import BY_KEY, BY_TEXT
from dispatcher.core.policy import OnLimit, Policy
from dispatcher.core.units import US, format_duration
from dispatcher.settings.cross_checks import rule_sections
from dispatcher.settings.limits_schema import LimitsFile, RuleSection
from dispatcher.settings.limits_values import Shadow, enforced
from dispatcher.settings.redaction import did_you_mean, redacted
from dispatcher.settings.yaml_tree import Path, Position, Problem, Tree, shown_path

_TRUTH_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off"})
_FIELDS: Final = frozenset({BY_KEY, BY_TEXT, "category", "priority"})
_COMMENTED_CHANNEL: Final = re.compile(r"\s*(#(?!default:)[\w-]+):(?:\s|$)")
_HELD_SLOTS_COUNT_FROM_US: Final = 60 * US
"""Shorter windows skip the slots that admitted events hold while they wait."""


def warnings_of(file: LimitsFile, policy: Policy, tree: Tree) -> list[Problem]:
    """Every warning about a file without faults; ``policy`` is what the file says."""
    return [
        *_empty_file(tree),
        *_truth_words(file, tree),
        *_commented_channels(tree),
        *_windows_that_never_bind(file, tree),
        *_guarantees_out_of_reach(policy, tree),
        *_late_digests(file, policy, tree),
        *_labels_named_as_fields(file, policy, tree),
        *_two_icons(file, policy, tree),
        *_routes_that_never_match(file, policy, tree),
        *_quiet_for_nobody(policy, tree),
    ]


def implies(first: Limit, second: Limit) -> bool:
    """Whether ``second`` can never deny what ``first`` admits.

    A window of W is covered by ceil(W / w) windows of w, so it holds at most ceil(W / w) times as many; by one more
    where those of w stand at the clock's marks and W does not begin at one. Not so where ``second`` counts held slots
    and ``first`` does not see them.
    """
    if _counts_held(second) and not _counts_held(first):
        return False
    windows = -(-second.window_us // first.window_us)
    aligned = second.kind is Kind.FIXED and second.window_us % first.window_us == 0
    if first.kind is Kind.FIXED and not aligned:
        windows += 1
    return first.max * windows <= second.max


def _counts_held(limit: Limit) -> bool:
    return limit.kind is Kind.FIXED or limit.window_us >= _HELD_SLOTS_COUNT_FROM_US


def _empty_file(tree: Tree) -> Iterator[Problem]:
    if tree.data is None:
        yield Problem(Position(1, 1), "", "the file is empty, the built-in defaults hold")


def _truth_words(file: LimitsFile, tree: Tree) -> Iterator[Problem]:
    for name in file.categories:
        path: Path = ("categories", name)
        if name.lower() in _TRUTH_WORDS and path in tree.bare_keys:
            said = f'read as the category named "{name}"; if that is meant, write it in quotes'
            yield Problem(tree.keys[path], shown_path(path), said)


def _commented_channels(tree: Tree) -> Iterator[Problem]:
    """Lines such as ``#ops: {pace: 1/1s}`` below ``channels``: to YAML a comment, so that no pace is set."""
    if ("channels",) not in tree.keys:
        return
    first = tree.keys["channels",].line
    sections = [at.line for path, at in tree.keys.items() if len(path) == 1]
    end = min((line for line in sections if line > first), default=len(tree.lines) + 1)
    for number in range(first + 1, end):
        if name := _COMMENTED_CHANNEL.match(tree.lines[number - 1]):
            said = f'{name[1]} is a comment here and sets nothing; if meant, write "{name[1]}" in quotes'
            yield Problem(Position(number, name.start(1) + 1), "channels", said)


def _windows_that_never_bind(file: LimitsFile, tree: Tree) -> Iterator[Problem]:
    everywhere = [("global.limits", limit) for limit in enforced(file.global_.limits)]
    yield from _never_bind(("global", "limits"), file.global_.limits, [], tree)
    yield from _never_bind(("defaults", "limits"), file.defaults.limits, everywhere, tree)
    beside = [*everywhere, *(("defaults.limits", limit) for limit in enforced(file.defaults.limits))]
    heirs = (each.model_fields_set for each in file.categories.values() if "per_label" not in each.model_fields_set)
    others = everywhere if any("limits" in written for written in heirs) else beside
    yield from _labels_that_never_bind(("defaults",), file.defaults, others, tree)
    for name, section in file.categories.items():
        others = beside
        if "limits" in section.model_fields_set:
            yield from _never_bind(("categories", name, "limits"), section.limits, everywhere, tree)
            own = shown_path(("categories", name, "limits"))
            others = [*everywhere, *((own, limit) for limit in enforced(section.limits))]
        yield from _labels_that_never_bind(("categories", name), section, others, tree)


def _labels_that_never_bind(
    where: Path, section: RuleSection, others: list[tuple[str, Limit]], tree: Tree
) -> Iterator[Problem]:
    """Limits for each value of a label that one of these, or one for the same label, makes idle."""
    for label, limits in section.per_label.items():
        yield from _never_bind((*where, "per_label", label), limits, others, tree)


def _guarantees_out_of_reach(policy: Policy, tree: Tree) -> Iterator[Problem]:
    """Guarantees larger than what the category's own limits ever admit in that window."""
    longest = policy.longest_global
    others = [limit for limit in policy.global_limits if limit is not longest]
    for name, rule in policy.categories.items():
        if longest is None or not rule.guarantee:
            continue
        path: Path = ("categories", name, "guarantee")
        shared = longest.max - policy.guaranteed
        if idle := [other for other in others if shared and implies(other, replace(longest, max=shared))]:
            said = (
                f"{rule.guarantee} has no effect: {shared} of {longest} are left for all, and {idle[0]} allows no more"
            )
            yield tree.problem(path, said)
        if rule.guarantee == 1:
            continue
        less = replace(longest, max=rule.guarantee - 1)
        for limit in rule.limits:
            if implies(limit, less):
                said = f"{rule.guarantee} can never be used up, since the category's own limit is {limit}"
                yield tree.problem(path, said)


def _late_digests(file: LimitsFile, policy: Policy, tree: Tree) -> Iterator[Problem]:
    """Digests that collect for so long that a single suppressed event, which waits for the end, is too old by then."""
    for where, section, rule in rule_sections(file, policy):
        key = next((key for key in ("digest_delay", "max_age", "on_limit") if key in section.model_fields_set), None)
        if key is not None and rule.on_limit is OnLimit.DIGEST and rule.digest_delay_us >= rule.max_age_us:
            at: Path = (*where, key)
            delay, age = format_duration(rule.digest_delay_us), format_duration(rule.max_age_us)
            said = (
                f"a single suppressed event waits for the digest_delay of {delay}; its max_age of {age} ends it before"
            )
            yield tree.problem(at, said)


def _labels_named_as_fields(file: LimitsFile, policy: Policy, tree: Tree) -> Iterator[Problem]:
    """Labels of ``once.by`` with the name of a field of the event, which is hardly a label."""
    for where, section, _ in rule_sections(file, policy):
        if section.once is None or isinstance(section.once.by, str):
            continue
        for item, label in enumerate(section.once.by):
            if label in _FIELDS and (at := (*where, "once", "by", item)) in tree.values:
                hint = f"; did you mean by: {label}?" if label in (BY_KEY, BY_TEXT) else ""
                said = f"names a label, not the {label} of the event{hint}"
                yield tree.problem(at, said)


def _two_icons(file: LimitsFile, policy: Policy, tree: Tree) -> Iterator[Problem]:
    """Of two icons in one place, Slack shows the emoji."""
    for where, section, _ in rule_sections(file, policy):
        if section.icon_emoji and section.icon_url:
            path = (*where, "icon_url")
            yield tree.problem(path, "the image is not shown, since icon_emoji stands beside it")


def _routes_that_never_match(file: LimitsFile, policy: Policy, tree: Tree) -> Iterator[Problem]:
    """Routes whose matchers contradict each other or their category, or to which an earlier route leaves nothing."""
    for path, section, asked in _routed(file, policy):
        for number, route in enumerate(section.routes):
            here = asked(route.match)
            earlier = (before for before in range(number) if section.routes[before].match.covers(here))
            if empty := [each for each in route.match.texts if parse_matchers([each]).matches_nothing]:
                why = f"{redacted(empty[0])} refuses every value"
            elif route.match.matches_nothing:
                why = "its matchers contradict each other"
            elif here.matches_nothing:
                why = "it names other categories than those whose events ask it"
            elif (first := next(earlier, None)) is not None:
                why = f"routes[{first}] matches all of its events"
            else:
                continue
            at: Path = (*path, "routes", number, "match")
            yield tree.problem(at, f"{redacted(str(route.match))} can never match, since {why}")


def _routed(file: LimitsFile, policy: Policy) -> Iterator[tuple[Path, RuleSection, Callable[[Matchers], Matchers]]]:
    """The sections that have routes of their own, and their matchers for only the events that ask them."""
    own = [name for name, section in file.categories.items() if "routes" in section.model_fields_set]
    if policy.reject_unknown:
        heirs = [name for name in file.categories if name not in own]
        yield ("defaults",), file.defaults, lambda matchers: matchers.only_of(heirs)
    else:
        yield ("defaults",), file.defaults, lambda matchers: matchers.only_of(own, negated=True)
    for name in own:
        yield ("categories", name), file.categories[name], partial(Matchers.only_of, categories=[name])


def _quiet_for_nobody(policy: Policy, tree: Tree) -> Iterator[Problem]:
    """Quiet hours that exempt all events, and those for categories that no event has, or that may be misspelt."""
    for each in policy.quiet:
        path: Path = ("quiet", each.name)
        if any(Matchers((matcher,)).matches_everything for matcher in each.unless):
            at = (*path, "unless")
            yield tree.problem(at, "exempts every event, so these hours hold for none")
        for name in each.categories or ():
            hint = "" if policy.knows(name) else did_you_mean(name, policy.categories)
            if hint or (policy.reject_unknown and not policy.knows(name)):
                at = (*path, "categories")
                yield tree.problem(at, f"{redacted(name)} is not among the categories{hint}")


def _never_bind(
    at: Path, limits: tuple[Limit | Shadow, ...], others: Iterable[tuple[str, Limit]], tree: Tree
) -> Iterator[Problem]:
    """Limits of one list that another limit makes idle; only those that stand in the file. A shadow limit never is."""
    candidates = [*others, *((shown_path(at), limit) for limit in enforced(limits))]
    for item, limit in enumerate(limits):
        path: Path = (*at, item)
        if path not in tree.values or not isinstance(limit, Limit):
            continue
        for name, other in candidates:
            if other is not limit and implies(other, limit):
                said = f"{limit} can never bind, since {name} allows no more than {other}"
                yield tree.problem(path, said)
                break

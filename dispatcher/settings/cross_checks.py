"""What a limits file asks for that cannot be: guarantees that do not fit, a digest that leaves no room for events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dispatcher.core.limits import longest_of
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from dispatcher.core.quiet import Quiet, QuietThen, longest_us
from dispatcher.core.tally import Telling
from dispatcher.core.units import format_duration
from dispatcher.settings.limits_schema import LimitsFile, RuleSection
from dispatcher.settings.limits_values import REJECT
from dispatcher.settings.yaml_tree import Path, Problem, Tree

_FROM_US: Final = 1_767_225_600_000_000
"""2026 in microseconds: a year in which the clocks of every zone are looked at, so that a file once right stays so."""


def impossible_sums(file: LimitsFile, policy: Policy, tree: Tree) -> list[Problem]:
    """Every fault of the file as a whole, each value by itself being sound; ``policy`` is what the file says."""
    return [
        *_guarantees(file, policy, tree),
        *_tellings(file, policy, tree),
        *_quiet(policy, tree),
    ]


def rule_sections(file: LimitsFile, policy: Policy) -> list[tuple[Path, RuleSection, CategoryRule]]:
    """The mappings that may say what holds for a category, where they stand, and what holds there."""
    named = file.categories.items()
    return [
        (("defaults",), file.defaults, policy.defaults),
        *((("categories", name), section, policy.rule(name)) for name, section in named),
    ]


def _tellings(file: LimitsFile, policy: Policy, tree: Tree) -> Iterator[Problem]:
    """A digest or a notice takes one slot of the longest window, so there has to be another one."""
    for path, section, rule in rule_sections(file, policy):
        written = section.model_fields_set
        key = next((key for key in ("on_limit", "notice", "limits") if key in written), None)
        longest = longest_of(rule.limits)
        if {"on_limit", "notice"} <= written and section.notice and section.on_limit is OnLimit.DIGEST:
            at: Path = (*path, "notice")
            said = "true, but a digest tells of what is suppressed already; expected one of the two"
            yield tree.problem(at, said)
        if key is None or rule.telling is None or longest is None or longest.max > 1:
            continue
        at = (*path, "notice" if rule.telling is Telling.NOTICE and "notice" in written else key)
        said = (
            f"a {rule.telling} takes one message of the longest window, and {longest} leaves none for events; "
            "expected a limit of at least 2"
        )
        yield tree.problem(at, said)


def _quiet(policy: Policy, tree: Tree) -> Iterator[Problem]:
    """Quiet hours that never end, alone or together, and those that let events wait for longer than these may."""
    alone = [each for each in policy.quiet if longest_us([each], _FROM_US) is None]
    for each in alone:
        yield _never_end(each, tree)
    ending = [each for each in policy.quiet if each not in alone]
    named = {*policy.categories, *(name for each in ending for name in each.categories or ())}
    held = {name: (policy.rule(name), [each for each in ending if each.is_for(name)]) for name in sorted(named)}
    if not policy.reject_unknown:
        held["any other category"] = (policy.defaults, [each for each in ending if each.categories is None])
    waits: dict[tuple[str, ...], int] = {}  # most categories have the same, and to look at a year takes time
    for name, (rule, hours) in held.items():
        of = tuple(each.name for each in hours)
        if of not in waits:
            for same in _for_the_same(hours):
                if longest_us(same, _FROM_US) is None:
                    others = ", ".join(each.name for each in same[:-1])
                    yield _never_end(same[-1], tree, f" together with {others}")
            waits[of] = _longest_wait_us(hours)
        if waits[of] >= rule.max_age_us:
            last = [each for each in hours if each.then is QuietThen.DEFER][-1]
            path: Path = ("quiet", last.name, "times")
            said = (
                f"hold events of {name} for up to {format_duration(waits[of])} without a break, and its max_age is "
                f"{format_duration(rule.max_age_us)}"
            )
            yield tree.problem(path, f"{said}; expected a longer max_age, or shorter hours")


def _never_end(quiet: Quiet, tree: Tree, together: str = "") -> Problem:
    path: Path = ("quiet", quiet.name, "times")
    said = f"never end{together}, expected a time of the week that is not quiet"
    return tree.problem(path, said)


def _for_the_same(hours: list[Quiet]) -> list[list[Quiet]]:
    """All that defer, and those that exempt the same events: there may be events for which each of them holds."""
    deferring = [each for each in hours if each.then is QuietThen.DEFER]
    alike = [
        [each for each in hours if each.unless == unless] for unless in dict.fromkeys(each.unless for each in hours)
    ]
    return [deferring, *(each for each in alike if each != deferring)]


def _longest_wait_us(hours: list[Quiet]) -> int:
    """How long an event may wait for the end of these hours; one that some of them exempt waits for others alone."""
    waits = (longest_us(same, _FROM_US, QuietThen.DEFER) for same in _for_the_same(hours))
    return max((each for each in waits if each is not None), default=0)


def _guarantees(file: LimitsFile, policy: Policy, tree: Tree) -> Iterator[Problem]:
    asking = {name: section for name, section in file.categories.items() if section.guarantee}
    if not asking:
        return
    longest = policy.longest_global
    instead = "has shadow limits alone" if policy.global_shadows else "is []"
    total = 0
    for name, section in asking.items():
        path: Path = ("categories", name, "guarantee")
        if longest is None:
            said = (
                f"{section.guarantee}, a guarantee is a part of the longest global window, and global.limits {instead}"
            )
            yield tree.problem(path, said)
            continue
        total += section.guarantee
        if total > longest.max:
            said = (
                f"{section.guarantee} makes {total} guaranteed in all, expected at most the {longest} of global.limits"
            )
            yield tree.problem(path, said)
            return
    if longest is None or total < longest.max:
        return
    said = f"all {total} of the {longest} of global.limits are guaranteed, which leaves nothing for"
    if others := _without(policy):
        yield tree.problem(("categories",), f"{said} {others}")
    elif file.unknown_categories != REJECT:
        unnamed = "categories that are not named; leave some, or set unknown_categories: reject"
        yield tree.problem(("categories",), f"{said} {unnamed}")


def _without(policy: Policy) -> str:
    """The categories for whose events nothing is kept; a guarantee of 1 may be the digest's alone."""
    return ", ".join(name for name, rule in policy.categories.items() if rule.guarantee <= (rule.telling is not None))

"""What changes from the content of one limits file to that of another, rule by rule."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.core.policy import OnLimit, Policy
from dispatcher.core.tally import Telling
from dispatcher.settings.content import Content
from dispatcher.settings.describe import rules
from dispatcher.settings.limits_file import read_limits
from dispatcher.settings.limits_values import DEFAULT_CHANNEL_KEY
from dispatcher.settings.yaml_reader import read_yaml

_NAMED: Final = {"categories": "category", "channels": "channel", "hooks": "hook", "quiet": "quiet"}
"""Sections with a rule for each name, and what the rule is called."""

_BETWEEN: Final = re.compile(r'; (?=(?:[^"]*"[^"]*")*[^"]*$)')
"""What stands between two clauses: not what stands in quotes."""

_ALONE: Final = {
    "channels": "channels",
    "defaults": "unknown categories",
    "unknown_categories": "unknown categories",
    "dead_letters": "dead letters",
}
"""Other sections that their rule does not share its name with."""


@dataclass(frozen=True, slots=True)
class Change:
    """One rule, or ``is_key`` one key, as it reads before and after; None where there is none."""

    was: str | None
    will_be: str | None
    is_key: bool = False

    @property
    def clauses(self) -> tuple[str | None, str | None]:
        """Both without the clauses that they share; None where nothing is left of one."""
        if self.was is None or self.will_be is None or self.is_key:
            return self.was, self.will_be
        before, after = (_BETWEEN.split(said.removesuffix(".")) for said in (self.was, self.will_be))
        return _without(before, after), _without(after, before)


def changes(before: Content | None, after: Content) -> list[Change]:
    """The rules that read differently, in the order of ``after``, then those of what is only named before.

    A category that one of the two does not name has its rule there all the same. Then come the keys that differ and of
    which no such rule tells.
    """
    new = read_limits(after.text, "after").policy
    old = None if before is None else read_limits(before.text, "before").policy
    was = {} if old is None else rules(old, new.categories)
    will_be = rules(new, () if old is None else old.categories)
    found = {
        name: Change(was.get(name), will_be.get(name))
        for name in dict.fromkeys([*will_be, *was])
        if _said(was.get(name)) != _said(will_be.get(name))
    }
    if before is None or before.digest == after.digest:
        return list(found.values())
    return [*found.values(), *_keys(before, after, {name.partition(", route ")[0] for name in found}, new)]


def _without(clauses: list[str], others: list[str]) -> str | None:
    """The clauses of a sentence that are not among the others, after whom it is about; None where there are none."""
    about, _, first = clauses[0].partition(": ")
    known = {others[0].partition(": ")[2], *others[1:]}
    own = [clause for clause in (first, *clauses[1:]) if clause not in known]
    return f"{about}: {'; '.join(own)}." if own else None


def _said(sentence: str | None) -> str | None:
    """What is said, without about whom: that depends on which other rules there are."""
    return sentence and sentence.partition(": ")[2]


def _keys(before: Content, after: Content, told: Container[str], new: Policy) -> Iterator[Change]:
    """The keys that differ. Those are left out that the rules in ``told`` tell about, as they read in ``new``."""
    was, will_be = (dict(_leaves(read_yaml(content.text).data)) for content in (before, after))
    for path in sorted(was.keys() | will_be.keys()):
        is_told = _rule_of(path) in told and not _has_no_words(path) and _is_said(path, new)
        if was.get(path) != will_be.get(path) and not is_told:
            name = ".".join(path)
            was_said, is_said = (f"{name}: {values[path]}" if path in values else None for values in (was, will_be))
            yield Change(was_said, is_said, is_key=True)


def _rule_of(path: tuple[str, ...]) -> str:
    """The rule that tells of a key, by its name in ``rules``."""
    if path[0] in _NAMED and path != ("channels", DEFAULT_CHANNEL_KEY, *path[2:]):
        return f"{_NAMED[path[0]]} {path[1]}"
    return _ALONE.get(path[0], path[0])


def _has_no_words(path: tuple[str, ...]) -> bool:
    """Whether no sentence says the value: of templates, and of the length of texts in the decision record."""
    return path[-1] in {"template", "text"} or (path[0] == "hooks" and path[-1] not in {"verify", "secret_file"})


def _is_said(path: tuple[str, ...], policy: Policy) -> bool:
    """Whether the sentence of a category says the key. What is over no limit, or in no line, it does not speak of."""
    match path:
        case ("categories", name, key):
            rule = policy.rule(name)
        case ("defaults", key):
            rule = policy.defaults
        case _:
            return True
    is_limited = bool(rule.limits or rule.per_label or policy.global_limits)
    match key:
        case "on_limit":
            return is_limited
        case "max_parked":
            return is_limited and rule.on_limit is OnLimit.DEFER
        case "digest_delay":
            return is_limited and (rule.on_limit is OnLimit.DIGEST or rule.telling is Telling.NOTICE)
        case _:
            return True


def _leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), json.dumps(value)

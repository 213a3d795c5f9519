"""What changes from the content of one limits file to that of another, rule by rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dispatcher.settings.content import Content
from dispatcher.settings.describe import rules
from dispatcher.settings.limits_file import read_policy
from dispatcher.settings.yaml_reader import read_yaml


@dataclass(frozen=True, slots=True)
class Change:
    """One rule as it reads before and after; None where there is none."""

    was: str | None
    will_be: str | None


def changes(before: Content | None, after: Content) -> list[Change]:
    """The rules that read differently, in the order of ``after``, then those of what is only named before.

    A category that one of the two does not name has its rule there all the same. Where no rule reads differently and
    the two still differ, it is the keys that do.
    """
    new, old = read_policy(after.text, "after")[0], None if before is None else read_policy(before.text, "before")[0]
    was = {} if old is None else rules(old, new.categories)
    will_be = rules(new, () if old is None else old.categories)
    found = [
        Change(was.get(name), will_be.get(name))
        for name in [*will_be, *(was.keys() - will_be.keys())]
        if _said(was.get(name)) != _said(will_be.get(name))
    ]
    if before is None or found or before.digest == after.digest:
        return found
    return list(_keys(before, after))


def _said(sentence: str | None) -> str | None:
    """What is said, without of whom: that depends on which other rules there are."""
    return sentence and sentence.partition(": ")[2]


def _keys(before: Content, after: Content) -> Iterator[Change]:
    was, will_be = (dict(_leaves(read_yaml(content.text).data)) for content in (before, after))
    for name in sorted(was.keys() | will_be.keys()):
        if was.get(name) != will_be.get(name):
            yield Change(*(f"{name}: {values[name]}" if name in values else None for values in (was, will_be)))


def _leaves(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value:
            yield from _leaves(value, name)
        else:
            yield name, json.dumps(value)

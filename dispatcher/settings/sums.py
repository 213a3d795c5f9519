"""What a limits file asks for that cannot be: guarantees that do not fit into the global limit."""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.settings.limits_schema import CategorySection, LimitsFile, policy_of
from dispatcher.settings.limits_values import REJECT
from dispatcher.settings.yaml_tree import Path, Problem, Tree, shown_path


def impossible_sums(file: LimitsFile, tree: Tree) -> list[Problem]:
    """Every fault of the file as a whole, each value by itself being sound."""
    return list(_guarantees(file, tree))


def _guarantees(file: LimitsFile, tree: Tree) -> Iterator[Problem]:
    asking = {name: section for name, section in file.categories.items() if section.guarantee}
    if not asking:
        return
    longest = policy_of(file).longest_global
    total = 0
    for name, section in asking.items():
        path: Path = ("categories", name, "guarantee")
        if longest is None:
            said = f"{section.guarantee}, a guarantee is a part of the longest global window, and global.limits is []"
            yield Problem(tree.position(path), shown_path(path), said)
            continue
        total += section.guarantee
        if total > longest.max:
            said = (
                f"{section.guarantee} makes {total} guaranteed in all, expected at most the {longest} of global.limits"
            )
            yield Problem(tree.position(path), shown_path(path), said)
            return
    if longest is not None and total == longest.max and (others := _without(file.categories)):
        said = f"all {total} of the {longest} of global.limits are guaranteed, which leaves nothing for {others}"
        yield Problem(tree.position(("categories",)), "categories", said)
    elif longest is not None and total == longest.max and file.unknown_categories != REJECT:
        said = (
            f"all {total} of the {longest} of global.limits are guaranteed, which leaves nothing for categories that "
            "are not named; leave some, or set unknown_categories: reject"
        )
        yield Problem(tree.position(("categories",)), "categories", said)


def _without(categories: dict[str, CategorySection]) -> str:
    return ", ".join(name for name, section in categories.items() if not section.guarantee)

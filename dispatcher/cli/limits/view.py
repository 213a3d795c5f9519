"""The use of limits as a table. Imports rich."""

from __future__ import annotations

from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dispatcher.cli.drawing import Fitting, Form, cut, plain_table
from dispatcher.cli.status.facts import Status
from dispatcher.cli.status.use_view import SHARED, UseRow, limit_cells, rule_row, use_rows, window
from dispatcher.core.category_rule import CategoryRule
from dispatcher.core.event import CATEGORY
from dispatcher.core.policy import GLOBAL_SCOPE, Policy
from dispatcher.core.rendering import one_line
from dispatcher.limiter import Usage

_LONGEST_NAME: Final = 15


def use_of_limits(status: Status, policy: Policy) -> Fitting:
    """All together, then each category with where it goes and what a limit does to it; one line for each limit.

    Where there is little room the bars go first, then long names are cut.
    """
    return Fitting(
        lambda: Form(_table(status, policy)),
        lambda: Form(_table(status, policy, has_bars=False)),
        lambda: Form(
            _table(status, policy, has_bars=False), _table(status, policy, has_bars=False, longest=_LONGEST_NAME)
        ),
        lambda: Form(_table(status, policy, has_bars=False, is_tight=True)),
    )


def _table(
    status: Status, policy: Policy, *, has_bars: bool = True, is_tight: bool = False, longest: int | None = None
) -> Table:
    def add(name: Text, usages: tuple[RenderableType, ...], over_it: str, channel: str) -> None:
        table.add_row(name, *usages, Text(over_it), cut(one_line(channel), longest))

    def use(rows: list[UseRow]) -> tuple[RenderableType, ...]:
        return tuple(limit_cells(rows, has_bars=has_bars))

    table = plain_table(tight=is_tight)
    table.add_column("Category")
    for heading in (*(("Use",) if has_bars else ()), "Limit", "Room", "Over it"):
        table.add_column(heading, no_wrap=True)
    table.add_column("Channel")
    add(Text("all together", "bold"), use(use_rows(status.together, shadows=status.shadows.get(GLOBAL_SCOPE))), "", "")
    if status.shared is not None:
        add(Text(SHARED), use(use_rows([status.shared])), "", "")
    table.add_section()
    for name in filter(CATEGORY.fullmatch, status.categories):
        if policy.knows(name) or not policy.reject_unknown:
            rule = policy.rule(name)
            shadows = status.shadows.get(f"category:{name}")
            rows = [*use_rows(status.categories[name], status.shares.get(name), shadows), *_label_rows(rule)]
            add(cut(name, longest), use(rows), _over_it(rule, policy), rule.channel)
    table.add_section()
    others = Text("any other, each", no_wrap=True)
    if policy.reject_unknown:
        blank = ("",) if has_bars else ()
        add(others, (*blank, Text("not accepted"), ""), "dead-letter", "")
    else:
        untouched = [Usage(limit, used=0, wait_us=0) for limit in policy.defaults.limits]
        dim = [rule_row(f"{limit.max} shadow {window(limit)}") for limit in policy.defaults.shadows]
        rows = [*use_rows(untouched), *dim, *_label_rows(policy.defaults)]
        add(others, use(rows), _over_it(policy.defaults, policy), policy.defaults.channel)
    return table


def _label_rows(rule: CategoryRule) -> list[UseRow]:
    """The limits of each value of a label; their use is not shown, since there may be any number of values."""
    return [
        rule_row(f"{limit.max} {window(limit)} for each {one_line(label)}")
        for label, limits in rule.per_label.items()
        for limit in limits
    ] + [
        rule_row(f"{limit.max} shadow {window(limit)} for each {one_line(label)}")
        for label, limits in rule.label_shadows.items()
        for limit in limits
    ]


def _over_it(rule: CategoryRule, policy: Policy) -> str:
    return rule.on_limit.value if rule.limits or rule.per_label or policy.global_limits else ""

"""The use of limits, and their versions, as tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from dispatcher.app.documents.facts import Status, window
from dispatcher.app.documents.instants import local, zone
from dispatcher.cli.context import near
from dispatcher.cli.drawing import Fitting, OneLine, Part, Table, Text, cut
from dispatcher.cli.status.use_view import SHARED, UseRow, add_use_columns, limit_cells, rule_row, use_rows
from dispatcher.core.policy import GLOBAL_SCOPE, CategoryRule, Policy
from dispatcher.core.rendering import one_line
from dispatcher.core.units import CATEGORY, US
from dispatcher.limiter import Usage
from dispatcher.store.versions import Version


def use_of_limits(status: Status, policy: Policy) -> Fitting:
    """All together, then each category with where it goes and what a limit does to it; one line for each limit.

    Where there is little room the bars go first, then the channel, then what a limit does; then limits are cut.
    """
    return Fitting(
        lambda: _table(status, policy),
        lambda: _table(status, policy, has_bars=False),
        lambda: _table(status, policy, ("Over it",), has_bars=False),
        lambda: _table(status, policy, (), has_bars=False),
    )


def kept_versions(versions: Sequence[Version], in_force: str | None) -> Table:
    """One in each line, with a mark at the one whose name is ``in_force``."""
    table = Table()
    table.add_column("Version", is_right=True, breaks=False)
    table.add_column("", breaks=False)
    table.add_column(f"Published ({zone(time.time())})", breaks=False)
    table.add_column("By", folds=True)
    table.add_column("From", folds=True)
    for version in versions:
        mark = Text("in force", "green") if version.name == in_force else Text()
        at = f"{local(version.at_us / US):%Y-%m-%d %H:%M:%S}"
        table.add_row(str(version.number), mark, at, one_line(version.by), one_line(near(Path(version.file))))
    return table


def _table(
    status: Status, policy: Policy, rules: Sequence[str] = ("Over it", "Channel"), *, has_bars: bool = True
) -> Table:
    def add(name: Part | str, uses: list[UseRow], over_it: str = "", channel: str = "") -> None:
        said = (over_it, cut(one_line(channel)))
        table.add_row(name, *limit_cells(uses, has_bars=has_bars), *said[: len(rules)])

    table = Table()
    table.add_column("Category")
    add_use_columns(table, has_bars=has_bars, are_cut=not rules)
    for heading in rules:
        table.add_column(heading, breaks=heading == "Channel")
    add(cut("all together", "bold"), use_rows(status.together, shadows=status.shadows.get(GLOBAL_SCOPE)))
    if status.shared is not None:
        add(SHARED, use_rows([status.shared]))
    table.add_section()
    for name in filter(CATEGORY.fullmatch, status.categories):
        if policy.knows(name) or not policy.reject_unknown:
            rule = policy.rule(name)
            shadows = status.shadows.get(f"category:{name}")
            rows = [*use_rows(status.categories[name], status.shares.get(name), shadows), *_label_rows(rule)]
            add(cut(name), rows, _over_it(rule, policy), _channel(rule))
    table.add_section()
    others = cut("any other, each")
    if policy.reject_unknown:
        add(others, [UseRow(OneLine("not accepted"))], "dead-letter")
    else:
        untouched = [Usage(limit, used=0, wait_us=0) for limit in policy.defaults.limits]
        dim = [rule_row(f"{limit.max} shadow in {window(limit)}") for limit in policy.defaults.shadows]
        rows = [*use_rows(untouched), *dim, *_label_rows(policy.defaults)]
        add(others, rows, _over_it(policy.defaults, policy), _channel(policy.defaults))
    return table


def _label_rows(rule: CategoryRule) -> list[UseRow]:
    """The limits of each value of a label; their use is not shown, since there may be any number of values."""
    return [
        rule_row(f"{limit.max} in {window(limit)} for each {one_line(label)}")
        for label, limits in rule.per_label.items()
        for limit in limits
    ] + [
        rule_row(f"{limit.max} shadow in {window(limit)} for each {one_line(label)}")
        for label, limits in rule.label_shadows.items()
        for limit in limits
    ]


def _channel(rule: CategoryRule) -> str:
    number = len(rule.routes)
    return f"{rule.channel}, or {number} {'route' if number == 1 else 'routes'}" if number else rule.channel


def _over_it(rule: CategoryRule, policy: Policy) -> str:
    return rule.on_limit.value if rule.limits or rule.per_label or policy.global_limits else ""

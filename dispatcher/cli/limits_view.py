"""The use of limits as a table. Imports rich, so only for drawing."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from dispatcher.cli.drawing import plain_table
from dispatcher.cli.status import Status
from dispatcher.cli.status_view import limit_cells
from dispatcher.content import one_line
from dispatcher.event import CATEGORY
from dispatcher.model import format_duration
from dispatcher.policy import CategoryRule, Policy


def use_of_limits(status: Status, policy: Policy) -> Table:
    """All together, then each category with where it goes and what a limit does to it; one line for each limit."""
    table = plain_table()
    table.show_edge = False
    table.add_column("Category", overflow="fold")
    for heading in ("Use", "Limit", "Room", "Over it"):
        table.add_column(heading, no_wrap=True)
    table.add_column("Channel", overflow="fold")
    table.add_row(Text("all together", "bold"), *limit_cells(status.together), "", "")
    table.add_section()
    for name in filter(CATEGORY.fullmatch, status.categories):
        if policy.knows(name) or not policy.reject_unknown:
            cells = limit_cells(status.categories[name])
            table.add_row(Text(name), *cells, *_consequences(policy.rule(name), policy))
    if policy.reject_unknown:
        table.add_row(Text("any other", "dim"), "", Text("not accepted", "dim"), "", Text("dead-letter", "dim"), "")
    else:
        limits = [f"{limit.max} in {format_duration(limit.window_us)}" for limit in policy.defaults.limits]
        text = Text("\n".join(limits) or "none", "dim")
        table.add_row(Text("any other", "dim"), "", text, "", *_consequences(policy.defaults, policy))
    return table


def _consequences(rule: CategoryRule, policy: Policy) -> tuple[Text, Text]:
    has_limits = rule.limits or policy.global_limits
    return Text(rule.on_limit.value if has_limits else ""), Text(one_line(rule.channel))

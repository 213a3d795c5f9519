"""``dispatcher limits``: what the limits file says, what it may say, and how much of it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli.exits import DONE
from dispatcher.cli.looking import near, server_to_look_at, settings_in_force
from dispatcher.cli.not_yet import Commands
from dispatcher.cli.terminal import Terminal

if TYPE_CHECKING:
    from dispatcher.app import LimitsFile
    from dispatcher.cli.status import Status
    from dispatcher.policy import CategoryRule


@click.group(
    cls=Commands, not_yet=("diff", "apply"), short_help="Check the limits file, show how much of each limit is used."
)
def limits() -> None:
    """Check the limits file, and show how much of each limit is used."""


@limits.command(short_help="Print every rule of a limits file as a sentence.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def check(terminal: Terminal, file: Path | None, *, as_json: bool) -> None:
    """Print every rule of a limits file as a sentence; of the one in force, unless FILE is given.

    Every fault is named with its line and column; the exit code is 78 then.
    """
    from dispatcher.settings import find_limits_file, load_policy, sentences

    if file is None:
        file = find_limits_file(settings_in_force(terminal), Path.cwd())
    policy, warnings = load_policy(file)
    rules = sentences(policy)
    for warning in warnings:
        terminal.doubt(warning)
    if as_json:
        terminal.print_json({"file": str(file), "rules": rules, "warnings": list(warnings)})
        return
    terminal.say(f"limits in {near(file)}")
    for rule in rules:
        terminal.tell(rule)


@limits.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def show(terminal: Terminal, *, as_json: bool) -> int:
    """Show how much of each limit is used, and when there is room again.

    The categories are those of the limits file, then those that have been seen and follow its defaults.
    """
    from dispatcher.app import build_readers, open_limits
    from dispatcher.cli.status import read_status

    settings = settings_in_force(terminal)
    in_force = open_limits(settings)
    for doubt in in_force.warnings:
        terminal.doubt(doubt)
    with server_to_look_at(settings) as server:
        for doubt in server.warnings:
            terminal.doubt(doubt)
        status = read_status(build_readers(settings, server), in_force.policy)
        shown = server.shown
    if as_json:
        terminal.print_json(document(status, in_force))
        return DONE
    from dispatcher.cli.limits_view import use_of_limits

    terminal.say(f"limits in {near(in_force.path)}, namespace {settings.namespace} on {shown}")
    terminal.draw(use_of_limits(status, in_force.policy))
    return DONE


@limits.command(short_help="Print the JSON Schema of the limits file.")
@click.pass_obj
def schema(terminal: Terminal) -> None:
    """Print the JSON Schema of the limits file, for editors that complete and check it."""
    from dispatcher.settings import limits_json_schema

    terminal.print(json.dumps(limits_json_schema(), indent=2))


def document(status: Status, in_force: LimitsFile) -> dict[str, Any]:
    """The use of the limits as JSON has it; ``in_file`` says whether the category is named there."""
    from dispatcher.cli.status import category_documents, global_documents
    from dispatcher.event import CATEGORY

    policy = in_force.policy
    return {
        "file": str(in_force.path),
        "global": {"limits": global_documents(status)},
        "categories": {
            name: {
                "in_file": policy.knows(name),
                "on_limit": policy.rule(name).on_limit.value,
                "channel": policy.rule(name).channel,
                "limits": category_documents(status, name),
                "per_label": _per_label(policy.rule(name)),
            }
            for name in status.categories
            if CATEGORY.fullmatch(name)
        },
        "unknown_categories": "reject" if policy.reject_unknown else "accept",
        "defaults": {
            "on_limit": policy.defaults.on_limit.value,
            "channel": policy.defaults.channel,
            "limits": [str(limit) for limit in policy.defaults.limits],
            "per_label": _per_label(policy.defaults),
        },
    }


def _per_label(rule: CategoryRule) -> dict[str, list[str]]:
    return {label: [str(limit) for limit in limits] for label, limits in rule.per_label.items()}

"""``dispatcher limits history``: the versions of the limits that are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli.context import desk_named
from dispatcher.cli.options import as_json
from dispatcher.cli.terminal import Terminal
from dispatcher.core.units import US

if TYPE_CHECKING:
    from dispatcher.store.versions import Version


@click.command(short_help="List the versions of the limits that are kept.")
@as_json
@click.pass_obj
def history(terminal: Terminal, *, as_json: bool) -> None:
    """List the versions of the limits that are kept, the newest first: when, by whom and from which file.

    The last 20 are kept. 'dispatcher limits rollback' puts one of them in force again.
    """
    with desk_named(terminal, quiet=as_json) as desk:
        versions = desk.versions
        in_force = versions.in_force()
        kept = versions.kept()
    name = None if in_force is None else in_force.name
    if as_json:
        terminal.print_json({"versions": [_document(version, name) for version in kept]})
    elif kept:
        from dispatcher.cli.limits.view import kept_versions

        terminal.draw(kept_versions(kept, name))
    else:
        terminal.print("no version was published yet: the first worker publishes its limits file")


def _document(version: Version, in_force: str | None) -> dict[str, Any]:
    """A version as JSON has it; ``at`` is in seconds since 1970."""
    return {
        "version": version.number,
        "in_force": version.name == in_force,
        "at": version.at_us / US,
        "by": version.by,
        "from": version.file,
    }

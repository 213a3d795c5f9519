"""``dispatcher limits diff`` and ``limits apply``: what a file would change for the fleet, and changing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli.context import near, server_to_look_at, settings_in_force
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE
from dispatcher.cli.options import operator
from dispatcher.cli.terminal import Terminal

if TYPE_CHECKING:
    from dispatcher.app.limits import LimitsFile
    from dispatcher.settings.differences import Change


@click.command(short_help="Show what a limits file would change, rule by rule.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def diff(terminal: Terminal, file: Path, *, as_json: bool) -> int:
    """Show what FILE would change against the version in force, rule by rule.

    The exit code is 0 when it says the same, 1 when it says something else, also where no limits are in force yet.
    """
    from dispatcher.app.limits import limits_in_force
    from dispatcher.app.readers import open_versions
    from dispatcher.settings.differences import changes

    proposed = _read(terminal, file)
    settings = settings_in_force(terminal)
    with server_to_look_at(settings) as server:
        now = limits_in_force(open_versions(settings, server))
    found = changes(None if now is None else now.content, proposed.content)
    same = now is not None and now.content.digest == proposed.content.digest
    if as_json:
        terminal.print_json(_document(now, file, found))
    else:
        number = "no version is in force" if now is None else f"against {_named(now)}"
        terminal.say(f"limits in {near(file)}, {number}, namespace {settings.namespace} on {server.shown}")
        _show(terminal, found, same=same)
    return DONE if same else DOES_NOT_HOLD


@click.command(short_help="Put a limits file in force for the whole fleet.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def apply(terminal: Terminal, file: Path, *, as_json: bool) -> int:
    """Put what FILE says in force for the whole fleet, as a new version, whether or not it was one before.

    Workers go over to it with their next step, and what waits asks anew. A file with faults changes nothing: exit
    code 78.
    """
    from dispatcher.app.readers import open_versions
    from dispatcher.store.versions import Unless, number_of

    proposed = _read(terminal, file)
    settings = settings_in_force(terminal)
    with server_to_look_at(settings) as server:
        versions = open_versions(settings, server)
        before = versions.in_force()
        content = proposed.content
        by = operator()
        done = versions.publish(content.text, content.digest, by=by, file=str(Path.cwd() / file), unless=Unless.NEVER)
    number, was = int(number_of(done.version)), None if before is None else before.number
    if as_json:
        terminal.print_json({"version": number, "was": was, "file": str(file), "known": done.known})
        return DONE
    terminal.say(f"namespace {settings.namespace} on {server.shown}")
    again = "" if done.known is None else f"; it says what version {done.known} said"
    terminal.print(f"version {number} is in force{again}")
    return DONE


def _read(terminal: Terminal, file: Path) -> LimitsFile:
    from dispatcher.app.limits import read_limits_file

    proposed = read_limits_file(file)
    for warning in proposed.warnings:
        terminal.warn(warning)
    return proposed


def _named(limits: LimitsFile) -> str:
    version = limits.version
    return "" if version is None else f"version {version.number}, published by {version.by} from {near(limits.path)}"


def _show(terminal: Terminal, found: list[Change], *, same: bool) -> None:
    if same:
        terminal.print("no difference")
    for change in found:
        for mark, sentence in (("-", change.was), ("+", change.will_be)):
            if sentence is not None:
                terminal.tell(f"{mark} {sentence}")


def _document(now: LimitsFile | None, file: Path, found: list[Change]) -> dict[str, Any]:
    return {
        "file": str(file),
        "version": now and now.version and now.version.number,
        "changes": [{"was": change.was, "will_be": change.will_be} for change in found],
    }

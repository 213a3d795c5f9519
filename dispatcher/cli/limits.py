"""``dispatcher limits``: what the limits file says."""

from __future__ import annotations

from pathlib import Path

import click

from dispatcher.cli.not_yet import Commands
from dispatcher.cli.terminal import Terminal


@click.group(cls=Commands, not_yet=("show", "schema", "diff", "apply"))
def limits() -> None:
    """Check the limits file."""


@limits.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def check(terminal: Terminal, file: Path | None, *, as_json: bool) -> None:
    """Print every rule of a limits file as a sentence; of the one in force, unless FILE is given.

    Every fault is named with its line and column; the exit code is 78 then.
    """
    from dispatcher.settings import find_limits_file, load_policy, load_settings, sentences

    doubts: tuple[str, ...] = ()
    if file is None:
        settings, doubts = load_settings()
        terminal.hide(settings.secrets())
        file = find_limits_file(settings, Path.cwd())
    policy, warnings = load_policy(file)
    rules = sentences(policy)
    for warning in (*doubts, *warnings):
        terminal.doubt(warning)
    if as_json:
        terminal.print_json({"file": str(file), "rules": rules, "warnings": list(warnings)})
        return
    terminal.say(f"limits in {file}")
    for rule in rules:
        terminal.print(rule)

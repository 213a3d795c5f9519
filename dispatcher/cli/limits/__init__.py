"""``dispatcher limits``: what the limits file says, what it may say, and how much of it is used."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dispatcher.cli.context import desk_of, headline, near, settings_in_force, some_settings_in_force
from dispatcher.cli.exits import DONE
from dispatcher.cli.limits.change import apply, diff, rollback
from dispatcher.cli.limits.history import history
from dispatcher.cli.options import as_json
from dispatcher.cli.terminal import Terminal
from dispatcher.core.units import US

if TYPE_CHECKING:
    from dispatcher.core.quiet import Span
    from dispatcher.settings.environment import Settings
    from dispatcher.store.versions import Version


@click.group()
def limits() -> None:
    """Check the limits file, compare it with what is in force, put it in force, go back, and show what is used."""


@limits.command(short_help="Print every rule of a limits file as a sentence.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@as_json
@click.pass_obj
def check(terminal: Terminal, file: Path | None, *, as_json: bool) -> None:
    """Print every rule of a limits file as a sentence. Without FILE, read the limits file of the settings.

    Every fault is named with its line and column; the exit code is 78 then. Without FILE, and if the server answers,
    the command also says which version is in force. Of quiet hours it says when they begin and end next.
    """
    from dispatcher.settings.describe import next_quiet, next_quiet_sentences, sentences
    from dispatcher.settings.limits_file import load_limits
    from dispatcher.settings.limits_text import find_limits_file

    settings = None
    if file is None:
        settings = settings_in_force(terminal)
        file = find_limits_file(settings, Path.cwd())
    limits = load_limits(file)
    rules, now_us = sentences(limits.policy), time.time_ns() // 1_000
    terminal.warn(*limits.warnings)
    version = None if settings is None else _version_there(settings)
    if as_json:
        spans = {name: _in_seconds(span) for name, span in next_quiet(limits.policy, now_us).items()}
        facts = {"file": str(file), "rules": rules, "quiet": spans, "warnings": list(limits.warnings)}
        terminal.print_json({**facts, "in_force": version and version.number})
        return
    terminal.say(f"limits in {near(file)}")
    if version is not None:
        same = version.digest == limits.content.digest
        said = (
            "which says the same" if same else f"which says something else: see 'dispatcher limits diff {near(file)}'"
        )
        terminal.say(f"in force is version {version.number}, {said}")
    for rule in [*rules, *next_quiet_sentences(limits.policy, now_us)]:
        terminal.tell(rule)


@limits.command(short_help="Show how much of each limit is used.")
@as_json
@click.pass_obj
def show(terminal: Terminal, *, as_json: bool) -> int:
    """Show how much of each limit is used, and when there is room again.

    The categories are those of the limits file, then those that have been seen and follow its defaults.
    """
    from dispatcher.app.documents.facts import read_status

    with desk_of(terminal, some_settings_in_force(terminal)) as desk:
        in_force = desk.limits()
        terminal.warn(*in_force.warnings)
        status = read_status(desk, in_force.policy, lately=False)
    if as_json:
        from dispatcher.app.documents.status import limits_document, use_document

        terminal.print_json({**limits_document(desk.settings, in_force), **use_document(status, in_force.policy)})
        return DONE
    from dispatcher.cli.limits.view import use_of_limits
    from dispatcher.settings.describe import beside_limits

    terminal.say(headline(desk, in_force))
    terminal.draw(use_of_limits(status, in_force.policy))
    for sentence in beside_limits(in_force.policy, status.snapshot.now_us):
        terminal.tell(sentence)
    return DONE


@limits.command(short_help="Print the JSON Schema of the limits file.")
@click.pass_obj
def schema(terminal: Terminal) -> None:
    """Print the JSON Schema of the limits file, for editors that complete and check it."""
    from dispatcher.settings.limits_json_schema import limits_json_schema

    terminal.print(json.dumps(limits_json_schema(), indent=2))


limits.add_command(diff)
limits.add_command(apply)
limits.add_command(history)
limits.add_command(rollback)


def _in_seconds(span: Span) -> dict[str, float | None]:
    begins, ends = (None if at is None else at / US for at in span)
    return {"begins": begins, "ends": ends}


def _version_there(settings: Settings) -> Version | None:
    """The version in force; None where there is none, or nobody to ask."""
    from dispatcher.app.operating import open_desk
    from dispatcher.app.servers import open_server
    from dispatcher.errors import ConfigError, GateUnavailable

    try:
        with open_server(settings, start=False) as server:
            return open_desk(settings, server).versions.in_force()
    except (ConfigError, GateUnavailable):
        return None

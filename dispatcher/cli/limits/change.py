"""``dispatcher limits diff``, ``apply`` and ``rollback``: what would change for the fleet, and changing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli.context import answer_needed, audited, desk_of, namespace_on, near, origin, settings_in_force
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE, Ended
from dispatcher.cli.options import AT_LEAST_ONE, as_json, operator
from dispatcher.cli.terminal import Terminal

if TYPE_CHECKING:
    from dispatcher.app.limits import LoadedLimits
    from dispatcher.app.operating import Desk
    from dispatcher.settings.content import Content
    from dispatcher.settings.differences import Change
    from dispatcher.store.versions import Published, Version, Versions


@click.command(short_help="Show what a limits file would change, rule by rule.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@as_json
@click.pass_obj
def diff(terminal: Terminal, file: Path | None, *, as_json: bool) -> int:
    """Show what FILE would change against the version in force, rule by rule.

    Without FILE it is the limits file of the settings. The exit code is 0 when it says the same, 1 when it says
    something else, also where no limits are in force yet.
    """
    from dispatcher.app.limits import limits_in_force
    from dispatcher.settings.differences import changes
    from dispatcher.settings.limits_text import find_limits_file

    settings = settings_in_force(terminal)
    file = file or find_limits_file(settings, Path.cwd())
    proposed = _read(terminal, file)
    with desk_of(terminal, settings) as desk:
        now = limits_in_force(desk.versions)
    found = changes(None if now is None else now.content, proposed.content)
    same = now is not None and now.content.digest == proposed.content.digest
    if as_json:
        terminal.print_json(_document(now, file, found))
    else:
        version = now and now.version
        there = f"against version {version.number}, {origin(version)}" if version else "no version is in force"
        terminal.say(f"limits in {near(file)}, {there}, {namespace_on(desk)}")
        _show(terminal, found, same=same)
    return DONE if same else DOES_NOT_HOLD


@click.command(short_help="Put a limits file in force for the whole fleet.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--if-version", type=AT_LEAST_ONE, metavar="N", help="Only while version N is in force; else exit 1.")
@as_json
@click.pass_obj
def apply(terminal: Terminal, file: Path, *, if_version: int | None, as_json: bool) -> None:
    """Put what FILE says in force for the whole fleet, as a new version, also if it was one before.

    If the version in force says the same, nothing changes. Workers go over to a new version with their next step, and
    what waits asks anew. A file with faults, or an empty one, changes nothing: exit code 78.
    """
    proposed = _read(terminal, file, may_be_empty=False)
    with desk_of(terminal, settings_in_force(terminal)) as desk:
        was = desk.versions.in_force()
        content = proposed.content
        done = _publish(desk.versions, content, str(Path.cwd() / file), if_version)
        _audit(desk, "limits apply", done, str(file))
    if as_json:
        facts = {"version": done.number, "was": was and was.number, "file": str(file), "known": done.known}
        terminal.print_json(facts)
        return
    terminal.say(namespace_on(desk))
    _say_published(terminal, done, done.known)


@click.command(short_help="Put a version that is kept in force again.")
@click.argument("version", type=AT_LEAST_ONE)
@as_json
@click.pass_obj
def rollback(terminal: Terminal, version: int, *, as_json: bool) -> None:
    """Put what VERSION said in force for the whole fleet again, as a new version.

    VERSION is a number that 'dispatcher limits history' lists. No limits file is changed. If the version in force says
    the same, nothing changes.
    """
    from dispatcher.settings.content import Content
    from dispatcher.settings.limits_file import read_limits

    with desk_of(terminal, settings_in_force(terminal)) as desk:
        was = desk.versions.in_force()
        chosen = _kept(desk.versions, version)
        limits = read_limits(chosen.content, f"limits version {version}")  # what cannot be read nobody could follow
        terminal.warn(*limits.warnings)
        content = Content(chosen.content, chosen.digest, chosen.source)
        done = _publish(desk.versions, content, f"version {version}")
        _audit(desk, "limits rollback", done, f"version {version}")
    if as_json:
        terminal.print_json({"version": done.number, "was": was and was.number, "says": version})
        return
    terminal.say(namespace_on(desk))
    _say_published(terminal, done, version)


def _kept(versions: Versions, number: int) -> Version:
    """The kept version of this number; raises ``Ended`` where it is not kept."""
    kept = {version.number: version for version in versions.kept()}
    if number in kept:
        return kept[number]
    expected = f"expected one of {min(kept)} to {max(kept)}" if kept else "no version was published yet"
    raise Ended(DOES_NOT_HOLD, f"limits version {number} is not kept, {expected}: see 'dispatcher limits history'")


def _publish(versions: Versions, content: Content, file: str, if_version: int | None = None) -> Published:
    """Publish it unless it is in force; raises ``Ended`` where another version than ``if_version`` is."""
    from dispatcher.store.versions import Unless

    text, digest, source = content.text, content.digest, content.source
    by, unless = operator(), Unless.SAME
    with answer_needed("a new version is in force", "dispatcher limits history"):
        done = versions.publish(text, digest, source, by=by, file=file, unless=unless, if_version=if_version)
    if if_version is None or done.is_new or done.number == if_version:
        return done
    found = "no version is" if done.number is None else f"version {done.number} is"
    raise Ended(DOES_NOT_HOLD, f"{found} in force, expected version {if_version}: nothing has changed")


def _audit(desk: Desk, what: str, done: Published, source: str) -> None:
    if done.is_new:
        audited(desk, what, about=f"version {done.number}", why=f"from {source}")


def _say_published(terminal: Terminal, done: Published, said_by: int | None) -> None:
    if done.is_new:
        again = "" if said_by is None else f"; it says what version {said_by} said"
        terminal.print(f"version {done.number} is in force{again}")
    else:
        terminal.print(f"version {done.number} is in force already and says the same: nothing has changed")


def _read(terminal: Terminal, file: Path, *, may_be_empty: bool = True) -> LoadedLimits:
    from dispatcher.app.limits import read_limits_file

    proposed = read_limits_file(file)
    if not may_be_empty:
        proposed.refuse_empty()
    terminal.warn(*proposed.warnings)
    return proposed


def _show(terminal: Terminal, found: list[Change], *, same: bool) -> None:
    if same:
        terminal.print("no difference")
    for change in found:
        for mark, sentence in zip("-+", change.clauses, strict=True):
            if sentence is not None:
                terminal.tell(f"{mark} {sentence}")


def _document(now: LoadedLimits | None, file: Path, found: list[Change]) -> dict[str, Any]:
    return {
        "file": str(file),
        "version": now and now.version and now.version.number,
        "changes": [{"was": change.was, "will_be": change.will_be} for change in found],
    }

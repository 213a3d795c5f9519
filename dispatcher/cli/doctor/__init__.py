"""``dispatcher doctor``: what is wrong, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.exits import CONFIGURATION, DOES_NOT_HOLD, DONE, UNREACHABLE
from dispatcher.cli.options import as_json
from dispatcher.cli.terminal import Terminal

if TYPE_CHECKING:
    from dispatcher.cli.doctor.finding import Finding


_EXIT_CODES: Final = """\b
Exit codes:
   0  no error, perhaps warnings
   1  at least one error
  69  the server cannot be reached
  78  the settings cannot be read, or the server does not let us in
"""


@click.command(epilog=_EXIT_CODES)
@as_json
@click.pass_obj
def doctor(terminal: Terminal, *, as_json: bool) -> int:
    """Look for what is wrong, and say what to do about it.

    Looks at the settings, the limits file, the server, what lies in the namespace, the workers, and asks Slack whether
    it accepts the token. Nothing is posted and nothing is changed.
    """
    from dispatcher.cli.doctor.examination import examine
    from dispatcher.cli.doctor.finding import Level
    from dispatcher.settings.loading import load_settings

    settings, warnings = load_settings()
    terminal.hide(settings.secrets())
    findings = []
    for found in examine(settings, warnings):
        finding = found.rewritten(terminal.without_secrets)
        findings.append(finding)
        if not as_json:
            from dispatcher.cli.doctor.view import drawn

            terminal.draw(drawn(finding))
    levels = [finding.level for finding in findings]
    faults, warned = levels.count(Level.ERROR), levels.count(Level.WARNING)
    if as_json:
        documents = [_document(finding) for finding in findings]
        terminal.print_json({"findings": documents, "errors": faults, "warnings": warned})
    else:
        terminal.print(f"\n{_counted(faults, 'error')}, {_counted(warned, 'warning')}")
    return _exit_code(findings)


def _counted(count: int, name: str) -> str:
    return f"{count or 'no'} {name}{'' if count == 1 else 's'}"


def _document(finding: Finding) -> dict[str, str | None]:
    return {
        "level": finding.level.value,
        "about": finding.about,
        "said": finding.said,
        "remedy": finding.remedy,
    }


def _exit_code(findings: list[Finding]) -> int:
    """A server that could not be looked at at all ends this command as it ends every other one."""
    from dispatcher.cli.doctor.finding import Level
    from dispatcher.errors import GateUnavailable

    for finding in findings:
        if finding.cause is not None:
            return UNREACHABLE if isinstance(finding.cause, GateUnavailable) else CONFIGURATION
    return DOES_NOT_HOLD if any(finding.level is Level.ERROR for finding in findings) else DONE

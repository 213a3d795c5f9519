"""``dispatcher health``: an exit code and one sentence, for a container or a monitor."""

from __future__ import annotations

import click

from dispatcher.cli.exits import DOES_NOT_HOLD, DONE
from dispatcher.cli.options import as_json
from dispatcher.cli.terminal import Terminal
from dispatcher.core.units import visible


@click.command()
@click.option("--ready", is_flag=True, help="Ask whether events can be taken and posted, from wherever this runs.")
@as_json
@click.pass_obj
def health(terminal: Terminal, *, ready: bool, as_json: bool) -> int:
    """Say in one sentence whether a worker of this host lives; exit with 0 or 1.

    It lives while it has a lease, which ends if the worker hangs or does not reach the server.

    With --ready: the server can be read and written, the namespace and its queue can be used, the limits are valid,
    and posting is not paused by a problem that an operator must solve.
    """
    from dispatcher.app import health as answers
    from dispatcher.errors import ConfigError, DispatcherError
    from dispatcher.settings.plain import load_server_settings

    try:
        settings, warnings = load_server_settings()
        terminal.hide(settings.secrets())
        terminal.warn(*warnings)
        holds, reason = True, (answers.ready if ready else answers.alive)(settings)
    except DispatcherError as error:
        why = str(error)
        if isinstance(error, ConfigError):
            why = "; ".join(error.problems)
            terminal.warn(*error.warnings)
        holds, reason = False, terminal.without_secrets(why)
    yes, no = ("ready", "not ready") if ready else ("healthy", "unhealthy")
    if as_json:
        terminal.print_json({yes: holds, "reason": reason})
    else:
        terminal.print(visible(f"{yes if holds else no}: {reason}"))
    return DONE if holds else DOES_NOT_HOLD

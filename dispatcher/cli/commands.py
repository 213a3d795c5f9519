"""All commands under one name, and the one way every command ends."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from dispatcher.cli.dead import dead
from dispatcher.cli.demo import demo
from dispatcher.cli.doctor import doctor
from dispatcher.cli.exits import DONE, conclude
from dispatcher.cli.explain import explain
from dispatcher.cli.limits import limits
from dispatcher.cli.mute import mute, unmute
from dispatcher.cli.parked import parked
from dispatcher.cli.pause import pause, resume
from dispatcher.cli.send import send
from dispatcher.cli.stand_in import slack_stand_in
from dispatcher.cli.status import status
from dispatcher.cli.terminal import Terminal, open_closed_streams
from dispatcher.cli.up import up
from dispatcher.cli.worker import worker


def main() -> NoReturn:
    """Run the command in ``sys.argv`` and exit with its code; an operator's error is a message, never a traceback."""
    open_closed_streams()
    terminal = Terminal()
    code = DONE
    try:
        result = dispatcher.main(prog_name="dispatcher", standalone_mode=False, obj=terminal)
        code = result if isinstance(result, int) else DONE
    except SystemExit:
        pass  # click's own answer to a reader of the help who went away
    except Exception as error:  # noqa: BLE001 - every one has its exit code
        code = conclude(error, terminal)
    try:
        terminal.close()
    except OSError as error:
        code = code or conclude(error, terminal)
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="notification-dispatcher", message="%(prog)s %(version)s")
def dispatcher() -> None:
    """Post notifications from a Redis queue to Slack, never more than the limits allow.

    Start with "dispatcher demo": the whole way of 300 events, with a server and a Slack of its own. Settings come
    from DISPATCHER_* variables and .env, limits from config/limits.yaml.
    """


for _command in (
    demo,
    up,
    worker,
    send,
    status,
    explain,
    parked,
    dead,
    pause,
    resume,
    mute,
    unmute,
    limits,
    doctor,
    slack_stand_in,
):
    dispatcher.add_command(_command)

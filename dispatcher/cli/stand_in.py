"""``dispatcher slack-stand-in``: the local Slack in the foreground."""

from __future__ import annotations

import signal
from typing import Final

import click

from dispatcher.cli.interruption import Interruption
from dispatcher.cli.terminal import Terminal

USUAL_PORT: Final = 8901


@click.command(short_help="Run a local Slack that shows what is posted to it.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=USUAL_PORT, show_default=True, help="0 takes a free one."
)
@click.pass_obj
def slack_stand_in(terminal: Terminal, port: int) -> None:
    """Run a local Slack that shows what is posted to it.

    It listens on 127.0.0.1 only, and forgets everything when it ends.
    """
    from dispatcher.slack.stand_in import REALISTIC, Setup, StandIn

    stand_in = StandIn(port, Setup(rate=REALISTIC))
    with Interruption():
        try:
            with stand_in:
                terminal.tell(f"Slack stand-in: {stand_in.url} shows what is posted.")
                terminal.tell("Workers post to it with these lines in .env, or with 'export' before each:")
                terminal.print(
                    f"  DISPATCHER_SLACK_BASE_URL={stand_in.base_url}\n  DISPATCHER_SLACK_TOKEN={stand_in.token}"
                )
                terminal.tell("Ctrl-C ends it.")
                while True:
                    signal.pause()
        except KeyboardInterrupt:
            count = len(stand_in.ledger)
            terminal.say(f"ended; {count} {'message was' if count == 1 else 'messages were'} posted")

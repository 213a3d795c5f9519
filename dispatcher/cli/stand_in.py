"""``dispatcher slack-stand-in``: the local Slack in the foreground."""

from __future__ import annotations

import signal

import click

from dispatcher.cli.interruption import Interruption
from dispatcher.cli.terminal import Terminal


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=8901, show_default=True, help="0 takes a free one.")
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
                terminal.print(
                    f"Slack stand-in: {stand_in.url} shows what is posted.\n"
                    "Workers post to it with\n"
                    f"  export DISPATCHER_SLACK_BASE_URL={stand_in.base_url}\n"
                    f"  export DISPATCHER_SLACK_TOKEN={stand_in.token}\n"
                    "Ctrl-C ends it."
                )
                while True:
                    signal.pause()
        except KeyboardInterrupt:
            terminal.say(f"ended; {len(stand_in.ledger)} messages were posted")

"""``dispatcher demo``: 300 events on their whole way, on a server and a Slack of its own."""

from __future__ import annotations

import click

from dispatcher.cli.terminal import Terminal


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, and nothing else.")
@click.pass_obj
def demo(terminal: Terminal, *, as_json: bool) -> int:
    """Watch 300 events on their way to a local Slack.

    Everything is real: a Redis server in a temporary directory, two worker processes, Slack's API over HTTP. The
    limits are 100 in 30 minutes for all events together and 10 for each of the 20 categories. Nothing of your own
    settings is read, nothing outside this machine is spoken to, and nothing is left behind.
    """
    from dispatcher.cli.demo.run import run_demo

    return run_demo(terminal, as_json=as_json)

"""``dispatcher metrics``: what ``GET /metrics`` tells of the namespace, once."""

from __future__ import annotations

import click

from dispatcher.cli.context import server_to_look_at, some_settings_in_force
from dispatcher.cli.exits import DONE
from dispatcher.cli.serve import check_packages
from dispatcher.cli.terminal import Terminal


@click.command()
@click.pass_obj
def metrics(terminal: Terminal) -> int:
    """Print the metrics once, as Prometheus reads them.

    For the textfile collector of a node exporter, and for a look without a Prometheus. 'dispatcher serve' tells the
    same at /metrics, and what it counts itself.
    """
    check_packages("metrics")
    from dispatcher.app.metrics import read_facts
    from dispatcher.app.operating import Desk
    from dispatcher.producer.blocking import ANSWER_TIMEOUT_S
    from dispatcher.web.metrics import text

    settings = some_settings_in_force(terminal)
    with server_to_look_at(terminal, settings) as server:
        desk = Desk(settings, server, timeout_s=ANSWER_TIMEOUT_S)
        desk.reach()
        shown = text(read_facts(desk))
    terminal.print(shown.rstrip("\n"))
    return DONE

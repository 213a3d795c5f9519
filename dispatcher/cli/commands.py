"""All commands under one name, and the one way every command ends."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from dispatcher.cli.examples import add_examples
from dispatcher.cli.exits import DONE, conclude
from dispatcher.cli.terminal import Terminal, open_closed_streams

_COMMANDS: Final = {
    "audit": ("dispatcher.cli.audit", "Show what operators did."),
    "dead": ("dispatcher.cli.dead", "Look at dead letters, replay or remove them."),
    "demo": ("dispatcher.cli.demo", "Watch 300 events on their way to a local Slack."),
    "doctor": ("dispatcher.cli.doctor", "Look for what is wrong, and say what to do about it."),
    "events": ("dispatcher.cli.events", "Show what became of the newest events."),
    "explain": ("dispatcher.cli.explain", "Say what happened to an event."),
    "health": ("dispatcher.cli.health", "Say whether a worker of this host lives."),
    "limits": ("dispatcher.cli.limits", "Check limits, put them in force, show their use."),
    "metrics": ("dispatcher.cli.metrics", "Print the figures that Prometheus reads, once."),
    "mute": ("dispatcher.cli.mute", "Suppress a category for a time."),
    "parked": ("dispatcher.cli.parked", "Look at what waits, or cancel it."),
    "pause": ("dispatcher.cli.pause", "Stop posting; everything waits."),
    "resume": ("dispatcher.cli.pause", "Resume posting."),
    "send": ("dispatcher.cli.send", "Put events on the queue, and print their ids."),
    "serve": ("dispatcher.cli.serve", "Take events over HTTP, and let operators look."),
    "silence": ("dispatcher.cli.silence", "Suppress what matches for a time."),
    "simulate": ("dispatcher.cli.simulate", "Show what limits would have done to recorded events."),
    "slack-stand-in": ("dispatcher.cli.stand_in", "Run a local Slack that shows what is posted to it."),
    "status": ("dispatcher.cli.status", "Show what waits, what was sent, and what limits are used."),
    "unmute": ("dispatcher.cli.mute", "End the mute of a category."),
    "up": ("dispatcher.cli.up", "Run all that one machine needs."),
    "worker": ("dispatcher.cli.worker", "Post what waits on the queue, within the limits."),
}
"""Of each command the module it lies in, and what it does in a few words."""


class _Commands(click.Group):
    """The commands of the table, each loaded to be run: their list loads none."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **options)
        for name, (_, does) in _COMMANDS.items():
            self.add_command(click.Command(name, short_help=does))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if name is None or listed is None else _load(name), rest


def _load(name: str) -> click.Command:
    command: click.Command = getattr(import_module(_COMMANDS[name][0]), name.replace("-", "_"))
    add_examples(name, command)
    return command


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


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="notification-dispatcher", message="%(prog)s %(version)s")
def dispatcher() -> None:
    """Post notifications from a Redis queue to Slack, never more than the limits allow.

    Start with "dispatcher demo": the whole way of 300 events, with a server and a Slack of its own. Settings come
    from DISPATCHER_* variables and .env, limits from config/limits.yaml.
    """

"""The examples at the end of every ``--help``; each is a command that can be typed as it stands."""

from __future__ import annotations

from typing import Final

import click

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "audit": ("dispatcher audit", "dispatcher audit --limit 10 --json"),
    "dead": ("dispatcher dead list", "dispatcher dead replay --category errors --dry-run"),
    "dead list": (
        "dispatcher dead list --category errors --since 2h",
        "dispatcher dead list --since yesterday --before today",
        "dispatcher dead list --text 'disk db1'",
    ),
    "dead purge": ("dispatcher dead purge --category errors --yes", "dispatcher dead purge --text 'test message'"),
    "dead replay": (
        "dispatcher dead replay api-2.4 --wait",
        "dispatcher dead replay --reason expired --dry-run",
        "dispatcher dead replay --code channel_not_found --to ops",
        "dispatcher dead replay --text 'disk db1' --dry-run",
    ),
    "dead show": ("dispatcher dead show api-2.4",),
    "demo": ("dispatcher demo", "dispatcher demo --json"),
    "doctor": ("dispatcher doctor", "dispatcher doctor --json"),
    "events": ("dispatcher events --category errors --since 2h", "dispatcher events --follow --outcome dropped"),
    "explain": ("dispatcher explain api-2.4",),
    "health": ("dispatcher health", "dispatcher health --ready"),
    "limits": ("dispatcher limits check", "dispatcher limits apply config/limits.yaml"),
    "limits apply": (
        "dispatcher limits apply config/limits.yaml",
        "dispatcher limits apply config/limits.yaml --if-version 3",
    ),
    "limits check": ("dispatcher limits check", "dispatcher limits check config/limits.yaml"),
    "limits diff": ("dispatcher limits diff", "dispatcher limits diff config/limits.yaml"),
    "limits history": ("dispatcher limits history", "dispatcher limits history --json"),
    "limits rollback": ("dispatcher limits rollback 3",),
    "limits schema": ("dispatcher limits schema > limits.schema.json",),
    "limits show": ("dispatcher limits show", "dispatcher limits show --json"),
    "mute": ("dispatcher mute chatter --for 2h --why 'deploy of the chat server'",),
    "parked": ("dispatcher parked list", "dispatcher parked cancel api-2.4 --yes"),
    "parked cancel": ("dispatcher parked cancel api-2.4 --yes", "dispatcher parked cancel --text 'old news'"),
    "parked list": ("dispatcher parked list", "dispatcher parked list --text 'disk db1' --json"),
    "parked show": ("dispatcher parked show api-2.4",),
    "metrics": ("dispatcher metrics", "dispatcher metrics > /var/lib/node_exporter/dispatcher.prom"),
    "pause": ("dispatcher pause --why 'Slack is being moved'", "dispatcher pause chatter"),
    "resume": ("dispatcher resume", "dispatcher resume chatter"),
    "send": (
        "dispatcher send errors 'disk full on db1' --channel storage --id disk-db1",
        "df -h | dispatcher send reports -",
        "dispatcher send errors < error.txt",
        "dispatcher send --stdin < events.jsonl",
    ),
    "serve": ("dispatcher serve", "dispatcher serve --host 0.0.0.0 --tokens tokens.txt"),
    "silence": (
        "dispatcher silence add host=db1 severity!=critical --for 2h --why 'new disk'",
        "dispatcher silence list",
    ),
    "silence add": (
        "dispatcher silence add host=db1 severity!=critical --for 2h --why 'new disk'",
        "dispatcher silence add team=db --start 2026-11-21T22:00 --for 8h --why patch",
        "dispatcher silence add host=db2 --for 7d --until-resolved --why repair",
    ),
    "silence expire": ("dispatcher silence expire 7",),
    "silence list": ("dispatcher silence list", "dispatcher silence list --json"),
    "silence preview": ("dispatcher silence preview 'host=db*' priority=low",),
    "silence show": ("dispatcher silence show 7",),
    "simulate": (
        "dispatcher simulate events.jsonl --limits new.yaml --against live",
        "dispatcher simulate --from-redis 48h --suggest 'lose 1%' > suggested.yaml",
        "dispatcher simulate worker.log --limits new.yaml --svg before-and-after.svg",
    ),
    "slack-stand-in": ("dispatcher slack-stand-in --port 8901",),
    "status": (
        "dispatcher status",
        "dispatcher status --watch",
        "dispatcher status --check",
        "dispatcher status --category 'svc-*' --sort dropped",
    ),
    "unmute": ("dispatcher unmute chatter",),
    "up": ("dispatcher up --processes 2",),
    "worker": ("dispatcher worker --processes 4", "dispatcher worker --burst"),
}
"""Of each command by its whole name."""


def add_examples(name: str, command: click.Command) -> None:
    """Put the examples of a command, and of those below it, behind what its help says already."""
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            add_examples(f"{name} {below}", each)
    shown = "\n".join(("\b", "Examples:", *(f"  {example}" for example in EXAMPLES[name])))
    command.epilog = f"{command.epilog}\n\n{shown}" if command.epilog else shown

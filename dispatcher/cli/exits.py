"""How a command ends: its exit codes, and the one place that turns an error into a message and a code."""

from __future__ import annotations

import io
import sys
import traceback
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.terminal import visible
from dispatcher.errors import (
    ConfigError,
    DispatcherError,
    GateUnavailable,
    InvalidEvent,
    QueueFull,
    QueueUnavailable,
)

if TYPE_CHECKING:
    from dispatcher.cli.terminal import Terminal

DONE: Final = 0
DOES_NOT_HOLD: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 69
DEFECT: Final = 70
QUEUE_FULL: Final = 75
CONFIGURATION: Final = 78
INTERRUPTED: Final = 130


class Ended(Exception):
    """Ends a command with this code and one message line for each of ``lines``."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.code = code
        self.lines = lines


def conclude(error: Exception, terminal: Terminal) -> int:  # noqa: C901 - one case for each kind of end
    """Say on stderr what ended the command; returns its exit code.

    Only a defect of ours is shown with its traceback.
    """
    lines: tuple[str, ...] = (str(error),)
    match error:
        case click.ClickException():
            _show(error)
            return error.exit_code
        case Ended(code=code, lines=lines):
            pass
        case ConfigError(problems=lines):
            code = CONFIGURATION
        case click.Abort():
            code, lines = INTERRUPTED, ("interrupted",)
        case GateUnavailable() | QueueUnavailable():
            code = UNREACHABLE
        case QueueFull():
            code = QUEUE_FULL
        case InvalidEvent():
            code = USAGE
        case OSError(filename=None, strerror=str(reason)):
            code, lines = DOES_NOT_HOLD, (reason,)
        case DispatcherError() | OSError():
            code = DOES_NOT_HOLD
        case _ if _is_refusal(error):
            code, lines = CONFIGURATION, (f"the server refuses a command: {error}",)
        case _:
            terminal.show_defect("".join(traceback.format_exception(error)))
            return DEFECT
    for line in lines:
        terminal.fail(line)
    return code


def _show(error: click.ClickException) -> None:
    """As click would, but the arguments it quotes do nothing to a terminal."""
    said = io.StringIO()
    error.show(said)
    for line in said.getvalue().splitlines():
        click.echo(visible(line), err=True)


def _is_refusal(error: Exception) -> bool:
    """Whether a server that answers will not do what we ask: no permission, not a server for us."""
    redis = sys.modules.get("redis")  # not imported for this: without it no server was spoken to
    return redis is not None and isinstance(error, redis.RedisError)

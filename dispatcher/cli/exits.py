"""How a command ends: its exit codes, and the one place that turns an error into a message and a code."""

from __future__ import annotations

import io
import sys
import traceback
from typing import TYPE_CHECKING, Final

import click

from dispatcher.core.units import visible
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
    error = _in_our_words(error)
    lines: tuple[str, ...] = (str(error),)
    match error:
        case click.ClickException():
            _show(error, terminal)
            return error.exit_code
        case Ended(code=code, lines=lines):
            pass
        case ConfigError(problems=lines):
            code = CONFIGURATION
            terminal.warn(*error.warnings)
        case click.Abort():
            terminal.say("interrupted")
            return INTERRUPTED
        case GateUnavailable() | QueueUnavailable():
            code = UNREACHABLE
        case QueueFull():
            code = QUEUE_FULL
        case InvalidEvent():
            code = USAGE
        case OSError(filename=None, strerror=str(reason)):
            code, lines = DOES_NOT_HOLD, (reason,)
        case OSError(filename=str(file), strerror=str(reason)):
            code, lines = CONFIGURATION, (f"{file} cannot be used: {reason}",)
        case DispatcherError() | OSError():
            code = DOES_NOT_HOLD
        case _:
            terminal.show_defect("".join(traceback.format_exception(error)))
            return DEFECT
    for line in lines:
        terminal.fail(line)
    return code


def _show(error: click.ClickException, terminal: Terminal) -> None:
    """As click would, but the arguments it quotes do nothing to a terminal."""
    said = io.StringIO()
    error.show(said)
    terminal.complain("\n".join(map(visible, said.getvalue().splitlines())))


def _in_our_words(error: Exception) -> Exception:
    """What a server that answers will not do for us, as a matter of configuration; any other error as it is."""
    redis = sys.modules.get("redis")  # not imported for this: without it no server was spoken to
    if redis is None or not isinstance(error, redis.RedisError):
        return error
    from dispatcher.server.connection import translate_refusals

    try:
        with translate_refusals():
            raise error  # noqa: TRY301 - by whom else should it be translated
    except Exception as translated:  # noqa: BLE001 - it is the answer
        return translated

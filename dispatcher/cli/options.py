"""Options that several commands have, and who it is that gives them."""

from __future__ import annotations

import getpass
import os
import socket

import click

from dispatcher.model import parse_duration


class Span(click.ParamType[int]):
    """A span such as ``2h``, in microseconds."""

    name = "SPAN"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """See click."""
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def operator() -> str:
    """Who runs the command, for the record: ``ops@host``."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container may run as a number without a name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"

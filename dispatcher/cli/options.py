"""Options that several commands have, and who it is that gives them."""

from __future__ import annotations

import os
import socket
from typing import Final

import click

from dispatcher.core.units import US, seconds_of

MOST_WORDS: Final = 200
"""Characters of a reason, which stands in every line about an event that it suppresses."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


class Category(click.ParamType[str]):
    """The name of a category."""

    name = "CATEGORY"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See click."""
        from dispatcher.core.event import CATEGORY

        text = str(value)
        if CATEGORY.fullmatch(text) is None:
            self.fail(f"{text!r} is no category, expected 1 to 64 of A-Z a-z 0-9 _ . : -", param, ctx)
        return text


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
            return round(seconds_of(str(value)) * US)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def words(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """A reason in a few words; raises ``BadParameter``."""
    if value is None:
        return None
    text = value.strip()
    if not 1 <= len(text) <= MOST_WORDS or not text.isprintable():
        raise click.BadParameter(f"expected 1 to {MOST_WORDS} printable characters")
    return text


def operator() -> str:
    """Who runs the command, for the record: ``ops@host``."""
    import getpass

    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container may run as a number without a name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"

"""Options that several commands have, and who it is that gives them."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from dispatcher.core.typed_instants import read_when
from dispatcher.core.units import CHANNEL_ID, CHANNEL_NAME, MOST_WORDS, US, length_us, seconds_of

if TYPE_CHECKING:
    from dispatcher.core.limits import Reason

AT_LEAST_ONE: Final = click.IntRange(1, 1_000_000_000)
"""How many are wanted, or which version: more than there ever are, and small enough for the server and islice."""

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Parsed(click.ParamType[_T]):
    """An argument that ``parse`` understands; its ``ValueError`` says what was given and what was expected."""

    def __init__(self, name: str, parse: Callable[[str], _T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _T:  # noqa: ANN401 - the parent's signature
        """See click, which converts a value of another type than text no more."""
        if not isinstance(value, str):
            return cast("_T", value)
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class FiniteRange(click.FloatRange):
    """A number that is neither infinite nor nan, which no range refuses."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - the parent's signature
        """See click."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


def _category(text: str) -> str:
    from dispatcher.core.units import CATEGORY, CATEGORY_WORDS

    if CATEGORY.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no category, expected {CATEGORY_WORDS}")
    return text


def _channel(text: str) -> str:
    if not CHANNEL_NAME.fullmatch(text.removeprefix("#")) and not CHANNEL_ID.fullmatch(text):
        raise ValueError(f"{text!r}, expected a name such as ops or '#ops', or an id such as C0123ABCD")
    return text


def _event_id(text: str) -> str:
    if not text:
        raise ValueError(f"{text!r}, expected an id")
    return text


def _words(text: str) -> tuple[str, ...]:
    found = tuple(text.casefold().split())
    if not found:
        raise ValueError(f"{text!r}, expected words such as 'disk full'")
    return found


CATEGORY_NAME: Final = Parsed("CATEGORY", _category)
CHANNEL: Final = Parsed("CHANNEL", _channel)
EVENT_ID: Final = Parsed("ID", _event_id)
WHEN: Final = Parsed("TIME", read_when)
SPAN_US: Final = Parsed("SPAN", lambda text: round(seconds_of(text) * US))
LENGTH_US: Final = Parsed("SPAN", length_us)
SPAN_S: Final = Parsed("SPAN", seconds_of)
WORDS: Final = Parsed("WORDS", _words)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
at_most = click.option("--limit", type=AT_LEAST_ONE, metavar="N", default=50, show_default=True, help="At most N.")
of_category = click.option("--category", metavar="NAME", help="Only of this category.")
with_words = click.option(
    "--text", "words", type=WORDS, help="Only those with all these words in their text, in any case."
)


def together(*options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    """Several options as one, in this order."""

    def decorate(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def for_reason(reasons: Iterable[Reason]) -> Callable[[_Function], _Function]:
    """An option that takes one of the reasons."""
    names = [each.value for each in reasons]
    return click.option(
        "--reason", type=click.Choice(names), metavar="REASON", help=f"Only for this reason: {', '.join(names)}."
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events a command is told to act on: some by id, those of a filter, or all."""

    ids: tuple[str, ...]
    everything: bool
    limit: int | None
    filters: dict[str, Any]

    def checked(self, unsaid: str) -> Selection:
        """Itself, where it says one thing; raises ``UsageError``, with ``unsaid`` where it says nothing."""
        given = [bool(self.ids), self.everything, any(value is not None for value in self.filters.values())]
        if not any(given):
            raise click.UsageError(unsaid)
        if sum(given) > 1 or (self.ids and self.limit):
            raise click.UsageError("Give either ids, or filters, or --all, not several of these.")
        return self


def reason(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
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

"""Parts of ``drawing`` on a screen that is drawn anew again and again, which is rich's matter. Imports rich."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions
from rich.text import Text

from dispatcher.cli.drawing import Look, Part, painted


class OnRich:
    """A part as rich draws it."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """In as many columns as there are."""
        del console
        for line in self._part.lines(options.max_width):
            shown = painted(line, Look(is_ascii=options.ascii_only, is_styled=True))
            yield Text.from_ansi(shown, no_wrap=True, overflow="ignore")

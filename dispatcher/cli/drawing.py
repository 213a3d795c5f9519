"""Tables, bars and styled text for stdout, which say the same without colour and, where need be, in ASCII.

A part says how much room it takes (``widths``) and draws itself into the room there is (``lines``). What moves on a
screen is rich's matter: ``dispatcher/cli/live.py`` hands these parts to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple, Protocol, TypeAlias

from dispatcher.core.rendering import one_line

FULL: Final = "█"
LIGHT: Final = "░"
DOT: Final = "·"
_RULE: Final = "─"
_ELLIPSIS: Final = "…"
_LONGEST: Final = 2_000
"""Characters of a fact."""

_READABLE: Final = 12
"""Characters of a name that tell it from others."""
_IN_ASCII: Final = str.maketrans({FULL: "#", LIGHT: "-", DOT: ".", _RULE: "-", _ELLIPSIS: "."})
_OWN: Final = f"{FULL}{LIGHT}{DOT}{_ELLIPSIS}"
_GAP: Final = "  "
"""Between two columns."""

_BAR: Final = 10
"""Characters of a bar."""

_WORD: Final = re.compile(r"\s*\S+\s*")
_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_EMPHASIS: Final = frozenset({"bold", "dim"})

Piece: TypeAlias = tuple[str, str]
"""Text without line breaks, and its style: words of ``_CODES``."""
Line: TypeAlias = Sequence[Piece]


class Part(Protocol):
    """Something to draw."""

    def widths(self) -> tuple[int, int]:
        """How many columns of a terminal it needs: squeezed, and to show all of it."""
        ...

    def lines(self, room: int) -> list[Line]:
        """It, in lines of at most so many columns."""
        ...


class Look(NamedTuple):
    """What a stream shows: only ASCII or all characters, no styles, weights alone, or colours too."""

    is_ascii: bool
    is_styled: bool
    has_colours: bool = True


def painted(line: Line, look: Look) -> str:
    """A line as a stream gets it, without blanks at its end."""
    pieces = list(line)
    while pieces and not (last := pieces[-1][0].rstrip(" ")):
        pieces.pop()
    if not pieces:
        return ""
    pieces[-1] = (last, pieces[-1][1])
    if look.is_ascii:
        pieces = [(text.translate(_IN_ASCII), style) for text, style in pieces]
    if not look.is_styled:
        return "".join(text for text, _ in pieces)
    return "".join(_styled(text, style, has_colours=look.has_colours) for text, style in pieces)


def _styled(text: str, style: str, *, has_colours: bool) -> str:
    words = [word for word in style.split() if has_colours or word in _EMPHASIS]
    return f"\x1b[{';'.join(_CODES[word] for word in words)}m{text}\x1b[0m" if words and text else text


def width_of(text: str) -> int:
    """How many columns of a terminal a text takes: some characters take two, some none."""
    if text.strip(_OWN).isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


class Text(NamedTuple):
    """Text that breaks between words. A word that has no room is broken where it ``folds``, else it gets an ellipsis.

    ``pieces``, where there are any, are its text instead, each in its own style.
    """

    text: str = ""
    style: str = ""
    pieces: Sequence[Piece] = ()
    folds: bool = False
    breaks: bool = True

    def widths(self) -> tuple[int, int]:
        """Of its longest word, and of its longest line."""
        plain = self._plain()
        whole = max(map(width_of, plain.splitlines()), default=0)
        return max(map(width_of, plain.split()), default=whole), whole

    def lines(self, room: int) -> list[Line]:
        """Broken between words."""
        pieces = self.pieces or ((self.text, self.style),)
        drawn: list[Line] = []
        begin = 0
        for line in self._plain().split("\n"):
            drawn += [
                _cut(_between(pieces, begin + start, begin + end), room)
                for start, end in _broken(line, room if self.breaks else width_of(line), folds=self.folds)
            ]
            begin += len(line) + 1
        return drawn

    def _plain(self) -> str:
        return "".join(text for text, _ in self.pieces) if self.pieces else self.text


EMPTY: Final = Text()


def joined(separator: str, parts: Iterable[Text]) -> Text:
    """Several texts as one, each in its style."""
    pieces: list[Piece] = []
    for number, part in enumerate(parts):
        pieces += [(separator, "")] if number else []
        pieces += part.pieces or [(part.text, part.style)]
    return Text(pieces=pieces)


class Bar(NamedTuple):
    """Pieces one after another in one line: how long, of what, in which style."""

    pieces: tuple[tuple[int, str, str], ...]

    def widths(self) -> tuple[int, int]:
        """As wide as its pieces."""
        width = sum(length for length, _, _ in self.pieces)
        return width, width

    def lines(self, room: int) -> list[Line]:
        """Cut where there is too little room."""
        return [_cut([(char * length, style) for length, char, style in self.pieces], room)]


class OneLine(NamedTuple):
    """Text in one line, whole; where it may give way, no shorter than ``shortest`` if that is possible."""

    text: str
    style: str = ""
    shortest: int | None = None

    def widths(self) -> tuple[int, int]:
        """Its shortest and the whole of it."""
        whole = width_of(self.text)
        return (whole if self.shortest is None else min(whole, self.shortest)), whole

    def lines(self, room: int) -> list[Line]:
        """With an ellipsis where there is too little room."""
        return [_cut([(self.text, self.style)], room)]


class Group:
    """Parts below each other."""

    def __init__(self, *parts: Part | str) -> None:
        self.parts = [_part(each) for each in parts]

    def widths(self) -> tuple[int, int]:
        """Of the widest."""
        shortest, whole = zip(*(part.widths() for part in self.parts), strict=True) if self.parts else ((0,), (0,))
        return max(shortest), max(whole)

    def lines(self, room: int) -> list[Line]:
        """Of all of them."""
        return [line for part in self.parts for line in part.lines(room)]


class Fitting:
    """The first form of something where all of it has room, else the first other that fits squeezed, else the last."""

    def __init__(self, first: Callable[[], Part], *others: Callable[[], Part]) -> None:
        self._first = first
        self._others = others

    def widths(self) -> tuple[int, int]:
        """Of the last form squeezed, and of the first."""
        forms = (self._first, *self._others)
        return forms[-1]().widths()[0], self._first().widths()[1]

    def lines(self, room: int) -> list[Line]:
        """In the form that fits."""
        form = self._first()
        if form.widths()[1] > room:
            for build in self._others:
                form = build()
                if form.widths()[0] <= room:
                    break
        return form.lines(room)


class Filling:
    """What ``draw`` makes of so many rows, of as many as ``height`` has room for and at least ``fewest``.

    Where ``height`` has no room for these either, its last line says how many lines are left out.
    """

    def __init__(self, draw: Callable[[int], Part], height: int, fewest: int) -> None:
        self._draw = draw
        self._height = height
        self._fewest = fewest

    def widths(self) -> tuple[int, int]:
        """Of the most rows."""
        return self._draw(max(self._fewest, self._height)).widths()

    def lines(self, room: int) -> list[Line]:
        """With the most rows that fit."""
        few, many = self._fewest, max(self._fewest, self._height)
        while few < many:
            rows = (few + many + 1) // 2
            if len(self._draw(rows).lines(room)) <= self._height:
                few = rows
            else:
                many = rows - 1
        drawn = self._draw(few).lines(room)
        if (left_out := len(drawn) - self._height + 1) > 1:
            drawn[self._height - 1 :] = OneLine(f"and {left_out} more lines on a larger screen", "dim").lines(room)
        return drawn


class Column(NamedTuple):
    """What a column holds, and how that is drawn: one that ``breaks`` gives room, the widest column first.

    ``width`` is how wide it always is, ``least`` how wide it is at least; to one that ``folds`` this is enough.
    """

    heading: Part
    cells: list[Part]
    style: str = ""
    is_right: bool = False
    breaks: bool = True
    folds: bool = False
    footing: str = ""
    width: int | None = None
    least: int = 0


class Table:
    """Columns with a gap between them; with headings and a rule below them, unless ``is_grid``.

    Where there is too little room, the widest of the columns that may break give way first. Where that is not enough,
    all give way alike.
    """

    def __init__(self, *, is_grid: bool = False, has_footer: bool = False) -> None:
        self._is_grid = is_grid
        self._has_footer = has_footer
        self._columns: list[Column] = []
        self._sections: set[int] = set()
        self._notes: dict[int, Part] = {}

    def add_column(  # noqa: PLR0913 - what there is to say of a column, by name
        self,
        heading: str | OneLine = "",
        footing: str = "",
        *,
        style: str = "",
        is_right: bool = False,
        breaks: bool = True,
        folds: bool = False,
        width: int | None = None,
        least: int = 0,
    ) -> None:
        """Adds a column on the right, before the first row."""
        head = Text(heading, "bold") if isinstance(heading, str) else OneLine(heading.text, "bold", heading.shortest)
        self._columns.append(Column(head, [], style, is_right, breaks, folds, footing, width, least))

    def add_row(self, *cells: Part | str) -> None:
        """Adds a row; columns without a cell stay empty."""
        for column, cell in zip_longest(self._columns, cells, fillvalue=""):
            assert isinstance(column, Column), "a cell for each column at most"  # noqa: S101 - narrows the type
            column.cells.append(_part(cell))

    def add_note(self, note: Part) -> None:
        """Adds a row that goes across all columns, and takes no part in how wide they are."""
        self._notes[self._rows()] = note
        self.add_row()

    def add_section(self) -> None:
        """Leaves an empty line below the rows so far, if others follow."""
        self._sections.add(self._rows())

    def widths(self) -> tuple[int, int]:
        """Of all columns and the gaps."""
        measured = [self._measured(column) for column in self._columns]
        gaps = len(_GAP) * max(0, len(measured) - 1)
        return sum(shortest for shortest, _ in measured) + gaps, sum(whole for _, whole in measured) + gaps

    def lines(self, room: int) -> list[Line]:
        """With a line or more for each row."""
        widths = self._squeezed(room)
        drawn: list[Line] = []
        if not self._is_grid:
            drawn += self._row([column.heading for column in self._columns], widths, "bold", is_low=True)
            drawn.append([(_RULE * (sum(widths) + len(self._divider) * (len(widths) - 1)), "")])
        for number in range(self._rows()):
            if number and number in self._sections:
                drawn.append([])
            note = self._notes.get(number)
            cells = [column.cells[number] for column in self._columns]
            drawn += self._row(cells, widths) if note is None else note.lines(room)
        if self._has_footer:
            drawn.append([])
            drawn += self._row([Text(column.footing) for column in self._columns], widths, "bold")
        return drawn

    @property
    def _divider(self) -> str:
        """The part of a gap that stays when columns have given all they have."""
        return "" if self._is_grid else " "

    def _pads(self) -> list[int]:
        """The other part of the gap behind each column, which counts as the column's."""
        return [len(_GAP) - len(self._divider)] * (len(self._columns) - 1) + [0] * min(1, len(self._columns))

    def _rows(self) -> int:
        return len(self._columns[0].cells) if self._columns else 0

    def _measured(self, column: Column) -> tuple[int, int]:
        if column.width is not None:
            return column.width, column.width
        parts = [*([] if self._is_grid else [column.heading]), *column.cells]
        parts += [Text(column.footing)] if self._has_footer else []
        measured = [part.widths() for part in parts]
        shortest = max((each for each, _ in measured), default=1)
        shortest = min(shortest, column.least) if column.folds and column.least else shortest
        whole = max((each for _, each in measured), default=1)
        return max(shortest, column.least), max(whole, column.least, 1)

    def _squeezed(self, room: int) -> list[int]:
        """How wide each column is, with its part of the gap behind it."""
        room -= len(self._divider) * (len(self._columns) - 1)
        widths = [
            min(self._measured(column)[1] + pad, room) for column, pad in zip(self._columns, self._pads(), strict=True)
        ]
        may_give = [column.breaks and column.width is None for column in self._columns]
        while (excess := sum(widths) - room) > 0 and any(may_give):
            able = sorted({width for width, may in zip(widths, may_give, strict=True) if may} | {0}, reverse=True)
            if len(able) == 1:
                break
            givers = [may and width == able[0] for width, may in zip(widths, may_give, strict=True)]
            widths = _reduced(widths, excess, givers, able[0] - able[1])
        return _reduced(widths, excess, [True] * len(widths), excess) if excess > 0 else widths

    def _row(
        self, cells: Sequence[Part], widths: Sequence[int], style: str = "", *, is_low: bool = False
    ) -> Iterator[Line]:
        """The lines of a row, as many as its highest cell has; ``is_low``: lower ones stand at the bottom."""
        columns = list(zip(self._columns, cells, widths, self._pads(), strict=True))
        blocks = [
            _flowing(cell, column).lines(width - pad) if width > pad else [] for column, cell, width, pad in columns
        ]
        height = max(map(len, blocks), default=0)
        if is_low:
            blocks = [[*([()] * (height - len(block))), *block] for block in blocks]
        for number in range(height):
            row: list[Piece] = []
            for (column, _, width, pad), block in zip(columns, blocks, strict=True):
                line = block[number] if number < len(block) else ()
                blank = " " * (width - min(pad, width) - sum(width_of(text) for text, _ in line))
                row += [(blank, "")] if column.is_right else []
                row += [(text, f"{style or column.style} {own}") for text, own in line]
                row.append((("" if column.is_right else blank) + " " * min(pad, width) + self._divider, ""))
            yield row


def named_facts(facts: Iterable[tuple[str, str | Text]]) -> Table:
    """Each fact beside its name; one that says nothing is left out."""
    grid = Table(is_grid=True)
    grid.add_column(style="bold")
    grid.add_column(folds=True)
    for name, fact in facts:
        if fact:
            grid.add_row(name, Text(one_line(fact, _LONGEST)) if isinstance(fact, str) else fact)
    return grid


def _part(cell: Part | str) -> Part:
    return Text(cell) if isinstance(cell, str) else cell


def _flowing(cell: Part, column: Column) -> Part:
    """A cell whose text breaks and folds as its column says."""
    if isinstance(cell, Text):
        return cell._replace(breaks=cell.breaks and column.breaks, folds=column.folds)
    if isinstance(cell, Group):
        return Group(*(_flowing(part, column) for part in cell.parts))
    return cell


def _reduced(widths: Sequence[int], excess: int, givers: Sequence[bool], most: int) -> list[int]:
    """The widths of the givers less what is too much, spread evenly, but none of them by more than ``most``."""
    givers = [gives and width > 0 for width, gives in zip(widths, givers, strict=True)]
    left, reduced = sum(givers), []
    for width, gives in zip(widths, givers, strict=True):
        part = min(most, width, round(excess / left)) if gives else 0
        excess -= part
        left -= gives
        reduced.append(width - part)
    return reduced


def _broken(text: str, room: int, *, folds: bool) -> Iterator[tuple[int, int]]:
    """Where the lines of a text begin and end when it is broken between words, blanks at their ends left out."""
    begin = used = 0
    for word in _WORD.finditer(text):
        start, end = word.span()
        needed = width_of(word[0].rstrip())
        if used + needed > room and start > begin:
            yield begin, len(text[:start].rstrip())
            begin, used = start, 0
        while folds and needed > room > 0:
            fitting = _fitting(text[begin:end], room)
            yield begin, begin + fitting
            begin += fitting
            needed = width_of(text[begin:end].rstrip())
        used += width_of(text[max(begin, start) : end])
    yield begin, max(begin, len(text.rstrip()))


def _fitting(text: str, room: int) -> int:
    """How many characters of a text have room; at least one."""
    if text.isascii():
        return max(1, min(len(text), room))
    used = 0
    for number, char in enumerate(text):
        used += width_of(char)
        if used > room:
            return max(1, number)
    return len(text)


def _between(pieces: Sequence[Piece], begin: int, end: int) -> list[Piece]:
    """The characters from ``begin`` to ``end`` of the pieces together."""
    found, at = [], 0
    for text, style in pieces:
        if part := text[max(0, begin - at) : max(0, end - at)]:
            found.append((part, style))
        at += len(text)
    return found


def _cut(pieces: Sequence[Piece], room: int) -> list[Piece]:
    """The pieces, with an ellipsis at the end where not all of them have room."""
    if sum(width_of(text) for text, _ in pieces) <= room:
        return list(pieces)
    if room < 1:
        return []
    kept: list[Piece] = []
    left = room - 1
    for text, style in pieces:
        width = width_of(text)
        if width > left:
            fitting = _fitting(text, left) if left and width_of(text[0]) <= left else 0
            return [*kept, (text[:fitting] + _ELLIPSIS, style)]
        kept.append((text, style))
        left -= width
    return kept


def cut(text: str, style: str = "") -> OneLine:
    """A name in one line, with an ellipsis where it is longer than its column."""
    return OneLine(text, style, _READABLE)


def share_bar(part: int, whole: int, style: str) -> Bar:
    """How much of the ``whole`` the ``part`` is; anything at all is at least one character."""
    length = min(_BAR, max(part * _BAR // whole, 1 if part else 0))
    return Bar(((length, FULL, style), (_BAR - length, LIGHT, "dim")))

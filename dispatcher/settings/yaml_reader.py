"""Reads YAML text into a ``Tree``.

Works on the parser's events, so that everything with more than one meaning (repeated keys, anchors, aliases,
tags, several documents) is refused where it stands, and what was read before a syntax error is still checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from dispatcher.core.units import is_utf8
from dispatcher.settings.redaction import looks_secret, redacted
from dispatcher.settings.yaml_tree import Path, Position, Tree

Put: TypeAlias = Callable[[Any], None]

MAX_DEPTH: Final = 16
"""Nesting beyond this is refused; the parser's effort grows with its square."""

_NAME_AS_COMMENT: Final = re.compile(r"\s*:?\s*(#[^\s,:\]}#]+)")
_NAME_AS_COMMENT_IN_FLOW: Final = re.compile(r"[,:{\[]\s*(#[^\s,:\]}#]+)")
_VERSION: Final = re.compile(r"%YAML 1\.2\s*")
_NOT_PLAIN: Final = re.compile("[\x85\u2028\u2029\ufeff]")
"""Line breaks of older YAML versions, and byte order marks that are not at the beginning."""
_CANNOT_START: Final = re.compile(r"found character '(\\t|.)' that cannot start any token")

_LONGEST_NUMBER: Final = 300

Scalar: TypeAlias = str | int | float | bool | None

_READERS: Final[tuple[tuple[re.Pattern[str], Callable[[str], Scalar]], ...]] = (
    (re.compile(r"~|null|Null|NULL|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+"), lambda text: int(text, 0)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
)


def read_yaml(text: str) -> Tree:
    """The only document in ``text``, read by YAML 1.2's core schema; never raises for what the text holds.

    ``data`` is what could be read; the rest stands in ``problems``.
    """
    return _Reader(text).read()


class _UnreadableError(Exception):
    """What follows cannot be understood; the problem is already noted. Never leaves this module."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text.removeprefix("\ufeff")
        self.tree = Tree(re.split(r"\r\n|\n|\r", self.text))
        self.events: Iterator[Event] = iter(())

    def read(self) -> Tree:
        try:
            self._refuse_other_meanings()
            self.events = YAML(typ="safe", pure=True).parse(self.text)
            self._read_document()
        except _UnreadableError:
            pass
        except ReaderError as error:
            self.tree.note(self._at(error.position), (), "a control character, expected text")
        except MarkedYAMLError as error:
            self._note_syntax(error)
        except YAMLError as error:
            self._note_below(str(error))
        except (ValueError, OverflowError):  # chr() of a number that is too large
            self._note_below("an escape such as \\U stands for no character")
        return self.tree

    def _note_below(self, text: str) -> None:
        self.tree.note(self._last_read(), (), f"not valid YAML here or below: {text}")

    def _last_read(self) -> Position:
        return next(reversed(self.tree.values.values()), Position(1, 1))

    def _refuse_other_meanings(self) -> None:
        """Refuses, before the parser sees it, what would change where lines end or what words mean."""
        if odd := _NOT_PLAIN.search(self.text):
            text = f"the character U+{ord(odd[0]):04X}, expected plain text and line breaks"
            self.tree.note(self._at(odd.start()), (), text)
            raise _UnreadableError
        for number, line in enumerate(self.tree.lines, 1):
            if line.startswith("%") and not _VERSION.fullmatch(line):
                self.tree.note(Position(number, 1), (), "a directive, expected none but %YAML 1.2")
                raise _UnreadableError

    def _read_document(self) -> None:
        for event in self.events:
            if isinstance(event, NodeEvent):
                self._read_node(event, (), partial(setattr, self.tree, "data"))
                break
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                self.tree.note(_start(event), (), "a second document, expected one")
                return

    def _read_node(self, event: Event, path: Path, put: Put) -> None:
        """Puts the value that begins with ``event`` where it belongs; a container before it is filled."""
        self.tree.values[path] = _start(event)
        self._refuse_depth(len(path), event, path)
        self._refuse_indirection(event, path)
        match event:
            case ScalarEvent():
                put(self._scalar(event, path))
            case SequenceStartEvent():
                entries: list[Any] = []
                put(entries)
                self._fill_list(entries, path)
            case MappingStartEvent():
                mapping: dict[str, Any] = {}
                put(mapping)
                self._fill_mapping(mapping, path)
            case _:  # an alias
                put(None)

    def _fill_list(self, entries: list[Any], path: Path) -> None:
        while not isinstance(event := next(self.events), SequenceEndEvent):
            self._read_node(event, (*path, len(entries)), entries.append)

    def _fill_mapping(self, mapping: dict[str, Any], path: Path) -> None:
        while not isinstance(event := next(self.events), MappingEndEvent):
            key = self._read_key(event, path)
            if key is None:
                self._skip(next(self.events), path)
            elif first := self.tree.keys.get((*path, key)):
                text = f"stands twice, first in line {first.line}; expected each key once"
                self.tree.note(_start(event), (*path, key), text)
                self._skip(next(self.events), path)
            else:
                self.tree.keys[*path, key] = _start(event)
                self._read_node(next(self.events), (*path, key), partial(mapping.__setitem__, key))
                if mapping[key] is None:
                    self._explain_empty((*path, key), event)

    def _read_key(self, event: Event, path: Path) -> str | None:
        """A key as text, or ``None`` with a problem noted."""
        if not isinstance(event, ScalarEvent):
            self.tree.note(_start(event), path, "a key that is no text, expected a name")
            self._skip(event, path)
            return None
        key = _value(event)
        if not isinstance(key, str):
            hint = "" if key is None else f'; write "{event.value}" in quotes'
            self.tree.note(_start(event), path, f"the key {redacted(key)}, expected a name{hint}")
            return None
        self._refuse_indirection(event, (*path, key))
        if self._is_refused(key, event, (*path, key)):
            return None
        if _is_bare(event):
            self.tree.bare_keys.add((*path, key))
        return key

    def _skip(self, event: Event, path: Path) -> None:
        """Reads over a node; what stands in it is not looked at."""
        depth = 0
        while True:
            match event:
                case SequenceStartEvent() | MappingStartEvent():
                    depth += 1
                case SequenceEndEvent() | MappingEndEvent():
                    depth -= 1
                case _:
                    pass
            if depth == 0:
                return
            self._refuse_depth(len(path) + depth, event, path)
            event = next(self.events)

    def _scalar(self, event: ScalarEvent, path: Path) -> Scalar:
        value = _value(event)
        if isinstance(value, str) and self._is_refused(value, event, path):
            return None
        if _is_bare(event) and event.start_mark.line != event.end_mark.line:
            text = f"{redacted(value)} goes on in the next line, expected one line; is that line indented too far?"
            self.tree.note(_start(event), path, text)
            self.tree.refused.add(path)
        elif value is None and path and isinstance(path[-1], int):
            self._explain_empty(path, event)
        return value

    def _is_refused(self, text: str, event: Event, path: Path) -> bool:
        """Whether it is text that cannot be sent or shown anywhere; the problem is noted then."""
        if is_utf8(text):
            return False
        self.tree.note(_start(event), path, "half of a surrogate pair, expected whole characters")
        self.tree.refused.add(path)
        return True

    def _explain_empty(self, path: Path, before: Event) -> None:
        """Remembers a ``#name`` behind ``before`` that was meant as a value."""
        line, column = before.end_mark.line, before.end_mark.column
        if line < len(self.tree.lines) and (name := _NAME_AS_COMMENT.match(self.tree.lines[line], column)):
            self.tree.commented[path] = name[1]

    def _refuse_depth(self, depth: int, event: Event, path: Path) -> None:
        if depth > MAX_DEPTH:
            self.tree.note(_start(event), path, f"nested more than {MAX_DEPTH} deep")
            raise _UnreadableError

    def _refuse_indirection(self, event: Event, path: Path) -> None:
        match event:
            case AliasEvent():
                self.tree.note(_start(event), path, f"the alias *{event.anchor}, expected the value itself")
                self.tree.refused.add(path)
            case NodeEvent(anchor=str(anchor)):
                self.tree.note(_start(event), path, f"the anchor &{anchor}, expected none")
            case _:
                pass
        if tag := getattr(event, "tag", None):
            self.tree.note(_start(event), path, f"the tag {redacted(str(tag))}, expected none")

    def _note_syntax(self, error: MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        text = _syntax_text(error)
        first = error.context_mark.line + 1 if error.context_mark else position.line
        if found := self._name_as_comment(min(first, self._last_read().line), position.line):
            at, name = found
            hint = f'# begins a comment, write "{name}" in quotes'
            self.tree.note(at, (), f"{hint}; if the comment is meant, line {position.line}: {text}")
            self.tree.refused.update(path for path, begin in self.tree.values.items() if begin > at)
        else:
            self.tree.note(position, (), text)

    def _name_as_comment(self, first: int, last: int) -> tuple[Position, str] | None:
        """A ``#name`` in brackets that has cut off the rest of its line, in one of these lines."""
        for number, line in enumerate(self.tree.lines[first - 1 : last], first):
            found = _NAME_AS_COMMENT_IN_FLOW.search(line)
            is_meant = found and found[1] not in self.tree.commented.values() and not looks_secret(found[1])
            if found and is_meant and not line.lstrip().startswith("#"):
                return Position(number, found.start(1) + 1), found[1]
        return None

    def _at(self, index: int) -> Position:
        before = self.text[:index]
        return Position(before.count("\n") + 1, index - before.rfind("\n"))


def _start(event: Event) -> Position:
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)


def _is_bare(event: ScalarEvent) -> bool:
    return event.style in {None, ""}


def _value(event: ScalarEvent) -> Scalar:
    return resolve(event.value) if _is_bare(event) else _with_pairs_joined(str(event.value))


def _with_pairs_joined(text: str) -> str:
    """JSON writes a character beyond U+FFFF as a surrogate pair. Text with half of one stays as it is."""
    if is_utf8(text):
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        return text


def _syntax_text(error: MarkedYAMLError) -> str:
    found = _CANNOT_START.search(error.problem or "")
    if found is None:
        return f"not valid YAML: {error.problem}"
    if found[1] == "\\t":
        return "a tab, expected spaces"
    return f"text begins with {found[1]}, expected it in quotes"


def resolve(text: str) -> Scalar:
    """The value of text that stands without quotes; more than 300 characters are no number but text."""
    for pattern, read in _READERS if len(text) <= _LONGEST_NUMBER else ():
        if pattern.fullmatch(text):
            return read(text)
    return text

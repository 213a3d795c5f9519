"""Reads the Lua scripts that travel with the package, joins each with what it includes, and names its keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from dispatcher.data_files import data_file
from dispatcher.server.keys import Keys

_INCLUDE: Final = re.compile(r"^-- @include (\w+)\n", re.MULTILINE)
_KEYS: Final = re.compile(r"^-- @keys (.+)\n", re.MULTILINE)
_PREFIXES: Final = re.compile(r"^-- @prefixes (.+)\n", re.MULTILINE)
_PART: Final = re.compile(r"^local (\w+) = module\(", re.MULTILINE)
_FUNCTION: Final = re.compile(
    r"^(?P<margin> *)(?:local )?function (?P<name>(?:(?P<table>\w+)\.)?\w+)"
    r"(?P<rest>\((?![^\n]* end\n).*?\n(?P=margin)end\n)",
    re.MULTILINE | re.DOTALL,
)
_COMMENT: Final = re.compile(r"--.*")
_WORDS: Final = re.compile(r"\w+\.\w+|\w+")


@cache
def read_script(name: str) -> str:
    """The whole text of ``lua/NAME.lua``, ready to be sent.

    Each line ``-- @include PART`` is replaced by ``lua/include/PART.lua``. Where ``-- @keys`` lines name its keys, the
    script finds them by these names in the table ``K``. Lines ``-- @prefixes`` name what keys begin with that follow
    from what the script finds: ``line`` is ``K.line_prefix``, as in ``Keys``. The first key is then one of a namespace.
    Functions of included parts that the script never names are left out: the server makes each function anew in each
    call. Raises ``FileNotFoundError`` naming the file.
    """
    text = _text(name)
    keys = [f"{key} = KEYS[{place}]" for place, key in enumerate(script_keys(name), 1)]
    prefixes = [
        f"{part}_prefix = OURS .. '{_prefix(part)}'" for parts in _PREFIXES.findall(text) for part in parts.split()
    ]
    ours = "local OURS = string.match(KEYS[1], '^{[^}]*}:')\n" if prefixes else ""
    table = ", ".join([*keys, *prefixes])
    head = f"{ours}local K = {{ {table} }}\n" if table else ""
    return _without_unused(head + _INCLUDE.sub(lambda match: _part(match[1]), text))


@cache
def script_keys(name: str) -> tuple[str, ...]:
    """The names of the keys of ``lua/NAME.lua`` in the order in which it gets them; other keys may follow."""
    return tuple(key for names in _KEYS.findall(_text(name)) for key in names.split())


def _without_unused(text: str) -> str:
    """The script without the functions of its parts that nothing names.

    A function begins and ends at the margin of its part, as all of ours do. It stays if its name is anywhere in what
    stays: of ``function PART.name`` both words, of ``local function name`` the one.
    """
    parts = set(_PART.findall(text))
    found = [each for each in _FUNCTION.finditer(text) if each["table"] in {None, *parts}]
    named: dict[str, list[re.Match[str]]] = {}
    for each in found:
        named.setdefault(each["name"], []).append(each)
    unread = ["".join(_without(text, found))]
    while unread:
        for word in set(_WORDS.findall(_COMMENT.sub("", unread.pop()))):
            unread += [each["rest"] for each in named.pop(word, ())]
    return "".join(_without(text, [each for each in found if each["name"] in named]))


def _without(text: str, gone: Iterable[re.Match[str]]) -> Iterator[str]:
    begin = 0
    for each in gone:
        yield text[begin : each.start()]
        begin = each.end()
    yield text[begin:]


def _prefix(part: str) -> str:
    """What keys begin with, behind the namespace."""
    prefix: str = getattr(Keys("any"), f"{part}_prefix")
    return prefix.removeprefix("{any}:")


def _text(name: str) -> str:
    return data_file("lua", f"{name}.lua").read_text(encoding="utf-8")


def _part(name: str) -> str:
    return data_file("lua", "include", f"{name}.lua").read_text(encoding="utf-8")

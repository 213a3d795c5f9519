"""Reads the Lua scripts that travel with the package, joins each with what it includes, and names its keys."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from dispatcher.data_files import data_file
from dispatcher.server.keys import Keys

_INCLUDE: Final = re.compile(r"^-- @include (\w+)\n", re.MULTILINE)
_KEYS: Final = re.compile(r"^-- @keys (.+)\n", re.MULTILINE)
_PREFIXES: Final = re.compile(r"^-- @prefixes (.+)\n", re.MULTILINE)


@cache
def read_script(name: str) -> str:
    """The whole text of ``lua/NAME.lua``, ready to be sent.

    Each line ``-- @include PART`` is replaced by ``lua/include/PART.lua``. Where ``-- @keys`` lines name its keys, the
    script finds them by these names in the table ``K``. Lines ``-- @prefixes`` name what keys begin with that follow
    from what the script finds: ``line`` is ``K.line_prefix``, as in ``Keys``. The first key is then one of a namespace.
    Raises ``FileNotFoundError`` naming the file.
    """
    text = _text(name)
    keys = [f"{key} = KEYS[{place}]" for place, key in enumerate(script_keys(name), 1)]
    prefixes = [
        f"{part}_prefix = OURS .. '{_prefix(part)}'" for parts in _PREFIXES.findall(text) for part in parts.split()
    ]
    ours = "local OURS = string.match(KEYS[1], '^{[^}]*}:')\n" if prefixes else ""
    table = ", ".join([*keys, *prefixes])
    head = f"{ours}local K = {{ {table} }}\n" if table else ""
    return head + _INCLUDE.sub(lambda match: _part(match[1]), text)


@cache
def script_keys(name: str) -> tuple[str, ...]:
    """The names of the keys of ``lua/NAME.lua`` in the order in which it gets them; other keys may follow."""
    return tuple(key for names in _KEYS.findall(_text(name)) for key in names.split())


def _prefix(part: str) -> str:
    """What keys begin with, behind the namespace."""
    prefix: str = getattr(Keys("any"), f"{part}_prefix")
    return prefix.removeprefix("{any}:")


def _text(name: str) -> str:
    return data_file("lua", f"{name}.lua").read_text(encoding="utf-8")


def _part(name: str) -> str:
    return data_file("lua", "include", f"{name}.lua").read_text(encoding="utf-8")

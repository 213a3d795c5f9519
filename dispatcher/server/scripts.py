"""Reads the Lua scripts that travel with the package, joins each with what it includes, and names its keys."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from dispatcher.data_files import data_file

_INCLUDE: Final = re.compile(r"^-- @include (\w+)\n", re.MULTILINE)
_KEYS: Final = re.compile(r"^-- @keys (.+)\n", re.MULTILINE)


@cache
def read_script(name: str) -> str:
    """The whole text of ``lua/NAME.lua``, ready to be sent.

    Each line ``-- @include PART`` is replaced by ``lua/include/PART.lua``. Where ``-- @keys`` lines name its keys, the
    script finds them by these names in the table ``K``. Raises ``FileNotFoundError`` naming the file.
    """
    text = _text(name)
    names = script_keys(name)
    table = ", ".join(f"{key} = KEYS[{place}]" for place, key in enumerate(names, 1))
    head = f"local K = {{ {table} }}\n" if names else ""
    return head + _INCLUDE.sub(lambda match: _part(match[1]), text)


@cache
def script_keys(name: str) -> tuple[str, ...]:
    """The names of the keys of ``lua/NAME.lua`` in the order in which it gets them; other keys may follow."""
    return tuple(key for names in _KEYS.findall(_text(name)) for key in names.split())


def _text(name: str) -> str:
    return data_file("lua", f"{name}.lua").read_text(encoding="utf-8")


def _part(name: str) -> str:
    return data_file("lua", "include", f"{name}.lua").read_text(encoding="utf-8")

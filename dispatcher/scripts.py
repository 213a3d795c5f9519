"""Reads the Lua scripts that travel with the package and joins each with what it includes."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from dispatcher.resources import data_file

_INCLUDE: Final = re.compile(r"^-- @include (\w+)\n", re.MULTILINE)


@cache
def read_script(name: str) -> str:
    """The whole text of ``lua/NAME.lua``; each line ``-- @include PART`` is replaced by ``lua/include/PART.lua``.

    Raises ``FileNotFoundError`` naming the file.
    """
    text = data_file("lua", f"{name}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: _part(match[1]), text)


def _part(name: str) -> str:
    return data_file("lua", "include", f"{name}.lua").read_text(encoding="utf-8")

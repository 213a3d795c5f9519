"""Time zones by the rules of the package ``tzdata``, so that all workers of one version know the same.

The machine's own rules are not looked at: they differ from host to host, and with them what is quiet.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

_NAME: Final = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,2}")


@cache
def zone_of(name: str) -> ZoneInfo:
    """The zone of this name, such as ``Europe/Berlin``, the same object each time; raises ``ValueError``."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a time zone")
    try:
        with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as rules:
            return ZoneInfo.from_file(rules, key=name)
    except (OSError, ValueError) as error:
        raise ValueError(f"tzdata knows no zone {name!r}") from error


@cache
def zone_names() -> tuple[str, ...]:
    """The names of all zones, in order."""
    return tuple(sorted(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()))

"""Time zones by the rules of the package ``tzdata``, so that all workers of one version know the same.

The machine's own rules are not looked at: they differ from host to host, and with them what is quiet.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo


@cache
def zone_of(name: str) -> ZoneInfo:
    """The zone of this name, such as ``Europe/Berlin``, the same object each time; raises ``ValueError``."""
    if name not in zone_names():  # a disk that knows no case would open europe/berlin too
        raise ValueError(f"tzdata knows no zone {name!r}")
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as rules:
        return ZoneInfo.from_file(rules, key=name)


@cache
def zone_names() -> tuple[str, ...]:
    """The names of all zones, in order."""
    return tuple(sorted(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()))

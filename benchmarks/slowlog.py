"""How long scripts and commands block the server, as its slow log has it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Final

from dispatcher.data_files import data_file
from dispatcher.server.scripts import read_script
from tests.support.servers import Database

FROM_US: Final = 100
"""What is shorter is not logged: the server logs the commands inside scripts, too."""

_MOST: Final = 500_000
_MS: Final = 1_000
_OWN: Final = ("SLOWLOG", "CONFIG")
_KEPT: Final = 100
"""Characters of an argument that the slow log keeps, at least."""


@dataclass(slots=True)
class Blocked:
    """Milliseconds of each call that took 0.1 ms and more, by the script's name or the command's.

    Among the ``commands`` are those that scripts call.
    """

    scripts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    commands: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@contextmanager
def watched(client: Database, *, from_us: int = FROM_US) -> Iterator[Blocked]:
    """What blocks the server meanwhile, for so long at least; filled at the end."""
    client.config_set("slowlog-max-len", _MOST)
    client.config_set("slowlog-log-slower-than", from_us)
    client.execute_command("SLOWLOG", "RESET")
    blocked = Blocked()
    yield blocked
    client.config_set("slowlog-log-slower-than", -1)
    names = _names()
    for _, _, took_us, arguments, *_ in client.execute_command("SLOWLOG", "GET", _MOST):
        command = arguments[0].decode().upper()
        if command in {"EVALSHA", "EVAL"}:
            blocked.scripts[names[arguments[1].decode()[:_KEPT]]].append(took_us / _MS)
        elif command not in _OWN:
            blocked.commands[command].append(took_us / _MS)


def worst(calls: Iterable[tuple[str, Sequence[float]]]) -> tuple[str, float]:
    """The name with the longest call, and that call; none and 0 where there is nothing."""
    return max(((name, max(took)) for name, took in calls), key=lambda row: row[1], default=("", 0.0))


def tail(took: Sequence[float]) -> float:
    """What 99.9 % of the calls do not exceed."""
    return sorted(took)[-(-999 * len(took) // 1_000) - 1]


def _names() -> dict[str, str]:
    """Every script's name, by its digest (as EVALSHA has it) and by its first words (as EVAL has it)."""
    names = {}
    for path in data_file("lua", "take.lua").parent.glob("*.lua"):
        text = read_script(path.stem)
        names[sha1(text.encode(), usedforsecurity=False).hexdigest()] = names[text[:_KEPT]] = path.stem
    return names

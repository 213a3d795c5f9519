"""Log lines by the batch: one rendering for each, one write for all, at a tenth of what structlog takes for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol, TextIO

from dispatcher.jsonio import encode


class Lines(Protocol):
    """Where lines go once they are rendered."""

    def put(self, lines: bytes) -> None:
        """Take whole lines, as UTF-8."""
        ...


class StreamLines:
    """Writes lines to a stream at once, and waits for its reader."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def put(self, lines: bytes) -> None:
        """Write these; raises ``OSError`` or ``ValueError`` where the stream cannot be written."""
        self._stream.write(lines.decode())
        self._stream.flush()


class LineBatch:
    """Renders lines of JSON by the batch, as ``build_log`` would one by one.

    It takes on plain lines only. One that holds what has to be taken out (a secret, characters that are not printable
    ASCII) is left to the caller.
    """

    def __init__(self, lines: Lines, *, secrets: Iterable[str], worker: str | None = None) -> None:
        self._lines = lines
        self._given = tuple(secrets)
        self._secrets = tuple(secret.encode() for secret in self._given if secret)
        self._bound = {} if worker is None else {"worker": worker}

    def of(self, worker: str) -> LineBatch:
        """The same, whose lines name the worker."""
        return LineBatch(self._lines, secrets=self._given, worker=worker)

    def write(self, event: str, level: str, entries: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
        """Write a line for each entry; returns those that are not plain, which were not written."""
        if not entries:
            return ()
        rest = self._rest(event, level)
        lines = [b"%b,%b\n" % (encode(entry)[:-1], rest) for entry in entries]
        left: Sequence[Mapping[str, object]] = ()
        if not self._is_plain(b"".join(lines)):
            left = [entry for entry, line in zip(entries, lines, strict=True) if not self._is_plain(line)]
            lines = [line for line in lines if self._is_plain(line)]
        self._lines.put(b"".join(lines))
        return left

    def write_groups(
        self, event: str, level: str, key: str, groups: Iterable[tuple[Sequence[str], Mapping[str, object]]]
    ) -> bool:
        """Write a line for each name, under ``key``, with what its group has in common.

        False where not all of them are plain: then none was written.
        """
        rest = self._rest(event, level).decode()
        lines: list[str] = []
        for names, common in groups:
            end = f'",{encode(common)[1:-1].decode()},{rest}\n'
            lines += [f'{{"{key}":"{name}{end}' for name in names]
        text = "".join(lines).encode()
        if not self._is_plain(text):
            return False
        self._lines.put(text)
        return True

    def _rest(self, event: str, level: str) -> bytes:
        """The end of each line."""
        time = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return encode({**self._bound, "event": event, "level": level, "time": time})[1:]

    def _is_plain(self, line: bytes) -> bool:
        if not line.isascii() or b"\\" in line or b"\x7f" in line:
            return False
        return not any(secret in line for secret in self._secrets)

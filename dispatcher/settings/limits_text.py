"""Finds the limits file and reads its text. What the text says, ``limits_file`` knows; this loads no library."""

from __future__ import annotations

import os
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from hashlib import blake2b
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Final

from dispatcher.data_files import data_file
from dispatcher.errors import ConfigError
from dispatcher.settings.plain import AnySettings

if TYPE_CHECKING:
    from dispatcher.settings.yaml_tree import Position

MAX_BYTES: Final = 1024 * 1024
LIMITS_FILE: Final = Path("config", "limits.yaml")


def find_limits_file(settings: AnySettings, cwd: Path) -> Path:
    """The operator's own limits file, else the packaged one. Raises as ``own_limits_file`` does."""
    return own_limits_file(settings, cwd) or data_file(*LIMITS_FILE.parts)


def own_limits_file(settings: AnySettings, cwd: Path) -> Path | None:
    """The operator's own limits file: the one that is set, else ``config/limits.yaml`` below ``cwd``, else None.

    One that is set need not exist; ``load_limits`` says so. Raises ``ConfigError`` where it cannot be looked for.
    """
    if settings.limits_file is not None:
        return cwd / settings.limits_file
    beside = cwd / LIMITS_FILE
    try:
        return beside if beside.is_file() else None
    except OSError as error:
        raise ConfigError(
            f"{beside}: cannot be looked for: {error.strerror}; set DISPATCHER_LIMITS_FILE to a limits file"
        ) from None


def read_text(path: Path) -> str:
    """The text of a limits file; raises ``ConfigError`` where it is none."""
    try:
        with open(path, "rb", opener=without_waiting) as file:
            if not S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path}: not a regular file, expected a limits file")
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read: {reason}; expected a limits file") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes, expected a limits file")
    if raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise ConfigError(f"{path}:1:1: the file is UTF-16, expected UTF-8")
    raw = raw.removeprefix(BOM_UTF8)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = _position_in(raw, error.start)
        byte = raw[error.start]
        raise ConfigError(
            f"{path}:{at.line}:{at.column}: the byte 0x{byte:02x} is not UTF-8, expected a file in UTF-8"
        ) from None


def without_waiting(path: str, flags: int) -> int:
    """Opens a FIFO too without waiting for somebody who writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def source_of(text: str) -> str:
    """What tells a text from others: 16 hexadecimal digits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _position_in(raw: bytes, index: int) -> Position:
    """Where a byte stands; everything before it is UTF-8."""
    line_start = raw.rfind(b"\n", 0, index) + 1
    from dispatcher.settings.yaml_tree import Position

    return Position(raw.count(b"\n", 0, index) + 1, len(raw[line_start:index].decode("utf-8")) + 1)

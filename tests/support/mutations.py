"""JSON that is not as it should be: each field absent, null, of another type, too large, or one too many."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

ABSENT: Final = object()
UNKNOWN: Final = "field_of_a_newer_version"

VALUES: Final[dict[str, Any]] = {
    "absent": ABSENT,
    "null": None,
    "empty": "",
    "text": "text",
    "zero": 0,
    "negative": -1,
    "fraction": 0.5,
    "2^63": 2**63,
    "1e308": 1e308,
    "true": True,
    "list": [],
    "full list": ["text", 1, None],
    "object": {},
    "full object": {"text": 1},
    "1 MiB": "x" * 2**20,
}
"""What a field may be instead of what it should be."""

RAW: Final[dict[str, bytes]] = {
    "empty": b"",
    "text": b"text",
    "negative": b"-1",
    "fraction": b"0.5",
    "2^63-1": b"9223372036854775807",
    "1e308": b"1e308",
    "not a number": b"nan",
    "null": b"null",
    "list": b"[]",
    "object": b"{}",
    "full object": b'{"text": 1}',
    "half of JSON": b'{"seq":',
    "bytes": b"\xff\x00\n\x80",
}
"""What a stored value or an argument may be that is read as a number, as JSON, or as words."""

Path = tuple[str | int, ...]


class Mutation(NamedTuple):
    """What is changed at which place."""

    path: Path
    name: str

    @property
    def words(self) -> str:
        """What is changed how, whatever the position in a list."""
        place = ".".join("*" if isinstance(part, int) else part for part in self.path)
        return f"{place} {self.name}".strip()

    def in_list(self, value: Any) -> list[bytes]:  # noqa: ANN401 - JSON
        """``apply``, as the only element."""
        return [self.apply(value)]

    def before(self, value: Any, rest: bytes) -> bytes:  # noqa: ANN401 - JSON
        """``apply``, and the rest behind it."""
        return self.apply(value) + rest

    def apply(self, value: Any) -> bytes:  # noqa: ANN401 - JSON
        """The changed value, as JSON."""
        changed = copy.deepcopy(value)
        *way, last = (*self.path, UNKNOWN) if self.name == UNKNOWN else self.path
        around = changed
        for part in way:
            around = around[part]
        new = "new" if self.name == UNKNOWN else VALUES[self.name]
        if new is ABSENT:
            del around[last]
        else:
            around[last] = new
        return json.dumps(changed, separators=(",", ":")).encode()


def mutations(value: dict[str, Any]) -> Iterator[Mutation]:
    """Every change of every field, and an unknown field in every object; of lists the first and the last element."""
    yield Mutation((), UNKNOWN)
    for path, found in _walk(value):
        for name, new in VALUES.items():
            if type(new) is not type(found) or new != found:
                yield Mutation(path, name)
        if isinstance(found, dict):
            yield Mutation(path, UNKNOWN)


def _walk(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    inner: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = [(n, value[n]) for n in sorted({0, len(value) - 1}) if value]
    for part, found in inner:
        yield (*path, part), found
        yield from _walk(found, (*path, part))

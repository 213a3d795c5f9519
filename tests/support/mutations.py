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

    def __str__(self) -> str:
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


FIELDS: Final = (
    "attempt", "back", "buffered", "category", "channel", "code", "counted", "deadline", "deaths", "digest", "entry",
    "first", "gone", "held", "holds", "line", "order", "pace", "place", "posts", "rank", "replays", "resent", "root",
    "scheduled", "seen", "sent", "seq", "shadow", "slots", "solo", "state", "takes", "timer", "trouble", "unconfirmed",
    "unknown", "waited", "waits", "why",
)  # fmt: skip
"""What the header of a record may hold: the fields that lua/include/record.lua knows."""

NO_HEADERS: Final[dict[str, bytes]] = {
    "header of words": b"words",
    "header of bytes": b"\xff\x00\x80",
    "header without fields": b"{}",
    "header empty": b"",
    "header that is a list": b"[]",
    "header that is a full list": b"[1]",
    "header that is null": b"null",
    "header that is a number": b"5",
    "header that is a text": b'"text"',
}

BROKEN: Final = ("missing", "empty", "without a line feed", "half a header", *NO_HEADERS)
"""What is no record at all."""

PAYLOADS: Final[dict[str, bytes]] = {
    "payload of words": b"words",
    "payload of bytes": b"\xff\x00\x80\n",
    "payload of a newer version": b'["dispatcher.jobs.dispatch", null, [{"v":2,"category":"plain","text":"t"}], {}]',
    "payload of another function": b'["os.system", null, ["true"], {}]',
    "payload that is null": b"null",
}
"""What is no event that this version can read."""


def broken(record: bytes, name: str) -> bytes | None:
    """What stands in place of a record; nothing where it is missing."""
    header, _, payload = record.partition(b"\n")
    match name:
        case "missing":
            return None
        case "empty":
            return b""
        case "without a line feed":
            return header
        case "half a header":
            return header[: len(header) // 2] + b"\n" + payload
        case _ if name in PAYLOADS:
            return header + b"\n" + PAYLOADS[name]
        case _:
            return NO_HEADERS[name] + b"\n" + payload


def headers(record: bytes) -> list[Mutation]:
    """Every change of every field that a header may hold, held or not."""
    header = _header(record)
    return [
        Mutation((field,), name)
        for field in FIELDS
        for name, value in VALUES.items()
        if field in header or value is not ABSENT
        if field not in header or type(value) is not type(header[field]) or value != header[field]
    ]


def with_header(record: bytes, mutation: Mutation) -> bytes:
    """The record with a changed header."""
    return mutation.apply(dict.fromkeys(mutation.path) | _header(record)) + b"\n" + record.partition(b"\n")[2]


def _header(record: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(record.partition(b"\n")[0])
    return header

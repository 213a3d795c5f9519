"""CloudEvents 1.0 over HTTP as events of ours: structured, in batches, and binary."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import unquote

from dispatcher.core.event import in_words
from dispatcher.core.strict_json import NotStrict, read_json
from dispatcher.errors import InvalidEvent

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
MARK: Final = "ce-specversion"
"""The header that a binary CloudEvent has."""

_PREFIX: Final = "ce-"
_REQUIRED: Final = ("id", "source", "type")


def from_headers(headers: Iterable[tuple[str, str]], content_type: str, body: bytes) -> dict[str, Any]:
    """A binary CloudEvent as a structured one: attributes from headers, data from the body."""
    found: dict[str, Any] = {
        name.removeprefix(_PREFIX): unquote(_unquoted(value)) for name, value in headers if name.startswith(_PREFIX)
    }
    if body:
        found["data"] = _data(content_type, body)
    return found


def payload_of(cloud_event: object) -> dict[str, Any]:
    """The fields of an event: ``data`` with a category and a text, or else ``type`` as the category of a text.

    An event without an id of its own gets one of ``source`` and ``id``, which together name a CloudEvent for good.
    Raises ``InvalidEvent``.
    """
    if not isinstance(cloud_event, Mapping):
        raise InvalidEvent(f"event is {in_words(cloud_event)}, expected a CloudEvent, which is a JSON object")
    version = cloud_event.get("specversion")
    if version != "1.0":
        raise InvalidEvent(f'specversion is {in_words(version)}, expected "1.0"', pointer="/specversion")
    for name in _REQUIRED:
        value = cloud_event.get(name)
        if not isinstance(value, str) or not value:
            raise InvalidEvent(f"{name} is {in_words(value)}, expected some text", pointer=f"/{name}")
    made = {"id": _id_of(cloud_event["source"], cloud_event["id"])}
    data = _data_of(cloud_event)
    if isinstance(data, str):
        return {**made, "category": cloud_event["type"], "text": data}
    if isinstance(data, Mapping) and "category" in data:
        return {**data, "id": data.get("id") or made["id"]}
    expected = "some text, or an object with the category and the text of an event"
    raise InvalidEvent(f"data is {in_words(data)}, expected {expected}", pointer="/data")


def _data_of(cloud_event: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    if "data_base64" not in cloud_event:
        return cloud_event.get("data")
    try:
        content = b64decode(cloud_event["data_base64"], validate=True)
    except (NotBase64, TypeError, ValueError):
        raise InvalidEvent("data_base64 is no base64", pointer="/data_base64") from None
    try:
        return _data(str(cloud_event.get("datacontenttype", "")), content)
    except NotStrict as error:
        raise InvalidEvent(f"data_base64 is {error}", pointer="/data_base64") from error


def _data(content_type: str, content: bytes) -> Any:  # noqa: ANN401 - JSON
    """What the content says: JSON where its type says so or there is none, else text. Raises ``NotStrict``."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in {"", "application/json", "text/json"} or kind.endswith("+json"):
        return read_json(content, "JSON, as its content type says" if kind else "JSON, as it has no content type")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise NotStrict(f"not UTF-8 at byte {error.start + 1}") from error


def _unquoted(value: str) -> str:
    """The value of a header, without the quotes and backslashes of a quoted string."""
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if is_quoted else value


def _id_of(source: str, id_: str) -> str:
    named = f"{len(source)} {source}{id_}".encode("utf-8", "surrogatepass")
    return f"ce-{blake2b(named, digest_size=16).hexdigest()}"

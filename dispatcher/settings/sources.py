"""Where variables are set: the environment, and ``.env``."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from dotenv.parser import Binding

ENV_FILE: Final = Path(".env")
_SERVICE_LINK: Final = re.compile(".*_(?:SERVICE_HOST|SERVICE_PORT(?:_.+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_.+)?)")


class Source(NamedTuple):
    """Variables that were set in one place; an empty one counts as unset and is not among them."""

    variables: Mapping[str, str]
    suffix: str = ""

    def __repr__(self) -> str:
        return f"Source({len(self.variables)} variables{self.suffix})"


def read_env_file(path: Path | None) -> tuple[Source, list[str], list[str]]:
    """What the file sets, warnings and faults."""
    if path is None or not path.exists():
        return Source({}), [], []
    if path.is_dir():
        fault = f"{path} is a folder, expected a file of lines NAME=value; give the folder another name"
        return Source({}), [], [fault]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        return Source({}), [], [f"{path} cannot be read: {error.strerror}; expected lines NAME=value"]
    except UnicodeDecodeError:
        return Source({}), [], [f"{path} is not UTF-8; expected lines NAME=value"]
    from dotenv.parser import parse_stream

    bindings = list(parse_stream(io.StringIO(text)))
    warnings = [
        f"{path}:{_line(binding)}: not read as NAME=value, the line is ignored"
        for binding in bindings
        if binding.error or (binding.key is not None and binding.value is None)
    ]
    given = {binding.key: binding.value or "" for binding in bindings if binding.key is not None}
    return Source(without_blanks(given), f" (in {path})"), warnings, []


def _line(binding: Binding) -> int:
    """Where it stands; the parser counts blank lines before it to it."""
    text = binding.original.string
    return binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")


def is_service_link(name: str, text: str) -> bool:
    """Whether Kubernetes sets such a variable in each pod, for a Service whose name ours begin with, too."""
    return _SERVICE_LINK.fullmatch(name) is not None or (name.endswith("_PORT") and "://" in text)


def without_blanks(given: Mapping[str, str]) -> dict[str, str]:
    """What is set, without blanks around it."""
    return {name: stripped for name, text in given.items() if (stripped := text.strip())}

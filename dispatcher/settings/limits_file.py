"""Reads the limits file into a ``Policy``: strict, every fault at once, each with its line and column."""

from __future__ import annotations

import os
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dispatcher.core.policy import Policy
from dispatcher.data_files import data_file
from dispatcher.errors import ConfigError
from dispatcher.settings.canonical import Content, content_of
from dispatcher.settings.cross_checks import impossible_sums
from dispatcher.settings.limits_schema import LimitsFile, policy_of, section_at
from dispatcher.settings.limits_values import NOT_AVAILABLE, did_you_mean
from dispatcher.settings.plain import AnySettings
from dispatcher.settings.redaction import looks_secret, shown
from dispatcher.settings.warnings import warnings_of
from dispatcher.settings.yaml_reader import read_yaml
from dispatcher.settings.yaml_tree import Position, Problem, Tree, shown_path

MAX_BYTES: Final = 1024 * 1024
LIMITS_FILE: Final = Path("config", "limits.yaml")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a limits file says: as values, a sentence for each warning, and its content in one spelling."""

    policy: Policy
    warnings: tuple[str, ...]
    content: Content


def find_limits_file(settings: AnySettings, cwd: Path) -> Path:
    """The limits file in force: the one that is set, else ``config/limits.yaml`` below ``cwd``, else the packaged.

    One that is set need not exist; ``load_policy`` says so. Raises ``ConfigError`` where it cannot be looked for.
    """
    if settings.limits_file is not None:
        return cwd / settings.limits_file
    beside = cwd / LIMITS_FILE
    try:
        return beside if beside.is_file() else data_file(*LIMITS_FILE.parts)
    except OSError as error:
        raise ConfigError(
            f"{beside}: cannot be looked for: {error.strerror}; set DISPATCHER_LIMITS_FILE to a limits file"
        ) from None


def load_policy(path: Path) -> tuple[Policy, tuple[str, ...]]:
    """The policy in a file, and a sentence for each warning. Raises ``ConfigError`` as ``read_limits`` does."""
    return read_policy(_read(path), str(path))


def load_limits(path: Path) -> Limits:
    """What a file says. Raises ``ConfigError`` as ``read_limits`` does."""
    return read_limits(_read(path), str(path))


def read_policy(text: str, name: str) -> tuple[Policy, tuple[str, ...]]:
    """The policy in the text of a limits file called ``name``, and a sentence for each warning; as ``read_limits``."""
    limits = read_limits(text, name)
    return limits.policy, limits.warnings


def policy_if_readable(text: str) -> Policy | None:
    """The policy in the limits in force; None where another version of this program wrote what this one cannot read."""
    try:
        return read_limits(text, "the limits in force").policy
    except ConfigError:
        return None


def read_limits(text: str, name: str) -> Limits:
    """What the text of a limits file called ``name`` says.

    Raises ``ConfigError`` with all faults in the order of the file, each one line:
    ``limits.yaml:12:5: categories.errors.limits[0]: '10/30', expected MAX/WINDOW, for example 100/30m``.
    """
    tree = read_yaml(text)
    file, faults = _check(tree)
    if file is None or faults:
        raise ConfigError(*_sentences(name, faults))
    return Limits(policy_of(file), tuple(_sentences(name, warnings_of(file, tree))), content_of(file))


def _read(path: Path) -> str:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
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


def _without_waiting(path: str, flags: int) -> int:
    """Opens a FIFO too without waiting for somebody who writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check(tree: Tree) -> tuple[LimitsFile | None, list[Problem]]:
    """The file where it is valid, and every fault; what was read before a syntax error is checked too."""
    if not isinstance(tree.data, dict | None) and () not in tree.refused:
        text = f"{shown(tree.data)}, expected a mapping with keys such as global, defaults and categories"
        return None, [*tree.problems, Problem(tree.position(()), "", text)]
    try:
        file = LimitsFile.model_validate(tree.data or {})
        return file, [*tree.problems, *impossible_sums(file, tree)]
    except ValidationError as error:
        details = error.errors()
    return None, [*tree.problems, *(fault for detail in details if (fault := _fault(tree, detail)))]


def _position_in(raw: bytes, index: int) -> Position:
    """Where a byte stands; everything before it is UTF-8."""
    line_start = raw.rfind(b"\n", 0, index) + 1
    return Position(raw.count(b"\n", 0, index) + 1, len(raw[line_start:index].decode("utf-8")) + 1)


def _sentences(name: str, problems: Iterable[Problem]) -> list[str]:
    return [
        f"{name}:{problem.position.line}:{problem.position.column}: "
        + (f"{problem.key}: {problem.text}" if problem.key else problem.text)
        for problem in sorted(set(problems))
    ]


def _fault(tree: Tree, detail: ErrorDetails) -> Problem | None:
    """Pydantic's finding at its place in the file; ``None`` where the value could not be read in the first place."""
    path = detail["loc"]
    if detail["type"] == "extra_forbidden":
        return Problem(tree.keys[path], shown_path(path), _unknown_key(path))
    if path not in tree.values and path[-1] == "[key]":
        path = path[:-1]
        return Problem(tree.keys[path], shown_path(path), f"{shown(path[-1])}{detail['msg']}")
    value = detail["input"]
    item = detail.get("ctx", {}).get("item")
    if item is not None:
        path, value = (*path, item), value[item]
    if any(path[:length] in tree.refused for length in range(len(path) + 1)):
        return None
    position = tree.keys.get(path) if value is None else None
    text = f"{shown(value)}{detail['msg']}{_comment(tree, path)}"
    return Problem(position or tree.position(path), shown_path(path), text)


def _unknown_key(path: tuple[str | int, ...]) -> str:
    key = str(path[-1])
    section = section_at(path[:-1])
    if section is None:
        return "the key is not known"
    if key in section.not_yet:
        return f"the key {NOT_AVAILABLE}"
    names = section.key_names()
    hint = did_you_mean(key, names) or f", expected one of {', '.join(names)}"
    return f"the key is not known{hint}"


def _comment(tree: Tree, path: tuple[str | int, ...]) -> str:
    name = tree.commented.get(path)
    return f'; # begins a comment, write "{name}" in quotes' if name and not looks_secret(name) else ""

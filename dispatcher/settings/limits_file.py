"""Reads the limits file into a ``Policy``: strict, every fault at once, each with its line and column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from dispatcher.core.policy import Policy
from dispatcher.errors import ConfigError
from dispatcher.settings.canonical import content_of
from dispatcher.settings.content import Content, ContentNotRead, json_in, policy_in
from dispatcher.settings.cross_checks import impossible_sums
from dispatcher.settings.limits_schema import LimitsFile, section_at
from dispatcher.settings.limits_text import read_text, source_of
from dispatcher.settings.redaction import did_you_mean, looks_secret, redacted
from dispatcher.settings.warnings import warnings_of
from dispatcher.settings.yaml_reader import read_yaml
from dispatcher.settings.yaml_tree import Path, Problem, Tree, shown_path


@dataclass(frozen=True, slots=True)
class FileLimits:
    """What a limits file says: as values, a sentence for each warning, and its content in one spelling.

    ``is_empty``: there is nothing in it, or only comments. ``{}`` is something.
    """

    policy: Policy
    warnings: tuple[str, ...]
    content: Content
    is_empty: bool


def load_limits(path: FilePath) -> FileLimits:
    """What a file says. Raises ``ConfigError`` as ``read_limits`` does."""
    return read_limits(read_text(path), str(path))


def read_limits(text: str, name: str) -> FileLimits:
    """What the text of a limits file called ``name`` says.

    Raises ``ConfigError`` with all faults in the order of the file, each one line:
    ``limits.yaml:12:5: categories.errors.limits[0]: '10/30', expected MAX/WINDOW, for example 100/30m``.
    """
    tree = read_yaml(text)
    file, faults = _check(tree)
    if file is None:
        raise ConfigError(*_sentences(name, faults))
    content = content_of(file)
    policy = policy_in(content.text)
    if faults := [*faults, *impossible_sums(file, policy, tree)]:
        raise ConfigError(*_sentences(name, faults))
    warnings = tuple(_sentences(name, warnings_of(file, policy, tree)))
    return FileLimits(policy, warnings, replace(content, source=source_of(text)), is_empty=tree.data is None)


def policy_checked(text: str, name: str) -> Policy:
    """The policy in the text of a content, after a look at each of its values; raises as ``read_limits`` does.

    The text is JSON, if ``content_of`` wrote it. The YAML parser reads it too, and takes much longer: it reads only a
    text that has a fault, to say where.
    """
    with suppress(ValidationError, ContentNotRead):
        tree = Tree([], json_in(text))
        file = LimitsFile.model_validate(tree.data)
        policy = policy_in(text)
        if not impossible_sums(file, policy, tree):
            return policy
    return read_limits(text, name).policy


def _check(tree: Tree) -> tuple[LimitsFile | None, list[Problem]]:
    """The file where each value is valid, and every fault; what was read before a syntax error is checked too."""
    if not isinstance(tree.data, dict | None) and () not in tree.refused:
        text = f"{redacted(tree.data)}, expected a mapping with keys such as global, defaults and categories"
        return None, [*tree.problems, tree.problem((), text)]
    try:
        return LimitsFile.model_validate(tree.data or {}), tree.problems
    except ValidationError as error:
        details = error.errors()
    faults = (_fault(tree, each) for detail in details for each in _parts(detail))
    return None, [*tree.problems, *(fault for fault in faults if fault)]


def _parts(detail: ErrorDetails) -> Iterator[ErrorDetails]:
    """The faults of one value, each by itself."""
    yield detail
    for further in detail.get("ctx", {}).get("also", ()):
        yield {**detail, "msg": further["text"], "ctx": further}


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
    if detail["type"] == "missing":
        at = tree.keys.get(path[:-1]) if _value_at(tree, path[:-1]) is None else None
        return Problem(at or tree.position(path), shown_path(path), f"the key is missing{_expected(path)}")
    if path not in tree.values and path[-1] == "[key]":
        path = path[:-1]
        return Problem(tree.keys[path], shown_path(path), f"{redacted(path[-1])}{detail['msg']}")
    value = detail["input"]
    item = detail.get("ctx", {}).get("item")
    if item is not None:
        path, value = (*path, item), value[item]
    if any(path[:length] in tree.refused for length in range(len(path) + 1)):
        return None
    position = tree.keys.get(path) if value is None else None
    text = f"{redacted(value)}{detail['msg']}{_comment(tree, path)}"
    return Problem(position or tree.position(path), shown_path(path), text)


def _value_at(tree: Tree, path: Path) -> object:
    value = tree.data
    for part in path:
        value = value[part]
    return value


def _expected(path: Path) -> str:
    """What the reader of a key says of a value that is none."""
    section = section_at(path[:-1])
    if section is None:
        return ""
    key = section.model_fields[str(path[-1])]
    kind: Any = Annotated[key.annotation, *key.metadata]
    try:
        TypeAdapter(kind).validate_python(None)
    except ValidationError as error:
        return error.errors()[0]["msg"]
    return ""


def _unknown_key(path: tuple[str | int, ...]) -> str:
    key = str(path[-1])
    section = section_at(path[:-1])
    if section is None:
        return "the key is not known"
    names = section.key_names()
    hint = did_you_mean(key, names) or f", expected one of {', '.join(names)}"
    return f"the key is not known{hint}"


def _comment(tree: Tree, path: tuple[str | int, ...]) -> str:
    name = tree.commented.get(path)
    return f'; # begins a comment, write "{name}" in quotes' if name and not looks_secret(name) else ""

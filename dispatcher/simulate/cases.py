"""What is expected of a simulation: how many events of a category end in some way, at least or at most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from dispatcher.core.units import CATEGORY
from dispatcher.errors import DispatcherError
from dispatcher.settings.yaml_reader import read_yaml
from dispatcher.settings.yaml_tree import Path, Tree
from dispatcher.simulate.course import Course
from dispatcher.simulate.figures import COUNTED, EventCounts

_KEYS: Final = ("category", "outcome", "min", "max")


class CasesError(DispatcherError):
    """The text holds no cases; the message says in which line, and what was expected."""


class Case(NamedTuple):
    """So many events of a category, from ``least`` to ``most``, are expected to have an outcome."""

    line: int
    category: str
    outcome: str
    least: int | None
    most: int | None

    def failure(self, course: Course) -> str | None:
        """A sentence where it does not hold."""
        count: int = getattr(course.categories.get(self.category, EventCounts()), self.outcome)
        if self.least is not None and count < self.least:
            expected = f"at least {self.least:,}"
        elif self.most is not None and count > self.most:
            expected = f"at most {self.most:,}"
        elif self.category not in course.categories and self.outcome != "offered":
            return f"line {self.line}: no event of {self.category} came, expected some, or another name"
        else:
            return None
        return f"line {self.line}: {count:,} of {self.category} are {self.outcome}, expected {expected}"


def read_cases(text: str, name: str) -> list[Case]:
    """The cases in the text of a YAML file called ``name``: a list, of one at least. Raises ``CasesError``."""
    tree = read_yaml(text)
    if tree.problems:
        problem = tree.problems[0]
        raise CasesError(f"{name}: line {problem.position.line}, column {problem.position.column}: {problem.text}")
    if not isinstance(tree.data, list) or not tree.data:
        raise _fault(tree, name, (), "expected a list of cases such as {category: errors, outcome: sent, min: 10}")
    return [_case(tree, name, place, row) for place, row in enumerate(tree.data)]


def _case(tree: Tree, name: str, place: int, row: object) -> Case:
    if not isinstance(row, dict):
        raise _fault(tree, name, (place,), f"{_shown(row)}, expected a case with {', '.join(_KEYS)}")
    for key, value, expected in _wrong(row):
        at = (place, key) if key in row else (place,)
        said = f"{key} is {_shown(value)}" if key in row else f"{key} is missing"
        raise _fault(tree, name, at, f"{said}, expected {expected}")
    line = tree.position((place,)).line
    return Case(line, row["category"], row["outcome"], row.get("min"), row.get("max"))


def _wrong(row: dict[Any, Any]) -> Iterator[tuple[Any, Any, str]]:
    """The keys whose value is not as expected, and what was."""
    for key, value in row.items():
        if key not in _KEYS:
            yield key, value, f"no other keys than {', '.join(_KEYS)}"
    category, outcome = row.get("category"), row.get("outcome")
    if not isinstance(category, str) or CATEGORY.fullmatch(category) is None:
        yield "category", category, "the name of a category"
    if outcome not in COUNTED:
        yield "outcome", outcome, f"one of {', '.join(COUNTED)}"
    for key in ("min", "max"):
        if key in row and (type(row[key]) is not int or row[key] < 0):
            yield key, row[key], "a whole number, 0 or more"
    if "min" not in row and "max" not in row:
        yield "min", None, "min or max, or both"
    if type(row.get("min")) is int and type(row.get("max")) is int and row["min"] > row["max"]:
        yield "max", row["max"], f"no less than min, which is {row['min']}"


def _fault(tree: Tree, name: str, path: Path, text: str) -> CasesError:
    position = tree.position(path)
    return CasesError(f"{name}: line {position.line}, column {position.column}: {text}")


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"

"""The result of a simulation as plain data, for ``--json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dispatcher.simulate.course import Course


def document_of(course: Course) -> dict[str, Any]:
    """How many were offered, and what became of them; of all, and of each category."""
    categories = {name: asdict(counts) for name, counts in sorted(course.categories.items())}
    return {**asdict(course.total), "categories": categories}

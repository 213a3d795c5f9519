"""Late imports: the names of a package, each loaded from its module when it is first asked for.

A package whose names are many, or dear to load, has them here; its type checkers read the same imports below
``if TYPE_CHECKING``. What is loaded late within a module is imported in the function that needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def front_door(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a package; ``homes`` has for each name the module it lies in. Loads a name once."""

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return load

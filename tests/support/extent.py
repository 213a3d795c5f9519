"""Which cases of a long list ``make test`` runs; ``make test-slow`` runs the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def slow_unless(is_short: Callable[[T], bool], cases: Iterable[T]) -> list[Any]:
    """The cases for ``parametrize``: those that are not for the short suite are marked ``slow``.

    A case is one value, or a tuple of those of several arguments. At least one case is short.
    """
    found = list(cases)
    assert any(map(is_short, found)), "the short suite runs none of these cases"
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if is_short(case) else pytest.mark.slow)
        for case in found
    ]


def slow_except(short: Iterable[T], cases: Iterable[T]) -> list[Any]:
    """As ``slow_unless``, with the short cases by name: each is one of the cases."""
    named, found = list(short), list(cases)
    assert all(each in found for each in named), "a case for the short suite is not one of the cases"
    return slow_unless(named.__contains__, found)

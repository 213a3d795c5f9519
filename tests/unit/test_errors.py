"""Errors travel to other processes: a pool of workers pickles what a job raises."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Final

import pytest

from dispatcher.errors import (
    ConfigError,
    DispatcherError,
    DuplicateEvent,
    EventTooLarge,
    GateRefused,
    GateUnavailable,
    InvalidEvent,
    QueueFull,
    QueueUnavailable,
    RateLimited,
    SendStopped,
    StaleLimits,
)


def stopped() -> DuplicateEvent:
    error = DuplicateEvent("a is present")
    error.ids, error.rest, error.duplicates = ["a"], ["b"], ["a"]
    return error


ERRORS: Final[list[DispatcherError]] = [
    DispatcherError("words"),
    ConfigError("one", "two", warnings=["three"]),
    RateLimited("user:42", "3/1m", 59.5),
    GateUnavailable("words"),
    GateRefused("words"),
    StaleLimits("6", "7"),
    SendStopped("words"),
    InvalidEvent("words", pointer="/labels"),
    EventTooLarge("words", pointer="/text"),
    QueueUnavailable("words"),
    QueueFull("words"),
    stopped(),
]


def kinds_of(kind: type[DispatcherError]) -> set[type[DispatcherError]]:
    """The kind, and all below it that ``dispatcher.errors`` has."""
    below = [kinds_of(each) for each in kind.__subclasses__() if each.__module__ == kind.__module__]
    return {kind}.union(*below)


def test_every_error_is_among_those_tested_here() -> None:
    assert {type(error) for error in ERRORS} == kinds_of(DispatcherError)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_when_it_was_pickled_or_copied(error: DispatcherError) -> None:
    error.add_note("a note")
    for copy in (pickle.loads(pickle.dumps(error)), deepcopy(error)):  # noqa: S301 - pickled by the line itself
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)

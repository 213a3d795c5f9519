"""What Redis refuses the gate, in words that name the key."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from redis.exceptions import ResponseError

from dispatcher.errors import GateRefused, GateUnavailable
from dispatcher.jsonio import answer_text
from dispatcher.server.connection import translate_outages
from dispatcher.server.error_words import plain_error, refused_login

_TYPES: Final = {
    "scope": "zset",
    "log": "list",
    "quota": "string",
    "waiters": "zset",
    "promises": "zset",
    "limits": "string",
}


def unauthorised(error: GateUnavailable) -> GateRefused | None:
    """The refusal behind an error that looks like an outage: the server wants another name or password."""
    if refused_login(error.__cause__) is not None:
        return GateRefused("Redis refuses the user name or password of the limiter's client, or wants one")
    return None


@contextmanager
def in_our_words() -> Generator[None, None, None]:
    """Translates what redis-py raises in a command of its own; a call of a script does so itself, in less time."""
    try:
        with translate_outages():
            yield
    except ResponseError as failure:
        raise refusal(failure) from failure
    except GateUnavailable as error:
        raise unauthorised(error) or error from error.__cause__


def check_client(client: object, expected: tuple[type, ...], other: str) -> None:
    """Raises ``TypeError`` for a client of another kind; ``other`` is the limiter for the other kind."""
    if not isinstance(client, expected):
        names = " or ".join(
            f"{each.__module__.split('.client')[0].split('.cluster')[0]}.{each.__name__}" for each in expected
        )
        raise TypeError(f"client {type(client).__module__}.{type(client).__name__}, expected {names} ({other})")


def is_wrong_type(failure: ResponseError) -> bool:
    """Whether a key held another type than the script expected."""
    return plain_error(failure).startswith("WRONGTYPE")


def refusal(failure: ResponseError) -> GateRefused:
    """Any other refusal."""
    return GateRefused(f"Redis refused the limiter's call: {plain_error(failure)}")


def wrong_type(types: dict[str, bytes | str]) -> GateRefused:
    """Names each key that holds something else than what the limiter keeps there."""
    strangers = []
    for key, answer in types.items():
        found = answer_text(answer)
        expected = _TYPES[key.split("}:", 1)[1].split(":", 1)[0]]
        if found not in {"none", expected}:
            strangers.append(f"{key} holds a {found}, expected a {expected}")
    return GateRefused(f"another program uses the limiter's keys: {'; '.join(strangers)}; give it another namespace")

"""JSON that people and other programs wrote, read strictly: what could be understood in two ways is refused."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any, Final, NoReturn

from dispatcher.errors import InvalidEvent

_SHOWN: Final = 80


class NotStrict(InvalidEvent):
    """A text that is no JSON as ``read_json`` takes it; ``of_body`` says so of the body of a request."""

    def __init__(self, words: str, of_body: str | None = None) -> None:
        super().__init__(words)
        self.of_body = of_body or f"the body is {words}"


def read_json(content: bytes, expected: str = "a JSON object") -> Any:  # noqa: ANN401 - JSON
    """The value of a JSON text in UTF-8.

    Raises ``NotStrict`` that says what is wrong and what was ``expected``, also for a key that stands twice in an
    object, for a number that JSON has no form for, and for what is nested too deeply.
    """
    try:
        return json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise NotStrict(f"not UTF-8 at byte {error.start + 1}, expected {expected}") from error
    except json.JSONDecodeError as error:
        raise NotStrict(f"not JSON at character {error.pos + 1} ({error.msg}), expected {expected}") from error
    except RecursionError as error:
        raise NotStrict("nested too deeply") from error
    except ValueError as error:
        words = f"holds a number of more than {sys.get_int_max_str_digits()} digits"
        raise NotStrict(words, f"the body {words}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise NotStrict(f"not JSON ({name} is no number), expected a JSON object")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        words = f"the key {twice[:_SHOWN]!r} stands more than once in an object"
        raise NotStrict(f"{words}, expected it once", f"{words} of the body, expected it once")
    return found

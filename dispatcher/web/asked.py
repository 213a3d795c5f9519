"""What a request asks for: fields of its query or of its JSON object, each looked at, each fault told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from starlette.requests import Request

from dispatcher.core.event import in_words
from dispatcher.core.strict_json import NotStrict, read_json
from dispatcher.core.units import MOST_WORDS
from dispatcher.web.problems import Problem

MOST_FIELDS: Final = 1_000

T = TypeVar("T")


@dataclass(slots=True)
class Asked:
    """Fields by name. Each is taken once; ``done`` refuses those that nobody took, and tells all faults."""

    _given: dict[str, Any]
    _faults: list[dict[str, object]] = field(default_factory=list)
    _known: list[str] = field(default_factory=list)
    _found: set[str] = field(default_factory=set)

    @classmethod
    def in_query(cls, request: Request) -> Asked:
        """The fields of the query."""
        return cls(dict(request.query_params))

    @classmethod
    def in_search(cls, request: Request) -> Asked:
        """The fields of the query that a form has sent: those that were left empty are not there."""
        return cls({name: value for name, value in request.query_params.items() if value.strip()})

    @classmethod
    def in_form(cls, body: bytes) -> Asked:
        """The fields of a form; those that were left empty are not there. ``ids`` may stand several times."""
        try:
            pairs = parse_qsl(body.decode("utf-8", "replace"), max_num_fields=MOST_FIELDS)
        except ValueError:
            detail = f"the form has over {MOST_FIELDS} fields, expected at most {MOST_FIELDS}"
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail) from None
        fields: dict[str, Any] = dict(pairs)
        if "ids" in fields:
            fields["ids"] = [value for name, value in pairs if name == "ids"]
        return cls(fields)

    @classmethod
    def in_body(cls, body: bytes) -> Asked:
        """The fields of a JSON object; none of an empty body."""
        try:
            value = read_json(body) if body.strip() else {}
        except NotStrict as error:
            raise Problem(HTTPStatus.BAD_REQUEST, error.of_body) from error
        if not isinstance(value, Mapping):
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"the body is {in_words(value)}, expected a JSON object")
        return cls(dict(value))

    def take(self, name: str, read: Callable[[Any], T | None], expected: str) -> T | None:
        """The value that ``read`` makes of a field, None where it is not there. A ``ValueError`` is a fault."""
        self._known.append(name)
        value = self._given.pop(name, None)
        if value is None:
            return None
        self._found.add(name)
        try:
            return read(value)
        except (ValueError, TypeError, OverflowError):
            self.fault(name, f"{name} is {in_words(value)}, expected {expected}")
            return None

    def text(self, name: str, most: int = MOST_WORDS) -> str | None:
        """A field of printable text."""

        def read(value: object) -> str:
            if not isinstance(value, str) or not 1 <= len(value.strip()) <= most or not value.isprintable():
                raise ValueError
            return value.strip()

        return self.take(name, read, f"1 to {most} printable characters")

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        """A field that is one of these."""

        def read(value: object) -> str:
            if not isinstance(value, str) or value not in choices:
                raise ValueError
            return value

        return self.take(name, read, f"one of {', '.join(choices)}")

    def words(self, name: str) -> tuple[str, ...]:
        """A field of words that are looked for, case-folded; none where it is not there."""
        found = self.text(name)
        return () if found is None else tuple(found.casefold().split())

    def count(self, name: str, most: int, usual: int, least: int = 1) -> int:
        """A field that is a whole number from ``least`` to ``most``."""

        def read(value: object) -> int:
            number = int(value) if isinstance(value, str) and value.isdecimal() else value
            if type(number) is not int or not least <= number <= most:
                raise ValueError
            return number

        found = self.take(name, read, f"a whole number from {least} to {most}")
        return usual if found is None else found

    def flag(self, name: str) -> bool:
        """A field that is true or false."""

        def read(value: object) -> bool:
            if value not in {True, False, "true", "false"}:
                raise ValueError
            return value in {True, "true"}

        return bool(self.take(name, read, "true or false"))

    def require(self, name: str, expected: str) -> None:
        """A fault where a field that was taken was not there; one of a wrong value has its fault already."""
        if name not in self._found:
            self.fault(name, f"{name} is missing or none, expected {expected}")

    @property
    def has_faults(self) -> bool:
        """Whether there is any so far."""
        return bool(self._faults)

    def has(self, *names: str) -> bool:
        """Whether any of these was taken and found, or is still to be taken."""
        return bool(self._found & set(names)) or any(self._given.get(name) is not None for name in names)

    def given(self) -> dict[str, Any]:
        """The fields that nobody has taken yet."""
        return dict(self._given)

    def fault(self, name: str, detail: str) -> None:
        """One more."""
        self._faults.append({"index": 0, "pointer": f"/{name}", "detail": detail})

    def done(self) -> None:
        """Raise ``Problem`` where there is a fault, or a field that is not known."""
        if faults := self.faults():
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, faults[0], errors=self._faults)

    def faults(self) -> list[str]:
        """What is wrong, also with each field that is not known."""
        for name in self._given:
            expected = f"expected one of {', '.join(sorted(self._known))}" if self._known else "expected none"
            self.fault(name, f"{in_words(name)} is not known here, {expected}")
        self._given.clear()
        return [str(each["detail"]) for each in self._faults]

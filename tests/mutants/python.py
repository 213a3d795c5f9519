"""Mistakes one could make in a Python module, made by rule from its tree. Comments, docstrings and types stay."""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from tests.mutants.change import Change, are_akin, next_number

_TWINS: Final = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
    "in": "not in", "not in": "in", "and": "or", "or": "and", "+": "-", "-": "+",
    "min": "max", "max": "min", "+=": "-=", "-=": "+=",
}  # fmt: skip
_WITHOUT_EFFECT: Final = frozenset({"strict", "maxlen"})
"""Arguments that only guard against mistakes."""
_UNREACHED: Final = frozenset({"assert_never"})


def changes(text: str) -> Iterator[Change]:
    """Every change of a module that an operator makes; each leaves a text that compiles."""
    return _Walk(text).changes()


class _Walk:
    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._tokens = [
            (self._starts[token.start[0] - 1] + token.start[1], token.string)
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type in {tokenize.OP, tokenize.NAME}
        ]

        self._tree = ast.parse(text)
        self._members = _other_members(self._tree)

    def changes(self) -> Iterator[Change]:
        yield from self._below(self._tree, "the module", is_branch=False)

    def _below(self, node: ast.AST, place: str, *, is_branch: bool) -> Iterator[Change]:
        """The changes of a node and of what it holds; ``is_branch``: it stands below an ``if`` or in a loop."""
        yield from self._at(node, place, is_branch=is_branch)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            place = node.name if place == "the module" else f"{place}.{node.name}"
            is_branch = False
        elif isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While):
            is_branch = True
        for child in _children(node):
            yield from self._below(child, place, is_branch=is_branch)

    def _at(self, node: ast.AST, place: str, *, is_branch: bool) -> Iterator[Change]:
        yield from self._operators(node, place)
        yield from self._values(node, place)
        yield from self._conditions(node, place)
        yield from self._statements(node, place, is_branch=is_branch)

    def _operators(self, node: ast.AST, place: str) -> Iterator[Change]:
        match node:
            case ast.Compare(left, _, comparators):
                for low, high in pairwise([left, *comparators]):
                    yield self._twin(low, high, place)
            case ast.BoolOp(_, values):
                for low, high in pairwise(values):
                    yield self._twin(low, high, place)
            case ast.BinOp(left, ast.Add() | ast.Sub(), right) if not (_is_text(left) or _is_text(right)):
                yield self._twin(left, right, place)
            case ast.AugAssign(target, ast.Add() | ast.Sub(), value):
                yield self._twin(target, value, place)
            case ast.UnaryOp(ast.Not(), operand):
                start, end = self._span(node)[0], self._span(operand)[0]
                kept = self._text[start:end].removeprefix("not").lstrip(" ")  # an opening bracket
                yield Change(start, end, kept, "not dropped", place)

    def _values(self, node: ast.AST, place: str) -> Iterator[Change]:
        match node:
            case ast.Constant(bool(value)):
                yield self._replaced(node, str(not value), f"{value} to {not value}", place)
            case ast.Constant(int(value) | float(value)):
                yield self._replaced(node, f"{next_number(value)}", f"{value} to {next_number(value)}", place)
            case ast.Attribute(ast.Name()) if (other := self._members.get(ast.unparse(node))) is not None:
                yield self._replaced(node, other, f"{ast.unparse(node)} to {other}", place)
            case ast.Call(ast.Name("min" | "max" as name) as function):
                yield self._replaced(function, _TWINS[name], f"{name} to {_TWINS[name]}", place)
            case ast.Call(_, arguments):
                yield from self._swapped(arguments, place)
                yield from self._left_out(node, place)

    def _conditions(self, node: ast.AST, place: str) -> Iterator[Change]:
        match node:
            case ast.If(test) | ast.IfExp(test) | ast.match_case(_, ast.expr() as test):
                yield from self._negated(test, place)
            case ast.comprehension(_, _, conditions):
                for test in conditions:
                    yield from self._negated(test, place)

    def _statements(self, node: ast.AST, place: str, *, is_branch: bool) -> Iterator[Change]:
        match node:
            case ast.Expr(ast.Call(ast.Name(name))) if name in _UNREACHED:
                return
            case ast.Expr(ast.Call() | ast.Await(ast.Call())):
                yield self._replaced(node, "pass", "call dropped", place)
            case ast.Assign([ast.Attribute() | ast.Subscript()]) if not place.endswith("__init__"):
                yield self._replaced(node, "pass", "assignment dropped", place)
            case ast.AugAssign():
                yield self._replaced(node, "pass", "assignment dropped", place)
            case ast.Raise() | ast.Delete() | ast.Break() | ast.Continue():
                yield self._replaced(node, "pass", f"{type(node).__name__.lower()} dropped", place)
            case ast.Return() if is_branch:
                yield self._replaced(node, "pass", "return dropped", place)

    def _twin(self, low: ast.expr, high: ast.expr, place: str) -> Change:
        """The operator between two operands becomes another one."""
        after, before = self._span(low)[1], self._span(high)[0]
        i = bisect_left(self._tokens, (after, ""))
        while self._tokens[i][1] in {"(", ")"}:
            i += 1
        start, old = self._tokens[i]
        if f"{old} {self._tokens[i + 1][1]}" in _TWINS and self._tokens[i + 1][0] < before:
            old = f"{old} {self._tokens[i + 1][1]}"
        return Change(start, start + len(old), _TWINS[old], f"{old} to {_TWINS[old]}", place)

    def _negated(self, test: ast.expr, place: str) -> Iterator[Change]:
        """The condition, negated; not where another operator makes the same."""
        match test:
            case ast.UnaryOp(ast.Not()) | ast.Name("TYPE_CHECKING"):
                return
            case ast.Compare(_, [ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
                return
        old = self._text[slice(*self._span(test))]
        yield self._replaced(test, f"(not ({old}))", "condition negated", place)

    def _swapped(self, arguments: Sequence[ast.expr], place: str) -> Iterator[Change]:
        """Two neighbours among a call's arguments, each in the place of the other, if they may be of one type."""
        for left, right in pairwise(arguments):
            first, second = (self._text[slice(*self._span(each))] for each in (left, right))
            if all(isinstance(each, ast.Name | ast.Attribute) for each in (left, right)) and are_akin(first, second):
                start, end = self._span(left)[0], self._span(right)[1]
                yield Change(start, end, f"{second}, {first}", f"{first} and {second} swapped", place)

    def _left_out(self, call: ast.Call, place: str) -> Iterator[Change]:
        """A call without one of the arguments that have a name; the comma that parts it from another goes with it."""
        arguments: list[ast.expr | ast.keyword] = sorted([*call.args, *call.keywords], key=self._span)
        spans = [self._span(each) for each in arguments]
        for n, argument in enumerate(arguments):
            if isinstance(argument, ast.keyword) and argument.arg is not None and argument.arg not in _WITHOUT_EFFECT:
                start = spans[n - 1][1] if n else spans[0][0]
                end = spans[n][1] if n else spans[1][0] if len(spans) > 1 else self._behind_comma(spans[0][1])
                yield Change(start, end, "", f"{argument.arg} left out", place)

    def _behind_comma(self, offset: int) -> int:
        return offset + self._text.startswith(",", offset)

    def _replaced(self, node: ast.expr | ast.stmt, new: str, operator: str, place: str) -> Change:
        return Change(*self._span(node), new, operator, place)

    def _span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """Where it stands, as offsets in the text; the tree counts bytes."""
        if node.end_lineno is None or node.end_col_offset is None:
            raise ValueError(f"{ast.dump(node)} has no end")
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _children(node: ast.AST) -> Iterable[ast.AST]:  # noqa: PLR0911 - one return for each kind of node
    """What a node holds, without types, decorators, texts with values and what is never reached."""
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return ()
        case ast.FunctionDef(args=arguments, body=body) | ast.AsyncFunctionDef(args=arguments, body=body):
            return (*arguments.defaults, *filter(None, arguments.kw_defaults), *body)
        case ast.ClassDef(body=body):
            return body
        case ast.AnnAssign(ast.Name(), ast.Name("TypeAlias")):
            return ()
        case ast.AnnAssign(_, _, value):
            return () if value is None else (value,)
        case ast.If(ast.Name("TYPE_CHECKING")):
            return ()
        case ast.Expr(ast.Call(ast.Name(name))) if name in _UNREACHED:
            return ()
        case ast.Call(function, arguments, keywords):
            return (function, *arguments, *(each.value for each in keywords if each.arg not in _WITHOUT_EFFECT))
    return ast.iter_child_nodes(node)


def _other_members(tree: ast.Module) -> dict[str, str]:
    """For each member of an enumeration that a module names, such as ``Slots.HOLD``, another one that it names."""
    members: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr.isupper():
            members.setdefault(node.value.id, set()).add(ast.unparse(node))
    rings = [sorted(each) for each in members.values() if len(each) > 1]
    return {member: ring[n - 1] for ring in rings for n, member in enumerate(ring)}


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))

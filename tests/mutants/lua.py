"""Mistakes one could make in a Lua script, made by rule from its tokens. Comments stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.mutants.change import Change, are_akin, next_number

_TOKEN: Final = re.compile(
    r"""
    (?P<blank>\s+ | --\[(?P<c>=*)\[.*?\](?P=c)\] | --[^\n]*)
    | (?P<string>"(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | \[(?P<s>=*)\[.*?\](?P=s)\])
    | (?P<number>0[xX][0-9a-fA-F]+ | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<sign>\.\.\.|\.\.|[=~<>]=|[-+*/%^\#<>=(){}\[\];:,.])
    """,
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS: Final = frozenset({
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or",
    "repeat", "return", "then", "true", "until", "while",
})  # fmt: skip
_TWINS: Final = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==", "and": "or", "or": "and",
    "true": "false", "false": "true",
    "'LPUSH'": "'RPUSH'", "'RPUSH'": "'LPUSH'", "'LPOP'": "'RPOP'", "'ZRANGE'": "'ZREVRANGE'",
}  # fmt: skip
_SUMS: Final = {"+": "-", "-": "+"}
_EXTREMES: Final = {"min": "max", "max": "min"}
_FLAGS: Final = frozenset({"'XX'", "'NX'", "'GT'", "'LT'"})
_WRITES: Final = frozenset({"'SREM'", "'ZREM'", "'HDEL'", "'DEL'", "'SADD'", "'ZADD'", "'HSET'", "'HSETNX'", "'LREM'"})
"""Commands that answer how many they have changed."""
_PAIRS: Final = {"(": ")", "[": "]", "{": "}"}
_BLOCKS: Final = frozenset({"function", "if", "for", "while", "repeat"})
_CLOSERS: Final = frozenset({"end", "else", "elseif", "until"})
_OPENERS: Final = frozenset({"then", "do", "else", "repeat", "break", ";"})
_VALUES: Final = frozenset({"nil", "true", "false", "end", ")", "]", "}", "..."})


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int

    @property
    def is_name(self) -> bool:
        return self.kind == "name" and self.text not in _KEYWORDS

    @property
    def ends_value(self) -> bool:
        return self.is_name or self.kind in {"string", "number"} or self.text in _VALUES


def changes(text: str) -> Iterator[Change]:
    """Every change of a script that an operator makes; each leaves a text that compiles."""
    tokens = [*_tokens(text)]
    places = _places(tokens)
    for i, token in enumerate(tokens):
        for start, end, new, operator in _at(tokens, i):
            yield Change(tokens[start].start, tokens[end - 1].end, new, operator, places[i][0])
        if token.text in {"if", "elseif"}:
            yield from _negated(text, tokens, i, places[i][0])
        elif token.text == "return" and places[i][1] != "function":
            close = _block_end(tokens, i + 1)
            yield Change(token.start, tokens[close - 1].end, "", "return dropped", places[i][0])


def _tokens(text: str) -> Iterator[_Token]:
    offset = 0
    while offset < len(text):
        found = _TOKEN.match(text, offset)
        if found is None or found.lastgroup is None:
            raise ValueError(f"no Lua token at {text[offset : offset + 20]!r}")
        kind = next(each for each in ("blank", "string", "number", "name", "sign") if found[each] is not None)
        if kind != "blank":
            yield _Token(kind, found[0], offset, found.end())
        offset = found.end()


def _at(tokens: Sequence[_Token], i: int) -> Iterator[tuple[int, int, str, str]]:
    """Changes that begin at a token: the first and the last token but one, what takes their place, and in words."""
    token, before = tokens[i], tokens[i - 1] if i else _Token("sign", ";", 0, 0)
    twin = _twin(token, before)
    if twin:
        yield i, i + 1, twin, f"{token.text} to {twin}"
    elif token.text in {"not", "break"}:
        yield i, i + 1, "", f"{token.text} dropped"
    elif token.text == "'('" and i + 1 < len(tokens) and tokens[i + 1].text == "..":
        yield i, i + 2, "", "open end closed"
    elif token.text in _FLAGS and before.text == ",":
        yield i - 1, i + 1, "", f"{token.text} dropped"
    elif token.text == "(" and before.is_name and not _is_definition(tokens, i):
        yield from _swapped(tokens, i)
    elif token.is_name and (before.ends_value or before.text in _OPENERS):
        yield from _statement(tokens, i)
    elif [each.text for each in tokens[i : i + 4]] == ["redis", ".", "call", "("] and tokens[i + 4].text in _WRITES:
        yield i, _closing(tokens, i + 3) + 1, "1", "write left out"


def _twin(token: _Token, before: _Token) -> str:
    """What may stand in a token's place; nothing where it is none of an operator's."""
    if token.kind == "number" and token.text.isdigit():
        return str(next_number(int(token.text)))
    if token.text in _SUMS:
        return _SUMS[token.text] if before.ends_value else ""
    if token.text in _EXTREMES:
        return _EXTREMES[token.text] if before.text == "." else ""
    return _TWINS.get(token.text, "")


def _statement(tokens: Sequence[_Token], i: int) -> Iterator[tuple[int, int, str, str]]:
    """A call or an assignment that begins at that token, left out."""
    end, is_call = i + 1, False
    while end < len(tokens):
        if tokens[end].text in {".", ":"}:
            end, is_call = end + 2, False
        elif tokens[end].text in {"(", "["}:
            end, is_call = _closing(tokens, end) + 1, tokens[end].text == "("
        else:
            break
    if is_call:
        yield i, end, "", "call dropped"
    elif end < len(tokens) and tokens[end].text == "=" and tokens[end + 1].text != "function":
        end += 1
        while end < len(tokens) and not (tokens[end - 1].ends_value and _begins_statement(tokens[end])):
            end = _closing(tokens, end) + 1 if tokens[end].text in _PAIRS else end + 1
        yield i, end, "", "assignment dropped"


def _begins_statement(token: _Token) -> bool:
    return token.kind == "name" and token.text not in {"and", "or"}


def _swapped(tokens: Sequence[_Token], opening: int) -> Iterator[tuple[int, int, str, str]]:
    """Two neighbours among a call's arguments, each in the place of the other, if they may be of one type."""
    if tokens[opening - 1].text in _EXTREMES:
        return
    arguments, first, i = [], opening + 1, opening + 1
    close = _closing(tokens, opening)
    while i < close:
        if tokens[i].text == ",":
            arguments.append((first, i))
            first = i + 1
        i = _closing(tokens, i) + 1 if tokens[i].text in _PAIRS else i + 1
    arguments.append((first, close))
    for (start, middle), (other, end) in pairwise(arguments):
        left, right = _path(tokens[start:middle]), _path(tokens[other:end])
        if left and right and are_akin(left, right):
            yield start, end, f"{right}, {left}", f"{left} and {right} swapped"


def _path(tokens: Sequence[_Token]) -> str:
    is_path = all(each.is_name if n % 2 == 0 else each.text == "." for n, each in enumerate(tokens))
    return "".join(each.text for each in tokens) if is_path else ""


def _negated(text: str, tokens: Sequence[_Token], i: int, place: str) -> Iterator[Change]:
    end = i + 1
    while tokens[end].text != "then":
        end += 1
    condition = [each.text for each in tokens[i + 1 : end]]
    is_joined = "and" in condition or "or" in condition
    if is_joined or not ({"not", "==", "~="} & {*condition}):  # else another operator makes the same
        start, last = tokens[i + 1].start, tokens[end - 1].end
        yield Change(start, last, f"not ({text[start:last]})", f"{tokens[i].text} negated", place)


def _is_definition(tokens: Sequence[_Token], opening: int) -> bool:
    i = opening - 1
    while i > 0 and (tokens[i].is_name or tokens[i].text in {".", ":"}):
        i -= 1
    return tokens[i].text == "function"


def _closing(tokens: Sequence[_Token], opening: int) -> int:
    depth = 0
    for i in range(opening, len(tokens)):
        if tokens[i].kind == "sign":
            depth += (tokens[i].text in _PAIRS) - (tokens[i].text in _PAIRS.values())
        if depth == 0:
            return i
    raise ValueError(f"{tokens[opening].text} at {tokens[opening].start} is never closed")


def _block_end(tokens: Sequence[_Token], i: int) -> int:
    """The token that ends the block of a statement that is its last, such as ``return``."""
    depth = 0
    while depth or tokens[i].text not in _CLOSERS:
        depth += (tokens[i].text in _BLOCKS) - (tokens[i].text in {"end", "until"})  # those of a returned function
        i += 1
    return i


def _places(tokens: Sequence[_Token]) -> list[tuple[str, str]]:
    """For each token the name of the function it stands in, and the kind of the innermost block."""
    places, blocks = [], [("the script", "function")]
    awaits_do = False
    for i, token in enumerate(tokens):
        name = blocks[-1][0]
        if token.kind == "name":
            if token.text in {"end", "until"}:
                blocks.pop()
            elif token.text == "function":
                own = tokens[i + 1 : next(n for n in range(i, len(tokens)) if tokens[n].text == "(")]
                blocks.append((_path(own) or name, "function"))
            elif token.text in {"if", "for", "while", "repeat"}:
                blocks.append((name, token.text))
                awaits_do = awaits_do or token.text in {"for", "while"}
            elif token.text == "do" and awaits_do:
                awaits_do = False
            elif token.text == "do":
                blocks.append((name, "do"))
        places.append(blocks[-1])
    return places

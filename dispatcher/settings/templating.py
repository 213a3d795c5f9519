"""Templates of the limits file, on Jinja: a part of its language, in which every template ends soon.

The one module that renders templates of operators, imported only where a limits file has one. What is shown of a
variable is escaped for Slack. Calls, macros, assignments and arithmetic are refused when the file is read: with them a
slip of the hand can fill the memory. While a template runs, its time and the length of each value that it makes are
bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from math import inf
from time import thread_time
from typing import Any, Final

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, UndefinedError, nodes
from jinja2 import Template as Compiled
from jinja2.filters import FILTERS
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from dispatcher.core.policy import VARIABLES, Marked, TemplateFailed
from dispatcher.core.rendering import MAX_TEXT, escape, one_line
from dispatcher.settings.redaction import did_you_mean

_MOST_MADE: Final = 8_000
"""Characters of a value that a filter or ``~`` makes."""
_LONGEST_S: Final = 0.25
"""Processor time after which no filter and no further pass of a loop begins."""
_WATCHED: Final = "watched"
"""The filter that each loop runs over; no template can name it."""
_NAMED: Final = "named"
"""The filter that has what is missing say which field of what it is; no template can name it either."""

_until: Final = ContextVar("_until", default=inf)
"""When the rendering that runs here has to end, on the clock of ``thread_time``."""

_FILTERS: Final = (
    "capitalize", "default", "dictsort", "first", "int", "items", "join", "last", "length", "lines", "list", "lower",
    "replace", "reverse", "sort", "string", "title", "trim", "truncate", "unique", "upper",
)  # fmt: skip
_PARTS: Final = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Tuple, nodes.List, nodes.Keyword,
    nodes.If, nodes.For, nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg,
    nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Filter, nodes.Test, nodes.Concat,
)  # fmt: skip
_HAVE_PARTS: Final = ("labels", "loop")
_LOOP: Final = ("first", "index", "index0", "last", "length", "revindex", "revindex0")


@dataclass(frozen=True, slots=True)
class _Language:
    """What templates of one kind know: variables, whether these have parts of any depth, how a value is shown.

    ``part`` is what an entry of a mapping is called.
    """

    variables: Sequence[str]
    is_deep: bool
    shown: Callable[[object], str]
    part: str


class InvalidTemplate(ValueError):
    """A template that cannot be used; the text says what is wrong, in the limits file's style."""


class PartMissing(TemplateFailed):
    """The template asks for a field, a label or an entry that is not there."""


@dataclass(frozen=True, slots=True)
class JinjaTemplate:
    """See ``dispatcher.core.policy.Template``. Two are equal where their sources are."""

    source: str
    _compiled: Compiled = field(repr=False, compare=False)

    def render(self, variables: Mapping[str, object]) -> str:
        """See ``Template.render``; what is longer than a message may be is not made to its end."""
        made: list[str] = []
        length = 0
        before = _until.set(thread_time() + _LONGEST_S)
        try:
            for piece in self._compiled.generate(variables):
                made.append(piece)
                length += len(piece)
                if length > MAX_TEXT:
                    break
        except UndefinedError as error:
            raise PartMissing(one_line(str(error))) from None
        except Exception as error:  # noqa: BLE001 - whatever it is, the event is posted as it was written
            said = str(error) if isinstance(error, _TooMuch) else f"{type(error).__name__}: {error}"
            raise TemplateFailed(one_line(said)) from None
        finally:
            _until.reset(before)
        return "".join(made).strip()


def compile_template(source: str) -> JinjaTemplate:
    """The template of messages; raises ``InvalidTemplate`` with everything that is found wrong with it."""
    return _compiled(source, _MESSAGE)


def compile_mapping(source: str) -> JinjaTemplate:
    """A template of a hook: of the request's ``body``, however deep, and ``headers``; what it shows is not escaped."""
    return _compiled(source, _HOOK)


def _compiled(source: str, language: _Language) -> JinjaTemplate:
    environment = _Environment(language)
    try:
        tree = environment.parse(source)
        faults = [*dict.fromkeys(_faults(tree, language))]
        if not faults:
            if language.is_deep:
                _Naming().visit(tree)
            _bound(tree)
            return JinjaTemplate(source, environment.from_string(tree))
    except TemplateSyntaxError as error:
        faults = [f"{_line(source, error.lineno)}{_sentence(error.message)}"]
    except Exception as error:  # noqa: BLE001 - nested too deeply for Python, a number too long for it
        faults = [f"cannot be read: {type(error).__name__}"]
    raise InvalidTemplate("; ".join(faults))


class _TooMuch(Exception):
    pass


class _Environment(ImmutableSandboxedEnvironment):
    """No attribute of any object is reached, but entries of mappings and what a loop says of itself."""

    def __init__(self, language: _Language) -> None:
        super().__init__(
            undefined=StrictUndefined, finalize=language.shown, trim_blocks=True, lstrip_blocks=True, cache_size=0
        )
        self._part = language.part
        self.filters = {name: _bounded(_OWN.get(name) or FILTERS[name]) for name in _FILTERS}
        self.filters[_WATCHED] = _watched
        self.filters[_NAMED] = self._named

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - Jinja's own signature
        if isinstance(obj, LoopContext) and attribute in _LOOP:
            return super().getattr(obj, attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401 - as above
        if isinstance(obj, Undefined):
            return obj
        try:
            return obj[argument]
        except (TypeError, LookupError):
            what = self._part if isinstance(obj, Mapping) or isinstance(argument, str) else "entry"
            return self.undefined(f"there is no {what} {argument}", name=str(argument))

    def _named(self, value: object, words: str) -> object:
        return self.undefined(words) if isinstance(value, Undefined) else value


def _shown(value: object) -> str:
    """What a variable becomes where it is shown."""
    return value.markup if isinstance(value, Marked) else escape(str(value))


_MESSAGE: Final = _Language(VARIABLES, is_deep=False, shown=_shown, part="label")
_HOOK: Final = _Language(
    ("body", "headers"), is_deep=True, shown=lambda value: "" if value is None else str(value), part="field"
)


def _lines(value: object) -> list[str]:
    return str(value).splitlines()


def _join(entries: Iterable[object], separator: object = "") -> str:
    """Jinja's own, but too long a text is not made in the first place."""
    texts, between = [str(entry) for entry in entries], str(separator)
    _refuse_more_than_most(sum(map(len, texts)) + len(between) * (len(texts) - 1))
    return between.join(texts)


def _replace(value: object, old: object, new: object, count: int = -1) -> str:
    """As ``_join``."""
    text, before, after = str(value), str(old), str(new)
    places = text.count(before) if count < 0 else min(count, text.count(before))
    _refuse_more_than_most(len(text) + places * (len(after) - len(before)))
    return text.replace(before, after, count)


_OWN: Final[Mapping[str, Callable[..., Any]]] = {"join": _join, "lines": _lines, "replace": _replace}


class _Naming(NodeTransformer):
    """Has each field that is asked for by its whole path say this path if it is missing."""

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Expr:  # noqa: N802 - Jinja's own name
        """A part by its name, as ``body.order``."""
        return self._named(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802 - Jinja's own name
        """A part in brackets, as ``body['order']``."""
        return self._named(node)

    def _named(self, node: nodes.Getattr | nodes.Getitem) -> nodes.Expr:
        words = _missing(node)
        if words is None:
            self.generic_visit(node)
            return node
        return nodes.Filter(node, _NAMED, [nodes.Const(words)], [], None, None)


def _missing(node: nodes.Expr) -> str | None:
    """What is said where this part of a variable is not there; None where no path says which part it is."""
    path = ""
    while True:
        match node:
            case nodes.Getattr(node=whole, attr=name):
                node, path = whole, f".{name}{path}"
            case nodes.Getitem(node=whole, arg=nodes.Const(value=str(name))):
                node, path = whole, f".{name}{path}"
            case nodes.Getitem(node=whole, arg=nodes.Const(value=int(number))):
                node, path = whole, f"[{number}]{path}"
            case nodes.Name(name="headers"):
                return f"the request has no header {path.removeprefix('.')}"
            case nodes.Name(name=name) if name != "loop":
                whose = "the body" if name == "body" else name
                return f"{whose} has no {'entry' if path[0] == '[' else 'field'} {path.removeprefix('.')}"
            case _:
                return None


def _bound(tree: nodes.Template) -> None:
    """Has each loop and each ``~`` go by a filter of our own: Jinja lets nothing else in between."""
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, _WATCHED, [], [], None, None)
    for joint in list(tree.find_all(nodes.Concat)):
        joint.nodes = [nodes.Filter(nodes.List(joint.nodes), "join", [], [], None, None)]


def _watched(entries: Iterable[object]) -> Iterator[object]:
    """The entries, one for each pass of a loop, for as long as there is time."""
    for entry in entries:
        _refuse_more_time()
        yield entry


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - a filter's
        _refuse_more_time()
        made = function(*arguments, **options)
        if not isinstance(made, str):
            return made
        _refuse_more_than_most(len(made))
        return str(made)  # a filter may return the event's text itself, whose markup would be shown

    return run


def _refuse_more_time() -> None:
    if thread_time() > _until.get():
        raise _TooMuch(f"it takes more than {_LONGEST_S} s of the processor")


def _refuse_more_than_most(length: int) -> None:
    if length > _MOST_MADE:
        raise _TooMuch(f"it makes a value of {length} characters, expected at most {_MOST_MADE}")


def _faults(tree: nodes.Template, language: _Language) -> Iterator[str]:
    """What is wrong, each once; whether a name of a loop is known where it stands is looked at last."""
    names = list(tree.find_all(nodes.Name))
    bound = {node.name for node in names if node.ctx != "load"} | {"loop"}
    unknown = {node.name for node in names} - bound - {*language.variables}
    faults = [_unknown_variable(name, language) for name in sorted(unknown)]
    faults += [fault for node in tree.find_all(nodes.Node) if (fault := _fault_of(node, language)) is not None]
    if faults:
        yield from faults
        return
    for name in sorted(find_undeclared_variables(tree) - {*language.variables}):
        yield _unknown_variable(name, language)


def _unknown_variable(name: str, language: _Language) -> str:
    return f"{name} is no variable here{_instead(name, language.variables)}"


def _fault_of(node: nodes.Node, language: _Language) -> str | None:
    match node:
        case nodes.Filter(name=name) if name not in _FILTERS:
            return f"{name} is no filter{_instead(name, _FILTERS)}"
        case nodes.CondExpr(expr2=None):
            return "an if within {{ }} without else, expected what is shown otherwise"
        case nodes.List(items=entries) | nodes.Tuple(items=entries, ctx="load") if not _are_constant(entries):
            return "a list with what is no constant, which templates cannot have"
        case nodes.Getattr(attr=name, node=nodes.Name(name="loop")) if name not in _LOOP:
            return f"a loop has no {name}{_instead(name, _LOOP)}"
        case nodes.Getattr(attr=name, node=part) if not (language.is_deep or _has_parts(part)):
            return f".{name} of what is neither labels nor loop"
        case _:
            return None if isinstance(node, _PARTS) else f"{_kind(node)}, which templates cannot have"


def _has_parts(part: nodes.Node) -> bool:
    return isinstance(part, nodes.Name) and part.name in _HAVE_PARTS


def _are_constant(entries: list[nodes.Expr]) -> bool:
    """Lists within a list are looked at themselves. Others could hold a long text any number of times."""
    return all(isinstance(entry, nodes.Const | nodes.List | nodes.Tuple) for entry in entries)


def _instead(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) or f", expected one of {', '.join(known)}"


def _kind(node: nodes.Node) -> str:
    name = type(node).__name__.lower()
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _line(source: str, number: int) -> str:
    return f"in line {number} of it: " if "\n" in source.strip() else ""


def _sentence(message: str | None) -> str:
    return one_line((message or "not valid").rstrip(".")).replace("jinja", "Jinja")

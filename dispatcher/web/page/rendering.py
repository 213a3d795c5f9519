"""Templates of the page: everything that is shown is escaped, and what no screen can show is made visible."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dispatcher.app.documents.instants import in_full, local, short, span
from dispatcher.core.rendering import one_line
from dispatcher.core.units import US, visible
from dispatcher.data_files import STYLE_SHEET

_FOLDER: Final = Path(__file__).resolve().parent
_LONGEST: Final = 20_000
"""Characters of a text that is shown whole."""


def compile_templates() -> None:
    """Compile all of them: a quarter of a second, which the first viewer does not wait for."""
    environment = _environment()
    for name in environment.list_templates(extensions=["html"]):
        environment.get_template(name)


def render(view: str, facts: Mapping[str, Any]) -> str:
    """What of a view is shown anew every two seconds: its main part and the books."""
    return _environment().get_template("live.html").render(view=f"{view}.html", **facts)


def whole(live: str, facts: Mapping[str, Any]) -> str:
    """The page around a rendered part."""
    return _environment().get_template("base.html").render(live=Markup(live), **facts)  # noqa: S704 - from ``render``


def asset(name: str) -> bytes:
    """A file that the page names: ``style.css``, ``page.js``, ``favicon.svg``."""
    return (STYLE_SHEET if name == "style.css" else _FOLDER / name).read_bytes()


@cache
def version_of(name: str) -> str:
    """What tells this content of a file from others: in its address, so that a browser may keep it."""
    return blake2b(asset(name), digest_size=6).hexdigest()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "line": _line,
        "text": _text,
        "time": _time,
        "span": lambda us: span(max(0.0, us / US)),
        "number": lambda count: f"{count:,}",
    }
    environment.globals |= {"version_of": version_of}
    return environment


def _line(text: object, limit: int = 300) -> str:
    """Foreign text on one line; control characters as their escapes."""
    return one_line(str(text), limit)


def _text(text: str) -> str:
    """Foreign text on its lines, with its blanks and tabs; other control characters as their escapes."""
    shown = ["\t".join(map(visible, line.split("\t"))) for line in text[:_LONGEST].splitlines()]
    return "\n".join(shown) + ("\n…" if len(text) > _LONGEST else "")


def _time(at_us: float | None) -> Markup:
    """An instant as an element: the time of today, with the date of another day."""
    if at_us is None:
        return Markup("")
    at = at_us / US
    exact = local(at).isoformat(timespec="seconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, in_full(at), short(at))

"""Texts and blocks of a message as HTML. Everything posted is escaped, and no image is fetched.

Block Kit is drawn as far as it is text: what a person could press or choose is shown and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any, Final

from dispatcher.core.rendering import unescape

MOST_CHARACTERS: Final = 280
MOST_LINES: Final = 6
"""A text of more characters or lines is shortened, and opens on a click."""


def drawn_text(text: str, name: str) -> str:
    """A text of Slack's markup; where it is long, ``name`` tells it from every other one of the page."""
    whole = unescape(text)
    short = _shortened(whole)
    if short == whole:
        return f"<p>{escape(whole)}</p>"
    return (
        f'<details class="long" id="{escape(name)}"><summary><span>{escape(short)}</span> '
        f"<b>show all {len(whole):,} characters</b></summary><p>{escape(whole)}</p></details>"
    )


def drawn_blocks(blocks: Iterable[Mapping[str, Any]], name: str) -> str:
    """The blocks of a message, one below the other; ``name`` as of ``drawn_text``."""
    return "".join(_block(block, f"{name}-{number}") for number, block in enumerate(blocks))


def _shortened(text: str) -> str:
    """The beginning of a long text, up to the end of a word; a short one as it is."""
    lines = text.split("\n")
    begin = "\n".join(lines[:MOST_LINES])
    if len(begin) > MOST_CHARACTERS:
        begin = begin[:MOST_CHARACTERS]
        begin = begin.rpartition(" ")[0] or begin
    return text if begin == text else f"{begin.rstrip()}…"


def _block(block: Mapping[str, Any], name: str) -> str:
    kind = block["type"]
    draw = _DRAWN.get(kind)
    if draw is not None:
        return draw(block, name)
    return f'<div class="other"><i>{escape(kind)}</i>{_texts(block, name)}</div>'


def _header(block: Mapping[str, Any], _name: str) -> str:
    return f"<h4>{escape(_text_of(block['text']))}</h4>"


def _section(block: Mapping[str, Any], name: str) -> str:
    fields = "".join(
        f"<div>{drawn_text(_text_of(each), f'{name}-field-{number}')}</div>"
        for number, each in enumerate(block.get("fields", []))
    )
    beside = _element(block["accessory"]) if isinstance(block.get("accessory"), dict) else ""
    text = drawn_text(_text_of(block["text"]), name) if "text" in block else ""
    return (
        '<div class="section"><div>'
        + text
        + (f'<div class="fields">{fields}</div>' if fields else "")
        + "</div>"
        + beside
        + "</div>"
    )


def _context(block: Mapping[str, Any], name: str) -> str:
    parts = (
        _frame(each) if each["type"] == "image" else f"<div>{drawn_text(_text_of(each), f'{name}-{number}')}</div>"
        for number, each in enumerate(block["elements"])
    )
    return f'<div class="context">{"".join(parts)}</div>'


def _actions(block: Mapping[str, Any], _name: str) -> str:
    return f'<div class="actions">{"".join(map(_element, block["elements"]))}</div>'


def _image(block: Mapping[str, Any], _name: str) -> str:
    title = f"<b>{escape(_text_of(block['title']))}</b>" if "title" in block else ""
    return f'<div class="picture">{title}{_frame(block)}</div>'


def _divider(_block: Mapping[str, Any], _name: str) -> str:
    return "<hr>"


def _rich_text(block: Mapping[str, Any], name: str) -> str:
    return drawn_text("\n".join(map(_line_of, block["elements"])), name)


def _line_of(part: object) -> str:
    """A part of rich text; the pieces of a section stand in one line."""
    match part:
        case {"text": str(text)} | {"url": str(text)}:
            return text
        case {"type": "emoji", "name": str(emoji)}:
            return f":{emoji}:"
        case {"type": "rich_text_list", "elements": list(items)}:
            return "\n".join(f"• {_line_of(item)}" for item in items)
        case {"elements": list(pieces)}:
            return "".join(map(_line_of, pieces))
        case _:
            return ""


def _texts(block: Mapping[str, Any], name: str) -> str:
    text = _text_of(block)
    return drawn_text(text, name) if text else ""


_DRAWN: Final[Mapping[str, Callable[[Mapping[str, Any], str], str]]] = {
    "actions": _actions,
    "context": _context,
    "divider": _divider,
    "header": _header,
    "image": _image,
    "markdown": _texts,
    "rich_text": _rich_text,
    "section": _section,
}


def _element(element: Mapping[str, Any]) -> str:
    """The frame of an image, or a button that does nothing."""
    match element:
        case {"type": "image"}:
            return _frame(element)
        case {"type": str(kind)}:
            return f"<button disabled>{escape(_text_of(element) or kind)}</button>"
        case _:
            return ""


def _frame(image: Mapping[str, Any]) -> str:
    alt = str(image.get("alt_text", ""))
    return f'<span class="frame" title="{escape(alt)}">{escape(_shortened(alt))}</span>'


def _text_of(part: object) -> str:
    """The texts in a part of a block, in order, one on a line."""
    match part:
        case {"text": str(text)}:
            return text
        case dict():
            return _text_of(list(part.values()))
        case list():
            return "\n".join(filter(None, map(_text_of, part)))
        case _:
            return ""

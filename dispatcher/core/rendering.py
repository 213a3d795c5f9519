"""What an event looks like at Slack: escaped, without mentions, cut to length. Pure: no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from dispatcher.core.policy import PLAIN, Marked, Style, Template, TemplateFailed
from dispatcher.core.units import US, visible, with_whole_characters

if TYPE_CHECKING:
    from dispatcher.core.event import Event
    from dispatcher.core.posts import Message
    from dispatcher.core.states import Gone

MAX_TEXT: Final = 3_900
"""Characters of a posted text, entities and mark included; Slack recommends 4,000."""

CUT_MARK: Final = "… [cut]"

_CONTROLS: Final = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_DATE: Final = r"!date\^"  # `<!date^...>` is the one special form that notifies nobody
_MENTION: Final = re.compile(rf"<(?=@|!(?!{_DATE[1:]}))")
_NAMED: Final = re.compile(
    r"(https?://[^\s|>]+)|(?<![a-z0-9])@(?=(?:here|channel|everyone)(?![a-z0-9]))", re.IGNORECASE
)
_NOT_NAMED: Final = "@\u2060"  # a word joiner: it has no width, and no name begins with it
_LONGEST_PART_OF_ENTITY: Final = len("&amp")
_DEEPEST: Final = 32  # Slack's own blocks nest a dozen levels


def message_for(  # noqa: PLR0913 - the event, where it goes, and by name what else is known of it
    event: Event,
    event_id: str,
    channel: str,
    style: Style = PLAIN,
    *,
    thread_ts: str | None = None,
    seen_us: int = 0,
    gone: Gone | None = None,
) -> Message:
    """The finished message of an event, in the style of its category; under ``thread_ts`` if the event names none.

    Plain text is shown as it was written; with ``mrkdwn`` it is Slack's markup as it is, except that mentions
    are shown without notifying anybody, unless the style allows them. Blocks are passed on with their mentions
    neutralised alike, and in their markup also ``@here``, ``@channel`` and ``@everyone``. An event of blocks alone
    gets their words as its text, which Slack shows in notifications.
    A template of the style makes the text of all that, and where it fails, the message says so in ``template_fault``.
    ``seen_us`` is the event's first sight, for one that does not say when it was created. Where ``channel`` stands in
    for one that is ``gone``, a line says so, and the message goes under no thread of the other channel; beside
    ``MAX_BLOCKS`` blocks there is no room for the line.
    """
    mentions = style.allow_mentions
    text = _markup(event.text, mentions=mentions) if event.mrkdwn else escape(without_controls(event.text))
    blocks = tuple(_block(block, mentions=mentions) for block in event.blocks)
    if blocks and not text.strip():
        text = _words_of(blocks) or escape(event.category)
    text, fault = cut(text), None
    if style.template is not None:
        try:
            text = _templated(style.template, event, event_id, channel, text, seen_us)
        except TemplateFailed as error:
            fault = str(error)
    from dispatcher.core.event import MAX_BLOCKS  # who only shows text knows neither events nor messages
    from dispatcher.core.posts import Message

    if gone is None:
        return Message(event_id, channel, text, blocks, event.thread_ts or thread_ts, style.identity, fault)
    if 0 < len(blocks) < MAX_BLOCKS:
        blocks = ({"type": "context", "elements": [{"type": "mrkdwn", "text": _gone_line(gone)}]}, *blocks)
    return Message(event_id, channel, under_gone_line(text, gone), blocks, thread_ts, style.identity, fault)


def _gone_line(gone: Gone) -> str:
    """What is said above a message that is posted to a fallback."""
    why = "is archived" if gone.code == "is_archived" else "was not found"
    return f"Meant for {escape(gone.channel)}, which {why}:"


def under_gone_line(text: str, gone: Gone | None) -> str:
    """The text of a message, behind the line that says so if it is posted to a fallback."""
    return text if gone is None else cut(f"{_gone_line(gone)}\n{text}")


def text_of(event: Event) -> str:
    """What an event says, as its producer wrote it: its text, or the words of its blocks where it has none."""
    if event.text.strip():
        return event.text
    return unescape(_words_of([_block(block, mentions=True) for block in event.blocks]))


def has_words(event: Event | None, words: Sequence[str]) -> bool:
    """Whether each of the ``words``, case-folded, stands in what the event says; no word stands in no event."""
    if not words:
        return True
    text = "" if event is None else text_of(event).casefold()
    return all(word in text for word in words)


def _templated(  # noqa: PLR0913, PLR0917 - what a template is told
    template: Template, event: Event, event_id: str, channel: str, text: str, seen_us: int
) -> str:
    written = without_controls(event.text) if event.text.strip() else unescape(text)
    created_at = seen_us / US if event.created_at is None else event.created_at
    variables = {
        "category": event.category,
        "text": Marked(_shortened(written), text),
        "id": event_id,
        "labels": {name: _shortened(value) for name, value in event.labels.items()},
        "priority": event.priority.value,
        "created_at": int(created_at),
        "channel": channel,
    }
    made = without_controls(template.render(variables))
    if not made.strip():
        raise TemplateFailed("it made no text")
    return cut(made)


def _shortened(text: str) -> str:
    """A text that is not escaped, no longer than a message may be: what a template does with it takes no time."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - len(CUT_MARK)] + CUT_MARK


def escape(text: str) -> str:
    """The text with Slack's three special characters as entities, so that it is shown as it was written."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def unescape(text: str) -> str:
    """What a reader sees of an escaped text; undoes ``escape``."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def without_controls(text: str) -> str:
    """The text without control characters; newline and tab stay, a CR LF becomes a newline."""
    return text if text.isprintable() else text.replace("\r\n", "\n").translate(_CONTROLS)


def without_mentions(mrkdwn: str) -> str:
    """Slack's markup with every mention of people, groups or channels' members shown as it was written.

    ``<!here>``, ``<!subteam^S1|name>``, ``<@U1>`` and the like lose their opening bracket to an entity; links,
    ``<#C1>`` and dates stay. Control characters go first, for one between the brackets could hide a mention.
    """
    return _MENTION.sub("&lt;", without_controls(mrkdwn))


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """An escaped text of at most ``limit`` characters, with a visible mark where it was cut.

    No entity is cut in two, and no ``<link>`` unless it takes more than half of the room. ``limit`` is at
    least the length of ``CUT_MARK``.
    """
    if len(text) <= limit:
        return text
    kept = text[: limit - len(CUT_MARK)]
    entity = kept.rfind("&", max(0, len(kept) - _LONGEST_PART_OF_ENTITY))
    if entity >= 0 and ";" not in kept[entity:]:
        kept = kept[:entity]
    link = kept.rfind("<")
    if link > kept.rfind(">") and link > limit // 2:
        kept = kept[:link]
    return kept + CUT_MARK


def one_line(text: str, limit: int = 300) -> str:
    """Foreign text fit for a log line, an error or a terminal: ``visible``, on one line, at most ``limit`` long.

    White space becomes a space.
    """
    shown = visible(" ".join(text[: 4 * limit].split()))
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _markup(mrkdwn: str, *, mentions: bool) -> str:
    return without_controls(mrkdwn) if mentions else without_mentions(mrkdwn)


def _block_markup(mrkdwn: str, *, mentions: bool) -> str:
    """Markup of a block, in which Slack may take also a bare ``@here`` for a mention; an address of the web stays."""
    text = _markup(mrkdwn, mentions=mentions)
    return text if mentions else _NAMED.sub(lambda match: match[1] or _NOT_NAMED, text)


def _block(block: dict[str, Any], *, mentions: bool) -> dict[str, object]:
    return {key: _part(part, 1, mentions=mentions) for key, part in _object(block, mentions=mentions).items()}


def _part(part: object, depth: int, *, mentions: bool) -> object:
    if depth > _DEEPEST:
        return CUT_MARK  # Slack refuses such a block in any case; we only must not fail on it
    if isinstance(part, dict):
        return {
            key: _part(value, depth + 1, mentions=mentions) for key, value in _object(part, mentions=mentions).items()
        }
    if isinstance(part, list | tuple):
        return [_part(value, depth + 1, mentions=mentions) for value in part]
    return part


def _object(part: dict[str, Any], *, mentions: bool) -> dict[str, Any]:
    match part:
        case {"type": "mrkdwn" | "markdown", "text": str(text)}:
            return part | {"text": _block_markup(text, mentions=mentions)}
        case _:
            return part if mentions else _without_mention(part)


def _without_mention(part: dict[str, Any]) -> dict[str, Any]:
    """One object of Block Kit without markup that notifies nobody; what lies inside is not looked at."""
    match part:
        case {"type": "broadcast"}:
            return {"type": "text", "text": f"@{part.get('range', 'channel')}"}
        case {"type": "user"}:
            return {"type": "text", "text": f"@{part.get('user_id', 'user')}"}
        case {"type": "usergroup"}:
            return {"type": "text", "text": f"@{part.get('usergroup_id', 'group')}"}
        case _:
            return part


def _words_of(blocks: Sequence[object]) -> str:
    """The texts in blocks that ``_block`` has been over, as a text that can be sent anywhere."""
    return with_whole_characters("\n".join(_words(list(blocks))))


def _words(part: object) -> Iterator[str]:
    """The texts in blocks that ``_block`` has been over, as escaped markup."""
    match part:
        case {"type": "mrkdwn" | "markdown", "text": str(text)}:
            yield text
        case {"type": "plain_text" | "text", "text": str(text)}:
            yield escape(without_controls(text))
        case {"type": "image", "alt_text": str(text)}:
            yield escape(without_controls(text))
        case dict():
            for value in part.values():
                yield from _words(value)
        case list():
            for value in part:
                yield from _words(value)
        case _:
            return

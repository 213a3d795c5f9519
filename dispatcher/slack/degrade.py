"""What can still be posted of a message when Slack refuses a part of it: the same message without that part.

Such a refusal is definite: nothing was posted, so the rest may follow at once, within the same attempt.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from dispatcher.core.limits import LeftOut, Message, Part, Paused, PostResult, Receipt, Rejected
from dispatcher.slack.taxonomy import may_be_about_blocks

Post: TypeAlias = Callable[[Message], PostResult]

_REMEMBERED: Final = 1_024
"""Events between a refusal of their blocks and their end."""


class Fallbacks:
    """Posts messages, less what was refused. May be used by several threads at once.

    That the token may not set a name and icon is remembered for as long as this lives: the scope comes only with a new
    installation of the app. That an event's blocks were refused is remembered until the event ends: its next attempt
    must not begin with the same refusal, or in a channel that takes one request a second the text would never follow.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._no_look: LeftOut | None = None
        self._no_blocks: OrderedDict[str, LeftOut] = OrderedDict()

    def post(self, message: Message, post: Post) -> PostResult:
        """What the message came to: one request, and one more for each part that is refused.

        A rejection says what was refused before.
        """
        left_out = self._known(message)
        for each in left_out:
            message = _without(message, each.part)
        result = post(message)
        while (part := _refused(message, result)) is not None:
            message, left_out = _without(message, part.part), (*left_out, part)
            result = post(message)
        self._learn(message.event_id, left_out, result)
        return _told(result, left_out)

    def _known(self, message: Message) -> tuple[LeftOut, ...]:
        """The parts that need not be tried."""
        look = self._no_look if message.identity is not None else None
        blocks = None
        if message.blocks:
            with self._lock:
                blocks = self._no_blocks.get(message.event_id)
        return tuple(each for each in (look, blocks) if each is not None)

    def _learn(self, event_id: str, left_out: tuple[LeftOut, ...], result: PostResult) -> None:
        has_ended = isinstance(result, Receipt | Rejected)
        for each in left_out:
            if each.part is Part.IDENTITY and not (isinstance(result, Paused) and result.code == each.code):
                self._no_look = each
            if each.part is Part.BLOCKS:
                with self._lock:
                    self._no_blocks.pop(event_id, None)
                    if not has_ended:
                        self._no_blocks[event_id] = each
                    if len(self._no_blocks) > _REMEMBERED:
                        self._no_blocks.popitem(last=False)


def _refused(message: Message, result: PostResult) -> LeftOut | None:
    """The part that may be what was refused; None where there is none, or nothing was refused."""
    match result:
        case Paused("missing_scope" as code, detail) if message.identity is not None:
            return LeftOut(Part.IDENTITY, code, detail)
        case Rejected(code, detail) if message.blocks and may_be_about_blocks(code):
            return LeftOut(Part.BLOCKS, code, detail)
        case _:
            return None


def _without(message: Message, part: Part) -> Message:
    return replace(message, identity=None) if part is Part.IDENTITY else replace(message, blocks=())


def _told(result: PostResult, left_out: tuple[LeftOut, ...]) -> PostResult:
    blocks = next((each for each in left_out if each.part is Part.BLOCKS), None)
    match result:
        case Receipt():
            return replace(result, left_out=left_out)
        case Rejected(code, detail) if blocks is not None:
            return Rejected(code, f"{detail}; before, with its blocks, {blocks.code}: {blocks.detail}")
        case _:
            return result

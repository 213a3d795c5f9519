"""What can still be posted of a message when Slack refuses a part of it: the same message without that part.

Such a refusal is definite: nothing was posted, so the rest may follow at once, within the same attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from dispatcher.model import LeftOut, Message, Part, Paused, PostResult, Receipt

Post: TypeAlias = Callable[[Message], PostResult]


class Fallbacks:
    """Posts messages, less what was refused. May be used by several threads at once.

    That the token may not set a name and icon is remembered for as long as this lives: the scope comes only with a new
    installation of the app.
    """

    def __init__(self) -> None:
        self._no_look: LeftOut | None = None

    def post(self, message: Message, post: Post) -> PostResult:
        """What the message came to: one request, and one more for each part that is refused."""
        left_out: tuple[LeftOut, ...] = ()
        if message.look is not None and self._no_look is not None:
            message, left_out = replace(message, look=None), (self._no_look,)
        result = post(message)
        while (less := _less(message, result)) is not None:
            message, part = less
            left_out = (*left_out, part)
            result = post(message)
        self._learn(left_out, result)
        return replace(result, left_out=left_out) if isinstance(result, Receipt) else result

    def _learn(self, left_out: tuple[LeftOut, ...], result: PostResult) -> None:
        for each in left_out:
            still_missing = isinstance(result, Paused) and result.code == each.code
            if each.part is Part.LOOK and not still_missing:
                self._no_look = each


def _less(message: Message, result: PostResult) -> tuple[Message, LeftOut] | None:
    """The message without the part that may be what was refused, and that part."""
    match result:
        case Paused("missing_scope" as code, detail) if message.look is not None:
            return replace(message, look=None), LeftOut(Part.LOOK, code, detail)
        case _:
            return None

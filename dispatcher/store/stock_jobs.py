"""The marks of jobs that a stock RQ producer wrote.

The pre-check drops what bears a mark, and only producers of ours write one. A worker that is handed events without a
mark in a storm reads the next jobs before it takes them, and gives their marks with the ``take``. A mark is bound to
the instant at which RQ says that the job was enqueued, so that none is for another job of the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from dispatcher.jsonio import decode_answer, encode
from dispatcher.server.connection import Client, JsonScript
from dispatcher.store.intake import mark_of, open_envelope
from dispatcher.store.rq_keys import QueueKeys

_LOOKS: Final = 8
_MOST_LOOKS: Final = 512
"""A ``take`` with marks looks at ``_LOOKS`` times as many jobs as it may hand out, and at no more than these.

Both are in ``take.lua`` too: LOOKS and MOST_LOOKS.
"""

_LONGEST_REST: Final = 64
"""Takes between two looks that find nothing, at most."""


class _Marked(NamedTuple):
    """A job, when it was enqueued, and the two parts of its mark."""

    id: str
    enqueued: str
    mark: str
    shown: str


class StockJobs:
    """The jobs without a mark on the lanes of one queue, as far as they were read. For one thread.

    The next ones are read while the server takes those before them. The order of calls is: ``marks``, ``receive``, the
    ``take``, what ``receive`` returned, and ``taken`` when the answer is there. What this knows only saves time: a job
    without a mark is handed out, and a mark without its job is ignored.
    """

    def __init__(self, client: Client, queue: QueueKeys) -> None:
        self._peek = JsonScript(client, "peek")
        self._lanes = queue.lanes
        self._rest = 1
        """After a look that found nothing so many takes do without one."""
        self.forget()

    def forget(self) -> None:
        """Nothing is over a limit: begin anew."""
        self._room = self._resting = 0
        self._told: list[_Marked] = []
        self._next: list[_Marked] = []
        self.are_coming = False
        """Whether jobs without a mark were looked at, and there may be more of them."""

    def marks(self, room: int) -> tuple[bytes, ...]:
        """What a ``take`` of up to ``room`` new events has to know of jobs without a mark.

        Raises ``GateUnavailable``, as ``receive`` does.
        """
        self._room, self._told = room, []
        if room > 0:
            if not self._next and self.are_coming:
                self._look()
            self._told, self._next = self._next, []
        if not self._told:
            return ()
        return (encode(dict(zip(("ids", "enqueued", "marks", "shown"), zip(*self._told, strict=True), strict=True))),)

    def receive(self) -> Callable[[], None]:
        """Receive the jobs behind those of ``marks``, if a ``take`` looks that far; what is returned reads them."""
        return self._receive(len(self._told)) if 0 < len(self._told) <= self._looks else _nothing

    def taken(self, ended: Iterable[str], handed_out: Sequence[str], *, has_unmarked: bool) -> None:
        """The ``take`` has ended some and has handed out others; ``has_unmarked``: it looked at jobs without a mark."""
        if has_unmarked and self._resting:
            self._resting -= 1
        elif has_unmarked:
            self.are_coming = True
        if self._told and len(handed_out) >= self._room:  # else it has looked at all of them
            gone = {*ended, *handed_out}
            self._next[:0] = [each for each in self._told if each.id not in gone]
        self._told = []

    def _look(self) -> None:
        """Read those at the heads of the lanes. Where none can be marked, others than a stock producer sent them."""
        self._receive(0)()
        self.are_coming = bool(self._next)
        if self._next:
            self._rest = 1
        else:
            self._rest = self._resting = min(2 * self._rest, _LONGEST_REST)

    @property
    def _looks(self) -> int:
        """At how many jobs a ``take`` looks."""
        return max(self._room, min(_LOOKS * self._room, _MOST_LOOKS))

    def _receive(self, skipped: int) -> Callable[[], None]:
        facts, data = self._peek(self._lanes, {"skip": skipped, "most": self._looks})

        def read() -> None:
            self._next += _marked_in(facts, data)

        return read


def _nothing() -> None:
    pass


def _marked_in(facts: bytes, data: bytes) -> list[_Marked]:
    """The jobs in an answer of peek.lua that may be dropped unread."""
    told = decode_answer(facts)
    ids, instants = told["ids"].split(" "), told["enqueued"].split(" ")
    are_plain = len(ids) == len(instants) == len(told["sizes"])
    if not are_plain:  # there is none, or one holds a blank, which RQ never writes
        return []
    found: list[_Marked] = []
    start = 0
    for id_, enqueued, size in zip(ids, instants, told["sizes"], strict=True):
        end = start + size
        try:
            mark = mark_of(id_, open_envelope(id_, data[start:end]))
        except Exception:  # noqa: BLE001 - a mark only saves time: whatever a job holds, it stops no worker, and is handed out
            mark = None
        if mark is not None:
            found.append(_Marked(id_, enqueued, *mark))
        start = end
    return found

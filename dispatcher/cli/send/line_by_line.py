"""``dispatcher send --stdin``: an event for each line of stdin, as they come."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from dispatcher.cli.exits import DOES_NOT_HOLD, DONE, INTERRUPTED, QUEUE_FULL, UNREACHABLE, Ended
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.progress import Progress, progress_bar
from dispatcher.cli.send.sending import Queue, counts, open_queue
from dispatcher.cli.send.stdin_lines import MAX_LINE_BYTES, InputLine, read_lines
from dispatcher.cli.terminal import Terminal
from dispatcher.core.event import MAX_EVENT_BYTES, Event, encode_event
from dispatcher.core.strict_json import read_json
from dispatcher.errors import InvalidEvent, QueueUnavailable
from dispatcher.producer.blocking import CHUNK
from dispatcher.store.intake import Enqueued

STDIN: Final = 0
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_SURELY_SMALL: Final = MAX_EVENT_BYTES // 6  # written as JSON, a byte becomes at most \u0000


@dataclass(slots=True)
class _Done:
    """What became of what was read; ``last`` is the number of the last line that is accounted for."""

    enqueued: int = 0
    duplicate: int = 0
    invalid: int = 0
    last: int = 0

    def as_json(self) -> dict[str, int]:
        return counts(enqueued=self.enqueued, duplicate=self.duplicate, invalid=self.invalid)

    def __str__(self) -> str:
        return f"{self.enqueued} enqueued, {self.duplicate} duplicate, {self.invalid} invalid"


def send_line_by_line(terminal: Terminal, *, as_json: bool) -> int:
    """Enqueue an event for each line of stdin, as they come; returns the exit code."""
    done = _Done()
    try:
        _send_all(terminal, done, as_json=as_json)
    finally:
        if as_json:
            terminal.print_json(done.as_json())
    return DOES_NOT_HOLD if done.invalid else DONE


def _send_all(terminal: Terminal, done: _Done, *, as_json: bool) -> None:
    with open_queue(terminal, quiet=as_json) as queue, Interruption() as interruption:
        sender = _Sender(terminal, queue, interruption, done, prints_ids=not as_json)
        is_watched = sys.stderr.isatty()
        if is_watched and sys.stdin.isatty():
            terminal.say("reading events, one JSON object on each line, until Ctrl-D")
        try:
            with progress_bar(_size_of_stdin()) as progress:
                sender.send(read_lines(STDIN), progress)
            if done.enqueued:
                queue.warn_unless_served()
        except KeyboardInterrupt:
            raise Ended(INTERRUPTED, f"interrupted: {done}; lines after {done.last} were not sent") from None
        except QueueUnavailable as error:
            raise Ended(
                UNREACHABLE, f"{error}: {done}; of the lines after {done.last} it is unknown whether some arrived"
            ) from error
    if done == _Done(last=done.last):
        terminal.say("nothing read from standard input; expected an event on each line")
    elif is_watched and not as_json:
        terminal.say(str(done))


@dataclass(slots=True)
class _Sender:
    """Collects events and hands them over in chunks, whole ones: an interruption waits for a round trip."""

    terminal: Terminal
    queue: Queue
    interruption: Interruption
    done: _Done
    prints_ids: bool
    _chunk: list[tuple[int, Event]] = field(default_factory=list)
    _bytes: int = 0
    _read: int = 0

    def send(self, lines: Iterator[InputLine | None], progress: Progress) -> None:
        for line in lines:
            if line is not None:
                progress.advance(len(line.content or b"") + 1)
                self._collect(line)
            if line is None or len(self._chunk) == CHUNK or self._bytes > _CHUNK_BYTES:
                self._hand_over()
                progress.show(str(self.done))
        self._hand_over()
        progress.show(str(self.done))

    def _collect(self, line: InputLine) -> None:
        self._read = line.number
        if line.content is not None and not line.content.strip():
            return
        try:
            event = _event(line)
        except InvalidEvent as error:
            self.done.invalid += 1
            self.terminal.say(f"line {line.number}: {error}")
            return
        self._chunk.append((line.number, event))
        self._bytes += len(line.content or b"")

    def _hand_over(self) -> None:
        with self.interruption.held_back():
            chunk, self._chunk, self._bytes = self._chunk, [], 0
            numbers = iter([number for number, _ in chunk])
            for results in self.queue.producer.enqueue_chunks([event for _, event in chunk]):
                self._note(results, numbers)
            self.done.last = self._read

    def _note(self, results: list[tuple[str, Enqueued]], numbers: Iterator[int]) -> None:
        ids: list[str] = []
        try:
            for event_id, result in results:
                number = next(numbers)
                if result is Enqueued.FULL:
                    raise Ended(QUEUE_FULL, f"{self.queue.full}: {self.done}; lines from {number} on were not sent")
                ids.append(event_id)
                self.done.enqueued += result is Enqueued.DONE
                self.done.duplicate += result is Enqueued.DUPLICATE
                self.done.last = number
        finally:
            if ids and self.prints_ids:
                self.terminal.print("\n".join(ids))


def _event(line: InputLine) -> Event:
    if line.content is None:
        raise InvalidEvent(f"longer than {MAX_LINE_BYTES} bytes, expected an event of at most {MAX_EVENT_BYTES}")
    event = Event.from_payload(read_json(line.content))
    if event.blocks or len(line.content) > _SURELY_SMALL:
        encode_event(event)
    return event


def _size_of_stdin() -> int | None:
    """How many bytes there are to read, where stdin is a file."""
    facts = os.fstat(STDIN)
    return facts.st_size - os.lseek(STDIN, 0, os.SEEK_CUR) if stat.S_ISREG(facts.st_mode) else None

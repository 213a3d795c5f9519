"""Workers of a stage to which something happens between two steps, and the one Slack that all of them post to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from dispatcher.core.pipeline import Dispatcher
from dispatcher.core.ports import Overtaken
from dispatcher.core.posts import Message, PostResult, Receipt
from dispatcher.core.states import Absent, Leased, ScanResult, Search, Undecodable
from dispatcher.core.units import US
from dispatcher.store.leases import Taken
from dispatcher.store.versions import Version
from tests.support.doubles import Desk
from tests.support.stage import LEASE_US, Stage, Worker

STEPS: Final = frozenset({"recover", "line_up", "admit", "start", "post", "update", "settle"})


def before_the_clocks_are_set(zone: str, now_us: int) -> int:
    """The instant an hour before the clocks of the zone are set the next time, a day from now at the earliest."""
    clock, at_h = ZoneInfo(zone), now_us // US // 3_600
    hours = range(at_h + 25, at_h + 400 * 24)
    offsets = [datetime.fromtimestamp(hour * 3_600, clock).utcoffset() for hour in hours]
    change = next(n for n in range(1, len(offsets)) if offsets[n] != offsets[n - 1])
    return (hours[change] - 1) * 3_600 * US


def nothing(*said: object) -> None:
    """Let nothing happen."""
    del said


class Killed(BaseException):
    """A worker is no more."""


@dataclass
class Slack(Desk):
    """A desk that keeps what stands in its channels, and shows it."""

    stands: dict[str, Receipt] = field(default_factory=dict)
    """The newest message of each event."""
    texts: dict[str, str] = field(default_factory=dict)
    """By ts: what the message says now."""

    def __post_init__(self) -> None:
        self.shows = self._shown

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult:
        result = super().post(message, by_s=by_s)
        if isinstance(result, Receipt):
            self.stands[message.event_id] = result
            if result.ts is not None:
                self.texts[result.ts] = message.text
        return result

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        self.texts[ts] = message.text
        return super().update(channel, ts, message, by_s=by_s)

    def _shown(self, search: Search) -> ScanResult:
        return ScanResult({id_: self.stands[id_] for id_ in search.event_ids if id_ in self.stands}, Absent())


class _Noted:
    """Calls ``note`` before each step of what it stands for, and what that returns once the step is done."""

    def __init__(self, of: object, note: Callable[[str, Any], Callable[[], object]]) -> None:
        self._of = of
        self._note = note

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it stands for has
        method = getattr(self._of, name)
        if name not in STEPS:
            return method

        def call(argument: Any, *more: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the step takes
            done = self._note(name, argument)
            answer = method(argument, *more, **named)
            done()
            return answer

        return call


class TroubledWorker(Worker):
    """A worker of a stage; ``trouble`` is called with the number and name of each step before it is done.

    ``is_done`` is called with the step and the ids of the events that it was done for.
    """

    def __init__(self, stage: Stage, owner: str, slack: Slack, in_force: Version | None = None) -> None:
        super().__init__(stage, owner, LEASE_US)
        self.desk = slack
        self.trouble: Callable[[int, str], object] = nothing
        self.is_done: Callable[[str, list[str]], object] = nothing
        self.steps = 0
        """How many steps it has begun."""
        self.follows = ""
        """The version of the limits by which it decides."""
        if in_force is not None:
            self.follow(in_force)

    def follow(self, version: Version) -> None:
        super().follow(version)
        self.follows = version.name

    @property
    def dispatcher(self) -> Dispatcher:
        made = super().dispatcher
        gate, outbox, sink = (_Noted(each, self._note) for each in (made.gate, made.outbox, made.sink))
        return replace(made, gate=gate, outbox=outbox, sink=sink)

    def take(self, new: int = 100, due: int = 100) -> Taken:
        taken = super().take(new, due)
        self.is_done("take", [name for each in taken.prefiltered for name in each.names])
        return taken

    def die_at(self, step: int) -> None:
        """It is killed before so many more steps are done."""
        last = self.steps + step

        def die(number: int, name: str) -> None:
            del name
            if number == last:
                raise Killed

        self.trouble = die

    def finish(self, taken: Taken) -> None:
        """As any worker; by other limits where these have changed meanwhile."""
        batch: list[Leased | Undecodable] = [*taken.batch]
        while batch:
            try:
                self.deliver(self.dispatch(batch, silences=taken.silences))
            except Overtaken as error:
                version = self.stage.versions.in_force()
                assert version is not None
                self.follow(version)
                batch = [*error.undecided]
            else:
                return

    def _note(self, name: str, argument: Any) -> Callable[[], object]:  # noqa: ANN401 - of any step
        self.steps += 1
        self.trouble(self.steps, name)
        return lambda: self.is_done(name, list(_ids_of(argument)))


def _ids_of(argument: Any) -> Iterable[str]:  # noqa: ANN401 - of any step
    """Of which events the argument of a step speaks."""
    if isinstance(argument, (str, Message)):
        return
    for each in argument:
        subject = each.subject if hasattr(each, "subject") else getattr(each, "candidate", each).leased
        yield subject.id

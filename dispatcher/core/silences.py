"""Silences: what operators want nothing of for a time. Matchers say which events are meant. Pure.

A mute is the short form of a silence: its only matcher names one category.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dispatcher.core.matchers import CATEGORY_NAME, Matcher, Matchers, parse_matchers
from dispatcher.core.units import DAY_US, US, format_duration
from dispatcher.jsonio import decode

if TYPE_CHECKING:
    from dispatcher.core.event import Event

MOST: Final = 200
"""Silences that there may be at once, in force or still to begin."""

MOST_BYTES: Final = 4_096
"""Of the matchers of one silence together: a worker that learns of a change reads all silences in one call."""

LONGEST_US: Final = 3_650 * DAY_US
"""How long a silence lasts at most."""

LAST_START_US: Final = 4_102_444_800 * US
"""The last instant at which one may begin: the scripts know instants up to 2^52."""

SILENCE_PREFIX: Final = "silence:"
"""What the scopes begin with that silenced events wait for, and the ids of reports; the silence's id follows."""

ROOM: Final = 100
"""So many events that have waited for the end of a silence, or of quiet hours, ask for room at once."""

_MOST_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing new that matches is posted from ``from_us`` to ``until_us``, by the server's clock; ``who`` said so.

    It may end earlier: once nothing has matched for ``idle_us``, or, if ``until_resolved``, once nothing is firing any
    more of what it suppressed. ``reports``: at its end a message says what it has suppressed. ``known_end_us`` is when
    it ends if nothing more matches; None where that was not looked up, as workers do not.
    """

    id: str
    matchers: Matchers
    who: str
    why: str
    from_us: int
    until_us: int
    idle_us: int | None = None
    until_resolved: bool = False
    reports: bool = True
    known_end_us: int | None = None

    @property
    def ends_us(self) -> int:
        """When it ends if nothing more matches and nobody ends it before; the latest end where that is not known."""
        return self.until_us if self.known_end_us is None else self.known_end_us

    @property
    def idle_end_us(self) -> int | None:
        """When it ends if nothing more matches, where that is before its latest end; else None."""
        return self.ends_us if self.ends_us < self.until_us else None

    def end_after(self, now_us: int) -> int:
        """When it ends if something matches at this instant, and nothing after it."""
        return self.until_us if self.idle_us is None else min(self.until_us, now_us + self.idle_us)

    @property
    def detail(self) -> str:
        """``by ops@host: maintenance (silence 7)``."""
        return f"by {self.who}: {self.why} (silence {self.id})"

    @property
    def scope(self) -> str:
        """What lines wait for until it ends."""
        return SILENCE_PREFIX + self.id

    def line(self, category: str) -> str:
        """The line in which events of the category wait until it ends."""
        return f"{self.scope}:{category}"

    @property
    def muted(self) -> str | None:
        """The category of which it is a mute; None where it is more than that."""
        return muted_by(self.matchers)

    @property
    def ends_in_words(self) -> str:
        """How it may end before its time; empty where only an operator ends it so."""
        said = [f"when nothing matched for {format_duration(self.idle_us)}"] if self.idle_us else []
        return " or ".join([*said, *filter(None, [self.ends_when_resolved])])

    @property
    def ends_when_resolved(self) -> str:
        """That it ends with what it suppresses; empty where it does not."""
        return "when nothing of it is firing any more" if self.until_resolved else ""

    def is_in_force(self, now_us: int) -> bool:
        """Whether it suppresses events at this instant."""
        return self.from_us <= now_us < self.ends_us


def muted_by(matchers: Matchers) -> str | None:
    """The category that is all these matchers ask about; None where they ask about more, or about several."""
    match matchers.each:
        case [Matcher(name=name, patterns=[category], negated=False)] if name == CATEGORY_NAME and "*" not in category:
            return category
        case _:
            return None


def named_categories(matchers: Matchers) -> list[str]:
    """The categories that the matchers name, which may hold ``*``; none where they name none."""
    for matcher in matchers.each:
        if matcher.name == CATEGORY_NAME and not matcher.negated:
            return list(matcher.patterns)
    return []


@dataclass(frozen=True, slots=True)
class Silences:
    """All silences as of one instant, those that begin later included; ``version`` changes with each change of them."""

    each: tuple[Silence, ...] = ()
    version: str | None = None
    _by_category: dict[str, tuple[Silence, ...]] = field(default_factory=dict, repr=False, compare=False)

    def matching(self, event: Event, now_us: int) -> list[Silence]:
        """Those in force that match the event; first the one that ends last."""
        if not self.each:
            return []
        priority = event.priority.value
        return [
            silence
            for silence in self._of_category(event.category)
            if silence.is_in_force(now_us) and silence.matchers.matches(event.category, priority, event.labels)
        ]

    def of_whole_category(self, category: str, now_us: int) -> list[Silence]:
        """Those in force that ask about nothing but the category, and match it; first the one that ends last."""
        return [
            silence
            for silence in self._of_category(category)
            if silence.is_in_force(now_us) and all(each.name == CATEGORY_NAME for each in silence.matchers.each)
        ]

    def get(self, silence_id: str) -> Silence | None:
        """The one of this id."""
        return next((silence for silence in self.each if silence.id == silence_id), None)

    def in_force(self, now_us: int) -> list[Silence]:
        """Those that suppress events at this instant."""
        return [silence for silence in self.each if silence.is_in_force(now_us)]

    def _of_category(self, category: str) -> tuple[Silence, ...]:
        """Those that may match an event of the category: most ask about a few."""
        found = self._by_category.get(category)
        if found is None:
            if len(self._by_category) >= _MOST_REMEMBERED:
                self._by_category.clear()
            found = tuple(
                silence
                for silence in self.each
                if all(each.accepts(category) for each in silence.matchers.each if each.name == CATEGORY_NAME)
            )
            self._by_category[category] = found
        return found


NOTHING_SILENCED: Final = Silences()


def read_silences(
    rows: Mapping[str, str], version: str | None = None, endings: Mapping[str, int] | None = None
) -> Silences:
    """The silences in the hash ``silences``; what cannot be read is none: somebody else wrote it.

    ``endings`` says when each ends if nothing more matches.
    """
    ends = endings or {}
    return Silences(_in_order(filter(None, (_read(id_, row, ends.get(id_)) for id_, row in rows.items()))), version)


def _in_order(silences: Iterable[Silence]) -> tuple[Silence, ...]:
    return tuple(sorted(silences, key=lambda each: (-each.ends_us, each.id)))


def _read(silence_id: str, text: str, known_end_us: int | None) -> Silence | None:
    try:
        row = decode(text)
        return Silence(
            silence_id,
            parse_matchers(_texts(row["matchers"])),
            str(row["who"]),
            str(row["why"]),
            int(row["from"]),
            int(row["until"]),
            int(row["idle"]) if "idle" in row else None,
            "until_resolved" in row,
            "no_report" not in row,
            known_end_us,
        )
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def _texts(value: object) -> Sequence[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError(f"{value!r}, expected texts")
    return value


@dataclass(frozen=True, slots=True)
class EndedSilence:
    """A silence that has ended at ``ended_us``, and what it has suppressed.

    ``deferred`` of the events were parked to wait for its end. ``firing`` is how many things were still firing of what
    it suppressed, None where no event said what it is about;
    ``is_least``: there may be more. ``channels`` says how many events would have gone to which channel.
    """

    id: str
    matchers: str
    who: str
    why: str
    suppressed: int
    ended_us: int
    deferred: int = 0
    firing: int | None = None
    is_least: bool = False
    channels: Mapping[str, int] = field(default_factory=dict)
    now_us: int = 0

    @property
    def channel(self) -> str | None:
        """Where most of what it suppressed would have gone; of several the first by name."""
        return min(self.channels, key=lambda name: (-self.channels[name], name), default=None)

    @property
    def age_us(self) -> int:
        """How long ago it ended."""
        return max(0, self.now_us - self.ended_us)


GIVE_UP_US: Final = 86_400 * US
"""So long after a silence its report is tried again; then nobody is told."""

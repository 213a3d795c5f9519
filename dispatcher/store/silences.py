"""Silences and mutes in an operator's hands: begin, end, look at them, and see what one would match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dispatcher.core.explain import Decision
from dispatcher.core.matchers import Matchers, parse_matchers
from dispatcher.core.silences import (
    LAST_START_US,
    LONGEST_US,
    MOST,
    MOST_BYTES,
    Silence,
    muted_by,
    named_categories,
    read_silences,
)
from dispatcher.core.units import Lane, format_duration
from dispatcher.jsonio import answer_text, encode
from dispatcher.server.connection import Client, JsonScript, server_us, translate_outages
from dispatcher.server.keys import Keys
from dispatcher.server.scripts import script_keys
from dispatcher.store.decisions import Decisions

MATCHES_EVERYTHING: Final = "it would match everything, expected at least one matcher that some event does not match"
_TOO_LONG: Final = f"it would last too long, expected at most {format_duration(LONGEST_US)}"
_TOO_LATE: Final = "it would begin too late, expected a start before the year 2100"
_NEWEST: Final = 10
"""Decisions that a preview shows of those that match."""

_LOOKS: Final = 500
"""Decisions that are looked at before it is asked whether that goes on."""

_FULL: Final = f"there are {MOST} silences already, the most that there may be: 'dispatcher silence expire ID' ends one"


class TooManySilences(Exception):
    """There are as many silences as there may be; nothing has changed."""

    def __init__(self) -> None:
        super().__init__(_FULL)


class Wanted(NamedTuple):
    """A silence that is to begin at ``from_us`` (None: now) and to last for ``for_us``.

    ``idle_us``, ``until_resolved`` and ``reports`` are as in ``Silence``.
    """

    matchers: Matchers
    for_us: int
    who: str
    why: str
    from_us: int | None = None
    idle_us: int | None = None
    until_resolved: bool = False
    reports: bool = True


def check_wanted(wanted: Wanted) -> None:
    """Return where it may be stored.

    Raises ``ValueError`` of one that would match everything, has too many matchers, would last too long or begin too
    late.
    """
    if wanted.matchers.matches_everything:
        raise ValueError(MATCHES_EVERYTHING)
    if (size := sum(len(text.encode()) for text in wanted.matchers.texts)) > MOST_BYTES:
        raise ValueError(f"its matchers have {size} bytes together, expected at most {MOST_BYTES}")
    if wanted.for_us > LONGEST_US:
        raise ValueError(_TOO_LONG)
    if wanted.from_us is not None and wanted.from_us > LAST_START_US:
        raise ValueError(_TOO_LATE)


class StoredSilence(NamedTuple):
    """A silence that was stored."""

    id: str
    from_us: int
    until_us: int


class Kept(NamedTuple):
    """A silence that is in force or begins later, and how many events it has suppressed so far.

    ``firing`` is how many things are firing of what it has suppressed, None where no event said what it is about.
    """

    silence: Silence
    suppressed: int
    firing: int | None


class Silencing:
    """The silences of a namespace. Raises ``GateUnavailable`` when the server is away."""

    def __init__(self, client: Client, keys: Keys, *, clock: Callable[[], int] | None = None) -> None:
        self._client = client
        self._keys = keys
        self._names = [keys.named(name) for name in script_keys("silence")]
        self._script = JsonScript(client, "silence", clock)
        self._clock = clock

    def begin(self, wanted: Wanted, *, replaces: str | None = None) -> StoredSilence:
        """Store a silence; in place of the mute of the category that it ``replaces``, if there is one.

        Raises ``TooManySilences``, and ``ValueError`` as ``check_wanted`` does.
        """
        check_wanted(wanted)
        row: dict[str, Any] = {
            "matchers": wanted.matchers.texts,
            "names": named_categories(wanted.matchers),
            "who": wanted.who,
            "why": wanted.why,
        }
        if (category := muted_by(wanted.matchers)) is not None:
            row["category"] = category
        if wanted.idle_us is not None:
            row["idle"] = str(wanted.idle_us)
        row |= {"until_resolved": True} if wanted.until_resolved else {}
        row |= {} if wanted.reports else {"no_report": True}
        call: dict[str, Any] = {"row": encode(row).decode(), "for_us": wanted.for_us, "most": MOST}
        if wanted.from_us is not None:
            call["from_us"] = wanted.from_us
        if replaces is not None:
            call["category"] = replaces
        answer = self._script(self._names, call)
        if not answer:
            raise TooManySilences
        id_, from_us, until_us = answer
        return StoredSilence(id_.decode(), int(from_us), int(until_us))

    def expire(self, silence_id: str) -> bool:
        """End a silence, and let what waits for that go; whether there was one."""
        return bool(self._script(self._names, {"expire": silence_id}))

    def mute(self, category: str, for_us: int, who: str, why: str) -> int:
        """Mute a category from now on for so long, in place of a mute it has; returns the instant at which that ends.

        Raises as ``begin`` does.
        """
        matchers = parse_matchers([f"category={category}"])
        return self.begin(Wanted(matchers, for_us, who, why), replaces=category).until_us

    def unmute(self, category: str) -> bool:
        """End all mutes of a category, and let what waits for that go; whether it was muted."""
        return bool(self._script(self._names, {"unmute": category}))

    def all(self) -> list[Kept]:
        """Those in force and those that begin later; the one that ends first comes first.

        A worker removes what has ended; until then it is left out here.
        """
        now_us = server_us(self._client) if self._clock is None else self._clock()
        with translate_outages(), self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._keys.silences)
            pipe.zrange(self._keys.endings, 0, -1, withscores=True)
            rows, endings = pipe.execute()
            ends = {answer_text(id_): int(at) for id_, at in endings}
            silences = read_silences(
                {answer_text(id_): answer_text(row) for id_, row in rows.items()}, endings=ends
            ).each
            for each in silences:
                pipe.hmget(self._keys.tally(each.scope), "count", "keys")
                pipe.zcard(self._keys.firing(each.id))
            found = pipe.execute()
        kept = []
        for silence, (count, keys), firing in zip(silences, found[::2], found[1::2], strict=True):
            if silence.ends_us > now_us:
                kept.append(Kept(silence, int(count or 0), int(firing) if keys else None))
        return sorted(kept, key=lambda each: (each.silence.ends_us, each.silence.id))

    def get(self, silence_id: str) -> Kept | None:
        """The one of this id."""
        return next((each for each in self.all() if each.silence.id == silence_id), None)


@dataclass(frozen=True, slots=True)
class Preview:
    """How many of the newest decisions matchers match, by priority; ``since_us``: all since then were looked at.

    ``newest`` are some of those that match, the newest first.
    """

    matched: int
    of: int
    since_us: int | None
    priorities: Mapping[str, int]
    newest: Sequence[Decision] = ()


def preview(matchers: Matchers, decisions: Decisions, goes_on: Callable[[], bool] = lambda: True) -> Preview:
    """Look at the newest decisions, as long as it ``goes_on``, with the function that silences events.

    Decisions without a known category are left out: those of duplicates, and of what could not be read. Long labels are
    not kept, so they are empty here. Raises ``GateUnavailable``.
    """
    of, since_us = 0, decisions.kept_since_us()
    priorities: Counter[str] = Counter()
    newest: list[Decision] = []
    for decision in decisions.newest():
        if of % _LOOKS == 0 and not goes_on():
            since_us = decision.at_us
            break
        if decision.category is None:
            continue
        of += 1
        priority = decision.priority or Lane.NORMAL.value
        if matchers.matches(decision.category, priority, decision.labels):
            priorities[priority] += 1
            if len(newest) < _NEWEST:
                newest.append(decision)
    return Preview(priorities.total(), of, since_us, dict(sorted(priorities.items())), newest)

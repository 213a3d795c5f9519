"""What the limits file says, as values, and what follows from it for an event.

The rule of each category, the terms of an event, what a denial means, when to give up. Pure: no I/O, no clock.
``settings`` builds a ``Policy`` and its templates; the core asks it, and knows that a template may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

from dispatcher.core.limits import DEFAULT_BOUNDS, Bounds, Demand, FirstOf, Limit, Reason, Scope, longest_of
from dispatcher.core.quiet import QUIET_PREFIX, Quiet, QuietHours
from dispatcher.core.units import US

if TYPE_CHECKING:
    from dispatcher.core.event import Event
    from dispatcher.core.hooks import Hook
    from dispatcher.core.matchers import Matchers
    from dispatcher.core.once import Once
    from dispatcher.core.posts import Identity
    from dispatcher.core.states import Fallback, Leased, Terms
    from dispatcher.core.tally import Counting, Telling

VARIABLES: Final = ("category", "text", "id", "labels", "priority", "created_at", "channel")


class OnLimit(StrEnum):
    """What happens to an event that a budget limit denies."""

    DROP = "drop"
    DEAD_LETTER = "dead-letter"
    DEFER = "defer"
    DIGEST = "digest"


class OnAmbiguous(StrEnum):
    """What happens to an event whose post perhaps arrived, where the channel's history cannot be read."""

    RESEND = "resend"
    DEAD_LETTER = "dead-letter"


class OnResolved(StrEnum):
    """What happens to an event that tells of a recovery, where the message about the failure cannot be edited."""

    POST = "post"
    IGNORE = "ignore"


class WhileWaiting(StrEnum):
    """What happens to an event that waits, when what it is about is over."""

    DROP = "drop"
    POST = "post"


@dataclass(frozen=True, slots=True)
class Style:
    """What the messages of a category look like.

    ``allow_mentions``: those in an event's own markup notify people. ``template``: what makes the text.
    """

    identity: Identity | None = None
    allow_mentions: bool = False
    template: Template | None = None


PLAIN: Final = Style()
"""The app's own name and icon, and the text as it was written."""

DEFAULT_MAX_PARKED: Final = 10_000
"""Deferred events of one category that may wait."""

DEFAULT_DIGEST_DELAY_US: Final = 60 * US
"""How long a digest collects before it is posted."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where events are posted that match, unless they name a channel."""

    matchers: Matchers
    channel: str


@dataclass(frozen=True, slots=True)
class CategoryRule:
    """What the limits file says of one category; an empty ``limits`` means unlimited.

    ``guarantee`` events of the longest global window are kept for it; ``per_label`` limits hold for each value of a
    label. Where they are deferred, at most ``max_parked`` of its events wait for room. ``on_ambiguous`` says what
    becomes of one that was perhaps posted. ``shadows`` and ``label_shadows`` are counted and not enforced.
    ``digest_delay_us`` is how long a digest collects, and how long it has to be quiet before a notice says that
    suppression has ended; ``notice`` asks for such notices. ``once`` says which events repeat earlier ones;
    ``resolved`` and ``resolved_while_waiting`` say what a recovery changes. Of ``routes`` the first that matches
    says where an event is posted, else it is ``channel``; what the dispatcher itself says of the category is posted
    to ``channel``. What finds its channel gone or archived is posted to ``fallback``.
    """

    limits: tuple[Limit, ...]
    channel: str
    on_limit: OnLimit
    max_age_us: int
    guarantee: int = 0
    per_label: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)
    max_parked: int = DEFAULT_MAX_PARKED
    on_ambiguous: OnAmbiguous = OnAmbiguous.RESEND
    style: Style = PLAIN
    shadows: tuple[Limit, ...] = ()
    label_shadows: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)
    digest_delay_us: int = DEFAULT_DIGEST_DELAY_US
    notice: bool = False
    once: Once | None = None
    resolved: OnResolved = OnResolved.POST
    resolved_while_waiting: WhileWaiting = WhileWaiting.DROP
    routes: tuple[Route, ...] = ()
    fallback: str | None = None

    @property
    def repeats_by_text(self) -> bool:
        """Whether an event repeats an earlier one that has the same text."""
        return self.once is not None and self.once.is_by_text

    @property
    def counts_repeats(self) -> bool:
        """Whether repeats of an event are counted in its message."""
        return self.once is not None and self.once.is_counting

    def channel_for(self, event: Event) -> str:
        """Where an event of the category is posted that names no channel."""
        for route in self.routes:
            if route.matchers.matches(event.category, event.priority, event.labels):
                return route.channel
        return self.channel

    @property
    def telling(self) -> Telling | None:
        """How it is told what was suppressed; for that one message of the longest window is kept."""
        is_digest = self.on_limit is OnLimit.DIGEST
        if not (is_digest or self.notice):
            return None
        from dispatcher.core.tally import Telling  # who only looks at limits counts nothing

        return Telling.DIGEST if is_digest else Telling.NOTICE


class Marked(str):
    """An event's text as it was written; where it is shown as it is, it is shown as its ``markup``."""

    __slots__ = ("markup",)

    markup: str

    def __new__(cls, written: str, markup: str) -> Self:
        """What was written, and the markup for it, in which mentions notify nobody unless they may."""
        made = super().__new__(cls, written)
        made.markup = markup
        return made


class TemplateFailed(Exception):
    """The template made no text of this event; the message says why, on one line."""


class Template(Protocol):
    """What makes the text of a message."""

    @property
    def source(self) -> str:
        """The template as it stands in the limits file."""
        ...

    def render(self, variables: Mapping[str, object]) -> str:
        """Slack's markup, in which the variables are shown as they were written; raises ``TemplateFailed``."""
        ...


Backoff: TypeAlias = Callable[[int], int]
"""Microseconds to wait after the n-th attempt."""

_AGAIN_FROM_US: Final = US
_AGAIN_TO_US: Final = 3_600 * US
_AGAIN_TIMES: Final = 5

GLOBAL_SCOPE: Final = "global"
GUARANTEE_PREFIX: Final = "guarantee:"
"""What the names of scopes begin with that keep a category's guarantee."""
SHARED_SCOPE: Final = "shared"
"""What the guarantees leave of the longest global window, for all."""

EDITS: Final = "edits"
"""Stands in place of a channel for all edits of messages: Slack limits them for the whole workspace."""

EDITS_PACE: Final = Limit(40, window_us=60 * US)

WEBHOOK: Final = "(webhook)"
"""In place of a channel: the one of an incoming webhook. No channel has such a name, and no event can name it."""

SHADOW_PREFIX: Final = "shadow:"
"""What the scopes of shadow limits begin with."""

_REASONS: Final = {
    GLOBAL_SCOPE: Reason.LIMIT_GLOBAL,
    SHARED_SCOPE: Reason.LIMIT_GLOBAL,
    "guarantee": Reason.LIMIT_GLOBAL,
    "kept": Reason.LIMIT_GLOBAL,
    "label": Reason.LIMIT_LABEL,
    "silence": Reason.SILENCED,
    "quiet": Reason.QUIET,
    "once": Reason.REPEAT,
}

_MAX_LABEL: Final = 64
"""Longer values of a label stand in its scope as a digest."""

_MAX_LINE: Final = 512
"""Longer names of lines end in a digest of the values: the headers of all events in a line name it."""

_REMEMBERED: Final = 4_096
"""Categories whose scopes are kept ready."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole limits file. ``categories`` holds the named ones; any other follows ``defaults``.

    ``channels`` maps a channel to its pace; ``None`` is no pace. The guarantees together are no more than the longest
    global window holds; ``settings`` sees to it. ``by_webhook``: all is posted to the one channel of a webhook. That
    follows from the credential, not from the file.
    """

    global_limits: tuple[Limit, ...]
    defaults: CategoryRule
    categories: Mapping[str, CategoryRule]
    default_pace: Limit | None
    channels: Mapping[str, Limit | None] = field(default_factory=dict)
    reject_unknown: bool = False
    dead_letters: Bounds = DEFAULT_BOUNDS
    global_shadows: tuple[Limit, ...] = ()
    quiet: tuple[Quiet, ...] = ()
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    by_webhook: bool = False
    _scopes: dict[tuple[str, bool], tuple[Demand, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _countings: dict[str, Counting] = field(default_factory=dict, init=False, repr=False, compare=False)
    _terms: dict[tuple[object, ...], Terms] = field(default_factory=dict, init=False, repr=False, compare=False)
    hours: QuietHours = field(init=False, repr=False, compare=False)
    guaranteed: int = field(init=False, repr=False, compare=False)
    """How much of the longest global window is kept for single categories."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hours", QuietHours(self.quiet))
        object.__setattr__(self, "guaranteed", sum(rule.guarantee for rule in self.categories.values()))

    def knows(self, category: str) -> bool:
        """Whether the limits file names the category."""
        return category in self.categories

    def rule(self, category: str) -> CategoryRule:
        """The rule of a category, the defaults where it is not named."""
        return self.categories.get(category, self.defaults)

    @property
    def has_identities(self) -> bool:
        """Whether any category's messages appear under a name or icon of their own."""
        return any(rule.style.identity is not None for rule in (self.defaults, *self.categories.values()))

    @property
    def longest_global(self) -> Limit | None:
        """The global limit that guarantees are a part of: that of the longest window, of two the smaller."""
        return longest_of(self.global_limits)

    def scopes(
        self, category: str, labels: Mapping[str, str] | None = None, *, tells: bool = False
    ) -> tuple[Demand, ...]:
        """What an event is counted against, widest first; scopes without a limit are left out.

        With guarantees an event takes a slot of its category's share while that has room, else one of what all share.
        Where it is told what was suppressed, events leave one slot of the category's longest window, and one of its
        share, to the message that ``tells``.
        """
        demands = self._scopes.get((category, tells))
        if demands is None:
            demands = (*self._global_demands(category, tells=tells), *self._own_scopes(category, tells=tells))
            if len(self._scopes) < _REMEMBERED:
                self._scopes[category, tells] = demands
        if labels and (per_label := self.rule(category).per_label):
            return (*demands, *_label_scopes(category, per_label, labels))
        return demands

    def share(self, category: str) -> Scope | None:
        """What is kept for the category's events of the longest global window; None where nothing is."""
        longest, rule = self.longest_global, self.rule(category)
        guarantee = rule.guarantee - (rule.telling is not None)
        if longest is None or guarantee < 1:
            return None
        return Scope(f"{GUARANTEE_PREFIX}{category}", (replace(longest, max=guarantee),))

    def kept(self, category: str) -> Scope | None:
        """What of the category's guarantee is kept for telling what was suppressed; None where nothing is."""
        longest, rule = self.longest_global, self.rule(category)
        if longest is None or not rule.guarantee or rule.telling is None:
            return None
        return Scope(f"kept:{category}", (replace(longest, max=1),))

    def counting(self, category: str) -> Counting | None:
        """Where the category's suppressed events are counted; None where nobody is told of them."""
        counting = self._countings.get(category)
        if counting is None and (telling := self.rule(category).telling) is not None:
            counting = self.counting_as(category, telling)
            if len(self._countings) < _REMEMBERED:
                self._countings[category] = counting
        return counting

    def counting_as(self, category: str, telling: Telling) -> Counting:
        """The same for a telling that the category may have had before."""
        from dispatcher.core.tally import counting_of

        rule, whole = self.rule(category), self.longest_global
        windows = (rule.limits, self.global_limits, *rule.per_label.values())
        return counting_of(
            telling,
            category,
            rule.digest_delay_us,
            own=longest_of(rule.limits),
            share=replace(whole, max=rule.guarantee) if whole is not None and rule.guarantee else None,
            window=next((longest_of(each) for each in windows if each), None),
        )

    @property
    def shared(self) -> Scope | None:
        """What the guarantees leave of the longest global window; None where there are none, or nothing is left."""
        longest, guaranteed = self.longest_global, self.guaranteed
        if longest is None or not 0 < guaranteed < longest.max:
            return None
        return Scope(SHARED_SCOPE, (replace(longest, max=longest.max - guaranteed),))

    @property
    def has_shadows(self) -> bool:
        """Whether any limit is counted and not enforced."""
        rules = (self.defaults, *self.categories.values())
        return bool(self.global_shadows) or any(rule.shadows or rule.label_shadows for rule in rules)

    def shadows(self, category: str, labels: Mapping[str, str] | None = None) -> tuple[Scope, ...]:
        """Where an event that was admitted is counted by limits that are not enforced."""
        rule = self.rule(category)
        if not (self.global_shadows or rule.shadows or rule.label_shadows):
            return ()
        scopes = (
            Scope(GLOBAL_SCOPE, self.global_shadows),
            Scope(f"category:{category}", rule.shadows),
            *_label_scopes(category, rule.label_shadows, labels or {}),
        )
        return tuple(Scope(SHADOW_PREFIX + scope.name, scope.limits) for scope in scopes if scope.limits)

    def _global_demands(self, category: str, *, tells: bool) -> Iterator[Demand]:
        if not self.global_limits:
            return
        yield Scope(GLOBAL_SCOPE, self.global_limits)
        kept = self.kept(category) if tells else None
        pools = tuple(pool for pool in (kept, self.share(category), self.shared) if pool is not None)
        if pools:
            yield pools[0] if len(pools) == 1 else FirstOf(pools)

    def _own_scopes(self, category: str, *, tells: bool) -> Iterator[Demand]:
        rule = self.rule(category)
        longest = longest_of(rule.limits)
        if longest is None:
            return
        yield Scope(f"category:{category}", rule.limits)
        if tells:
            yield Scope(f"digest:{category}", (replace(longest, max=1),))
        elif rule.telling is not None and longest.max > 1:
            yield Scope(f"singles:{category}", (replace(longest, max=longest.max - 1),))

    def channel(self, event: Event) -> str:
        """Where the event is posted: its own channel, else that of its category's first route that matches it."""
        if self.by_webhook:
            return WEBHOOK
        return event.channel or self.rule(event.category).channel_for(event)

    def can_post_to(self, channel: str) -> bool:
        """Whether this is a channel of what is posted with now: a webhook has its own alone, and a token all others."""
        return (channel == WEBHOOK) == self.by_webhook

    def _still_usable(self, channel: str | None) -> str | None:
        """Where an event is posted that has waited for the channel, or has not yet; None: where it says itself."""
        if self.by_webhook:
            return WEBHOOK
        return None if channel == WEBHOOK else channel

    def fallback(self, leased: Leased, channel: str) -> Fallback | None:
        """Where the event is posted if ``channel``, to which it was posted, is gone; None: it is a dead letter."""
        name = None if self.by_webhook else self.rule(leased.event.category).fallback
        if name is None or name == channel or leased.gone is not None:
            return None
        from dispatcher.core.states import Fallback  # as in _terms_of

        return Fallback(name, self.pace(name))

    def pace(self, channel: str) -> Limit | None:
        """How fast the channel may be posted to; ``None`` lifts the spacing and the one-at-a-time rule."""
        if channel == EDITS:
            return EDITS_PACE
        return self.channels.get(channel, self.default_pace)

    def max_age_us(self, event: Event) -> int:
        """How long the event may wait once it may be posted: the category's bound, or the event's own if shorter."""
        bound = self.rule(event.category).max_age_us
        return bound if event.max_age is None else min(bound, round(event.max_age * US))

    def terms(self, leased: Leased) -> Terms:
        """Everything the policy says of one event. One that has waited keeps the channel it waited for, if it can.

        Events of one batch that differ in nothing else share their terms.
        """
        event = leased.event
        rule = self.rule(event.category)
        if leased.report is not None:
            return self.report_terms(leased)
        if leased.is_digest_message:
            category = event.category
            return self.digest_terms(leased, (*self.scopes(category, tells=True), *self.scopes(category)))
        if rule.once is not None and (scope := rule.once.scope(event.category, event)) is not None:
            others = self._terms_of(leased)
            return replace(others, scopes=(scope, *others.scopes))
        if event.labels and (rule.per_label or rule.label_shadows):
            return self._terms_of(leased)
        channel = self._still_usable(leased.channel) or (self.channel(event) if rule.routes else event.channel)
        key = (event.category, channel, leased.begins_us, event.max_age, leased.buffered)
        terms = self._terms.get(key)
        if terms is None:
            if len(self._terms) >= _REMEMBERED:
                self._terms.clear()
            terms = self._terms[key] = self._terms_of(leased)
        return terms

    def _terms_of(self, leased: Leased) -> Terms:
        from dispatcher.core.states import Terms  # who only looks at limits needs no events

        event = leased.event
        channel = self._still_usable(leased.channel) or self.channel(event)
        tells = leased.buffered and self.rule(event.category).on_limit is OnLimit.DIGEST  # else a digest is over
        return Terms(
            channel=channel,
            pace=self.pace(channel),
            scopes=self.scopes(event.category, event.labels, tells=tells),
            deadline_us=leased.begins_us + self.max_age_us(event),
            configured=self.knows(event.category),
            shadows=self.shadows(event.category, event.labels),
        )

    def digest_terms(self, leased: Leased, scopes: tuple[Demand, ...]) -> Terms:
        """The terms of a digest message of the category, which asks for ``scopes``. It has no age: nothing ends it."""
        from dispatcher.core.states import Terms
        from dispatcher.core.tally import ASK_ANEW_US

        category = leased.event.category
        channel = self._still_usable(leased.channel) or self.rule(category).channel
        return Terms(channel, self.pace(channel), scopes, leased.seen_us + ASK_ANEW_US, configured=True)

    def report_terms(self, leased: Leased) -> Terms:
        """The terms of the report of a silence: it goes where most of what it tells of would have gone."""
        from dispatcher.core.states import Terms
        from dispatcher.core.tally import ASK_ANEW_US

        named = None if leased.report is None else leased.report.channel
        channel = self._still_usable(leased.channel) or self._still_usable(named) or self.defaults.channel
        scopes = tuple(self._global_demands(leased.event.category, tells=False))
        return Terms(channel, self.pace(channel), scopes, leased.seen_us + ASK_ANEW_US, configured=True)

    def line(self, event: Event) -> str:
        """The line in which the event waits for room: its category's, or one for the values of its limited labels."""
        scopes = tuple(_label_scopes(event.category, self.rule(event.category).per_label, event.labels))
        names = [scope.name for scope in scopes]
        if len(names) > 1:  # separated by blanks, and a value may have blanks itself
            names = [name.replace("%", "%25").replace(" ", "%20") for name in names]
        line = " ".join(names) or f"category:{event.category}"
        if len(line) <= _MAX_LINE:
            return line
        return f"label:{event.category}:{blake2b(line.encode(), digest_size=16).hexdigest()}"


def quiet_line(line: str) -> str:
    """The line of events that waited for the end of quiet hours, beside another line; it stays theirs afterwards."""
    return line if is_quiet_line(line) else QUIET_PREFIX + line


def is_quiet_line(line: str | None) -> bool:
    """Whether events wait in it, or did, for the end of quiet hours."""
    return line is not None and line.startswith(QUIET_PREFIX)


def _label_scopes(
    category: str, per_label: Mapping[str, tuple[Limit, ...]], labels: Mapping[str, str]
) -> Iterator[Scope]:
    for label, limits in per_label.items():
        value = labels.get(label)
        if value is not None and limits:
            short = value if len(value) <= _MAX_LABEL else blake2b(value.encode(), digest_size=16).hexdigest()
            yield Scope(f"label:{category}:{label}={short}", limits)


def again_after_us(event_id: str, nth: int) -> int:
    """How long an event waits to be posted again after its ``nth`` post whose arrival is not known.

    Each may be a copy, so the waits grow fast: 1 s, 5 s, 25 s, up to an hour. The event's id chooses a part of each
    wait, half of it at least. Eight posts take more than an hour: an hour of answers 503 ends no event.
    """
    whole_us: int = min(_AGAIN_FROM_US * _AGAIN_TIMES ** (nth - 1), _AGAIN_TO_US)
    chosen = int.from_bytes(blake2b(f"{event_id}#{nth}".encode(), digest_size=4).digest()) / 2**32
    return round(whole_us * (1 + chosen) / 2)


def limit_reason(scope: str) -> Reason:
    """The reason that names a denying scope; guarantees and what they leave are parts of the global limit.

    ``silence:ID`` is what lines of silenced events wait for.
    """
    kind = scope.partition(":")[0]
    return _REASONS.get(kind, Reason.LIMIT_CATEGORY)

"""What may stand in the limits file: its keys, their types and their defaults, one class per mapping."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    WrapSerializer,
    model_validator,
)

from dispatcher.core.hooks import Preset, Verify
from dispatcher.core.limits import Limit
from dispatcher.core.matchers import Matcher, Matchers
from dispatcher.core.once import BY_KEY, By, Then
from dispatcher.core.policy import OnAmbiguous, OnLimit, OnResolved, Template, WhileWaiting
from dispatcher.core.quiet import QuietThen, Times
from dispatcher.core.units import format_duration
from dispatcher.settings import limits_shapes as shape
from dispatcher.settings import limits_values as read
from dispatcher.settings.content import BUILT_IN, ICONS
from dispatcher.settings.limits_values import fault


def _one_of(words: type[StrEnum]) -> PlainValidator:
    return PlainValidator(partial(read.read_word, words=words))


Windows: TypeAlias = Annotated[
    tuple[Annotated[Limit | read.Shadow, PlainValidator(read.read_limit), PlainSerializer(read.written_limit)], ...],
    BeforeValidator(read.read_windows),
    AfterValidator(read.distinct_windows),
    WithJsonSchema(shape.WINDOWS),
]
Pace: TypeAlias = Annotated[
    Limit | None, PlainValidator(read.read_pace), WithJsonSchema(shape.PACE), PlainSerializer(read.written_pace)
]
Channel: TypeAlias = Annotated[str, PlainValidator(read.read_channel), WithJsonSchema(shape.CHANNEL_NAME)]
FallbackChannel: TypeAlias = Annotated[
    str | None,
    PlainValidator(read.read_fallback),
    WithJsonSchema(shape.FALLBACK),
    PlainSerializer(read.written_or_none),
]
Match: TypeAlias = Annotated[
    Matchers, PlainValidator(read.read_match), WithJsonSchema(shape.MATCH), PlainSerializer(read.written_match)
]
ChannelKey: TypeAlias = Annotated[str, AfterValidator(read.read_channel_key), WithJsonSchema(shape.CHANNEL_KEY)]
Category: TypeAlias = Annotated[str, AfterValidator(read.read_category), WithJsonSchema(shape.CATEGORY_NAME)]
Span: TypeAlias = Annotated[
    int, PlainValidator(read.read_span_us), WithJsonSchema(shape.SPAN), PlainSerializer(format_duration)
]
Count: TypeAlias = Annotated[int, PlainValidator(read.read_count), WithJsonSchema(shape.COUNT)]
Size: TypeAlias = Annotated[
    int, PlainValidator(read.read_size), WithJsonSchema(shape.SIZE), PlainSerializer(read.written_size)
]
ShownText: TypeAlias = Annotated[int, PlainValidator(read.read_shown_text), WithJsonSchema(shape.SHOWN_TEXT)]
RepeatsBy: TypeAlias = Annotated[
    By, PlainValidator(read.read_by), WithJsonSchema(shape.BY), PlainSerializer(read.written_by)
]
AfterFirst: TypeAlias = Annotated[Then, _one_of(Then), WithJsonSchema(shape.words(Then))]
AfterRecovery: TypeAlias = Annotated[OnResolved, _one_of(OnResolved), WithJsonSchema(shape.words(OnResolved))]
RecoveredInLine: TypeAlias = Annotated[WhileWaiting, _one_of(WhileWaiting), WithJsonSchema(shape.words(WhileWaiting))]
OverLimit: TypeAlias = Annotated[OnLimit, _one_of(OnLimit), WithJsonSchema(shape.words(OnLimit))]
WhereUnknown: TypeAlias = Annotated[OnAmbiguous, _one_of(OnAmbiguous), WithJsonSchema(shape.words(OnAmbiguous))]
Unknown: TypeAlias = Annotated[
    str, PlainValidator(read.read_unknown_categories), WithJsonSchema(shape.UNKNOWN_CATEGORIES)
]

TimesOfDay: TypeAlias = Annotated[
    tuple[Times, ...],
    PlainValidator(read.read_times),
    WithJsonSchema(shape.TIMES),
    PlainSerializer(lambda times: list(map(str, times))),
]
Days: TypeAlias = Annotated[
    frozenset[int], PlainValidator(read.read_days), WithJsonSchema(shape.DAYS), PlainSerializer(read.written_days)
]
Zone: TypeAlias = Annotated[str, PlainValidator(read.read_zone), WithJsonSchema(shape.ZONE)]
QuietName: TypeAlias = Annotated[str, AfterValidator(read.read_category), WithJsonSchema(shape.QUIET_NAME)]
QuietCategories: TypeAlias = Annotated[
    tuple[str, ...] | None,
    PlainValidator(read.read_quiet_categories),
    WithJsonSchema(shape.QUIET_CATEGORIES),
]
Unless: TypeAlias = Annotated[
    tuple[Matcher, ...],
    PlainValidator(read.read_unless),
    WithJsonSchema(shape.UNLESS),
    PlainSerializer(read.written_unless),
]
InQuiet: TypeAlias = Annotated[QuietThen, _one_of(QuietThen), WithJsonSchema(shape.words(QuietThen))]
Guarantee: TypeAlias = Annotated[int, PlainValidator(read.read_guarantee), WithJsonSchema(shape.GUARANTEE)]
Label: TypeAlias = Annotated[str, AfterValidator(read.read_label), WithJsonSchema(shape.LABEL_NAME)]
LabelEntries: TypeAlias = dict[Label, Windows]

HookName: TypeAlias = Annotated[str, AfterValidator(read.read_category), WithJsonSchema(shape.HOOK_NAME)]
HookTemplate: TypeAlias = Annotated[
    str | None, PlainValidator(read.read_hook_template), WithJsonSchema(shape.HOOK_TEMPLATE)
]
HookLabels: TypeAlias = dict[Label, HookTemplate]
SecretFile: TypeAlias = Annotated[str, PlainValidator(read.read_secret_file), WithJsonSchema(shape.PATH)]
HeaderName: TypeAlias = Annotated[str | None, PlainValidator(read.read_header), WithJsonSchema(shape.HEADER)]
VerifiedBy: TypeAlias = Annotated[Verify | None, _one_of(Verify), WithJsonSchema(shape.words(Verify))]
ReadyMade: TypeAlias = Annotated[Preset | None, _one_of(Preset), WithJsonSchema(shape.words(Preset))]

Truth: TypeAlias = Annotated[bool, PlainValidator(read.read_truth), WithJsonSchema(shape.TRUTH)]
TextTemplate: TypeAlias = Annotated[
    Template | None,
    PlainValidator(read.read_template),
    WithJsonSchema(shape.TEMPLATE),
    PlainSerializer(read.written_template),
]
Username: TypeAlias = Annotated[
    str | None,
    PlainValidator(read.read_username),
    WithJsonSchema(shape.USERNAME),
    PlainSerializer(read.written_or_none),
]
IconEmoji: TypeAlias = Annotated[
    str | None, PlainValidator(read.read_icon_emoji), WithJsonSchema(shape.EMOJI), PlainSerializer(read.written_or_none)
]
IconUrl: TypeAlias = Annotated[
    str | None,
    PlainValidator(read.read_icon_url),
    WithJsonSchema(shape.ICON_URL),
    PlainSerializer(read.written_or_none),
]


_INSTANT: Final = "timestamp_header"

_RULE: Final = BUILT_IN.defaults
_LETTERS: Final = BUILT_IN.dead_letters


def _mapping(example: str, kind: Any, *, may_be_empty: bool = True) -> BeforeValidator:  # noqa: ANN401  a type
    shape_of = kind | None if may_be_empty else kind
    return BeforeValidator(partial(_as_mapping, example=example), json_schema_input_type=shape_of)


def _not_too_many(categories: Any) -> Any:  # noqa: ANN401  any YAML value
    """All that look at every category stay within their time: ``dispatcher serve`` answers within seconds."""
    if isinstance(categories, dict) and len(categories) > read.MAX_CATEGORIES:
        raise read.fault(f" of {len(categories)} categories, expected at most {read.MAX_CATEGORIES}")
    return categories


def _as_mapping(value: Any, example: str, beside: str = "") -> Any:  # noqa: ANN401  any YAML value
    """A mapping; a key with nothing behind it is an empty one, since its entries may all be commented out.

    ``beside`` is what else may stand there.
    """
    if value is None:
        return {}
    if isinstance(value, dict | BaseModel):
        return value
    raise read.fault(f", expected a mapping such as {example}{beside}")


class Section(BaseModel):
    """One mapping of the file; an unknown key in it is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @classmethod
    def key_names(cls) -> list[str]:
        """The keys that may stand in it."""
        return [info.alias or name for name, info in cls.model_fields.items()]


class GlobalSection(Section):
    """What holds for all events together."""

    model_config = ConfigDict(title="global")

    limits: Windows = Field(
        default=BUILT_IN.global_limits,
        description="Limits for all events together; all must have room, [] is unlimited.",
    )


class ChannelSection(Section):
    """How one channel may be posted to."""

    model_config = ConfigDict(title="channel")

    pace: Pace = Field(
        default=BUILT_IN.default_pace,
        description="How fast it may be posted to. Never drops anything, only delays; none lifts it.",
    )


class OnceSection(Section):
    """Of events about the same thing one is posted in each window."""

    model_config = ConfigDict(title="once")

    by: RepeatsBy = Field(
        default=BY_KEY,
        description="What two such events have in common: their dedup_key, these labels, or the words of their text.",
    )
    per: Span = Field(description="In any window of this length one of them is posted.")
    then: AfterFirst = Field(
        default=Then.DROP, description="Drop the repeats, or count them in the message of the first."
    )


def _none_or_mapping(value: Any) -> Any:  # noqa: ANN401  any YAML value
    return None if value == read.NONE else _as_mapping(value, "{per: 4h}", " or none")


def _written_once(once: OnceSection | None, write: SerializerFunctionWrapHandler) -> Any:  # noqa: ANN401  plain data
    return read.NONE if once is None else write(once)


RepeatsOrNone: TypeAlias = Annotated[
    OnceSection | None,
    BeforeValidator(_none_or_mapping, json_schema_input_type=OnceSection | Literal["none"]),
    WrapSerializer(_written_once),
]


class RouteSection(Section):
    """Where the events are posted that match."""

    model_config = ConfigDict(title="route")

    match: Match = Field(description="Matchers such as severity=critical over category, priority and labels.")
    channel: Channel = Field(description="Where events are posted that match all of them, and name no channel.")


RouteEntry: TypeAlias = Annotated[RouteSection, _mapping(read.ROUTE_EXAMPLE, RouteSection, may_be_empty=False)]
RouteEntries: TypeAlias = Annotated[
    tuple[RouteEntry, ...],
    BeforeValidator(
        read.read_routes, json_schema_input_type=Annotated[list[RouteEntry], Field(max_length=read.MAX_ROUTES)]
    ),
]


class RuleSection(Section):
    """What holds for every category that does not say otherwise."""

    model_config = ConfigDict(title="rule")
    limits: Windows = Field(
        default=_RULE.limits,
        description="Limits for the category alone; all must have room, [] is unlimited.",
    )
    channel: Channel = Field(
        default=_RULE.channel, description="Where its events are posted, unless they name a channel."
    )
    routes: RouteEntries = Field(
        default=(), description="Other channels for events that match; the first route that matches counts."
    )
    fallback: FallbackChannel = Field(
        default=None, description="Where events are posted whose channel is gone or archived; none: dead letters."
    )
    on_limit: OverLimit = Field(
        default=_RULE.on_limit,
        description="Over a limit: drop with a log line, keep as a dead letter, defer until there is room, or digest.",
    )
    max_age: Span = Field(
        default=_RULE.max_age_us, description="What waits longer than this becomes a dead letter, expired."
    )

    max_parked: Count = Field(
        default=_RULE.max_parked,
        description="So many deferred events of a category wait; the next becomes a dead letter, overflow.",
    )
    on_ambiguous: WhereUnknown = Field(
        default=_RULE.on_ambiguous,
        description="A post that perhaps arrived, where the history cannot be read: resend, or keep as a dead letter.",
    )
    username: Username = Field(default=None, description="The name under which its messages appear.")
    icon_emoji: IconEmoji = Field(default=None, description="The emoji beside its messages.")
    icon_url: IconUrl = Field(default=None, description="The image beside its messages.")
    allow_mentions: Truth = Field(
        default=False, description="Whether mentions in an event's own markup and blocks notify people."
    )
    template: TextTemplate = Field(default=None, description="What makes the text of its messages, in Jinja.")
    per_label: Annotated[LabelEntries, _mapping("{host: [3/10m]}", LabelEntries)] = Field(
        default={}, description="Limits for each value of a label of the event, by the label's name."
    )
    digest_delay: Span = Field(
        default=_RULE.digest_delay_us,
        description="A digest collects so long before it is posted; so long it is quiet when a notice says it is over.",
    )
    notice: Truth = Field(
        default=False, description="Post one line when events begin to be suppressed, and one when that has ended."
    )
    once: RepeatsOrNone = Field(
        default=None, description="Repeats of the same thing: one is posted in each window; none: all are."
    )
    resolved: AfterRecovery = Field(
        default=_RULE.resolved,
        description="Where the message about a failure cannot be edited: post that it is over, or ignore it.",
    )
    resolved_while_waiting: RecoveredInLine = Field(
        default=_RULE.resolved_while_waiting,
        description="An event whose failure is over before it was posted: drop it, or post it all the same.",
    )


class CategorySection(RuleSection):
    """What holds for one category; what it leaves out, defaults says."""

    model_config = ConfigDict(title="category")

    guarantee: Guarantee = Field(
        default=0, description="So many of the longest global window are kept for this category."
    )

    def over(self, defaults: RuleSection) -> CategorySection:
        """These keys where they were written, else those of ``defaults``; of two icons that stand there, these."""
        inherited = {name: getattr(defaults, name) for name in RuleSection.model_fields}
        if self.model_fields_set & ICONS:
            inherited |= dict.fromkeys(ICONS)
        own = {name: getattr(self, name) for name in self.model_fields_set}
        return CategorySection.model_construct(**(inherited | own))


class QuietSection(Section):
    """Hours in which a category posts nothing that was not admitted before."""

    model_config = ConfigDict(title="quiet hours")

    times: TimesOfDay = Field(description="Times of day by the clock of the zone; one may end on the next day.")
    days: Days = Field(default=frozenset(range(7)), description="The days on which they begin; without it all.")
    zone: Zone = Field(description="The time zone by whose clock they begin and end.")
    categories: QuietCategories = Field(default=None, description="For events of these categories; without it all.")
    unless: Unless = Field(default=(), description="Not for events whose priority or any of whose labels matches.")
    then: InQuiet = Field(
        description="Count events in one message at the end, let them wait until the end, or drop them."
    )


class HookSection(Section):
    """What becomes an event of a webhook that somebody else's service sends to `dispatcher serve`."""

    model_config = ConfigDict(title="hook")

    preset: ReadyMade = Field(
        default=None, description="A hook as it comes; the keys beside it take the place of its own."
    )
    verify: VerifiedBy = Field(default=None, description="How a request proves that its sender knows the secret.")
    secret_file: SecretFile = Field(description="The file with the secret: a line for each that is valid.")
    header: HeaderName = Field(default=None, description="Where the signature or the token stands.")
    timestamp_header: HeaderName = Field(
        default=None, description="Where the instant stands that is signed too; it may be five minutes old."
    )
    when: HookTemplate = Field(default=None, description="What makes true of the requests that become events.")
    category: HookTemplate = Field(default=None, description="What makes the category of the event.")
    text: HookTemplate = Field(default=None, description="What makes its text.")
    id: HookTemplate = Field(default=None, description="What makes its id: the same for a request that comes again.")
    channel: HookTemplate = Field(default=None, description="What makes the channel that it names.")
    priority: HookTemplate = Field(default=None, description="What makes its priority: high, normal or low.")
    labels: Annotated[HookLabels, _mapping('{repo: "{{ body.repository.name }}"}', HookLabels)] = Field(
        default={}, description="What makes its labels, by their names."
    )

    @model_validator(mode="after")
    def _is_whole(self) -> HookSection:
        said = [name for name in ("verify", "category", "text") if getattr(self, name) is not None]
        if self.preset is None and len(said) < 3:  # noqa: PLR2004 - all of them
            raise fault(", expected verify, category and text, or a preset")
        if self.verify is Verify.TOKEN and self.timestamp_header is not None:
            raise fault(", expected verify with a signature beside it, since a token signs no instant", item=_INSTANT)
        return self


class DeadLettersSection(Section):
    """How many dead letters are kept, of how many bytes, and for how long; the oldest go first."""

    model_config = ConfigDict(title="dead letters")

    max: Count = Field(default=_LETTERS.max, description="At most so many are kept.")
    max_age: Span = Field(default=_LETTERS.max_age_us, description="Each is kept at most so long.")
    max_bytes: Size = Field(
        default=_LETTERS.max_bytes, description="At most so much is kept, payloads and reasons of all together."
    )


class DecisionsSection(Section):
    """Of how many events the record says what became of them; the oldest go first."""

    model_config = ConfigDict(title="decisions")

    max: Count = Field(
        default=_LETTERS.decisions,
        description="At most so many of what a limit suppressed, and as many of all others.",
    )
    text: ShownText = Field(
        default=_LETTERS.text, description="Characters of an event's text that are kept with its decision; 0 for none."
    )


HookEntry: TypeAlias = Annotated[
    HookSection, _mapping("{preset: github, secret_file: /run/secrets/gh}", HookSection, may_be_empty=False)
]
HookEntries: TypeAlias = dict[HookName, HookEntry]
ChannelEntry: TypeAlias = Annotated[ChannelSection, _mapping("{pace: 1/1s}", ChannelSection)]
RuleEntry: TypeAlias = Annotated[CategorySection, _mapping("{limits: [10/30m]}", CategorySection)]
QuietEntry: TypeAlias = Annotated[QuietSection, _mapping(read.QUIET_EXAMPLE, QuietSection, may_be_empty=False)]
QuietEntries: TypeAlias = dict[QuietName, QuietEntry]
ChannelEntries: TypeAlias = dict[ChannelKey, ChannelEntry]
RuleEntries: TypeAlias = dict[Category, RuleEntry]


class LimitsFile(Section):
    """How many notifications are posted, where, and what becomes of the rest."""

    model_config = ConfigDict(title="Limits file of the notification dispatcher")
    global_: Annotated[GlobalSection, _mapping("{limits: [100/30m]}", GlobalSection)] = Field(
        default=GlobalSection(), alias="global", description="What holds for all events together."
    )
    channels: Annotated[ChannelEntries, _mapping('{"#ops": {pace: 1/1s}}', ChannelEntries)] = Field(
        default={}, description="How fast channels may be posted to; default is every other one."
    )
    defaults: Annotated[RuleSection, _mapping("{limits: [10/30m]}", RuleSection)] = Field(
        default=RuleSection(), description="Any category that is not named below, each separately."
    )
    categories: Annotated[
        RuleEntries,
        _mapping("{errors: {limits: [10/30m]}}", Annotated[RuleEntries, Field(max_length=read.MAX_CATEGORIES)]),
        BeforeValidator(_not_too_many),
    ] = Field(default={}, description="Categories by name; what one leaves out, defaults says.")
    quiet: Annotated[QuietEntries, _mapping(f"{{nights: {read.QUIET_EXAMPLE}}}", QuietEntries)] = Field(
        default={}, description="Quiet hours by name: when categories post nothing, and what becomes of their events."
    )
    hooks: Annotated[HookEntries, _mapping("{github: {preset: github, secret_file: /run/secrets/gh}}", HookEntries)] = (
        Field(default={}, description="Webhooks of other services by name: what of each becomes an event.")
    )
    unknown_categories: Unknown = Field(
        default=read.ACCEPT, description="Categories that are not named: they follow defaults, or become dead letters."
    )
    dead_letters: Annotated[DeadLettersSection, _mapping("{max: 100000, max_age: 30d}", DeadLettersSection)] = Field(
        default=DeadLettersSection(),
        description="How many dead letters are kept, of how many bytes, and for how long; the oldest go first.",
    )
    decisions: Annotated[DecisionsSection, _mapping("{max: 100000}", DecisionsSection)] = Field(
        default=DecisionsSection(), description="Of how many events it is kept what became of them, and why."
    )


_SECTIONS: Final[Mapping[str, type[Section]]] = {
    "global": GlobalSection,
    "defaults": RuleSection,
    "dead_letters": DeadLettersSection,
    "decisions": DecisionsSection,
}
_ENTRIES: Final[Mapping[str, type[Section]]] = {
    "channels": ChannelSection,
    "categories": CategorySection,
    "quiet": QuietSection,
    "hooks": HookSection,
}


def section_at(path: tuple[str | int, ...]) -> type[Section] | None:
    """The class of the mapping that stands at a path; ``None`` where keys are names of the operator's own."""
    match path:
        case (*_, "routes", int()):
            return RouteSection
        case ():
            return LimitsFile
        case ("defaults", "once") | ("categories", _, "once"):
            return OnceSection
        case (str(name),):
            return _SECTIONS.get(name)
        case (str(name), _):
            return _ENTRIES.get(name)
        case _:
            return None

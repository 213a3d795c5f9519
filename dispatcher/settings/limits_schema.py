"""What may stand in the limits file: its keys, their types and their defaults, one class per mapping.

A key that a later version will know stands in ``not_yet`` until then: to add it, turn it into a field and give
``policy_of`` the value.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from dispatcher.model import Limit, parse_duration
from dispatcher.policy import CategoryRule, OnLimit, Policy
from dispatcher.settings import limits_values as read

Windows: TypeAlias = Annotated[
    tuple[Annotated[Limit, PlainValidator(read.read_limit)], ...],
    BeforeValidator(read.read_windows),
    AfterValidator(read.distinct_windows),
]
Pace: TypeAlias = Annotated[Limit | None, PlainValidator(read.read_pace)]
Channel: TypeAlias = Annotated[str, PlainValidator(read.read_channel)]
ChannelKey: TypeAlias = Annotated[str, AfterValidator(read.read_channel_key)]
Category: TypeAlias = Annotated[str, AfterValidator(read.read_category)]
Span: TypeAlias = Annotated[int, PlainValidator(read.read_span_us)]

DEFAULT_PACE: Final = Limit.parse("10/10s")


def _mapping(example: str) -> BeforeValidator:
    """A mapping; a key with nothing behind it is an empty one, since its entries may all be commented out."""

    def check(value: Any) -> Any:  # noqa: ANN401  any YAML value
        if value is None:
            return {}
        if isinstance(value, dict | BaseModel):
            return value
        raise read.fault(f", expected a mapping such as {example}")

    return BeforeValidator(check)


class Section(BaseModel):
    """One mapping of the file; an unknown key in it is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    not_yet: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def key_names(cls) -> list[str]:
        """The keys that may stand in it."""
        return [info.alias or name for name, info in cls.model_fields.items()]


class GlobalSection(Section):
    """``global``: what holds for all events together."""

    limits: Windows = (Limit.parse("100/30m"),)


class ChannelSection(Section):
    """An entry of ``channels``."""

    pace: Pace = DEFAULT_PACE


class RuleSection(Section):
    """``defaults``, and an entry of ``categories``, where an absent key follows ``defaults``."""

    not_yet: ClassVar[frozenset[str]] = frozenset(
        {
            "allow_mentions",
            "digest_delay",
            "guarantee",
            "icon_emoji",
            "icon_url",
            "max_parked",
            "notice",
            "on_ambiguous",
            "per_label",
            "template",
            "username",
        }
    )

    limits: Windows = (Limit.parse("10/30m"),)
    channel: Channel = "#notifications"
    on_limit: Annotated[OnLimit, PlainValidator(read.read_on_limit)] = OnLimit.DROP
    max_age: Span = parse_duration("24h")

    def over(self, defaults: RuleSection) -> RuleSection:
        """These keys where they were written, else those of ``defaults``."""
        return defaults.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


ChannelEntry: TypeAlias = Annotated[ChannelSection, _mapping("{pace: 1/1s}")]
RuleEntry: TypeAlias = Annotated[RuleSection, _mapping("{limits: [10/30m]}")]


class LimitsFile(Section):
    """The whole file."""

    not_yet: ClassVar[frozenset[str]] = frozenset({"dead_letters", "decisions"})

    global_: Annotated[GlobalSection, _mapping("{limits: [100/30m]}")] = Field(GlobalSection(), alias="global")
    channels: Annotated[dict[ChannelKey, ChannelEntry], _mapping('{"#ops": {pace: 1/1s}}')] = Field({})
    defaults: Annotated[RuleSection, _mapping("{limits: [10/30m]}")] = RuleSection()
    categories: Annotated[dict[Category, RuleEntry], _mapping("{errors: {limits: [10/30m]}}")] = Field({})
    unknown_categories: Annotated[str, PlainValidator(read.read_unknown_categories)] = "accept"


def section_at(path: tuple[str | int, ...]) -> type[Section] | None:
    """The class of the mapping that stands at a path; ``None`` where keys are names of the operator's own."""
    match path:
        case ():
            return LimitsFile
        case ("global",):
            return GlobalSection
        case ("channels", _):
            return ChannelSection
        case ("defaults",) | ("categories", _):
            return RuleSection
        case _:
            return None


def policy_of(file: LimitsFile) -> Policy:
    """What the file says, as the core uses it."""
    paces = {name: section.pace for name, section in file.channels.items() if "pace" in section.model_fields_set}
    return Policy(
        global_limits=file.global_.limits,
        defaults=_rule_of(file.defaults),
        categories={name: _rule_of(section.over(file.defaults)) for name, section in file.categories.items()},
        default_pace=paces.pop(read.DEFAULT_CHANNEL_KEY, DEFAULT_PACE),
        channels=paces,
        reject_unknown=file.unknown_categories == "reject",
    )


def _rule_of(section: RuleSection) -> CategoryRule:
    return CategoryRule(
        limits=section.limits, channel=section.channel, on_limit=section.on_limit, max_age_us=section.max_age
    )

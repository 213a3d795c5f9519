"""The settings: every variable of the environment, its type, default and meaning.

``Settings`` itself reads nothing; ``loading.load_settings`` fills it from the environment and ``.env``. ``plain`` reads
the same variables a second time, without pydantic, for commands that have to start quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from dispatcher.core.units import CATEGORY_WORDS, HIDDEN
from dispatcher.errors import ConfigError
from dispatcher.settings import checks
from dispatcher.settings.redaction import redacted, redacted_url, redacted_webhook, secret_spellings

PREFIX: Final = "DISPATCHER_"


@dataclass(frozen=True, slots=True)
class Wording:
    """What messages and documentation say of a variable beyond its type.

    ``also`` is another name it is read under; ``from_file`` adds the variable ``<NAME>_FILE``, the path of a
    file that holds the value.
    """

    expected: str
    default: str | None = None
    also: str | None = None
    from_file: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """One row of the table of variables; ``default`` is its text, empty for none."""

    field: str
    name: str
    also: str | None
    file_name: str | None
    default: str
    expected: str
    description: str
    is_secret: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The names with our own prefix."""
        return (self.name,) if self.file_name is None else (self.name, self.file_name)


_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_SPAN: Final = "in seconds or with a unit of ms, s, m, h or d"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")]
Span = Annotated[timedelta, BeforeValidator(checks.span)]
File = Annotated[Path, AfterValidator(checks.home_expanded)]


class Settings(BaseSettings):
    """Everything the environment decides. Frozen; secrets are ``SecretStr``, spans of time are ``timedelta``.

    Building one directly reads neither the environment nor ``.env``; ``isolated`` is the way that says so.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True)

    redis_url: Annotated[
        SecretStr | None,
        AfterValidator(checks.redis_url),
        Wording(checks.REDIS_URL_EXPECTED, also="REDIS_URL"),
    ] = Field(None, description="The Redis or Valkey server; without it the embedded server runs.")

    data_dir: Annotated[File, Wording("a folder")] = Field(
        Path(".dispatcher"), description="Where the embedded server keeps its data."
    )

    namespace: Annotated[Name, Wording(CATEGORY_WORDS)] = Field(
        "dispatcher", description="Prefix and hash tag of every key in Redis that is not RQ's own."
    )

    queue: Annotated[Name, AfterValidator(checks.queue_name), Wording(CATEGORY_WORDS)] = Field(
        "notifications", description="The RQ queue; its lanes are NAME:high, NAME and NAME:low."
    )

    limits_file: Annotated[File | None, Wording("a file", default="config/limits.yaml, then the packaged one")] = Field(
        None, description="The limits file."
    )

    slack_token: Annotated[
        SecretStr | None,
        AfterValidator(checks.slack_token),
        Wording("a bot token such as xoxb-...", also="SLACK_BOT_TOKEN", from_file=True),
    ] = Field(None, description="Slack's bot token. A token and a webhook together are refused.")

    slack_webhook_url: Annotated[
        SecretStr | None,
        AfterValidator(checks.webhook_url),
        Wording("the URL of an incoming webhook, beginning with https://", from_file=True),
    ] = Field(None, description="An incoming webhook instead of a token: one channel, whatever an event names.")

    slack_base_url: Annotated[
        str | None,
        AfterValidator(checks.base_url),
        Wording("an http:// or https:// URL without user name and query", default="Slack's own"),
    ] = Field(
        None, description="Another root of Slack's Web API: the stand-in, a proxy; on another machine with https://."
    )

    slack_timeout: Annotated[
        Span,
        Field(ge=_SECOND / 10, le=300 * _SECOND),
        Wording(f"0.1s to 5m, {_SPAN}", default="10"),
    ] = Field(10 * _SECOND, description="Hard deadline in seconds for one post, whatever the socket does.")

    sink: Annotated[Literal["slack", "console"], BeforeValidator(checks.lower_case), Wording("slack or console")] = (
        Field("slack", description="Where messages go; console prints instead of posting.")
    )

    lease: Annotated[
        Span,
        Field(ge=_SECOND / 10, le=_DAY),
        AfterValidator(checks.outlasts_a_post),
        Wording(f"0.1s to 1d, {_SPAN}", default="3 x DISPATCHER_SLACK_TIMEOUT"),
    ] = Field(
        default_factory=lambda given: 3 * given["slack_timeout"],
        description="How long a worker's lease lasts without renewal; longer than DISPATCHER_SLACK_TIMEOUT.",
    )

    reconcile_grace: Annotated[
        Span,
        Field(ge=0 * _SECOND, le=_DAY),
        Wording(f"0 to 1d, {_SPAN}", default="10"),
    ] = Field(
        10 * _SECOND,
        description="How long after a post with an unknown delivery status its channel's history is searched for it.",
    )

    dedup_window: Annotated[
        Span,
        Field(ge=_SECOND, le=366 * _DAY),
        Wording(f"1s to 366d, {_SPAN}", default="24h"),
    ] = Field(_DAY, description="How long an explicit id is remembered after its event is settled.")

    max_waiting: Annotated[
        int,
        Field(ge=1, le=1_000_000_000),
        Wording("a whole number from 1 to 1000000000"),
    ] = Field(
        1_000_000,
        description="Producers get QueueFull when so many events are held: on the queue, in flight and parked.",
    )

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(checks.lower_case),
        Wording("debug, info, warning or error"),
    ] = Field("info", description="The least severe log lines that are written.")

    log_format: Annotated[
        Literal["auto", "console", "json"],
        BeforeValidator(checks.lower_case),
        Wording("auto, console or json"),
    ] = Field("auto", description="Log lines for people or for machines; auto: console if stderr is a terminal.")

    log_text: Annotated[int, Field(ge=0, le=200), Wording("a whole number from 0 to 200")] = Field(
        0,
        description="Characters of an event's text in its log lines; 0: none, because texts may be private.",
    )

    batch: Annotated[int, Field(ge=1, le=1024), Wording("a whole number from 1 to 1024")] = Field(
        128, description="Events per round trip."
    )

    senders: Annotated[int, Field(ge=1, le=256), Wording("a whole number from 1 to 256")] = Field(
        8, description="Posts in flight per process."
    )

    serve_host: Annotated[str, AfterValidator(checks.host), Wording("an address or the name of a host")] = Field(
        "127.0.0.1", description="Where `dispatcher serve` listens; beyond loopback only with tokens."
    )

    serve_port: Annotated[int, Field(ge=0, le=65_535), Wording("a port from 0 to 65535")] = Field(
        8910, description="The port of `dispatcher serve`; 0 takes a free one."
    )

    serve_tokens_file: Annotated[File | None, Wording("a file")] = Field(
        None, description="Who may do what over HTTP: a line `NAME SCOPES SECRET` for each token."
    )

    serve_trusted_hosts: Annotated[
        tuple[str, ...], BeforeValidator(checks.hosts), Wording("names of hosts, separated by commas", default="")
    ] = Field((), description="Hosts beside loopback that `dispatcher serve` answers to without tokens.")

    metrics_categories: Annotated[int, Field(ge=0, le=150), Wording("a whole number from 0 to 150")] = Field(
        100, description="Categories that no limits file names and that metrics tell apart, by first sight."
    )

    @classmethod
    def isolated(cls, **values: Any) -> Self:  # noqa: ANN401  the fields check the values
        """Settings from these values and the defaults alone; the environment and ``.env`` are not looked at.

        Raises ``ConfigError`` with a sentence for each value that is wrong, named by its field.
        """
        return cls.checked(values, {})

    @property
    def by_webhook(self) -> bool:
        """Whether all is posted to the one channel of an incoming webhook."""
        return self.sink == "slack" and self.slack_webhook_url is not None

    def secrets(self) -> frozenset[str]:
        """Every text that must appear nowhere: token, webhook and its path, Redis password, as given and encoded.

        One of less than 4 characters is not among them: it stands in ordinary words.
        """
        given = (self.redis_url, self.slack_token, self.slack_webhook_url)
        redis_url, token, webhook = (secret.get_secret_value() if secret else "" for secret in given)
        return secret_spellings(redis_url=redis_url, token=token, webhook=webhook)

    @classmethod
    def checked(cls, values: Mapping[str, object], names: Mapping[str, str]) -> Self:
        """Settings from ``values``, or ``ConfigError`` with every fault; ``names`` says how a field is called.

        The error carries nothing of pydantic's, whose errors hold the values, secrets among them.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            details = error.errors()
        raise ConfigError(*(_sentence(detail, values, names) for detail in details if _is_own_fault(detail)))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  pydantic-settings passes all five by name
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003  as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed in counts, so that no code path reads the environment by accident."""
        return (init_settings,)


def variables() -> tuple[Variable, ...]:
    """Every variable that is read, in the order of the documentation."""
    return tuple(_variable(name, info) for name, info in Settings.model_fields.items())


def _variable(field: str, info: FieldInfo) -> Variable:
    meaning = _meaning(info)
    name = f"{PREFIX}{field.upper()}"
    default = "" if info.default is None else str(info.default)
    return Variable(
        field=field,
        name=name,
        also=meaning.also,
        file_name=f"{name}_FILE" if meaning.from_file else None,
        default=default if meaning.default is None else meaning.default,
        expected=meaning.expected,
        description=info.description or "",
        is_secret=info.annotation == SecretStr | None,
    )


def _meaning(info: FieldInfo) -> Wording:
    return next(entry for entry in info.metadata if isinstance(entry, Wording))


def _is_own_fault(detail: ErrorDetails) -> bool:
    """Not when a default could only not be computed because the field it follows is wrong."""
    return detail["type"] != "default_factory_not_called"


def _sentence(detail: ErrorDetails, values: Mapping[str, object], names: Mapping[str, str]) -> str:
    field = str(detail["loc"][0])
    if field not in Settings.model_fields:
        return f"{field} is not a setting, expected one of {', '.join(Settings.model_fields)}"
    variable = _variable(field, Settings.model_fields[field])
    value = _shown_input(variable, values.get(field, detail["input"]))
    said = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else ""
    return f"{names.get(field, field)} is {value}, {said or f'expected {variable.expected}'}"


def _shown_input(variable: Variable, value: object) -> str:
    if variable.field == "redis_url" and isinstance(value, str):
        return redacted(redacted_url(value))
    if variable.field == "slack_webhook_url" and isinstance(value, str) and (seen := redacted_webhook(value)) != HIDDEN:
        return repr(seen)
    return HIDDEN if variable.is_secret else redacted(value)

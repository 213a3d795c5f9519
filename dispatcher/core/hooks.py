"""Hooks: what becomes an event of a webhook that somebody else's service sends, as the limits file says it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verify(StrEnum):
    """How a request proves that it comes from who knows the secret."""

    GITHUB = "github"
    SENTRY = "sentry"
    GRAFANA = "grafana"
    HMAC = "hmac"
    TOKEN = "token"  # noqa: S105 - a word of the limits file


class Preset(StrEnum):
    """Services whose hooks come ready."""

    GITHUB = "github"
    SENTRY = "sentry"
    GRAFANA = "grafana"


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook. ``category`` to ``labels`` are templates of ``body`` and ``headers``; so is ``when``.

    ``header`` is where the signature or the token stands; None where ``verify`` says it. With ``timestamp_header`` the
    instant in it is signed too. The secret stays in its file, a line for each that is valid.
    """

    verify: Verify
    secret_file: str
    category: str
    text: str
    when: str | None = None
    id: str | None = None
    channel: str | None = None
    priority: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    header: str | None = None
    timestamp_header: str | None = None

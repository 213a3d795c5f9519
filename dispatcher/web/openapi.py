"""What there is over HTTP, in the form of OpenAPI 3.1. What an event may hold, docs/events.md says."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from dispatcher.web.reading import DEAD_FILTERS, PARKED_FILTERS

_ROUTES: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "/v1/events": {
        "get": ("read", "What became of the newest events, the newest first."),
        "post": ("ingest", "Enqueue an event, an array of events, JSON lines, or CloudEvents."),
    },
    "/v1/events/{name}": {
        "get": ("read", "What happened to the event of this id."),
        "post": ("ingest", "Enqueue the body as the text of one event of this category."),
    },
    "/v1/alertmanager": {"post": ("ingest", "Enqueue a notification of Alertmanager or Grafana.")},
    "/v1/hooks/{name}": {"post": ("", "Enqueue a webhook as a hook of the limits says; it has a secret of its own.")},
    "/v1/status": {"get": ("read", "What waits, what was sent, and what limits are used.")},
    "/v1/limits": {"get": ("read", "The limits in force, and how much of each is used.")},
    "/v1/limits/check": {"post": ("read", "Every rule of a limits file (YAML) as a sentence, or its faults.")},
    "/v1/limits/apply": {"post": ("operate", "Put a limits file (YAML) in force for the whole fleet.")},
    "/v1/parked": {"get": ("read", "What waits, and for what.")},
    "/v1/parked/cancel": {"post": ("operate", "End parked events without a post.")},
    "/v1/dead": {"get": ("read", "The dead letters, the newest first.")},
    "/v1/dead/{id}": {"get": ("read", "Everything about one dead letter.")},
    "/v1/dead/replay": {"post": ("operate", "Send dead letters through the limits again.")},
    "/v1/dead/purge": {"post": ("operate", "Remove dead letters for good.")},
    "/v1/pause": {"put": ("operate", "Post nothing."), "delete": ("operate", "Resume posting.")},
    "/v1/pause/{category}": {
        "put": ("operate", "Post nothing of a category."),
        "delete": ("operate", "Resume posting of a category."),
    },
    "/v1/mutes/{category}": {
        "put": ("operate", "Suppress a category for a time."),
        "delete": ("operate", "End the mute of a category."),
    },
    "/v1/silences": {
        "get": ("read", "The silences that are in force or begin later."),
        "post": ("operate", "Suppress what matches for a time."),
    },
    "/v1/silences/preview": {"post": ("operate", "How many of the newest ended events matchers match.")},
    "/v1/silences/{id}": {"delete": ("operate", "End a silence.")},
    "/v1/audit": {"get": ("read", "What operators did, the newest first.")},
    "/metrics": {"get": ("metrics", "Figures for Prometheus, as text.")},
    "/-/healthy": {"get": ("", "Whether the process works.")},
    "/-/ready": {"get": ("", "Whether Redis answers and limits are in force.")},
    "/openapi.json": {"get": ("", "This description.")},
}
_QUERY: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("get", "/v1/events"): ("category", "outcome", "reason", "since", "before", "text", "limit", "after"),
    ("post", "/v1/alertmanager"): ("category", "each"),
    ("get", "/v1/status"): ("category", "sort"),
    ("post", "/v1/limits/apply"): ("if_version",),
    ("get", "/v1/parked"): (*PARKED_FILTERS, "limit", "after"),
    ("get", "/v1/dead"): (*DEAD_FILTERS, "limit", "after"),
    ("get", "/v1/audit"): ("limit",),
}
"""The parameters that a query may have; none of them is required."""

_NUMBERS: Final = frozenset({"limit", "if_version"})
_SUCCESS: Final = {("post", "ingest"): "202", ("delete", "operate"): "204"}
_OTHER_SUCCESS: Final = {
    ("post", "/v1/alertmanager"): "200",
    ("post", "/v1/hooks/{name}"): "202",
    ("post", "/v1/silences"): "201",
    ("put", "/v1/pause"): "204",
    ("put", "/v1/pause/{category}"): "204",
}


def description() -> dict[str, Any]:
    """The description, as a JSON object."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "notification-dispatcher", "version": version("notification-dispatcher")},
        "paths": {
            path: {method: _operation(path, method, *said) for method, said in methods.items()}
            for path, methods in _ROUTES.items()
        },
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
            "schemas": {
                "Problem": {
                    "type": "object",
                    "required": ["type", "title", "status", "detail"],
                    "properties": {"status": {"type": "integer"}, "detail": {"type": "string"}},
                }
            },
        },
    }


def _operation(path: str, method: str, scope: str, summary: str) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return {
        "summary": summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names),
            *(
                {"name": name, "in": "query", "schema": {"type": "integer" if name in _NUMBERS else "string"}}
                for name in _QUERY.get((method, path), ())
            ),
        ],
        **({"security": [{"bearer": [scope]}, {"basic": [scope]}]} if scope else {}),
        "responses": {
            _OTHER_SUCCESS.get((method, path)) or _SUCCESS.get((method, scope), "200"): {"description": "done"},
            "default": {"description": "a problem (RFC 9457)", "content": problem},
        },
    }

"""Hooks as they come: what ``preset`` in a hook of the limits file stands for. Any key beside it takes the place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_GITHUB: Final = """\
{% if headers['x-github-event'] == 'push' %}
{{ body.pusher.name }} pushed {{ body.commits | length }} to {{ body.ref }} of {{ body.repository.full_name }}
{% if body.head_commit %}{{ body.head_commit.message | truncate(300) }}
{{ body.compare }}{% endif %}
{% elif headers['x-github-event'] == 'pull_request' %}
{{ body.sender.login }}: pull request {{ body.number }} of {{ body.repository.full_name }} {{ body.action }}
{{ body.pull_request.title }}
{{ body.pull_request.html_url }}
{% elif headers['x-github-event'] == 'issues' %}
{{ body.sender.login }}: issue {{ body.issue.number }} of {{ body.repository.full_name }} {{ body.action }}
{{ body.issue.title }}
{{ body.issue.html_url }}
{% elif headers['x-github-event'] == 'release' %}
{{ body.repository.full_name }}: release {{ body.release.tag_name }} {{ body.action }}
{{ body.release.html_url }}
{% else %}
{{ body.repository.full_name }}: {{ body.workflow_run.name }} {{ body.workflow_run.conclusion }}
{{ body.workflow_run.html_url }}
{% endif %}"""

_GITHUB_WHEN: Final = """\
{% if headers['x-github-event'] == 'workflow_run' %}{{ body.action == 'completed' }}
{% else %}{{ headers['x-github-event'] in ['push', 'pull_request', 'issues', 'release'] }}{% endif %}"""

_SENTRY: Final = """\
{% if headers['sentry-hook-resource'] == 'issue' %}
{{ body.data.issue.title }}
{{ body.data.issue.culprit }}, {{ body.action }}
{{ body.data.issue.web_url }}
{% elif headers['sentry-hook-resource'] == 'event_alert' %}
{{ body.data.event.title }}
{{ body.data.triggered_rule }}
{{ body.data.event.web_url }}
{% else %}
{{ body.data.description_title }}
{{ body.data.description_text }}
{{ body.data.web_url }}
{% endif %}"""

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "github": {
        "verify": "github",
        "when": _GITHUB_WHEN,
        "category": "github",
        "id": "{{ headers['x-github-delivery'] }}",
        "text": _GITHUB,
    },
    "sentry": {
        "verify": "sentry",
        "when": "{{ headers['sentry-hook-resource'] in ['issue', 'event_alert', 'metric_alert'] }}",
        "category": "sentry",
        "id": "{{ headers['request-id'] }}",
        "text": _SENTRY,
    },
    "grafana": {
        "verify": "grafana",
        "category": "grafana",
        "text": "{{ body.title }}\n{{ body.message }}",
    },
}

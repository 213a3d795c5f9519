"""What the operator decides: the environment (``Settings``) and the limits file (``Policy``).

May import: core, server, errors, data_files, front_door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.front_door import front_door

if TYPE_CHECKING:
    from dispatcher.settings.canonical import Content
    from dispatcher.settings.describe import sentences
    from dispatcher.settings.differences import Change, changes
    from dispatcher.settings.environment import Settings, Variable, variables
    from dispatcher.settings.limits_file import (
        Limits,
        find_limits_file,
        load_limits,
        load_policy,
        read_limits,
        read_policy,
    )
    from dispatcher.settings.limits_json_schema import limits_json_schema
    from dispatcher.settings.loading import load_settings
    from dispatcher.settings.redaction import shown_url, shown_webhook

__all__ = [
    "Change",
    "Content",
    "Limits",
    "Settings",
    "Variable",
    "changes",
    "find_limits_file",
    "limits_json_schema",
    "load_limits",
    "load_policy",
    "load_settings",
    "read_limits",
    "read_policy",
    "sentences",
    "shown_url",
    "shown_webhook",
    "variables",
]

__getattr__ = front_door(
    __name__,
    {
        "Change": "dispatcher.settings.differences",
        "Content": "dispatcher.settings.canonical",
        "Limits": "dispatcher.settings.limits_file",
        "Settings": "dispatcher.settings.environment",
        "Variable": "dispatcher.settings.environment",
        "changes": "dispatcher.settings.differences",
        "find_limits_file": "dispatcher.settings.limits_file",
        "limits_json_schema": "dispatcher.settings.limits_json_schema",
        "load_limits": "dispatcher.settings.limits_file",
        "load_policy": "dispatcher.settings.limits_file",
        "load_settings": "dispatcher.settings.loading",
        "read_limits": "dispatcher.settings.limits_file",
        "read_policy": "dispatcher.settings.limits_file",
        "sentences": "dispatcher.settings.describe",
        "shown_url": "dispatcher.settings.redaction",
        "shown_webhook": "dispatcher.settings.redaction",
        "variables": "dispatcher.settings.environment",
    },
)

"""What the operator decides: the environment (``Settings``) and the limits file (``Policy``).

May import: core, server, errors, data_files.
"""

from dispatcher.settings.canonical import Content
from dispatcher.settings.describe import sentences
from dispatcher.settings.differences import Change, changes
from dispatcher.settings.environment import Settings, Variable, variables
from dispatcher.settings.limits_file import Limits, find_limits_file, load_limits, load_policy, read_limits, read_policy
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

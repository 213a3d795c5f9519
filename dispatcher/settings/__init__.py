"""What the operator decides: the environment (``Settings``) and the limits file (``Policy``)."""

from dispatcher.settings.environment import Settings, Variable, variables
from dispatcher.settings.limits_file import find_limits_file, load_policy, read_policy
from dispatcher.settings.limits_json_schema import limits_json_schema
from dispatcher.settings.loading import load_settings
from dispatcher.settings.redaction import shown_url, shown_webhook
from dispatcher.settings.sentences import sentences

__all__ = [
    "Settings",
    "Variable",
    "find_limits_file",
    "limits_json_schema",
    "load_policy",
    "load_settings",
    "read_policy",
    "sentences",
    "shown_url",
    "shown_webhook",
    "variables",
]

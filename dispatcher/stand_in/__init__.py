"""A local Slack over real HTTP, for the demo, the tests and trying things out; it listens on 127.0.0.1 only.

``server.StandIn`` is what is started; ``workspace`` holds what Slack would hold, ``faults`` what is to go wrong.

May import: slack, core, errors, data_files.
"""

from dispatcher.stand_in.chance import EVERY_ROW, TRANSIENT, Chance
from dispatcher.stand_in.faults import (
    Close,
    CutBody,
    Drip,
    Fault,
    FaultReply,
    Faults,
    Hang,
    Held,
    Hold,
    Page,
    Reset,
    SlackError,
    Slow,
    Text,
    TooManyRequests,
    landed,
    not_landed,
)
from dispatcher.stand_in.ledger import Ledger, Posted, Version
from dispatcher.stand_in.outages import Outage
from dispatcher.stand_in.rates import METHODS, REALISTIC, STRICT, WORKSPACE, Rate
from dispatcher.stand_in.server import StandIn
from dispatcher.stand_in.setup import SCOPES, Setup

__all__ = [
    "EVERY_ROW",
    "METHODS",
    "REALISTIC",
    "SCOPES",
    "STRICT",
    "TRANSIENT",
    "WORKSPACE",
    "Chance",
    "Close",
    "CutBody",
    "Drip",
    "Fault",
    "FaultReply",
    "Faults",
    "Hang",
    "Held",
    "Hold",
    "Ledger",
    "Outage",
    "Page",
    "Posted",
    "Rate",
    "Reset",
    "Setup",
    "SlackError",
    "Slow",
    "StandIn",
    "Text",
    "TooManyRequests",
    "Version",
    "landed",
    "not_landed",
]

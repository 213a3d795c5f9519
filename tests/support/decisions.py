"""What the record of decisions says of one event."""

from __future__ import annotations

from dispatcher.core.explain import Decision
from dispatcher.server.connection import Client
from dispatcher.server.keys import Keys
from dispatcher.store.decisions import latest, read_row
from dispatcher.store.explanations import Explanations
from dispatcher.store.rq_keys import QueueKeys


def decision_of(client: Client, keys: Keys, event_id: str) -> Decision | None:
    """The last decision about an event, by its id on the queue; None where none is kept."""
    (found,) = Explanations(client, keys, QueueKeys("notifications")).find([event_id]).found
    return latest([read_row(event_id, row) for row in found.facts.get("decisions", ())])

"""What operators look at and do, over one client that stays: for ``dispatcher serve``."""

from __future__ import annotations

from functools import cached_property

from dispatcher.app.limits import LoadedLimits, limits_to_look_at
from dispatcher.app.readers import Readers, check_layout, parked_events
from dispatcher.app.servers import Server, keys_of
from dispatcher.core.policy import Policy
from dispatcher.server.clients import connect
from dispatcher.server.connection import translate_outages
from dispatcher.settings.content import policy_if_readable
from dispatcher.settings.environment import Settings
from dispatcher.store.audit import Audit
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.decisions import Decisions
from dispatcher.store.explanations import Explanations
from dispatcher.store.operator_controls import Pausing
from dispatcher.store.parked_events import ParkedEvents
from dispatcher.store.silences import Silencing
from dispatcher.store.snapshot import Books
from dispatcher.store.versions import Versions


class Desk:
    """The namespace as operators reach it. Blocking; threads may share it. Each call of the client is bounded."""

    def __init__(self, settings: Settings, server: Server, *, timeout_s: float) -> None:
        self.settings = settings
        self._keys, self._queue = keys_of(settings)
        self._client = connect(server.url, timeout_s=timeout_s)

    def check(self) -> None:
        """Return where the namespace is one of ours; raises ``ConfigError``, and ``GateUnavailable``."""
        check_layout(self._client, self._keys)

    @cached_property
    def audit(self) -> Audit:
        """The trail of what operators did."""
        return Audit(self._client, self._keys)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """The dead letters."""
        return DeadLetters(self._client, self._keys, self._queue)

    @cached_property
    def decisions(self) -> Decisions:
        """What became of the newest events."""
        return Decisions(self._client, self._keys)

    @cached_property
    def explanations(self) -> Explanations:
        """What explains events."""
        return Explanations(self._client, self._keys, self._queue, read_limits=policy_if_readable)

    @cached_property
    def pausing(self) -> Pausing:
        """What pauses and resumes."""
        return Pausing(self._client, self._keys)

    @cached_property
    def silencing(self) -> Silencing:
        """The silences."""
        return Silencing(self._client, self._keys)

    @cached_property
    def versions(self) -> Versions:
        """The versions of the limits."""
        return Versions(self._client, self._keys)

    @cached_property
    def books(self) -> Books:
        """The books."""
        return Books(self._client, self._keys, self._queue)

    def server_version(self) -> str:
        """What the server calls itself and its version: ``valkey 8.0.1``. Raises ``GateUnavailable``."""
        with translate_outages():
            facts = self._client.info("server")
        name = "valkey" if "valkey_version" in facts else "redis"
        return f"{name} {facts.get(f'{name}_version', 'unknown')}"

    @cached_property
    def readers(self) -> Readers:
        """What only looks."""
        return Readers(self._client, self.settings)

    def limits(self) -> LoadedLimits:
        """The limits in force; before any are, those of the file."""
        return limits_to_look_at(self.settings, self.versions)

    def parked(self, policy: Policy) -> ParkedEvents:
        """The parked events, as these limits see them."""
        return parked_events(self._client, self.settings, policy)

"""A worker's way with the limits and the credential: it follows those in force, and reads its files when told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dispatcher.app.building import build_backoff, fingerprint_of, is_webhook
from dispatcher.app.limits import InForce, LoadedLimits, in_force, publish
from dispatcher.core.pipeline import Dispatcher
from dispatcher.core.ports import Sink
from dispatcher.errors import ConfigError
from dispatcher.logs.event_log import EventLog
from dispatcher.store.admission import Admission
from dispatcher.store.leases import Outbox
from dispatcher.store.versions import Unless, Versions


class Following:
    """See ``worker.ports.FleetLimits``."""

    def __init__(  # noqa: PLR0913 - collaborators, by name
        self,
        *,
        versions: Versions,
        begun: InForce,
        read: Callable[[], LoadedLimits],
        gate: Admission,
        outbox: Outbox,
        sink: Sink,
        events: EventLog,
        by: str,
        grace_us: int,
        post_s: float,
        claim: Callable[[], None],
        renew_sink: Callable[[], Sink | None] = lambda: None,
    ) -> None:
        """``begun`` is in force at the start; ``read`` reads the limits file.

        ``claim`` writes the layout and binds the queue where the server has lost both; raises ``ConfigError`` where
        another namespace has the queue.

        ``renew_sink`` returns another sink if the credential has changed; raises ``ConfigError``.
        """
        self._versions = versions
        self._read = read
        self._gate = gate
        self._outbox = outbox
        self._by = by
        self._claim = claim
        self._say = events.say
        self.dispatcher = Dispatcher(begun.policy, gate, outbox, sink, events, build_backoff(), grace_us, post_s)
        self._adopt(begun)
        self._renew_sink = renew_sink
        outbox.introduce(fingerprint_of(sink))

    def follow(self) -> None:
        """Go over to the version in force. A server that has lost the one before may have lost everything."""
        self._claim()
        self._go_over(in_force(self._versions) or self._revive())

    def reread(self) -> None:
        """Read the credential and the limits file again; publish what the file says if that never was a version."""
        self.reread_credential()
        try:
            limits = self._read()
            if limits.content.digest != self._followed.version.digest:
                limits.refuse_empty()
        except ConfigError as error:
            self._say("limits.refused", version=self._followed.version.number, faults=list(error.problems))
            self._versions.note_refused()
            return
        for warning in limits.warnings:
            self._say("setting.warning", detail=warning)
        before = self._followed.version
        found = publish(self._versions, limits, self._by, Unless.KNOWN, self._say)
        if found.version.name == before.name and before.digest == limits.content.digest:
            self._say("limits.kept", version=before.number, file=str(limits.path))
        self._go_over(found)

    def reread_credential(self) -> None:
        """Post with another token or webhook if another one is set now; keep the one in use if that has a fault."""
        try:
            sink = self._renew_sink()
        except ConfigError as error:
            self._say("credential.refused", faults=list(error.problems))
            return
        if sink is not None:
            self._post_with(sink)
            self._outbox.introduce(fingerprint_of(sink))
            self._say("credential.changed")

    def _revive(self) -> InForce:
        """The server has lost all versions: what was followed is in force again, as a new one."""
        return publish(self._versions, self._followed.as_file(), self._by, Unless.ANY, self._say)

    def _go_over(self, found: InForce) -> None:
        before = self._followed.version
        if found.version.name != before.name:
            self._adopt(found)
            origin = {"by": found.version.by, "file": found.version.file}
            self._say("limits.followed", version=found.version.number, was=before.number, **origin)

    def _adopt(self, found: InForce) -> None:
        self._followed = found
        self.version = name = found.version.name
        policy = found.policy
        self._gate.follow(name, policy)
        self._outbox.follow(name, policy.dead_letters)
        self._post_with(self.dispatcher.sink)

    def _post_with(self, sink: Sink) -> None:
        policy = replace(self._followed.policy, by_webhook=is_webhook(sink))
        self.dispatcher = replace(self.dispatcher, policy=policy, sink=sink)

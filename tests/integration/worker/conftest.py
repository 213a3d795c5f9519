"""What the tests of a worker's loop share. Each file has a worker of its own, ``driven``."""

from __future__ import annotations

import pytest

from dispatcher.store.leases import Outbox, Taken
from tests.support.hand_driven_worker import HandDrivenWorker


@pytest.fixture
def asked(driven: HandDrivenWorker, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What the loop asks for: in which way, how many new events, and how many that are due."""
    calls: list[tuple[str, int, int]] = []

    def take(new: int, due: int) -> Taken:
        calls.append(("take", new, due))
        return Outbox.take(driven.outbox, new, due)

    def prefetch(taken: Taken, new: int, due: int) -> None:
        calls.append(("prefetch", new, due))
        Outbox.prefetch(driven.outbox, taken, new, due)

    monkeypatch.setattr(driven.outbox, "take", take)
    monkeypatch.setattr(driven.outbox, "prefetch", prefetch)
    return calls

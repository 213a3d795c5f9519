"""The stand-in for Slack in a process of its own, so that its work is nobody's; ``python -m benchmarks.slack``."""

from __future__ import annotations

import http.client
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.processes import Process
from dispatcher.stand_in import Setup, StandIn

_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Slack:
    """What a worker needs to post to it, and what has landed. No channel is ever too fast."""

    base_url: str
    token: str

    def landed(self) -> list[dict[str, Any]]:
        """The ledger; ``arrived_at`` is in seconds by this machine's monotonic clock."""
        posted: list[dict[str, Any]] = json.loads(self._ask("GET", "/ledger"))["posted"]
        return posted

    def reset(self) -> None:
        """Forget what has landed."""
        self._ask("POST", "/reset")

    def _ask(self, method: str, path: str) -> bytes:
        address = urlsplit(self.base_url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path)
            return connection.getresponse().read()
        finally:
            connection.close()


@contextmanager
def slack(folder: Path) -> Iterator[Slack]:
    """It runs as long as the context lasts."""
    with Process(sys.executable, "-m", "benchmarks.slack", folder=folder) as process:
        process.until(lambda: process.said().endswith("\n"), "the address of the stand-in")
        yield Slack(**json.loads(process.said()))


def main() -> None:
    """Say the address in one line of JSON, and answer until SIGTERM."""
    with StandIn(setup=Setup(clock=time.monotonic)) as stand_in:
        print(json.dumps({"base_url": stand_in.base_url, "token": stand_in.token}), flush=True)  # noqa: T201 - to its parent
        signal.pause()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Health of a worker's container: exit 0 while a worker on this host tells the server in time that it lives, else 1.

A heartbeat is written every third of a lease; a worker whose last one is older than the lease has lost its claims.
So a worker that hangs is unhealthy, and so is one that cannot reach its server. With several worker processes in the
container one that lives is enough: they are respawned by their parent.
"""

from __future__ import annotations

import socket
import sys
import time
from datetime import datetime

from dispatcher.app.readers import build_readers
from dispatcher.app.servers import open_server
from dispatcher.errors import DispatcherError
from dispatcher.settings.loading import load_settings


def main() -> str | None:
    """None for healthy, else what is wrong."""
    host = socket.gethostname()
    try:
        settings, _ = load_settings()
        with open_server(settings, start=False) as server:
            workers = [each for each in build_readers(settings, server).workers() if each["host"] == host]
    except DispatcherError as error:
        return f"unhealthy: {error}"
    if not workers:
        return f"unhealthy: no worker on {host} is known to the server"
    age_s = time.time() - max(datetime.fromisoformat(each["last_heartbeat"]).timestamp() for each in workers)
    lease_s = settings.lease.total_seconds()
    if age_s > lease_s:
        return f"unhealthy: the last heartbeat from {host} was {age_s:.0f} s ago, expected at most {lease_s:g} s"
    return None


if __name__ == "__main__":
    sys.exit(main())

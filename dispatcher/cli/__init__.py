"""The command line: ``dispatcher``, also ``python -m dispatcher``.

Imported for every command, so nothing in the modules of the commands loads more than click at import; and nothing here
loads anything, so that a worker hears signals from its first instant on.

May import: web, simulate, app, stand_in, worker, producer, store, limiter, slack, settings, logs, core, server, errors.
"""

from __future__ import annotations

import gc
import signal
import sys
from typing import Final, NoReturn

from dispatcher.cli.first_signals import FirstSignals, interrupt

__all__ = ["main"]

_OBJECTS: Final = 20_000
"""New objects before Python looks for cycles among them: it would do so a hundred times while modules are loaded."""


def main() -> NoReturn:
    """Run the command in ``sys.argv`` and exit with its code; Ctrl-C that comes while it loads exits quietly."""
    gc.set_threshold(_OBJECTS)
    if sys.argv[1:2] in (["worker"], ["up"], ["serve"]):
        FirstSignals().listen()
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        from dispatcher.cli.commands import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()  # the process ends: Python need not look for cycles in all that was loaded

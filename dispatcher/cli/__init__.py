"""The command line: ``dispatcher``, also ``python -m dispatcher``.

Imported for every command, so nothing in the modules of the commands loads more than click at import.
"""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command in ``sys.argv`` and exit with its code; Ctrl-C that comes while it loads exits quietly."""
    try:
        from dispatcher.cli.commands import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)

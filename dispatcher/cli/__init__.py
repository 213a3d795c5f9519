"""The command line: ``dispatcher``, also ``python -m dispatcher``.

Imported for every command, so nothing here or in the modules of the commands loads more than click at import.
"""

from __future__ import annotations

from dispatcher.cli.commands import main

__all__ = ["main"]

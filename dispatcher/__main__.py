"""``python -m dispatcher``: the command line."""

from __future__ import annotations

from dispatcher.cli import main

main()

"""Finds the files that travel with the package: ``lua/`` and ``config/``.

In a wheel they lie in ``dispatcher/_data/``; in a checkout or an editable install they lie beside
``pyproject.toml``, one level above the package.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

STYLE_SHEET = _PACKAGE / "style.css"
"""What the pages of ``serve`` and of the Slack stand-in look like; it lies in the package."""


def data_file(*parts: str) -> Path:
    """The path of a shipped file, e.g. ``data_file("lua", "gate.lua")``.

    Raises ``FileNotFoundError`` that names both places when the file is in neither.
    """
    installed = _PACKAGE.joinpath("_data", *parts)
    checkout = _PACKAGE.parent.joinpath(*parts)
    for candidate in (installed, checkout):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{'/'.join(parts)} is neither at {installed} nor at {checkout}")

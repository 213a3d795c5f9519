"""The files beside the package are found; from a wheel: tests/integration/test_packaging.py."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatcher.data_files import data_file

CHECKOUT: Final = Path(__file__).resolve().parents[2]


def test_a_checkout_finds_the_files_beside_pyproject() -> None:
    assert data_file("lua", "gate.lua") == CHECKOUT / "lua" / "gate.lua"


def test_a_missing_file_is_named_with_both_places_looked_at() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        data_file("lua", "nowhere.lua")
    assert str(caught.value).startswith("lua/nowhere.lua is neither at ")
    assert str(CHECKOUT / "dispatcher" / "_data" / "lua" / "nowhere.lua") in str(caught.value)
    assert str(CHECKOUT / "lua" / "nowhere.lua") in str(caught.value)

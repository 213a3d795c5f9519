"""The files beside the package are found from a checkout, a wheel and a source distribution."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
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


def test_a_wheel_carries_every_data_file_and_finds_it(tmp_path: Path) -> None:
    wheel = _build("wheel", tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")  # noqa: S202 - built a moment ago from our own tree
    installed = tmp_path / "installed" / "dispatcher" / "_data"
    for folder in ("lua", "config"):
        assert _files(installed / folder) == _files(CHECKOUT / folder)
    for pattern in ("*.css", "web/page/*", "stand_in/*.html"):
        names = [path.relative_to(CHECKOUT) for path in CHECKOUT.glob(f"dispatcher/{pattern}") if path.is_file()]
        assert names
        assert all((tmp_path / "installed" / name).is_file() for name in names)
    assert _found_from(tmp_path / "installed") == installed / "lua" / "gate.lua"


def test_a_source_distribution_can_be_tested_and_built(tmp_path: Path) -> None:
    with tarfile.open(_build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "config/redis.conf",
        "dispatcher/py.typed",
        "lua/gate.lua",
        "pyproject.toml",
        "requirements-dev.txt",
        "tests/conftest.py",
    } <= names
    assert not any(name.startswith((".venv", ".dispatcher", "dist/")) for name in names)


def _build(target: str, directory: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(directory)],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
    )
    (built,) = directory.glob("notification_dispatcher-*")
    return built


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _found_from(directory: Path) -> Path:
    program = (
        f"import sys; sys.path.insert(0, {str(directory)!r})\n"
        "from dispatcher.data_files import data_file; print(data_file('lua', 'gate.lua'))"
    )
    # -S: the editable install of the checkout is not seen.
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, text=True)
    return Path(answer.stdout.strip())

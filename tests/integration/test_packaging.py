"""The wheel and the source distribution, and the wheel at work in an environment that holds nothing else.

That environment gets no download: the distributions that the wheel's metadata ask for, and what these ask for in turn,
are linked into it from the environment of the tests. So it holds what pip would install, in the versions of the lock,
and a dependency that is used but not declared is missing. The checkout is not seen from there.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIST_INFO: Final = f"notification_dispatcher-{PROJECT['version']}.dist-info"


@dataclass(frozen=True, slots=True)
class Built:
    """What was built from the checkout."""

    wheel: Path
    sdist: Path

    @property
    def metadata(self) -> Message:
        return Parser().parsestr(contents(self.wheel)[f"{DIST_INFO}/METADATA"].decode())


@dataclass(frozen=True, slots=True)
class Installed:
    """The wheel in an environment of its own; ``run`` starts a program of it in an empty directory elsewhere."""

    environment: Path
    elsewhere: Path

    def run(self, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.environment / "bin" / program, *arguments],
            cwd=self.elsewhere,
            env={"PATH": str(self.environment / "bin"), **variables},  # a server on the machine's PATH is not found
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    wheel, sdist = build(CHECKOUT, tmp_path_factory.mktemp("dist"), "wheel", "sdist")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """With the extra ``embedded``, as the README installs it."""
    return install(built, "embedded", tmp_path_factory.mktemp("embedded"))


@pytest.fixture(scope="module")
def installed_plain(built: Built, installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What pip has installed, beside less of what others publish."""
    plain = environment_with(built, "", tmp_path_factory.mktemp("plain"))
    (site,) = plain.environment.glob("lib/python*/site-packages")
    (theirs,) = installed.environment.glob("lib/python*/site-packages")
    for name in ("dispatcher", DIST_INFO):
        (site / name).symlink_to(theirs / name)
    return plain


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(built: Built) -> None:
    package = files_below(CHECKOUT / "dispatcher", "dispatcher")
    data = {
        **files_below(CHECKOUT / "lua", "dispatcher/_data/lua"),
        **files_below(CHECKOUT / "config", "dispatcher/_data/config"),
    }
    own = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    found = contents(built.wheel)
    assert found.keys() == package.keys() | data.keys() | {f"{DIST_INFO}/{name}" for name in own}
    assert {name: found[name] for name in (*package, *data)} == {**package, **data}
    assert {
        "dispatcher/py.typed",
        "dispatcher/_data/lua/gate.lua",
        "dispatcher/_data/config/limits.yaml",
    } <= found.keys()


def test_the_metadata_say_what_an_index_and_pip_ask_for(built: Built) -> None:
    metadata = built.metadata
    assert metadata["Name"] == "notification-dispatcher"
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["License-Expression"] == "MIT"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert set(metadata.get_all("Provides-Extra", [])) == {"dev", "embedded", "serve", "test"}
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    found = contents(built.wheel)
    assert found[f"{DIST_INFO}/licenses/LICENSE"] == (CHECKOUT / "LICENSE").read_bytes()
    assert b"dispatcher = dispatcher.cli:main" in found[f"{DIST_INFO}/entry_points.txt"]
    assert b"Tag: py3-none-any" in found[f"{DIST_INFO}/WHEEL"]


def test_a_wheel_built_from_the_source_distribution_is_the_same(built: Built, tmp_path: Path) -> None:
    unpacked = unpack(built.sdist, tmp_path / "source")
    (wheel,) = build(unpacked, tmp_path / "dist", "wheel")
    assert contents(wheel) == contents(built.wheel)


def test_the_source_distribution_brings_tests_docs_and_deployment(built: Built, tmp_path: Path) -> None:
    unpacked = unpack(built.sdist, tmp_path)
    for name in (
        "Dockerfile",
        "docker-compose.yml",
        "Makefile",
        "README.md",
        "requirements.txt",
        "requirements-demo.txt",
        "requirements-dev.txt",
        "requirements-test.txt",
    ):
        assert (unpacked / name).read_bytes() == (CHECKOUT / name).read_bytes()
    for folder in ("deploy", "docs", "tests"):
        assert files_below(unpacked / folder) == files_below(CHECKOUT / folder)
    assert not {".venv", ".dispatcher", "dist", "build"} & {path.name for path in unpacked.iterdir()}


def test_the_installed_wheel_runs_outside_the_checkout(installed: Installed) -> None:
    program = (
        "import dispatcher, dispatcher.limiter; from dispatcher.data_files import data_file\n"
        "print(dispatcher.__file__, data_file('lua', 'gate.lua'), dispatcher.Producer.__name__, sep='\\n')"
    )
    answer = installed.run("python", "-c", program)
    assert answer.returncode == 0, answer.stderr
    module, script, producer = answer.stdout.splitlines()
    assert Path(module).is_relative_to(installed.environment)
    assert Path(script).is_relative_to(installed.environment)
    assert producer == "Producer"


def test_the_version_has_one_source(installed: Installed) -> None:
    answer = installed.run("dispatcher", "--version")
    assert (answer.returncode, answer.stdout) == (0, f"dispatcher {PROJECT['version']}\n")


def test_the_required_packages_are_installed_in_versions_that_fit(installed: Installed) -> None:
    (site,) = installed.environment.glob("lib/python*/site-packages")
    found = {canonicalize_name(each.name): each for each in distributions(path=[str(site)])}
    for each in found.values():
        for line in each.requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                version = found[canonicalize_name(needed.name)].version
                assert needed.specifier.contains(version, prereleases=True), f"{each.name} needs {line}, not {version}"


@pytest.mark.slow
def test_the_demo_of_the_installed_wheel_is_as_promised_and_leaves_nothing(installed: Installed) -> None:
    answer = installed.run("dispatcher", "demo", "--json")
    assert answer.returncode == 0, answer.stderr
    totals = json.loads(answer.stdout)
    categories = totals.pop("categories")
    assert totals == {"enqueued": 300, "sent": 100, "dropped": 200, "slack_received": 100}
    assert len(categories) == 20
    assert list(installed.elsewhere.iterdir()) == []


def test_the_installed_wheel_checks_the_limits_it_brings(installed: Installed) -> None:
    answer = installed.run("dispatcher", "limits", "check")
    assert answer.returncode == 0, answer.stderr
    assert "at most 100 in any 30 minutes" in answer.stdout
    (named,) = [line for line in answer.stderr.splitlines() if "limits in " in line]
    assert Path(named.partition("limits in ")[2]).is_relative_to(installed.environment)


def test_without_the_extra_and_without_a_url_a_worker_names_every_remedy(installed_plain: Installed) -> None:
    answer = installed_plain.run("python", "-m", "dispatcher", "worker", "--burst", DISPATCHER_SINK="console")
    assert answer.returncode == 78
    for remedy in ("the extra 'embedded' of the package", "valkey-server", "DISPATCHER_REDIS_URL"):
        assert remedy in answer.stderr
    assert "Traceback" not in answer.stderr


def build(source: Path, directory: Path, *targets: str) -> list[Path]:
    """Build from ``source`` with the hatchling of the tests' environment, so that nothing is fetched."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(directory)]
    named = [word for target in targets for word in ("--target", target)]
    subprocess.run([*command, *named], cwd=source, check=True, capture_output=True)
    return [path for form in ("*.whl", "*.tar.gz") for path in directory.glob(form)]


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def unpack(sdist: Path, directory: Path) -> Path:
    """The files of a source distribution; returns the one folder in it."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            path = directory / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((archive.extractfile(member) or io.BytesIO()).read())
    (folder,) = directory.iterdir()
    return folder


def files_below(folder: Path, prefix: str = "") -> dict[str, bytes]:
    return {
        str(PurePosixPath(prefix, path.relative_to(folder).as_posix())): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def install(built: Built, extra: str, directory: Path) -> Installed:
    made = environment_with(built, extra, directory)
    answer = pip(made.environment, "install", "--no-index", "--no-deps", "--no-compile", str(built.wheel))
    assert answer.returncode == 0, answer.stderr
    return made


def environment_with(built: Built, extra: str, directory: Path) -> Installed:
    """An environment with what the wheel and its extra ask for, without the wheel."""
    environment, elsewhere = directory / "environment", directory / "elsewhere"
    elsewhere.mkdir()
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    for requirement in wanted(built.metadata.get_all("Requires-Dist", []), {extra}):
        link(requirement, site)
    return Installed(environment, elsewhere)


def wanted(lines: list[str], extras: set[str]) -> Iterator[Distribution]:
    """The distributions that requirements ask for, and theirs in turn, each once."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(line, extras) for line in lines]
    while waiting:
        line, of = waiting.pop()
        requirement = Requirement(line)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in of | {""}):
            continue
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        found = distribution(requirement.name)
        waiting += [(line, set(requirement.extras)) for line in found.requires or []]
        yield found


def link(found: Distribution, site: Path) -> None:
    tops = {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}
    assert tops, f"{found.name} names no files"
    for top in tops:
        place = site / top
        if not place.is_symlink():
            place.symlink_to(Path(str(found.locate_file(top))))


def pip(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The pip of the tests' environment, at work in another one."""
    command = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=without_pip_settings(os.environ))


def without_pip_settings(env: Mapping[str, str]) -> dict[str, str]:
    quiet = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return {name: value for name, value in env.items() if not name.startswith("PIP_")} | quiet

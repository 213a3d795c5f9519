"""Fixtures for every test: real servers, and an environment that nothing leaks into."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from redis import Redis

pytest.register_assert_rewrite("tests.support")  # its assertions tell what they saw, as those of a test do

from tests.support import forked, secrecy  # noqa: E402 - what is imported earlier tells nothing
from tests.support.servers import SERVER_BINARY, RedisServer  # noqa: E402 - as above

SERVER_FIXTURES: Final = frozenset({"shared_server", "own_server"})

# Each new connection of redis-py reads its package's metadata for the version: most of what a connection costs.
metadata.version = cache(metadata.version)

# A deadline would fail a test for a busy machine; the blob repeats a failure that was found elsewhere.
settings.register_profile("dispatcher", deadline=None, print_blob=True, max_examples=30)
settings.register_profile("long", settings.get_profile("dispatcher"), max_examples=2_000)  # of `make test-slow`
settings.load_profile("dispatcher")

# Walks are long, and the same in every run. That a failing one gets small would take minutes.
settings.register_profile(
    "walks",
    settings.get_profile("dispatcher"),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def pytest_configure(config: pytest.Config) -> None:
    """Signals do what they do at a terminal, also where the run was started in the background or with nohup.

    What is ignored here would be ignored by every process that a test starts.
    """
    gc.disable()  # what is collected stays to the end: see pytest_collection_finish
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.pluginmanager.register(secrecy)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no garbage collection looks through it, no forked process copies it.

    A test makes little garbage that is in circles: a collection every 700 objects is most of what collecting costs.
    """
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def pytest_unconfigure() -> None:
    forked.close()
    gc.freeze()  # the process ends: nothing is left to be found


def pytest_report_header() -> str:
    version = subprocess.run([SERVER_BINARY, "--version"], capture_output=True, text=True, check=True)
    return f"server: {SERVER_BINARY}: {version.stdout.strip()}"


@pytest.hookimpl(tryfirst=True)  # before -m selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and not SERVER_FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker("server")
    items[:] = spread(items)


def spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """The same tests; the files of those that wait for processes and leases lie evenly among the others.

    xdist gives each of its workers a section: one that had all of these would leave a processor idle.
    """
    files = [[*file] for _, file in groupby(items, lambda item: item.path)]
    waiting = [file for file in files if file[0].path.parent.name == "faults"]
    others = [file for file in files if file[0].path.parent.name != "faults"]
    placed = [(place / len(group), file) for group in (waiting, others) for place, file in enumerate(group)]
    return [item for _, file in sorted(placed, key=itemgetter(0)) for item in file]


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a test runs that needs no folder of its own: making one costs more than many a test."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(autouse=True)
def isolated_environment(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    empty_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Nothing of the developer's reaches a test: no settings, no ``.env``, no proxy in front of loopback."""
    for name in os.environ:
        if name.startswith(("DISPATCHER_", "SLACK_")) or name == "REDIS_URL" or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else empty_folder)
    yield
    left = [*empty_folder.iterdir()]
    for file in left:
        file.rename(tmp_path_factory.mktemp("left") / file.name)  # the next test is not to fail for it
    assert left == [], "a test that writes files where it runs takes tmp_path"


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    """One server per xdist worker; tests that stop it or change its settings take ``own_server``.

    Its data is not compressed, so that ``tests.support.secrecy`` can search it.
    """
    with RedisServer(password=secrecy.PASSWORD, options=("--rdbcompression", "no")) as server:
        yield server


@pytest.fixture
def redis_url(shared_server: RedisServer) -> str:
    """The address of an empty database, with a password."""
    shared_server.attendant.flushall()
    return shared_server.url


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    """A client of an empty database; answers are bytes."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server for this test alone, to be stopped, killed or frozen; started again, it has its data."""
    with RedisServer(append_only=True) as server:
        yield server

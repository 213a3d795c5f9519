"""The search for secrets in everything that the suite makes the dispatcher say or keep; a plugin of pytest.

The secrets are those that tests use everywhere: the token and the webhook of the stand-in, the password of the shared
server. After each test are searched: what children wrote to pipes, log files and the data of embedded servers below
``tmp_path``, what was captured, what the stand-in was posted, all keys and values of the shared server and of those of
the test's own (``RedisServer.close``), and the command lines of all processes, each time one was sent a signal. A test
in which a secret is found fails.

The stand-in's own command shows its token and webhook on purpose: they open nothing else.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from redis import Redis, RedisError

from dispatcher.stand_in import Setup, StandIn
from dispatcher.stand_in.setup import WEBHOOK_PATH

PASSWORD: Final = "s3same/R7kq @2:pYw%9"
SHOWN_BY: Final = "slack-stand-in"

_EVERYTHING: Final = """
local rows = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  rows[#rows + 1] = key
  rows[#rows + 1] = redis.call('DUMP', key) or ''
end
return table.concat(rows, '\\n')
"""
_LOGS: Final = ("*.log", "*.log.1", "*.aof")
_SURROUNDINGS: Final = 80


@dataclass(slots=True)
class Evidence:
    """Everything that was said or kept, by where."""

    secrets: frozenset[str]
    found: dict[str, bytearray] = field(default_factory=dict)

    def add(self, where: str, content: str | bytes) -> None:
        raw = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        self.found.setdefault(where, bytearray()).extend(raw)

    def add_command_lines(self) -> None:
        """Of all processes that this one has started, and of those they have left to themselves."""
        for pid in _offspring(os.getpid()):
            with suppress(OSError):  # it has ended
                self.add("command lines", Path(f"/proc/{pid}/cmdline").read_bytes())

    def add_server(self, client: Redis) -> None:
        """Every key and value of a server."""
        stored: Any = client.eval(_EVERYTHING, 0)
        self.add("keys", stored)

    def add_files(self, files: Iterable[Path]) -> None:
        for file in files:
            with suppress(OSError):  # gone, or a folder
                self.add(file.name, file.read_bytes())

    def leaks(self) -> list[str]:
        """Where a secret stands, as it is or as part of a URL."""
        forms = {form for secret in self.secrets for form in (secret, quote(secret), quote(secret, safe=""))}
        spellings = {form.lower() for form in forms}
        return [
            f"{where}: ...{content[max(0, at - _SURROUNDINGS) : at + _SURROUNDINGS]!r}"
            for where, content in self.found.items()
            for lowered in (content.lower(),)
            for form in spellings
            if (at := lowered.find(form.encode())) >= 0
        ]


def _offspring(ancestor: int) -> list[int]:
    """Every process below ``ancestor``, and every younger one whose parent has ended."""
    parents: dict[int, tuple[int, int]] = {}
    for folder in (each for each in Path("/proc").iterdir() if each.name.isdigit()):
        with suppress(OSError):
            facts = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents[int(folder.name)] = (int(facts[1]), int(facts[19]))
    born = parents.get(ancestor, (0, 0))[1]

    def belongs(pid: int) -> bool:
        while pid != ancestor:
            parent, started = parents.get(pid, (0, 0))
            if parent <= 1:
                return started >= born > 0
            pid = parent
        return True

    return [pid for pid in parents if belongs(pid)]


CANARIES: Final = frozenset({PASSWORD, Setup().token, WEBHOOK_PATH.removeprefix("/"), WEBHOOK_PATH.rpartition("/")[2]})

found: Evidence = Evidence(CANARIES)
"""What has been said or kept since the last search."""


def search() -> list[str]:
    """The leaks since the last search."""
    leaks = found.leaks()
    found.found.clear()
    return leaks


class _Popen(subprocess.Popen[Any]):
    """A child whose pipes are searched, whoever reads them to their end, and all command lines before it is ended."""

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            found.add_command_lines()
        super().send_signal(sig)

    def communicate(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:  # noqa: ANN401 - as its base class
        said = super().communicate(*arguments, **options)
        if SHOWN_BY not in str(self.args):
            for stream in said:
                if stream:
                    found.add(f"pipes of {self.args!r}", stream)
        return said


def pytest_configure() -> None:
    subprocess.Popen = _Popen  # type: ignore[misc]  # subprocess.run takes it from there too


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if SHOWN_BY not in item.nodeid.replace("_", "-"):
        for name, content in report.sections:
            found.add(name, content)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Look at what the test has used while it is still there, then at what its end has left."""
    used: dict[str, Any] = getattr(item, "funcargs", {})
    for each in used.values():
        if isinstance(each, StandIn):
            found.add("posts", repr(each.ledger.posted()))
    if "shared_server" in used:
        with suppress(RedisError):
            found.add_server(used["shared_server"].attendant)
    if "tmp_path" in used and "stand_in" not in item.nodeid:
        found.add_files(file for pattern in _LOGS for file in used["tmp_path"].rglob(pattern))
    yield
    if leaks := search():
        pytest.fail("a secret was shown:\n" + "\n".join(leaks), pytrace=False)

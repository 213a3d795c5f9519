"""A reader of one page: types what it says into a terminal of their own, in order, and compares what comes back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dispatcher.settings.limits_file import read_limits
from tests.docs.samples import Sample
from tests.support.forked import shell_folder
from tests.support.processes import PATIENCE_S, until

BASH: Final = "/bin/bash"
_OURS: Final = ("DISPATCHER_", "SLACK_")
_LOOKS: Final = ("dispatcher status", "dispatcher explain")
"""Commands that only look; they may be asked again until what was sent before has arrived."""


class Reader:
    """Runs the samples of one page in ``folder``. What they export holds for those that follow.

    ``places`` replaces what a page names by what this test has: ports, addresses. A context manager that ends, by
    process id, what was left in the background.
    """

    def __init__(self, folder: Path, places: Mapping[str, str]) -> None:
        self._folder = folder
        self._places = places
        self._exported = folder / "exported.env"
        self._background: list[subprocess.Popen[bytes]] = []
        path = f"{shell_folder()}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._env = {**os.environ, "PATH": path}
        self._env.pop("COLUMNS", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._background):
            process.terminate()
            process.wait(PATIENCE_S)

    def run(self, sample: Sample) -> None:
        """Fails with the place of the sample when it does not do what the page says."""
        text = sample.text
        for named, ours in self._places.items():
            text = text.replace(named, ours)
        if sample.language == "yaml":
            assert read_limits(text, sample.place).warnings == (), f"{sample.place}: a warning"
            if sample.file is not None:
                path = self._folder / sample.file
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
        elif sample.awaited is not None:
            self._stay(text, sample.awaited, sample.place)
        elif sample.language == "python":
            said = self._execute(
                [f"{shell_folder()}/program"], text
            )  # its URLs hold passwords: they stand in no command line
            assert said.returncode == 0, f"{sample.place}: {said.stdout}"
        elif sample.language == "console":
            for command, expected in _dialogue(text):
                self._ask(command, expected, sample.place)
        else:
            said = self._type(f"set -e\n{text}")
            assert said.returncode == 0, f"{sample.place}: {said.stdout}"

    def _ask(self, command: str, expected: str, place: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            said = "".join(f"{line.rstrip()}\n" for line in self._type(command).stdout.splitlines())
            if _pattern(expected).fullmatch(said):
                return
            if not command.startswith(_LOOKS) or time.monotonic() > end:
                raise AssertionError(f"{place}: {command} said\n{said}\nexpected\n{expected}")

    def _type(self, command: str) -> subprocess.CompletedProcess[str]:
        said = self._execute([BASH, "-c", f"{command}\nresult=$?; env -0 > '{self._exported}'; exit $result"])
        for entry in self._exported.read_text(encoding="utf-8").split("\0") if self._exported.exists() else ():
            name, _, value = entry.partition("=")
            if name.startswith(_OURS):
                self._env[name] = value
        return said

    def _execute(self, command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self._folder,
            env=self._env,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=3 * PATIENCE_S,
        )

    def _stay(self, command: str, awaited: str, place: str) -> None:
        log = self._folder / f"background-{len(self._background)}.out"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [BASH, "-c", f"exec {command}"],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._background.append(process)
        until(lambda: awaited in log.read_text(encoding="utf-8"), f"{awaited!r} of {command!r} at {place}")


def _dialogue(text: str) -> Iterator[tuple[str, str]]:
    """Each command behind a ``$``, and what is said to it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def _pattern(expected: str) -> re.Pattern[str]:
    """The text, in which ``...`` stands for anything."""
    lines = "".join(f"{line.rstrip()}\n" for line in expected.splitlines())
    return re.compile(re.escape(lines).replace(re.escape("..."), ".*?"), re.DOTALL)

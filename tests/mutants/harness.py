"""Applies a mutant to a copy of the project and runs the tests that have to notice it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]

AT_ONCE: Final = 2
_COPIED: Final = ("dispatcher", "lua", "config", "tests", "pyproject.toml")
PATIENCE_S: Final = 120.0
"""Tests that run for longer do so because of the mutant: they take some ten seconds."""
_TESTS_PASSED, _TESTS_FAILED = 0, 1
"""pytest's exit codes; any other means that the tests could not be run."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong file: ``old``, which stands in it once, becomes ``new``, and one of ``tests`` has to fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The mutated text; ``ValueError`` unless ``old`` stands in it once and the change is one."""
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"mutant {self.name!r}: {self.old!r} stands {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


def survivors(mutants: Iterable[Mutant]) -> list[str]:
    """The names of the mutants that no test noticed."""
    chosen = list(mutants)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        noticed = list(pool.map(is_noticed, chosen))
    return [mutant.name for mutant, seen in zip(chosen, noticed, strict=True) if not seen]


def is_noticed(mutant: Mutant) -> bool:
    """Whether a test fails in a copy of the project with the mutant; ``RuntimeError`` if tests could not be run."""
    with project_copy() as project:
        script = project / mutant.file
        script.write_text(mutant.applied(script.read_text(encoding="utf-8")), encoding="utf-8")
        return not passes(project, mutant.tests)


def passes(project: Path, tests: Iterable[str]) -> bool:
    """Whether the tests pass in that copy, and come to an end; ``RuntimeError`` if they could not be run."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider"]
    command += ["--tb=line", *tests]  # a traceback shows fixtures, such as a URL with its password
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with subprocess.Popen(
        command,
        cwd=project,
        env=environment | {"PYTHONPATH": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        try:
            said, _ = run.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)  # it stops its servers
            run.communicate()
            return False
    if run.returncode not in (_TESTS_PASSED, _TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {run.returncode}:\n{said[-3_000:]}")
    return run.returncode == _TESTS_PASSED


@contextmanager
def project_copy() -> Iterator[Path]:
    """What the tests need, in a directory of its own; compiled modules travel along."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        for part in _COPIED:
            if (PROJECT / part).is_dir():
                shutil.copytree(PROJECT / part, Path(name, part))
            else:
                shutil.copy2(PROJECT / part, Path(name, part))
        yield Path(name)

"""Applies a mutant to a copy of the project and runs the tests that have to notice it."""

from __future__ import annotations

import os
import shutil
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
_TESTS_FAILED: Final = 1
"""pytest's exit code; any other but 0 means that the tests could not be run."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong script: ``old``, which stands once in ``file``, becomes ``new``, and one of ``tests`` has to fail."""

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
    """The names of the mutants that no test noticed; ``RuntimeError`` where tests could not be run."""
    mutants = list(mutants)
    with project_copy(PROJECT) as base:
        run_tests(base, sorted({test for mutant in mutants for test in mutant.tests}), expected=0)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [name for name in pool.map(lambda mutant: _outlives(mutant, base), mutants) if name is not None]


@contextmanager
def project_copy(source: Path) -> Iterator[Path]:
    """What the tests need, in a directory of its own; compiled modules travel along."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        for part in _COPIED:
            if (source / part).is_dir():
                shutil.copytree(source / part, Path(name, part))
            else:
                shutil.copy2(source / part, Path(name, part))
        yield Path(name)


def run_tests(project: Path, tests: Iterable[str], expected: int) -> bool:
    """Whether pytest ends with ``expected`` in that project, stopping at the first failure."""
    options = ("-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "-p", "tests.mutants.unshrunk", "--tb=line")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode not in (0, _TESTS_FAILED) or (expected == 0 and run.returncode != 0):
        raise RuntimeError(f"pytest ended with {run.returncode} in {project}:\n{run.stdout[-3_000:]}{run.stderr}")
    return run.returncode == expected


def _outlives(mutant: Mutant, base: Path) -> str | None:
    with project_copy(base) as project:
        script = project / mutant.file
        script.write_text(mutant.applied(script.read_text(encoding="utf-8")), encoding="utf-8")
        return None if run_tests(project, mutant.tests, expected=_TESTS_FAILED) else mutant.name

"""Applies a mutant to a copy of the project and runs the tests that have to notice it."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

from tests.mutants.change import Mutant

PROJECT: Final = Path(__file__).resolve().parents[2]

AT_ONCE: Final = 2
_COPIED: Final = ("dispatcher", "lua", "config", "tests", "pyproject.toml")
PATIENCE_S: Final = 150.0
"""Tests that run for longer do so because of the mutant: the longest row takes half a minute, ..."""
_TELLING_PATIENCE_S: Final = 75.0
"""... the most telling ones of any row a third of that."""
_TELLING: Final = 3
"""So many of a mutant's tests run before the rest is even read: they notice most mutants."""
_PASSED: Final = 0
_NOTICED: Final = frozenset({1, 2, 4})
"""pytest's exit codes where tests failed, could not be collected, or ``conftest.py`` could not be imported."""


class Outcome(Enum):
    """What the tests make of a mutant."""

    CAUGHT = "caught"
    HUNG = "never came to an end, which counts as caught"
    SURVIVED = "survived"


def outcomes(mutants: Iterable[Mutant]) -> Iterator[tuple[Mutant, Outcome]]:
    """What became of each mutant, in their order, some at once."""
    chosen = list(mutants)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from zip(chosen, pool.map(outcome, chosen), strict=True)


def outcome(mutant: Mutant) -> Outcome:
    """Runs the mutant's tests in a copy of the project with the mutant; ``RuntimeError`` if they could not be run.

    Raises ``SyntaxError`` for a mutated module that does not compile, since no test is needed to notice that.
    """
    with project_copy() as project:
        source = project / mutant.file
        mutated = mutant.applied(source.read_text(encoding="utf-8"))
        if source.suffix == ".py":
            ast.parse(mutated, mutant.name)
        source.write_text(mutated, encoding="utf-8")
        first = run_tests(project, mutant.tests[:_TELLING], _TELLING_PATIENCE_S)
        rest = mutant.tests[_TELLING:]
        return run_tests(project, rest) if first is Outcome.SURVIVED and rest else first


def run_tests(project: Path, tests: Iterable[str], patience_s: float = PATIENCE_S) -> Outcome:
    """What those tests say of a copy: they stop at the first that fails."""
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
        errors="replace",
        start_new_session=True,
    ) as run:
        try:
            said, _ = run.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            _end(run)
            return Outcome.HUNG
    if run.returncode != _PASSED and run.returncode not in _NOTICED:
        raise RuntimeError(f"pytest ended with {run.returncode}:\n{said[-3_000:]}")
    return Outcome.SURVIVED if run.returncode == _PASSED else Outcome.CAUGHT


def _end(run: subprocess.Popen[str]) -> None:
    run.send_signal(signal.SIGINT)  # it stops its servers
    try:
        run.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


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

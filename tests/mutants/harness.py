"""Applies a mutant to a copy of the project and runs the tests that have to notice it."""

from __future__ import annotations

import ast
import os
import select
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
_COPIED: Final = ("benchmarks", "dispatcher", "lua", "config", "docs", "tests", "pyproject.toml")
QUIET_S: Final = 90.0
"""A test that ends nothing for so long hangs because of the mutant: the longest takes a fifth of that."""
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
        first = run_tests(project, mutant.tests[:_TELLING])
        rest = mutant.tests[_TELLING:]
        return run_tests(project, rest) if first is Outcome.SURVIVED and rest else first


def run_tests(project: Path, tests: Iterable[str]) -> Outcome:
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
        start_new_session=True,
    ) as run:
        said = _output(run)
        if said is None:
            _end(run)
            return Outcome.HUNG
    if run.returncode != _PASSED and run.returncode not in _NOTICED:
        raise RuntimeError(f"pytest ended with {run.returncode}:\n{said[-3_000:]}")
    return Outcome.SURVIVED if run.returncode == _PASSED else Outcome.CAUGHT


def _output(run: subprocess.Popen[bytes]) -> str | None:
    """All that it says until its end; None if it is silent for too long. pytest says a character for each test."""
    said = b""
    if run.stdout is None:
        raise ValueError("the output of pytest is not read")
    while select.select([run.stdout], [], [], QUIET_S)[0]:
        part = os.read(run.stdout.fileno(), 65_536)
        if not part:
            run.wait()
            return said.decode(errors="replace")
        said += part
    return None


def _end(run: subprocess.Popen[bytes]) -> None:
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

"""The benchmarks: each runs, proves its work and writes what it measured. No figure of theirs is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click
import pytest

from benchmarks import __main__ as command
from benchmarks.figures import Goal, Line, Proofs, Spread, Unproven, spelled
from benchmarks.page import PAGE, write_page
from tests.docs.samples import ROOT

NAMES: Final = ("gate", "growth", "peers", "slots")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    ended = bench("--quick", "--rounds", "1", "--without-peers", "--results", str(path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir()}


def test_every_benchmark_writes_its_result(results: dict[str, Any]) -> None:
    assert sorted(results) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_result_has_its_shape(results: dict[str, Any], name: str) -> None:
    result = results[name]
    assert result["benchmark"] == name
    assert result["machine"]["rounds"] == 1
    assert result["machine"]["quick"] is True
    for table in result["tables"]:
        assert table["rows"]
        for row in table["rows"]:
            assert len(row) == len(table["columns"])
            assert all(set(cell) == {"median", "low", "high"} for cell in row if isinstance(cell, dict))
    for goal in result["goals"]:
        assert set(goal) == {"what", "reached", "at_least", "at_most", "met"}
        assert (goal["at_least"] is None) != (goal["at_most"] is None)


@pytest.mark.parametrize(
    ("name", "what", "counted"),
    [
        ("gate", "admitted by try_acquire, one by one", 100 + 640),
        ("gate", "admitted by the recipe, one by one", 100 + 640),
        ("gate", "admitted by AsyncLimiter, 50 tasks", 100 + 640),
        ("growth", "admitted by max of the limit 1,000, refused", 0),
        ("growth", "admitted by max of the limit 1,000, admitted", 100),
        ("growth", "admitted by categories 100, admitted", 100),
        ("slots", "UUIDs as ids: slots in use", 1 + 10 + 100 + 300),
        ("peers", "admitted by ours, one by one", 100 + 256 + 100 + 100),
    ],
)
def test_a_run_has_counted_its_work(results: dict[str, Any], name: str, what: str, counted: int) -> None:
    assert {proof["what"]: proof["counted"] for proof in results[name]["proofs"]}[what] == counted


def test_the_page_takes_in_every_result(folder: Path, results: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    assert sorted(write_page(page, folder)) == sorted(NAMES)
    text = page.read_text(encoding="utf-8")
    for result in results.values():
        assert all(f"**{table['title']}**" in text for table in result["tables"])
        assert all(f"| {goal['what']} |" in text for goal in result["goals"])
    assert sorted(write_page(page, folder)) == sorted(NAMES)
    assert page.read_text(encoding="utf-8") == text


def test_a_count_that_is_not_as_expected_ends_the_run() -> None:
    proofs = Proofs()
    proofs.add("admitted", 100, 100)
    with pytest.raises(Unproven, match="admitted: counted 101, expected 100"):
        proofs.add("admitted", 101, 100)
    assert [(proof.what, proof.counted) for proof in proofs.collected()] == [("admitted", 100)]


def test_an_unknown_benchmark_is_refused_by_name() -> None:
    with pytest.raises(click.UsageError, match="'gats', expected one of gate, growth, slots, peers"):
        command.main.main(["gats"], standalone_mode=False)


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PACKAGES", ("nobodys-limiter",))
    with pytest.raises(click.UsageError, match=r"not installed: nobodys-limiter; make bench .* --without-peers"):
        command.main.main(["peers"], standalone_mode=False)


def test_the_median_decides_whether_a_goal_is_met() -> None:
    assert Goal("ratio", Spread.of([0.5, 1.0, 3.0]), at_least=1.0).met
    assert not Goal("ratio", Spread.of([0.5, 0.9, 3.0]), at_least=1.0).met
    assert not Goal("growth", Spread.of([1.0, 1.6, 1.7]), at_most=1.5).met


def test_a_line_says_its_slope_and_how_straight_it_is() -> None:
    line = Line.through([1, 2, 4, 8], [13, 16, 22, 34])
    assert (round(line.slope, 9), round(line.straightness, 9)) == (3, 1)


@pytest.mark.parametrize(
    ("figure", "said"),
    [(0, "0"), (0.01234, "0.0123"), (0.5, "0.500"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_a_figure_is_spelled_in_three_digits(figure: float, said: str) -> None:
    assert spelled(figure) == said

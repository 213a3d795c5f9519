"""The benchmarks: each runs, proves its work and writes what it measured. No figure of theirs is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import click
import pytest

from benchmarks import __main__ as command
from benchmarks.backlog import Size, build
from benchmarks.comparison import Compared, compare
from benchmarks.deferral import least_us
from benchmarks.effort import Cores
from benchmarks.figures import Goal, Line, Proofs, Report, Spread, Unproven, spelled
from benchmarks.latency import percentile
from benchmarks.ours import KEYS, QUEUE
from benchmarks.page import PAGE, write_page, write_picture
from benchmarks.picture import drawn, panels
from benchmarks.printing import write
from benchmarks.processes import Process
from benchmarks.profile import profile
from benchmarks.slowlog import tail, watched
from benchmarks.storms import Storm
from dispatcher.core.units import US
from dispatcher.limiter import Limit, Limiter, Scope
from dispatcher.store.snapshot import Books
from tests.docs.samples import ROOT
from tests.support.invariants import state_of
from tests.support.servers import Database

NAMES: Final = tuple(command.BENCHMARKS)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of some benchmarks has left."""

    names: Sequence[str]
    folder: Path
    results: dict[str, Any]


@pytest.fixture(
    scope="module",
    params=[pytest.param(("enqueue", "slots"), id="some"), pytest.param(NAMES, id="all", marks=pytest.mark.slow)],
)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    path = tmp_path_factory.mktemp("results")
    ended = bench(*request.param, "--quick", "--rounds", "1", "--without-peers", "--results", str(path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in path.iterdir()}
    return Measured(request.param, path, results)


def test_every_benchmark_writes_its_result_in_one_shape(measured: Measured) -> None:
    assert sorted(measured.results) == sorted(measured.names)
    for name, result in measured.results.items():
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


COUNTED: Final = (
    ("gate", "admitted by try_acquire, one by one", 100 + 640),
    ("gate", "admitted by the recipe, one by one", 100 + 640),
    ("gate", "admitted by AsyncLimiter, 50 tasks", 100 + 640),
    ("growth", "admitted by max of the limit 1,000, refused", 0),
    ("growth", "admitted by max of the limit 1,000, admitted", 100),
    ("growth", "admitted by categories 100, admitted", 100),
    ("slots", "UUIDs as ids: slots in use", 1 + 10 + 32 + 300),
    ("peers", "admitted by ours, one by one", 100 + 256 + 100 + 100),
    ("storm", "sent by ours, 1 process", 50),
    ("storm", "dropped by ours, 2 processes", 1_950),
    ("storm", "slots of categories, ours, 2 processes", 50),
    ("storm", "landed at the stand-in, ours, 2 processes", 50),
    ("storm", "log lines of ours, 1 process", 2_000),
    ("storm", "admitted by RQ, SimpleWorker", 50),
    ("storm", "done by RQ, SimpleWorker", 200),
    ("enqueue", "enqueued by send_many", 500),
    ("enqueue", "enqueued by RQ's enqueue, one by one", 50),
    ("serving", "enqueued by HTTP, arrays of 500", 500),
    ("viewers", "dropped by two viewers", 2_000 - 50),
    ("viewers", "viewers that were answered", 2),
    ("viewers", "viewers that were answered while a queue drained", 2),
    ("latency", "arrived at the stand-in", 10 + 5 * 20),
    ("post", "landed at the stand-in, HTTP, no link", 2 + 20),
    ("post", "settled, TLS, a link of 40 ms", 2 + 20),
    ("start", "enqueued by send", 1),
    ("deferral", "posted once each", 2 * 250),
    ("deferral", "windows over the limit", 0),
    ("idle", "parked after all", 10 * 10 + 40 * 10 + 50 * 8 + 100 + 4),
    ("idle", "settled meanwhile", 0),
    ("volume", "settled with events waiting 300, dropped", 1_024),
    ("volume", "settled with categories 20, posted", 256),
    ("volume", "parked", 200),
    ("volume", "repeats of remembered ids on the queue", 0),
    ("volume", "settled with workers 3, posted", 256),
    ("memory", "parked", 499),
    ("memory", "log lines", 2_500),
    ("scripts", "parked", 10 * 10 + 40 * 10 + 50 * 8 + 100 + 4),
    ("scripts", "lines", 10 + 40 + 50 + 3),
    ("scripts", "dead letters", 100 + 1),
    ("scripts", "dead replay: on the queue, more or less", 25),
    ("scripts", "dead purge: dead letters, more or less", -25),
    ("scripts", "parked cancel: parked, more or less", -25),
)


def test_a_run_has_counted_its_work(measured: Measured) -> None:
    for name, what, counted in COUNTED:
        if name in measured.names:
            assert {proof["what"]: proof["counted"] for proof in measured.results[name]["proofs"]}[what] == counted


def test_the_page_takes_in_every_result(measured: Measured, tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"of a run with --quick or --scale: no figures for the page$"):
        write_page(page, measured.folder)
    full = tmp_path / "full"
    full.mkdir()
    for name, result in measured.results.items():
        result["machine"]["quick"] = False
        (full / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
    assert sorted(write_page(page, full)) == sorted(measured.names)
    write_picture(picture := tmp_path / "growth.svg", full)
    assert picture.exists() == ({"growth", "volume"} <= set(measured.names))
    text = page.read_text(encoding="utf-8")
    for result in measured.results.values():
        assert all(f"**{table['title']}**" in text for table in result["tables"])
        assert all(f"| {goal['what']} |" in text for goal in result["goals"])
    assert sorted(write_page(page, full)) == sorted(measured.names)
    assert page.read_text(encoding="utf-8") == text


def test_a_count_that_is_not_as_expected_ends_the_run() -> None:
    proofs = Proofs()
    proofs.add("admitted", 100, 100)
    with pytest.raises(Unproven, match="admitted: counted 101, expected 100"):
        proofs.add("admitted", 101, 100)
    assert [(proof.what, proof.counted) for proof in proofs.collected()] == [("admitted", 100)]


def test_an_unknown_benchmark_is_refused_by_name() -> None:
    with pytest.raises(click.UsageError, match="'gats', expected one of gate, growth, volume, slots, peers, storm"):
        command.main.main(["gats"], standalone_mode=False)


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(command.NEEDED, "peers", ("nobodys-limiter",))
    with pytest.raises(click.UsageError, match=r"not installed: nobodys-limiter; make bench .* --without-peers"):
        command.main.main(["peers"], standalone_mode=False)


def test_the_lock_of_what_runs_on_node_names_no_index() -> None:
    lock = json.loads((ROOT / "benchmarks" / "package-lock.json").read_text(encoding="utf-8"))
    wanted = json.loads((ROOT / "benchmarks" / "package.json").read_text(encoding="utf-8"))
    packages = lock["packages"]
    assert packages[""]["dependencies"] == wanted["dependencies"]
    assert all("integrity" in package and "resolved" not in package for name, package in packages.items() if name)


@pytest.mark.slow
def test_a_profile_says_where_the_time_of_a_storm_went() -> None:
    report = profile(Storm(500), "wall", 5, Cores.FREE)
    shares, commands, within, own = report.tables
    assert shares.rows[0][0] == "on the clock"
    assert "evalsha" in {row[0] for row in commands.rows}
    assert within.rows
    assert own.rows
    assert ("sent by ours", 50) in {(proof.what, proof.counted) for proof in report.proofs}


def test_a_burst_lasts_as_long_as_limit_and_pace_make_it() -> None:
    hundreds_s, tens_s = 1_800, 10
    assert least_us(1) == 0
    assert least_us(100) == 9 * tens_s * US
    assert least_us(250) == (2 * hundreds_s + 4 * tens_s) * US


def test_each_copy_of_a_backlog_stands_where_its_pattern_stands(
    redis: Database, redis_url: str, tmp_path: Path
) -> None:
    size = Size().times(0.0002)
    build(redis, redis_url, tmp_path, size)
    places = state_of(redis, KEYS)
    assert places.faults() == []
    assert len(places.parked) == size.parked + 4
    assert Books(redis, KEYS, QUEUE).snapshot().imbalances() == []


def test_a_script_that_blocks_a_server_is_reported_by_its_name(redis: Database) -> None:
    limiter = Limiter(redis)
    with watched(redis, from_us=0) as blocked:
        limiter.try_acquire([Scope("user", (Limit.parse("1/1h"),))])
        redis.ping()
    assert set(blocked.scripts) == {"gate"}
    assert "PING" in blocked.commands


def test_of_999_in_1000_calls_the_longest_is_told() -> None:
    assert tail([float(n) for n in range(1, 1_001)]) == 999.0
    assert tail([1.0, 2.0]) == 2.0


def test_a_percentile_is_the_value_that_so_many_do_not_exceed() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0], percent) for percent in (50, 75, 99, 100)] == [2.0, 3.0, 4.0, 4.0]


def test_a_process_that_ends_before_it_is_ready_is_quoted(tmp_path: Path) -> None:
    with (
        Process(sys.executable, "-c", "raise SystemExit('no server')", folder=tmp_path) as process,
        pytest.raises(Unproven, match="has ended: no server"),
    ):
        process.until(lambda: False, "an idle worker")


def test_the_median_decides_whether_a_goal_is_met() -> None:
    assert Goal("ratio", Spread.of([0.5, 1.0, 3.0]), at_least=1.0).met
    assert not Goal("ratio", Spread.of([0.5, 0.9, 3.0]), at_least=1.0).met
    assert not Goal("growth", Spread.of([1.0, 1.6, 1.7]), at_most=1.5).met


def test_a_picture_shows_each_cost_over_that_at_the_smallest_size() -> None:
    def table(what: str, *costs: float) -> dict[str, Any]:
        spreads = [{"median": cost, "low": cost, "high": cost} for cost in costs]
        sizes = ("10", "1,000", "1,000,000")
        rows = [[size, spread, spread, spread, spread] for size, spread in zip(sizes, spreads, strict=True)]
        return {"columns": [what, "a", "b", "c", "d"], "rows": rows}

    flat, grows = table("max of the limit", 5.0, 5.0, 5.0), table("events <waiting>", 8.0, 10.0, 20.0)
    found = panels({"tables": [flat, flat, grows]}, {"tables": [grows]})
    assert [panel.name for panel in found] == ["the gate: max of the limit"] * 2 + ["events <waiting>"]
    assert (found[0].let, found[-1].refused) == ((1.0, 1.0, 1.0), (1.0, 1.25, 2.5))
    root = ET.fromstring(drawn(found))  # noqa: S314 - our own
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("events <waiting>") == 1
    assert texts.count("1M") == len(found)


def page_of(folder: Path, *goals: Goal) -> str:
    """The page after a run that has reached these."""
    write(folder, "gate", {}, Report((), goals, ()))
    page = folder / "benchmarks.md"
    page.write_text("<!-- results of gate, made here -->\n<!-- end of the results -->\n", encoding="utf-8")
    write_page(page, folder)
    return page.read_text(encoding="utf-8")


def test_only_what_is_worse_by_more_than_its_range_is_told_of(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        Goal("batch / recipe", Spread(1_250.0, 1_100.0, 1_400.0), at_least=25.0),
        Goal("above nothing", Spread(-0.1, -0.2, 0.1), at_most=0.2),
        Goal("bytes | slot", Spread.of([28.44]), at_most=45.0),
    )
    equal = compare(
        "gate",
        [
            Goal("batch / recipe", Spread.of([1_100.2]), at_least=25.0),
            Goal("above nothing", Spread.of([0.1]), at_most=0.2),
            Goal("bytes | slot", Spread.of([31.0]), at_most=45.0),
            Goal("not on the page", Spread.of([0.0]), at_least=1.0),
        ],
        page,
    )
    assert equal == Compared(3, ())
    worse = compare(
        "gate",
        [
            Goal("batch / recipe", Spread(1_098.0, 1_000.0, 1_300.0), at_least=25.0),
            Goal("above nothing", Spread.of([0.11]), at_most=0.2),
            Goal("bytes | slot", Spread.of([31.4]), at_most=45.0),
        ],
        page,
    )
    assert worse.worse == (
        "gate: batch / recipe: 1,098 (1,000-1,300), was 1,250 (1,100-1,400)",
        "gate: above nothing: 0.110, was -0.100 (-0.200-0.100)",
        "gate: bytes | slot: 31.4, was 28.4",
    )
    assert compare("storm", [Goal("batch / recipe", Spread.of([1.0]), at_least=1.0)], page).count == 0


def test_a_line_says_its_slope_and_how_straight_it_is() -> None:
    line = Line.through([1, 2, 4, 8], [13, 16, 22, 34])
    assert (round(line.slope, 9), round(line.straightness, 9)) == (3, 1)


@pytest.mark.parametrize(
    ("figure", "said"),
    [(0, "0"), (0.01234, "0.0123"), (0.5, "0.500"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_a_figure_is_spelled_in_three_digits(figure: float, said: str) -> None:
    assert spelled(figure) == said

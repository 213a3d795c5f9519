"""``dispatcher limits check``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import run


def test_every_rule_is_printed_as_a_sentence() -> None:
    Path("my.yaml").write_text("global: {limits: [5/1s]}\ncategories: {errors: {limits: [3/1m]}}\n", encoding="utf-8")
    result = run("limits", "check", "my.yaml")
    assert result.code == 0
    assert result.out.splitlines()[0] == "All events together: at most 5 in any second."
    assert result.out.splitlines()[1].startswith("errors: at most 3 in any minute")
    assert result.err == "dispatcher: limits in my.yaml\n"


def test_without_a_file_it_is_the_one_in_force() -> None:
    Path("other.yaml").write_text("global: {limits: []}\n", encoding="utf-8")
    result = run("limits", "check", "--json", DISPATCHER_LIMITS_FILE="other.yaml", DISPATCHER_LIMTS="x")
    assert result.code == 0
    assert json.loads(result.out)["file"] == str(Path.cwd() / "other.yaml")
    assert json.loads(result.out)["rules"][0] == "All events together: no limit."
    assert result.err.startswith("dispatcher: warning: DISPATCHER_LIMTS is not a known variable")


def test_a_doubt_is_a_warning_and_no_fault() -> None:
    Path("my.yaml").write_text("global: {limits: [5/1m, 900/1h]}\n", encoding="utf-8")
    result = run("limits", "check", "my.yaml")
    assert result.code == 0
    assert "dispatcher: warning: my.yaml:1:25: global.limits[1]: 900/1h can never bind" in result.err
    assert "warning" not in result.out


def test_every_fault_is_said_at_once_with_its_place() -> None:
    Path("bad.yaml").write_text("global: {limits: [10/30]}\ncategoris: {}\ndefaults: {channel: no}\n", encoding="utf-8")
    result = run("limits", "check", "bad.yaml")
    assert (result.code, result.out) == (78, "")
    places = [line.split(": ")[2] for line in result.err.splitlines()]
    assert places == ["bad.yaml:1:19", "bad.yaml:2:1", "bad.yaml:3:21"]

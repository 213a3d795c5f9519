"""What the Procfile starts."""

from __future__ import annotations

from pathlib import Path

from tests.integration.cli.test_start import parse


def test_each_process_is_a_command_that_there_is() -> None:
    lines = (Path(__file__).parents[2] / "Procfile").read_text(encoding="utf-8").splitlines()
    processes = dict(line.split(": ") for line in lines)
    assert {name: parse(command.split()[1:]).info_name for name, command in processes.items()} == {
        "worker": "worker",
        "slack": "slack-stand-in",
        "web": "serve",
    }

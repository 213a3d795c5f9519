"""The command line in this process, which spares a test the start of another."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from dispatcher.cli import main
from tests.support.commands import Result


@dataclass(frozen=True, slots=True)
class InProcess:
    """``dispatcher COMMAND ARGUMENTS``, in the environment of the test."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    command: tuple[str, ...] = ()

    def __call__(self, *arguments: str) -> Result:
        self.monkeypatch.setattr(sys, "argv", ["dispatcher", *self.command, *arguments])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        said = self.capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Result(exit_.value.code, said.out, said.err)

    def json(self, *arguments: str, code: int = 0, said: str = "") -> Any:  # noqa: ANN401 - JSON
        """What it prints with ``--json``; it exits with that code; if that is 0, it has said only this on stderr."""
        result = self(*arguments, "--json")
        assert result.code == code, result.err
        assert code or result.err == said
        return json.loads(result.out)

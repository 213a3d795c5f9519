"""`deploy/check` where its tools are missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

CHECK: Final = Path(__file__).resolve().parents[2] / "deploy" / "check"


def test_a_missing_tool_is_a_failure_that_names_the_package_to_install(tmp_path: Path) -> None:
    for name in ("cat", "dirname", "mktemp", "rm", "sh"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for name in ("hadolint", "check-jsonschema", "kubernetes-validate"):
        (tmp_path / name).symlink_to(str(shutil.which("true")))
    answer = subprocess.run(
        [tmp_path / "sh", CHECK, str(tmp_path)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stdout.splitlines() == [
        "ok      Dockerfile (hadolint)",
        "ok      docker-compose.yml (schema)",
        "ok      deploy/kubernetes (schemas)",
    ]
    assert "docker-compose.yml is not read by Compose itself: Docker Compose 2 is missing" in answer.stderr
    assert "systemd-analyze is missing; install the package systemd" in answer.stderr
    assert "not found" not in answer.stderr

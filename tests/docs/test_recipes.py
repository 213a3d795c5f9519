"""The recipes for other languages, each run where its language is on the machine, and the wire format by hand."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.docs.samples import ROOT, samples
from tests.docs.test_docs import free_port
from tests.support.commands import run
from tests.support.processes import PATIENCE_S
from tests.support.servers import RedisServer

RECIPES: Final = {each.language: each.text for each in samples(ROOT / "docs" / "recipes.md")}
NODE_MODULES: Final = ROOT / "build" / "node" / "node_modules"
ENV: Final = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "NODE_PATH": os.fspath(NODE_MODULES),
}
CLIENTS: Final[dict[str, Sequence[str]]] = {
    "php": ("php", "-r", "exit(class_exists('Redis') ? 0 : 1);"),
    "ruby": ("ruby", "-e", "require 'redis'"),
}
"""What asks a language whether its client is there."""


def runners() -> dict[str, str]:
    """What runs the recipe of each language that is on this machine, with its client."""
    found = {"sh": "bash"} if shutil.which("redis-cli", path=ENV["PATH"]) else {}
    if shutil.which("node") and NODE_MODULES.is_dir():
        found["js"] = "node"
    for language, (program, *question) in CLIENTS.items():
        path = shutil.which(program)
        if path and not subprocess.run([path, *question], capture_output=True, check=False).returncode:
            found[language] = path
    return found


RUNNERS: Final = runners()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(port=free_port()) as server:
        yield server


def posted(server: RedisServer) -> str:
    """What a worker prints that takes all there is."""
    return run("worker", "--burst", DISPATCHER_REDIS_URL=server.url, DISPATCHER_SINK="console").out


@pytest.mark.parametrize("language", RUNNERS)
def test_a_recipe_hands_an_event_over_and_prints_its_id(language: str, server: RedisServer, tmp_path: Path) -> None:
    script = tmp_path / f"recipe.{language}"
    script.write_text(RECIPES[language], encoding="utf-8")
    done = subprocess.run(
        [RUNNERS[language], script],
        env={**ENV, "DISPATCHER_REDIS_URL": server.url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}\n", done.stdout)
    assert posted(server) == "#notifications  disk full on db1\n"


@pytest.mark.parametrize("runner", [RUNNERS[each] for each in ("sh",) if each in RUNNERS])
def test_the_recipe_for_redis_cli_prints_no_id_and_fails_where_the_server_refuses(runner: str, tmp_path: Path) -> None:
    script = tmp_path / "recipe.sh"
    script.write_text(RECIPES["sh"], encoding="utf-8")
    with RedisServer(port=free_port(), password="secret") as server:
        done = subprocess.run(
            [runner, script],
            env={**ENV, "DISPATCHER_REDIS_URL": f"redis://127.0.0.1:{server.port}/0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    assert done.returncode != 0
    assert not done.stdout


@pytest.mark.parametrize(
    ("backup", "message"),
    [
        ("echo saved", "backup done"),
        ("exit 1", "backup failed"),
        (r"printf 'gr\366\337er\n'; exit 1", "backup failed gr\ufffd\ufffder"),
    ],
    ids=["done", "failed without a word", "failed with bytes that are no UTF-8"],
)
def test_the_crontab_tells_how_the_backup_ended(server: RedisServer, tmp_path: Path, backup: str, message: str) -> None:
    (crontab,) = (each.text for each in samples(ROOT / "docs" / "recipes.md") if "SEND=" in each.text)
    command = crontab.splitlines()[-1].removeprefix("0 6 * * *").replace("/var/log/", f"{tmp_path}/")
    script = tmp_path / "backup.sh"
    script.write_text(f"#!/bin/sh\n{backup}\n", encoding="utf-8")
    script.chmod(0o755)
    subprocess.run(
        ["/bin/sh", "-c", command.replace("/opt/backup.sh", os.fspath(script))],
        env={**ENV, "DISPATCHER_REDIS_URL": server.url, "SEND": "dispatcher send"},
        check=True,
        timeout=PATIENCE_S,
    )
    assert " ".join(posted(server).split()) == f"#notifications {message}"


def test_the_commands_of_the_wire_format_hand_an_event_over_through_a_socket(server: RedisServer) -> None:
    (block,) = (each.text for each in samples(ROOT / "docs" / "events.md") if each.text.startswith("MULTI\n"))
    event = '{"category": "errors", "text": "é, by hand", "id": "by-hand"}'
    data = f'["dispatcher.jobs.dispatch", null, [{event}], {{}}]'
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        for line in block.splitlines():
            parts = [part.replace("ID", "by-hand").replace("DATA", data).encode() for part in line.split(" ")]
            rows = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
            connection.sendall(b"*%d\r\n%s" % (len(parts), rows))
        with connection.makefile("rb") as answers:
            assert [answers.readline() for _ in range(6)] == [
                b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n", b"*2\r\n", b":4\r\n", b":1\r\n",
            ]  # fmt: skip
    assert posted(server) == "#notifications  é, by hand\n"

"""The suite's own search for secrets finds what it is to find."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from tests.support.forked import SEEN_BY_ALL
from tests.support.secrecy import PASSWORD, Evidence

ROOT: Final = Path(__file__).parents[2]

LEAKS: Final = """
import subprocess, sys
from urllib.parse import quote
from dispatcher.stand_in import Setup, StandIn
from tests.support import secrecy
from tests.support.secrecy import PASSWORD
from tests.support.servers import RedisServer
from tests.support.slack import post
import pytest

TOKEN = Setup().token
OWN = "xoxb-that-no-test-beside-this-one-searches-for"
secrecy.found.secrets |= {OWN}

@pytest.fixture
def slack():
    with StandIn() as slack:
        yield slack

def test_nothing(redis, slack, tmp_path):
    redis.set("key", "value")

def test_pipes_of():
    subprocess.run([sys.executable, "-c", "print(input())"], input=PASSWORD, text=True, capture_output=True)

def test_captured_stdout():
    print("redis://:" + quote(PASSWORD, safe="").lower() + "@db")

def test_worker_log(tmp_path):
    (tmp_path / "worker.log").write_text(TOKEN)

def test_keys_of_a_key(redis):
    redis.set("a" * 500 + TOKEN, "1")

def test_keys_of_a_value(redis):
    redis.hset("many", mapping={str(n): TOKEN * 9 for n in range(500)})

def test_posts(slack):
    post(slack, text=slack.webhook_url)

def test_command_lines(request):
    child = subprocess.Popen([sys.executable, "-c", "input()", OWN], stdin=subprocess.PIPE)
    request.addfinalizer(lambda: (child.kill(), child.communicate()))

def test_closed_server():
    with RedisServer() as server, server.client() as client:
        client.set("key", TOKEN)

def test_appendonly():
    with RedisServer(append_only=True) as server, server.client() as client:
        client.set("key", TOKEN)
        client.flushall()
"""


@pytest.mark.parametrize("spelling", [PASSWORD, quote(PASSWORD), quote(PASSWORD, safe="").lower()])
def test_the_search_finds_every_spelling(spelling: str) -> None:
    evidence = Evidence(frozenset({PASSWORD}))
    evidence.add("log", f"unix://:{spelling}@/s")
    assert evidence.leaks() != []


def test_a_test_in_which_a_secret_is_shown_fails(tmp_path: Path) -> None:
    (tmp_path / "test_leaks.py").write_text(LEAKS, encoding="utf-8")
    with (tmp_path / "said").open("wb") as out:  # not a pipe, which is searched
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path),
                *("-p", "tests.conftest", "-p", "no:cacheprovider", "-q", tmp_path / "test_leaks.py"),
            ],
            env=SEEN_BY_ALL,
            stdout=out,
            cwd=ROOT,
            check=False,
        )
    said = (tmp_path / "said").read_text(encoding="utf-8")
    assert done.returncode == 1, said
    failed = set(re.findall(r"^ERROR .*::test_(\w+)", said, re.MULTILINE))
    assert failed == set(re.findall(r"def test_(\w+)", LEAKS)) - {"nothing"}, said
    for where in ("pipes of", "Captured stdout", "worker.log", "keys: ", "posts: ", "command lines: ", ".aof: "):
        assert where in said

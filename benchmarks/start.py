"""How long a short command takes to start: processor time and modules, against those that people know."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis import Redis

from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Spread, Table, Unproven
from benchmarks.ours import LANE
from benchmarks.slack import Slack
from benchmarks.stage import stage_with_slack
from dispatcher.store.rq_keys import QueueKeys

REDIS: Final = "import redis"
BARE: Final = "python, nothing"
HELP: Final = "dispatcher --help"
SEND: Final = "dispatcher send"
STATUS: Final = "dispatcher status"
IMPORT: Final = "import dispatcher"
LIMITER: Final = "from dispatcher.limiter import Limiter"

_DISPATCHER: Final = (sys.executable, "-m", "dispatcher")
_OF_REDIS: Final = "of the time of import redis"

GOALS: Final = ((IMPORT, BARE, 1 / 6), (LIMITER, REDIS, 1 / 6), (SEND, REDIS, 1 / 2), (STATUS, REDIS, 1 / 2))
"""What may come on top of what, as a part of the time of ``import redis``: where that takes 0.3 s, 0.05 and 0.15 s."""

_HELP: Final = 2 / 3


@dataclass(frozen=True, slots=True)
class Command:
    """What is run again and again, and whether it is Python's, whose modules can be counted."""

    name: str
    arguments: Sequence[str]
    is_python: bool = True


def run(effort: Effort) -> Report:
    """Every command once in each round; the server has limits in force, as where a worker has run."""
    proofs = Proofs()
    with stage_with_slack(effort.cores) as (server, client, posted, folder):
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "DISPATCHER_REDIS_URL": server.url}
        _run((*_DISPATCHER, "worker", "--burst"), folder, {**env, "DISPATCHER_SINK": "console"})
        commands = _commands(client, posted)
        modules = {each.name: _modules(each, folder, env) for each in commands}
        took: dict[str, list[float]] = {each.name: [] for each in commands}
        client.delete(LANE)
        for _ in range(effort.rounds):
            for each in commands:
                took[each.name].append(_run(each.arguments, folder, env))
        proofs.add("enqueued by send", int(client.llen(LANE)), effort.rounds)
    rows = tuple(
        (
            name,
            Spread.of(1_000 * each for each in times),
            modules[name],
            Spread.of(each / redis for each, redis in zip(times, took[REDIS], strict=True)),
        )
        for name, times in took.items()
    )
    table = Table("one start", ("", "processor time, ms", "modules", f"times {REDIS}"), rows)
    return Report((table,), tuple(_goals(took)), proofs.collected(), tuple(_notes(took)))


def _commands(client: Redis, posted: Slack) -> list[Command]:
    facts = client.connection_pool.connection_kwargs
    redis_cli = shutil.which("redis-cli") or shutil.which("valkey-cli")
    curl = shutil.which("curl")
    commands = [
        Command(BARE, (sys.executable, "-c", "")),
        Command(REDIS, (sys.executable, "-c", REDIS)),
        Command(IMPORT, (sys.executable, "-c", IMPORT)),
        Command(LIMITER, (sys.executable, "-c", LIMITER)),
        *(
            Command(program, (sys.executable, "-c", program))
            for program in ("import dispatcher.limiter", "from dispatcher import Producer")
        ),
        Command(HELP, (*_DISPATCHER, "--help")),
        Command(SEND, (*_DISPATCHER, "send", "errors", "disk full on db1")),
        Command(STATUS, (*_DISPATCHER, "status")),
        *(
            Command(f"dispatcher {words}", (*_DISPATCHER, *words.split()))
            for words in ("status --json", "status --check", "limits show", "dead list", "mute errors --for 1h --why x")
        ),
        Command(
            "rq info",
            (sys.executable, "-c", "from rq.cli import main; main()", "info", "-u", f"unix://{facts['path']}"),
        ),
    ]
    if redis_cli:
        lane = QueueKeys("notifications").queues
        commands.append(Command("redis-cli", (redis_cli, "-s", facts["path"], "SCARD", lane), is_python=False))
    if curl:
        body = "channel=%23errors&text=disk+full+on+db1"
        arguments = (curl, "-sS", "-H", f"Authorization: Bearer {posted.token}", "-d", body)
        commands.append(Command("curl", (*arguments, f"{posted.base_url}chat.postMessage"), is_python=False))
    return commands


def _run(arguments: Sequence[str], folder: Path, env: dict[str, str]) -> float:
    """Seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _output(arguments, folder, env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _output(arguments: Sequence[str], folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(arguments, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unproven(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2_000:]}")
    return done.stderr


def _modules(command: Command, folder: Path, env: dict[str, str]) -> int | str:
    """How many modules it imports, Python's own with them."""
    if not command.is_python:
        return ""
    said = _output(command.arguments, folder, {**env, "PYTHONPROFILEIMPORTTIME": "1"})
    return sum(line.startswith("import time:") for line in said.splitlines()) - 1  # the first is the heading


def _goals(took: dict[str, list[float]]) -> list[Goal]:
    def over(name: str, base: str) -> Spread:
        rounds = zip(took[name], took[base], took[REDIS], strict=True)
        return Spread.of((ours - below) / redis for ours, below, redis in rounds)

    goals = [Goal(f"{name} above {base}, {_OF_REDIS}", over(name, base), at_most=most) for name, base, most in GOALS]
    in_all = Spread.of(ours / redis for ours, redis in zip(took[HELP], took[REDIS], strict=True))
    return [*goals, Goal(f"{HELP} in all, {_OF_REDIS}", in_all, at_most=_HELP)]


def _notes(took: dict[str, list[float]]) -> list[str]:
    absent = [name for name in ("redis-cli", "curl") if name not in took]
    return [f"Not on PATH: {', '.join(absent)}."] if absent else []

"""Other queues as ``drains`` runs them: their own workers, with a job that asks the recipe's limiter once.

They decide and post nothing; ours decides, posts what is admitted, counts and writes a line for each event.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from rq import Queue

from benchmarks.figures import Proofs
from benchmarks.libraries import FOLDER
from benchmarks.processes import Process
from benchmarks.recipe import RECIPE
from benchmarks.storms import Storm
from tests.support.servers import Database, RedisServer

NODE_FOLDER: Final = FOLDER / "node"
"""Where ``make bench`` puts BullMQ, if there is npm."""

PACKAGES: Final = ("dramatiq",)
"""What has to be installed, by pip, for all of them to run."""

THREADS: Final = 4
PREFETCH: Final = 1_000
_BULLMQ: Final = Path(__file__).parent / "jobs" / "bullmq.mjs"
_NAME: Final = "storm"
_HELD: Final = "held"


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What they share: the recipe's sets, and what their processes are told."""

    name: ClassVar[str]

    storm: Storm
    server: RedisServer
    folder: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Of a process."""
        return {"STORM_SERVER": self.server.url, "STORM_LIMITS": self.storm.recipe_limits(), **more}

    def prove(self, client: Database, workers: Process, proofs: Proofs) -> None:
        """As many were admitted as there is room for."""
        del workers
        proofs.add(f"admitted by {self.name}", client.zcard("recipe:global"), self.storm.admitted)


class StockRQ(_Recipe):
    """RQ's SimpleWorker, as ``rq worker`` starts it: one process, default settings, its log in a file."""

    name = "RQ, SimpleWorker"

    def fill(self, client: Database) -> None:
        """As ``drains.Queue`` says."""
        queue = Queue(_NAME, connection=client)
        queue.enqueue_many([Queue.prepare_data("benchmarks.jobs.rq_job.decide", args=row) for row in self.storm.rows()])
        client.rename(f"rq:queue:{_NAME}", _HELD)

    @contextmanager
    def workers(self, client: Database) -> Iterator[Process]:
        """As ``drains.Queue`` says."""
        command = (
            sys.executable,
            "-m",
            "rq.cli",
            "worker",
            "--worker-class=rq.SimpleWorker",
            f"--url={self.server.url}",
        )
        with Process(*command, _NAME, folder=self.folder, **self.environment()) as process:
            process.until(lambda: client.info("clients")["blocked_clients"] == 1, "an idle worker of RQ")
            yield process

    def release(self, client: Database, workers: Process) -> None:
        """As ``drains.Queue`` says."""
        del workers
        client.rename(_HELD, f"rq:queue:{_NAME}")

    def done(self, client: Database) -> int:
        """The registry of finished jobs, in which they stay for 500 s."""
        return int(client.zcard(f"rq:finished:{_NAME}"))


class Dramatiq(_Recipe):
    """Dramatiq: one process, four threads and a prefetch of 1,000, which is the fastest here."""

    name = f"Dramatiq, prefetch {PREFETCH:,}"

    def fill(self, client: Database) -> None:
        """As ``drains.Queue`` says."""
        counts = (str(self.storm.events), str(self.storm.types))
        with self._process("-m", "benchmarks.jobs.dramatiq_job", *counts) as process:
            process.finish()
        for ending in ("", ".msgs"):
            client.rename(f"dramatiq:{_NAME}{ending}", f"{_HELD}{ending}")

    @contextmanager
    def workers(self, client: Database) -> Iterator[Process]:
        """As ``drains.Queue`` says."""
        del client
        options = ("--processes=1", f"--threads={THREADS}", f"--queues={_NAME}")
        with self._process("-m", "dramatiq", "benchmarks.jobs.dramatiq_job", *options) as process:
            process.until(lambda: "ready for action" in process.said(), "an idle worker of Dramatiq")
            yield process

    def release(self, client: Database, workers: Process) -> None:
        """As ``drains.Queue`` says."""
        del workers
        for ending in (".msgs", ""):
            client.rename(f"{_HELD}{ending}", f"dramatiq:{_NAME}{ending}")

    def done(self, client: Database) -> int:
        """Messages that are acknowledged are gone."""
        return self.storm.events - int(client.hlen(f"dramatiq:{_NAME}.msgs"))

    def _process(self, *arguments: str) -> Process:
        env = self.environment(dramatiq_queue_prefetch=str(PREFETCH))
        env["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parents[1]), str(FOLDER)))
        return Process(sys.executable, *arguments, folder=self.folder, **env)


class BullMQ(_Recipe):
    """BullMQ on Node.js: one worker at concurrency 100."""

    name = "BullMQ, concurrency 100"

    def fill(self, client: Database) -> None:
        """As ``drains.Queue`` says; its workers do not look before they are told to."""
        del client
        with self._process("fill", str(self.storm.events), str(self.storm.types)) as process:
            process.finish()

    @contextmanager
    def workers(self, client: Database) -> Iterator[Process]:
        """As ``drains.Queue`` says."""
        del client
        with self._process("work") as process:
            process.until(lambda: process.said() == "ready\n", "an idle worker of BullMQ")
            yield process

    def release(self, client: Database, workers: Process) -> None:
        """As ``drains.Queue`` says."""
        del client
        os.kill(workers.pid, signal.SIGUSR2)

    def done(self, client: Database) -> int:
        """Completed jobs, all of which stay."""
        return int(client.zcard(f"bull:{_NAME}:completed"))

    def _process(self, *arguments: str) -> Process:
        more = {"STORM_MODULES": str(NODE_FOLDER), "STORM_SOCKET": str(self.server.socket), "STORM_RECIPE": RECIPE}
        return Process("node", str(_BULLMQ), *arguments, folder=self.folder, **self.environment(**more))


def has_bullmq() -> bool:
    """Whether Node.js is on PATH and BullMQ is installed."""
    return shutil.which("node") is not None and (NODE_FOLDER / "node_modules" / "bullmq").is_dir()

"""A primary with a replica, watched by three Sentinels that agree on a failover by majority."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis.exceptions import ResponseError

from tests.support.processes import until
from tests.support.servers import Database, RedisServer, free_port

SERVICE: Final = "main"
DOWN_AFTER_MS: Final = 500
"""How long a primary may be silent before a Sentinel takes it for dead."""

_AT_ONCE: Final = ("--repl-diskless-sync-delay", "0")


@dataclass(frozen=True, slots=True)
class Watched:
    """The servers, by what they are before any failover."""

    primary: RedisServer
    replica: RedisServer
    sentinels: tuple[RedisServer, ...]

    @property
    def url(self) -> str:
        """The address of whichever server is the primary."""
        return f"sentinel://{','.join(f'127.0.0.1:{each.port}' for each in self.sentinels)}/{SERVICE}/0"

    def await_sync(self) -> None:
        """Return when the replica holds all that was written to the primary until now."""
        with self.primary.client() as client:
            database: Database = client
            database.set("in step", "?")
            until(lambda: database.wait(1, 100) == 1, "the replica to be in step")

    def await_promotion(self) -> None:
        """Return when the replica is the primary and all Sentinels say so."""
        for each in self.sentinels:
            with each.client() as client:
                sentinel: Database = client
                until(lambda: named(sentinel) == self.replica.port, "the Sentinels to name the replica")  # noqa: B023 - called at once
        with self.replica.client() as client:
            until(lambda: client.role()[0] == b"master", "the replica to be the primary")

    def switch(self) -> None:
        """Make the replica the primary while both live: the old primary becomes a replica and goes on to answer."""
        with self.sentinels[0].client() as client:
            database: Database = client
            until(lambda: is_switched(database), "the Sentinel to begin a failover")
        self.await_promotion()
        with self.primary.client() as client:  # a Sentinel does the same, after eight seconds
            client.replicaof("127.0.0.1", str(self.replica.port))


def named(sentinel: Database) -> int:
    """The port of the primary that a Sentinel names."""
    return int(sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])


def is_switched(sentinel: Database) -> bool:
    """Ask for a failover that needs no death; False while the Sentinel finds no replica that is good enough."""
    try:
        sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)
    except ResponseError as error:
        if str(error).startswith(("NOGOODSLAVE", "INPROG")):
            return False
        raise
    return True


@contextmanager
def watched_primary() -> Iterator[Watched]:
    """The five servers, once each Sentinel knows the replica and the other Sentinels."""
    with ExitStack() as stack:
        primary = stack.enter_context(RedisServer(port=free_port(), options=_AT_ONCE))
        replica_of = ("--replicaof", f"127.0.0.1 {primary.port}")
        replica = stack.enter_context(RedisServer(port=free_port(), options=(*_AT_ONCE, *replica_of)))
        sentinels = []
        for n in range(3):
            config = primary.directory / f"sentinel.{n}.conf"
            write_config(config, primary.port)
            server = RedisServer(port=free_port(), config=config, options=("--sentinel",))
            sentinels.append(stack.enter_context(server))
        for each in sentinels:
            with each.client() as client:
                database: Database = client
                until(lambda: is_ready(database), "a Sentinel to know replica and Sentinels")  # noqa: B023 - called at once
        yield Watched(primary, replica, tuple(sentinels))


def write_config(path: Path, port: int) -> None:
    """What a Sentinel is told; it writes to the file what it learns."""
    path.write_text(
        f"sentinel monitor {SERVICE} 127.0.0.1 {port} 2\n"
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
        f"sentinel failover-timeout {SERVICE} 5000\n",
        encoding="utf-8",
    )


def is_ready(sentinel: Database) -> bool:
    """Whether a Sentinel could bring about a failover."""
    facts = sentinel.execute_command("SENTINEL", "MASTER", SERVICE)
    known = dict(zip(facts[::2], facts[1::2], strict=True)) if isinstance(facts, list) else facts
    text = {key if isinstance(key, str) else key.decode(): value for key, value in known.items()}
    return int(text["num-slaves"]) == 1 and int(text["num-other-sentinels"]) == 2

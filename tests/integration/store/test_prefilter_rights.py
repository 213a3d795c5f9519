"""By the pre-check, for a user of the server who may not read every key: jobs are looked at one by one."""

from __future__ import annotations

from redis import Redis

from dispatcher.core.units import Lane
from dispatcher.store.decisions import Decisions
from tests.support.servers import RedisServer
from tests.support.stage import Stage

LIMITS = "global: {limits: []}\nchannels: {default: {pace: none}}\ndefaults: {limits: [1/30m]}\n"


def calls(admin: Redis, command: str) -> int:
    """How many of a command the server has carried out."""
    return int(admin.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


def test_a_worker_without_rights_to_every_key_prefilters_the_same_with_more_commands() -> None:
    with RedisServer() as server, server.client() as admin:
        admin.acl_setuser(
            "shop", enabled=True, nopass=True, commands=["+@all"], keys=["{stage}:*", "rq:*"], channels=["*"]
        )
        singly = []
        for name in ("default", "shop"):
            admin.flushall()
            admin.config_resetstat()
            with Redis(unix_socket_path=str(server.socket), username=name, password="any") as client:
                stage = Stage(client)
                ann = stage.worker()
                ann.follow(stage.put_in_force(LIMITS))
                stage.send("sent", "refused")
                ann.run()
                stage.send(*(f"more-{n}" for n in range(100)), "plain")
                client.hdel(stage.queue.job("plain"), "category")
                client.hdel(stage.queue.job("more-1"), "shown")
                client.set(stage.queue.job("odd"), "no job")
                client.rpush(stage.queue.lane(Lane.NORMAL), "odd")
                read = calls(admin, "hmget")
                taken = ann.take()
                assert [name for group in taken.prefiltered for name in group.names] == [
                    f"more-{n}" for n in range(100)
                ]
                assert [each.id for each in taken.batch] == ["plain", "odd"]
                assert stage.snapshot().overall()["dropped"] == 101
                texts = {each.id: each.text for each in Decisions(client, stage.keys).suppressed()}
                names = ["refused", *(f"more-{n}" for n in range(100))]
                assert texts == {name: f"text of {name}" for name in names} | {"more-1": None}
            singly.append(calls(admin, "hmget") - read >= 100)
        assert singly == [False, True]

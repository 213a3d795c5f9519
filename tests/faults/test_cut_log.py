"""A server that is killed while it writes its log has all of a script or nothing, and the next take goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.invariants import state_of
from tests.support.quiet_stage import QuietStage
from tests.support.script_scenes import SCENES, Scene
from tests.support.servers import RedisServer
from tests.support.victim_scenarios import LIMITS, Scenario

LATER_S = 10_000
"""From the beginning of a scene until long after its end."""


def log_of(server: RedisServer) -> Path:
    """The file to which the server appends."""
    found = [path for path in server.directory.rglob("*") if path.name.endswith((".incr.aof", "appendonly.aof"))]
    (path,) = [path for path in found if path.is_file()]
    return path


def cuts(whole: bytes, count: int, seed: str) -> Iterator[int]:
    """Where to cut it off: anywhere, in the middle of a command too."""
    chance = random.Random(seed)
    for _ in range(count):
        yield chance.randrange(len(whole) // 4, len(whole))


@pytest.mark.parametrize("scene", [SCENES[name] for name in ("deferral", "digest", "trouble", "takeovers")])
@pytest.mark.parametrize("count", [pytest.param(3, id="some"), pytest.param(200, id="many", marks=pytest.mark.slow)])
def test_a_log_that_is_cut_anywhere_holds_no_half_of_a_script(
    own_server: RedisServer, scene: Scene, count: int
) -> None:
    with own_server.client() as client:
        scene(client)
    own_server.kill()
    path = log_of(own_server)
    whole = path.read_bytes()
    for cut in cuts(whole, count, scene.__name__):
        path.write_bytes(whole[:cut])
        own_server.start()
        with own_server.client() as client:
            stage = QuietStage(client, LIMITS)
            assert stage.snapshot().imbalances() == [], f"cut at {cut} of {len(whole)}"
            assert state_of(client, stage.keys).faults(same_pace=False) == [], f"cut at {cut} of {len(whole)}"
            stage.clock.forward(LATER_S)
            scenario = Scenario(stage, "nobody", [stage.worker("next")])
            scenario.live()
            scenario.check_others()
        own_server.kill()
    own_server.start()  # to be closed as it was found

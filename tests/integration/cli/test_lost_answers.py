"""Commands that change something, where the answer of the server is lost: what they say then, and what goes on."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from dispatcher.core.event import Event
from tests.support.commands import ended, run, started
from tests.support.delay_proxy import DelayProxy
from tests.support.in_process import InProcess
from tests.support.processes import until
from tests.support.servers import Database, RedisServer
from tests.support.stage import UNPACED, Stage, policy_of

FOR_TWO_HOURS = ("--for", "2h", "--why", "move")
AS_STAGE = {"DISPATCHER_NAMESPACE": "stage", "DISPATCHER_QUEUE": "q"}
FIRST = ("limits", "apply", "first.yaml")


@pytest.fixture
def proxy(shared_server: RedisServer) -> Iterator[DelayProxy]:
    with DelayProxy(shared_server.socket) as proxy:
        yield proxy


@pytest.fixture
def by_proxy(shared_server: RedisServer, proxy: DelayProxy) -> str:
    """The address of the shared server behind the proxy."""
    return f"redis://:{quote(shared_server.password, safe='')}@127.0.0.1:{proxy.port}/0"


@pytest.mark.parametrize(
    ("before", "command", "words", "said", "look", "seen"),
    [
        (
            (), ("silence", "add", "host=db1", *FOR_TWO_HOURS), b"for_us",
            "whether the silence was added is not known: 'dispatcher silence list' shows it",
            ("silence", "list"), "host=db1",
        ),
        (
            ("silence", "add", "host=db1", *FOR_TWO_HOURS), ("silence", "expire", "1"), b"expire",
            "whether the silence has ended is not known: 'dispatcher silence list' shows it",
            ("silence", "list"), '"silences": []',
        ),
        (
            (), ("mute", "chatter", *FOR_TWO_HOURS), b"for_us",
            "whether chatter is muted is not known: 'dispatcher silence list' shows it",
            ("silence", "list"), "category=chatter",
        ),
        (
            ("mute", "chatter", *FOR_TWO_HOURS), ("unmute", "chatter"), b"unmute",
            "whether chatter is no longer muted is not known: 'dispatcher silence list' shows it",
            ("silence", "list"), '"silences": []',
        ),
        (
            (), ("pause", "--why", "move"), b"what",
            "whether posting is paused is not known: 'dispatcher status' shows it",
            ("status",), '"kind": "hand"',
        ),
        (
            ("pause", "--why", "move"), ("resume",), b"what",
            "whether posting goes on is not known: 'dispatcher status' shows it",
            ("status",), '"paused": null',
        ),
        (
            FIRST, ("limits", "apply", "second.yaml"), b"unless",
            "whether a new version is in force is not known: 'dispatcher limits history' shows it",
            ("limits", "history"), "second.yaml",
        ),
        (
            (), ("send", "chatter", "late"), b"late",
            "whether the event is on the queue is not known: sent again, it may be posted twice, since it has no --id",
            ("status",), '"waiting": 1',
        ),
        (
            (), ("send", "chatter", "late", "--id", "late-1"), b"late-1",
            "whether the event is on the queue is not known: sent again, it is not posted twice",
            ("status",), '"waiting": 1',
        ),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_where_the_answer_to_a_change_is_lost_the_command_says_that_it_may_be_made(  # noqa: PLR0913, PLR0917 - a table
    inside: InProcess,
    proxy: DelayProxy,
    by_proxy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[str, ...],
    command: tuple[str, ...],
    words: bytes,
    said: str,
    look: tuple[str, ...],
    seen: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for count, name in enumerate(("first", "second"), start=1):
        Path(f"{name}.yaml").write_text(f"defaults: {{limits: [{count}/1h]}}\n", encoding="utf-8")
    if before:
        assert inside(*before).code == 0
    proxy.lose_answer_to(words)
    lost = run(*command, DISPATCHER_REDIS_URL=by_proxy)
    assert lost.code == 69
    message = lost.err.splitlines()[-1]
    assert message.startswith("dispatcher: error: Redis did not answer: ")
    assert message.endswith(f"; {said}")
    assert seen in json.dumps(inside.json(*look))


def test_followed_events_go_on_when_the_server_is_back(redis: Database, proxy: DelayProxy, by_proxy: str) -> None:
    stage = Stage(redis, policy_of("", "9/30m"))
    proxy.lose_answer_to(b"XREAD")
    with started("events", "--follow", "--json", **AS_STAGE, DISPATCHER_REDIS_URL=by_proxy) as follow:
        assert follow.stderr is not None
        assert follow.stdout is not None
        away, back = (follow.stderr.readline() for _ in range(2))
        end_one(stage, "d")
        line = json.loads(follow.stdout.readline())
        follow.send_signal(signal.SIGINT)
        assert ended(follow).code == 0
    assert away.startswith("dispatcher: warning: Redis did not answer: ")
    assert away.endswith("; this waits for the server, and then shows what has ended meanwhile\n")
    assert back == "dispatcher: the server is back\n"
    assert line["id"] == "d"


def test_followed_events_go_on_when_the_server_has_come_back_empty(
    redis: Database, proxy: DelayProxy, by_proxy: str
) -> None:
    stage = Stage(redis, policy_of("", "9/30m"))
    end_one(stage, "a")
    end_one(stage, "b")
    is_away = False

    def on_call(piece: bytes) -> None:
        nonlocal is_away
        is_away = is_away or b"XREAD" in piece
        if is_away:
            raise ConnectionAbortedError("the server is away")

    proxy.on_call = on_call
    with started("events", "--follow", "--json", **AS_STAGE, DISPATCHER_REDIS_URL=by_proxy) as follow:
        assert follow.stderr is not None
        assert follow.stdout is not None
        follow.stderr.readline()
        redis.flushdb()
        proxy.on_call = lambda _piece: None
        assert follow.stderr.readline() == (
            "dispatcher: the server is back, without what was shown last: what ends from now on is shown\n"
        )
        end_one(Stage(redis, policy_of("", "9/30m")), "c")
        line = json.loads(follow.stdout.readline())
        follow.send_signal(signal.SIGINT)
        assert ended(follow).code == 0
    assert line["id"] == "c"


def test_followed_events_end_where_the_server_has_come_back_and_refuses_the_login(own_server: RedisServer) -> None:
    with started("events", "--follow", DISPATCHER_REDIS_URL=own_server.url) as follow, own_server.client() as client:
        until(lambda: any(each["cmd"] == "xread" for each in client.client_list()), "the command to follow")
        client.config_set("requirepass", "other")
        client.client_kill_filter(_type="normal", skipme=True)
        result = ended(follow)
    assert result.code == 78
    assert result.err.endswith(
        "asks for a password, and DISPATCHER_REDIS_URL has none: "
        "write it before the host, as in redis://:PASSWORD@HOST, behind the user name where there is one\n"
    )


def end_one(stage: Stage, id_: str) -> None:
    stage.intake.enqueue([(id_, Event("d", "late", id=id_, channel=UNPACED))])
    stage.worker("bob").run()

"""Bad input, one table: what was given, what is said, how the command ends, and that nothing is lost by it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.embedded import EmbeddedServer
from dispatcher.server.keys import LAYOUT_VERSION, Keys
from dispatcher.stand_in import Page, StandIn, not_landed
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books, Snapshot
from tests.support.commands import Result, run
from tests.support.forked import SEEN_BY_ALL
from tests.support.processes import Command, until
from tests.support.raw_server import RawServer
from tests.support.servers import Database, RedisServer

NOBODY: Final = 65534
AS_NOBODY: Final = """
import os, pkgutil
from importlib import import_module
from pathlib import Path
import dispatcher, rq
for module in pkgutil.walk_packages(dispatcher.__path__, "dispatcher."):
    if module.name not in ("dispatcher.__main__", "dispatcher.testing.plugin"):
        import_module(module.name)  # what is imported late may lie where nobody but root may look
from dispatcher.cli import main
from dispatcher.settings.limits_file import load_limits
load_limits(Path("limits.yaml"))
if os.geteuid() == 0:
    os.setuid(65534)
main()
"""

KEYS, QUEUE = Keys("dispatcher"), QueueKeys("notifications")
BEFORE: Final = 3
"""Events that wait on the queue before anything bad is given."""

WAITING: Final = {"waiting": BEFORE}
SENT: Final = {"sent": BEFORE}


# What is given


@dataclass(frozen=True, slots=True)
class Told:
    """How it ended, everything that was said, and what became of the events."""

    code: int
    said: str
    left: Mapping[str, int]


class Place:
    """A server on whose queue events wait, a stand-in for Slack, and an empty folder."""

    def __init__(self, url: str, slack: StandIn, folder: Path, stream: Callable[[], Mapping[str, Told]]) -> None:
        self.url = url
        self.slack = slack
        self.folder = folder
        self.stream = stream
        self.redis: Database = connect(url)
        enqueue(self.redis)

    def run(self, *arguments: str, **env: str) -> Told:
        """Run a command that uses the server, unless ``env`` names another."""
        return self.told(run(*arguments, **{"DISPATCHER_REDIS_URL": self.url, "DISPATCHER_SINK": "console", **env}))

    def told(self, result: Result) -> Told:
        return Told(result.code, result.out + result.err, left(self.redis))


Given = Callable[[Place], Told]


def enqueue(redis: Database) -> None:
    Producer(redis).send_many({"category": "errors", "text": f"before {n}"} for n in range(BEFORE))


def left(redis: Database) -> dict[str, int]:
    """What became of everything that was enqueued; the books balance."""
    snapshot = Books(redis, KEYS, QUEUE).snapshot()
    assert snapshot.imbalances() == []
    return {name: count for name, count in figures(snapshot).items() if count}


def figures(snapshot: Snapshot) -> dict[str, int]:
    totals = snapshot.overall()
    return {
        "waiting": snapshot.waiting,
        "parked": snapshot.parked,
        "in_flight": snapshot.in_flight,
        **{name: totals[name] for name in ("sent", "dropped", "dead", "duplicate")},
    }


def command(*arguments: str, **env: str) -> Given:
    """A command, and what is wrong in its arguments or its environment."""
    return lambda place: place.run(*arguments, **env)


def stored(key: str, value: str, *arguments: str) -> Given:
    """A command, and what it finds in Redis."""

    def given(place: Place) -> Told:
        place.redis.set(key, value)
        return place.run(*arguments)

    return given


def configured(config: Mapping[str, str], *arguments: str) -> Given:
    """A command, and how the server is configured while it runs."""

    def given(place: Place) -> Told:
        before = place.redis.config_get(*config)
        for name, value in config.items():
            place.redis.config_set(name, value)
        try:
            result = run(*arguments, DISPATCHER_REDIS_URL=place.url, DISPATCHER_SINK="console")
        finally:
            for name, value in before.items():
                place.redis.config_set(name, value)
        return place.told(result)

    return given


def limits(content: str) -> Given:
    """A worker, and the limits file it is to read."""

    def given(place: Place) -> Told:
        (place.folder / "limits.yaml").write_text(content, encoding="utf-8")
        return place.run("worker", "--burst", DISPATCHER_LIMITS_FILE="limits.yaml")

    return given


def fifo(place: Place) -> Told:
    """A limits file that nobody ever writes to."""
    os.mkfifo(place.folder / "limits.yaml")
    return place.run("limits", "check", "limits.yaml")


def doctor_of_a_file(place: Place) -> Told:
    """The doctor, and a file in place of the data directory."""
    path = place.folder / "data"
    path.touch()
    told = place.told(run("doctor", DISPATCHER_SINK="console", DISPATCHER_DATA_DIR=str(path)))
    assert "server.log" not in told.said
    return told


def in_database(number: int, *arguments: str) -> Given:
    """A command, and the database of the server that it is to use."""
    return lambda place: place.run(*arguments, DISPATCHER_REDIS_URL=f"{place.url.partition('?')[0]}?db={number}")


def password_where_none_is_set(place: Place) -> Told:
    with RedisServer() as server:
        return place.run("send", "errors", "x", DISPATCHER_REDIS_URL=server.url.replace("//", "//:s3same@"))


def web_server(*arguments: str) -> Given:
    """A command, and a web server at the URL."""

    def refuse(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    def given(place: Place) -> Told:
        with RawServer(refuse) as server:
            return place.run(*arguments, DISPATCHER_REDIS_URL=f"redis://:s3same@127.0.0.1:{server.port}/0")

    return given


def data_dir(name: str, prepare: Callable[[Path], None]) -> Given:
    """A worker on the embedded server, and the data directory it is to use."""

    def given(place: Place) -> Told:
        path = place.folder / name
        prepare(path)
        result = run("worker", "--burst", DISPATCHER_SINK="console", DISPATCHER_DATA_DIR=str(path))
        if result.code:
            return place.told(result)
        with embedded(path) as redis:
            return Told(result.code, result.out + result.err, left(redis))

    return given


@contextmanager
def embedded(path: Path) -> Iterator[Database]:
    with EmbeddedServer.join(path) as server, connect(server.url) as redis:
        yield redis


def used_and_left(path: Path) -> None:
    """A data directory with events, with the locks of a server that is gone and a socket nobody listens at."""
    path.mkdir(parents=True)
    with embedded(path) as redis:
        enqueue(redis)
    assert (path / "server.lock").exists()
    (path / "server.sock").touch()


def long_ago(path: Path) -> None:
    """A data directory whose socket would have a path of 200 characters, with events."""
    assert len(str(path / "server.sock")) > 200
    path.mkdir(parents=True)
    with embedded(path) as redis:
        enqueue(redis)


def read_only(_place: Place) -> Told:
    """A worker on the embedded server whose data directory, with events, cannot be written any more."""
    with TemporaryDirectory(prefix="dsp-") as name:  # tmp_path is closed to the user a worker of root's becomes
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "limits.yaml").touch()
        used_and_left(folder / "data")
        files = [folder / "data", *(folder / "data").rglob("*")]
        owner = NOBODY if os.geteuid() == 0 else os.geteuid()  # nothing is read-only to root
        for file in files:
            os.chown(file, owner, -1)
        (folder / "data").chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, "worker", "--burst"],
            env={
                **SEEN_BY_ALL,
                "DISPATCHER_SINK": "console",
                "DISPATCHER_DATA_DIR": "data",
                "DISPATCHER_LIMITS_FILE": "limits.yaml",
            },
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        (folder / "data").chmod(0o700)
        for file in files:
            os.chown(file, os.geteuid(), -1)
        with embedded(folder / "data") as redis:
            return Told(done.returncode, done.stdout + done.stderr, left(redis))


def folder_as_env_file(place: Place) -> Told:
    (place.folder / ".env").mkdir()
    return place.run("send", "errors", "x")


def binary_job(place: Place) -> Told:
    """A worker that finds a job whose data is no text."""
    put(place.redis, "binary", b"\x00\xd8\xff")
    told = place.run("worker", "--burst")
    (letter,) = place.redis.xrange(KEYS.dead)
    assert b"\x00\xd8\xff" in letter[1][b"payload"]
    return told


def html_first(place: Place) -> Told:
    place.slack.faults.add(not_landed(Page(200, "<html>\x1b[2Jlog in to the proxy</html>")))
    told = place.run("worker", "--burst", **posting(place))
    assert len(place.slack.ledger) == BEFORE
    return told


def revoked_webhook(place: Place) -> Told:
    """A worker whose webhook was revoked is stopped; the next one has the new webhook."""
    env = {"DISPATCHER_REDIS_URL": place.url, "DISPATCHER_SLACK_WEBHOOK_URL": f"{place.slack.webhook_url}revoked"}
    with Command("worker", env=env, cwd=place.folder) as worker:
        worker.await_line("slack.paused")
        until(lambda: left(place.redis) == {"parked": BEFORE}, "what waits for a webhook that is valid")
        worker.signal(signal.SIGTERM)
        code, said = worker.wait(), worker.stderr()
    place.redis.hset(KEYS.pause, "probe", 1)  # the minute until the next event tries has passed
    assert place.run("worker", "--burst", **posting(place)).code == 0
    assert len(place.slack.ledger) == BEFORE
    return Told(code, said, left(place.redis))


def posting(place: Place) -> dict[str, str]:
    webhook = place.slack.webhook_url
    return {"DISPATCHER_SINK": "slack", "DISPATCHER_SLACK_WEBHOOK_URL": webhook, "DISPATCHER_RECONCILE_GRACE": "0"}


# Events: all in one stream, good ones between them


def event(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a producer might write
    return {"category": "errors", "text": "x", **fields}


EVENTS: Final[Mapping[str, bytes | dict[str, Any]]] = {
    "1 MB": event(text="x" * 1_000_000),
    "more than a line may have": b'{"category": "errors", "text": "' + b"x" * 2_000_000 + b'"}',
    "60,000 characters": event(text="x" * 60_000),
    "51 blocks": event(blocks=[{"type": "divider"}] * 51),
    "empty text": event(text=" "),
    "control characters": event(text="wiped\x1b[2J\x07 out"),
    "Rich markup": event(text="[bold red]loud[/] [link=x]"),
    "right-to-left marks": event(text="open \u202egpj.exe\u202c \u200fnow"),
    "a right-to-left id": event(id="a\u202eb"),
    "a 300-character id": event(id="i" * 300),
    "an unknown category": event(category="elsewhere"),
    "priority urgent": event(priority="urgent"),
    "no JSON": b"{not json",
    "not UTF-8": b'{"category": "errors", "text": "\xff"}',
    "a list": b"[1, 2]",
}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Mapping[str, Told]]:
    """What became of each of ``EVENTS``, sent by one ``send --stdin`` and taken by one worker.

    Those that ``send`` refuses are put on the queue past it, as any RQ client may.
    """
    done: dict[str, Told] = {}

    def once() -> Mapping[str, Told]:
        if not done:
            with RedisServer() as server:
                done.update(streamed(server.url, tmp_path_factory.mktemp("stream")))
        return done

    return once


def streamed(url: str, folder: Path) -> dict[str, Told]:
    file = folder / "limits.yaml"
    file.write_text("global: {limits: []}\ncategories: {errors: {limits: []}}\nunknown_categories: reject\n")
    file.write_text(file.read_text() + "channels: {default: {pace: none}}\n")
    env = {"DISPATCHER_REDIS_URL": url, "DISPATCHER_LIMITS_FILE": str(file), "DISPATCHER_SINK": "console"}
    lines = [written(each) for pair in EVENTS.items() for each in (pair[1], event(id=f"good-{pair[0]}"))]
    sent = run("send", "--stdin", stdin=b"\n".join(lines), **env)
    refusals = dict(line.removeprefix("dispatcher: ").split(": ", 1) for line in sent.err.splitlines()[1:])
    refused = [refusals.get(f"line {2 * n + 1}") for n in range(len(EVENTS))]
    accepted = iter([line for line in sent.out.splitlines() if not line.startswith("good-")])
    with connect(url) as redis:
        ids = [put(redis, f"raw-{n}", each) if refused[n] else next(accepted) for n, each in enumerate(EVENTS.values())]
        worked = run("worker", "--burst", **env)
        assert (sent.code, worked.code) == (1, 0)
        assert (
            left(redis)["sent"] == len(EVENTS) + sum(not each for each in refused) - 1
        )  # all but the unknown category
    assert all(char.isprintable() or char == "\n" for char in sent.out + sent.err + worked.out + worked.err)
    ends = {line["event_id"]: line for line in map(json.loads, worked.err.splitlines()) if "outcome" in line}
    assert {f"good-{name}" for name in EVENTS} <= ends.keys()
    assert {ends[f"good-{name}"]["outcome"] for name in EVENTS} == {"sent"}
    return {
        name: Told(
            1 if refusal else 0,
            f"{refusal or ''}\n{ends[id_].get('reason')}: {ends[id_].get('detail', '')}\n{worked.out}",
            {"refused": int(bool(refusal)), ends[id_]["outcome"]: 1},
        )
        for name, refusal, id_ in zip(EVENTS, refused, ids, strict=True)
    }


def written(content: bytes | dict[str, Any]) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def put(redis: Database, job_id: str, content: bytes | dict[str, Any]) -> str:
    """On the queue as a stock RQ client would put it."""
    data = b'["dispatcher.jobs.dispatch", null, [' + written(content) + b"], {}]"
    redis.hset(QUEUE.job(job_id), mapping={"data": data, "status": "queued"})
    redis.rpush(QUEUE.lanes[1], job_id)
    return job_id


def line(name: str) -> Given:
    """One of ``EVENTS``."""
    return lambda place: place.stream()[name]


# The table


@dataclass(frozen=True, slots=True)
class Row:
    """What was given; how the command ends; what it says, all of it; what became of the events."""

    name: str
    given: Given
    code: int
    said: tuple[str, ...]
    left: Mapping[str, int] = field(default_factory=lambda: WAITING)


REFUSED: Final = {"refused": 1, "dead": 1}
"""``send`` refuses it; put on the queue past ``send``, it becomes a dead letter."""

ACCEPTED: Final = {"refused": 0, "sent": 1}
LONG: Final = "/".join(["d" * 60] * 3)

ROWS: Final = (
    # The server
    Row(
        "a URL of something else",
        command("worker", DISPATCHER_REDIS_URL="http://app:s3same@db/0"),
        78,
        ("DISPATCHER_REDIS_URL is 'http://app:***@db/0', expected redis://HOST:PORT/DB",),
    ),
    Row(
        "nobody at the URL",
        command("send", "errors", "x", DISPATCHER_REDIS_URL="unix:///nowhere/s"),
        69,
        ("unix:///nowhere/s cannot be reached: Redis did not answer",),
    ),
    Row(
        "a host that does not exist",
        command("send", "errors", "x", DISPATCHER_REDIS_URL="redis://nowhere.invalid/0"),
        69,
        ("redis://nowhere.invalid/0 cannot be reached: Redis did not answer",),
    ),
    Row(
        "a password where none is asked",
        password_where_none_is_set,
        78,
        ("the server at /", "has no password set, and DISPATCHER_REDIS_URL has one: take it out"),
    ),
    Row(
        "a user that is not known",
        lambda place: place.run("send", "errors", "x", DISPATCHER_REDIS_URL=place.url.replace("//", "//app:s3same@")),
        78,
        ("the server at /", "refuses the user name or password in DISPATCHER_REDIS_URL: correct them"),
    ),
    *(
        Row(
            f"a database that the server has not, {arguments[0]}",
            in_database(99, *arguments),
            78,
            ("the server at /", "has no database 99: in DISPATCHER_REDIS_URL, name one that it has, such as 0"),
        )
        for arguments in (("worker", "--burst"), ("send", "errors", "x"), ("status",))
    ),
    *(
        Row(
            f"a web server at the URL, {arguments[0]}",
            web_server(*arguments),
            78,
            ("what answers at 127.0.0.1:", " is no Redis: set DISPATCHER_REDIS_URL to the host and port"),
        )
        for arguments in (("worker", "--burst"), ("send", "errors", "x"))
    ),
    Row(
        "a socket path of 200 characters in the URL",
        command("send", "errors", "x", DISPATCHER_REDIS_URL=f"unix:///{'s' * 200}"),
        69,
        ("cannot be reached", "path too long"),
    ),
    Row(
        "another namespace on the queue",
        stored(QUEUE.binding, "shop", "worker", "--burst"),
        78,
        ("queue 'notifications' belongs to namespace 'shop', not to 'dispatcher'", "set DISPATCHER_NAMESPACE to it"),
    ),
    Row(
        "a key of ours that another program uses",
        stored(KEYS.seen, "mine", "send", "errors", "x", "--id", "a"),
        78,
        ("a key of the dispatcher holds another type of data (WRONGTYPE)", "set DISPATCHER_NAMESPACE"),
    ),
    *(
        Row(
            f"another layout version, {arguments[0]}",
            stored(KEYS.layout, "999", *arguments),
            78,
            (f"holds key layout '999', this version reads layout '{LAYOUT_VERSION}'", "drain the namespace"),
        )
        for arguments in (("worker", "--burst"), ("send", "errors", "x"), ("status",), ("dead", "list"))
    ),
    Row(
        "a server with eviction on",
        configured({"maxmemory": "500mb", "maxmemory-policy": "allkeys-lru"}, "worker", "--burst"),
        78,
        ("has maxmemory-policy 'allkeys-lru'", "CONFIG SET maxmemory-policy noeviction"),
    ),
    Row(
        "a full server",
        configured({"maxmemory": "1kb"}, "send", "errors", "x"),
        69,
        ("Redis is full (maxmemory) and refuses to write: command not allowed when used memory > 'maxmemory'\n",),
    ),
    # The settings
    Row("a folder as .env", folder_as_env_file, 78, (".env is a folder, expected a file of lines NAME=value",)),
    Row(
        "a token that is none of a bot's",
        command("send", "errors", "x", DISPATCHER_SLACK_TOKEN="hunter-s3same"),
        0,
        ("DISPATCHER_SLACK_TOKEN is ***, expected a bot token, which begins with xoxb-",),
        {"waiting": BEFORE + 1},
    ),
    # The data directory
    Row(
        "a data directory that is none, for the doctor",
        doctor_of_a_file,
        78,
        ("data is not a directory", "set DISPATCHER_DATA_DIR to a folder that this user can write"),
    ),
    Row(
        "a data directory that is none",
        data_dir("data", Path.touch),
        78,
        ("data is not a directory", "DISPATCHER_DATA_DIR"),
    ),
    Row(
        "a read-only data directory",
        read_only,
        78,
        ("data directory data cannot be used: Permission denied", "set DISPATCHER_DATA_DIR to a directory"),
    ),
    Row("a stale lock", data_dir("data", used_and_left), 0, ("before 0", "before 2"), SENT),
    Row("a socket path of 200 characters", data_dir(LONG, long_ago), 0, ("before 0", "before 2"), SENT),
    # The limits file
    Row(
        "duplicate keys",
        limits("global: {limits: [1/1m]}\nglobal: {limits: [9/1m]}\n"),
        78,
        ("limits.yaml:2:1: global: stands twice, first in line 1; expected each key once",),
    ),
    Row("a FIFO", fifo, 78, ("limits.yaml: not a regular file, expected a limits file",)),
    Row("no limits file", command("worker", DISPATCHER_LIMITS_FILE="none.yaml"), 78, ("none.yaml",)),
    # Events, from a stream and past it
    Row("1 MB", line("1 MB"), 1, (" bytes as JSON, expected at most 262144", "invalid: "), REFUSED),
    Row(
        "more than a line may have",
        line("more than a line may have"),
        1,
        ("longer than 1048576 bytes, expected an event of at most 262144", "invalid: "),
        REFUSED,
    ),
    Row("60,000 characters", line("60,000 characters"), 0, ("x… [cut]\n",), ACCEPTED),
    Row("51 blocks", line("51 blocks"), 1, ("blocks is a list of 51, expected a list of at most 50",), REFUSED),
    Row("empty text", line("empty text"), 1, ("text is empty, expected some text, or blocks", "invalid: "), REFUSED),
    Row("control characters", line("control characters"), 0, ("  wiped[2J out\n",), ACCEPTED),
    Row("Rich markup", line("Rich markup"), 0, ("  [bold red]loud[/] [link=x]\n",), ACCEPTED),
    Row("right-to-left marks", line("right-to-left marks"), 0, (r"  open \u202egpj.exe\u202c \u200fnow",), ACCEPTED),
    Row(
        "a right-to-left id",
        line("a right-to-left id"),
        1,
        (r"id is 'a\u202eb', expected 1 to 128 printable characters",),
        REFUSED,
    ),
    Row(
        "a 300-character id",
        line("a 300-character id"),
        1,
        ("id is 'iii", "(300 characters), expected 1 to 128"),
        REFUSED,
    ),
    Row(
        "an unknown category that is rejected",
        line("an unknown category"),
        0,
        ("rejected: ", "elsewhere"),
        {"refused": 0, "dead": 1},
    ),
    Row(
        "priority urgent", line("priority urgent"), 1, ("priority is 'urgent', expected high, normal or low",), REFUSED
    ),
    Row("no JSON", line("no JSON"), 1, ("not JSON at character 2", "expected a JSON object", "invalid: "), REFUSED),
    Row("not UTF-8 as an event", line("not UTF-8"), 1, ("not UTF-8 at byte 33", "invalid: "), REFUSED),
    Row("a list as an event", line("a list"), 1, ("event is [1, 2], expected a JSON object", "invalid: "), REFUSED),
    Row("a job of bytes", binary_job, 0, ("job data is not UTF-8, expected JSON",), {**SENT, "dead": 1}),
    # Events, from arguments
    Row(
        "priority urgent as an option",
        command("send", "errors", "x", "--priority", "urgent"),
        2,
        ("'urgent' is not one of 'high', 'normal', 'low'",),
    ),
    Row("a 300-character id as an option", command("send", "errors", "x", "--id", "i" * 300), 2, ("id is 'iii",)),
    Row(
        "an argument that would reorder the line",
        command("send", "errors", "x", "\u202eevil\x1b[2J"),
        2,
        (r"unexpected extra argument (\u202eevil)",),
    ),
    # Slack
    Row("Slack answering HTML", html_first, 0, ("unreadable_reply",), SENT),
    Row(
        "a webhook that was revoked",
        revoked_webhook,
        0,
        (
            "no_service",
            "put a new incoming webhook in DISPATCHER_SLACK_WEBHOOK_URL and restart, or in its file and send SIGHUP",
        ),
        SENT,
    ),
)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_bad_input_is_told_and_loses_nothing(
    row: Row, redis_url: str, slack: StandIn, tmp_path: Path, stream: Callable[[], Mapping[str, Told]]
) -> None:
    place = Place(redis_url, slack, tmp_path, stream)
    told = row.given(place)
    assert [words for words in row.said if words not in told.said] == [], told.said[:2000]
    assert (told.code, told.left) == (row.code, row.left)
    assert "Traceback" not in told.said
    assert "s3same" not in told.said
    assert all(char.isprintable() or char == "\n" for char in told.said)

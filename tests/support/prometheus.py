"""Prometheus and Alertmanager, of Debian's packages of these names, as processes of a test on loopback."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which
from typing import Any, Self

import httpx
from ruamel.yaml import YAML

from tests.support.processes import PATIENCE_S, until
from tests.support.servers import free_port


@contextmanager
def prometheus(
    folder: Path, targets: Iterable[int], rules: Path, alertmanagers: Iterable[int] = ()
) -> Iterator[httpx.Client]:
    """A client of one that scrapes twice a second, once it has begun.

    ``targets`` and ``alertmanagers`` are ports.
    """

    def static(ports: Iterable[int]) -> list[dict[str, list[str]]]:
        return [{"targets": [f"127.0.0.1:{port}" for port in ports]}]

    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "200ms"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "dispatcher", "static_configs": static(targets)}],
        "alerting": {"alertmanagers": [{"static_configs": static(alertmanagers)}]},
    }
    with (
        _program("prometheus", folder, config, f"--storage.tsdb.path={folder / 'prometheus'}") as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client,
    ):
        until(lambda: _is_ready(client), "Prometheus to be ready")
        yield client


@contextmanager
def alertmanager(folder: Path, url: str, repeat_interval: str, cluster_port: int = 0, peer: int = 0) -> Iterator[int]:
    """The port of one that posts to ``url``, some tenths of a second after alerts came or changed.

    Its token is in the file ``alertmanager-token`` of the folder. With a ``cluster_port`` it talks to the one whose
    cluster port is ``peer``.
    """
    route = {"group_by": ["alertname"], "group_wait": "100ms", "group_interval": "300ms"}
    token = {"credentials_file": str(folder / "alertmanager-token")}
    config = {
        "route": {"receiver": "disks", "repeat_interval": repeat_interval, **route},
        "receivers": [{"name": "disks", "webhook_configs": [{"url": url, "http_config": {"authorization": token}}]}],
    }
    cluster = [
        f"--cluster.listen-address=127.0.0.1:{cluster_port}",
        f"--cluster.peer=127.0.0.1:{peer}",
        "--cluster.peer-timeout=100ms",  # the second one posts as well if it has not heard by then that the first did
        "--cluster.gossip-interval=20ms",
        "--cluster.pushpull-interval=1s",
    ]
    storage = f"--storage.path={folder / f'alertmanager-{cluster_port}'}"
    alone = ["--cluster.listen-address="]
    with _program("prometheus-alertmanager", folder, config, storage, *(cluster if peer else alone)) as port:
        yield port


def await_cluster(*ports: int) -> None:
    """Return when Alertmanagers know each other."""

    def is_whole() -> bool:
        found = [_asked(f"http://127.0.0.1:{port}/api/v2/status") for port in ports]
        clusters = [each["cluster"] for each in found if each is not None]
        return [(each["status"], len(each["peers"])) for each in clusters] == [("ready", len(ports))] * len(ports)

    until(is_whole, "the Alertmanagers to know each other")


class Disks:
    """An exporter: how full disks are. A context manager."""

    def __init__(self) -> None:
        self.used: Mapping[str, float] = {}
        disks = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                lines = "".join(f'disk_used_ratio{{host="{host}"}} {used}\n' for host, used in disks.used.items())
                respond(self, 200, lines.encode(), "text/plain; version=0.0.4")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def port(self) -> int:
        return self._server.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def respond(request: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = "application/json") -> None:
    """Answer a request."""
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


@contextmanager
def _program(name: str, folder: Path, config: Mapping[str, Any], *arguments: str) -> Iterator[int]:
    """The port of a program that runs with this configuration; it is stopped at the end."""
    port = free_port()
    file = folder / f"{name}-{port}.yml"
    with file.open("w", encoding="utf-8") as writing:
        YAML().dump(config, writing)
    address = f"127.0.0.1:{port}"
    command = [str(which(name)), f"--config.file={file}", f"--web.listen-address={address}", "--log.level=warn"]
    with (folder / f"{name}-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.external-url=http://{address}", *arguments], cwd=folder, stdout=log, stderr=log
        )
        try:
            yield port
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def _asked(url: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(httpx.get(url, timeout=PATIENCE_S).content)
    except httpx.TransportError:
        return None

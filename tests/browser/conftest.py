"""Chromium, and a page in it that tells of everything that goes wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.servers import RedisServer
from tests.support.serving import TOKENS, Serving

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--no-sandbox",  # as root, in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LIMITS: Final = """\
global: {limits: [300/30m]}
defaults: {limits: [1/1d], on_limit: defer, channel: "#all"}
categories:
  errors: {limits: [10/30m]}
  storm: {limits: [10/30m], on_limit: drop}
"""

OLGA: Final = "secret-of-olga"

Open = Callable[..., Any]
"""A new page of the browser, with options of its context."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    try:
        api = import_module("playwright.sync_api")
    except ImportError:
        pytest.fail("playwright is not installed: run these tests with 'make test-browser'")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.fail(f"none of {', '.join(PROGRAMS)} is on PATH: install Debian's package chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def desk(shared_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    cwd: Path = tmp_path_factory.mktemp("browser")
    (cwd / "tokens").write_text(TOKENS, encoding="utf-8")
    (cwd / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    with Serving(shared_server.url, cwd, "--tokens", "tokens", DISPATCHER_LIMITS_FILE="limits.yaml") as serving:
        yield serving


@pytest.fixture
def wrong() -> Iterator[list[str]]:
    """What pages have said on the console, errors of scripts, and requests to elsewhere; none at the end."""
    told: list[str] = []
    yield told
    assert told == []


@pytest.fixture
def open_page(chromium: Any, desk: Serving, redis_url: str, wrong: list[str]) -> Iterator[Open]:  # noqa: ANN401 - playwright's
    """Opens pages as an operator does, on an empty database."""
    del redis_url
    contexts: list[Any] = []

    def listen(page: Any) -> Any:  # noqa: ANN401 - as above
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", asked)
        page.on("request", requested)
        return page

    def asked(dialog: Any) -> None:  # noqa: ANN401 - as above
        wrong.append(dialog.message)
        dialog.dismiss()

    def requested(request: Any) -> None:  # noqa: ANN401 - as above
        if not request.url.startswith(desk.url):
            wrong.append(request.url)

    def start(**options: Any) -> Any:  # noqa: ANN401 - as above
        credentials = {"username": "", "password": OLGA}
        context = chromium.new_context(base_url=desk.url, http_credentials=credentials, **options)
        contexts.append(context)
        return listen(context.new_page())

    yield start
    for context in contexts:
        context.close()

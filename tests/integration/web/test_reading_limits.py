"""Limits over HTTP: how large they may be, and that reading them holds up nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dispatcher.web.operating import MOST_LIMITS
from dispatcher.web.threads import Threads
from tests.support.scrapes import Scrape
from tests.support.serving import Serving

ALL_SCOPES = "olga read,operate,metrics secret-of-olga\n"
TOO_LARGE = "the body is over 65536 bytes; the command 'dispatcher limits apply' takes files of up to 1048576 bytes"
SLOW = b"categories:\n" + b"".join(b"  c%d: {}\n" % n for n in range(5_000)) + b"chanels: {}\n"
"""Takes a second or more to read, and has a fault at its end."""


@pytest.fixture
def operated(redis_url: str, tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "tokens").write_text(ALL_SCOPES, encoding="utf-8")
    with Serving(redis_url, tmp_path, "--tokens", "tokens") as serving:
        yield serving


def test_limits_over_64_kib_are_refused_and_the_answer_says_who_takes_larger_ones(operated: Serving) -> None:
    largest = b"global: {limits: [100/30m]}\n".ljust(MOST_LIMITS, b"#")
    assert MOST_LIMITS == 65_536
    with operated.client("secret-of-olga") as olga:
        for path in ("/v1/limits/check", "/v1/limits/apply"):
            assert olga.post(path, content=largest).status_code == 200
            for content in (largest + b"#", iter([largest, b"#"])):
                answer = olga.post(path, content=content)
                assert (answer.status_code, answer.json()["detail"]) == (413, TOO_LARGE)


def test_limits_with_faults_are_counted_where_they_were_to_be_in_force(operated: Serving) -> None:
    with operated.client("secret-of-olga") as olga:
        for path in ("/v1/limits/check", "/v1/limits/apply"):
            assert olga.post(path, content=b"chanels: {}\n").status_code == 422
        assert Scrape.of(olga.get("/metrics").text).value("limits_refused_total") == 1


def test_while_limits_are_read_everything_else_is_answered(operated: Serving) -> None:
    assert len(SLOW) < MOST_LIMITS
    with ThreadPoolExecutor(8) as others, operated.client("secret-of-olga") as olga:
        posts = [others.submit(olga.post, f"/v1/limits/{name}", content=SLOW) for name in ("check", "apply") * 4]
        while not any(post.done() for post in posts):
            answers = [olga.get(each) for each in ("/v1/status", "/metrics", "/")]
            assert [answer.status_code for answer in answers] == [200, 200, 200]
            assert olga.post("/v1/hooks/none", content=b"{}").status_code == 404
        assert {post.result().status_code for post in posts} <= {422, 503}


def test_one_is_read_at_a_time_and_what_waits_for_its_turn_too_long_is_never_read() -> None:
    begun, goes_on, read = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        goes_on.wait()
        read.append("first")

    async def ask(threads: Threads) -> None:
        one = asyncio.create_task(threads.read(first))
        await threads.run(begun.wait)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await threads.read(lambda: read.append("late"))
        goes_on.set()
        await threads.read(lambda: read.append("next"))
        await one

    with Threads() as threads:
        asyncio.run(ask(threads))
    assert read == ["first", "next"]

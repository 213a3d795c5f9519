"""``dispatcher slack-stand-in``."""

from __future__ import annotations

import json
import signal
import subprocess
from urllib.request import Request, urlopen

import pytest

from tests.support.commands import PYTHON_DISPATCHER, ended, environment, run, started
from tests.support.processes import PATIENCE_S, until
from tests.support.screens import Screen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_it_says_how_to_reach_it_and_ends_with_0(number: signal.Signals) -> None:
    with started("slack-stand-in", "--port", "0") as process:
        assert process.stdout is not None
        head = [process.stdout.readline() for _ in range(5)]
        page = head[0].split()[2]
        settings = dict(line.strip().split("=", 1) for line in head if "DISPATCHER_" in line)
        assert settings["DISPATCHER_SLACK_BASE_URL"] == f"{page}api/"
        post = Request(  # noqa: S310 - the address that the command printed
            settings["DISPATCHER_SLACK_BASE_URL"] + "chat.postMessage",
            json.dumps({"channel": "#ops", "text": "it works"}).encode(),
            {
                "Content-Type": "application/json; charset=utf-8",
                "Authorization": f"Bearer {settings['DISPATCHER_SLACK_TOKEN']}",
            },
        )
        with urlopen(post, timeout=10) as answer:  # noqa: S310 - as above
            assert json.load(answer)["ok"] is True
        with urlopen(page, timeout=10) as answer:  # noqa: S310 - as above
            assert b"it works" in answer.read()
        taken = run("slack-stand-in", "--port", page.rstrip("/").rpartition(":")[2])
        process.send_signal(number)
        result = ended(process)
    assert (result.code, result.err) == (0, "dispatcher: ended; 1 message was posted\n")
    assert taken.code == 78
    assert "cannot be used" in taken.err


def test_what_it_says_breaks_between_words_on_a_terminal() -> None:
    with Screen(columns=80) as screen:
        process = subprocess.Popen(
            [*PYTHON_DISPATCHER, "slack-stand-in", "--port", "0"], stdout=screen.stream, env=environment({})
        )
        try:
            until(lambda: "Ctrl-C ends it." in screen.text(), "what it says")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
    assert max(map(len, screen.text().splitlines())) <= 80

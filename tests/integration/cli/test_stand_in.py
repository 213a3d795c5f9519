"""``dispatcher slack-stand-in``."""

from __future__ import annotations

import http.client
import json
import re
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from dispatcher.stand_in import EVERY_ROW, Chance, Setup
from dispatcher.stand_in.faults import POST
from tests.support.commands import Streams, ended, run, started, started_on
from tests.support.processes import PATIENCE_S, until
from tests.support.screens import Screen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_the_stand_in_prints_its_address_and_exits_with_0(number: signal.Signals) -> None:
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
    assert "; --port takes another one, --port 0 a free one\n" in taken.err
    assert (f"; process {process.pid} (" in taken.err) == Path("/proc/net/tcp").exists()


def test_the_printed_text_breaks_between_words_on_a_terminal() -> None:
    with (
        Screen(columns=80) as screen,
        started_on(Streams(stdout=screen.stream), "slack-stand-in", "--port", "0") as process,
    ):
        until(lambda: "Ctrl-C ends it." in screen.text(), "what it says")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    assert max(map(len, screen.text().splitlines())) <= 80


def asked(url: str, method: str, **arguments: str) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of one call, whatever they are."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {Setup().token}"}
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=10)
    with closing(connection):
        connection.request("POST", f"/api/{method}", json.dumps(arguments), headers)
        answer = connection.getresponse()
        body = answer.read()
    return answer.status, json.loads(body) if body.startswith(b"{") else {}


@contextmanager
def running(*options: str) -> Iterator[tuple[str, list[str]]]:
    """The address of a stand-in with these options, and what it says of its modes."""
    with started("slack-stand-in", "--port", "0", *options) as process:
        out = process.stdout
        assert out is not None
        lines = list(iter(lambda: str(out.readline()), "Ctrl-C ends it.\n"))
        yield lines[0].split()[2], [line.strip() for line in lines[4:]]


@pytest.mark.parametrize(("rate", "at_once"), [("strict", 1), ("realistic", 25), ("none", 100)])
def test_rates_are_chosen_by_name(rate: str, at_once: int) -> None:
    with running("--rate", rate) as (url, modes):
        statuses = [asked(url, "chat.postMessage", channel="#ops", text="hi")[0] for _ in range(100)]
    assert modes == []
    assert statuses[:at_once] == [200] * at_once
    assert (429 in statuses) is (at_once < 100)


def test_all_modes_are_said_and_in_force() -> None:
    options = ["--fault-rate", "1", "--faults", "every", "--seed", "7", "--down", "500-600", "--down", "700-701.5"]
    scopes = ["--scopes", "chat:write, channels:history"]
    with running(*options, "--history-lag", "2.5", "--history-items", "15", *scopes) as (url, modes):
        assert modes == [
            "100% of posts, history calls and edits go wrong; --seed 7 repeats the same faults.",
            "It is down from 500 s to 600 s after now.",
            "It is down from 700 s to 701.5 s after now.",
            "Messages show up in the history after 2.5 s.",
            "A history call returns 15 messages, and there is one a minute.",
        ]
        expected = Chance(7, 1.0, EVERY_ROW).draw(POST)
        with suppress(OSError, http.client.HTTPException, ValueError):  # the fault's doing
            asked(url, "chat.postMessage", channel="#ops", text="hi")
        with urlopen(f"{url}ledger", timeout=10) as answer:  # noqa: S310 - the address that the command printed
            assert json.load(answer)["faults"] == {str(expected): 1}
        with urlopen(Request(f"{url}api/auth.test", headers={"Authorization": f"Bearer {Setup().token}"})) as answer:  # noqa: S310 - as above
            assert answer.headers["x-oauth-scopes"] == "chat:write,channels:history"


def test_readings_lag_behind_and_are_rare() -> None:
    with running("--history-lag", "500", "--history-items", "15") as (url, _):
        posted = asked(url, "chat.postMessage", channel="#ops", text="hi")[1]
        status, body = asked(url, "conversations.history", channel=posted["channel"])
        assert (status, body["messages"]) == (200, [])
        assert asked(url, "conversations.history", channel=posted["channel"])[0] == 429


def test_the_stand_in_refuses_connections_while_it_is_down() -> None:
    with running("--down", "0-500") as (url, _), pytest.raises(ConnectionRefusedError):
        asked(url, "auth.test")


def test_a_seed_is_chosen_and_told() -> None:
    with running("--fault-rate", "0.004") as (_, modes):
        assert re.fullmatch(
            r"0\.4% of posts, history calls and edits go wrong; --seed \d+ repeats the same faults\.", modes[0]
        )


@pytest.mark.parametrize("options", [["--faults", "every"], ["--seed", "7"]], ids=str)
def test_what_has_no_effect_without_a_share_of_faults_is_said(options: list[str]) -> None:
    with running(*options) as (_, modes):
        assert modes == ["Nothing goes wrong by chance: --faults and --seed have no effect without --fault-rate."]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rate", "fast"], "'fast' is not one of 'realistic', 'strict', 'none'"),
        (["--fault-rate", "20"], "20.0 is not in the range 0<=x<=1"),
        (["--down", "60-30"], "'60-30' is no span, expected two instants in seconds such as 30-60."),
        (["--down", "soon"], "'soon' is no span"),
        (["--history-items", "0"], "0 is not in the range 1<=x<=999"),
        (["--history-lag", "-1"], "-1.0 is not in the range x>=0"),
        (["--history-lag", "nan"], "nan is not a finite number"),
        (["--fault-rate", "nan"], "nan is not a finite number"),
        (["--seed", "x"], "'x' is not a valid integer"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_invalid_value_is_refused_with_the_name_of_its_option(options: list[str], said: str) -> None:
    result = run("slack-stand-in", *options)
    assert result.code == 2
    assert said in result.err
    assert options[0] in result.err


def test_the_help_names_every_option_in_sentences() -> None:
    said = run("slack-stand-in", "--help").out
    for option in ("port", "rate", "fault-rate", "faults", "seed", "down", "history-lag", "history-items", "scopes"):
        assert f"--{option} " in said

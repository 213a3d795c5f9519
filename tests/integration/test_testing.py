"""``dispatcher.testing``, as another project's tests use it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import dispatcher.testing
from dispatcher import AsyncProducer, Event, Producer
from dispatcher.stand_in import StandIn
from dispatcher.testing import AsyncFakeProducer, FakeProducer, Setup, SlackError, SlackStandIn, not_landed
from tests.support.slack import MESSAGE, post, token_sink

HEAVY = {"redis", "rq", "slack_sdk", "pydantic", "structlog", "click", "http.server", "dispatcher.slack", "sqlite3"}


def test_every_name_is_there_and_no_other() -> None:
    for name in dispatcher.testing.__all__:
        assert getattr(dispatcher.testing, name) is not None
    assert SlackStandIn is StandIn
    with pytest.raises(AttributeError, match=r"^module 'dispatcher\.testing' has no attribute 'Nobody'$"):
        dispatcher.testing.Nobody  # noqa: B018 - what is tested


def test_the_plugin_costs_those_nothing_who_do_not_use_it() -> None:
    program = (
        "import sys, pytest\nbefore = set(sys.modules)\n"
        "import dispatcher.testing.plugin\nprint(*set(sys.modules) - before)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "dispatcher.testing.plugin" in said
    assert HEAVY.isdisjoint(said)


def test_the_command_line_does_not_load_it() -> None:
    program = (
        "import sys\nfrom dispatcher.cli.commands import dispatcher\n"
        "dispatcher.main(['slack-stand-in', '--help'], prog_name='dispatcher', standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "dispatcher.cli.stand_in" in said
    assert {"dispatcher.testing", "dispatcher.stand_in", "pytest"}.isdisjoint(said)


def test_the_fixture_is_told_to_pytest_by_the_installation() -> None:
    [found] = entry_points(group="pytest11", name="dispatcher")
    assert found.value == "dispatcher.testing.plugin"


THEIRS = """
import json
from urllib.request import Request, urlopen

import pytest
from dispatcher.testing import Setup, STRICT, SlackError, not_landed


def post(slack):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {slack.token}"}
    body = json.dumps({"channel": "#ops", "text": "hi"}).encode()
    with urlopen(Request(slack.base_url + "chat.postMessage", body, headers)) as answer:
        return json.load(answer)


@pytest.mark.parametrize("round", [1, 2])
def test_each_test_has_a_slack_of_its_own(slack_stand_in, round):
    assert post(slack_stand_in)["ok"]
    assert slack_stand_in.ledger.per_channel() == {"#ops": 1}
    slack_stand_in.faults.add(not_landed(SlackError("fatal_error")))
    assert post(slack_stand_in)["error"] == "fatal_error"


class TestStrict:
    @pytest.fixture
    def slack_stand_in_setup(self):
        return Setup(rate=STRICT, scopes=())

    def test_the_stand_in_can_be_set_up(self, slack_stand_in):
        assert post(slack_stand_in)["error"] == "missing_scope"
"""


def test_tests_of_another_project_get_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(THEIRS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:valkey", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout


def test_the_fixture_is_a_slack_to_post_to(slack_stand_in: SlackStandIn) -> None:
    assert slack_stand_in.environment == {
        "DISPATCHER_SLACK_BASE_URL": slack_stand_in.base_url,
        "DISPATCHER_SLACK_TOKEN": Setup().token,
    }
    token_sink(slack_stand_in).post(MESSAGE)
    slack_stand_in.faults.add(not_landed(SlackError("is_archived")))
    assert post(slack_stand_in)["error"] == "is_archived"
    assert len(slack_stand_in.ledger) == 1


def announce(producer: Producer) -> None:
    """Somebody's code, which is handed a producer."""
    producer.send("deploys", "shop is live", id="deploy-7", labels={"host": "web1"})


def test_a_fake_producer_keeps_what_was_sent() -> None:
    with FakeProducer() as producer:
        announce(producer)
        announce(producer)
        producer.send_many([{"category": "errors", "text": "disk full", "priority": "high"}])
    first, second = producer.events
    assert first == Event("deploys", "shop is live", id="deploy-7", labels={"host": "web1"})
    assert (second.category, second.priority, len(second.id or "")) == ("errors", "high", 36)
    assert producer.take() == [first, second]
    assert producer.take() == []
    assert producer.events == (first, second)


def test_an_event_is_kept_as_it_was_when_it_was_sent() -> None:
    producer = FakeProducer()
    labels = {"host": "web1"}
    producer.send("deploys", "x", labels=labels)
    labels["host"] = "web2"
    assert producer.events[0].labels == {"host": "web1"}


def test_clear_forgets_ids_too() -> None:
    producer = FakeProducer(max_waiting=1)
    announce(producer)
    producer.clear()
    assert producer.events == ()
    announce(producer)
    assert len(producer.events) == 1
    assert producer.take() == list(producer.events)


def test_away_may_end() -> None:
    producer = FakeProducer()
    producer.is_away = True
    with pytest.raises(dispatcher.QueueUnavailable, match="the fake producer was told so"):
        announce(producer)
    assert producer.is_away
    producer.is_away = False
    announce(producer)
    assert len(producer.events) == 1


def test_the_fake_for_asyncio_is_the_same() -> None:
    async def main() -> None:
        async with AsyncFakeProducer.from_env() as producer:
            await asyncio.gather(*[producer.send("errors", "x", id=f"e{n % 5}") for n in range(50)])
            assert sorted(event.id or "" for event in producer.events) == [f"e{n}" for n in range(5)]
            assert isinstance(producer, AsyncProducer)

    asyncio.run(main())


def test_a_fake_of_the_environment_needs_none() -> None:
    with FakeProducer.from_env() as producer:
        announce(producer)
        assert len(producer.events) == 1

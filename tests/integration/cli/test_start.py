"""The command line before it does anything: help, usage, what is not built yet."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from dispatcher.cli.commands import dispatcher
from dispatcher.cli.examples import EXAMPLES
from dispatcher.server.keys import Keys
from dispatcher.settings.limits_file import load_limits
from dispatcher.store.versions import Unless, Versions
from tests.support.commands import environment, run
from tests.support.extent import slow_except
from tests.support.servers import Database

PROBE = """
import json, sys, time
sys.argv = ["dispatcher", *sys.argv[1:]]
from dispatcher.cli import main
try:
    main()
except SystemExit as end:
    print(json.dumps({"code": end.code, "cpu_s": time.process_time(), "loaded": sorted(sys.modules)}))
"""

HEAVY = {"rq", "slack_sdk", "aiohttp", "pydantic", "pydantic_settings", "rich", "structlog", "jinja2", "ruamel"}


@pytest.mark.parametrize("arguments", [["--help"], ["send", "--help"], ["demo", "--help"]], ids=" ".join)
def test_help_is_quick_and_loads_no_library_it_does_not_need(arguments: list[str]) -> None:
    shown, probe = probed(*arguments)
    assert shown[0].startswith("Usage: dispatcher")
    assert probe["code"] == 0
    assert HEAVY.isdisjoint(probe["loaded"])
    assert "redis" not in probe["loaded"]
    assert probe["cpu_s"] < 0.3


def probed(*arguments: str, **env: str) -> tuple[list[str], dict[str, Any]]:
    """What a command prints, and its exit code, time and loaded modules at its end."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], env=environment(env), capture_output=True, text=True, check=True
    )
    *shown, facts = done.stdout.splitlines()
    return shown, json.loads(facts)


def test_the_help_names_what_there_is_and_nothing_else() -> None:
    listed = run("--help").out.partition("Commands:")[2]
    assert [line.split()[0] for line in listed.splitlines() if line.strip()] == [
        "audit",
        "dead",
        "demo",
        "doctor",
        "events",
        "explain",
        "health",
        "limits",
        "metrics",
        "mute",
        "parked",
        "pause",
        "resume",
        "send",
        "serve",
        "silence",
        "simulate",
        "slack-stand-in",
        "status",
        "unmute",
        "up",
        "worker",
    ]


@pytest.mark.parametrize(
    "group", [(), ("dead",), ("limits",), ("parked",), ("silence",)], ids=lambda group: " ".join(group) or "all"
)
def test_a_list_of_commands_says_of_each_a_whole_sentence(group: tuple[str, ...]) -> None:
    listed = run(*group, "--help", COLUMNS="80").out.partition("Commands:")[2].partition("Examples:")[0].rstrip()
    rows = [line for line in listed.splitlines() if line.strip()]
    assert [row for row in rows if not row.endswith(".") or row.endswith("...")] == []
    assert all(row.startswith("  ") and row[2] != " " for row in rows), "each in one line"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_help_ends_with_examples_that_can_be_typed(name: str) -> None:
    told = run(*name.split(), "--help", COLUMNS="200").out.partition("Examples:\n")[2]
    assert tuple(line.strip() for line in told.splitlines()) == EXAMPLES[name]
    assert max(map(len, told.splitlines())) <= 80, "a usual terminal would break it within a word"
    for example in EXAMPLES[name]:
        words = shlex.split(example.partition(" < ")[0].partition(" > ")[0].rpartition(" | ")[2])
        assert words[: 1 + len(name.split())] == ["dispatcher", *name.split()]
        parsed = parse(words[1:])
        assert parsed.info_name in words


def parse(words: list[str]) -> click.Context:
    """What click makes of the words of a command; raises where it does not understand one."""
    context = click.Context(dispatcher, info_name="dispatcher")
    while isinstance(context.command, click.Group):
        name, command, words = context.command.resolve_command(context, words)
        assert command is not None
        if not isinstance(command, click.Group):
            return command.make_context(name, words, parent=context)
        context = click.Context(command, info_name=name, parent=context)
    raise AssertionError("no command among the words")


def test_every_command_has_examples() -> None:
    listed = [line.split()[0] for line in run("--help").out.partition("Commands:")[2].splitlines() if line.strip()]
    assert set(listed) <= EXAMPLES.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sned", "a", "b"), "Did you mean 'send'?"),
        (("worker", "--processes", "0"), "'--processes'"),
        (("send", "errors"), "Missing argument 'TEXT', and stdin is empty"),
        (("send",), "Missing argument 'CATEGORY'"),
        (("send", "--stdin", "errors"), "leave out CATEGORY"),
        (("send", "errors", "x", "--label", "host"), "expected KEY=VALUE"),
        (("send", "errors", "x", "--max-age", "soon"), "for example 30m, or seconds"),
        (("send", "two words", "x"), "category is 'two words'"),
        (("send", "errors", " "), "text is empty"),
        *(
            (
                (*arguments, option, str(2**64)),
                f"Invalid value for '{option}': {2**64} is not in the range 1<=x<=1000000000",
            )
            for *arguments, option in (
                ("audit", "--limit"),
                ("events", "--limit"),
                ("dead", "list", "--limit"),
                ("dead", "replay", "--all", "--limit"),
                ("parked", "list", "--limit"),
                ("parked", "cancel", "--all", "--limit"),
                ("limits", "apply", "limits.yaml", "--if-version"),
            )
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_said_and_exits_with_2(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "Traceback" not in result.err


@pytest.mark.usefixtures("tmp_path")
@pytest.mark.parametrize("command", ["status", "send errors x", "worker", "up", "doctor", "limits check", "dead list"])
def test_a_misspelt_variable_is_told_together_with_the_faults(command: str) -> None:
    Path(".env").write_text("DISPATCHER_QUEU=x\nno assignment\n", encoding="utf-8")
    result = run(*command.split(), DISPATCHER_BATCH="many", DISPATCHER_SLAK_TOKEN="x")
    assert (result.code, result.out) == (78, "")
    *warnings, fault = result.err.splitlines()
    assert fault.startswith("dispatcher: error: DISPATCHER_BATCH is 'many'")
    assert len(warnings) == 3
    assert all(line.startswith("dispatcher: warning: ") for line in warnings)
    assert any("did you mean DISPATCHER_SLACK_TOKEN?" in line for line in warnings)


@pytest.mark.parametrize("command", ["worker", "up"])
def test_a_misspelt_variable_is_told_where_its_absence_ends_the_start(command: str) -> None:
    result = run(command, DISPATCHER_SLAK_TOKEN="x")
    assert result.code == 78
    warning, fault = result.err.splitlines()
    assert "did you mean DISPATCHER_SLACK_TOKEN?" in warning
    assert "no way to post" in fault


def test_every_fault_of_the_settings_is_said_at_once_and_no_secret() -> None:
    result = run(
        "status",
        DISPATCHER_REDIS_URL="http://user:sesame@db/0",
        DISPATCHER_BATCH="many",
        DISPATCHER_SLACK_TOKEN="xapp-sesame",
    )
    assert (result.code, result.out) == (78, "")
    assert len(result.err.splitlines()) == 3
    assert all(line.startswith("dispatcher: error: DISPATCHER_") for line in result.err.splitlines())
    assert "sesame" not in result.err


def _loaded(program: str, **env: str) -> set[str]:
    """The modules that a program has loaded at its end, but for those of a bare Python."""
    shown = "import sys; bare = set(sys.modules)\n" + program + "\nprint(*sorted(set(sys.modules) - bare))"
    done = subprocess.run(
        [sys.executable, "-c", shown], env=environment(env), capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def _of(package: str, loaded: set[str]) -> set[str]:
    return {name for name in loaded if name.partition(".")[0] == package}


FRONT = {"dispatcher", "dispatcher.errors"}


@pytest.mark.parametrize(
    ("program", "ours"),
    [
        ("import dispatcher", set()),
        ("import dispatcher.limiter", {"dispatcher.limiter"}),
        ("import dispatcher.producer", {"dispatcher.producer"}),
    ],
)
def test_a_public_package_loads_no_more_than_its_table_of_names(program: str, ours: set[str]) -> None:
    loaded = _loaded(program)
    assert _of("dispatcher", loaded) == FRONT | ours
    assert not {name for name in loaded if "." not in name} & {*HEAVY, "redis", "orjson", "click", "asyncio"}


def test_the_limiter_loads_of_other_packages_redis_and_orjson_alone() -> None:
    loaded = _loaded("from dispatcher.limiter import Limiter, Limit, Scope")
    assert HEAVY.isdisjoint(loaded)
    assert _of("dispatcher", loaded) == {
        *FRONT,
        *(f"dispatcher.{name}" for name in ("core", "core.limits", "core.units", "data_files", "jsonio")),
        *(f"dispatcher.limiter{name}" for name in ("", ".arguments", ".blocking", ".refusals", ".wakeups", ".wire")),
        *(f"dispatcher.server{name}" for name in ("", ".clients", ".connection", ".keys")),
        *(f"dispatcher.server.{name}" for name in ("error_words", "scripts", "urls")),
    }


PRODUCER = {
    *FRONT,
    *(f"dispatcher.{name}" for name in ("core", "core.event", "core.units", "data_files", "jsonio")),
    *(f"dispatcher.producer{name}" for name in ("", ".blocking")),
    *(f"dispatcher.server{name}" for name in ("", ".clients", ".connection", ".keys")),
    *(f"dispatcher.server.{name}" for name in ("error_words", "scripts", "urls")),
    *(f"dispatcher.store{name}" for name in ("", ".intake", ".rq_keys")),
}


def test_a_producer_that_sends_loads_what_it_needs_and_nothing_later(redis_url: str) -> None:
    made = f"import redis\nfrom dispatcher import Producer\nproducer = Producer(redis.Redis.from_url({redis_url!r}))"
    assert _of("dispatcher", _loaded(made)) == PRODUCER
    loaded = _loaded(f"{made}\nproducer.send('errors', 'disk full')")
    assert _of("dispatcher", loaded) == PRODUCER
    assert HEAVY.isdisjoint(loaded)


SETTINGS = {f"dispatcher.settings{name}" for name in ("", ".plain", ".sources")}


def test_a_producer_of_plain_settings_loads_no_library_that_checks_them(redis_url: str) -> None:
    loaded = _loaded(
        "from dispatcher import Producer\n"
        "with Producer.from_env() as producer:\n  producer.send('errors', 'disk full')",
        DISPATCHER_REDIS_URL=redis_url,
    )
    assert _of("dispatcher", loaded) == PRODUCER | SETTINGS
    assert HEAVY.isdisjoint(loaded)


def test_send_loads_what_it_needs_of_other_packages(redis_url: str) -> None:
    _, probe = probed("send", "errors", "disk full", DISPATCHER_REDIS_URL=redis_url)
    assert probe["code"] == 0
    assert HEAVY.isdisjoint(probe["loaded"])
    assert {"redis", "orjson", "click"} <= {*probe["loaded"]}


def test_health_loads_no_library_that_is_slow_to_load(redis_url: str) -> None:
    env = {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_SLACK_TOKEN_FILE": "token", "DISPATCHER_LEASE": "30"}
    (said,), probe = probed("health", **env)
    assert said.startswith("unhealthy: no worker of host ")
    assert HEAVY.isdisjoint(probe["loaded"])


@pytest.fixture
def limits_in_force(redis: Database, redis_url: str, tmp_path: Path) -> dict[str, str]:
    """A server with a version of the limits in force, as a file says that names characters beyond ASCII."""
    file = tmp_path / "limits.yaml"
    file.write_text('categories: {errors: {channel: "#größe-😀", guarantee: 5}}', encoding="utf-8")
    said = load_limits(file).content
    versions = Versions(redis, Keys("dispatcher"))
    versions.publish(said.text, said.digest, said.source, by="eve", file=str(file), unless=Unless.SAME)
    return {"DISPATCHER_REDIS_URL": redis_url, "DISPATCHER_LIMITS_FILE": str(file)}


LOOKS = [
    "status",
    "status --json",
    "status --check",
    "limits show",
    "dead list",
    "dead list --category errors --json",
    "audit",
    "pause errors",
    "mute errors --for 1h --why deploy",
]


@pytest.mark.parametrize(
    "command",
    slow_except(
        ["status", "limits show", "dead list --category errors --json", "mute errors --for 1h --why deploy"], LOOKS
    ),
)
def test_a_command_that_looks_loads_no_library_that_checks_or_that_moves_a_screen(
    limits_in_force: dict[str, str], command: str
) -> None:
    _, probe = probed(*command.split(), **limits_in_force)
    assert probe["code"] == 0
    assert HEAVY & {*probe["loaded"]} <= {"rich"}
    assert "rich.console" not in probe["loaded"], "of rich at most how wide characters are"

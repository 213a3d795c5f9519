"""The environment: what each variable may be, where it is read from, and what a mistake is told."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from dispatcher.errors import ConfigError
from dispatcher.settings.environment import Settings, variables
from dispatcher.settings.loading import load_settings
from dispatcher.settings.plain import plain_settings
from dispatcher.settings.redaction import redacted, redacted_url, redacted_webhook

SPAN = "in seconds or with a unit of ms, s, m, h or d"
NAME = "1 to 64 of A-Z a-z 0-9 _ . : - beginning with a letter or digit"
URL = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH or sentinel://HOST:PORT,HOST:PORT/SERVICE/DB"
NO_SERVICE = (
    "expected sentinel://HOST:PORT,HOST:PORT/SERVICE/DB: after the hosts the name that the Sentinels know the service "
    "by, and the number of a database; and / ? # @ in a password written as %2F %3F %23 %40"
)
NO_HOSTS = "expected hosts separated by commas, each with a port from 1 to 65535 where one is named"
TOKEN = "xoxb-0123-s3cr3t"
WEBHOOK = "https://hooks.slack.com/services/T000/B000/s3cr3t"


def problems_of(env: dict[str, str], env_file: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_settings(env, env_file)
    assert caught.value.__context__ is None, "pydantic's error, which holds the values, must not travel along"
    return caught.value.problems


def secret_of(value: SecretStr | None) -> str:
    assert value is not None
    return value.get_secret_value()


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    settings, warnings = load_settings({}, None)
    assert settings.model_dump() == {
        "redis_url": None,
        "data_dir": Path(".dispatcher"),
        "namespace": "dispatcher",
        "queue": "notifications",
        "limits_file": None,
        "slack_token": None,
        "slack_webhook_url": None,
        "slack_base_url": None,
        "slack_timeout": timedelta(seconds=10),
        "sink": "slack",
        "lease": timedelta(seconds=30),
        "reconcile_grace": timedelta(seconds=10),
        "dedup_window": timedelta(hours=24),
        "max_waiting": 1_000_000,
        "log_level": "info",
        "log_format": "auto",
        "log_text": 0,
        "batch": 128,
        "senders": 8,
        "serve_host": "127.0.0.1",
        "serve_port": 8910,
        "metrics_categories": 100,
        "serve_tokens_file": None,
        "serve_trusted_hosts": (),
    }
    assert warnings == ()


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        pytest.param("DISPATCHER_DATA_DIR", "/var/lib/d", "data_dir", Path("/var/lib/d"), id="data_dir"),
        pytest.param("DISPATCHER_DATA_DIR", "~/d", "data_dir", Path.home() / "d", id="home"),
        pytest.param("DISPATCHER_NAMESPACE", "team-a.prod", "namespace", "team-a.prod", id="namespace"),
        pytest.param("DISPATCHER_QUEUE", "mail:out", "queue", "mail:out", id="queue"),
        pytest.param("DISPATCHER_LIMITS_FILE", "l.yaml", "limits_file", Path("l.yaml"), id="limits_file"),
        pytest.param(
            "DISPATCHER_SLACK_BASE_URL",
            "http://127.0.0.1:8901/api",
            "slack_base_url",
            "http://127.0.0.1:8901/api/",
            id="a base URL gets its slash",
        ),
        pytest.param("DISPATCHER_SLACK_TIMEOUT", "2.5", "slack_timeout", timedelta(seconds=2.5), id="seconds"),
        pytest.param("DISPATCHER_SLACK_TIMEOUT", "250ms", "slack_timeout", timedelta(seconds=0.25), id="unit"),
        pytest.param("DISPATCHER_LEASE", "1m", "lease", timedelta(minutes=1), id="lease"),
        pytest.param("DISPATCHER_RECONCILE_GRACE", "0", "reconcile_grace", timedelta(0), id="no grace"),
        pytest.param("DISPATCHER_RECONCILE_GRACE", "0s", "reconcile_grace", timedelta(0), id="no grace with a unit"),
        pytest.param("DISPATCHER_DEDUP_WINDOW", "1.5h", "dedup_window", timedelta(minutes=90), id="dedup"),
        pytest.param("DISPATCHER_MAX_WAITING", "5", "max_waiting", 5, id="max_waiting"),
        pytest.param("DISPATCHER_SINK", "console", "sink", "console", id="sink"),
        pytest.param("DISPATCHER_LOG_LEVEL", "DEBUG", "log_level", "debug", id="either case"),
        pytest.param("DISPATCHER_LOG_FORMAT", "json", "log_format", "json", id="log_format"),
        pytest.param("DISPATCHER_LOG_TEXT", "200", "log_text", 200, id="log_text"),
        pytest.param("DISPATCHER_BATCH", " 1 ", "batch", 1, id="blanks around a value do not count"),
        pytest.param("DISPATCHER_SENDERS", "256", "senders", 256, id="senders"),
        pytest.param("DISPATCHER_QUEUE", "", "queue", "notifications", id="empty is unset"),
        pytest.param("DISPATCHER_QUEUE", "  ", "queue", "notifications", id="blank is unset"),
    ],
)
def test_a_variable_sets_its_field(name: str, text: str, field: str, value: object) -> None:
    settings, warnings = load_settings({name: text}, None)
    assert getattr(settings, field) == value
    assert warnings == ()


def test_the_lease_follows_the_slack_timeout() -> None:
    settings, _ = load_settings({"DISPATCHER_SLACK_TIMEOUT": "7"}, None)
    assert settings.lease == timedelta(seconds=21)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://localhost:6379/0",
        "redis://:p%40ss@db.example:6379/15",
        "rediss://app:pw@[::1]:6380/",
        "redis://localhost:6379?protocol=3&socket_timeout=0.5&socket_keepalive=1&client_name=a&health_check_interval=30",
        "rediss://localhost?ssl_cert_reqs=none&ssl_check_hostname=no",
        "unix:///run/redis.sock",
        "unix://app:pw@/run/redis.sock?db=2",
        "sentinel://a:26379,b:26379,c/main/0",
        "sentinel://app:p%40ss@[::1]:1,[::2]:2/main?sentinel_password=x",
        "sentinel://b:1,[::1]:2/main/15?ssl=true&ssl_ca_certs=/etc/ca.pem",
    ],
)
def test_a_redis_url_is_kept_as_it_is(url: str) -> None:
    assert secret_of(load_settings({"DISPATCHER_REDIS_URL": url}, None)[0].redis_url) == url


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        pytest.param(
            {"DISPATCHER_REDIS_URL": "localhost:6379"},
            f"DISPATCHER_REDIS_URL is 'localhost:6379', expected {URL}",
            id="url without scheme",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": ":s3cr3t@localhost"},
            f"DISPATCHER_REDIS_URL is ':***@localhost', expected {URL}",
            id="url without scheme, with a password",
        ),
        pytest.param(
            {"REDIS_URL": "http://localhost"},
            f"REDIS_URL is 'http://localhost', expected {URL}",
            id="url of a web page, under its other name",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "sentinel://:s3cr3t@a:1,b:2"},
            f"DISPATCHER_REDIS_URL is 'sentinel://:***@a:1,b:2', {NO_SERVICE}",
            id="sentinels without a service",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "sentinel://:s3c?r3t@a:1/main/0"},
            f"DISPATCHER_REDIS_URL is 'sentinel://:***@a:1/main/0', {NO_SERVICE}",
            id="sentinels and an unencoded question mark in the password",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "sentinel://a:1/main/first"},
            f"DISPATCHER_REDIS_URL is 'sentinel://a:1/main/first', {NO_SERVICE}",
            id="sentinels and a database that is no number",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "sentinel://a:1,,b:2/main/0"},
            f"DISPATCHER_REDIS_URL is 'sentinel://a:1,,b:2/main/0', {NO_HOSTS}",
            id="sentinels with one left out",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "sentinel://a:70000/main/0"},
            f"DISPATCHER_REDIS_URL is 'sentinel://a:70000/main/0', {NO_HOSTS}",
            id="a sentinel behind a port that is none",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "sentinel://a/main/0?sentinel_pasword=s3cr3t"},
            "DISPATCHER_REDIS_URL is 'sentinel://a/main/0?sentinel_pasword=***', "
            "expected of the options behind the ? only sentinel_password, sentinel_username, ssl, ssl_ca_certs, "
            "ssl_ca_path, ssl_cert_reqs, ssl_certfile, ssl_keyfile, and ssl=true or ssl=false",
            id="sentinels and a misspelt option",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "sentinel://a/main/0?ssl_ca_certs=/ca.pem"},
            "DISPATCHER_REDIS_URL is 'sentinel://a/main/0?ssl_ca_certs=/ca.pem', "
            "expected ssl=true beside the options of TLS",
            id="sentinels and TLS that is not asked for",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "sentinel://a:1, b:2/main/0"},
            "DISPATCHER_REDIS_URL is 'sentinel://a:1, b:2/main/0', expected a URL without blanks",
            id="sentinels with a blank between",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "redis://db/0?db=1&decode_responses=1"},
            "DISPATCHER_REDIS_URL is 'redis://db/0?db=1&decode_responses=1', expected of the options behind the ? only "
            "client_name, db, health_check_interval, password, protocol, socket_connect_timeout, "
            "socket_keepalive, socket_timeout, username",
            id="an option that does not only say how to connect",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "unix:///s?socket_keepalive=1"},
            "DISPATCHER_REDIS_URL is 'unix:///s?socket_keepalive=1', expected of the options behind the ? only "
            "client_name, db, health_check_interval, password, protocol, socket_connect_timeout, socket_timeout, "
            "username",
            id="an option that a unix socket does not have",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "redis://db?ssl_cert_reqs=none"},
            "DISPATCHER_REDIS_URL is 'redis://db?ssl_cert_reqs=none', expected rediss:// beside the options of TLS",
            id="TLS that is not asked for",
        ),
        *(
            pytest.param(
                {"DISPATCHER_REDIS_URL": f"redis://db?socket_timeout={span}"},
                f"DISPATCHER_REDIS_URL is 'redis://db?socket_timeout={span}', "
                "expected for socket_timeout a number of seconds above 0, and at most a day",
                id=f"a time-out of {span} seconds",
            )
            for span in ("0", "nan", "inf", "-1", "x", "")
        ),
        *(
            pytest.param(
                {"DISPATCHER_REDIS_URL": f"redis://{host}"},
                f"DISPATCHER_REDIS_URL is 'redis://{host}', expected a host with 1 to 63 characters between two dots",
                id=f"the host {host}",
            )
            for host in ("db..example", ".example", "x" * 64)
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "redis://:s3c/r3t@db:6379/0"},
            "DISPATCHER_REDIS_URL is 'redis://:***@db:6379/0', "
            "expected a host, and a port from 1 to 65535 where one is named",
            id="unencoded slash in the password",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "redis://db:70000"},
            "DISPATCHER_REDIS_URL is 'redis://db:70000', "
            "expected a host, and a port from 1 to 65535 where one is named",
            id="port out of range",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "redis://:s3cr3t@"},
            "DISPATCHER_REDIS_URL is 'redis://:***@', expected a host, and a port from 1 to 65535 where one is named",
            id="no host",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "redis://db/zero"},
            "DISPATCHER_REDIS_URL is 'redis://db/zero', expected the number of a database after the host, "
            "and / ? # @ in a password written as %2F %3F %23 %40",
            id="database is no number",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "redis://[s3cr3t@db"},
            "DISPATCHER_REDIS_URL is 'redis://***@db', expected a well-formed URL",
            id="bracket that does not close",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "redis://a b"},
            "DISPATCHER_REDIS_URL is 'redis://a b', expected a URL without blanks",
            id="blank in a url",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": "unix://run/redis.sock"},
            "DISPATCHER_REDIS_URL is 'unix://run/redis.sock', expected an absolute path, as in unix:///run/redis.sock",
            id="relative socket",
        ),
        pytest.param(
            {"DISPATCHER_NAMESPACE": "{a}"},
            f"DISPATCHER_NAMESPACE is '{{a}}', expected {NAME}",
            id="braces in the namespace",
        ),
        pytest.param(
            {"DISPATCHER_NAMESPACE": "n" * 200},
            f"DISPATCHER_NAMESPACE is '{'n' * 76}..., expected {NAME}",
            id="a long value is cut",
        ),
        pytest.param(
            {"DISPATCHER_QUEUE": "a b"}, f"DISPATCHER_QUEUE is 'a b', expected {NAME}", id="blank in the queue"
        ),
        pytest.param(
            {"DISPATCHER_QUEUE": "mail:high"},
            "DISPATCHER_QUEUE is 'mail:high', "
            "expected the queue itself, not a key that ends in :high or :low or :intermediate or :namespace",
            id="lane instead of queue",
        ),
        pytest.param(
            {"DISPATCHER_QUEUE": "mail:namespace"},
            "DISPATCHER_QUEUE is 'mail:namespace', "
            "expected the queue itself, not a key that ends in :high or :low or :intermediate or :namespace",
            id="the namespace of another queue",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_TOKEN": WEBHOOK},
            "DISPATCHER_SLACK_TOKEN is ***, "
            "expected a bot token such as xoxb-...; a webhook is DISPATCHER_SLACK_WEBHOOK_URL",
            id="webhook as token",
        ),
        pytest.param(
            {"SLACK_BOT_TOKEN": "xapp-s3cr3t"},
            "SLACK_BOT_TOKEN is ***, expected a bot token such as xoxb-..., not an app-level token",
            id="app-level token",
        ),
        pytest.param(
            {"SLACK_BOT_TOKEN": "xoxb-s3cr3t é"},
            "SLACK_BOT_TOKEN is ***, expected a bot token such as xoxb-..., without blanks and special characters",
            id="token no header can carry",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_TOKEN": f'"{TOKEN}"'},
            "DISPATCHER_SLACK_TOKEN stands in quotes, which are taken as part of it; "
            "expected a bot token such as xoxb-...",
            id="token in quotes",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_TOKEN": f"'{TOKEN}"},
            "DISPATCHER_SLACK_TOKEN is ***, "
            "expected a bot token such as xoxb-..., and it holds a quote: take the quotes off",
            id="token with half a quote",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_WEBHOOK_URL": WEBHOOK.replace("https", "http")},
            "DISPATCHER_SLACK_WEBHOOK_URL is 'http://hooks.slack.com/***', "
            "expected https://, since http:// would show the secret to the network",
            id="webhook in the clear",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_WEBHOOK_URL": "https://hooks.slack.com/"},
            "DISPATCHER_SLACK_WEBHOOK_URL is 'https://hooks.slack.com/', "
            "expected a path behind the host, as in https://hooks.slack.com/services/...",
            id="webhook without its path",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_WEBHOOK_URL": WEBHOOK.replace("https://", "https://me:s3cr3t@")},
            "DISPATCHER_SLACK_WEBHOOK_URL is ***, expected a URL without user name and password",
            id="password in a webhook",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_WEBHOOK_URL": WEBHOOK + "é"},
            "DISPATCHER_SLACK_WEBHOOK_URL is 'https://hooks.slack.com/***', "
            "expected a URL without special characters, which are written as %XX",
            id="webhook no request can carry",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_BASE_URL": "https://slack.test/apí/"},
            "DISPATCHER_SLACK_BASE_URL is 'https://slack.test/apí/', "
            "expected a URL without special characters, which are written as %XX",
            id="base url no request can carry",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_WEBHOOK_URL": TOKEN},
            "DISPATCHER_SLACK_WEBHOOK_URL is ***, expected the URL of a webhook; a token is DISPATCHER_SLACK_TOKEN",
            id="token as webhook",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_WEBHOOK_URL": "s3cr3t"},
            "DISPATCHER_SLACK_WEBHOOK_URL is ***, expected the URL of an incoming webhook, beginning with https://",
            id="webhook that is no url",
        ),
        pytest.param(
            {"SLACK_BOT_TOKEN": TOKEN, "DISPATCHER_SLACK_WEBHOOK_URL": WEBHOOK},
            "DISPATCHER_SLACK_WEBHOOK_URL is 'https://hooks.slack.com/***', "
            "expected one way to post, and a token is set too: unset one of the two",
            id="token and webhook",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_BASE_URL": WEBHOOK + "?x=1"},
            "DISPATCHER_SLACK_BASE_URL is *** (looks like a secret), "
            "expected an http:// or https:// URL without user name and query",
            id="webhook as base url",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_BASE_URL": "http://me:s3cr3t@proxy/"},
            "DISPATCHER_SLACK_BASE_URL is 'http://me:***@proxy/', expected a URL without user name and password",
            id="password in the base url",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_TIMEOUT": "ten"},
            f"DISPATCHER_SLACK_TIMEOUT is 'ten', expected 0.1s to 5m, {SPAN}",
            id="a word for a number; the lease that follows it is not complained about",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_TIMEOUT": "nan"},
            f"DISPATCHER_SLACK_TIMEOUT is 'nan', expected 0.1s to 5m, {SPAN}",
            id="not a number",
        ),
        pytest.param(
            {"DISPATCHER_DEDUP_WINDOW": "9" * 400 + "d"},
            f"DISPATCHER_DEDUP_WINDOW is '{'9' * 76}..., expected 1s to 366d, {SPAN}",
            id="more time than there is",
        ),
        pytest.param(
            {"DISPATCHER_LEASE": "10"},
            "DISPATCHER_LEASE is '10', expected more than DISPATCHER_SLACK_TIMEOUT, which is 10",
            id="lease ends during a post",
        ),
        pytest.param(
            {"DISPATCHER_SENDERS": "2.5"},
            "DISPATCHER_SENDERS is '2.5', expected a whole number from 1 to 256",
            id="half a sender",
        ),
        pytest.param({"DISPATCHER_SINK": "email"}, "DISPATCHER_SINK is 'email', expected slack or console", id="sink"),
        pytest.param(
            {"DISPATCHER_QUEUE": "a\nb"},
            f"DISPATCHER_QUEUE holds a control character, expected {NAME}",
            id="line break",
        ),
        pytest.param(
            {"SLACK_BOT_TOKEN": "xoxb-s3cr3t\r\nX-Evil: 1"},
            "SLACK_BOT_TOKEN holds a control character, expected a bot token such as xoxb-...",
            id="line break in a secret",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_TOKEN": TOKEN, "DISPATCHER_SLACK_TOKEN_FILE": "/run/token"},
            "DISPATCHER_SLACK_TOKEN and DISPATCHER_SLACK_TOKEN_FILE are both set, expected one of them",
            id="secret given twice",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_TOKEN_FILE": "/nowhere/token"},
            "DISPATCHER_SLACK_TOKEN_FILE is '/nowhere/token', which cannot be read: No such file or directory",
            id="secret's file is missing",
        ),
        pytest.param(
            {"DISPATCHER_SLACK_TOKEN_FILE": TOKEN},
            "DISPATCHER_SLACK_TOKEN_FILE is *** (looks like a secret), which cannot be read: No such file or directory",
            id="secret instead of its file",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(env: dict[str, str], problem: str) -> None:
    assert problems_of(env) == (problem,)
    assert "s3cr3t" not in problem


BOUNDS: Final = [
    ("SLACK_TIMEOUT", ("100ms", "99ms"), ("5m", "300.1s")),
    ("LEASE", ("10.001s", "10s"), ("1d", "86400.1s")),
    ("RECONCILE_GRACE", ("0", "-1"), ("1d", "86400.1s")),
    ("DEDUP_WINDOW", ("1s", "999ms"), ("366d", "31622400.1s")),
    ("MAX_WAITING", ("1", "0"), ("1000000000", "1000000001")),
    ("LOG_TEXT", ("0", "-1"), ("200", "201")),
    ("BATCH", ("1", "0"), ("1024", "1025")),
    ("SENDERS", ("1", "0"), ("256", "257")),
    ("SERVE_PORT", ("0", "-1"), ("65535", "65536")),
    ("METRICS_CATEGORIES", ("0", "-1"), ("150", "151")),
]
"""Of each bound: it, and the next value beyond."""


def test_all_bounds_are_tested_here() -> None:
    fields = Settings.model_fields.items()
    bounded = [name for name, field in fields if any(hasattr(each, "le") for each in field.metadata)]
    assert bounded == [name.lower() for name, *_ in BOUNDS], "add to BOUNDS"


@pytest.mark.parametrize(("name", "least", "most"), BOUNDS)
def test_a_bound_is_the_last_value_that_is_accepted(name: str, least: tuple[str, str], most: tuple[str, str]) -> None:
    for bound, beyond in (least, most):
        load_settings({f"DISPATCHER_{name}": bound}, None)
        (problem,) = problems_of({f"DISPATCHER_{name}": beyond})
        assert problem.startswith(f"DISPATCHER_{name} is ")


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("DISPATCHER_SINK=email\n")
    env = {"DISPATCHER_BATCH": "x", "DISPATCHER_QUEUE": "a b", "DISPATCHER_SLACK_TOKEN_FILE": str(tmp_path)}
    assert problems_of(env, env_file) == (
        f"DISPATCHER_SLACK_TOKEN_FILE is '{tmp_path}', which cannot be read: Is a directory",
        f"DISPATCHER_QUEUE is 'a b', expected {NAME}",
        f"DISPATCHER_SINK (in {env_file}) is 'email', expected slack or console",
        "DISPATCHER_BATCH is 'x', expected a whole number from 1 to 1024",
    )


def test_warnings_are_told_with_the_faults_they_may_have_caused(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("DISPATCHER_SINK=email\n\nDISPATCHER_BATCH\n")
    with pytest.raises(ConfigError) as caught:
        load_settings({"DISPATCHER_SLAK_TOKEN": TOKEN}, env_file)
    assert caught.value.problems == (f"DISPATCHER_SINK (in {env_file}) is 'email', expected slack or console",)
    assert caught.value.warnings == (
        f"{env_file}:3: not read as NAME=value, the line is ignored",
        "DISPATCHER_SLAK_TOKEN is not a known variable and is ignored; did you mean DISPATCHER_SLACK_TOKEN?",
    )
    assert str(caught.value).splitlines() == [*caught.value.problems, *caught.value.warnings]


@pytest.mark.parametrize("host", ["localhost:8901", "127.0.0.1:8901", "[::1]:8901"])
def test_the_webhook_of_a_stand_in_on_this_machine_needs_no_https(host: str) -> None:
    url = f"http://{host}/services/T0/B0/x"
    assert secret_of(load_settings({"DISPATCHER_SLACK_WEBHOOK_URL": url}, None)[0].slack_webhook_url) == url


@pytest.mark.parametrize(
    ("env", "in_file", "url"),
    [
        pytest.param({"REDIS_URL": "redis://a"}, "", "redis://a", id="the other name"),
        pytest.param(
            {"REDIS_URL": "redis://a", "DISPATCHER_REDIS_URL": "redis://b"}, "", "redis://b", id="ours goes first"
        ),
        pytest.param({}, "DISPATCHER_REDIS_URL=redis://c", "redis://c", id="from .env"),
        pytest.param(
            {"REDIS_URL": "redis://a"},
            "DISPATCHER_REDIS_URL=redis://c",
            "redis://a",
            id="the environment goes before .env, under either name",
        ),
        pytest.param(
            {"DISPATCHER_REDIS_URL": ""}, "export REDIS_URL='redis://c'  # ours", "redis://c", id="empty is unset"
        ),
        pytest.param({}, "DISPATCHER_REDIS_URL=unix:///run/${HOME}", "unix:///run/${HOME}", id="as it is"),
    ],
)
def test_the_nearest_place_wins(env: dict[str, str], in_file: str, url: str, tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text(in_file)
    assert secret_of(load_settings(env, env_file)[0].redis_url) == url


@pytest.mark.parametrize("content", [f"{TOKEN}\n", f"\ufeff{TOKEN}"], ids=["end of the line", "byte order mark"])
def test_a_secret_is_read_from_its_file_without_what_editors_add(content: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(content, encoding="utf-8")
    settings, _ = load_settings({"DISPATCHER_SLACK_TOKEN_FILE": str(path), "SLACK_BOT_TOKEN": "other"}, None)
    assert secret_of(settings.slack_token) == TOKEN


def test_a_secrets_file_may_lie_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "token").write_text(TOKEN)
    settings, _ = load_settings({"DISPATCHER_SLACK_TOKEN_FILE": "~/token"}, None)
    assert secret_of(settings.slack_token) == TOKEN
    (said,) = problems_of({"DISPATCHER_SLACK_TOKEN_FILE": "~nobody-of-this-name/token"})
    assert said.startswith("DISPATCHER_SLACK_TOKEN_FILE is '~nobody-of-this-name/token', which cannot be read: ")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("Ops.example.com, other:8910,", ("ops.example.com", "other:8910")),
        ("10.0.0.7:80,fd00::7,[fd00::7]:80,::", ("10.0.0.7:80", "fd00::7", "[fd00::7]:80", "::")),
    ],
)
def test_trusted_hosts_are_named_as_a_request_names_them(text: str, hosts: tuple[str, ...]) -> None:
    assert load_settings({"DISPATCHER_SERVE_TRUSTED_HOSTS": text}, None)[0].serve_trusted_hosts == hosts


@pytest.mark.parametrize(
    "text", ["https://ops.example.com", "*.example.com", "a b", "a, b/c", "a:x", "a:1:2", "[a]", "a:", "a:123456"]
)
def test_what_no_request_can_name_is_no_trusted_host(text: str) -> None:
    expected = "expected hosts separated by commas, such as ops.example.com or ops.example.com:8910"
    assert problems_of({"DISPATCHER_SERVE_TRUSTED_HOSTS": text}) == (
        f"DISPATCHER_SERVE_TRUSTED_HOSTS is '{text}', {expected}",
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"\n", "which is empty; expected the value in it", id="empty"),
        pytest.param(b"x" * 70_000, "which is larger than 65536 bytes", id="large"),
    ],
)
def test_a_secrets_file_that_cannot_hold_one_is_named(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "webhook"
    path.write_bytes(content)
    name = "DISPATCHER_SLACK_WEBHOOK_URL_FILE"
    assert problems_of({name: str(path)}) == (f"{name} is '{path}', {problem}",)


def test_a_secrets_file_of_several_lines_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("xoxb-s3cr3t\nxoxb-other\n")
    assert problems_of({"DISPATCHER_SLACK_TOKEN_FILE": str(path)}) == (
        "DISPATCHER_SLACK_TOKEN_FILE holds a control character, expected a bot token such as xoxb-...",
    )


def test_who_does_not_post_needs_no_file_of_a_token_or_webhook(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with_token, _ = load_settings({"DISPATCHER_SLACK_TOKEN_FILE": missing}, None, for_posts=False)
    assert (with_token.slack_token, with_token.by_webhook, with_token.secrets()) == (None, False, frozenset())
    with_webhook, _ = load_settings({"DISPATCHER_SLACK_WEBHOOK_URL_FILE": missing}, None, for_posts=False)
    assert with_webhook.by_webhook


def test_who_does_not_post_still_hides_a_token_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    settings, _ = load_settings({"DISPATCHER_SLACK_TOKEN_FILE": str(path)}, None, for_posts=False)
    assert TOKEN in settings.secrets()


def test_unknown_variables_are_warned_about_with_the_nearest_name(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("DISPATCHER_SENDER=4\nOTHER=1\n")
    env = {
        "DISPATCHER_REDIS_ULR": "redis://:s3cr3t@db",
        "DISPATCHER_COLOUR": "red",
        "DISPATCHER_EMPTY": "",
        "dispatcher_queue": "q",
        "HOME": "/root",
    }
    settings, warnings = load_settings(env, env_file)
    assert settings == load_settings({}, None)[0]
    assert warnings == (
        "DISPATCHER_COLOUR is not a known variable and is ignored",
        "DISPATCHER_REDIS_ULR is not a known variable and is ignored; did you mean DISPATCHER_REDIS_URL?",
        "dispatcher_queue is not a known variable and is ignored; did you mean DISPATCHER_QUEUE?",
        f"DISPATCHER_SENDER (in {env_file}) is not a known variable and is ignored; did you mean DISPATCHER_SENDERS?",
    )


def test_what_kubernetes_sets_for_a_service_is_no_unknown_variable() -> None:
    of_services = {
        f"DISPATCHER_{name}": text
        for service in ("", "WEB_")
        for name, text in {
            f"{service}SERVICE_HOST": "10.0.0.1",
            f"{service}SERVICE_PORT": "8910",
            f"{service}SERVICE_PORT_HTTP": "8910",
            f"{service}PORT": "tcp://10.0.0.1:8910",
            f"{service}PORT_8910_TCP": "tcp://10.0.0.1:8910",
            f"{service}PORT_8910_TCP_PROTO": "tcp",
            f"{service}PORT_8910_TCP_PORT": "8910",
            f"{service}PORT_8910_TCP_ADDR": "10.0.0.1",
        }.items()
    }
    settings, warnings = load_settings(of_services, None)
    assert (settings, warnings) == (load_settings({}, None)[0], ())
    assert plain_settings(of_services, None) is not None
    _, warnings = load_settings({"DISPATCHER_PORT": "8910"}, None)
    assert warnings == ("DISPATCHER_PORT is not a known variable and is ignored",)


def test_a_line_of_the_env_file_that_is_not_understood_is_a_warning(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("DISPATCHER_QUEUE=q\nthis s3cr3t is: no variable\n\nDISPATCHER_BATCH\n")
    settings, warnings = load_settings({}, env_file)
    assert (settings.queue, settings.batch) == ("q", 128)
    assert warnings == tuple(f"{env_file}:{line}: not read as NAME=value, the line is ignored" for line in (2, 4))


def test_an_env_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_bytes(b"DISPATCHER_QUEUE=\xff")
    assert problems_of({}, env_file) == (f"{env_file} is not UTF-8; expected lines NAME=value",)


def test_a_missing_env_file_is_no_fault(tmp_path: Path) -> None:
    assert load_settings({}, tmp_path / ".env") == load_settings({}, None)


def test_a_folder_in_place_of_the_env_file_is_named(tmp_path: Path) -> None:
    assert problems_of({}, tmp_path) == (
        f"{tmp_path} is a folder, expected a file of lines NAME=value; give the folder another name",
    )


def test_the_process_environment_and_env_file_are_what_is_read_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISPATCHER_QUEUE", "from-environment")
    (tmp_path / ".env").write_text("DISPATCHER_NAMESPACE=from-file\n")
    settings, _ = load_settings()
    assert (settings.queue, settings.namespace) == ("from-environment", "from-file")


def test_isolated_settings_look_at_nothing_but_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in variables():
        monkeypatch.setenv(variable.name, "nonsense")
    monkeypatch.setenv("REDIS_URL", "nonsense")
    monkeypatch.setenv("SLACK_BOT_TOKEN", TOKEN)
    (tmp_path / ".env").write_text("DISPATCHER_NAMESPACE=nonsense\n")
    settings = Settings.isolated(queue="demo", slack_timeout=2, lease=timedelta(seconds=3))
    assert settings.model_dump() == load_settings({}, None)[0].model_dump() | {
        "queue": "demo",
        "slack_timeout": timedelta(seconds=2),
        "lease": timedelta(seconds=3),
    }


def test_isolated_settings_name_the_field_that_is_wrong() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.isolated(batch=0, redis_url="sentinel://:s3cr3t@a", slack_token="xapp-s3cr3t", colour="red")
    first, second, third, fourth = caught.value.problems
    assert first == f"redis_url is 'sentinel://:***@a', {NO_SERVICE}"
    assert second == "slack_token is ***, expected a bot token such as xoxb-..., not an app-level token"
    assert third == "batch is 0, expected a whole number from 1 to 1024"
    assert fourth.startswith("colour is not a setting, expected one of redis_url, data_dir, ")


def test_settings_cannot_be_changed() -> None:
    settings = Settings.isolated()
    with pytest.raises(ValidationError, match="frozen"):
        settings.batch = 1


def test_no_secret_appears_in_the_settings_as_text() -> None:
    env = {"DISPATCHER_REDIS_URL": "redis://:s3cr3t@db", "SLACK_BOT_TOKEN": TOKEN}
    for settings in (load_settings(env, None)[0], load_settings({"DISPATCHER_SLACK_WEBHOOK_URL": WEBHOOK}, None)[0]):
        assert "s3cr3t" not in f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"


def test_secrets_are_known_in_every_spelling() -> None:
    settings = Settings.isolated(redis_url="redis://:p%40s%2Fs@db?password=q%20qq", slack_webhook_url=WEBHOOK)
    assert settings.secrets() == {
        "p%40s%2Fs",
        "p@s/s",
        "q qq",
        "q%20qq",
        WEBHOOK,
        quote(WEBHOOK, safe=""),
        "services/T000/B000/s3cr3t",
        "services%2FT000%2FB000%2Fs3cr3t",
    }
    assert Settings.isolated().secrets() == frozenset()


def test_the_secrets_of_a_sentinel_address_are_known_too() -> None:
    url = "sentinel://app:p%40ss@a:1,[::1]:2/main/0?sentinel_password=0th3r"
    assert Settings.isolated(redis_url=url).secrets() == {"p%40ss", "p@ss", "0th3r"}


def test_a_secret_as_short_as_a_syllable_is_not_cut_out_of_words() -> None:
    settings = Settings.isolated(redis_url="redis://:pwd@db", slack_webhook_url="https://hooks.test/x")
    assert settings.secrets() == {
        "https://hooks.test/x",
        quote("https://hooks.test/x", safe=""),
    }


@pytest.mark.parametrize("token", ["hunter2-s3cr3t", "xoxp-s3cr3t", "XOXB-s3cr3t"])
def test_a_token_that_does_not_look_like_a_bot_token_gives_a_warning(token: str, tmp_path: Path) -> None:
    env_file, file = tmp_path / ".env", tmp_path / "token"
    env_file.write_text(f"SLACK_BOT_TOKEN={token}\n")
    file.write_text(f"{token}\n")
    expected = (
        "is ***, expected a bot token, which begins with xoxb-; copy it from OAuth & Permissions of the Slack app"
    )
    for env, place, name in (
        ({"DISPATCHER_SLACK_TOKEN": token}, None, "DISPATCHER_SLACK_TOKEN"),
        ({"DISPATCHER_SLACK_TOKEN_FILE": str(file)}, None, "DISPATCHER_SLACK_TOKEN_FILE"),
        ({}, env_file, f"SLACK_BOT_TOKEN (in {env_file})"),
    ):
        settings, warnings = load_settings(env, place)
        assert (secret_of(settings.slack_token), warnings) == (token, (f"{name} {expected}",))


def test_a_token_that_goes_to_another_machine_without_tls_gives_a_warning() -> None:
    env = {"DISPATCHER_SLACK_TOKEN": TOKEN, "DISPATCHER_SLACK_BASE_URL": "HTTP://proxy.internal/api/"}
    said = "begins with http://, so the network can read the token; use https:// for another machine"
    assert load_settings(env, None)[1] == (f"DISPATCHER_SLACK_BASE_URL {said}",)
    for url in ("https://proxy.internal/api/", "http://127.0.0.1:8901/api/", "http://[::1]/", "http://localhost/api/"):
        assert load_settings({**env, "DISPATCHER_SLACK_BASE_URL": url}, None)[1] == ()
    assert load_settings({"DISPATCHER_SLACK_BASE_URL": env["DISPATCHER_SLACK_BASE_URL"]}, None)[1] == ()


@pytest.mark.parametrize("token", [TOKEN, "xoxe.xoxb-1-s3cr3t", "xoxb-local-stand-in"])
def test_a_bot_token_is_no_warning(token: str) -> None:
    assert load_settings({"DISPATCHER_SLACK_TOKEN": token}, None)[1] == ()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:s3cr3t@db:6379/0", "redis://:***@db:6379/0"),
        ("rediss://app:s3cr%20et@db", "rediss://app:***@db"),
        ("redis://s3cr3t@db", "redis://***@db"),
        ("redis://:s3/cr?3t#x@db/1", "redis://:***@db/1"),
        ("redis://:s3@cr3t@db/1", "redis://:***@db/1"),
        ("unix:///run/redis.sock?db=1&password=s3cr3t", "unix:///run/redis.sock?db=1&password=***"),
        ("unix:///run/redis.sock?credentials=s3cr3t", "unix:///run/redis.sock?credentials=***"),
        ("unix:///run/redis.sock?p%61ssword=s3cr3t&db=1", "unix:///run/redis.sock?p%61ssword=***"),
        ("redis://host/0?password=s3@cr3t", "redis://***"),
        ("redis:/:s3cr3t@host", "redis:***@host"),
        ("sentinel://app:s3cr3t@a:1,b:2/main/0", "sentinel://app:***@a:1,b:2/main/0"),
        ("sentinel://a:1,b:2/main?sentinel_password=s3cr3t&ssl=true", "sentinel://a:1,b:2/main?sentinel_password=***"),
        (":s3cr3t@host", ":***@host"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, expected: str) -> None:
    assert redacted_url(url) == expected


@given(
    password=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=20),
    shape=st.sampled_from(["redis://:{}@db:6379/0", "redis://app:{}@db", "unix:///s?db=1&password={}", ":{}@db"]),
    encoded=st.booleans(),
)
def test_no_password_survives_in_a_redacted_url(password: str, shape: str, encoded: bool) -> None:  # noqa: FBT001  drawn
    given_as = quote(password, safe="") if encoded else password
    assert given_as not in redacted_url(shape.format(given_as))


def test_a_webhook_is_shown_without_its_path() -> None:
    assert redacted_webhook(WEBHOOK) == "https://hooks.slack.com/***"
    assert redacted_webhook("http://127.0.0.1:8901\\s3cr3t") == "http://127.0.0.1:8901/***"
    for url in (
        "s3cr3t",
        "https://s3cr3t",
        "http://me:s3cr3t@hooks.test/x",
        "https://me:1/s@hooks.test",
        f"https://{TOKEN}.x",
    ):
        assert redacted_webhook(url) == "***"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "'text'"),
        (None, "null"),
        (True, "true"),
        (12, "12"),
        ({"a": 1}, "a mapping"),
        ([1], "a list"),
        ([], "an empty list"),
        (TOKEN, "*** (looks like a secret)"),
        ("a\x1b[31m", "'a\\x1b[31m'"),
        ("x" * 200, f"'{'x' * 76}..."),
    ],
)
def test_a_value_is_shown_readable_and_harmless(value: object, expected: str) -> None:
    assert redacted(value) == expected


def test_every_variable_is_documented() -> None:
    rows = {row.name: row for row in variables()}
    assert rows["DISPATCHER_REDIS_URL"].also == "REDIS_URL"
    assert rows["DISPATCHER_SLACK_TOKEN"].also == "SLACK_BOT_TOKEN"
    assert rows["DISPATCHER_SLACK_TOKEN"].names == ("DISPATCHER_SLACK_TOKEN", "DISPATCHER_SLACK_TOKEN_FILE")
    assert {row.name for row in rows.values() if row.is_secret} == {
        "DISPATCHER_REDIS_URL",
        "DISPATCHER_SLACK_TOKEN",
        "DISPATCHER_SLACK_WEBHOOK_URL",
    }
    for row in rows.values():
        assert row.description.endswith(".")
        assert row.expected
    assert {row.name: row.default for row in rows.values() if row.default} == {
        "DISPATCHER_DATA_DIR": ".dispatcher",
        "DISPATCHER_NAMESPACE": "dispatcher",
        "DISPATCHER_QUEUE": "notifications",
        "DISPATCHER_LIMITS_FILE": "config/limits.yaml, then the packaged one",
        "DISPATCHER_SLACK_BASE_URL": "Slack's own",
        "DISPATCHER_SLACK_TIMEOUT": "10",
        "DISPATCHER_SINK": "slack",
        "DISPATCHER_LEASE": "3 x DISPATCHER_SLACK_TIMEOUT",
        "DISPATCHER_RECONCILE_GRACE": "10",
        "DISPATCHER_DEDUP_WINDOW": "24h",
        "DISPATCHER_MAX_WAITING": "1000000",
        "DISPATCHER_LOG_LEVEL": "info",
        "DISPATCHER_LOG_FORMAT": "auto",
        "DISPATCHER_LOG_TEXT": "0",
        "DISPATCHER_BATCH": "128",
        "DISPATCHER_SENDERS": "8",
        "DISPATCHER_SERVE_HOST": "127.0.0.1",
        "DISPATCHER_SERVE_PORT": "8910",
        "DISPATCHER_METRICS_CATEGORIES": "100",
    }


def test_a_documented_default_is_the_real_one() -> None:
    simple = {row.name: row.default for row in variables() if row.default and " " not in row.default}
    assert load_settings(simple, None)[0] == load_settings({}, None)[0]


def test_the_settings_import_no_redis_no_rq_and_no_slack() -> None:
    program = "import sys, dispatcher.settings; print({'redis', 'rq', 'slack_sdk'} & set(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert answer.stdout == "set()\n"

"""Plain settings: where the quick way takes a value, the one that judges takes the same value, and warns of nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import ConfigError
from dispatcher.settings.environment import Settings, variables
from dispatcher.settings.loading import load_settings
from dispatcher.settings.plain import JUDGED as ALSO_KNOWN
from dispatcher.settings.plain import PlainSettings, plain_settings

PLAIN = {
    "DISPATCHER_REDIS_URL": "redis://app:s3cr3t%2Fs3cr3t@db-1.example:6379/2",
    "DISPATCHER_DATA_DIR": "/var/lib/d",
    "DISPATCHER_NAMESPACE": "team-a.prod",
    "DISPATCHER_QUEUE": "mail:out",
    "DISPATCHER_LIMITS_FILE": "conf/l.yaml",
    "DISPATCHER_MAX_WAITING": "5",
    "DISPATCHER_SLACK_TOKEN": "xoxb-0123-s3cr3t",
    "DISPATCHER_SINK": "console",
    "DISPATCHER_LOG_LEVEL": "debug",
    "DISPATCHER_LOG_FORMAT": "json",
    "DISPATCHER_LOG_TEXT": "80",
    "DISPATCHER_BATCH": "12",
    "DISPATCHER_SENDERS": "3",
    "PATH": "/usr/bin:~",
}
JUDGED = {
    "slack_webhook_url", "slack_base_url", "slack_timeout", "lease", "reconcile_grace", "dedup_window", "serve_host",
    "serve_port", "serve_tokens_file", "serve_trusted_hosts", "metrics_categories",
}  # fmt: skip
"""Settings that are never plain: where one is set, a command takes the time to read all in full."""
FIELDS = (
    "data_dir", "namespace", "queue", "limits_file", "max_waiting", "dedup_window", "by_webhook", "metrics_categories",
)  # fmt: skip


def check_agreement(plain: PlainSettings, env: dict[str, str], env_file: Path | None = None) -> None:
    judged, warnings = load_settings(env, env_file)
    assert warnings == ()
    assert [getattr(plain, name) for name in FIELDS] == [getattr(judged, name) for name in FIELDS]
    for ours, theirs in ((plain.redis_url, judged.redis_url), (plain.slack_token, judged.slack_token)):
        assert (ours and ours.get_secret_value()) == (theirs and theirs.get_secret_value())
    assert plain.secrets() == judged.secrets()


@pytest.mark.parametrize("env", [{}, PLAIN], ids=["none", "all"])
def test_usual_settings_are_plain(env: dict[str, str]) -> None:
    plain = plain_settings(env, None)
    assert plain is not None
    check_agreement(plain, env)
    assert "s3cr3t" not in repr(plain)


def test_each_setting_is_plain_or_is_known_not_to_be() -> None:
    plain = {name.removeprefix("DISPATCHER_").lower() for name in PLAIN if name.startswith("DISPATCHER_")}
    said = "add a form to _PLAIN of settings/plain.py and a value to PLAIN here, or the name to JUDGED"
    assert set(Settings.model_fields) - plain - JUDGED == set(), said


def test_each_variable_that_is_known_is_known_here_too() -> None:
    names = {name for variable in variables() for name in variable.names}
    assert {f"DISPATCHER_{setting.upper()}" for setting in ALSO_KNOWN} == names - set(PLAIN)


@pytest.mark.parametrize("name", ["DISPATCHER_REDIS_ULR", "dispatcher_batch", "DISPATCHER_QUEUE_FILE"])
def test_a_name_that_is_not_known_is_left_to_the_full_reader_also_where_some_settings_are_needed(name: str) -> None:
    known = {"DISPATCHER_SERVE_PORT": "x", "DISPATCHER_SLACK_TOKEN_FILE": "x", "SLACK_BOT_TOKEN": "x"}
    assert plain_settings(known, None, ("queue",)) is not None
    assert plain_settings({**known, name: "x"}, None, ("queue",)) is None


def test_a_file_and_the_environment_are_plain_together(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("SLACK_BOT_TOKEN=xoxb-1\nREDIS_URL=unix:///run/redis.sock?db=3\n", encoding="utf-8")
    env = {"DISPATCHER_QUEUE": "q"}
    plain = plain_settings(env, file)
    assert plain is not None
    check_agreement(plain, env, file)


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"DISPATCHER_QUEU": "x"}, id="a misspelt name"),
        pytest.param({"dispatcher_queue": "x"}, id="a name in lower case"),
        pytest.param({"DISPATCHER_BATCH": "many"}, id="a wrong value of a worker"),
        pytest.param({"DISPATCHER_BATCH": "0"}, id="a wrong number"),
        pytest.param({"DISPATCHER_QUEUE": "x:high"}, id="a lane"),
        pytest.param({"DISPATCHER_QUEUE": "x:namespace"}, id="the namespace of another queue"),
        pytest.param({"DISPATCHER_LEASE": "30"}, id="a setting that others decide about"),
        pytest.param({"DISPATCHER_SLACK_TOKEN_FILE": "token"}, id="a file to be read"),
        pytest.param({"DISPATCHER_SLACK_TOKEN": "xoxp-1"}, id="a token with a warning"),
        pytest.param({"DISPATCHER_REDIS_URL": "redis://db:99999/0"}, id="a port that cannot be"),
        pytest.param({"DISPATCHER_REDIS_URL": "redis://db?protocol=3"}, id="an option"),
        pytest.param({"DISPATCHER_REDIS_URL": "redis://:p@ss@db"}, id="a password that is not encoded"),
        pytest.param({"DISPATCHER_DATA_DIR": "~/d"}, id="a home folder"),
        pytest.param({"DISPATCHER_REDIS_URL": "redis://a", "REDIS_URL": "redis://b"}, id="two names of one setting"),
    ],
)
def test_settings_that_are_not_plain_are_left_to_the_full_reader(env: dict[str, str]) -> None:
    assert plain_settings(env, None) is None


def test_a_line_that_is_not_understood_is_left_to_the_full_reader(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("no assignment\n", encoding="utf-8")
    assert plain_settings({}, file) is None


ALPHABETS = st.sampled_from(["redis:/@a.b-1:0?", "aZ09_.:-~/ ", "0123456789", "xob-Az0", "highlow:inter"])
NAMES = st.sampled_from([*PLAIN, "DISPATCHER_LEASE", "DISPATCHER_SLACK_WEBHOOK_URL", "REDIS_URL", "SLACK_BOT_TOKEN"])


@given(st.dictionaries(NAMES, ALPHABETS.flatmap(lambda letters: st.text(letters, max_size=24)), max_size=3))
def test_no_text_is_taken_that_is_judged_otherwise(env: dict[str, str]) -> None:
    plain = plain_settings(env, None)
    if plain is not None:
        check_agreement(plain, env)


HOSTS = st.from_regex(r"rediss?://([a-z.-]*:[a-z0-9.%]+@)?[a-z0-9.-]{1,8}(:[0-9]{1,6})?(/[0-9]{0,4})?", fullmatch=True)


@given(HOSTS)
def test_no_address_is_taken_that_is_judged_otherwise(url: str) -> None:
    plain = plain_settings({"DISPATCHER_REDIS_URL": url}, None)
    try:
        load_settings({"DISPATCHER_REDIS_URL": url}, None)
    except ConfigError:
        assert plain is None
        return
    if plain is not None:
        check_agreement(plain, {"DISPATCHER_REDIS_URL": url})

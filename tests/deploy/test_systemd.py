"""What the systemd unit promises; `make check-deploy` has systemd verify it."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Final

from dispatcher.cli.commands import dispatcher
from dispatcher.cli.exits import CONFIGURATION
from dispatcher.settings.environment import variables
from dispatcher.settings.loading import load_settings
from dispatcher.settings.sources import ENV_FILE as ENV_NAME
from tests.support.commands import run

CHECKOUT: Final = Path(__file__).resolve().parents[2]
UNIT: Final = CHECKOUT / "deploy" / "systemd" / "dispatcher-worker@.service"
ENV_FILE: Final = CHECKOUT / "deploy" / "systemd" / "dispatcher.env"
KNOWN: Final = {name for variable in variables() for name in variable.names}
STOP_BEYOND_TIMEOUT: Final = timedelta(seconds=5)


def service() -> dict[str, list[str]]:
    """The section [Service]: every value of each key."""
    text = UNIT.read_text(encoding="utf-8").partition("[Service]\n")[2].partition("\n[")[0]
    found = defaultdict(list)
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


def environment() -> dict[str, str]:
    return dict(line.split("=", 1) for line in service()["Environment"])


def test_each_instance_is_one_worker_process() -> None:
    (command,) = service()["ExecStart"]
    assert command == "/opt/dispatcher/bin/dispatcher worker"
    assert "worker" in dispatcher.commands
    assert "%i" in UNIT.read_text(encoding="utf-8")


def test_a_stop_is_one_sigterm_to_the_worker_and_time_to_finish_its_posts() -> None:
    assert service()["KillSignal"] == ["SIGTERM"]
    assert service()["KillMode"] == ["mixed"]
    settings, _ = load_settings({}, env_file=ENV_FILE)
    (stop_s,) = service()["TimeoutStopSec"]
    assert timedelta(seconds=int(stop_s)) > settings.slack_timeout + STOP_BEYOND_TIMEOUT


def test_a_worker_is_started_again_unless_its_configuration_is_wrong() -> None:
    assert service()["Restart"] == ["on-failure"]
    assert service()["RestartPreventExitStatus"] == [str(CONFIGURATION)]
    assert service()["RestartForceExitStatus"] == ["SIGHUP"]


def test_a_reload_publishes_the_limits_file_of_the_unit() -> None:
    (command,) = service()["ExecReload"]
    assert command == "/opt/dispatcher/bin/dispatcher limits apply ${DISPATCHER_LIMITS_FILE}"
    assert "DISPATCHER_LIMITS_FILE" in environment()


def test_a_reload_works_without_the_credentials_that_systemd_gives_to_the_worker_alone(
    redis_url: str, tmp_path: Path
) -> None:
    given = environment() | {
        "DISPATCHER_REDIS_URL": redis_url,
        "DISPATCHER_LIMITS_FILE": str(CHECKOUT / "config" / "limits.yaml"),
        "DISPATCHER_SLACK_TOKEN_FILE": str(tmp_path / "slack_token"),
    }
    (command,) = service()["ExecReload"]
    _, *arguments = command.replace("${DISPATCHER_LIMITS_FILE}", given["DISPATCHER_LIMITS_FILE"]).split()
    assert run(*arguments, **given).code == 0
    assert run("status", "--check", **given).code == 0
    assert run("serve", "--host", "192.0.2.1", **given).err.startswith("dispatcher: error: the address 192.0.2.1 ")
    refused = run("worker", "--burst", **given)
    assert (refused.code, "slack_token', which cannot be read" in refused.err) == (CONFIGURATION, True)


def test_the_token_is_a_credential_of_the_unit_and_stands_in_no_environment() -> None:
    (credential,) = service()["LoadCredential"]
    name, _, path = credential.partition(":")
    assert path == "/etc/dispatcher/slack-token"
    assert environment()["DISPATCHER_SLACK_TOKEN_FILE"] == f"%d/{name}"
    assert "DISPATCHER_SLACK_TOKEN" not in environment()


def test_the_worker_is_not_root_and_writes_nothing() -> None:
    expected = {"DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes"}
    assert {key: service()[key] for key in expected} == {key: [value] for key, value in expected.items()}
    assert service()["CapabilityBoundingSet"] == [""]
    assert not {"User", "StateDirectory", "ReadWritePaths"} & service().keys()


def test_every_variable_of_the_unit_is_known() -> None:
    assert {name for name in environment() if name.startswith("DISPATCHER_")} <= KNOWN


def test_the_sample_of_an_environment_is_accepted_and_names_known_variables_only() -> None:
    settings, warnings = load_settings({}, env_file=ENV_FILE)
    assert warnings == ()
    assert settings.redis_url is not None
    assert str(settings.limits_file) == environment()["DISPATCHER_LIMITS_FILE"]
    text = ENV_FILE.read_text(encoding="utf-8")
    assert set(re.findall(r"^#? ?([A-Z_]+)=", text, flags=re.MULTILINE)) <= KNOWN


def test_the_set_up_installs_files_there_are_to_where_the_unit_looks() -> None:
    text = UNIT.read_text(encoding="utf-8").partition("[Unit]")[0]
    installed = {place: source for source, place in re.findall(r"install -m \d+ (\S+) +(/\S+)", text)}
    for place in (service()["EnvironmentFile"][0], environment()["DISPATCHER_LIMITS_FILE"], "/etc/systemd/system/"):
        assert (CHECKOUT / installed[place]).is_file()
    assert "/etc/dispatcher/slack-token" in installed


def test_the_set_up_installs_the_package_from_the_checkout_because_it_is_on_no_index() -> None:
    units = [path.read_text(encoding="utf-8") for path in UNIT.parent.glob("*.service")]
    assert [re.findall(r"pip install '?([^'\s]+)", text)[:1] for text in sorted(units)] == [[".[serve]"], ["."]]


def test_the_set_up_has_a_folder_for_each_version_so_that_an_upgrade_leaves_the_old_one() -> None:
    text = UNIT.read_text(encoding="utf-8").partition("[Unit]")[0]
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    folder = f"dispatcher-{version}"
    for line in (
        f"python3 -m venv /opt/{folder} ",
        f"/opt/{folder}/bin/pip install .\n",
        f"ln -sfn {folder} /opt/dispatcher ",
    ):
        assert f"#   {line}" in text
    serve = (UNIT.parent / "dispatcher-serve.service").read_text(encoding="utf-8")
    assert f"#   /opt/{folder}/bin/pip install '.[serve]'\n" in serve


def test_the_set_up_links_the_environment_to_where_commands_look_for_it() -> None:
    (path,) = service()["EnvironmentFile"]
    assert f"ln -s {Path(path).name} {Path(path).parent}/{ENV_NAME} " in UNIT.read_text(encoding="utf-8")


def test_the_sample_of_a_crontab_gives_doctor_the_token_that_only_systemd_reads() -> None:
    operations = (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^0 \* \* \* \*  cd (\S+) && (\S+)=(\S+) dispatcher doctor ", operations, flags=re.MULTILINE)
    assert line == ("/etc/dispatcher", "DISPATCHER_SLACK_TOKEN_FILE", "slack-token")


def test_no_unit_runs_in_the_folder_of_that_link_because_its_user_may_not_read_it() -> None:
    units = [path.read_text(encoding="utf-8") for path in UNIT.parent.glob("*.service")]
    assert [re.findall(r"^(?:DynamicUser|WorkingDirectory)=(.*)$", text, flags=re.MULTILINE) for text in units] == [
        ["/", "yes"]
    ] * 2


def test_the_unit_of_serve_runs_it_with_tokens_in_the_sandbox_of_the_worker() -> None:
    text = (UNIT.parent / "dispatcher-serve.service").read_text(encoding="utf-8")
    assert "ExecStart=/opt/dispatcher/bin/dispatcher serve\n" in text
    name = re.search(r"LoadCredential=(\w+):/etc/dispatcher/serve-tokens", text)
    assert name is not None
    assert f"Environment=DISPATCHER_SERVE_TOKENS_FILE=%d/{name[1]}\n" in text
    assert set(re.findall(r"^Environment=(DISPATCHER_\w+)=", text, re.MULTILINE)) <= KNOWN
    assert text.partition("DynamicUser=")[2] == UNIT.read_text(encoding="utf-8").partition("DynamicUser=")[2]

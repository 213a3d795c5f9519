"""What docker-compose.yml promises, as far as it shows without an engine; `make check-deploy` has Compose read it."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from ruamel.yaml import YAML

from dispatcher.app.servers import OLDEST_SERVER
from dispatcher.cli.commands import dispatcher
from dispatcher.settings.checks import span
from dispatcher.settings.loading import load_settings
from dispatcher.stand_in import StandIn
from tests.support.servers import RedisServer

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMPOSE: Final[dict[str, Any]] = YAML(typ="safe", pure=True).load(CHECKOUT / "docker-compose.yml")
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
OURS: Final = sorted(name for name, service in SERVICES.items() if "build" in service)
SERVERS: Final = sorted(name for name, service in SERVICES.items() if "valkey" in service["image"])
WORKERS: Final = ("worker", "demo-worker")
STOP_BEYOND_TIMEOUT: Final = timedelta(seconds=5)


def mounts(service: str) -> dict[str, str]:
    """Where each volume of a service comes from, by its place in the container."""
    return {line.split(":")[1]: line.split(":")[0] for line in SERVICES[service].get("volumes", [])}


def networks(service: str) -> set[str]:
    """The networks a service is on, its own or those of the service whose namespace it shares."""
    mode = SERVICES[service].get("network_mode", "")
    return networks(mode.removeprefix("service:")) if mode else set(SERVICES[service]["networks"])


def environment(service: str) -> dict[str, str]:
    return dict(SERVICES[service].get("environment", {}))


def test_the_page_reaches_a_browser_of_this_host_alone_where_the_comment_signs_are_taken_off() -> None:
    text = (CHECKOUT / "docker-compose.yml").read_text(encoding="utf-8")
    changed = YAML(typ="safe", pure=True).load(re.sub(r"^( +)# (browser:|ports:)", r"\1\2", text, flags=re.MULTILINE))
    assert changed["services"]["web"]["ports"] == ["127.0.0.1:8910:8910"]
    (added,) = changed["services"]["web"]["networks"].keys() - networks("web")
    assert changed["networks"][added] == {}


def test_a_plain_up_starts_the_server_the_workers_and_http() -> None:
    assert {name for name, service in SERVICES.items() if "profiles" not in service} == {"server", "worker", "web"}
    assert set(OURS) | set(SERVERS) == SERVICES.keys()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_service_is_reached_from_outside_or_may_do_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert not {"ports", "expose", "privileged", "cap_add", "devices", "pid", "ipc"} & service.keys()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("user") != "root"


def test_the_head_says_how_other_projects_join_the_network_of_the_server() -> None:
    head = (CHECKOUT / "docker-compose.yml").read_text(encoding="utf-8").partition("\nname:")[0]
    (alias,) = SERVICES["server"]["networks"]["queue"]["aliases"]
    assert f"redis://{alias}:6379/0" in head
    assert f"external: true, name: {COMPOSE['networks']['queue']['name']}}}" in head


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_on_internal_networks_only(name: str) -> None:
    assert all(COMPOSE["networks"][network]["internal"] for network in networks(name))


def test_data_of_the_server_outlives_its_container() -> None:
    assert mounts("server")["/data"] in COMPOSE["volumes"]
    release = re.fullmatch(r"valkey/valkey:(\d+)\.\d+", SERVICES["server"]["image"])
    assert release is not None
    assert int(release[1]) >= OLDEST_SERVER


@pytest.mark.parametrize("name", SERVERS)
def test_the_arguments_of_a_server_open_it_to_its_network_and_keep_what_the_books_rely_on(name: str) -> None:
    program, config, *options = SERVICES[name]["command"]
    assert program == "valkey-server"
    assert options[:2] == ["--bind", "*"]
    expected = {"appendonly": "yes", "maxmemory-policy": "noeviction", "protected-mode": "no"}
    with (
        RedisServer(config=CHECKOUT / mounts(name)[config], options=options[2:]) as server,
        server.client(decode_responses=True) as client,
    ):
        assert client.config_get(*expected) == expected


def test_server_and_workers_are_started_again_also_after_a_restart_of_the_machine() -> None:
    assert SERVICES["server"]["restart"] == SERVICES["worker"]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", WORKERS)
def test_workers_scale(name: str) -> None:
    assert not {"container_name", "hostname", "ports"} & SERVICES[name].keys()


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_may_take_longer_to_stop_than_a_post_and_five_seconds(name: str) -> None:
    settings, _ = load_settings(readable(environment(name)), env_file=None)
    assert span(SERVICES[name]["stop_grace_period"]) > settings.slack_timeout + STOP_BEYOND_TIMEOUT


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_known_and_every_value_accepted(name: str) -> None:
    _, warnings = load_settings(readable(environment(name)), env_file=None)
    assert warnings == ()


def readable(env: dict[str, str]) -> dict[str, str]:
    """Without the file of the secret, which is in the container alone."""
    return {name: value for name, value in env.items() if not name.endswith("_FILE") or name.endswith("LIMITS_FILE")}


@pytest.mark.parametrize("name", [name for name in OURS if name != "slack-stand-in"])
def test_the_server_that_is_named_is_there_on_a_shared_network(name: str) -> None:
    url = urlsplit(environment(name)["DISPATCHER_REDIS_URL"])
    assert url.hostname in SERVERS
    assert url.port == 6379
    assert networks(name) & networks(url.hostname)


@pytest.mark.parametrize("name", WORKERS)
def test_workers_of_a_server_have_the_limits_of_the_checkout(name: str) -> None:
    place = Path(environment(name)["DISPATCHER_LIMITS_FILE"])
    assert CHECKOUT / mounts(name)[str(place.parent)] / place.name == CHECKOUT / "config" / "limits.yaml"


def test_the_head_says_how_to_publish_the_limits_that_the_workers_read() -> None:
    head = (CHECKOUT / "docker-compose.yml").read_text(encoding="utf-8").partition("\nname:")[0]
    file = environment("worker")["DISPATCHER_LIMITS_FILE"]
    assert f"docker compose exec worker dispatcher limits apply {file}\n" in head


def test_the_token_of_slack_reaches_the_workers_as_a_file_and_nobody_else() -> None:
    assert {name for name, service in SERVICES.items() if "secrets" in service} == {"worker"}
    ((secret, place),) = COMPOSE["secrets"].items()
    assert environment("worker")["DISPATCHER_SLACK_TOKEN_FILE"] == f"/run/secrets/{secret}"
    assert SERVICES["worker"]["secrets"] == [secret]
    file = place["file"].partition(":-")[2].rstrip("}")
    assert not (CHECKOUT / file).is_relative_to(CHECKOUT)


def test_http_writes_its_tokens_at_its_first_start_where_its_user_may() -> None:
    file = Path(environment("web")["DISPATCHER_SERVE_TOKENS_FILE"])
    assert "--create-tokens" in SERVICES["web"]["command"]
    assert mounts("web")[str(file.parent)] in COMPOSE["volumes"]
    assert [name for name in SERVICES if mounts("web")[str(file.parent)] in mounts(name).values()] == ["web"]
    made = f"install --directory --owner 10001 --group 10001 --mode 700 {file.parent}"
    assert made in (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    assert f"docker compose exec web cat {file} " in (CHECKOUT / "docker-compose.yml").read_text(encoding="utf-8")


def test_every_folder_that_is_mounted_is_there_and_read_only() -> None:
    lines = [line for service in SERVICES.values() for line in service.get("volumes", [])]
    for source, _, *mode in (line.split(":") for line in lines):
        if source not in COMPOSE["volumes"]:
            assert (CHECKOUT / source).exists()
            assert mode == ["ro"]


def test_the_demo_reaches_neither_the_real_server_nor_slack() -> None:
    demo = {name for name, service in SERVICES.items() if "demo" in " ".join(service.get("profiles", []))}
    assert {"demo-server", "slack-stand-in", "demo-worker", "demo-send"} == demo
    for name in demo:
        assert networks(name) == {"demo"}
        assert not set(mounts(name).values()) & COMPOSE["volumes"].keys()
    assert COMPOSE["networks"]["demo"]["internal"] is True
    assert "demo" not in networks("server") | networks("worker")


def test_the_end_of_the_demo_names_its_services_because_down_ends_the_real_ones_as_well() -> None:
    head = (CHECKOUT / "docker-compose.yml").read_text(encoding="utf-8").partition("\nname:")[0]
    (ended,) = re.findall(r"^#   docker compose --profile demo rm --stop --force ([a-z -]+) #", head, re.MULTILINE)
    assert set(ended.split()) == {name for name, service in SERVICES.items() if service.get("profiles") == ["demo"]}
    assert not re.search(r"^#   docker compose .*\bdown$", head, re.MULTILINE)


def test_the_demo_worker_shares_the_loopback_of_the_stand_in_and_has_its_token() -> None:
    command = SERVICES["slack-stand-in"]["command"]
    env = environment("demo-worker")
    url = urlsplit(env["DISPATCHER_SLACK_BASE_URL"])
    assert SERVICES["demo-worker"]["network_mode"] == "service:slack-stand-in"
    with StandIn(0) as stand_in:
        own = urlsplit(stand_in.base_url)
        assert (url.scheme, url.hostname, url.path) == (own.scheme, own.hostname, own.path)
        assert env["DISPATCHER_SLACK_TOKEN"] == stand_in.token
    assert str(url.port) == command[command.index("--port") + 1]
    assert f"127.0.0.1:{url.port}/ledger" in SERVICES["slack-stand-in"]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", OURS)
def test_our_services_run_a_command_there_is_in_the_image_of_this_version(name: str) -> None:
    service = SERVICES[name]
    assert service["image"] == f"notification-dispatcher:{PROJECT['version']}"
    arguments = service.get("entrypoint", ["dispatcher"])[1:] + service.get("command", [])
    assert (arguments or ["worker"])[0] in dispatcher.commands


def test_a_service_starts_only_after_its_dependencies_answer() -> None:
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert SERVICES[needed]["healthcheck"]["test"][0] == "CMD"

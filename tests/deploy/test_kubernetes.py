"""What the Kubernetes manifests promise: names that the program knows, and time to finish the posts in flight."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from dispatcher.cli.commands import dispatcher
from dispatcher.settings.environment import variables
from dispatcher.settings.loading import load_settings
from dispatcher.store.rq_keys import QueueKeys

CHECKOUT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = CHECKOUT / "deploy" / "kubernetes"
KNOWN: Final = {name for variable in variables() for name in variable.names}
STOP_BEYOND_TIMEOUT: Final = timedelta(seconds=5)


def documents(name: str) -> Iterator[dict[str, Any]]:
    yield from YAML(typ="safe", pure=True).load_all((FOLDER / name).read_text(encoding="utf-8"))


def one(name: str, kind: str) -> dict[str, Any]:
    (found,) = [each for each in documents(name) if each["kind"] == kind]
    return found


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = one("worker.yaml", "Deployment")["spec"]["template"]["spec"]
    return spec


def worker() -> dict[str, Any]:
    (container,) = pod()["containers"]
    found: dict[str, Any] = container
    return found


def environment() -> dict[str, str]:
    """The variables; those of a secret with a value in its place."""
    return {each["name"]: each.get("value", "redis://redis/0") for each in worker()["env"]}


def test_every_manifest_is_looked_at_here() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {"worker.yaml", "scaledobject.yaml", "web.yaml"}


def test_the_head_says_how_to_publish_the_limits_that_the_workers_read() -> None:
    head = (FOLDER / "worker.yaml").read_text(encoding="utf-8").partition("\napiVersion:")[0]
    file = environment()["DISPATCHER_LIMITS_FILE"]
    name = one("worker.yaml", "Deployment")["metadata"]["name"]
    assert f"kubectl exec deployment/{name} -- dispatcher limits apply {file}\n" in head


def test_every_variable_is_one_that_is_read_and_has_a_value_that_is_valid(tmp_path: Path) -> None:
    assert set(environment()) <= KNOWN
    token = tmp_path / "slack-token"
    token.write_text("xoxb-made-up")
    given = {**environment(), "DISPATCHER_SLACK_TOKEN_FILE": str(token)}
    settings, warnings = load_settings(given, None)
    assert warnings == ()
    assert settings.slack_token is not None


def test_the_command_is_one_of_the_program() -> None:
    assert worker()["args"] == ["worker"]
    assert "worker" in dispatcher.commands
    assert 'ENTRYPOINT ["dispatcher"]' in (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")


def test_a_stop_leaves_time_to_finish_the_posts() -> None:
    settings, _ = load_settings(
        {name: text for name, text in environment().items() if not name.endswith("_FILE")}, None
    )
    grace = timedelta(seconds=pod()["terminationGracePeriodSeconds"])
    assert grace > settings.slack_timeout + STOP_BEYOND_TIMEOUT


def test_the_probe_is_the_images_own_health_check_and_waits_as_long_as_a_start_may_take() -> None:
    probe = worker()["livenessProbe"]
    image = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    assert f"CMD {json.dumps(probe['exec']['command'])}" in image
    assert worker()["readinessProbe"]["exec"]["command"] == [*probe["exec"]["command"], "--ready"]
    assert probe["initialDelaySeconds"] > 30
    assert f"--interval={probe['periodSeconds']}s --timeout={probe['timeoutSeconds']}s" in image


def test_a_worker_is_not_restarted_before_its_server_has_been_away_for_ten_minutes() -> None:
    probe = worker()["livenessProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= 600


def test_the_pod_runs_as_the_images_user_on_a_file_system_that_is_read_only() -> None:
    image = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    assert f"USER {pod()['securityContext']['runAsUser']}:" in image
    assert worker()["securityContext"]["readOnlyRootFilesystem"] is True
    assert worker()["image"] in (CHECKOUT / "docker-compose.yml").read_text(encoding="utf-8")


def test_every_secret_and_volume_that_is_used_is_there() -> None:
    mounts = {each["name"]: each["mountPath"] for each in worker()["volumeMounts"]}
    assert set(mounts) == {each["name"] for each in pod()["volumes"]}
    given = environment()
    assert given["DISPATCHER_SLACK_TOKEN_FILE"].startswith(mounts["secrets"])
    assert given["DISPATCHER_LIMITS_FILE"].startswith(mounts["limits"])
    head = (FOLDER / "worker.yaml").read_text(encoding="utf-8").partition("apiVersion")[0]
    (reference,) = [each["valueFrom"]["secretKeyRef"] for each in worker()["env"] if "valueFrom" in each]
    login = one("scaledobject.yaml", "TriggerAuthentication")["spec"]["secretTargetRef"]
    for key in (reference["key"], "slack-token", *(each["key"] for each in login)):
        assert f"--from-file={key}=" in head


def test_the_lists_that_scale_the_workers_are_the_lanes_of_their_queue() -> None:
    spec = one("scaledobject.yaml", "ScaledObject")["spec"]
    names = [trigger["metadata"]["listName"] for trigger in spec["triggers"]]
    assert tuple(names) == QueueKeys(environment()["DISPATCHER_QUEUE"]).lanes
    assert spec["scaleTargetRef"]["name"] == one("worker.yaml", "Deployment")["metadata"]["name"]
    login = one("scaledobject.yaml", "TriggerAuthentication")["metadata"]["name"]
    assert {trigger["authenticationRef"]["name"] for trigger in spec["triggers"]} == {login}


def test_the_autoscaler_keeps_at_least_one_worker() -> None:
    assert one("scaledobject.yaml", "ScaledObject")["spec"]["minReplicaCount"] >= 1


def web() -> dict[str, Any]:
    (container,) = one("web.yaml", "Deployment")["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def test_the_web_pods_have_valid_settings_tokens_and_the_port_that_the_service_leads_to() -> None:
    given = {each["name"]: each.get("value", "redis://redis/0") for each in web()["env"]}
    settings, warnings = load_settings(given, None)
    assert warnings == ()
    assert web()["args"] == ["serve"]
    assert "serve" in dispatcher.commands
    (port,) = web()["ports"]
    assert settings.serve_port == port["containerPort"]
    (mount,) = [each for each in web()["volumeMounts"] if each["name"] == "tokens"]
    assert str(settings.serve_tokens_file) == f"{mount['mountPath']}/tokens"
    (service_port,) = one("web.yaml", "Service")["spec"]["ports"]
    assert service_port["targetPort"] == port["name"]
    labels = one("web.yaml", "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert one("web.yaml", "Service")["spec"]["selector"] == labels


def test_the_probes_of_the_web_pods_ask_the_open_paths() -> None:
    paths = [web()[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
    assert paths == ["/-/healthy", "/-/ready"]

"""The files in `deploy/`: valid for their tools, and consistent with each other and with the
product.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from deploy.local.topology import render_nginx

from onetool.cli.main import make_parser
from onetool.cli.serve import PORT
from onetool.server.http.auth import PUBLIC_PATHS
from onetool.settings import load
from onetool.settings.model import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
KUBERNETES_VERSION = "1.34"
VARIABLES = {"ONETOOL_STORE", *load._NO_OVERRIDES}
SETTINGS = yaml.safe_load((DEPLOY / "onetool.yaml").read_text())


def read_documents(file: Path) -> list[Any]:
    return list(yaml.safe_load_all(file.read_text("utf-8")))


def list_manifests(*kinds: str) -> Iterator[Any]:
    found = (document for file in MANIFESTS for document in read_documents(file))
    yield from (each for each in found if not kinds or each["kind"] in kinds)


def list_templates() -> Iterator[tuple[Any, Any]]:
    """Yield each Deployment and Job with its only container."""
    for each in list_manifests("Deployment", "Job"):
        (container,) = each["spec"]["template"]["spec"]["containers"]
        yield each, container


def read_compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_manifests_match_the_schemas_of_kubernetes(file: Path) -> None:
    for document in read_documents(file):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
    broken = read_documents(file)[0] | {"spec": {"unknown": 1}, "data": 1}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES_VERSION, strict=True)


def test_the_compose_file_matches_its_schema_and_names_existing_files() -> None:
    schema, compose = get_builtin_schema("vendor.compose-spec"), read_compose()
    jsonschema_rs.validate(schema, compose)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, compose | {"services": {"nginx": {"imagee": "nginx"}}})
    files = {name: DEPLOY / config["file"] for name, config in compose["configs"].items()}
    assert all(file.is_file() for file in files.values()), files
    for service in compose["services"].values():
        assert {config["source"] for config in service.get("configs", ())} <= files.keys()
        assert set(service.get("depends_on", ())) <= compose["services"].keys()
    wanted = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text("utf-8")))
    assert wanted == set(
        re.findall(r"^(\w+)=", (DEPLOY / ".env.example").read_text("utf-8"), re.MULTILINE)
    )
    assert compose["services"]["replica"]["deploy"]["replicas"] == 2


def test_selectors_ports_and_references_of_manifests_match() -> None:
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each, _ in list_templates()
    }
    ports = {each["metadata"]["name"]: c.get("ports", []) for each, c in list_templates()}
    for each in list_manifests("Deployment", "PodDisruptionBudget"):
        assert each["spec"]["selector"]["matchLabels"] == labels[each["metadata"]["name"]]
    for service in list_manifests("Service"):
        (chosen,) = (name for name, found in labels.items() if found == service["spec"]["selector"])
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= {
            port["name"] for port in ports[chosen]
        }
    for policy in list_manifests("NetworkPolicy"):
        known = [{}, *({"matchLabels": found} for found in labels.values())]
        assert (
            policy["spec"]["podSelector"] in known
            or "matchExpressions" in policy["spec"]["podSelector"]
        )
    (scaler,), services = list_manifests("HorizontalPodAutoscaler"), list_manifests("Service")
    assert scaler["spec"]["scaleTargetRef"]["name"] in labels
    (ingress,) = list_manifests("Ingress")
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"]["name"] in {
        service["metadata"]["name"] for service in services
    }


def test_every_reference_to_a_secret_a_configuration_and_a_file_exists() -> None:
    customization = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text("utf-8"))
    listed = {DEPLOY / name for name in customization["resources"]}
    assert listed == {file for file in MANIFESTS if not file.name.endswith(".example.yaml")}
    maps = {
        each["name"]: [name.rpartition("=")[2] for name in each["files"]]
        for each in customization["configMapGenerator"]
    }
    assert all((DEPLOY / name).is_file() for names in maps.values() for name in names)
    (secret,) = list_manifests("Secret")
    for each, container in list_templates():
        volumes = each["spec"]["template"]["spec"]["volumes"]
        assert {
            volume["configMap"]["name"] for volume in volumes if "configMap" in volume
        } <= maps.keys()
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in volumes
        }
        references = [
            variable["valueFrom"]["secretKeyRef"] for variable in container.get("env", ())
        ]
        assert all(
            one["name"] == secret["metadata"]["name"] and one["key"] in secret["stringData"]
            for one in references
        )


def list_environments() -> Iterator[set[str]]:
    for _, container in list_templates():
        if container["image"] == "onetool":
            yield {variable["name"] for variable in container["env"]}
    for service in read_compose()["services"].values():
        if service["image"].startswith("onetool"):
            yield set(service["environment"])


def test_variables_commands_probes_and_ports_are_those_of_the_product() -> None:
    tokens = {token["token_env"] for token in SETTINGS["auth"]["tokens"]}
    assert all(
        names <= VARIABLES | tokens and {"ONETOOL_STORE", *tokens} <= names
        for names in list_environments()
    )
    Settings.model_validate(SETTINGS)
    containers = [container for _, container in list_templates() if container["image"] == "onetool"]
    commands = [container["args"] for container in containers]
    commands += [
        service["command"]
        for service in read_compose()["services"].values()
        if "command" in service
    ]
    commands.append(
        json.loads(
            re.findall(r"^CMD (.*)", (DEPLOY / "Containerfile").read_text("utf-8"), re.MULTILINE)[0]
        )
    )
    assert sorted({words[0] for words in commands}) == ["serve", "store", "worker"]
    for name, *arguments in commands:
        options = make_parser(name).parse_args(arguments)
        queues = {
            pack["queue"]: DEPLOY / "packs" / name for name, pack in SETTINGS["tools"].items()
        }
        assert name != "worker" or all(queues[queue].is_dir() for queue in options.queue)
    served = [words for words in commands if words[0] == "serve"]
    assert all(words[-1] == str(PORT) for words in served)
    for each, container in list_templates():
        is_replica = each["metadata"]["name"] == "onetool-replicas"
        probes = [
            probe["httpGet"]["path"]
            for name, probe in container.items()
            if "httpGet" in (probe if name.endswith("Probe") else ())
        ]
        assert set(probes) <= PUBLIC_PATHS
        assert not is_replica or {"/healthz", "/readyz"} == set(probes)
        assert not is_replica or container["ports"][0]["containerPort"] == PORT
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_the_image_has_no_secrets_and_does_not_run_as_root() -> None:
    lines = (DEPLOY / "Containerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
    words = [
        shlex.split(line, comments=True) for line in lines if line and not line.startswith("#")
    ]
    instructions = [(parts[0], parts[1:]) for parts in words]
    assert {name for name, _ in instructions} <= {
        *(
            "FROM",
            "COPY",
            "ENV",
            "WORKDIR",
            "RUN",
            "USER",
            "EXPOSE",
            "STOPSIGNAL",
            "HEALTHCHECK",
            "ENTRYPOINT",
            "CMD",
        ),
    }
    last_stage = max(index for index, (name, _) in enumerate(instructions) if name == "FROM")
    assert ("USER", ["10001:10001"]) in instructions[last_stage:]
    copied = [
        parts
        for name, parts in instructions
        if name == "COPY" and not parts[0].startswith("--from")
    ]
    assert all((ROOT / path).exists() for *paths, _ in copied for path in paths)
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert all(f"!{path}" in ignored for *paths, _ in copied for path in paths)
    settings = [variable for name, parts in instructions if name == "ENV" for variable in parts]
    assert not [
        each for each in settings if re.search("KEY|TOKEN|PASSWORD|STORE", each.partition("=")[0])
    ]


@pytest.mark.parametrize("place", ["compose", "kubernetes", "local"])
def test_nginx_accepts_its_configuration(
    place: str, needs: Callable[[str], str], tmp_path: Path
) -> None:
    file = tmp_path / "nginx.conf"
    if place == "local":
        file.write_text(
            render_nginx(tmp_path, 18_080, ["server 127.0.0.1:18081", "server 127.0.0.1:18082"])
        )
    else:
        upstream = (DEPLOY / "nginx" / f"upstream-{place}.conf").read_text("utf-8")
        # Neither the names nor, before nginx 1.27.3, `resolve` work here.
        upstream = re.sub(
            r"server \S+:8765 resolve",
            f"server 127.0.0.1:{PORT}",
            re.sub("resolver .*\n", "", upstream),
        )
        (tmp_path / "upstream.conf").write_text(upstream)
        (tmp_path / "onetool.conf").write_text(
            (DEPLOY / "nginx" / "onetool.conf").read_text("utf-8")
        )
        text = (DEPLOY / "nginx" / "nginx.conf").read_text("utf-8")
        file.write_text(
            text.replace("/tmp/", f"{tmp_path}/").replace("/etc/nginx/onetool", str(tmp_path))
        )
    checked = subprocess.run(
        [needs("nginx"), "-t", "-p", tmp_path, "-c", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    file.write_text(file.read_text().replace("events", "evens", 1))
    assert subprocess.run(
        [needs("nginx"), "-t", "-p", tmp_path, "-c", file], capture_output=True, check=False
    ).returncode

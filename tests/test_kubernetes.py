"""The Kubernetes manifests, against the published schemas and the image, settings and files that they refer to.

The output of kustomize is tested if kustomize is installed, alone or in kubectl. The schema of the Spark operator's
applications is made from the operator's own models of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication
from ruamel.yaml import YAML
from typer.main import get_command

from conf.load import load_settings
from conf.settings import Settings
from streaming.cli.app import app
from streaming.spark.options import executors_python, spark_options
from streaming.spark.submit_files import LAUNCHER

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "conf/kubernetes"
BASE = FOLDER / "base"
FOLDERS = ["base", "client", "client-command", "spark-operator", "spark-operator-command"]
# The oldest that is still maintained somewhere, and the newest that has a schema here.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]
# Read by kustomize, by Spark, and by the Spark operator.
NO_MANIFESTS = ("kustomization.yaml", "references.yaml", "executor.yaml", "application.yaml")
APPLICATION = FOLDER / "spark-operator/application.yaml"
# The values that the operator's resource definition allows for a field, by model. The models only say `string`.
ALLOWED = {
    ("SparkV1beta2SparkApplicationSpec", "type"): ["Java", "Python", "Scala", "R"],
    ("SparkV1beta2SparkApplicationSpec", "mode"): ["cluster", "client"],
    ("SparkV1beta2SparkApplicationSpec", "pythonVersion"): ["2", "3"],
    ("SparkV1beta2RestartPolicy", "type"): ["Never", "Always", "OnFailure"],
}


@cache
def parsed(file: Path) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all(file.read_text()))


def documents(file: Path) -> list[dict[str, Any]]:
    """Return copies, which a test may change."""
    return deepcopy(parsed(file))


def manifests() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the documents that Kubernetes knows, with their files."""
    for file in sorted(FOLDER.rglob("*.yaml")):
        if file.name not in NO_MANIFESTS:
            yield from ((file, document) for document in documents(file))


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for _, each in manifests() if (each["kind"], each["metadata"].get("name")) == (kind, name))
    return found


def pods() -> dict[str, dict[str, Any]]:
    """Return the pods' specs by component."""
    templates = [each["spec"]["template"] for _, each in manifests() if "template" in each.get("spec", {})]
    return {template["metadata"]["labels"]["app.kubernetes.io/component"]: template["spec"] for template in templates}


@cache
def built(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what kustomize builds of `folder`, by kind and name."""
    programs = [program for program in ("kustomize", "kubectl") if shutil.which(program)]
    if not programs:
        pytest.skip("kustomize is not installed")
    build = [programs[0], {"kustomize": "build", "kubectl": "kustomize"}[programs[0]], str(FOLDER / folder)]
    text = subprocess.run(build, check=True, capture_output=True, text=True).stdout
    return {(each["kind"], each["metadata"]["name"]): each for each in YAML(typ="safe").load_all(text)}


@cache
def applications() -> jsonschema.Draft202012Validator:
    """Return what validates a SparkApplication, and allows no field that the operator does not know.

    To check the schema itself takes a second, so it is checked once.
    """
    schema: dict[str, Any] = SparkV1beta2SparkApplication.model_json_schema()
    for model in (schema, *schema["$defs"].values()):
        if "one_of_schemas" in model["properties"]:
            # A class for "an integer or a string", as which such a value is written.
            model.clear()
        else:
            model["additionalProperties"] = False
    for (model, field), values in ALLOWED.items():
        assert field in schema["$defs"][model]["properties"]
        schema["$defs"][model]["properties"][field] = {"enum": values}
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def assert_is_a_command(arguments: list[str]) -> None:
    """Let Delayline's command line read `arguments`, and run nothing."""
    commands: Any = get_command(app)
    name, *options = arguments
    commands.commands[name].make_context(name, options)


def container(component: str) -> dict[str, Any]:
    (only,) = pods()[component]["containers"]
    assert isinstance(only, dict)
    return only


@pytest.fixture(scope="module")
def settings() -> Settings:
    """The settings of the job's pod."""
    environ = {each["name"]: each.get("value", "from-the-pod") for each in container("job")["env"]}
    return load_settings(BASE / "delayline.toml", environ=environ)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", sorted({file for file, _ in manifests()}), ids=lambda file: file.name)
def test_manifests_are_valid(file: Path, version: str) -> None:
    for document in documents(file):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_wrong_manifest_is_not_valid() -> None:
    wrong = manifest("StatefulSet", "delayline-release")
    wrong["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_the_application_is_valid() -> None:
    (application,) = documents(APPLICATION)
    assert application["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    applications().validate(application)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("spec/driver/core", 1, "$.spec.driver"),
        ("spec/driver/cores", "1", "$.spec.driver.cores"),
        ("spec/volumes/0/configMap/nam", "delayline", "$.spec.volumes"),
        ("spec/driver/volumeMounts/0/path", "/etc", "$.spec.driver.volumeMounts"),
        ("spec/type", "Pyhton", "$.spec.type"),
        ("spec/restartPolicy/type", "always", "$.spec.restartPolicy"),
        ("spec/mainApplicationFile", None, "$.spec"),
    ],
)
def test_a_wrong_application_is_not_valid(path: str, value: Any, where: str) -> None:
    (application,) = documents(APPLICATION)
    *folders, field = path.split("/")
    at: Any = application
    for name in folders:
        at = at[int(name) if isinstance(at, list) else name]
    if value is None:
        del at[field]
    else:
        at[field] = value
    with pytest.raises(jsonschema.ValidationError) as found:
        applications().validate(application)
    assert found.value.json_path.startswith(where)


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_kustomization_names_the_files_beside_it(folder: str) -> None:
    (kustomization,) = documents(FOLDER / folder / "kustomization.yaml")
    generated = [name for each in kustomization.get("configMapGenerator", []) for name in each["files"]]
    named = {*kustomization["resources"], *kustomization.get("configurations", []), *generated}
    assert all((FOLDER / folder / name).exists() for name in named)
    beside = {name for name in named if not name.startswith("../")}
    assert {path.name for path in (FOLDER / folder).iterdir()} == {*beside, "kustomization.yaml"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_kustomize_builds_is_valid(folder: str, version: str) -> None:
    for (kind, _), document in built(folder).items():
        if kind == "SparkApplication":
            applications().validate(document)
        else:
            kubernetes_validate.validate(document, version, strict=True)


def test_a_command_is_the_job_s_driver_with_other_arguments_and_runs_once() -> None:
    command, client = built("client-command"), built("client")
    assert {kind for kind, _ in command} == {"ConfigMap", "Job"}
    # The same settings: neither the release processes nor the executors get others.
    assert all(command[each] == client[each] for each in command if each[0] == "ConfigMap")
    job, driver = command["Job", "delayline-command"]["spec"], client["Deployment", "delayline-job"]["spec"]
    assert job["backoffLimit"] == 0
    pod, usual = job["template"]["spec"], driver["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    ((own,), (others,)) = pod["containers"], usual["containers"]
    assert_is_a_command(own["args"])
    for name in others.keys() | own.keys():
        assert (own.get(name) is None) if name.endswith("Probe") else (name == "args" or own[name] == others[name])
    assert pod | {"restartPolicy": 0, "containers": 0} == usual | {"restartPolicy": 0, "containers": 0}
    selector = client["Service", "delayline-job"]["spec"]["selector"]
    assert selector.items() <= job["template"]["metadata"]["labels"].items()


def test_a_command_of_the_spark_operator_is_submitted_once() -> None:
    command, usual = built("spark-operator-command"), built("spark-operator")
    assert {kind for kind, _ in command} == {"ConfigMap", "SparkApplication"}
    own = command["SparkApplication", "delayline-command"]["spec"]
    others = usual["SparkApplication", "delayline-job"]["spec"]
    assert own["restartPolicy"] == {"type": "Never"}
    assert_is_a_command(own["arguments"])
    for name in others.keys() - {"restartPolicy", "arguments", "driver"}:
        assert own[name] == others[name]
    assert own["driver"] == {name: value for name, value in others["driver"].items() if name != "annotations"}


def test_the_commands_of_the_docs_name_what_is_there_with_each_variant() -> None:
    text = "".join(page.read_text() for page in sorted((ROOT / "docs/platform").glob("kubernetes*.md")))
    (application,) = documents(APPLICATION)
    every = (application, *(each for _, each in manifests()))
    known = {(each["kind"].lower(), each["metadata"].get("name")) for each in every}
    # These are made of the driver by the patches of `client-command` and `spark-operator-command`.
    known |= {("job", "delayline-command"), ("sparkapplication", "delayline-command")}
    assert known.issuperset(re.findall(r"\b(deployment|statefulset|job|sparkapplication)/(delayline[a-z-]*)", text))
    # The operator names a driver's pod like this.
    drivers = {f"{name}-driver" for name in (application["metadata"]["name"], "delayline-command")}
    assert set(re.findall(r"\b(delayline[a-z-]*-driver)\b", text)) == drivers
    looks = set(re.findall(r"kubectl exec --namespace=delayline(?: --\S+)* (\S+) -- delayline status", text))
    assert looks == {"deployment/delayline-web", f"{application['metadata']['name']}-driver"}


def test_all_pods_have_valid_settings_and_the_image_knows_their_arguments(settings: Settings) -> None:
    assert pods().keys() == {"job", "release", "forward", "topics", "web"}
    assert container("job")["args"] == ["run"]
    assert container("release")["args"] == ["release"]
    assert container("forward")["args"] == ["forward"]
    assert container("topics")["args"] == ["topics", "create"]
    assert container("web")["args"] == ["web"]
    for component in pods():
        own = container(component)
        assert {each["name"]: each.get("value") for each in own["env"]}[
            "DELAYLINE_CONFIG"
        ] == "/etc/delayline/delayline.toml"
        assert {"name": "settings", "mountPath": "/etc/delayline"} in own["volumeMounts"]
    assert (settings.release.processes, settings.forward.processes, settings.forward.is_on) == (0, 0, True)
    assert settings.spark.options["spark.kubernetes.driver.pod.name"] == "from-the-pod"


def test_probes_ask_where_the_processes_answer(settings: Settings) -> None:
    for component in ("job", "release", "forward"):
        address = getattr(settings.monitor, component)
        ports = {port["name"]: port["containerPort"] for port in container(component)["ports"]}
        assert address == f"0.0.0.0:{ports['monitor']}"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container(component)[probe]["httpGet"]["port"] == "monitor"
            assert container(component)[probe]["httpGet"]["path"] in ("/healthz", "/readyz")


def test_the_page_asks_all_processes_through_their_services() -> None:
    environ = {each["name"]: each["value"] for each in container("web")["env"]}
    settings = load_settings(BASE / "delayline.toml", environ=environ)
    name, _, port = settings.monitor.job.rpartition(":")
    assert port in {str(each["port"]) for each in manifest("Service", name)["spec"]["ports"]}
    assert len(settings.monitor.process_addresses) == 2
    for component, address in zip(("release", "forward"), settings.monitor.process_addresses, strict=True):
        name, _, port = address.rpartition(":")
        service = manifest("Service", name)["spec"]
        assert service["selector"]["app.kubernetes.io/component"] == component
        # Its name stands for the pods themselves.
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        assert port in {str(each["port"]) for each in service["ports"]}
        assert port == getattr(settings.monitor, component).rpartition(":")[2]
    # Requests through a proxy of kubectl come from the pod's own host. No others reach the page without a token.
    assert settings.web.address.startswith("127.0.0.1:")


def test_executors_reach_the_driver_through_its_service(settings: Settings) -> None:
    service = manifest("Service", settings.spark.options["spark.driver.host"])
    ports = {port["name"]: str(port["port"]) for port in service["spec"]["ports"]}
    assert ports["driver"] == settings.spark.options["spark.driver.port"]
    assert ports["blocks"] == settings.spark.options["spark.driver.blockManager.port"]
    assert service["spec"]["selector"].items() <= manifest("Deployment", "delayline-job")["metadata"]["labels"].items()


def test_driver_and_executors_see_the_same_storage_as_the_same_user(settings: Settings) -> None:
    (executor,) = documents(BASE / "executor.yaml")
    assert settings.spark.options["spark.kubernetes.executor.podTemplateFile"] == "/etc/delayline/executor.yaml"
    for pod in (executor["spec"], pods()["job"], pods()["web"]):
        assert {"name": "storage", "mountPath": settings.storage.path} in pod["containers"][0]["volumeMounts"]
        (claim,) = (each["persistentVolumeClaim"] for each in pod["volumes"] if each["name"] == "storage")
        assert claim == {"claimName": manifest("PersistentVolumeClaim", "delayline")["metadata"]["name"]}
    made = re.search(r"useradd .*--uid (\d+)", (ROOT / "conf/docker/Dockerfile").read_text())
    assert made is not None
    users = {pod["securityContext"]["runAsUser"] for pod in (executor["spec"], *pods().values())}
    assert users == {int(made[1])}


@pytest.mark.usefixtures("java")
def test_executors_find_python_and_delaylines_files_where_the_driver_has_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All pods are of one image.
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    options = spark_options(settings)
    assert executors_python(options) == sys.executable
    assert "log4j2.properties" in options["spark.executor.defaultJavaOptions"]


def test_no_executor_works_in_the_storage_that_it_shares_with_others() -> None:
    (executor,) = documents(BASE / "executor.yaml")
    (only,) = executor["spec"]["containers"]
    shared = {each["name"] for each in executor["spec"]["volumes"] if "persistentVolumeClaim" in each}
    mounts = [PurePosixPath(each["mountPath"]) for each in only["volumeMounts"] if each["name"] in shared]
    images = re.findall(r"^WORKDIR (\S+)$", (ROOT / "conf/docker/Dockerfile").read_text(), re.MULTILINE)
    folder = PurePosixPath(only.get("workingDir", images[-1]))
    assert mounts
    assert not any(folder.is_relative_to(mount) for mount in mounts)


def test_the_spark_operator_submits_what_the_image_has() -> None:
    (application,) = documents(APPLICATION)
    spec = application["spec"]
    assert f"\npyspark=={spec['sparkVersion']}\n" in (ROOT / "constraints.txt").read_text()
    dockerfile = (ROOT / "conf/docker/Dockerfile").read_text()
    assert "WORKDIR /opt/delayline\n" in dockerfile
    assert "delayline submit-files submit" in dockerfile
    assert spec["mainApplicationFile"] == f"local:///opt/delayline/submit/{LAUNCHER}"
    assert spec["driver"]["serviceAccount"] == manifest("ServiceAccount", "delayline")["metadata"]["name"]
    assert spec["image"] == container("job")["image"]

"""The Kubernetes manifests, against the published schemas, and what kustomize builds of them.

The output of kustomize is tested if kustomize is installed, alone or in kubectl. The schema of the Spark operator's
applications is made from the operator's own models of them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication
from typer.main import get_command

from streaming.cli.app import app
from tests.kubernetes_manifests import APPLICATION, FOLDER, ROOT, built, documents, manifest, manifests

FOLDERS = ["base", "client", "client-command", "spark-operator", "spark-operator-command"]
# The oldest that is still maintained somewhere, and the newest that has a schema here.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]
# The values that the operator's resource definition allows for a field, by model. The models only say `string`.
ALLOWED = {
    ("SparkV1beta2SparkApplicationSpec", "type"): ["Java", "Python", "Scala", "R"],
    ("SparkV1beta2SparkApplicationSpec", "mode"): ["cluster", "client"],
    ("SparkV1beta2SparkApplicationSpec", "pythonVersion"): ["2", "3"],
    ("SparkV1beta2RestartPolicy", "type"): ["Never", "Always", "OnFailure"],
}


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

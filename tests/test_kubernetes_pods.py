"""The pods of the Kubernetes manifests, against the image, settings and files that they refer to."""

from __future__ import annotations

import re
import sys
from pathlib import PurePosixPath

import pytest

from conf.load import load_settings
from conf.settings import Settings
from streaming.spark.options import executors_python, spark_options
from streaming.spark.submit_files import LAUNCHER
from tests.kubernetes_manifests import APPLICATION, BASE, ROOT, container, documents, manifest, pods


@pytest.fixture(scope="module")
def settings() -> Settings:
    """The settings of the job's pod."""
    environ = {each["name"]: each.get("value", "from-the-pod") for each in container("job")["env"]}
    return load_settings(BASE / "delayline.toml", environ=environ)


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

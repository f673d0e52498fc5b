"""The compose file, against the published schema and the files, settings and services that it refers to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from conf.load import load_settings
from conf.settings import Settings

ROOT = Path(__file__).parent.parent
COMPOSE = ROOT / "docker-compose.yml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    # As compose does without variables of the shell.
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE.read_text())
    services: dict[str, Any] = YAML(typ="safe").load(text)["services"]
    return services


def test_the_file_is_valid_against_the_schema_of_compose() -> None:
    checker = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(COMPOSE),
    ]
    result = subprocess.run(checker, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_environment_of_the_job_is_valid_settings(services: dict[str, Any]) -> None:
    settings = load_settings(None, environ=services["job"]["environment"])
    assert settings.kafka.bootstrap_servers == "kafka:9092"
    assert settings.spark.options["spark.master"] == "spark://spark-master:7077"
    assert settings.spark.options["spark.driver.host"] == services["job"]["hostname"]
    assert settings.bucket.shards == Settings().bucket.shards
    assert load_settings(None, environ=services["topics"]["environment"]) == settings
    assert load_settings(None, environ=services["release"]["environment"]) == settings
    assert load_settings(None, environ=services["forward"]["environment"]) == settings
    assert (settings.release.processes, settings.forward.processes, settings.forward.is_on) == (0, 0, True)
    assert settings != Settings()


def test_the_page_asks_all_processes_where_they_listen(services: dict[str, Any]) -> None:
    environment = {name: value or "" for name, value in services["web"]["environment"].items()}
    settings = load_settings(None, environ=environment)
    name, _, port = settings.monitor.job.rpartition(":")
    assert services[name]["environment"]["DELAYLINE_MONITOR__JOB"].rpartition(":")[2] == port
    assert {address.rpartition(":")[0] for address in settings.monitor.process_addresses} == {"release", "forward"}
    for address in settings.monitor.process_addresses:
        name, _, port = address.rpartition(":")
        assert services[name]["environment"][f"DELAYLINE_MONITOR__{name.upper()}"].rpartition(":")[2] == port
    assert f"127.0.0.1:9466:{settings.web.address.rpartition(':')[2]}" in services["web"]["ports"]


def test_the_job_knows_the_token_of_the_page() -> None:
    services = YAML(typ="safe").load(COMPOSE.read_text())["services"]
    tokens = {services[name]["environment"].get("DELAYLINE_WEB__TOKEN") for name in ("job", "web")}
    assert tokens == {"${DELAYLINE_WEB__TOKEN:-}"}


def test_driver_and_workers_see_the_same_storage(services: dict[str, Any]) -> None:
    path = services["job"]["environment"]["DELAYLINE_STORAGE__PATH"]
    mount = f"storage:{path}"
    assert mount in services["job"]["volumes"]
    assert mount in services["spark-worker"]["volumes"]


def test_each_dependency_of_a_service_exists_and_has_a_health_check_if_needed(services: dict[str, Any]) -> None:
    for service in services.values():
        for dependency, requirement in service.get("depends_on", {}).items():
            assert requirement["condition"] != "service_healthy" or "healthcheck" in services[dependency]


def test_one_service_builds_the_image_and_none_pulls_it(services: dict[str, Any]) -> None:
    of_image = [service for service in services.values() if service["image"] == "delayline:local"]
    assert len(of_image) == len(services) - 1
    assert sum("build" in service for service in of_image) == 1
    assert {service["pull_policy"] for service in of_image} == {"never"}


def test_the_image_copies_only_files_that_exist(services: dict[str, Any]) -> None:
    build = services["job"]["build"]
    dockerfile = ROOT / build["context"] / build["dockerfile"]
    copied = [line.split()[1:-1] for line in dockerfile.read_text().splitlines() if line.startswith("COPY")]
    wanted = [name for names in copied for name in names]
    assert {"conf", "sources", "state", "sinks", "streaming"} < set(wanted)
    assert [name for name in wanted if not (ROOT / name).exists()] == []
    not_ignored = dockerfile.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in wanted} <= set(not_ignored)

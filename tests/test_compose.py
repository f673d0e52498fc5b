"""The compose file, against the published schema and against what it refers to."""

from __future__ import annotations

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
    services: dict[str, Any] = YAML(typ="safe").load(COMPOSE)["services"]
    return services


def test_it_is_valid_against_the_schema_of_compose() -> None:
    checker = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(COMPOSE),
    ]
    done = subprocess.run(checker, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_settings_of_its_job_are_settings(services: dict[str, Any]) -> None:
    settings = load_settings(None, environ=services["job"]["environment"])
    assert settings.kafka.bootstrap_servers == "kafka:9092"
    assert settings.spark.options["spark.master"] == "spark://spark-master:7077"
    assert settings.spark.options["spark.driver.host"] == services["job"]["hostname"]
    assert load_settings(None, environ=services["topics"]["environment"]) == settings
    assert settings != Settings()


def test_driver_and_workers_see_the_same_storage(services: dict[str, Any]) -> None:
    path = services["job"]["environment"]["DELAYLINE_STORAGE__PATH"]
    mount = f"storage:{path}"
    assert mount in services["job"]["volumes"]
    assert mount in services["spark-worker"]["volumes"]


def test_what_a_service_waits_for_is_there_and_can_be_healthy(services: dict[str, Any]) -> None:
    for service in services.values():
        for other, needed in service.get("depends_on", {}).items():
            assert needed["condition"] != "service_healthy" or "healthcheck" in services[other]


def test_the_image_copies_what_exists(services: dict[str, Any]) -> None:
    build = services["job"]["build"]
    dockerfile = ROOT / build["context"] / build["dockerfile"]
    copied = [line.split()[1:-1] for line in dockerfile.read_text().splitlines() if line.startswith("COPY")]
    wanted = [name for names in copied for name in names]
    assert {"conf", "sources", "state", "sinks", "streaming"} < set(wanted)
    assert [name for name in wanted if not (ROOT / name).exists()] == []
    let_in = dockerfile.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in wanted} <= set(let_in)
